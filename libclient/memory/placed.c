/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/placed.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/limits.h"
#include "libclient/memory/alloc.h"
#include "libclient/memory/backing.h"
#include "libclient/memory/map.h"
#include "libclient/link/notice.h"

static bool is_granular(uint64_t value)
{
	return value % GLAKE_CHUNK_GRANULARITY == 0;
}

static int refuse_shape(glake_ptr ptr, uint64_t n_bytes)
{
	return glake__fail(-EINVAL, "%llu bytes at 0x%llx: not multiples of 2 MiB, or nothing",
	                   (unsigned long long)n_bytes, (unsigned long long)ptr);
}

static int refuse_place(glake_ptr ptr, uint64_t n_bytes, const char *why)
{
	return glake__fail(-EINVAL, "%llu bytes at 0x%llx: %s", (unsigned long long)n_bytes,
	                   (unsigned long long)ptr, why);
}

/* Called with the books lock held: the range that holds all of [ptr, ptr + n_bytes), or NULL. */
static struct glake__placed *find_locked(struct glake__books *books, glake_ptr ptr,
                                         uint64_t n_bytes)
{
	struct glake__placed *placed = books->placed;
	while (placed && !(ptr >= placed->ptr && ptr - placed->ptr < placed->n_bytes &&
	                   n_bytes <= placed->n_bytes - (ptr - placed->ptr))) {
		placed = placed->next;
	}
	return placed;
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
	placed->n_bytes = bytes;
	r = glake__map_reserve(session, bytes, alignment, &placed->ptr);
	if (r < 0) {
		free(placed);
		return r;
	}
	pthread_mutex_lock(&session->books.lock);
	placed->next = session->books.placed;
	session->books.placed = placed;
	pthread_mutex_unlock(&session->books.lock);
	*ptr_out = placed->ptr;
	return 0;
}

int glake_unreserve(struct glake_session *session, glake_ptr ptr)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__books *books = &session->books;
	pthread_mutex_lock(&books->lock);
	struct glake__placed **at = &books->placed;
	while (*at && (*at)->ptr != ptr) {
		at = &(*at)->next;
	}
	struct glake__placed *placed = *at;
	bool has_backing = placed && placed->backings;
	if (placed && !has_backing) {
		*at = placed->next;
	}
	pthread_mutex_unlock(&books->lock);
	if (!placed) {
		return refuse_place(ptr, 0, "not a range of glake_reserve()");
	}
	if (has_backing) {
		return glake__fail(-EBUSY, "the range at 0x%llx still has memory mapped",
		                   (unsigned long long)ptr);
	}
	r = glake__map_unreserve(session, placed->ptr, placed->n_bytes);
	free(placed);
	return r;
}

/* ---- mapping ---------------------------------------------------------------------------------- */

/* Called with the books lock held: the first link at or behind @ptr. */
static struct glake__backing **link_at(struct glake__placed *placed, glake_ptr ptr)
{
	struct glake__backing **at = &placed->backings;
	while (*at && (*at)->ptr + (*at)->n_bytes <= ptr) {
		at = &(*at)->next;
	}
	return at;
}

/* Enter @backing, busy, unless its place is taken. */
static int enter(struct glake_session *session, struct glake__backing *backing)
{
	struct glake__books *books = &session->books;
	const char *why = NULL;
	pthread_mutex_lock(&books->lock);
	struct glake__placed *placed = find_locked(books, backing->ptr, backing->n_bytes);
	struct glake__backing **at = placed ? link_at(placed, backing->ptr) : NULL;
	if (!placed) {
		why = "not within a range of glake_reserve()";
	} else if (*at && (*at)->ptr < backing->ptr + backing->n_bytes) {
		why = "already mapped, in part";
	} else {
		backing->is_busy = true;
		backing->next = *at;
		*at = backing;
	}
	pthread_mutex_unlock(&books->lock);
	return why ? refuse_place(backing->ptr, backing->n_bytes, why) : 0;
}

