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
#include "libclient/seal/look.h"
#include "libclient/seal/spans.h"

/*
 *            something else is there, or another part has the chunk
 *   PLANNED -------------------------------------------------------> GONE
 *    |   ^ refused, and writable again
 *    v   |       glaked has it as a block
 *   FLIPPED ------------------------------> PUBLISHED
 */
enum glake__part_state {
	GLAKE__PART_PLANNED,
	GLAKE__PART_GONE,
	GLAKE__PART_FLIPPED, /* read-only */
	GLAKE__PART_PUBLISHED,
};

/* Pages that are one block when all is done: of one piece, once they are separated. */
struct glake__seal_part {
	glake_ptr ptr;
	uint64_t n_bytes;
	const struct glake__held *held; /* borrowed: the allocation */
	struct glake__device *device;   /* whose memory it is */
	uint64_t content_bytes;         /* zeros follow them; 0: all of it is content */
	struct glake__hold hold; /* from flipping to collapsing; range is NULL: there is none */
	struct glake__publication *publication; /* borrowed; NULL: it is not to be published */
	struct glake__block_answer answer;      /* once it is published */
	enum glake__pin pin;                    /* the reason why it is not held */
	bool is_again; /* it is a block already, and only to be collapsed */
	enum glake__part_state state;
};

struct glake__seal {
	struct glake__spans spans;
	struct glake__seal_part *parts; /* owned; by address */
	size_t n_parts;
	size_t capacity;
	uint64_t last; /* the number of the last mapping when it was planned (look.h) */
	struct glake_sealed sum;
	bool is_alone;   /* nobody has asked for it */
	bool is_stopped; /* what is not sealed yet stays private */
	int error;       /* the first */
	char *text;      /* owned: its text */
};

/* Keep @r if it is the first error, with its text; the rest goes on. */
void glake__seal_note(struct glake__seal *seal, int r);

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

/*
 * The same with the only part, of memory that is out of its owner's books. -EBUSY: another thread works on it.
 * After an error it is private again, or, marked as sealed, a block for all that is known. If it is published, it is a
 * block, whatever the error. If nothing is mapped there then, the bytes are lost.
 */
int glake__seal_publish_one(struct glake__seal *seal);

#endif
