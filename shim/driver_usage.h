/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Driver usage: the memory that the program has from the driver itself, in bytes by device and
 * kind. None of it is glaked's. report.c tells glaked the sums.
 *
 * Most of it is known by a number that the driver gave out: an address or a handle. It counts until
 * the program frees it or its context ends. If the shim has no memory to note one, it does not
 * count.
 *
 * Ownership: the process. Blocking: no. Threads: any. Errors: none.
 */
#ifndef GLAKE_SHIM_DRIVER_USAGE_H
#define GLAKE_SHIM_DRIVER_USAGE_H

#include "shim/shim.h"

enum driver_usage_kind {
	DRIVER_USAGE_MANAGED, /* the bytes that the program asked for */
	DRIVER_USAGE_ARRAYS,
	DRIVER_USAGE_OTHER, /* allocations that the shim left to the driver */
	DRIVER_USAGE_N_KINDS,
};

/* The numbers of one space differ from each other. */
enum driver_usage_space {
	DRIVER_USAGE_BY_ADDRESS,
	DRIVER_USAGE_BY_ARRAY,
	DRIVER_USAGE_BY_MIPMAPPED_ARRAY,
	DRIVER_USAGE_N_SPACES,
};

/* The driver has made @number in the current context. Nothing happens if @n_bytes is 0. */
void driver_usage_add(enum driver_usage_space space, uint64_t number, enum driver_usage_kind kind,
                      uint64_t n_bytes);

struct driver_usage_entry;

/*
 * Around the driver's call that frees @number. take: removes the entry before the call, because the
 * driver may give the number out again at once. Returns it, or NULL if the number is not known. It
 * still counts. settle: takes @entry over after the call (NULL is allowed). It stops counting if
 * @is_gone, else it is put back.
 */
struct driver_usage_entry *driver_usage_take(enum driver_usage_space space, uint64_t number);
void driver_usage_settle(struct driver_usage_entry *entry, bool is_gone);

/* Context @ctx has ended: remove what was made in it before @generation (context.h). */
void driver_usage_release_ctx(CUcontext ctx, uint64_t generation);

/* Count memory that has no number here: @n_bytes more, or less if it is negative. */
void driver_usage_grow(CUdevice device, enum driver_usage_kind kind, int64_t n_bytes);

/* The sum of one kind on @device, which is less than SHIM_MAX_DEVICES. */
uint64_t driver_usage_bytes(CUdevice device, enum driver_usage_kind kind);

#endif
