/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/row.h"

#include <stdlib.h>

#include "libclient/space/chain.h"
#include "libclient/space/sealed.h"
#include "libclient/space/space.h"

/* ---- the page map ----------------------------------------------------------------------------- */

/* The entries of [offset, offset + n_bytes), which is @piece's. */
static void enter_part(const struct glake__piece *piece, uint64_t offset, uint64_t n_bytes)
{
	const struct glake__range *range = piece->range;
	if (range->is_outside) {
		return;
	}
	enum glake__page_kind kind = piece->chunk ? piece->chunk->kind : GLAKE__PAGE_HOLE;
	uint64_t entry = glake__page_entry(kind, piece);
	uint64_t at = (range->ptr + offset - glake__pages.base) >> GLAKE__PAGE_SHIFT;
	uint64_t n = n_bytes >> GLAKE__PAGE_SHIFT;
	for (uint64_t i = 0; i < n; i++) {
		atomic_store_explicit(&glake__pages.entries[at + i], entry, memory_order_release);
	}
}

void glake__piece_enter(const struct glake__piece *piece)
{
	enter_part(piece, piece->offset, piece->n_bytes);
}

/* ---- pieces outside of the window ------------------------------------------------------------- */

/* A program may cut a reservation of its own into thousands of pieces: engines map KV caches page by page. */
static int by_offset(const struct glake__piece *a, const struct glake__piece *b)
{
	return a->offset < b->offset ? -1 : a->offset > b->offset;
}

RB_GENERATE_INTERNAL(glake__piece_tree, glake__piece, by_offset, by_offset,
                     __attribute__((unused)) static)

static struct glake__piece *find_in_tree(const struct glake__range *range, uint64_t offset)
{
	struct glake__piece *piece = RB_ROOT(&range->tree);
	while (offset - piece->offset >= piece->n_bytes) {
		piece = offset < piece->offset ? RB_LEFT(piece, by_offset)
		                               : RB_RIGHT(piece, by_offset);
	}
	return piece;
}

struct glake__piece *glake__range_piece_locked(const struct glake__range *range, uint64_t offset)
{
	return range->is_outside ? find_in_tree(range, offset)
	                         : glake__page_pointer(glake__page_of(range->ptr + offset));
}

enum glake__access glake__piece_most(const struct glake__piece *piece, enum glake__access access)
{
	if (piece->range->use->is_nowhere || !piece->chunk || !piece->readers) {
		return GLAKE__ACCESS_NONE;
	}
	bool is_read_only = piece->range->use->is_programs && !piece->writers;
	return is_read_only && access > GLAKE__ACCESS_READ ? GLAKE__ACCESS_READ : access;
}

/* ---- what is mapped ---------------------------------------------------------------------------- */

void glake__piece_map(struct glake__piece *piece)
{
	struct glake__chunk *chunk = piece->chunk;
	if (chunk) {
		glake__sealed_count(piece);
		piece->number = piece->number ? piece->number : ++glake__space.n_mappings;
		chunk->n_uses++;
		chunk->n_mappings++;
		CHAIN_PUSH(chunk->mappings, piece, previous_mapping, next_mapping);
		chunk->row = piece->range->use->is_nowhere ? piece : chunk->row;
	}
}

void glake__piece_unmap(struct glake__piece *piece, struct glake__chunk **dead)
{
	struct glake__chunk *chunk = piece->chunk;
	if (!chunk) {
		return;
	}
	CHAIN_REMOVE(chunk->mappings, piece, previous_mapping, next_mapping);
	glake__sealed.n -= glake__piece_is_sealed(piece);
	chunk->n_mappings--;
	chunk->row = chunk->row == piece ? NULL : chunk->row;
	piece->chunk = NULL;
	piece->access = GLAKE__ACCESS_NONE;
	piece->readers = 0;
	piece->writers = 0;
	piece->number = 0;
	glake__chunk_put_locked(chunk, dead);
}

/* ---- rows ------------------------------------------------------------------------------------- */

struct glake__piece *glake__piece_new(struct glake__range *range)
{
	struct glake__piece *piece = calloc(1, sizeof(*piece));
	if (piece) {
		piece->range = range;
	}
	return piece;
}

