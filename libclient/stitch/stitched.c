/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/stitch/stitched.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/link/error.h"
#include "libclient/space/chain.h"
#include "libclient/space/grant.h"
#include "libclient/space/reback.h"
#include "proto/array.h"
#include "proto/cleanup.h"

/* Addresses behind a row for more of it, as a part of that. */
#define ROOM_PART 4u

/* ---- mapping ---------------------------------------------------------------------------------- */

/*
 * The chunks of @stretch to @parts, each with one more use. Nobody unmaps them: the pool has taken them. But where an
 * allocation beside it is sealed, they are replaced, and may be no whole ones any more: *is_whole is false then.
 */
static size_t list_parts_locked(const struct glake__range *home,
                                const struct glake__stretch *stretch, struct glake__part *parts,
                                bool *is_whole)
{
	uint64_t offset = stretch->page * GLAKE__PAGE_BYTES;
	uint64_t end = offset + stretch->n_pages * GLAKE__PAGE_BYTES;
	const struct glake__piece *piece = glake__range_piece_locked(home, offset);
	size_t n = 0;
	*is_whole &= piece->offset == offset;
	for (; *is_whole && piece && piece->offset < end; piece = piece->next) {
		struct glake__chunk *chunk = piece->chunk;
		*is_whole = chunk && piece->offset + piece->n_bytes <= end;
		if (*is_whole) {
			bool is_block = chunk->kind == GLAKE__PAGE_BLOCK;
			chunk->n_uses++;
			parts[n++] = (struct glake__part){
				.chunk = chunk,
				.n_bytes = piece->n_bytes,
				.access = is_block ? GLAKE__ACCESS_READ : GLAKE__ACCESS_WRITE,
				.fd = -1,
			};
		}
	}
	return n;
}

/* Chunks that were replaced meanwhile go back to glaked. */
static void let_parts(struct glake_session *session, const struct glake__part *parts, size_t n)
{
	struct glake__chunk *dead = NULL;
	glake__lock();
	for (size_t i = 0; i < n; i++) {
		glake__chunk_put_locked(parts[i].chunk, &dead);
	}
	glake__unlock();
	glake__grant_return(session, dead);
}

static int stale(void)
{
	return glake__fail(-ESTALE, "memory beside an allocation was sealed meanwhile");
}

static uint64_t count_pages(const struct glake__stretch *stretches, size_t n)
{
	uint64_t n_pages = 0;
	for (size_t i = 0; i < n; i++) {
		n_pages += stretches[i].n_pages;
	}
	return n_pages;
}

/* The caller lets and frees them, also after an error. */
static int list_parts(const struct glake__range *home, const struct glake__stretch *stretches,
                      size_t n_stretches, struct glake__part **parts_out, size_t *n_out)
{
	struct glake__part *parts = calloc(count_pages(stretches, n_stretches), sizeof(*parts));
	bool is_whole = true;
	size_t n = 0;
	*parts_out = parts;
	*n_out = 0;
	if (!parts) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	glake__lock();
	for (size_t i = 0; is_whole && i < n_stretches; i++) {
		n += list_parts_locked(home, &stretches[i], parts + n, &is_whole);
	}
	glake__unlock();
	*n_out = n;
	return is_whole ? 0 : stale();
}

bool glake__stitched_is_at(const struct glake__stitched *stitched, uint64_t offset,
                           const struct glake__range *home, const struct glake__stretch *stretch)
{
	const uint64_t begin = stretch->page * GLAKE__PAGE_BYTES;
	const uint64_t end = begin + stretch->n_pages * GLAKE__PAGE_BYTES;
	const struct glake__piece *there = glake__range_piece_locked(home, begin);
	const struct glake__piece *here = glake__range_piece_locked(stitched->range, offset);
	bool is_at = true;
	while (is_at && there && there->offset < end) {
		is_at = here && there->chunk && here->chunk == there->chunk &&
		        here->offset - offset == there->offset - begin;
		there = there->next;
		here = is_at ? here->next : NULL;
	}
	return is_at;
}

