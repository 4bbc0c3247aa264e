/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/range.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/space/owner.h"
#include "libclient/space/row.h"
#include "proto/cleanup.h"

/* ---- changes ---------------------------------------------------------------------------------- */

static void change_free(struct glake__change *change)
{
	while (change->fresh) {
		struct glake__piece *piece = change->fresh;
		change->fresh = piece->next;
		free(piece);
	}
	free(change->edges[0]);
	free(change->edges[1]);
	*change = (struct glake__change){.range = NULL};
}

/* The pieces are in no range yet, and begin at offset 0. */
static int prepare(struct glake__change *change, const struct glake__part *parts, size_t n_parts)
{
	struct glake__piece **link = &change->fresh;
	for (size_t i = 0; i < n_parts; i++) {
		*link = glake__piece_new(NULL);
		if (!*link) {
			return glake__fail(-ENOMEM, "out of memory");
		}
		(*link)->offset = change->n_bytes;
		(*link)->n_bytes = parts[i].n_bytes;
		(*link)->chunk = parts[i].chunk;
		(*link)->access = parts[i].chunk ? parts[i].access : GLAKE__ACCESS_NONE;
		change->n_bytes += parts[i].n_bytes;
		link = &(*link)->next;
	}
	change->edges[0] = glake__piece_new(NULL);
	change->edges[1] = glake__piece_new(NULL);
	return change->edges[0] && change->edges[1] ? 0 : glake__fail(-ENOMEM, "out of memory");
}

static int refuse(const struct glake__change *change, int error, glake_ptr ptr, const char *why)
{
	return glake__fail(error, "%llu bytes at 0x%llx: %s", (unsigned long long)change->n_bytes,
	                   (unsigned long long)ptr, why);
}

static const void *owner_of(const struct glake__change *change)
{
	return change->hold ? change->hold->owner : NULL;
}

/* A change under a hold concerns what is held, and holes: another thread may have filled one meanwhile. */
static bool is_busy_for(const struct glake__change *change, const struct glake__piece *piece)
{
	bool is_held = change->hold && piece->holder == change->hold->owner;
	return !is_held && (piece->holder || (change->hold && piece->chunk));
}

/* Does somebody hold memory that it would map once more? Our own places are none that a holder has to know. */
static bool is_fresh_held(const struct glake__change *change, const struct glake__range *range)
{
	const void *owner = owner_of(change);
	bool is_held = false;
	for (const struct glake__piece *fresh = change->fresh; fresh; fresh = fresh->next) {
		const void *holder = fresh->chunk ? fresh->chunk->holder : NULL;
		is_held |= holder && holder != owner;
	}
	return is_held && !range->use->is_ours;
}

/* Can it begin? Called with the lock held. */
static int check_locked(const struct glake__change *change, const char **why_out)
{
	const struct glake__range *range = change->range;
	uint64_t end = change->offset + change->n_bytes;
	*why_out = "not within a range";
	if (!range || change->n_bytes == 0 || end < change->offset || end > range->n_bytes) {
		return -EINVAL;
	}
	const struct glake__piece *piece = glake__range_piece_locked(range, change->offset);
	for (; piece && piece->offset < end; piece = piece->next) {
		bool is_cut = piece->offset < change->offset ||
		              piece->offset + piece->n_bytes > end;
		*why_out = "part of a chunk";
		if (is_cut && piece->chunk) {
			return -EINVAL;
		}
		*why_out = "another thread works on it";
		if (is_busy_for(change, piece)) {
			return -EBUSY;
		}
	}
	*why_out = "another thread works on the memory for it";
	return is_fresh_held(change, range) ? -EBUSY : 0;
}

/*
 * Who reads and writes @fresh: in its own reservations the program alone says which devices do, and the same goes for
 * what replaces its memory; elsewhere the device of the memory has access, and the readers of the range. Under a hold
 * other memory comes to an old mapping, as its number says.
 */
static void open_fresh(struct glake__piece *fresh, const struct glake__piece *old, bool is_held)
{
	const struct glake__range *range = fresh->range;
	uint64_t end = fresh->offset + fresh->n_bytes;
	while (old && old->offset + old->n_bytes <= fresh->offset) {
		old = old->next;
	}
	for (; fresh->chunk && old && old->offset < end; old = old->next) {
		fresh->readers |= old->readers;
		fresh->writers |= old->writers;
		fresh->number = is_held && old->number > fresh->number ? old->number
		                                                       : fresh->number;
	}
	if (fresh->chunk && !range->use->is_programs && !range->use->is_nowhere) {
		fresh->readers |= range->readers;
		fresh->readers |= fresh->chunk->device >= 0 ? 1ull << fresh->chunk->device : 0;
	}
	fresh->access = glake__piece_most(fresh, fresh->access);
}

