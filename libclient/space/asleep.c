/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/asleep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/link/error.h"
#include "libclient/link/session.h"
#include "libclient/space/access.h"
#include "libclient/space/map.h"
#include "libclient/space/owner.h"

/* ---- what can be asleep ----------------------------------------------------------------------- */

/* Whose it is; NULL: nobody says. Called with the lock held, as the next. */
static const struct glake_session *session_of(const struct glake__chunk *chunk)
{
	const struct glake_session *session = NULL;
	const struct glake__piece *at = chunk->mappings;
	for (; at && !session; at = at->next_mapping) {
		session = at->range->use->session ? at->range->use->session(at->range) : NULL;
	}
	return !session && chunk->owner && chunk->owner->device ? chunk->owner->device->session
	                                                        : session;
}

static bool has_place_of_ours(const struct glake__chunk *chunk)
{
	const struct glake__piece *at = chunk->mappings;
	while (at && !at->range->use->is_ours) {
		at = at->next_mapping;
	}
	return at != NULL;
}

static bool is_whole(const struct glake__range *range)
{
	return range->use->whole != NULL;
}

/* NULL: it is no part of one. */
static struct glake__range *whole_of(const struct glake__chunk *chunk)
{
	const struct glake__piece *at = chunk->mappings;
	while (at && !is_whole(at->range)) {
		at = at->next_mapping;
	}
	return at ? at->range : NULL;
}

/* Whose memory is asleep too, or falls asleep, is no stay. */
static const char along[] = "asleep with another session";

/* NULL: it can, if the others of the same whole can. Host memory is not looked at: it is on no GPU. */
static const char *why_not(const struct glake__chunk *chunk, const struct glake_session *session)
{
	const struct glake_session *of = session_of(chunk);
	enum glake__pin pin = glake__chunk_pin_locked(chunk);
	if (!of || (chunk->id == 0 && !whole_of(chunk))) {
		return chunk->kind == GLAKE__PAGE_BLOCK ? "blocks that it has opened"
		                                        : "not glaked's";
	}
	return of != session              ? of->sleeps_along ? along : "of another session"
	       : pin                      ? glake__pin_text(pin)
	       : chunk->is_unfinished     ? "being sealed"
	       : has_place_of_ours(chunk) ? "being worked on"
	                                  : NULL;
}

static const char *why_not_whole(const struct glake__range *range,
                                 const struct glake_session *session)
{
	const char *why = NULL;
	for (const struct glake__piece *at = range->first; !why && at; at = at->next) {
		why = at->chunk ? why_not(at->chunk, session) : NULL;
	}
	return why;
}

/* Why this piece of @range cannot sleep, or NULL. @of_whole is the reason of all of the range, if it is a whole. */
static const char *why_not_here(const struct glake__piece *piece,
                                const struct glake_session *session, const char *of_whole)
{
	const struct glake__range *whole = whole_of(piece->chunk);
	return whole == piece->range ? of_whole
	       : whole               ? why_not_whole(whole, session)
	                             : why_not(piece->chunk, session);
}

static void add_stay(struct glake__asleep *asleep, const char *why, uint64_t n_bytes)
{
	size_t i = 0;
	while (i < asleep->n_stays && strcmp(asleep->stays[i].why, why) != 0) {
		i++;
	}
	if (i == GLAKE_MAX_STAYS_SLEPT) {
		i--;
	}
	asleep->n_stays = i < asleep->n_stays ? asleep->n_stays : i + 1;
	asleep->stays[i].why = why;
	asleep->stays[i].bytes += n_bytes;
}

/* ---- holding ---------------------------------------------------------------------------------- */

/* Each chunk has one such place. Our own are passed over: they come and go, and are not looked at. */
static bool is_first_place(const struct glake__piece *piece)
{
	const struct glake__piece *at = piece->previous_mapping;
	while (at && at->range->use->is_ours) {
		at = at->previous_mapping;
	}
	return at == NULL;
}

/* Each chunk is listed once: a part of a whole there. */
static bool is_listed_here(const struct glake__piece *piece)
{
	const struct glake__range *whole = whole_of(piece->chunk);
	return whole ? whole == piece->range : is_first_place(piece);
}

/* A guard, which has many places, stays in them all. */
static bool is_guard(const struct glake__piece *piece)
{
	return piece->chunk == piece->range->guard;
}

static bool is_looked_at(const struct glake__piece *piece)
{
	return piece->chunk && piece->chunk->kind != GLAKE__PAGE_HOST && !is_guard(piece);
}

struct count {
	size_t n_chunks;
	size_t n_pieces;
	bool is_busy;
};

static void count_piece(const struct glake__piece *piece, struct count *count)
{
	count->n_pieces++;
	count->n_chunks += is_listed_here(piece);
	count->is_busy |= piece->holder || piece->chunk->holder || piece->chunk->n_coming > 0;
}

