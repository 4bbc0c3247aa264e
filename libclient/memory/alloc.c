/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests are whole multiples of 2 MiB. What is freed stays mapped in its device's warm memory, so
 * the usual allocation is a search in a small array under a mutex: no system call, no driver call.
 * The rest goes to the daemon; when that has no memory for us, our own warm memory goes first.
 */
#include "libclient/memory/alloc.h"

#include <errno.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/memory/async.h"
#include "libclient/memory/backing.h"
#include "libclient/link/notice.h"

/* ---- the books -------------------------------------------------------------------------------- */

static void add_live_locked(struct glake__books *books, struct glake__backing *backing)
{
	backing->is_live = true;
	backing->older = NULL;
	backing->newer = books->live;
	if (books->live) {
		books->live->older = backing;
	}
	books->live = backing;
	glake__books_add_live(books, backing->n_bytes);
}

struct glake__backing *glake__alloc_find_locked(struct glake_session *session, glake_ptr ptr)
{
	const struct glake__range *range = glake__range_at_locked(ptr, GLAKE__RANGE_PRIVATE);
	struct glake__backing *backing = range ? range->user : NULL;
	bool is_it = backing && backing->ptr == ptr && backing->is_live && !backing->is_parked &&
	             glake__session_has(session, backing->device);
	return is_it ? backing : NULL;
}

static void remove_locked(struct glake__books *books, struct glake__backing *backing)
{
	if (backing->older) {
		backing->older->newer = backing->newer;
	} else {
		books->live = backing->newer;
	}
	if (backing->newer) {
		backing->newer->older = backing->older;
	}
	if (!backing->is_parked) {
		books->live_bytes -= backing->n_bytes;
	}
	backing->older = NULL;
	backing->newer = NULL;
	backing->is_live = false;
	backing->is_parked = false;
}

static struct glake__backing *remove_live_locked(struct glake_session *session, glake_ptr ptr)
{
	struct glake__backing *backing = glake__alloc_find_locked(session, ptr);
	if (backing) {
		remove_locked(&session->books, backing);
	}
	return backing;
}

int glake__alloc_unknown(glake_ptr ptr)
{
	return glake__fail(-EINVAL, "0x%llx is not memory of glake_alloc()",
	                   (unsigned long long)ptr);
}

struct glake__backing *glake__alloc_take_live(struct glake_session *session, glake_ptr ptr)
{
	glake__lock();
	struct glake__backing *backing = remove_live_locked(session, ptr);
	glake__unlock();
	if (!backing) {
		glake__alloc_unknown(ptr);
	}
	return backing;
}

void glake__alloc_put_back(struct glake_session *session, struct glake__backing *backing)
{
	glake__lock();
	add_live_locked(&session->books, backing);
	glake__unlock();
}

/* ---- trimming --------------------------------------------------------------------------------- */

static int trim(struct glake_session *session, struct glake__device *device, uint64_t keep_bytes)
{
	glake__lock();
	struct glake__backing *list = glake__warm_evict(&device->warm, keep_bytes);
	glake__unlock();
	return glake__backing_give_back(session, list);
}

int glake_is_warm(struct glake_session *session, glake_ptr ptr)
{
	bool is_warm = false;
	if (glake__session_check(session) < 0) {
		return false;
	}
	glake__lock();
	const struct glake__range *range = glake__range_at_locked(ptr, GLAKE__RANGE_PRIVATE);
	const struct glake__backing *backing = range ? range->user : NULL;
	is_warm = backing && backing->is_warm && glake__session_has(session, backing->device);
	glake__unlock();
	return is_warm;
}

int glake_trim(struct glake_session *session, uint32_t device, uint64_t keep_bytes)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__device *found = glake__session_mappable(session, device, &r);
	if (!found) {
		return r;
	}
	glake__async_collect(session, -1);
	return glake__leave(session, trim(session, found, keep_bytes));
}

void glake__alloc_reclaim(struct glake_session *session, uint32_t device, uint64_t n_bytes)
{
	struct glake__device *found = glake__session_device(session, device);
	if (!found) {
		return;
	}
	glake__lock();
	uint64_t n_warm = found->warm.n_bytes;
	found->owed_bytes = n_bytes > n_warm ? n_bytes - n_warm : 0;
	glake__unlock();
	trim(session, found, n_warm > n_bytes ? n_warm - n_bytes : 0);
	/* What is owed goes back as it is released. */
	glake__async_collect(session, -1);
}

bool glake__alloc_make_room(struct glake_session *session, struct glake__device *device, int error)
{
	if (error != GLAKE_E_OVER_QUOTA && error != GLAKE_E_NO_DEVICE_MEMORY &&
	    error != GLAKE_E_NO_FDS) {
		return false;
	}
	bool has_any = glake__async_collect(session, device->public.ordinal);
	glake__lock();
	has_any |= device->warm.n_bytes > 0;
	glake__unlock();
	return has_any && trim(session, device, 0) == 0 && !session->link.error;
}

/* ---- allocating ------------------------------------------------------------------------------- */

