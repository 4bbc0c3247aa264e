/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/backing.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/memory/map.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"

static uint64_t chunk_bytes(const struct glake__backing *backing, uint32_t i_chunk)
{
	uint64_t n_left = backing->n_bytes - i_chunk * BACKING_CHUNK_BYTES;
	return n_left < BACKING_CHUNK_BYTES ? n_left : BACKING_CHUNK_BYTES;
}

static glake_ptr chunk_ptr(const struct glake__backing *backing, uint32_t i_chunk)
{
	return backing->ptr + i_chunk * BACKING_CHUNK_BYTES;
}

static uint32_t count_chunks(uint64_t n_bytes)
{
	return (uint32_t)((n_bytes + BACKING_CHUNK_BYTES - 1) / BACKING_CHUNK_BYTES);
}

struct glake__backing *glake__backing_new(struct glake__device *device, glake_ptr ptr,
                                          uint64_t n_bytes)
{
	struct glake__backing *backing = calloc(1, sizeof(*backing) + count_chunks(n_bytes) *
	                                                                      sizeof(uint64_t));
	if (backing) {
		backing->device = device;
		backing->ptr = ptr;
		backing->n_bytes = n_bytes;
	}
	return backing;
}

void glake__backing_free(struct glake__backing *backing)
{
	free(backing);
}

/* ---- filling ---------------------------------------------------------------------------------- */

/* Unmap the first @n_mapped chunks. The first error is returned, but all are tried. */
static int unmap_chunks(struct glake_session *session, const struct glake__backing *backing,
                        uint32_t n_mapped)
{
	int error = 0;
	for (uint32_t i = 0; i < n_mapped; i++) {
		int r = glake__map_unmap(session, chunk_ptr(backing, i), chunk_bytes(backing, i));
		error = error ? error : r;
	}
	return error;
}

/*
 * Ask for the next chunks, as many as one answer carries, and map them. The ids count
 * (n_chunks) as soon as they are ours, so that a failure gives them back; *n_mapped follows.
 */
static int fill_some(struct glake_session *session, struct glake__backing *backing,
                     uint32_t *n_mapped)
{
	uint32_t first = backing->n_chunks;
	uint32_t n_chunks = count_chunks(backing->n_bytes) - first;
	if (n_chunks > GLAKE_MAX_PACKET_FDS) {
		n_chunks = GLAKE_MAX_PACKET_FDS;
	}
	uint64_t last_bytes = chunk_bytes(backing, first + n_chunks - 1);
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	int r = glake__rpc_chunk_alloc(session, backing->device->public.index,
	                               chunk_bytes(backing, first), n_chunks, last_bytes,
	                               &backing->chunk_ids[first], &fds);
	if (r < 0) {
		return r;
	}
	backing->n_chunks += n_chunks;
	for (uint32_t i = 0; r == 0 && i < n_chunks; i++) {
		r = glake__map_fd(session, chunk_ptr(backing, first + i),
		                  chunk_bytes(backing, first + i), fds.fds[i]);
		*n_mapped += r == 0;
	}
	return r;
}

int glake__backing_fill(struct glake_session *session, struct glake__backing *backing)
{
	uint32_t n_mapped = 0;
	int r = 0;
	while (r == 0 && backing->n_chunks < count_chunks(backing->n_bytes)) {
		r = fill_some(session, backing, &n_mapped);
	}
	if (r == 0) {
		r = glake__map_access(session, backing->device, backing->ptr, backing->n_bytes,
		                      true);
	}
	if (r < 0) {
		cleanup_free char *why = glake__error_save();
		unmap_chunks(session, backing, n_mapped);
		if (backing->n_chunks > 0) {
			glake__rpc_chunk_free(session, backing->chunk_ids, backing->n_chunks);
		}
		backing->n_chunks = 0;
		glake__error_restore(ptr_steal(why));
		return r;
	}
	pthread_mutex_lock(&session->books.lock);
	session->books.reserved_bytes += backing->n_bytes;
	pthread_mutex_unlock(&session->books.lock);
	return 0;
}

/* ---- giving back ------------------------------------------------------------------------------ */

struct batch {
	size_t n_ids;
	uint64_t n_bytes;
	uint64_t ids[GLAKE_MAX_FREED_CHUNKS];
};

/* The daemon's refusal would be our mistake or its end: the memory is unmapped either way. */
static void flush(struct glake_session *session, struct batch *batch)
{
	if (batch->n_ids > 0) {
		glake__rpc_chunk_free(session, batch->ids, batch->n_ids);
	}
	pthread_mutex_lock(&session->books.lock);
	session->books.reserved_bytes -= batch->n_bytes;
	pthread_mutex_unlock(&session->books.lock);
	batch->n_ids = 0;
	batch->n_bytes = 0;
}

static void add_to_batch(struct glake_session *session, struct batch *batch,
                         const struct glake__backing *backing)
{
	for (uint32_t i = 0; i < backing->n_chunks; i++) {
		if (batch->n_ids == GLAKE_MAX_FREED_CHUNKS) {
			flush(session, batch);
		}
		batch->ids[batch->n_ids++] = backing->chunk_ids[i];
	}
	batch->n_bytes += backing->n_bytes;
}

int glake__backing_unmap(struct glake_session *session, const struct glake__backing *backing)
{
	return unmap_chunks(session, backing, backing->n_chunks);
}

void glake__backing_return(struct glake_session *session, struct glake__backing *list)
{
	if (!list) {
		return;
	}
	char *text = glake__error_save();
	struct batch batch;
	batch.n_ids = 0;
	batch.n_bytes = 0;
	while (list) {
		struct glake__backing *backing = list;
		list = backing->next;
		add_to_batch(session, &batch, backing);
		glake__backing_free(backing);
	}
	flush(session, &batch);
	glake__error_restore(text);
}

int glake__backing_give_back(struct glake_session *session, struct glake__backing *list)
{
	struct glake__backing *unmapped = NULL;
	int error = 0;
	while (list) {
		struct glake__backing *backing = list;
		list = backing->next;
		int r = glake__backing_unmap(session, backing);
		if (r < 0) {
			glake__backing_free(backing);
		} else {
			r = glake__map_unreserve(session, backing->ptr, backing->n_bytes);
			backing->next = unmapped;
			unmapped = backing;
		}
		error = error ? error : r;
	}
	glake__backing_return(session, unmapped);
	return error;
}

void glake__backing_drop(struct glake_session *session, struct glake__backing *backing, bool range)
{
	if (!session->is_forked && glake__backing_unmap(session, backing) == 0 && range) {
		glake__map_unreserve(session, backing->ptr, backing->n_bytes);
	}
	glake__backing_free(backing);
}