/* Has nobody replaced chunks between looking and mapping? From now on they are replaced here, too. */
static int check_row(const struct glake__stitched *stitched, const struct glake__range *home,
                     const struct glake__stretch *stretches, size_t n_stretches)
{
	uint64_t at = 0;
	bool is_true = true;
	glake__lock();
	for (size_t i = 0; is_true && i < n_stretches; i++) {
		is_true = glake__stitched_is_at(stitched, at, home, &stretches[i]);
		at += stretches[i].n_pages * GLAKE__PAGE_BYTES;
	}
	glake__unlock();
	return is_true ? 0 : stale();
}

static int map(struct glake_session *session, struct glake__stitched *stitched,
               const struct glake__range *home)
{
	cleanup_free struct glake__part *parts;
	int r = list_parts(home, stitched->stretches, stitched->n_stretches, &parts,
	                   &stitched->n_chunks);
	if (r == 0) {
		r = glake__range_fill(stitched->range, 0, parts, stitched->n_chunks);
	}
	let_parts(session, parts, stitched->n_chunks);
	return r < 0 ? r : check_row(stitched, home, stitched->stretches, stitched->n_stretches);
}

int glake__stitched_new(struct glake_session *session, struct glake__range *home, int device,
                        struct glake__stretch *stretches, size_t n_stretches,
                        struct glake__stitched **stitched_out)
{
	cleanup_free struct glake__stitched *stitched = calloc(1, sizeof(*stitched));
	if (!stitched) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	stitched->stretches = stretches;
	stitched->n_stretches = n_stretches;
	stitched->n_pages = count_pages(stretches, n_stretches);
	uint64_t n_addresses = stitched->n_pages + stitched->n_pages / ROOM_PART;
	int r = glake__range_reserve(&glake__use_stitched, stitched, device,
	                             n_addresses * GLAKE__PAGE_BYTES, 0, 0, &stitched->range);
	if (r < 0) {
		return r;
	}
	r = map(session, stitched, home);
	if (r < 0) {
		char *text = glake__error_save();
		struct glake__chunk *dead = NULL;
		glake__range_end(stitched->range, &dead);
		glake__grant_return(session, dead);
		glake__error_restore(text);
		return r;
	}
	*stitched_out = ptr_steal(stitched);
	return 0;
}

/* Where the chunks of a row are not those that are there. */
struct match {
	uint64_t offset;
	uint64_t n_bytes;
	size_t n_parts; /* 0: there is none, the first part is there */
	size_t n_old;   /* chunks there */
};

static struct match find_match_locked(const struct glake__range *range, uint64_t offset,
                                      const struct glake__part *parts, size_t n)
{
	struct match match = {.offset = offset};
	/* The match ends where a chunk of either row does, since the two are the same from there on. */
	for (; match.n_parts < n; match.n_parts++) {
		uint64_t at = offset + match.n_bytes;
		const struct glake__piece *piece = glake__range_piece_locked(range, at);
		if (piece->offset == at && piece->chunk == parts[match.n_parts].chunk) {
			break;
		}
		match.n_bytes += parts[match.n_parts].n_bytes;
	}
	const struct glake__piece *old = glake__range_piece_locked(range, offset);
	for (; old && old->offset < offset + match.n_bytes; old = old->next) {
		match.n_old += old->chunk != NULL;
	}
	return match;
}

static int exchange(struct glake_session *session, struct glake__range *range,
                    const struct match *match, const struct glake__part *parts)
{
	struct glake__chunk *dead = NULL;
	int r = 0;
	if (match->n_old > 0) {
		r = glake__range_clear(range, match->offset, match->n_bytes, &dead);
		glake__grant_return(session, dead);
	}
	return r < 0 ? r : glake__range_fill(range, match->offset, parts, match->n_parts);
}

