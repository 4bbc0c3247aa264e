/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory of an allocation, in chunks of other sizes: the same bytes at the same addresses.
 *
 * A chunk that is too large to be sealed is cut this way, and a block that is to be written is replaced by a
 * private copy.
 *
 * Threads: any; the caller holds the backing (heap.h). Blocks; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_REPIECE_H
#define GLAKE_LIBCLIENT_REPIECE_H

#include <stddef.h>
#include <stdint.h>

#include "libclient/heap/backing.h"

/*
 * Get fresh chunks of @sizes, copy what is at @offset of @backing to them, and put them in its place, writable.
 * Whole pieces are replaced, and none is pinned (-EBUSY); their chunks and blocks go back to glaked. It is copied
 * while the gate is closed, which @close does: no work of the program keeps the GPU from it. After an error all is as
 * it was.
 * Returns 0; the errors of glake__backing_fill(), @close, glake__errand_copy() and glake__range_reback().
 */
typedef int glake__close_fn(uint64_t readers);
int glake__repiece(struct glake__backing *backing, uint64_t offset, const uint64_t *sizes,
                   size_t n_sizes, struct glake__wait *wait, glake__close_fn *close);

#endif
