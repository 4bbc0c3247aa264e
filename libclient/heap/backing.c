/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/heap/backing.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
#include "libclient/space/reback.h"

/* ---- filling ---------------------------------------------------------------------------------- */

/* One request's chunks. */
struct some {
	uint32_t n;
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	struct glake__part parts[GLAKE_MAX_PACKET_FDS];
};

/* The next chunks of @n_bytes, as many as one answer carries. Returns their bytes. */
static uint64_t plan(struct some *some, uint64_t n_bytes, uint64_t chunk_bytes)
{
	uint64_t n_planned = 0;
	for (some->n = 0; some->n < GLAKE_MAX_PACKET_FDS && n_planned < n_bytes; some->n++) {
		uint64_t n_left = n_bytes - n_planned;
		uint64_t n_chunk = n_left < chunk_bytes ? n_left : chunk_bytes;
		some->parts[some->n] = (struct glake__part){
			.n_bytes = n_chunk,
			.access = GLAKE__ACCESS_WRITE,
			.fd = -1,
		};
		n_planned += n_chunk;
	}
	return n_planned;
}

/* A chunk is known by its mapping from here on; the maker's use ends with this. */
static void let_chunks(struct some *some)
{
	struct glake__chunk *dead = NULL;
	glake__lock();
	for (uint32_t i = 0; i < some->n; i++) {
		if (some->parts[i].chunk) {
			glake__chunk_put_locked(some->parts[i].chunk, &dead);
		}
	}
	glake__unlock();
	glake__chunks_release(dead);
}

/*
 * Chunk @i, which came with @fd. Those of a pool keep a handle: they are mapped again and again, and asking for it
 * each time costs two driver calls. It goes before glaked is told that the chunk is free: it keeps memory.
 */
static int take_chunk(struct some *some, uint32_t i, int fd, int device, bool keeps_handle)
{
	struct glake__part *part = &some->parts[i];
	part->fd = fd;
	part->chunk = glake__chunk_new(some->ids[i], part->n_bytes, device, GLAKE__PAGE_CHUNK);
	if (!part->chunk || !keeps_handle) {
		return part->chunk ? 0 : -ENOMEM;
	}
	int r = glake__map_import(fd, &part->chunk->handle);
	part->handle = part->chunk->handle;
	return r;
}

static int fill_some(struct glake_session *session, struct glake__device *device,
                     struct glake__range *range, uint64_t offset, struct some *some,
                     struct glake__wait *wait)
{
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	uint64_t last_bytes = some->parts[some->n - 1].n_bytes;
	int r = glake__rpc_chunk_alloc(session, device->public.index, some->parts[0].n_bytes,
	                               some->n, last_bytes, wait, some->ids, &fds);
	if (r < 0) {
		return r;
	}
	for (uint32_t i = 0; r == 0 && i < some->n; i++) {
		r = take_chunk(some, i, fds.fds[i], device->handle,
		               range->use == GLAKE__RANGE_POOL);
	}
	if (r == 0) {
		r = glake__range_fill(range, offset, some->parts, some->n);
	}
	let_chunks(some);
	if (r < 0) {
		char *why = glake__error_save();
		glake__rpc_chunk_free(session, some->ids, some->n);
		glake__error_restore(why);
	}
	return r;
}

static void count_reserved(struct glake_session *session, int64_t n_bytes)
{
	glake__lock();
	session->books.reserved_bytes += (uint64_t)n_bytes;
	glake__unlock();
}

int glake__backing_fill(struct glake__device *device, struct glake__range *range, uint64_t offset,
                        uint64_t n_bytes, uint64_t chunk_bytes, struct glake__wait *wait)
{
	struct glake_session *session = device->session;
	cleanup_free struct some *some = malloc(sizeof(*some));
	uint64_t n_filled = 0;
	int r = some ? 0 : glake__fail(-ENOMEM, "out of memory");
	while (r == 0 && n_filled < n_bytes) {
		uint64_t n_planned = plan(some, n_bytes - n_filled, chunk_bytes);
		r = fill_some(session, device, range, offset + n_filled, some, wait);
		n_filled += r == 0 ? n_planned : 0;
	}
	count_reserved(session, (int64_t)n_filled);
	if (r < 0 && n_filled > 0) {
		char *why = glake__error_save();
		struct glake__chunk *dead = NULL;
		glake__range_clear(range, offset, n_filled, &dead);
		glake__backing_return(session, dead);
		glake__error_restore(why);
	}
	return r;
}

/* Its range, a hole. */
static int reserve(struct glake__device *device, uint64_t n_bytes,
                   struct glake__backing **backing_out)
{
	cleanup_free struct glake__backing *backing = calloc(1, sizeof(*backing));
	if (!backing) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	int r = glake__range_reserve(GLAKE__RANGE_PRIVATE, backing, device->handle, n_bytes, 0, 0,
	                             &backing->range);
	if (r < 0) {
		return r;
	}
	backing->ptr = backing->range->ptr;
	backing->n_bytes = n_bytes;
	backing->device = device;
	*backing_out = ptr_steal(backing);
	return 0;
}

