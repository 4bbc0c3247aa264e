/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backing: private chunks of the daemon, mapped side by side at one address, read-write.
 *
 * All chunks of a backing are BACKING_CHUNK_BYTES but the last, which is the rest: a driver call
 * costs by the handle, not by the byte, so chunks are as large as the request allows, but a row of
 * them keeps a very large request placeable.
 *
 * Owner: whoever made it; the books list it (session.h).
 * Lifetime: glake__backing_new() .. glake__backing_give_back(), or glake__backing_free() when chunks
 * and mapping are somebody else's business by then.
 * Threads: any; the caller sees to it that one backing is not worked on twice at a time.
 */
#ifndef GLAKE_LIBCLIENT_BACKING_H
#define GLAKE_LIBCLIENT_BACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/glake.h"

struct glake_session;
struct glake__device;
struct glake__warm_bin;

#define BACKING_CHUNK_BYTES (1ull << 30)

struct glake__backing {
	glake_ptr ptr;
	uint64_t n_bytes;
	struct glake__device *device; /* borrowed from the session */
	bool is_busy;                 /* placed.c: some thread maps or unmaps it */
	bool is_parked;               /* async.c: freed, and still in use by a stream */

	/* Links of whichever list has it: a warm bin, a placed range, a batch on its way out. */
	struct glake__backing *next;
	struct glake__backing *previous;
	/* warm.c: by age. */
	struct glake__backing *older;
	struct glake__backing *newer;

	uint64_t ticket; /* of its chunks, which others may have; 0: nobody was told of them */
	uint32_t n_chunks;
	uint64_t chunk_ids[];
};

/* No chunk yet: n_chunks is 0. NULL without memory. */
struct glake__backing *glake__backing_new(struct glake__device *device, glake_ptr ptr,
                                          uint64_t n_bytes);
void glake__backing_free(struct glake__backing *backing);

/*
 * Get all chunks and map them over [ptr, ptr + n_bytes), a reserved and empty range. On failure
 * nothing is mapped and no chunk is left. Blocks; no lock is held.
 */
int glake__backing_fill(struct glake_session *session, struct glake__backing *backing);

/* Unmap all chunks; they are still the session's. All are tried; returns the first error. */
int glake__backing_unmap(struct glake_session *session, const struct glake__backing *backing);

/*
 * Return the chunks of unmapped backings, a list by next (NULL is fine), in as few requests as
 * possible, and free the backings. What the daemon says to that is no error of the caller's.
 */
void glake__backing_return(struct glake_session *session, struct glake__backing *list);

/*
 * Unmap the backings of a list, drop their address ranges, which are theirs alone, and return them.
 * What the driver does not unmap keeps its chunks until the session ends. Returns 0, or the first
 * driver error.
 */
int glake__backing_give_back(struct glake_session *session, struct glake__backing *list);

/*
 * At the end of a session, when the daemon takes the chunks back by itself: unmap, with @range also
 * drop the address range, free. In a forked child, where the driver must not be called, free only.
 */
void glake__backing_drop(struct glake_session *session, struct glake__backing *backing, bool range);

#endif
