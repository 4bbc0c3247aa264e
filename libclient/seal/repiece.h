/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in chunks of other sizes: the same bytes at the same addresses.
 *
 * A chunk that is too large to be sealed is cut this way, and a block that is to be written is replaced by a
 * private copy.
 *
 * Threads: any; the caller holds the allocation (space/held.h). Blocks; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_REPIECE_H
#define GLAKE_LIBCLIENT_REPIECE_H

#include <stddef.h>
#include <stdint.h>

#include "libclient/space/grant.h"

typedef int glake__close_fn(uint64_t readers);

struct glake__repiecing {
	glake_ptr ptr;                /* whole pieces from here on */
	struct glake__device *device; /* whose memory they are */
	const uint64_t *sizes;        /* that they are to have */
	size_t n_sizes;
	uint64_t last; /* the number of the last mapping when they were looked at (look.h) */
	glake__close_fn *close;
};

/*
 * Get fresh chunks of those sizes, copy what is there to them, and put them in its place, writable, wherever it is
 * mapped. The chunks and blocks that were there go back to glaked. It is copied while the gate is closed: no work of
 * the program keeps the GPU from it. After an error all is as it was.
 * Returns 0; -ESTALE: something else is there now; -EBUSY: it is pinned, or another thread works on it; the errors of
 * glake__grant_fill(), close, glake__errand_copy() and glake__hold_reback().
 */
int glake__repiece(const struct glake__repiecing *repiecing, struct glake__wait *wait);

#endif
