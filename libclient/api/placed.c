/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/api/placed.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/space/space.h"
#include "libclient/heap/supply.h"
#include "libclient/heap/backing.h"
#include "libclient/space/held.h"
#include "libclient/space/reback.h"
#include "libclient/space/unsealed.h"
#include "libclient/link/dispatch.h"

/* All that is mapped in the range is one allocation, of which parts come and go: they go when it is let. */
static int hold_placed(struct glake__range *range, glake_ptr address, struct glake__held *held_out)
{
	struct glake__placed *placed = range->user;
	const struct glake__piece *piece = glake__range_piece_locked(range, address - range->ptr);
	if (!piece->chunk) {
		return -ENOENT;
	}
	if (placed->is_held) {
		return -EBUSY;
	}
	placed->is_held = true;
	*held_out = (struct glake__held){
		.begin = range->ptr,
		.end = range->ptr + range->n_bytes,
		.tail = range->ptr + range->n_bytes,
		.device = glake__session_at_ordinal(placed->session, piece->chunk->device),
		.keeps_chunks = true,
		.user = placed,
	};
	return 0;
}

static void let_placed(struct glake__held *held)
{
	struct glake__placed *placed = held->user;
	placed->is_held = false;
}

static struct glake_session *session_of(const struct glake__range *range)
{
	const struct glake__placed *placed = range->user;
	return placed ? placed->session : NULL;
}

const struct glake__use glake__use_placed = {
	.name = "placed",
	.kind = GLAKE__OWN,
	.hold = hold_placed,
	.let = let_placed,
	.session = session_of,
};

static bool is_granular(uint64_t value)
{
	return value % GLAKE_CHUNK_GRANULARITY == 0;
}

static int refuse_shape(glake_ptr ptr, uint64_t n_bytes)
{
	return glake__fail(-EINVAL, "%llu bytes at 0x%llx: not multiples of 2 MiB, or 0",
	                   (unsigned long long)n_bytes, (unsigned long long)ptr);
}

static int refuse_place(glake_ptr ptr, uint64_t n_bytes, const char *why)
{
	return glake__fail(-EINVAL, "%llu bytes at 0x%llx: %s", (unsigned long long)n_bytes,
	                   (unsigned long long)ptr, why);
}

/*
 * Called with the lock held: the range of @session that holds all of [ptr, ptr + n_bytes), or
 * NULL.
 */
static struct glake__placed *find_locked(const struct glake_session *session, glake_ptr ptr,
                                         uint64_t n_bytes)
{
	const struct glake__range *range = glake__range_at_locked(ptr, &glake__use_placed);
	if (!range || n_bytes > range->n_bytes - (ptr - range->ptr)) {
		return NULL;
	}
	struct glake__placed *placed = range->user;
	return placed->session == session ? placed : NULL;
}

/* ---- ranges ----------------------------------------------------------------------------------- */

int glake_reserve(struct glake_session *session, uint64_t bytes, uint64_t alignment,
                  glake_ptr *ptr_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (bytes == 0 || !is_granular(bytes) || !ptr_out || (alignment & (alignment - 1))) {
		return refuse_shape(0, bytes);
	}
	if (!session->has_driver) {
		return glake__fail(GLAKE_E_NO_DRIVER, "the session was made without the driver");
	}
	struct glake__placed *placed = calloc(1, sizeof(*placed));
	if (!placed) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	placed->session = session;
	r = glake__range_reserve(&glake__use_placed, placed, -1, bytes, alignment, 0,
	                         &placed->range);
	if (r < 0) {
		free(placed);
		return r;
	}
	glake__lock();
	placed->next = session->books.placed;
	session->books.placed = placed;
	glake__unlock();
	*ptr_out = placed->range->ptr;
	return 0;
}

/* The link to the one that begins at @ptr, or the last. */
static struct glake__placed **find_reserved_locked(struct glake__books *books, glake_ptr ptr)
{
	struct glake__placed **at = &books->placed;
	while (*at && (*at)->range->ptr != ptr) {
		at = &(*at)->next;
	}
	return at;
}

int glake_unreserve(struct glake_session *session, glake_ptr ptr)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__books *books = &session->books;
	glake__lock();
	struct glake__placed **at;
	while (*(at = find_reserved_locked(books, ptr)) && (*at)->is_held) {
		glake__held_wait_locked();
	}
	struct glake__placed *placed = *at;
	if (placed) {
		*at = placed->next;
	}
	glake__unlock();
	if (!placed) {
		return refuse_place(ptr, 0, "not a range of glake_reserve()");
	}
	r = glake__range_drop(placed->range);
	if (r == -EBUSY) {
		glake__lock();
		placed->next = books->placed;
		books->placed = placed;
		glake__unlock();
		return r;
	}
	free(placed);
	return r;
}

