/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/grant.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
#include "libclient/space/guard.h"
#include "libclient/space/reback.h"

/* ---- filling ---------------------------------------------------------------------------------- */

/* One request's chunks. */
struct some {
	uint32_t n;
	bool is_read; /* others' memory, which they pay for */
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	struct glake__part parts[GLAKE_MAX_PACKET_FDS];
	uint64_t offsets[GLAKE_MAX_PACKET_FDS]; /* in the range */
};

static void add(struct some *some, uint64_t offset, uint64_t n_bytes)
{
	some->offsets[some->n] = offset;
	some->parts[some->n++] = (struct glake__part){
		.n_bytes = n_bytes,
		.access = GLAKE__ACCESS_WRITE,
		.fd = -1,
	};
}

/* The next chunks of @lanes, lane by lane, as many as one answer carries: those behind the first @n_done bytes. Returns their bytes. */
static uint64_t plan(struct some *some, const struct glake__lanes *lanes, uint64_t n_done)
{
	const uint64_t n_all = lanes->n_bytes * lanes->n;
	uint64_t at = n_done;
	some->n = 0;
	while (some->n < GLAKE_MAX_PACKET_FDS && at < n_all) {
		uint64_t in_lane = at % lanes->n_bytes;
		uint64_t n_left = lanes->n_bytes - in_lane;
		uint64_t n_chunk = n_left < lanes->chunk_bytes ? n_left : lanes->chunk_bytes;
		add(some, lanes->offset + at / lanes->n_bytes * lanes->stride + in_lane, n_chunk);
		at += n_chunk;
	}
	return at - n_done;
}

/* The number of chunks from @i on that lie side by side. */
static uint32_t run_from(const struct some *some, uint32_t i)
{
	uint32_t n = 1;
	while (i + n < some->n &&
	       some->offsets[i + n] == some->offsets[i + n - 1] + some->parts[i + n - 1].n_bytes) {
		n++;
	}
	return n;
}

static uint64_t bytes_of(const struct some *some, uint32_t first, uint32_t n)
{
	uint64_t n_bytes = 0;
	for (uint32_t i = first; i < first + n; i++) {
		n_bytes += some->parts[i].n_bytes;
	}
	return n_bytes;
}

