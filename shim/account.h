/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the program has of the driver itself, by device and kind: nothing of it is ours, but glaked
 * shall be able to say where the memory is.
 *
 * Things that the driver made are known by their numbers, addresses and handles, and go when the
 * program frees them or with their context. Where there is no memory to note one, it is not counted.
 *
 * Owner: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_ACCOUNT_H
#define GLAKE_SHIM_ACCOUNT_H

#include "shim/shim.h"

enum account_kind {
	ACCOUNT_MANAGED, /* as asked for */
	ACCOUNT_ARRAYS,
	ACCOUNT_OTHER, /* what we left to the driver */
	ACCOUNT_N_KINDS,
};

/* Of what a number is one. */
enum account_space {
	ACCOUNT_ADDRESS,
	ACCOUNT_ARRAY,
	ACCOUNT_MIPMAPPED,
	ACCOUNT_N_SPACES,
};

/* The driver has made it in the current context. */
void account_add(enum account_space space, uint64_t number, enum account_kind kind,
                 uint64_t n_bytes);

struct account_entry;

/*
 * Around the driver's call that frees it, since the number may be another's at once after that: take
 * it off the books, NULL if it is not there; and settle whether it is gone (NULL is fine).
 */
struct account_entry *account_take(enum account_space space, uint64_t number);
void account_settle(struct account_entry *entry, bool is_gone);

/* The life of @ctx before @generation (context.h) is over, and with it all that was made in it. */
void account_release_ctx(CUcontext ctx, uint64_t generation);

/* Memory that has no number here has come, or gone. */
void account_grow(CUdevice device, enum account_kind kind, int64_t n_bytes);

uint64_t account_bytes(CUdevice device, enum account_kind kind);

#endif
