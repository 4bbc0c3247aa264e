/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that glaked grants, in ranges: getting them, giving them back, and what the books of a session say of them.
 *
 * Chunks are GRANT_CHUNK_BYTES but the last of a request, which is the rest: a driver call costs
 * by the handle, not by the byte, so chunks are as large as the request allows, but a row of them
 * keeps a very large request placeable.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_GRANT_H
#define GLAKE_LIBCLIENT_GRANT_H

#include <stdint.h>

#include "libclient/link/wait.h"
#include "libclient/space/range.h"

struct glake_session;
struct glake__device;

#define GRANT_CHUNK_BYTES (1ull << 30)

/* The next chunk of a request of which @n_left bytes have none yet. */
static inline uint64_t glake__grant_chunk_bytes(uint64_t n_left)
{
	return n_left < GRANT_CHUNK_BYTES ? n_left : GRANT_CHUNK_BYTES;
}

/*
 * Get chunks of @chunk_bytes, the last may be smaller, for [offset, offset + n_bytes) of @range, a hole, and
 * map them. On failure nothing is mapped there and no chunk is left. Blocks; no lock is held.
 */
int glake__grant_fill(struct glake__device *device, struct glake__range *range, uint64_t offset,
                      uint64_t n_bytes, uint64_t chunk_bytes, struct glake__wait *wait);

/*
 * One chunk of host memory, of the first node that has it, for [offset, offset + n_bytes) of @range, a hole: GPUs that read the
 * range read and write it there. -ENOTSUP: the daemon has no such chunks; GLAKE_E_NO_HOST_MEMORY.
 */
int glake__grant_fill_host(struct glake__device *device, struct glake__range *range,
                           uint64_t offset, uint64_t n_bytes, struct glake__wait *wait);

/* One place in each of several lanes: @n_bytes at @offset, and every @stride bytes from there on, in chunks of one size. */
struct glake__lanes {
	uint64_t offset;
	uint64_t n_bytes; /* not 0; a multiple of chunk_bytes, if there is more than one lane */
	uint64_t chunk_bytes;
	uint64_t stride;
	uint32_t n;
};
/* Fills all of @lanes, holes or the guard of the range, that nobody else fills: all or none. */
int glake__grant_fill_lanes(struct glake__device *device, struct glake__range *range,
                            const struct glake__lanes *lanes, struct glake__wait *wait);

/*
 * The same with kept chunks of that key: those of one will, of as many chunks as there are lanes, each of one chunk. Errors of
 * glake__rpc_chunk_adopt(); if they cannot be mapped they are gone.
 */
struct glake__adopted;
int glake__grant_adopt_lanes(struct glake__device *device, struct glake__range *range,
                             const struct glake__lanes *lanes, struct glake__adopted *adopted);

/* Maps kept chunks to read, of living processes too: uncounted, and if that fails only the reading is over. */
int glake__grant_read_lanes(struct glake__device *device, struct glake__range *range,
                            const struct glake__lanes *lanes, struct glake__adopted *adopted);

/* One chunk, which reads zero and has a handle of the library's, and is mapped nowhere: *chunk_out has the caller's use. */
int glake__grant_chunk(struct glake__device *device, uint64_t n_bytes, struct glake__wait *wait,
                       struct glake__chunk **chunk_out);

/* Count @n_bytes more, or less, as the session's, for listings. */
void glake__grant_count(struct glake_session *session, int64_t n_bytes);

/*
 * Return dead chunks and blocks (NULL is fine) in as few requests as possible, and free them. What the daemon
 * says to that is no error of the caller's.
 */
void glake__grant_return(struct glake_session *session, struct glake__chunk *dead);

/*
 * A mapped, read-only chunk is block @id of the session from here on. If a publication was lost without an
 * answer nobody knows whether it is: then too, under the chunk's own id, which the block would have.
 */
void glake__grant_seal_locked(struct glake_session *session, struct glake__chunk *chunk,
                              uint64_t id);

/* Marks as sealed a chunk that glaked still has as a chunk: nobody could make it writable again. */
void glake__grant_unfinish_locked(struct glake_session *session, struct glake__chunk *chunk);

/*
 * At the end of a session, when the daemon takes chunks back by itself: unmap, drop the range. In
 * a forked child, where the driver must not be called, free only. NULL is fine.
 */
void glake__grant_drop(struct glake_session *session, struct glake__range *range);

#endif
