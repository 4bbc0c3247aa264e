/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changing what backs a range, while its addresses stay.
 *
 * Threads: any; two changes of one place exclude each other (-EBUSY, or the second waits). No lock is held by the caller.
 * All return 0 or a negative error with its text.
 */
#ifndef GLAKE_LIBCLIENT_REBACK_H
#define GLAKE_LIBCLIENT_REBACK_H

#include "glake.h"
#include "libclient/space/range.h"

/*
 * Replaces the memory of all holds by parts: each whole or not at all. What is there goes, at all places where it is mapped or
 * named: it must be whole pieces, or parts of holes, and none of it pinned (-EBUSY). A chunk with other places is replaced by
 * parts of its own (-EINVAL). The gate is closed once and for a short time: handles are taken before and given back behind.
 * A step that fails is undone in reverse.
 *
 * Returns the first error: -EINVAL, -EBUSY, -ENOMEM, the gate's, GLAKE_E_CUDA. Each has its own result, and those that failed
 * are as they were, unless the driver has taken memory away and then mapped neither what is new nor what was there: those
 * pieces are holes, and *dead has what was there, if nothing else keeps it.
 */
struct glake__rebacking {
	const struct glake__hold *hold;
	const struct glake__part *parts; /* borrowed */
	size_t n_parts;
	int result;                /* out */
	struct glake__chunk *dead; /* out: chunks that lost their last use; the caller's */
};
/* How, all of it optional. */
struct glake__rebacking_way {
	glake__close_fn
		*close; /* NULL: glake__gate_close_soon(), and the program has pauses in between */
	uint64_t readers;              /* the gate is closed for them as well */
	void (*meanwhile)(void *user); /* called now and then while the program goes on */
	int (*before)(void *user,
	              size_t i); /* each exchange, the gate closed; an error is its result */
	void *user;
};
int glake__hold_reback_all(struct glake__rebacking *list, size_t n,
                           const struct glake__rebacking_way *way);

/* Maps memory where nothing is yet: anything but holes is -EINVAL. */
int glake__range_fill(struct glake__range *range, uint64_t offset, const struct glake__part *parts,
                      size_t n_parts);

/* Give the pieces in [offset, offset + n_bytes), whole ones, @access. Undone if it fails. */
int glake__range_access(struct glake__range *range, uint64_t offset, uint64_t n_bytes,
                        enum glake__access access);

/* Gives all memory of @hold @access, at all places; where the program has given less, it stays less. */
int glake__hold_access(const struct glake__hold *hold, enum glake__access access);

/* The readers that have access to what @hold has, at any place. */
uint64_t glake__hold_readers(const struct glake__hold *hold);

/*
 * Unmap whatever is in [offset, offset + n_bytes), pinned or not: nobody uses it any more. A change of it
 * under way is waited for. What the driver does not unmap stays a piece with its chunk. Returns the first
 * error, having tried all.
 */
int glake__range_clear(struct glake__range *range, uint64_t offset, uint64_t n_bytes,
                       struct glake__chunk **dead);

/*
 * The same at @n places at once, each @n_bytes of @range; or -EBUSY, and nothing has changed: something there is held, or
 * changes, or is pinned. Nobody is waited for.
 */
int glake__range_clear_all(struct glake__range *range, const uint64_t *offsets, size_t n,
                           uint64_t n_bytes, struct glake__chunk **dead);

/* Clear it all, and drop it; if that fails it stays in the map, for ever. Chunks as with reback. */
int glake__range_end(struct glake__range *range, struct glake__chunk **dead);

#endif