int glake__stitched_change(struct glake_session *session, struct glake__range *home,
                           struct glake__stitched *stitched, const struct glake__stretch *stretches,
                           size_t n_stretches, struct glake__stitched_change *change_out)
{
	struct glake__stitched_change change = {.n_chunks = 0};
	cleanup_free struct glake__part *parts;
	uint64_t offset = 0;
	int r = list_parts(home, stretches, n_stretches, &parts, &change.n_chunks);
	for (size_t i = 0; r == 0 && i < change.n_chunks;) {
		glake__lock();
		struct match match = find_match_locked(stitched->range, offset, parts + i,
		                                       change.n_chunks - i);
		glake__unlock();
		if (match.n_parts == 0) {
			offset += parts[i++].n_bytes;
		} else {
			change.n_unmapped += match.n_old;
			r = exchange(session, stitched->range, &match, parts + i);
			change.n_mapped += r == 0 ? match.n_parts : 0;
			offset += match.n_bytes;
			i += match.n_parts;
		}
	}
	let_parts(session, parts, change.n_chunks);
	*change_out = change;
	if (r == 0) {
		r = check_row(stitched, home, stretches, n_stretches);
	}
	return r;
}

void glake__stitched_drop(struct glake_session *session, struct glake__stitched *stitched)
{
	struct glake__chunk *dead = NULL;
	glake__range_end(stitched->range, &dead);
	glake__grant_return(session, dead);
	free(stitched->stretches);
	free(stitched);
}

/* ---- the set ---------------------------------------------------------------------------------- */

size_t glake__stitched_lower_bound(const struct glake__stitched_set *set, uint64_t n_pages)
{
	size_t low = 0;
	size_t high = set->n;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (set->by_size[middle]->n_pages < n_pages) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

static void insert(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	size_t at = glake__stitched_lower_bound(set, stitched->n_pages);
	memmove(&set->by_size[at + 1], &set->by_size[at], (set->n - at) * sizeof(set->by_size[0]));
	set->by_size[at] = stitched;
	set->n++;
	set->n_pages += stitched->n_pages;
}

static void take_out(struct glake__stitched_set *set, const struct glake__stitched *stitched)
{
	size_t at = glake__stitched_lower_bound(set, stitched->n_pages);
	while (set->by_size[at] != stitched) {
		at++;
	}
	set->n--;
	set->n_pages -= stitched->n_pages;
	memmove(&set->by_size[at], &set->by_size[at + 1], (set->n - at) * sizeof(set->by_size[0]));
}

int glake__stitched_add(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	if (array_grow(set->by_size, set->n, set->capacity, 64) < 0) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	insert(set, stitched);
	stitched->is_in_set = true;
	stitched->is_live = true;
	set->n_live++;
	return 0;
}

void glake__stitched_set_row(struct glake__stitched_set *set, struct glake__stitched *stitched,
                             struct glake__stretch *stretches, size_t n_stretches, size_t n_chunks)
{
	take_out(set, stitched);
	free(stitched->stretches);
	stitched->stretches = stretches;
	stitched->n_stretches = n_stretches;
	stitched->n_pages = count_pages(stretches, n_stretches);
	stitched->n_chunks = n_chunks;
	insert(set, stitched);
}

void glake__stitched_remove(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	CHAIN_REMOVE_OF(set->oldest, set->newest, stitched, older, newer);
	take_out(set, stitched);
	set->n_kept_pages -= stitched->n_pages;
	stitched->is_in_set = false;
}

void glake__stitched_set_live(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	CHAIN_REMOVE_OF(set->oldest, set->newest, stitched, older, newer);
	stitched->is_live = true;
	set->n_live++;
	set->n_kept_pages -= stitched->n_pages;
}

void glake__stitched_set_kept(struct glake__stitched_set *set, struct glake__stitched *stitched)
{
	stitched->user = NULL;
	stitched->is_live = false;
	CHAIN_APPEND(set->oldest, set->newest, stitched, older, newer);
	set->n_live--;
	set->n_kept_pages += stitched->n_pages;
}
