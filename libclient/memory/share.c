/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory that another process of the realm may map too.
 *
 * Nothing is passed but ids, and the ticket that glaked gives for them: whoever wants the memory asks
 * glaked for the fds, which knows the realm of both. The chunks of one request have ids that count
 * up, so a name needs the first of the whole chunks and the last, which may be smaller and so of
 * another request.
 *
 * Named memory never becomes warm: others may have it mapped.
 */
#include <errno.h>

#include "libclient/memory/alloc.h"
#include "libclient/memory/backing.h"
#include "libclient/memory/map.h"
#include "libclient/link/notice.h"
#include "libclient/link/rpc.h"
#include "proto/limits.h"

static uint64_t chunk_id(const struct glake_share *share, uint32_t i_chunk)
{
	return i_chunk + 1 == share->n_chunks ? share->last_chunk : share->first_chunk + i_chunk;
}

static bool is_named_by(const struct glake_share *share, const struct glake__backing *backing)
{
	for (uint32_t i = 0; i < backing->n_chunks; i++) {
		if (backing->chunk_ids[i] != chunk_id(share, i)) {
			return false;
		}
	}
	return true;
}

/* The name of live memory, with the ticket that it may have already. */
static int find_name(struct glake_session *session, glake_ptr ptr, struct glake_share *share_out)
{
	pthread_mutex_lock(&session->books.lock);
	const struct glake__backing *backing = glake__alloc_find_locked(&session->books, ptr);
	struct glake_share share = {0};
	bool is_short = backing && backing->n_chunks <= GLAKE_MAX_PACKET_FDS;
	if (is_short) {
		share = (struct glake_share){
			.session = session->id,
			.first_chunk = backing->chunk_ids[0],
			.last_chunk = backing->chunk_ids[backing->n_chunks - 1],
			.bytes = backing->n_bytes,
			.ticket = backing->ticket,
			.n_chunks = backing->n_chunks,
		};
	}
	bool is_named = is_short && is_named_by(&share, backing);
	pthread_mutex_unlock(&session->books.lock);
	if (!backing) {
		return glake__alloc_unknown(ptr);
	}
	if (!is_named) {
		return glake__fail(-ENOTSUP, "memory at 0x%llx is in too many pieces",
		                   (unsigned long long)ptr);
	}
	*share_out = share;
	return 0;
}

/* Chunks have one ticket for life: the next time nobody has to be asked. */
static void keep_ticket(struct glake_session *session, glake_ptr ptr,
                        const struct glake_share *share)
{
	pthread_mutex_lock(&session->books.lock);
	struct glake__backing *backing = glake__alloc_find_locked(&session->books, ptr);
	if (backing && backing->chunk_ids[0] == share->first_chunk) {
		backing->ticket = share->ticket;
	}
	pthread_mutex_unlock(&session->books.lock);
}

static void list_ids(const struct glake_share *share, uint64_t ids[GLAKE_MAX_PACKET_FDS])
{
	for (uint32_t i = 0; i < share->n_chunks; i++) {
		ids[i] = chunk_id(share, i);
	}
}

int glake_share(struct glake_session *session, glake_ptr ptr, struct glake_share *share_out)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	struct glake_share share;
	int r = glake__session_check(session);
	if (r == 0) {
		r = find_name(session, ptr, &share);
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

/* ---- the other side --------------------------------------------------------------------------- */

static uint64_t chunk_bytes(const struct glake_share *share, uint32_t i_chunk)
{
	uint64_t n_left = share->bytes - i_chunk * BACKING_CHUNK_BYTES;
	return n_left < BACKING_CHUNK_BYTES ? n_left : BACKING_CHUNK_BYTES;
}

/* It may have come from anywhere. Of two names, at most one is of the same memory. */
static bool is_possible(const struct glake_share *share)
{
	uint64_t n_full = share->n_chunks * BACKING_CHUNK_BYTES;
	return share->session != 0 && share->ticket != 0 && share->n_chunks > 0 &&
	       share->n_chunks <= GLAKE_MAX_PACKET_FDS &&
	       (share->n_chunks > 1 || share->first_chunk == share->last_chunk) &&
	       share->bytes > 0 && share->bytes % GLAKE_CHUNK_GRANULARITY == 0 &&
	       share->bytes <= n_full && share->bytes > n_full - BACKING_CHUNK_BYTES;
}

static int unmap(struct glake_session *session, const struct glake_share *share, glake_ptr ptr,
                 uint32_t n_chunks)
{
	int error = 0;
	for (uint32_t i = 0; i < n_chunks; i++) {
		int r = glake__map_unmap(session, ptr + i * BACKING_CHUNK_BYTES,
		                         chunk_bytes(share, i));
		error = error ? error : r;
	}
	return error ? error : glake__map_unreserve(session, ptr, share->bytes);
}

static int map(struct glake_session *session, const struct glake_share *share,
               const struct fdlist *fds, const struct glake__device *device, int ordinal,
               glake_ptr *ptr_out)
{
	glake_ptr ptr;
	uint32_t n_mapped = 0;
	int r = glake__map_reserve(session, share->bytes, 0, &ptr);
	if (r < 0) {
		return r;
	}
	for (; r == 0 && n_mapped < share->n_chunks; n_mapped += r == 0) {
		r = glake__map_fd(session, ptr + n_mapped * BACKING_CHUNK_BYTES,
		                  chunk_bytes(share, n_mapped), fds->fds[n_mapped]);
	}
	if (r == 0) {
		r = glake__map_access(session, device, ptr, share->bytes, true);
	}
	if (r == 0 && ordinal >= 0 && ordinal != device->public.ordinal) {
		struct glake__device reader = {.public = {.ordinal = ordinal}, .handle = ordinal};
		r = glake__map_access(session, &reader, ptr, share->bytes, true);
	}
	if (r < 0) {
		unmap(session, share, ptr, n_mapped);
		return r;
	}
	*ptr_out = ptr;
	return 0;
}

int glake_share_open(struct glake_session *session, const struct glake_share *share, int ordinal,
                     glake_ptr *ptr_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	if (!is_possible(share)) {
		return glake__fail(-EINVAL, "not a name of shared memory");
	}
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	uint64_t sizes[GLAKE_MAX_PACKET_FDS];
	uint32_t index = 0;
	list_ids(share, ids);
	const struct glake__chunk_names names = {
		.owner = share->session,
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
	if (r == 0) {
		struct glake__device *device = glake__session_mappable(session, index, &r);
		if (device) {
			r = map(session, share, &fds, device, ordinal, ptr_out);
		}
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
		return glake__fail(-EINVAL, "not a name of shared memory");
	}
	return glake__leave(session, unmap(session, share, ptr, share->n_chunks));
}