static void begin_locked(struct glake__change *change)
{
	struct glake__range *range = change->range;
	uint64_t end = change->offset + change->n_bytes;
	struct glake__piece *piece = glake__range_piece_locked(range, change->offset);
	if (piece->offset < change->offset) {
		piece = glake__piece_cut(piece, change->offset, ptr_steal(change->edges[0]));
	}
	struct glake__piece *last = glake__range_piece_locked(range, end - 1);
	if (last->offset + last->n_bytes > end) {
		bool is_same = last == piece;
		struct glake__piece *behind = glake__piece_cut(last, end,
		                                               ptr_steal(change->edges[1]));
		piece = is_same ? behind->previous : piece;
	}
	for (struct glake__piece *fresh = change->fresh; fresh; fresh = fresh->next) {
		fresh->range = range;
		fresh->offset += change->offset;
		open_fresh(fresh, piece, change->hold);
		if (fresh->chunk && !range->use->is_ours) {
			fresh->chunk->n_coming++;
		}
	}
	for (; piece && piece->offset < end; piece = piece->next) {
		piece->holder = change;
	}
}

static int try_begin(struct glake__change *changes, const struct glake__site *sites, size_t n,
                     const char **why_out, size_t *i_out)
{
	int r = 0;
	glake__lock();
	for (size_t i = 0; r == 0 && i < n; i++) {
		const struct glake__site *site = &sites[i];
		struct glake__change *change = &changes[i];
		change->range = site->range ? site->range
		                            : glake__range_at_locked(site->ptr, site->use);
		change->offset = change->range ? site->ptr - change->range->ptr : 0;
		*i_out = i;
		r = check_locked(change, why_out);
	}
	for (size_t i = 0; r == 0 && i < n; i++) {
		begin_locked(&changes[i]);
	}
	glake__unlock();
	return r;
}

/* They are prepared. */
static int begin(struct glake__change *changes, const struct glake__site *sites, size_t n)
{
	const char *why = NULL;
	size_t i = 0;
	int r = try_begin(changes, sites, n, &why, &i);
	while (r == -EBUSY && sites[i].waits) {
		glake__busy_pause();
		r = try_begin(changes, sites, n, &why, &i);
	}
	return r < 0 ? refuse(&changes[i], r, sites[i].ptr, why) : 0;
}

static void free_all(struct glake__change *changes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		change_free(&changes[i]);
	}
}

int glake__change_begin(struct glake__change *change, const struct glake__site *site,
                        const struct glake__part *parts, size_t n_parts)
{
	*change = (struct glake__change){.hold = site->hold};
	int r = prepare(change, parts, n_parts);
	r = r < 0 ? r : begin(change, site, 1);
	if (r < 0) {
		change_free(change);
	}
	return r;
}

int glake__changes_begin(struct glake__change *changes, const struct glake__site *sites,
                         const struct glake__part *parts, size_t n)
{
	int r = 0;
	for (size_t i = 0; i < n; i++) {
		changes[i] = (struct glake__change){.hold = sites[i].hold};
	}
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = prepare(&changes[i], &parts[i], 1);
	}
	r = r < 0 ? r : begin(changes, sites, n);
	if (r < 0) {
		free_all(changes, n);
	}
	return r;
}

struct glake__piece *glake__change_first(const struct glake__change *change)
{
	glake__lock();
	struct glake__piece *piece = glake__range_piece_locked(change->range, change->offset);
	glake__unlock();
	return piece;
}

/* A guard, which has many places, is nobody's. */
bool glake__change_is_pinned(const struct glake__change *change)
{
	const struct glake__piece *piece = glake__change_first(change);
	bool is_pinned = false;
	glake__lock();
	for (; piece; piece = glake__change_next(change, piece)) {
		is_pinned |= piece->chunk && piece->chunk != change->range->guard &&
		             glake__chunk_pin_locked(piece->chunk);
	}
	glake__unlock();
	return is_pinned;
}

/* A hold has whatever memory stands in its places: @owner. */
static void end_locked(struct glake__change *change, const void *owner)
{
	struct glake__range *range = change->range;
	uint64_t end = change->offset + change->n_bytes;
	struct glake__piece *piece = glake__range_piece_locked(range, change->offset);
	for (; piece && piece->offset < end; piece = piece->next) {
		piece->holder = piece->chunk ? owner : NULL;
		if (piece->chunk && owner && !range->use->is_ours) {
			piece->chunk->holder = owner;
		}
	}
	glake__range_merge_holes(range, change->offset, end);
}

