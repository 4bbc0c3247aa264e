/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants chunks at several locations: all of them, or none.
 *
 * The parts are granted one after the other, in the order of slots, and each is kept while a later one waits. All
 * requests have this order, so of those that wait for each other one waits at the highest slot, where nobody who waits
 * has anything that he does not give up in time: there is no circle.
 *
 * Nothing is taken back for a part before it is known that each could be granted alone.
 *
 * Owner: embedded by its owner, to whom it belongs again with the callback.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_ALLOC_SEVERAL_H
#define GLAKE_DAEMON_ALLOC_SEVERAL_H

#include "daemon/memory/alloc.h"

#define ALLOC_MAX_PARTS 16u
/* The most chunks of one part. */
#define ALLOC_MAX_CHUNKS 253u

/* @n_chunks of @chunk_bytes, but the last of @last_bytes. */
struct alloc_part {
	struct location *at; /* another one in each part */
	uint64_t chunk_bytes;
	uint64_t last_bytes;
	uint32_t n_chunks; /* 1 .. ALLOC_MAX_CHUNKS */
};

/*
 * Like alloc_done_fn: chunks come in the order of the parts as given. @at: whose part was refused. The callee may free the
 * struct alloc_several.
 */
typedef void (*alloc_several_fn)(void *user, enum status status, const struct location *at,
                                 struct chunk *chunks, size_t n_chunks);

struct alloc_several {
	/* The owner sets these. */
	struct allocator *allocator;
	struct tenant *tenant;
	uid_t uid;
	enum chunk_use use;
	uint64_t *waited_ms;      /* as in alloc_wanted */
	const bool *is_held_back; /* as in alloc_wanted */
	bool is_spare;            /* as in alloc_wanted, of each part */
	bool no_wait;             /* the same */
	bool may_unseal;          /* as in alloc_wanted, of the only part */
	struct refusal refusal;   /* zeroed; set before @done if a bound refuses it */
	struct promise *(*promise_at)(void *user, const struct location *at); /* NULL: of none */
	alloc_several_fn done;
	void *user;
	size_t n_parts;
	struct alloc_part parts[ALLOC_MAX_PARTS];

	size_t n_done;                  /* parts */
	uint8_t order[ALLOC_MAX_PARTS]; /* of the parts: indexes, by slot */
	struct alloc *alloc;            /* under way */
	struct chunk *chunks;           /* owned; of all parts, if there are several */
	size_t n_chunks;
};

uint64_t alloc_part_bytes(const struct alloc_part *part);

/* The owner has set his half, and zeroed the rest. @done follows exactly once, perhaps before this returns. */
void alloc_several_start(struct alloc_several *several);

/* @done will not be called; what was granted already is released. */
void alloc_several_cancel(struct alloc_several *several);

#endif