static void clear_some(struct glake__range *range, const struct some *some, uint32_t n_mapped,
                       struct glake__chunk **dead)
{
	uint32_t n;
	for (uint32_t i = 0; i < n_mapped; i += n) {
		n = run_from(some, i);
		glake__range_clear(range, some->offsets[i], bytes_of(some, i, n), dead);
	}
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
static int take_chunk(struct some *some, uint32_t i, int fd, int device, bool keeps_handle,
                      enum glake__page_kind kind)
{
	struct glake__part *part = &some->parts[i];
	part->fd = fd;
	part->access = some->is_read ? GLAKE__ACCESS_READ : GLAKE__ACCESS_WRITE;
	part->chunk = glake__chunk_new(some->ids[i], part->n_bytes, device, kind);
	if (part->chunk && some->is_read) {
		part->chunk->pins = 1u << GLAKE__PIN_FOREIGN;
	}
	if (!part->chunk || !keeps_handle) {
		return part->chunk ? 0 : -ENOMEM;
	}
	int r = glake__map_import(fd, &part->chunk->handle);
	part->handle = part->chunk->handle;
	return r;
}

static int exchange_some(struct glake__range *range, const struct some *some)
{
	struct glake__chunk *dead = NULL;
	int r = glake__guard_exchange(range, some->offsets, some->parts, some->n,
	                              GLAKE__GUARD_WAITS, &dead);
	glake__chunks_release(dead);
	return r;
}

/* All of them, or none. */
static int map_some(struct glake__range *range, const struct some *some)
{
	int r = 0;
	if (range->guard) {
		return exchange_some(range, some);
	}
	uint32_t n_mapped = 0;
	while (r == 0 && n_mapped < some->n) {
		uint32_t n = run_from(some, n_mapped);
		r = glake__range_fill(range, some->offsets[n_mapped], &some->parts[n_mapped], n);
		n_mapped += r == 0 ? n : 0;
	}
	if (r < 0 && n_mapped > 0) {
		char *why = glake__error_save();
		struct glake__chunk *dead = NULL;
		clear_some(range, some, n_mapped, &dead);
		glake__chunks_release(dead);
		glake__error_restore(why);
	}
	return r;
}

/* All that glaked has granted, or none, and then it goes back. */
static int put_some(struct glake__device *device, struct glake__range *range, struct some *some,
                    const struct fdlist *fds, enum glake__page_kind kind)
{
	struct glake_session *session = device->session;
	int r = 0;
	for (uint32_t i = 0; r == 0 && i < some->n; i++) {
		r = take_chunk(some, i, fds->fds[i], device->handle, range->use->keeps_handles,
		               kind);
	}
	if (r == 0) {
		r = map_some(range, some);
	}
	let_chunks(some);
	if (r < 0) {
		char *why = glake__error_save();
		glake__rpc_chunk_free(session, some->ids, some->n);
		glake__error_restore(why);
	}
	return r;
}

static int fill_some(struct glake__device *device, struct glake__range *range, struct some *some,
                     struct glake__wait *wait)
{
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	uint64_t last_bytes = some->parts[some->n - 1].n_bytes;
	int r = glake__rpc_chunk_alloc(device->session, device->public.index,
	                               some->parts[0].n_bytes, some->n, last_bytes, wait, some->ids,
	                               &fds);
	return r < 0 ? r : put_some(device, range, some, &fds, GLAKE__PAGE_CHUNK);
}

/* Gets the chunk from the first node that has room. */
static int get_host_chunk(struct glake_session *session, uint64_t n_bytes, struct glake__wait *wait,
                          uint64_t *id_out, struct fdlist *fds)
{
	int r = glake__fail(-ENOTSUP, "the daemon has no chunks in host memory");
	for (uint32_t i = 0; (r == -ENOTSUP || r == GLAKE_E_NO_HOST_MEMORY) && i < session->n_hosts;
	     i++) {
		const struct glake__chunks_at wanted = {
			.is_host = true,
			.number = session->hosts[i].node,
			.n_chunks = 1,
			.chunk_bytes = n_bytes,
			.last_bytes = n_bytes,
		};
		r = glake__rpc_chunk_alloc_at(session, &wanted, 1, wait, id_out, fds);
	}
	return r;
}

int glake__grant_fill_host(struct glake__device *device, struct glake__range *range,
                           uint64_t offset, uint64_t n_bytes, struct glake__wait *wait)
{
	cleanup_free struct some *some = malloc(sizeof(*some));
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	if (!some) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	*some = (struct some){.n = 0};
	add(some, offset, n_bytes);
	int r = get_host_chunk(device->session, n_bytes, wait, some->ids, &fds);
	return r < 0 ? r : put_some(device, range, some, &fds, GLAKE__PAGE_HOST);
}

void glake__grant_count(struct glake_session *session, int64_t n_bytes)
{
	glake__lock();
	session->books.reserved_bytes += (uint64_t)n_bytes;
	glake__unlock();
}

/* Plans the same requests again, and puts the guard back in the place of their chunks. */
static void guard_lanes(struct glake__range *range, const struct glake__lanes *lanes,
                        uint64_t n_bytes, struct some *some, struct glake__chunk **dead)
{
	for (uint64_t at = 0; at < n_bytes;) {
		at += plan(some, lanes, at);
		glake__guard_exchange(range, some->offsets, NULL, some->n, GLAKE__GUARD_WAITS,
		                      dead);
	}
}

/* The first @n_bytes of @lanes, as they were planned. @some is room for that. */
static void clear_lanes(struct glake__range *range, const struct glake__lanes *lanes,
                        uint64_t n_bytes, struct some *some, struct glake__chunk **dead)
{
	uint64_t n_left = range->guard ? 0 : n_bytes;
	if (range->guard) {
		guard_lanes(range, lanes, n_bytes, some, dead);
	}
	for (uint32_t i = 0; n_left > 0; i++) {
		uint64_t n = n_left < lanes->n_bytes ? n_left : lanes->n_bytes;
		glake__range_clear(range, lanes->offset + i * lanes->stride, n, dead);
		n_left -= n;
	}
}

int glake__grant_fill_lanes(struct glake__device *device, struct glake__range *range,
                            const struct glake__lanes *lanes, struct glake__wait *wait)
{
	struct glake_session *session = device->session;
	const uint64_t n_all = lanes->n_bytes * lanes->n;
	cleanup_free struct some *some = calloc(1, sizeof(*some));
	uint64_t n_filled = 0;
	int r = some ? 0 : glake__fail(-ENOMEM, "out of memory");
	while (r == 0 && n_filled < n_all) {
		uint64_t n_planned = plan(some, lanes, n_filled);
		r = fill_some(device, range, some, wait);
		n_filled += r == 0 ? n_planned : 0;
	}
	glake__grant_count(session, (int64_t)n_filled);
	if (r < 0 && n_filled > 0) {
		char *why = glake__error_save();
		struct glake__chunk *dead = NULL;
		clear_lanes(range, lanes, n_filled, some, &dead);
		glake__grant_return(session, dead);
		glake__error_restore(why);
	}
	return r;
}

static int get_lanes(struct glake__device *device, struct glake__range *range,
                     const struct glake__lanes *lanes, struct glake__adopted *adopted, bool is_read)
{
	cleanup_free struct some *some = calloc(1, sizeof(*some));
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	if (!some) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	uint64_t n_bytes = plan(some, lanes, 0);
	some->is_read = is_read;
	int r = glake__rpc_chunk_adopt(device->session, device->public.index, lanes->chunk_bytes,
	                               some->n, is_read, adopted, some->ids, &fds);
	if (r == 0) {
		r = put_some(device, range, some, &fds, GLAKE__PAGE_CHUNK);
	}
	if (r == 0 && !is_read) {
		glake__grant_count(device->session, (int64_t)n_bytes);
	}
	return r;
}

int glake__grant_adopt_lanes(struct glake__device *device, struct glake__range *range,
                             const struct glake__lanes *lanes, struct glake__adopted *adopted)
{
	return get_lanes(device, range, lanes, adopted, false);
}

int glake__grant_read_lanes(struct glake__device *device, struct glake__range *range,
                            const struct glake__lanes *lanes, struct glake__adopted *adopted)
{
	return get_lanes(device, range, lanes, adopted, true);
}

int glake__grant_fill(struct glake__device *device, struct glake__range *range, uint64_t offset,
                      uint64_t n_bytes, uint64_t chunk_bytes, struct glake__wait *wait)
{
	const struct glake__lanes lane = {
		.offset = offset,
		.n_bytes = n_bytes,
		.chunk_bytes = chunk_bytes,
		.n = 1,
	};
	return glake__grant_fill_lanes(device, range, &lane, wait);
}

int glake__grant_chunk(struct glake__device *device, uint64_t n_bytes, struct glake__wait *wait,
                       struct glake__chunk **chunk_out)
{
	struct glake_session *session = device->session;
	cleanup_fdlist struct fdlist fds;
	uint64_t id;
	fdlist_init(&fds);
	int r = glake__rpc_chunk_alloc(session, device->public.index, n_bytes, 1, n_bytes, wait,
	                               &id, &fds);
	if (r < 0) {
		return r;
	}
	struct glake__chunk *chunk = glake__chunk_new(id, n_bytes, device->handle,
	                                              GLAKE__PAGE_CHUNK);
	r = chunk ? glake__map_import(fds.fds[0], &chunk->handle) : -ENOMEM;
	if (r < 0) {
		char *why = glake__error_save();
		free(chunk);
		glake__rpc_chunk_free(session, &id, 1);
		glake__error_restore(why);
		return r;
	}
	glake__grant_count(session, (int64_t)n_bytes);
	*chunk_out = chunk;
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

/* Neither host memory, nor what others pay for. */
static bool is_counted(const struct glake__chunk *chunk)
{
	return chunk->kind != GLAKE__PAGE_HOST && !(chunk->pins & 1u << GLAKE__PIN_FOREIGN);
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
			/* The chunk may be of another session. */
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
			batch.n_bytes += is_counted(chunk) ? chunk->n_bytes : 0;
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
