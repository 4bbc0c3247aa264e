/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of sealing (seal.c), what they work on, and what several of them need.
 *
 * Owner: glake__seal_still(). Lifetime: its call. Threads: one. Blocks; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_SEAL_STEPS_H
#define GLAKE_LIBCLIENT_SEAL_STEPS_H

#include <stdbool.h>

#include "libclient/link/rpc.h"
#include "libclient/heap/heap.h"
#include "libclient/space/range.h"

struct glake__seal_span {
	glake_ptr ptr;
	uint64_t n_bytes;
	struct glake__held held;
	uint64_t begin; /* in the backing */
	uint64_t end;
};

/* Pages of one piece, one block when all is done. */
struct glake__seal_part {
	struct glake__backing *backing;
	uint64_t offset;
	uint64_t n_bytes;
	struct glake__hold hold; /* from flipping to collapsing; range is NULL: there is none */
	struct glake__publication *publication; /* borrowed; NULL: it is not to be published */
	struct glake__block_answer answer;      /* once it is published */
	enum glake__pin pin;                    /* the reason why it is not held */
	bool is_again; /* it is a block already, and only to be collapsed */
	bool is_flipped;
	bool is_published;
};

struct glake__seal {
	struct glake__seal_span *spans; /* owned; by address */
	size_t n_spans;
	struct glake__seal_part *parts; /* owned; by address */
	size_t n_parts;
	size_t capacity;
	struct glake_sealed sum;
	bool is_stopped; /* what is not sealed yet stays private */
	int error;       /* the first */
	char *text;      /* owned: its text */
};

/* The facts of a piece, looked up once: only the holder changes it. */
struct glake__look {
	uint64_t offset;
	uint64_t n_bytes;
	enum glake__page_kind kind;
	bool is_unfinished;
	enum glake__pin pin;
};
struct glake__look glake__look_at(const struct glake__backing *backing, uint64_t offset);

/* Keep @r if it is the first error, with its text; the rest goes on. */
void glake__seal_note(struct glake__seal *seal, int r);

/*
 * Hold the allocation that @span lies in (heap.h). Whether it returns 0 or an error, the text set: if there is a
 * backing, it is held.
 */
int glake__seal_hold(const void *holder, struct glake__seal_span *span);

/* For listings (unsealed.h): parts are blocks now, or private for good. */
void glake__seal_note_causes(const struct glake__seal_part *parts, size_t n);

/* ---- the steps, in their order ---------------------------------------------------------------- */

/* Make parts of the private pages that the spans, which are held, cover. Returns 0 or -ENOMEM. */
int glake__seal_plan(struct glake__seal *seal);

/* Each part becomes one piece. Parts that cannot are dropped. */
void glake__seal_separate(struct glake__seal *seal);

/*
 * Parts become blocks, and equal ones are mapped in their place. Parts that are refused, and all that follow,
 * stay private. Returns 0 or -ENOMEM; other errors are noted.
 */
int glake__seal_publish(struct glake__seal *seal);

#endif