static void let_coming(const struct glake__change *change)
{
	for (struct glake__piece *fresh = change->fresh; fresh; fresh = fresh->next) {
		if (fresh->chunk && !change->range->use->is_ours) {
			fresh->chunk->n_coming--;
		}
	}
}

/* Out of its row, as a list by next; *before_out is the piece in front of it. */
static struct glake__piece *take_row_out(const struct glake__change *change,
                                         struct glake__piece **before_out)
{
	uint64_t end = change->offset + change->n_bytes;
	struct glake__piece *piece = glake__range_piece_locked(change->range, change->offset);
	struct glake__piece *old = NULL;
	*before_out = piece->previous;
	while (piece && piece->offset < end) {
		struct glake__piece *next = piece->next;
		glake__piece_take_out(piece);
		piece->next = old;
		old = piece;
		piece = next;
	}
	return old;
}

/* Whoever has the old chunks has those that take their place. */
static void inherit(const struct glake__change *change)
{
	for (struct glake__piece *fresh = change->fresh; fresh; fresh = fresh->next) {
		const struct glake__chunk *old =
			glake__range_piece_locked(change->range, fresh->offset)->chunk;
		if (old && fresh->chunk && !fresh->chunk->owner && old != fresh->chunk) {
			glake__owner_join_locked(old->owner, fresh->chunk);
		}
	}
}

/* Puts the fresh pieces in. The old ones are change->fresh then, and still mapped in the books of their chunks. */
static void put_fresh_in(struct glake__change *change)
{
	struct glake__piece *before;
	let_coming(change);
	inherit(change);
	struct glake__piece *old = take_row_out(change, &before);
	while (change->fresh) {
		struct glake__piece *fresh = change->fresh;
		change->fresh = fresh->next;
		fresh->holder = change;
		glake__piece_link(fresh, before);
		glake__piece_map(fresh);
		glake__piece_enter(fresh);
		before = fresh;
	}
	change->fresh = old;
}

/* A chunk that has lost a place that was held, and lives: nobody holds it, unless another place says so. */
static void let_chunk(const struct glake__change *change, struct glake__chunk *chunk)
{
	if (change->hold && chunk && chunk->holder == change->hold->owner) {
		chunk->holder = NULL;
	}
}

void glake__changes_commit(struct glake__change *changes, size_t n, struct glake__chunk **dead)
{
	glake__lock();
	/* New mappings first: a chunk that only changes its place must not die between. */
	for (size_t i = 0; i < n; i++) {
		put_fresh_in(&changes[i]);
	}
	for (size_t i = 0; i < n; i++) {
		for (struct glake__piece *old = changes[i].fresh; old; old = old->next) {
			let_chunk(&changes[i], old->chunk);
			glake__piece_unmap(old, dead);
		}
	}
	for (size_t i = 0; i < n; i++) {
		end_locked(&changes[i], owner_of(&changes[i]));
	}
	glake__unlock();
	free_all(changes, n);
}

/* Returns whether something is lost. */
static bool cancel_locked(struct glake__change *change, struct glake__chunk **dead)
{
	bool is_lost = false;
	uint64_t end = change->offset + change->n_bytes;
	struct glake__piece *piece = glake__range_piece_locked(change->range, change->offset);
	let_coming(change);
	for (; piece && piece->offset < end; piece = piece->next) {
		is_lost |= piece->is_unmapped;
		if (piece->is_unmapped) {
			let_chunk(change, piece->chunk);
			glake__piece_unmap(piece, dead);
			glake__piece_enter(piece);
		}
		piece->is_unmapped = false;
	}
	return is_lost;
}

void glake__changes_cancel(struct glake__change *changes, size_t n, struct glake__chunk **dead)
{
	bool is_lost = false;
	glake__lock();
	for (size_t i = 0; i < n; i++) {
		is_lost |= cancel_locked(&changes[i], dead);
	}
	/* The first is what a hold is of: it ends the others by what is there, so where that is lost they end now. */
	for (size_t i = n; i-- > 0;) {
		end_locked(&changes[i], is_lost && i > 0 ? NULL : owner_of(&changes[i]));
	}
	glake__unlock();
	free_all(changes, n);
}

void glake__change_commit(struct glake__change *change, struct glake__chunk **dead)
{
	glake__changes_commit(change, 1, dead);
}

void glake__change_cancel(struct glake__change *change, struct glake__chunk **dead)
{
	glake__changes_cancel(change, 1, dead);
}
