/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of the daemon in ranges, and a backing: private memory of one allocation, or of a slab.
 *
 * Chunks are BACKING_CHUNK_BYTES but the last of a request, which is the rest: a driver call costs
 * by the handle, not by the byte, so chunks are as large as the request allows, but a row of them
 * keeps a very large request placeable.
 *
 * Owner: the caller of glake__backing_new(); the books list it (session.h).
 * Lifetime: glake__backing_new() .. glake__backing_give_back() or glake__backing_drop(); or
 * glake__backing_free() when its range belongs to a block by then.
 * Threads: any; the caller sees to it that one backing is not worked on twice at a time.
 */
#ifndef GLAKE_LIBCLIENT_BACKING_H
#define GLAKE_LIBCLIENT_BACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/glake_shim.h"
#include "libclient/space/range.h"

struct glake_session;
struct glake__device;

#define BACKING_CHUNK_BYTES (1ull << 30)

/* The next chunk of a request of which @n_left bytes have none yet. */
static inline uint64_t glake__backing_chunk_bytes(uint64_t n_left)
{
	return n_left < BACKING_CHUNK_BYTES ? n_left : BACKING_CHUNK_BYTES;
}

struct glake__backing {
	struct glake__range *range; /* owned; all chunks */
	glake_ptr ptr;              /* of the range, as is the next: here for speed */
	uint64_t n_bytes;
	struct glake__device *device; /* borrowed from the session */
	bool is_live;                 /* in the books: the program's, or parked, or a slab */
	bool is_warm;                 /* in its device's warm memory */
	const void *holder;           /* that holds it (heap.h); NULL: none */

	/* Links of whichever list has it: a warm bin, the live ones of the books, a batch on its way out. */
	struct glake__backing *next;
	struct glake__backing *previous;
	/* warm.c: by age. */
	struct glake__backing *older;
	struct glake__backing *newer;

	uint64_t id;              /* of this life; never used again */
	struct glake__slab *slab; /* owned; NULL: one allocation, which is: */
	struct glake__allocation whole;
	uint64_t ticket;  /* of its chunks, which others may have; 0: they have no name */
	int8_t *unsealed; /* owned: a cause for each page (unsealed.h); NULL: none has one */
};

/*
 * Get chunks of @chunk_bytes, the last may be smaller, for [offset, offset + n_bytes) of @range, a hole, and
 * map them. On failure nothing is mapped there and no chunk is left. Blocks; no lock is held.
 */
int glake__backing_fill(struct glake__device *device, struct glake__range *range, uint64_t offset,
                        uint64_t n_bytes, uint64_t chunk_bytes, struct glake__wait *wait);

/*
 * Return dead chunks and blocks (NULL is fine) in as few requests as possible, and free them. What the daemon
 * says to that is no error of the caller's.
 */
void glake__backing_return(struct glake_session *session, struct glake__chunk *dead);

/*
 * A mapped, read-only chunk is block @id of the session from here on. If a publication was lost without an
 * answer nobody knows whether it is: then too, under the chunk's own id, which the block would have.
 */
void glake__backing_seal_locked(struct glake_session *session, struct glake__chunk *chunk,
                                uint64_t id);

/* The same for a chunk that glaked still has as one: nobody could make it writable again. */
void glake__backing_unfinish_locked(struct glake_session *session, struct glake__chunk *chunk);

/* A filled range, in no list. Blocks; no lock is held. */
int glake__backing_new(struct glake__device *device, uint64_t n_bytes, struct glake__wait *wait,
                       struct glake__backing **backing_out);
/* The same of one chunk @id of @n_bytes that glaked has granted, by its fd. On failure it is still granted. */
int glake__backing_of_chunk(struct glake__device *device, uint64_t id, uint64_t n_bytes, int fd,
                            struct glake__backing **backing_out);
/* NULL is fine. */
void glake__backing_free(struct glake__backing *backing);

/* Is something of it pinned or sealed? Then it is given back when it is freed. */
bool glake__backing_is_tied_locked(const struct glake__backing *backing);

/*
 * Unmap the backings of a list by next (NULL is fine), drop their ranges, and return their chunks.
 * A range that the driver does not unmap keeps its chunks until the session ends. Returns 0, or
 * the first driver error.
 */
int glake__backing_give_back(struct glake_session *session, struct glake__backing *list);

/*
 * At the end of a session, when the daemon takes chunks back by itself: unmap, drop the range. In
 * a forked child, where the driver must not be called, free only. NULL is fine.
 */
void glake__range_drop_all(struct glake_session *session, struct glake__range *range);
void glake__backing_drop(struct glake_session *session, struct glake__backing *backing);

#endif