/* The end of @backing's being busy: it stays with @keep, else it leaves the list. */
static void settle(struct glake_session *session, struct glake__backing *backing, bool keep)
{
	struct glake__books *books = &session->books;
	pthread_mutex_lock(&books->lock);
	backing->is_busy = false;
	if (keep) {
		glake__books_add_live(books, backing->n_bytes);
	} else {
		struct glake__placed *placed = find_locked(books, backing->ptr, backing->n_bytes);
		*link_at(placed, backing->ptr) = backing->next;
		backing->next = NULL;
	}
	pthread_mutex_unlock(&books->lock);
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
	struct glake__device *found = glake__session_mappable(session, device, &r);
	if (!found) {
		return r;
	}
	struct glake__backing *backing = glake__backing_new(found, ptr, bytes);
	if (!backing) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	r = enter(session, backing);
	if (r == 0) {
		r = glake__backing_fill(session, backing);
		if (r < 0 && glake__alloc_make_room(session, found, r)) {
			r = glake__backing_fill(session, backing);
		}
		settle(session, backing, r == 0);
	}
	if (r < 0) {
		glake__backing_free(backing);
	}
	return glake__leave(session, r);
}

/*
 * The backings that fill exactly [ptr, ptr + n_bytes), gaps allowed neither between nor beside, all
 * marked busy; their number, or 0. Called with the books lock held.
 */
static size_t claim_locked(struct glake__placed *placed, glake_ptr ptr, uint64_t n_bytes)
{
	struct glake__backing *first = *link_at(placed, ptr);
	struct glake__backing *backing = first;
	size_t n_claimed = 0;
	glake_ptr at = ptr;
	while (at < ptr + n_bytes && backing && backing->ptr == at && !backing->is_busy) {
		at += backing->n_bytes;
		backing = backing->next;
		n_claimed++;
	}
	if (at != ptr + n_bytes) {
		return 0;
	}
	for (backing = first; backing && backing->ptr < ptr + n_bytes; backing = backing->next) {
		backing->is_busy = true;
	}
	return n_claimed;
}

/*
 * Unmap a busy backing. It leaves the list only afterwards, so that nobody maps there meanwhile; if
 * the driver does not unmap it, its addresses stay taken until the session ends.
 */
static int unmap_one(struct glake_session *session, struct glake__backing *backing)
{
	int r = glake__backing_unmap(session, backing);
	if (r < 0) {
		return r;
	}
	settle(session, backing, false);
	pthread_mutex_lock(&session->books.lock);
	session->books.live_bytes -= backing->n_bytes;
	pthread_mutex_unlock(&session->books.lock);
	return 0;
}

int glake_unmap(struct glake_session *session, glake_ptr ptr, uint64_t bytes)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (bytes == 0 || !is_granular(bytes) || !is_granular(ptr)) {
		return refuse_shape(ptr, bytes);
	}
	struct glake__books *books = &session->books;
	pthread_mutex_lock(&books->lock);
	struct glake__placed *placed = find_locked(books, ptr, bytes);
	size_t n_claimed = placed ? claim_locked(placed, ptr, bytes) : 0;
	struct glake__backing *backing = n_claimed ? *link_at(placed, ptr) : NULL;
	pthread_mutex_unlock(&books->lock);
	if (n_claimed == 0) {
		return refuse_place(ptr, bytes, "not what glake_map() filled");
	}
	struct glake__backing *list = NULL;
	for (size_t i = 0; i < n_claimed; i++) {
		pthread_mutex_lock(&books->lock);
		struct glake__backing *next = backing->next;
		pthread_mutex_unlock(&books->lock);
		int unmapped = unmap_one(session, backing);
		if (unmapped == 0) {
			backing->next = list;
			list = backing;
		}
		r = r ? r : unmapped;
		backing = next;
	}
	glake__backing_return(session, list);
	return glake__leave(session, r);
}

/* ---- the end ---------------------------------------------------------------------------------- */

void glake__placed_deinit(struct glake_session *session)
{
	while (session->books.placed) {
		struct glake__placed *placed = session->books.placed;
		session->books.placed = placed->next;
		while (placed->backings) {
			struct glake__backing *backing = placed->backings;
			placed->backings = backing->next;
			glake__backing_drop(session, backing, false);
		}
		if (!session->is_forked) {
			glake__map_unreserve(session, placed->ptr, placed->n_bytes);
		}
		free(placed);
	}
}