static bool alloc_warm(struct glake_session *session, struct glake__device *device,
                       uint64_t n_bytes, glake_ptr *ptr_out)
{
	struct glake__books *books = &session->books;
	glake__lock();
	struct glake__backing *backing = glake__warm_take(&device->warm, n_bytes);
	if (backing) {
		add_live_locked(books, backing);
		books->n_warm_allocs++;
		*ptr_out = backing->ptr;
	}
	glake__unlock();
	return backing != NULL;
}

/* Make, enter into the books; nothing remains of a failure. */
static int alloc_cold(struct glake_session *session, struct glake__device *device, uint64_t n_bytes,
                      glake_ptr *ptr_out)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__backing *backing;
	int r = glake__backing_new(session, device, n_bytes, &backing);
	if (r < 0) {
		return r;
	}
	*ptr_out = backing->ptr;
	glake__lock();
	add_live_locked(&session->books, backing);
	session->books.n_cold_allocs++;
	glake__unlock();
	return 0;
}

int glake__alloc_round(uint64_t bytes, unsigned flags, unsigned known_flags, uint64_t *n_bytes_out)
{
	*n_bytes_out = glake_chunk_bytes(bytes);
	if (*n_bytes_out == 0 || (flags & ~known_flags)) {
		return glake__fail(-EINVAL, "cannot allocate %llu bytes with flags 0x%x",
		                   (unsigned long long)bytes, flags);
	}
	return 0;
}

int glake__alloc_get(struct glake_session *session, struct glake__device *device, uint64_t n_bytes,
                     bool is_zeroed, glake_ptr *ptr_out)
{
	if (!is_zeroed && alloc_warm(session, device, n_bytes, ptr_out)) {
		return 0;
	}
	int r = alloc_cold(session, device, n_bytes, ptr_out);
	if (r < 0 && glake__alloc_make_room(session, device, r)) {
		r = alloc_cold(session, device, n_bytes, ptr_out);
	}
	return glake__leave(session, r);
}

int glake_alloc(struct glake_session *session, uint32_t device, uint64_t bytes, unsigned flags,
                glake_ptr *ptr_out)
{
	uint64_t n_bytes = 0;
	int r = glake__session_check(session);
	if (r == 0 && !ptr_out) {
		r = glake__fail(-EINVAL, "no place for the pointer");
	}
	if (r == 0) {
		r = glake__alloc_round(bytes, flags, GLAKE_ZERO, &n_bytes);
	}
	if (r < 0) {
		return r;
	}
	struct glake__device *found = glake__session_mappable(session, device, &r);
	if (!found) {
		return r;
	}
	return glake__alloc_get(session, found, n_bytes, flags & GLAKE_ZERO, ptr_out);
}

/* ---- freeing ---------------------------------------------------------------------------------- */

/*
 * Make @backing warm. Returns what must be given back for it: the oldest of warm memory, @backing
 * itself if it is owed, alone over the limit, or mapped by others perhaps, usually nothing. Called with
 * the lock held.
 */
static struct glake__backing *make_warm_locked(struct glake__backing *backing)
{
	struct glake__device *device = backing->device;
	struct glake__warm *warm = &device->warm;
	if (device->owed_bytes > 0) {
		device->owed_bytes -= backing->n_bytes < device->owed_bytes ? backing->n_bytes
		                                                            : device->owed_bytes;
		return backing;
	}
	if (backing->n_bytes > warm->max_bytes || glake__backing_is_pinned_locked(backing) ||
	    glake__warm_give(warm, backing) < 0) {
		return backing;
	}
	return glake__warm_evict(warm, warm->max_bytes);
}

void glake__alloc_end(struct glake_session *session, struct glake__backing *backing)
{
	glake__lock();
	remove_locked(&session->books, backing);
	struct glake__backing *list = make_warm_locked(backing);
	glake__unlock();
	glake__backing_give_back(session, list);
}

int glake_free(struct glake_session *session, glake_ptr ptr)
{
	int r = glake__session_check(session);
	if (r < 0 || ptr == 0) {
		return r;
	}
	glake__lock();
	struct glake__backing *backing = remove_live_locked(session, ptr);
	struct glake__backing *list = backing ? make_warm_locked(backing) : NULL;
	glake__unlock();
	if (!backing) {
		return glake__alloc_unknown(ptr);
	}
	if (!list) {
		return 0;
	}
	return glake__leave(session, glake__backing_give_back(session, list));
}

/* ---- the end ---------------------------------------------------------------------------------- */

void glake__alloc_deinit(struct glake_session *session)
{
	struct glake__books *books = &session->books;
	while (books->live) {
		struct glake__backing *backing = books->live;
		books->live = backing->newer;
		glake__backing_drop(session, backing);
	}
	for (uint32_t i = 0; i < session->n_devices; i++) {
		struct glake__warm *warm = &session->devices[i].warm;
		struct glake__backing *list = glake__warm_evict(warm, 0);
		while (list) {
			struct glake__backing *backing = list;
			list = backing->next;
			glake__backing_drop(session, backing);
		}
		glake__warm_deinit(warm);
	}
}