void glake__piece_link(struct glake__piece *piece, struct glake__piece *before)
{
	struct glake__range *range = piece->range;
	CHAIN_LINK(range->first, piece, before, previous, next);
	if (range->is_outside) {
		RB_INSERT(glake__piece_tree, &range->tree, piece);
	}
}

void glake__piece_take_out(struct glake__piece *piece)
{
	CHAIN_REMOVE(piece->range->first, piece, previous, next);
	if (piece->range->is_outside) {
		RB_REMOVE(glake__piece_tree, &piece->range->tree, piece);
	}
}

bool glake__piece_is_free_hole(const struct glake__piece *piece)
{
	return piece && !piece->chunk && !piece->holder;
}

/* Two holes side by side become the larger one. Returns what is left over, out of the row. */
static struct glake__piece *merge(struct glake__piece *left, struct glake__piece *right)
{
	struct glake__piece *larger = left->n_bytes < right->n_bytes ? right : left;
	struct glake__piece *smaller = larger == left ? right : left;
	glake__piece_take_out(smaller);
	larger->offset = left->offset;
	larger->n_bytes += smaller->n_bytes;
	/* Only the smaller one's pages: a hole may be as large as the window. */
	enter_part(larger, smaller->offset, smaller->n_bytes);
	return smaller;
}

/* Every free hole that touches [offset, end) and has a neighbour of its kind. */
void glake__range_merge_holes(struct glake__range *range, uint64_t offset, uint64_t end)
{
	struct glake__piece *piece = glake__range_piece_locked(range, offset ? offset - 1 : 0);
	while (piece && piece->offset <= end) {
		if (glake__piece_is_free_hole(piece) && glake__piece_is_free_hole(piece->next)) {
			struct glake__piece *next = piece->next;
			struct glake__piece *gone = merge(piece, next);
			piece = gone == piece ? next : piece;
			free(gone);
		} else {
			piece = piece->next;
		}
	}
}

/*
 * Cut @hole at @offset, into two; @spare becomes the smaller one. Returns the one behind the cut.
 */
struct glake__piece *glake__piece_cut(struct glake__piece *hole, uint64_t offset,
                                      struct glake__piece *spare)
{
	uint64_t n_before = offset - hole->offset;
	uint64_t n_behind = hole->n_bytes - n_before;
	spare->range = hole->range;
	if (n_before < n_behind) {
		spare->offset = hole->offset;
		spare->n_bytes = n_before;
		hole->offset = offset;
		hole->n_bytes = n_behind;
		glake__piece_link(spare, hole->previous);
		glake__piece_enter(spare);
		return hole;
	}
	spare->offset = offset;
	spare->n_bytes = n_behind;
	hole->n_bytes = n_before;
	glake__piece_link(spare, hole);
	glake__piece_enter(spare);
	return spare;
}

/* ---- sealed memory --------------------------------------------------------------------------- */

bool glake__piece_is_sealed(const struct glake__piece *piece)
{
	return piece->chunk && piece->chunk->kind == GLAKE__PAGE_BLOCK &&
	       !piece->range->use->is_worked_on && !piece->range->use->is_nowhere;
}

/* They grow as long as anything is sealed: launches read them without a lock. */
static void widen_bounds(const struct glake__piece *piece)
{
	struct glake__sealed *sealed = &glake__sealed;
	uint64_t begin = piece->range->ptr + piece->offset;
	uint64_t end = begin + piece->n_bytes;
	if (sealed->n > 0 && sealed->n_bytes > 0) {
		uint64_t old_end = sealed->base + sealed->n_bytes;
		begin = begin < sealed->base ? begin : sealed->base;
		end = end > old_end ? end : old_end;
	}
	sealed->base = begin;
	sealed->n_bytes = end - begin;
}

void glake__sealed_count(const struct glake__piece *piece)
{
	if (glake__piece_is_sealed(piece)) {
		if (!piece->range->is_outside) {
			widen_bounds(piece);
		}
		glake__sealed.n++;
		glake__sealed.n_sealings++;
	}
}