/* ---- mapping ---------------------------------------------------------------------------------- */

/* Is all of it mapped, or all of it free, and none of it busy? Called with the lock held. */
static bool is_all_locked(const struct glake__range *range, uint64_t offset, uint64_t n_bytes,
                          bool is_mapped)
{
	const struct glake__piece *piece = glake__range_piece_locked(range, offset);
	while (piece && piece->offset < offset + n_bytes && !piece->holder &&
	       (piece->chunk != NULL) == is_mapped) {
		piece = piece->next;
	}
	return !piece || piece->offset >= offset + n_bytes;
}

/* Finds the range. Memory that is mapped there is held then, until let(). */
static int find_range(const struct glake_session *session, glake_ptr ptr, uint64_t n_bytes,
                      bool is_mapped, struct glake__range **range_out)
{
	const char *why = is_mapped ? "not what glake_map() filled" : "already mapped, in part";
	glake__lock();
	struct glake__placed *placed = find_locked(session, ptr, n_bytes);
	while (is_mapped && placed && placed->is_held) {
		glake__held_wait_locked();
		placed = find_locked(session, ptr, n_bytes);
	}
	if (!placed) {
		why = is_mapped ? why : "not within a range of glake_reserve()";
	} else if (is_all_locked(placed->range, ptr - placed->range->ptr, n_bytes, is_mapped)) {
		why = NULL;
		placed->is_held |= is_mapped;
		*range_out = placed->range;
	}
	glake__unlock();
	return why ? refuse_place(ptr, n_bytes, why) : 0;
}

static void let(const struct glake__range *range)
{
	struct glake__placed *placed = range->user;
	glake__lock();
	placed->is_held = false;
	pthread_cond_broadcast(&glake__space.let);
	glake__unlock();
}

int glake_map(struct glake_session *session, uint32_t device, glake_ptr ptr, uint64_t bytes)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (bytes == 0 || !is_granular(bytes) || !is_granular(ptr)) {
		return refuse_shape(ptr, bytes);
	}
	struct glake__device *found = NULL;
	struct glake__range *range = NULL;
	r = glake__session_mappable(session, device, &found);
	if (r == 0) {
		r = find_range(session, ptr, bytes, false, &range);
	}
	if (r < 0) {
		return r;
	}
	struct glake__wait wait = {0};
	r = glake__grant_fill(found, range, ptr - range->ptr, bytes, GRANT_CHUNK_BYTES, &wait);
	while (r < 0 && glake__supply_make_room(found, r, &wait)) {
		r = glake__grant_fill(found, range, ptr - range->ptr, bytes, GRANT_CHUNK_BYTES,
		                      &wait);
	}
	if (r == 0) {
		glake__lock();
		glake__books_add_live(&session->books, bytes);
		glake__unlock();
	}
	return glake__leave(session, r);
}

int glake_unmap(struct glake_session *session, glake_ptr ptr, uint64_t bytes)
{
	int r = glake__session_awake(session);
	if (r < 0) {
		return r;
	}
	if (bytes == 0 || !is_granular(bytes) || !is_granular(ptr)) {
		return refuse_shape(ptr, bytes);
	}
	struct glake__range *range = NULL;
	struct glake__chunk *dead = NULL;
	cleanup_cancel int cancel = cancel_disable();
	r = find_range(session, ptr, bytes, true, &range);
	if (r < 0) {
		return r;
	}
	r = glake__range_clear(range, ptr - range->ptr, bytes, &dead);
	glake__unsealed_note(session, ptr, ptr + bytes, GLAKE__UNSEALED_NOT);
	let(range);
	glake__lock();
	for (const struct glake__chunk *chunk = dead; chunk; chunk = chunk->next) {
		session->books.live_bytes -= chunk->n_bytes;
	}
	glake__unlock();
	glake__grant_return(session, dead);
	return glake__leave(session, r);
}

/* ---- the end ---------------------------------------------------------------------------------- */

void glake__placed_deinit(struct glake_session *session)
{
	while (session->books.placed) {
		struct glake__placed *placed = session->books.placed;
		session->books.placed = placed->next;
		glake__grant_drop(session, placed->range);
		free(placed);
	}
}
