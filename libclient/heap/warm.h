/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warm memory of one device: freed backings that stay mapped, ready to be handed out again.
 *
 * Bins of equal size, in an array sorted by size. A request takes from the exact bin, else from the
 * smallest that fits (fit.h). Distinct sizes are few: n of them, all multiples of 2 MiB, take
 * at least n (n + 1) / 2 * 2 MiB, so 64 GiB warm hold at most 255, and shifting the array to add or
 * drop a bin costs less than a list walk would.
 *
 * Owner: embedded in a device of a session; it owns the backings in it.
 * Lifetime: {0} is empty; glake__warm_deinit() when emptied.
 * Threads: none of its own (the lock).
 */
#ifndef GLAKE_LIBCLIENT_WARM_H
#define GLAKE_LIBCLIENT_WARM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/heap/backing.h"

struct glake__warm_bin {
	uint64_t n_bytes;             /* of each */
	struct glake__backing *first; /* never NULL; freed last, so the likeliest in caches */
};

struct glake__warm {
	struct glake__warm_bin *bins; /* owned; by size */
	size_t n_bins;
	size_t capacity;
	struct glake__backing *oldest; /* freed first */
	struct glake__backing *newest;
	uint64_t n_bytes; /* sum over all */
	uint64_t max_bytes;
};

/* Frees what the empty structure holds. */
void glake__warm_deinit(struct glake__warm *warm);

/* Takes @backing over, as the newest. May exceed max_bytes: see glake__warm_evict(). -ENOMEM. */
int glake__warm_give(struct glake__warm *warm, struct glake__backing *backing);

/* The best fit for @n_bytes, which is then the caller's, or NULL. */
struct glake__backing *glake__warm_take(struct glake__warm *warm, uint64_t n_bytes);

/* Take out the oldest until at most @keep_bytes remain. Returns them as a list by next. */
struct glake__backing *glake__warm_evict(struct glake__warm *warm, uint64_t keep_bytes);

#endif
