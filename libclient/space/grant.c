/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/grant.h"

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
		r = take_chunk(some, i, fds.fds[i], device->handle, range->use->keeps_handles);
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

void glake__grant_count(struct glake_session *session, int64_t n_bytes)
{
	glake__lock();
	session->books.reserved_bytes += (uint64_t)n_bytes;
	glake__unlock();
}

int glake__grant_fill(struct glake__device *device, struct glake__range *range, uint64_t offset,
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
	glake__grant_count(session, (int64_t)n_filled);
	if (r < 0 && n_filled > 0) {
		char *why = glake__error_save();
		struct glake__chunk *dead = NULL;
		glake__range_clear(range, offset, n_filled, &dead);
		glake__grant_return(session, dead);
		glake__error_restore(why);
	}
	return r;
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
	glake__grant_count(session, -(int64_t)batch->n_bytes);
	batch->n_ids = 0;
	batch->n_bytes = 0;
}

void glake__grant_seal_locked(struct glake_session *session, struct glake__chunk *chunk,
                              uint64_t id)
{
	chunk->id = id;
	glake__chunk_set_kind_locked(chunk, GLAKE__PAGE_BLOCK);
	session->books.reserved_bytes -= chunk->n_bytes;
	session->books.shared_bytes += chunk->n_bytes;
}

void glake__grant_unfinish_locked(struct glake_session *session, struct glake__chunk *chunk)
{
	glake__grant_seal_locked(session, chunk, chunk->id);
	chunk->is_unfinished = true;
}

/* Sealed memory that is gone. If its publication was lost, it is a chunk still. */
static void return_block(struct glake_session *session, struct glake__chunk *chunk)
{
	const uint64_t id = chunk->id;
	const uint64_t n_bytes = chunk->n_bytes;
	/* First, since it may have a handle, which keeps memory. */
	chunk->release(chunk);
	if (glake__rpc_block_release(session, id) == GLAKE_E_BAD_REQUEST) {
		glake__rpc_chunk_free(session, &id, 1);
	}
	glake__lock();
	session->books.shared_bytes -= n_bytes;
	glake__unlock();
}

void glake__grant_return(struct glake_session *session, struct glake__chunk *dead)
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
		if (chunk->owner) {
			/* It may be of another session. */
			chunk->release(chunk);
			continue;
		}
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

/* ---- the end of a session ---------------------------------------------------------------------- */

void glake__grant_drop(struct glake_session *session, struct glake__range *range)
{
	if (range && session->is_forked) {
		glake__range_forget(range);
	} else if (range) {
		glake__range_end(range, NULL);
	}
}
