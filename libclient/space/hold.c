/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds (range.h): a chunk is held with all its places, or not at all.
 *
 * Who holds marks the pieces, so that others do not change them, and their chunks, so that nobody maps them once more. A
 * change under way of any place, or one that is about to add a place, makes the memory busy. All of it is looked at and
 * taken under one lock.
 */
#include "libclient/space/range.h"

#include <errno.h>

#include "proto/cleanup.h"
#include "proto/clock.h"

/* The pause between two looks at a busy piece. */
#define BUSY_PAUSE_NS 20000

void glake__busy_pause(void)
{
	const struct glake__gate *gate = &glake__space.gate;
	cleanup_cancel int cancel = cancel_disable();
	if (glake__space.n_asleep > 0 && gate->wanted) {
		gate->wanted(gate->user);
	}
	clock_sleep_ns(BUSY_PAUSE_NS);
}

static bool is_place(const struct glake__piece *piece)
{
	return !piece->range->use->is_ours;
}

/* A chunk with too many is pinned (glake__chunk_pin_locked()), and only held where it was asked for. */
static struct glake__piece *places_of(const struct glake__chunk *chunk)
{
	return glake__chunk_has_too_many_places_locked(chunk) ? NULL : chunk->mappings;
}

/* 0, -EBUSY, or -EALREADY: @owner has it. */
static int look_at(const struct glake__piece *piece, const void *owner)
{
	const struct glake__chunk *chunk = piece->chunk;
	if (piece->holder == owner || chunk->holder == owner) {
		return -EALREADY;
	}
	bool is_busy = piece->holder || chunk->holder || chunk->n_coming > 0;
	for (const struct glake__piece *at = places_of(chunk); at; at = at->next_mapping) {
		is_busy |= is_place(at) && at->holder;
	}
	return is_busy ? -EBUSY : 0;
}

static int look_at_row(const struct glake__piece *piece, uint64_t end, const void *owner)
{
	int r = 0;
	for (; r != -EBUSY && piece && piece->offset < end; piece = piece->next) {
		int one = piece->chunk ? look_at(piece, owner) : 0;
		r = one < 0 ? one : r;
	}
	return r;
}

static void take_chunk(struct glake__chunk *chunk, const void *owner)
{
	chunk->holder = owner;
	for (struct glake__piece *at = places_of(chunk); at; at = at->next_mapping) {
		if (is_place(at)) {
			at->holder = owner;
		}
	}
}

static void let_chunk(struct glake__chunk *chunk, const void *owner)
{
	chunk->holder = NULL;
	for (struct glake__piece *at = places_of(chunk); at; at = at->next_mapping) {
		at->holder = at->holder == owner ? NULL : at->holder;
	}
}

static void take_row(struct glake__hold *hold, struct glake__piece *piece, uint64_t end)
{
	hold->offset = piece->offset;
	for (; piece && piece->offset < end; piece = piece->next) {
		hold->n_bytes += piece->n_bytes;
		if (piece->chunk) {
			hold->range = piece->range;
			piece->holder = hold->owner;
			take_chunk(piece->chunk, hold->owner);
		}
	}
}

static struct glake__piece *find(const struct glake__holding *holding)
{
	return holding->range ? glake__range_piece_locked(holding->range, holding->ptr)
	                      : glake__piece_at_locked(holding->ptr);
}

static void end_locked(struct glake__hold *hold)
{
	if (!hold->range) {
		return;
	}
	uint64_t end = hold->offset + hold->n_bytes;
	struct glake__piece *piece = glake__range_piece_locked(hold->range, hold->offset);
	for (; piece && piece->offset < end; piece = piece->next) {
		bool is_held = piece->holder == hold->owner;
		piece->holder = is_held ? NULL : piece->holder;
		if (is_held && piece->chunk && piece->chunk->holder == hold->owner) {
			let_chunk(piece->chunk, hold->owner);
		}
	}
}

/* Only pieces, that others have not marked. */
static int take_here(struct glake__hold *hold, struct glake__piece *first, uint64_t end)
{
	for (const struct glake__piece *at = first; at && at->offset < end; at = at->next) {
		if (at->chunk && at->holder) {
			return -EBUSY;
		}
	}
	hold->offset = first->offset;
	for (struct glake__piece *at = first; at && at->offset < end; at = at->next) {
		hold->n_bytes += at->n_bytes;
		if (at->chunk) {
			hold->range = at->range;
			at->holder = hold->owner;
		}
	}
	return 0;
}

static int look_and_take(struct glake__holding *at, struct glake__piece *piece)
{
	glake_ptr base = at->range ? 0 : piece->range->ptr;
	uint64_t end = at->ptr - base + at->n_bytes;
	if (at->is_here) {
		return take_here(at->hold, piece, end);
	}
	int r = look_at_row(piece, end, at->hold->owner);
	if (r == 0) {
		take_row(at->hold, piece, end);
	}
	return r;
}

static int try_all(struct glake__holding *list, size_t n, const void *owner)
{
	int r = 0;
	size_t n_begun = 0;
	glake__lock();
	for (; r == 0 && n_begun < n; n_begun++) {
		struct glake__holding *at = &list[n_begun];
		struct glake__piece *piece = find(at);
		*at->hold = (struct glake__hold){.owner = owner};
		at->result = piece ? look_and_take(at, piece) : -ENOENT;
		r = at->result == -EBUSY ? -EBUSY : 0;
	}
	for (size_t i = 0; r < 0 && i < n_begun; i++) {
		end_locked(list[i].hold);
		list[i].hold->range = NULL;
	}
	glake__unlock();
	return r;
}

int glake__holds_begin(struct glake__holding *list, size_t n, bool waits)
{
	const void *owner = n > 0 ? list[0].hold : NULL;
	int r = try_all(list, n, owner);
	while (r == -EBUSY && waits) {
		glake__busy_pause();
		r = try_all(list, n, owner);
	}
	return r;
}

int glake__hold_begin(struct glake__hold *hold, glake_ptr ptr, uint64_t n_bytes, bool waits)
{
	struct glake__holding one = {.hold = hold, .ptr = ptr, .n_bytes = n_bytes};
	int r = glake__holds_begin(&one, 1, waits);
	return r < 0 ? r : one.result;
}

void glake__hold_end(struct glake__hold *hold)
{
	glake__lock();
	end_locked(hold);
	glake__unlock();
}

size_t glake__places_locked(const struct glake__piece *piece, struct glake__place *list,
                            size_t n_max)
{
	size_t n = 0;
	for (const struct glake__piece *at = places_of(piece->chunk); at; at = at->next_mapping) {
		if (at != piece && is_place(at)) {
			if (n < n_max) {
				list[n] = (struct glake__place){at->range, at->offset};
			}
			n++;
		}
	}
	return n;
}