/* Called with the lock held. */
static struct count count_all(const struct glake_session *session)
{
	struct count count = {.n_chunks = 0};
	for (const struct glake__range *range = glake__space.ranges; range; range = range->next) {
		const char *of_whole = is_whole(range) ? why_not_whole(range, session) : NULL;
		for (const struct glake__piece *at = range->first; at; at = at->next) {
			if (is_looked_at(at) && !why_not_here(at, session, of_whole)) {
				count_piece(at, &count);
			}
		}
	}
	return count;
}

/* @place: of the piece in its range. */
static void hold_piece(struct glake__asleep *asleep, struct glake__piece *piece, uint64_t place)
{
	struct glake__chunk *chunk = piece->chunk;
	struct glake__range *range = piece->range;
	piece->holder = asleep;
	asleep->pieces[asleep->n_pieces++] = piece;
	if (is_listed_here(piece)) {
		range->is_asleep = is_whole(range);
		chunk->holder = asleep;
		asleep->chunks[asleep->n_chunks++] = (struct glake__asleep_chunk){
			.chunk = chunk,
			.keeps_handle = chunk->handle != 0,
			.whole = is_whole(range) ? range->use->whole(range) : 0,
			.place = place,
		};
		*(chunk->kind == GLAKE__PAGE_BLOCK ? &asleep->shared_bytes
		                                   : &asleep->private_bytes) += chunk->n_bytes;
	}
}

static void hold_all(struct glake__asleep *asleep, const struct glake_session *session)
{
	for (struct glake__range *range = glake__space.ranges; range; range = range->next) {
		const char *of_whole = is_whole(range) ? why_not_whole(range, session) : NULL;
		uint64_t place = 0;
		if (range->guard && session_of(range->guard) == session) {
			add_stay(asleep, "guards of elastic ranges", range->guard->n_bytes);
		}
		for (struct glake__piece *at = range->first; at; at = at->next, place++) {
			if (!is_looked_at(at) || range->use->is_ours) {
				continue;
			}
			const char *why = why_not_here(at, session, of_whole);
			if (!why) {
				hold_piece(asleep, at, place);
			} else if (why != along && is_listed_here(at)) {
				add_stay(asleep, why, at->chunk->n_bytes);
			}
		}
	}
}

static int prepare(struct glake__asleep *asleep, const struct count *count)
{
	*asleep = (struct glake__asleep){
		.chunks = calloc(count->n_chunks + 1, sizeof(*asleep->chunks)),
		.pieces = calloc(count->n_pieces + 1, sizeof(*asleep->pieces)),
	};
	return asleep->chunks && asleep->pieces ? 0 : glake__fail(-ENOMEM, "out of memory");
}

static void drop(struct glake__asleep *asleep)
{
	free(asleep->chunks);
	free(asleep->pieces);
	*asleep = (struct glake__asleep){.chunks = NULL};
}

int glake__asleep_hold(struct glake__asleep *asleep, const struct glake_session *session)
{
	glake__lock();
	struct count room = count_all(session);
	glake__unlock();
	int r = prepare(asleep, &room);
	if (r == 0) {
		glake__lock();
		const struct count count = count_all(session);
		r = count.is_busy || count.n_chunks > room.n_chunks ||
		                    count.n_pieces > room.n_pieces
		            ? -EBUSY
		            : 0;
		if (r == 0) {
			hold_all(asleep, session);
		}
		glake__unlock();
	}
	if (r < 0) {
		drop(asleep);
	}
	return r;
}

void glake__asleep_let(struct glake__asleep *asleep)
{
	glake__lock();
	for (size_t i = 0; i < asleep->n_pieces; i++) {
		asleep->pieces[i]->holder = NULL;
		asleep->pieces[i]->range->is_asleep = false;
	}
	for (size_t i = 0; i < asleep->n_chunks; i++) {
		asleep->chunks[i].chunk->holder = NULL;
	}
	glake__unlock();
	drop(asleep);
}

void glake__asleep_forget(struct glake__asleep *asleep)
{
	drop(asleep);
}

/* ---- unmapping -------------------------------------------------------------------------------- */

static bool is_there(const struct glake__piece *piece)
{
	return !piece->range->use->is_nowhere && !piece->is_unmapped;
}

int glake__asleep_unmap(struct glake__asleep *asleep)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < asleep->n_pieces; i++) {
		struct glake__piece *piece = asleep->pieces[i];
		if (is_there(piece)) {
			r = glake__map_unmap(piece->range->ptr + piece->offset, piece->n_bytes);
			piece->is_unmapped = r == 0;
		}
	}
	for (size_t i = 0; r == 0 && i < asleep->n_chunks; i++) {
		struct glake__chunk *chunk = asleep->chunks[i].chunk;
		if (chunk->handle) {
			glake__map_release(chunk->handle);
			chunk->handle = 0;
		}
	}
	return r;
}

/* ---- freeing ---------------------------------------------------------------------------------- */

