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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libclient/space/grant.h"

struct glake__repiecing {
	glake_ptr ptr;                /* whole pieces from here on */
	struct glake__device *device; /* whose memory they are */
	const uint64_t *sizes;        /* that they are to have; borrowed */
	size_t n_sizes;
	uint64_t last;    /* the number of the last mapping when they were looked at (look.h) */
	uint64_t unseals; /* a block that this is the private copy of; 0: it is not one block */
	bool may_be_host; /* rather in host memory than not at all */
	bool is_host;     /* out: it is */
	int result;       /* out */
};

/*
 * Get fresh chunks of those sizes, copy what is there to them, and put them in its place, writable, wherever it is
 * mapped. The chunks and blocks that were there go back to glaked. It is copied while the gate is closed: no work of
 * the program keeps the GPU from it. After an error all is as it was.
 * Result: 0; -ESTALE: something else is there now; -EBUSY: it is pinned, or another thread works on it; the errors of
 * glake__grant_fill(), close, glake__errand_copy() and glake__hold_reback_all().
 *
 * Of the list, which must not overlap, it begins with as many as there is memory for, the first in any case, and closes the
 * gate once for all of them: only for the first is memory of others wanted. *n_out is how many have a result; the rest
 * is as it was, and asked for again. Returns the first error but -ESTALE, its text set.
 */
int glake__repiece(struct glake__repiecing *list, size_t n, glake__close_fn *close,
                   struct glake__wait *wait, size_t *n_out);

#endif
