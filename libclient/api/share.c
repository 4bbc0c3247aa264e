/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory that another process of the realm may map too.
 *
 * A name has the chunks' ids and the ticket that glaked gave for them. The other process asks
 * glaked for the fds, and glaked knows the realms of both. The chunks of one request have ids that
 * count up. So a name needs the first id, and the last one, because a smaller last chunk may be of
 * another request.
 *
 * Named memory never becomes warm: another process may have it mapped.
 */
#include <errno.h>

#include "libclient/api/share.h"
#include "libclient/heap/heap.h"
#include "libclient/heap/backing.h"
#include "libclient/space/held.h"
#include "libclient/space/reback.h"
#include "libclient/seal/unseal.h"
#include "libclient/link/dispatch.h"
#include "libclient/link/rpc.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

/* Another process's memory. */
static const struct glake__use opened_use = {.name = "opened", .kind = GLAKE__OPENED};

#define UNDO_TRIES 10

static uint64_t chunk_id(const struct glake_share *share, uint32_t i_chunk)
{
	return i_chunk + 1 == share->n_chunks ? share->last_chunk : share->first_chunk + i_chunk;
}

/*
 * Can a name describe its pieces: their number, and ids that count up? Called with the lock held.
 */
static bool name_locked(const struct glake_session *session, const struct glake__backing *backing,
                        struct glake_share *share_out)
{
	const struct glake__piece *piece = backing->range->first;
	struct glake_share share = {
		.session = session->id,
		.first_chunk = piece->chunk->id,
		.bytes = backing->n_bytes,
		.ticket = backing->ticket,
	};
	for (; piece; piece = piece->next) {
		if (piece->chunk->kind != GLAKE__PAGE_CHUNK) {
			return false;
		}
		share.n_chunks++;
		share.last_chunk = piece->chunk->id;
	}
	*share_out = share;
	uint32_t i = 0;
	for (piece = backing->range->first; piece; piece = piece->next, i++) {
		if (piece->chunk->id != chunk_id(&share, i)) {
			return false;
		}
	}
	return share.n_chunks <= GLAKE_MAX_PACKET_FDS;
}

/* The live backing that @ptr is in. @is_whole: it is one allocation, which starts at @ptr. */
static struct glake__backing *find_locked(const struct glake_session *session, glake_ptr ptr,
                                          bool is_whole)
{
	if (is_whole) {
		return glake__heap_backing_locked(session, ptr);
	}
	struct glake__backing *backing;
	for (;;) {
		const struct glake__range *range;
		range = glake__range_at_locked(ptr, &glake__use_private);
		backing = range ? range->user : NULL;
		if (!backing || !backing->is_live || !backing->is_held) {
			break;
		}
		glake__held_wait_locked();
	}
	return backing && backing->is_live && backing->device->session == session ? backing : NULL;
}

/* Called with the lock held. Memory that is being replaced has no name. */
static bool is_busy_locked(const struct glake__backing *backing)
{
	const struct glake__piece *piece = backing ? backing->range->first : NULL;
	while (piece && !piece->holder) {
		piece = piece->next;
	}
	return piece != NULL;
}

/* The name of live memory, with the ticket that it may have already. */
static int find_name(struct glake_session *session, glake_ptr ptr, bool is_whole,
                     struct glake_share *share_out)
{
	struct glake__backing *backing;
	struct glake_share share;
	glake__lock();
	while (is_busy_locked(backing = find_locked(session, ptr, is_whole))) {
		glake__unlock();
		glake__busy_pause();
		glake__lock();
	}
	bool is_named = backing && name_locked(session, backing, &share);
	/* The caller may pass the name on from now on, so the memory is pinned. */
	for (struct glake__piece *at = is_named ? backing->range->first : NULL; at; at = at->next) {
		at->chunk->pins |= 1u << GLAKE__PIN_SHARED;
	}
	glake__unlock();
	if (!backing) {
		return glake__heap_unknown(ptr);
	}
	if (!is_named) {
		return glake__fail(-ENOTSUP, "memory at 0x%llx has too many chunks",
		                   (unsigned long long)ptr);
	}
	*share_out = share;
	return 0;
}

/* Chunks keep their ticket for life, so the next call need not ask glaked. */
static void keep_ticket(struct glake_session *session, glake_ptr ptr,
                        const struct glake_share *share)
{
	glake__lock();
	struct glake__backing *backing = find_locked(session, ptr, false);
	if (backing && backing->range->first->chunk->id == share->first_chunk) {
		backing->ticket = share->ticket;
	}
	glake__unlock();
}

static void list_ids(const struct glake_share *share, uint64_t ids[GLAKE_MAX_PACKET_FDS])
{
	for (uint32_t i = 0; i < share->n_chunks; i++) {
		ids[i] = chunk_id(share, i);
	}
}

