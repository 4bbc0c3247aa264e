/* SPDX-License-Identifier: Apache-2.0 */
/* For tests: the invariants of range.h. */
#include "libclient/space/row.h"
#include "libclient/space/range.h"
#include "libclient/space/sealed.h"
#include "libclient/space/window.h"

static bool chunk_is_valid(const struct glake__chunk *chunk)
{
	uint32_t n = 0;
	for (const struct glake__piece *at = chunk->mappings; at; at = at->next_mapping) {
		n += at->chunk == chunk;
	}
	return n == chunk->n_mappings && chunk->n_uses >= n + chunk->n_handles;
}

static bool piece_is_valid(const struct glake__piece *piece)
{
	const struct glake__range *range = piece->range;
	if (piece->next &&
	    (piece->next->previous != piece || piece->next->range != range ||
	     (glake__piece_is_free_hole(piece) && glake__piece_is_free_hole(piece->next)))) {
		return false;
	}
	if (piece->chunk &&
	    (piece->chunk->n_bytes != piece->n_bytes || !chunk_is_valid(piece->chunk))) {
		return false;
	}
	for (uint64_t at = 0; !range->use->is_nowhere && at < piece->n_bytes;
	     at += GLAKE__PAGE_BYTES) {
		glake_ptr ptr = range->ptr + piece->offset + at;
		uint64_t page = glake__page_of(ptr);
		enum glake__page_kind kind = piece->chunk ? piece->chunk->kind : GLAKE__PAGE_HOLE;
		if (glake__piece_at_locked(ptr) != piece ||
		    (!range->is_outside && glake__page_kind(page) != kind)) {
			return false;
		}
	}
	return true;
}

static bool is_in_bounds(const struct glake__piece *piece)
{
	uint64_t at = piece->range->ptr + piece->offset - glake__sealed.base;
	return at < glake__sealed.n_bytes && piece->n_bytes <= glake__sealed.n_bytes - at;
}

static bool range_is_valid(const struct glake__range *range, uint64_t *n_sealed)
{
	bool is_within = true;
	uint64_t at = 0;
	for (const struct glake__piece *piece = range->first; piece; piece = piece->next) {
		if (piece->offset != at || piece->n_bytes == 0 || piece->range != range ||
		    !piece_is_valid(piece)) {
			return false;
		}
		*n_sealed += glake__piece_is_sealed(piece);
		is_within &= !glake__piece_is_sealed(piece) || range->is_outside ||
		             is_in_bounds(piece);
		at += piece->n_bytes;
	}
	return is_within && at == range->n_bytes &&
	       (range->use->is_nowhere || range->is_outside == !glake__window_has(range->ptr));
}

bool glake__space_is_valid(void)
{
	uint64_t n_sealed = 0;
	glake__lock();
	bool is_valid = glake__window_is_valid();
	for (const struct glake__range *at = glake__space.ranges; is_valid && at; at = at->next) {
		is_valid = range_is_valid(at, &n_sealed);
	}
	is_valid = is_valid && glake__sealed.n == n_sealed;
	glake__unlock();
	return is_valid;
}
