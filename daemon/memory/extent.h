/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory for copies of what is elsewhere: large chunks, and extents of them.
 *
 * Only glake-mover maps such a chunk. So extents of several realms may share one, which keeps the fds few: 200 GiB of
 * chunks of 2 MiB would be 100,000. What was in an extent is not erased when it goes, so
 *
 *     nobody reads from an extent before all of it was written since it was taken:
 *
 *       FREE ---- extents_take() ---> FRESH ---- extent_written() ---> WRITTEN
 *        ^                              |                                 |
 *        '--------- extent_release() ---+---------------------------------'
 *
 * extent_source() answers of WRITTEN ones only.
 *
 * In each large chunk the extents and the free spans lie side by side, and no two free spans are neighbours. An extent is the
 * first span that is large enough, by the age of the chunks and the offset. One that is larger than a large chunk has a chunk
 * of its own, as large as it is, which nothing else is put in and which goes with it. A chunk without extents is given back; if
 * the mover may have it mapped, when whoever set on_empty says so, unless it has extents again.
 *
 * Making a large chunk takes long. So ready_bytes are kept, used or free: chunks are made one after the other while nothing
 * else is asked of the worker, and stay when they become empty. Who wants the room gets it by extents_give_ready(). Beyond that
 * one chunk is made whenever an extent had to go for the lack of one (extents_want_more()), as long as there is room.
 *
 * Charges: an extent's bytes are charged to who asked. The chunk's charge, with its fd, is the cache's and has the bytes
 * that are free. So the sum is what exists; while a chunk is being made for extents, they are charged already.
 *
 * Owner: one struct extents per location, of the server. An extent belongs to who took it.
 * Threads: loop thread; chunks are made on the location's worker.
 */
#ifndef GLAKE_DAEMON_EXTENT_H
#define GLAKE_DAEMON_EXTENT_H

#include "daemon/memory/alloc.h"

/* The size of a large chunk, if there is as much room. */
#define EXTENT_LARGE_BYTES (1ull << 30)

enum extent_state {
	EXTENT_FREE,
	EXTENT_FRESH,
	EXTENT_WRITTEN,
	N_EXTENT_STATES,
};

struct extent_chunk;

/* How the next glaked gets a large chunk; the owner of its copies sees to that (store/copies_park.c). */
struct extent_parking {
	uint64_t id;       /* in the books, and of its name in the fd store; 0: it is not parked */
	unsigned n_copies; /* in it, for which it is */
	uint64_t number;   /* of the order (parking.h) */
	struct user *user; /* owned reference; who needed it first. NULL: glaked itself */
	struct user_charge place; /* the user's */
};

struct extent {
	struct list place; /* link: extent_chunk.spans, by offset */
	struct extent_chunk *in;
	uint64_t offset;
	uint64_t bytes;
	enum extent_state state;
	struct charge charge;
};

struct extents {
	struct allocator *allocator; /* borrowed, as the next two */
	struct location *at;
	struct tenant *cache; /* pays for what is free */
	uint64_t large_bytes; /* EXTENT_LARGE_BYTES, but in tests */
	struct list chunks;   /* of extent_chunk.link, by age */
	uint64_t used_bytes;  /* of extents */
	uint64_t last_number;
	uint64_t ready_bytes; /* set by extents_want_ready() */
	struct alloc *making; /* a chunk that is made ahead; or NULL */
	uint64_t waited_ms;   /* for that */
	bool wants_more;      /* one more is to be made, when that holds nobody up */
	bool is_paused;       /* somebody wanted the room: nothing is made until the next tick */
	/* Chunk @number is empty: extents_forgotten() is to follow, perhaps at once. NULL: it goes. */
	void (*on_empty)(void *user, struct extents *extents, uint64_t number);
	void *user;
};

void extents_init(struct extents *extents, struct allocator *allocator, struct location *at,
                  struct tenant *cache);
/* All extents are released, no request is under way, and no memory is wanted ready. */
void extents_deinit(struct extents *extents);

/*
 * STATUS_OK: @extent is the callee's, FRESH, and has as many bytes as were asked for. Otherwise it is NULL: statuses of
 * alloc_done_fn.
 */
typedef void (*extents_done_fn)(void *user, enum status status, struct extent *extent);

struct extents_request;

/*
 * Take @bytes, a multiple of 2 MiB, at the cost of @tenant. @done follows once, perhaps before this
 * returns. *request_out is for extents_cancel(), and becomes NULL before @done.
 */
void extents_take(struct extents *extents, struct tenant *tenant, uint64_t bytes,
                  extents_done_fn done, void *user, struct extents_request **request_out);

/* Whether there is a free span of @bytes, so that nothing has to be made. */
bool extents_have(const struct extents *extents, uint64_t bytes);

/* @done will not be called. */
void extents_cancel(struct extents_request *request);

/* Keep @bytes free from now on. Chunks beyond that go. Nothing is made before extents_tick(). */
void extents_want_ready(struct extents *extents, uint64_t bytes);
/* An extent went to make place for another: make one more large chunk if there is room. */
void extents_want_more(struct extents *extents);
/* Make the next chunk. To be called once a second, and when a chunk has come. */
void extents_tick(struct extents *extents);
/* A chunk that is kept ready goes, as one that is empty. False: there is none. */
bool extents_give_ready(struct extents *extents);

/* The mover has chunk @number not mapped any more. */
void extents_forgotten(struct extents *extents, uint64_t number);

/* Nobody uses it any more. */
void extent_release(struct extents *extents, struct extent *extent);

/* The mover has written all of it. */
void extent_written(struct extent *extent);

/* The large chunk in which it lies: a number that no other one of the node ever has, and its bytes. */
uint64_t extent_chunk_number(const struct extent *extent);
uint64_t extent_chunk_bytes(const struct extent *extent);

/* The large chunk of @extent, and its parking. */
struct extent_parking *extent_chunk_parking(struct extent *extent);
const struct chunk *extent_chunk(const struct extent *extent);
/* The chunk is not parked any more, when the order @number has passed. */
void extent_chunk_unparked(struct extent *extent, uint64_t number);

/* Where to write: the chunk's fd, borrowed; the place in it is extent.offset. */
int extent_target(const struct extent *extent);
/* Where to read; -1: not all of it was written. */
int extent_source(const struct extent *extent);

/* ---- from an earlier glaked ------------------------------------------------------------------- */

/* A large chunk, taken over, with the cache's charge. NULL: no memory; the caller keeps it. */
struct extent_chunk *extents_adopt_chunk(struct extents *extents, struct chunk *chunk,
                                         const struct extent_parking *parking);
/* A part of it, WRITTEN. NULL: something else lies there, or no memory. */
struct extent *extents_adopt(struct extents *extents, struct extent_chunk *in, uint64_t offset,
                             uint64_t bytes, struct tenant *tenant);
bool extents_is_empty(const struct extent_chunk *in);
/* An empty one goes, when the order @number has passed. */
void extents_drop_adopted(struct extent_chunk *in, uint64_t number);
const struct location *extents_location(const struct extent_chunk *in);

#endif
