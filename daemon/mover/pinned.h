/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory that the GPU copies from and to without a detour.
 *
 * cuMemHostAlloc() needs about 200 ms per GiB, most of it to find and clear small pages, one thread
 * at a time. Huge pages that each thread fills in for itself and then registers come much faster.
 *
 * Owner: whoever made it. Lifetime: pinned_new() to pinned_free(), with a context current in both.
 * Threads: none of its own. All contexts of the process may use it.
 */
#ifndef GLAKE_MOVER_PINNED_H
#define GLAKE_MOVER_PINNED_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/cudrv.h"

struct pinned {
	void *memory; /* owned; NULL = none; aligned to 2 MiB where it is mapped here */
	size_t bytes;
	bool is_registered; /* our mapping, registered; else the driver's memory */
};

/* @n_bytes is rounded up to 2 MiB. */
CUresult pinned_new(struct pinned *pinned, const struct cudrv *drv, size_t n_bytes);
/* Accepts a zeroed one. No copy uses it any more. */
void pinned_free(struct pinned *pinned, const struct cudrv *drv);

#endif