/* It could not be filled. */
static void unreserve(struct glake__backing *backing)
{
	char *why = glake__error_save();
	glake__range_end(backing->range, NULL);
	glake__backing_free(backing);
	glake__error_restore(why);
}

int glake__backing_new(struct glake__device *device, uint64_t n_bytes, struct glake__wait *wait,
                       struct glake__backing **backing_out)
{
	int r = reserve(device, n_bytes, backing_out);
	if (r < 0) {
		return r;
	}
	struct glake__backing *backing = *backing_out;
	r = glake__backing_fill(device, backing->range, 0, n_bytes, BACKING_CHUNK_BYTES, wait);
	if (r < 0) {
		unreserve(backing);
	}
	return r;
}

int glake__backing_of_chunk(struct glake__device *device, uint64_t id, uint64_t n_bytes, int fd,
                            struct glake__backing **backing_out)
{
	struct glake__part part = {
		.chunk = glake__chunk_new(id, n_bytes, device->handle, GLAKE__PAGE_CHUNK),
		.n_bytes = n_bytes,
		.access = GLAKE__ACCESS_WRITE,
		.fd = fd,
	};
	if (!part.chunk) {
		return -ENOMEM;
	}
	int r = reserve(device, n_bytes, backing_out);
	if (r == 0) {
		r = glake__range_fill((*backing_out)->range, 0, &part, 1);
		if (r < 0) {
			unreserve(*backing_out);
		}
	}
	glake__chunk_put(part.chunk);
	if (r == 0) {
		count_reserved(device->session, (int64_t)n_bytes);
	}
	return r;
}

void glake__backing_free(struct glake__backing *backing)
{
	if (backing) {
		free(backing->unsealed);
	}
	free(backing);
}

bool glake__backing_is_tied_locked(const struct glake__backing *backing)
{
	const struct glake__piece *piece = backing->range->first;
	while (piece && piece->chunk && piece->chunk->kind == GLAKE__PAGE_CHUNK &&
	       !glake__chunk_pin_locked(piece->chunk)) {
		piece = piece->next;
	}
	return piece != NULL;
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
	count_reserved(session, -(int64_t)batch->n_bytes);
	batch->n_ids = 0;
	batch->n_bytes = 0;
}

void glake__backing_seal_locked(struct glake_session *session, struct glake__chunk *chunk,
                                uint64_t id)
{
	chunk->id = id;
	glake__chunk_set_kind_locked(chunk, GLAKE__PAGE_BLOCK);
	session->books.reserved_bytes -= chunk->n_bytes;
	session->books.shared_bytes += chunk->n_bytes;
}

void glake__backing_unfinish_locked(struct glake_session *session, struct glake__chunk *chunk)
{
	glake__backing_seal_locked(session, chunk, chunk->id);
	chunk->is_unfinished = true;
}

/* Sealed memory that is gone. If its publication was lost, it is a chunk still. */
static void return_block(struct glake_session *session, struct glake__chunk *chunk)
{
	if (glake__rpc_block_release(session, chunk->id) == GLAKE_E_BAD_REQUEST) {
		glake__rpc_chunk_free(session, &chunk->id, 1);
	}
	glake__lock();
	session->books.shared_bytes -= chunk->n_bytes;
	glake__unlock();
	chunk->release(chunk);
}

void glake__backing_return(struct glake_session *session, struct glake__chunk *dead)
{
	if (!dead) {
		return;
	}
	char *text = glake__error_save();
	struct batch batch;
	batch.n_ids = 0;
	batch.n_bytes = 0;
	while (dead) {
		struct glake__chunk *chunk = dead;
		dead = chunk->next;
		if (chunk->kind == GLAKE__PAGE_BLOCK) {
			return_block(session, chunk);
			continue;
		}
		if (batch.n_ids == GLAKE_MAX_FREED_CHUNKS) {
			flush(session, &batch);
		}
		if (chunk->id) {
			batch.ids[batch.n_ids++] = chunk->id;
			batch.n_bytes += chunk->n_bytes;
		}
		chunk->release(chunk);
	}
	flush(session, &batch);
	glake__error_restore(text);
}

static void append(struct glake__chunk **list, struct glake__chunk *more)
{
	while (more) {
		struct glake__chunk *next = more->next;
		more->next = *list;
		*list = more;
		more = next;
	}
}

int glake__backing_give_back(struct glake_session *session, struct glake__backing *list)
{
	struct glake__chunk *gone = NULL;
	int error = 0;
	while (list) {
		struct glake__backing *backing = list;
		struct glake__chunk *dead = NULL;
		list = backing->next;
		int r = glake__range_end(backing->range, &dead);
		append(&gone, dead);
		glake__backing_free(backing);
		error = error ? error : r;
	}
	glake__backing_return(session, gone);
	return error;
}

void glake__range_drop_all(struct glake_session *session, struct glake__range *range)
{
	if (range && session->is_forked) {
		glake__range_forget(range);
	} else if (range) {
		glake__range_end(range, NULL);
	}
}

void glake__backing_drop(struct glake_session *session, struct glake__backing *backing)
{
	glake__range_drop_all(session, backing->range);
	glake__backing_free(backing);
}
