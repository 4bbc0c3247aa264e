/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backing: private memory of one allocation, or of a slab.
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

#include "libclient/link/wait.h"
#include "libclient/space/allocation.h"
#include "libclient/space/grant.h"
#include "libclient/space/range.h"

/* Live or warm memory: user is its struct glake__backing. */
extern const struct glake__use glake__use_private;

struct glake_session;
struct glake__device;

struct glake__backing {
	struct glake__range *range; /* owned; all chunks */
	glake_ptr ptr;              /* of the range, as is the next: here for speed */
	uint64_t n_bytes;
	struct glake__device *device; /* borrowed from the session */
	bool is_live;                 /* in the books: the program's, or parked, or a slab */
	bool is_held;                 /* (held.h) */

	/* Links of whichever list has it: a warm bin, the live ones of the books, a batch on its way out. */
	struct glake__backing *next;
	struct glake__backing *previous;
	/* warm.c: by age. */
	struct glake__backing *older;
	struct glake__backing *newer;

	uint64_t id;              /* of this life; never used again */
	struct glake__slab *slab; /* owned; NULL: one allocation, which is: */
	struct glake__allocation whole;
	uint64_t ticket; /* of its chunks, which others may have; 0: they have no name */
};

/* A filled range, in no list. Blocks; no lock is held. */
int glake__backing_new(struct glake__device *device, uint64_t n_bytes, struct glake__wait *wait,
                       struct glake__backing **backing_out);
/* A backing of one chunk @id of @n_bytes that glaked has granted, by its fd. On failure it is still granted. */
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

/* At the end of a session: its range by glake__grant_drop(). NULL is no backing. */
void glake__backing_drop(struct glake_session *session, struct glake__backing *backing);

#endif