static int name(struct glake_session *session, glake_ptr ptr, bool is_whole,
                struct glake_share *share_out)
{
	cleanup_cancel int cancel = cancel_disable();
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	struct glake_share share;
	int r = glake__session_check(session);
	if (r == 0) {
		r = find_name(session, ptr, is_whole, &share);
	}
	/* Another thread may seal the memory again before it has its name, or queue work all the time. */
	for (int i = 0; i < UNDO_TRIES && (r == -ENOTSUP || r == -EBUSY); i++) {
		r = glake__seal_undo(ptr);
		r = r < 0 ? r : find_name(session, ptr, is_whole, &share);
	}
	if (r < 0) {
		return r;
	}
	if (share.ticket == 0) {
		list_ids(&share, ids);
		r = glake__rpc_chunk_share(session, ids, share.n_chunks, &share.ticket);
		if (r < 0) {
			return glake__leave(session, r);
		}
		keep_ticket(session, ptr, &share);
	}
	*share_out = share;
	return glake__leave(session, 0);
}

int glake_share(struct glake_session *session, glake_ptr ptr, struct glake_share *share_out)
{
	return name(session, ptr, true, share_out);
}

int glake__share_region(struct glake_session *session, glake_ptr ptr, struct glake_share *share_out)
{
	return name(session, ptr, false, share_out);
}

/* ---- the other side --------------------------------------------------------------------------- */

static uint64_t chunk_bytes(const struct glake_share *share, uint32_t i_chunk)
{
	return glake__grant_chunk_bytes(share->bytes - i_chunk * GRANT_CHUNK_BYTES);
}

/* A name may come from anywhere, so it is checked. Each memory has exactly one valid name. */
static bool is_possible(const struct glake_share *share)
{
	uint64_t n_full = share->n_chunks * GRANT_CHUNK_BYTES;
	return share->session != 0 && share->ticket != 0 && share->n_chunks > 0 &&
	       share->n_chunks <= GLAKE_MAX_PACKET_FDS &&
	       (share->n_chunks > 1 || share->first_chunk == share->last_chunk) &&
	       share->bytes > 0 && share->bytes % GLAKE_CHUNK_GRANULARITY == 0 &&
	       share->bytes <= n_full && share->bytes > n_full - GRANT_CHUNK_BYTES;
}

static int map(const struct glake_share *share, const struct fdlist *fds,
               const struct glake__device *device, int ordinal, glake_ptr *ptr_out)
{
	struct glake__part parts[GLAKE_MAX_PACKET_FDS];
	struct glake__range *range;
	size_t n_parts = 0;
	int r = glake__range_reserve(&opened_use, NULL, device->handle, share->bytes, 0, 0, &range);
	if (r < 0) {
		return r;
	}
	if (ordinal >= 0 && ordinal < GLAKE__MAX_DEVICES) {
		range->readers |= 1ull << ordinal;
	}
	for (; r == 0 && n_parts < share->n_chunks; n_parts += r == 0) {
		parts[n_parts] = (struct glake__part){
			.chunk = glake__chunk_new(chunk_id(share, (uint32_t)n_parts),
		                                  chunk_bytes(share, (uint32_t)n_parts),
		                                  device->handle, GLAKE__PAGE_CHUNK),
			.n_bytes = chunk_bytes(share, (uint32_t)n_parts),
			.access = GLAKE__ACCESS_WRITE,
			.fd = fds->fds[n_parts],
		};
		r = parts[n_parts].chunk ? 0 : -ENOMEM;
	}
	if (r == 0) {
		r = glake__range_fill(range, 0, parts, n_parts);
	}
	char *text = glake__error_save();
	for (size_t i = 0; i < n_parts; i++) {
		parts[i].chunk->pins |= 1u << GLAKE__PIN_FOREIGN;
		glake__chunk_put(parts[i].chunk);
	}
	if (r < 0) {
		glake__range_end(range, NULL);
	}
	glake__error_restore(text);
	if (r == 0) {
		*ptr_out = range->ptr;
	}
	return r;
}

int glake_share_open(struct glake_session *session, const struct glake_share *share, int ordinal,
                     glake_ptr *ptr_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (!is_possible(share)) {
		return glake__fail(-EINVAL, "not a name made by glake_share()");
	}
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	uint64_t sizes[GLAKE_MAX_PACKET_FDS];
	uint32_t index = 0;
	list_ids(share, ids);
	const struct glake__chunk_names names = {
		.session = share->session,
		.ticket = share->ticket,
		.ids = ids,
		.n_ids = share->n_chunks,
	};
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	r = glake__rpc_chunk_open(session, &names, sizes, &index, &fds);
	for (uint32_t i = 0; r == 0 && i < share->n_chunks; i++) {
		if (sizes[i] != chunk_bytes(share, i)) {
			r = glake__fail(-EINVAL, "the shared memory has another size");
		}
	}
	struct glake__device *device = NULL;
	if (r == 0) {
		r = glake__session_mappable(session, index, &device);
	}
	if (r == 0) {
		r = map(share, &fds, device, ordinal, ptr_out);
	}
	return glake__leave(session, r);
}

int glake_share_close(struct glake_session *session, const struct glake_share *share, glake_ptr ptr)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (!is_possible(share)) {
		return glake__fail(-EINVAL, "not a name made by glake_share()");
	}
	glake__lock();
	struct glake__range *range = glake__range_at_locked(ptr, &opened_use);
	bool is_it = range && range->ptr == ptr && range->n_bytes == share->bytes;
	glake__unlock();
	if (!is_it) {
		return glake__fail(-EINVAL, "0x%llx is not what glake_share_open() gave",
		                   (unsigned long long)ptr);
	}
	return glake__leave(session, glake__range_end(range, NULL));
}