static bool is_alone(const struct glake__asleep *asleep, const struct glake__piece *piece)
{
	const struct glake__chunk *chunk = piece->chunk;
	return piece->holder == asleep && piece->is_unmapped && chunk->kind == GLAKE__PAGE_CHUNK &&
	       chunk->n_uses == 1 && !chunk->handle && !chunk->owner;
}

static bool can_drop(const struct glake__asleep *asleep, const struct glake__range *range)
{
	glake__lock();
	const struct glake__piece *at = range->first;
	while (at && is_alone(asleep, at)) {
		at = at->next;
	}
	glake__unlock();
	return !at;
}

/* Take @range out of the lists. Its chunks are mapped nowhere else. */
static void take_out(struct glake__asleep *asleep, const struct glake__range *range)
{
	size_t n_chunks = 0;
	size_t n_pieces = 0;
	glake__lock();
	for (size_t i = 0; i < asleep->n_chunks; i++) {
		const struct glake__chunk *chunk = asleep->chunks[i].chunk;
		if (chunk->mappings->range == range) {
			asleep->private_bytes -= chunk->n_bytes;
		} else {
			asleep->chunks[n_chunks++] = asleep->chunks[i];
		}
	}
	for (size_t i = 0; i < asleep->n_pieces; i++) {
		if (asleep->pieces[i]->range != range) {
			asleep->pieces[n_pieces++] = asleep->pieces[i];
		}
	}
	glake__unlock();
	asleep->n_chunks = n_chunks;
	asleep->n_pieces = n_pieces;
}

bool glake__asleep_drop(struct glake__asleep *asleep, struct glake__range *range,
                        struct glake__chunk **dead)
{
	const struct glake__part hole = {.n_bytes = range->n_bytes};
	const struct glake__hold hold = {
		.range = range, .n_bytes = range->n_bytes, .owner = asleep};
	const struct glake__site site = {.range = range, .ptr = range->ptr, .hold = &hold};
	struct glake__change change;
	/* Held memory stays as it was looked at. */
	if (!can_drop(asleep, range) || glake__change_begin(&change, &site, &hole, 1) < 0) {
		return false;
	}
	take_out(asleep, range);
	glake__change_commit(&change, dead);
	return true;
}

/* ---- mapping ---------------------------------------------------------------------------------- */

#define OPENED_AT_ONCE 128u

/* A handle of each chunk that has none. */
static int import_some(struct glake__asleep *asleep, size_t first, const int *fds, size_t n)
{
	int r = 0;
	for (size_t i = 0; i < n; i++) {
		struct glake__chunk *chunk = asleep->chunks[first + i].chunk;
		if (r == 0 && !chunk->handle) {
			r = glake__map_import(fds[i], &chunk->handle);
		}
		close(fds[i]);
	}
	return r;
}

static int import_all(struct glake__asleep *asleep, glake__asleep_open_fn *open, void *user)
{
	int fds[OPENED_AT_ONCE];
	int n = 1;
	int r = 0;
	for (size_t i = 0; r == 0 && n > 0 && i < asleep->n_chunks; i += (size_t)n) {
		n = open(user, asleep, i, fds, OPENED_AT_ONCE);
		r = n < 0 ? n : import_some(asleep, i, fds, (size_t)n);
	}
	return r;
}

/* One call for each run of equal ones. */
static int open_all(const struct glake__asleep *asleep)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < asleep->n_pieces;) {
		const struct glake__piece *first = asleep->pieces[i];
		uint64_t n_bytes = first->n_bytes;
		for (i++; i < asleep->n_pieces && asleep->pieces[i]->access == first->access &&
		          glake__access_touches(asleep->pieces[i - 1], asleep->pieces[i]);
		     i++) {
			n_bytes += asleep->pieces[i]->n_bytes;
		}
		if (!first->range->use->is_nowhere) {
			r = glake__access_set(first->range->ptr + first->offset, n_bytes,
			                      first->readers, glake__access_writers(first),
			                      first->access);
		}
	}
	return r;
}

static int map_all(const struct glake__asleep *asleep)
{
	int r = 0;
	for (size_t i = 0; r == 0 && i < asleep->n_pieces; i++) {
		struct glake__piece *piece = asleep->pieces[i];
		if (piece->is_unmapped) {
			r = glake__map_handle(piece->range->ptr + piece->offset, piece->n_bytes,
			                      piece->chunk->handle);
			piece->is_unmapped = r < 0;
		}
	}
	return r < 0 ? r : open_all(asleep);
}

int glake__asleep_map(struct glake__asleep *asleep, glake__asleep_open_fn *open, void *user)
{
	int r = import_all(asleep, open, user);
	r = r < 0 ? r : map_all(asleep);
	for (size_t i = 0; r == 0 && i < asleep->n_chunks; i++) {
		struct glake__chunk *chunk = asleep->chunks[i].chunk;
		if (!asleep->chunks[i].keeps_handle) {
			glake__map_release(chunk->handle);
			chunk->handle = 0;
		}
	}
	return r;
}
