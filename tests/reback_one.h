/* SPDX-License-Identifier: Apache-2.0 */
/* One change of what backs a range, which the library makes only as part of larger ones. */
#ifndef GLAKE_TESTS_REBACK_ONE_H
#define GLAKE_TESTS_REBACK_ONE_H

#include <errno.h>

#include "libclient/space/reback.h"

static inline int close_for_one(uint64_t readers)
{
	return glake__gate_close(readers, GLAKE__GATE_PATIENCE_NS);
}

/* Replaces all memory of @hold. */
static inline int hold_reback(const struct glake__hold *hold, const struct glake__part *parts,
                              size_t n_parts)
{
	const struct glake__rebacking_way way = {.close = close_for_one};
	struct glake__rebacking one = {.hold = hold, .parts = parts, .n_parts = n_parts};
	int r = glake__hold_reback_all(&one, 1, &way);
	glake__chunks_release(one.dead);
	return r;
}

static inline size_t n_backed(struct glake__range *range, uint64_t offset, uint64_t n_bytes)
{
	size_t n = 0;
	glake__lock();
	const struct glake__piece *at = glake__range_piece_locked(range, offset);
	for (; at && at->offset < offset + n_bytes; at = at->next) {
		n += at->chunk != NULL;
	}
	glake__unlock();
	return n;
}

/*
 * Puts @parts at @offset of @range, whole pieces or parts of holes. *is_lost_out (may be NULL): the driver has taken memory away,
 * and mapped neither what is new nor what was there.
 */
static inline int range_reback(struct glake__range *range, uint64_t offset,
                               const struct glake__part *parts, size_t n_parts, bool *is_lost_out)
{
	struct glake__hold hold = {.range = NULL};
	struct glake__holding holding = {.hold = &hold, .range = range, .ptr = offset};
	bool is_lost = false;
	for (size_t i = 0; i < n_parts; i++) {
		holding.n_bytes += parts[i].n_bytes;
	}
	if (offset + holding.n_bytes <= range->n_bytes &&
	    glake__holds_begin(&holding, 1, false) < 0) {
		return -EBUSY;
	}
	int r;
	if (hold.range) {
		struct glake__hold here = hold;
		here.offset = offset;
		here.n_bytes = holding.n_bytes;
		size_t n_before = n_backed(range, offset, here.n_bytes);
		r = hold_reback(&here, parts, n_parts);
		is_lost = r < 0 && n_backed(range, offset, here.n_bytes) < n_before;
	} else {
		r = glake__range_fill(range, offset, parts, n_parts);
	}
	if (is_lost_out) {
		*is_lost_out = is_lost;
	}
	glake__hold_end(&hold);
	return r;
}

#endif
