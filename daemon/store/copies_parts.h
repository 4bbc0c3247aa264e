/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of the host tier share these declarations:
 *
 *   copies_keep.c  who holds a copy, who finds it, and what goes for room
 *   copies_park.c  what the next glaked is to have
 *   copies_make.c  making copies: in the background, and on order
 *   copies_same.c  whether there is a copy of the same bytes already
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_COPIES_PARTS_H
#define GLAKE_DAEMON_COPIES_PARTS_H

#include "daemon/store/copies.h"

/* ---- copies_keep.c ---------------------------------------------------------------------------- */

struct copy_wanted {
	struct realm *realm;
	const struct digest *digest; /* NULL: not known yet */
	uint64_t content_bytes;
	uint64_t bytes;
	bool is_found; /* has a digest, and no copy is found by it */
	bool is_of_block;
};

/* TAKING. NULL: no memory. */
struct copy *copies_new(struct copies *copies, const struct copy_wanted *wanted);
/* Nobody holds it. */
void copies_free(struct copies *copies, struct copy *copy);
/* Find a copy, also one that is on its way. NULL: there is none. */
struct copy *copies_find_any(const struct copies *copies, const struct realm *realm,
                             const struct digest *digest);
/* Nobody finds it any more. */
void copies_hide(struct copies *copies, struct copy *copy);
/* All of it was written, or it reads zero: it is THERE, as @digest says, and held once. */
void copies_written(struct copies *copies, struct copy *copy, const struct digest *digest);
/* @copy is found by its digest from now on, unless another one is. */
void copies_show(struct copies *copies, struct copy *copy);
/* The bytes of @copy are zero: it has no extent any more. */
void copies_empty(struct copies *copies, struct copy *copy);
void copies_set_state(struct copy *copy, enum copy_state state);
/* The holders of @copy have changed, or it is parked no more or for the first time: count it for what it is there for. */
void copies_count_use(struct copies *copies, struct copy *copy);
struct copies_use *copies_use_at(const struct copies *copies, const struct copy *copy);

/*
 * A chunk that is kept ready goes on one of @nodes (bits: 1 << its index); or the copy that nobody has used for longest, of
 * those that may, and a model that only host memory has with it. False: none is left.
 */
bool copies_make_room(struct copies *copies, uint64_t nodes);
/*
 * Somebody waits for a copy of @bytes at @node. If it has no extent of that size, copies there of chunks that are awake go, the
 * longest unused first: to copy them once more takes less than to make host memory.
 */
void copies_spare_making(struct copies *copies, struct extents *node, uint64_t bytes);

/* The most that there could be room for on a node, if all goes that may. */
uint64_t copies_room_bytes(const struct copies *copies, size_t i_node);

/* @fd: of its large chunk. */
struct mover_host copies_place(const struct copy *copy, int fd);

/* ---- copies_park.c ---------------------------------------------------------------------------- */

/* @copy has changed. */
void copies_note(const struct copies *copies, const struct copy *copy);

/* ---- copies_make.c ---------------------------------------------------------------------------- */

/*
 * A private chunk is TAKING and WRITING first, or LOOKING: if that is likely to do, or if there is no room. In both ways its
 * digest becomes known, and it MEETS the copy with that digest if there is one. Once it is clear that none has its bytes, it
 * keeps what was written, or is QUEUED. A block is TAKING and WRITING, but if there is a private chunk's copy with its digest:
 * it MEETS that first.
 *
 *             it is like the last one
 *   (none) -----------------------------> LOOKING -----.   a copy is on its way  .--> BEHIND ---.
 *      |                                   ^           |-----------------------> | MEETS        |
 *      |                           no room |           |                         '--> COMPARING-'
 *      '-----------> TAKING ---------------'           |                                |    |
 *                    ^    '-------------> WRITING -----'         it differs, or none is |    | it is equal
 *                    |                                                                  v    v
 *                    '---------------------------------------------------------- QUEUED      (end)
 */
enum making_state {
	MAKING_TAKING,    /* it looks for an extent, one at a time: copies.taking */
	MAKING_SHORT,     /* the same, until chunks are forgotten that take up the room */
	MAKING_WRITING,   /* the mover copies it */
	MAKING_LOOKING,   /* the mover digests it */
	MAKING_BEHIND,    /* the copy with its digest is on its way */
	MAKING_COMPARING, /* the mover compares it with the copy `same` */
	MAKING_QUEUED,    /* for its turn of TAKING; link: copies.looked */
};

/* A copy on its way. If a dead mover has it and cannot end, it outlives its place in copies. */
struct copy_making {
	struct digest_job job;      /* LOOKING, WRITING */
	struct compare_job compare; /* COMPARING */
	struct list link;           /* link: copies.writing, or copies.looked */
	struct copies *copies;
	enum making_state state;
	struct copy *copy;
	struct copy *same;   /* COMPARING: held */
	struct copy *past;   /* held: what the private chunk had when it slept last; or NULL */
	struct block *block; /* copied, and kept by the store (store_begin_compare()); or NULL: */
	struct copy_order *owner; /* of the private chunk, until it is gone */
	const struct device *device;
	int fd;
	bool is_ordered;
	bool has_digest; /* the copy's key: else it is as what was written */
	bool has_looked;
	bool is_written; /* only the digest is new */
	struct digest
		digest; /* of the private chunk, from LOOKING or WRITING on; or of the block */
	struct tenant *payer; /* while nobody has the copy: of an order that waits, or the cache */
	struct list waiting;  /* of copy_order.link */

	struct extents_request *request; /* while TAKING */
	size_t i_node;                   /* the node that was asked last */
	uint64_t full_nodes;             /* nodes that have no room, but would have without cache */
	size_t i_refused;                /* the node of the next */
	enum status refusal;             /* STATUS_OK: it was not refused */
};

/* @making is in copies.writing, and looks for no room. */
void making_hand_over(struct copy_making *making, enum making_state state);
/* The making's own copy is good. */
void making_succeed(struct copy_making *making);
/* The orders that wait get @copy, of which one hold is taken over. */
void making_end(struct copy_making *making, struct copy *copy);
void making_fail(struct copy_making *making, enum status status, const char *error);
/* No copy has its bytes: it needs one of its own. */
void making_is_new(struct copy_making *making);
/* A job of the mover's has failed; it may have what is copied still if the job has a number. */
void making_lose(struct copy_making *making, const struct mover_job *job, enum status status,
                 const char *error);
/* Nobody wants @making any more, and the mover has nothing of it. */
void making_gone(struct copy_making *making);

/* A chunk was forgotten, or will not be soon. */
void copies_look_for_room(struct copies *copies);
void copies_close_makings(struct copies *copies);

/* ---- copies_same.c ---------------------------------------------------------------------------- */

/* The bytes of a private chunk are zero. */
void making_is_zero(struct copy_making *making);
/* Digest a private chunk: perhaps it need not be copied. */
void making_look(struct copy_making *making);
/* The digest is known: perhaps a copy has the same bytes. */
void making_meet(struct copy_making *making);
/* Makings that were BEHIND go on, if the copy that they wait for has ended. */
void makings_meet(struct copies *copies);

#endif
