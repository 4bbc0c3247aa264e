/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of blocks in host memory, and of private memory that is asleep: the host tier.
 *
 * A copy of a block is found by realm and digest, as a block is, and serves every GPU. The mover makes it and digests what it has
 * written; only if that is the block's digest the copy is THERE. Whoever reads it back has it digested again, on the GPU.
 *
 *            copies_want()         its extent is taken        the digest is right
 *   (none) ----------------> TAKING ------------------> WRITING ------------------> THERE
 *      ^                        | no room                  | failed, damaged           | oldest, and room is wanted
 *      '------------------------'--------------------------'---------------------------'
 *
 * A copy of private memory is its owner's: nobody finds it, it is digested before and behind the copy, and it goes when it is
 * unpinned.
 *
 * copies_want(): blocks are copied one after the other, as soon as their model is complete: they do not change, and when memory of the
 * GPU is wanted it is too late. If host memory is full, the copy goes that was used least lately: of no model, or of one
 * that only host memory has, which is forgotten. copies_order(): somebody waits for the copy, and pays for it. A copy that is
 * pinned stays.
 *
 * The mover has the large chunks mapped in which extents lie. So one that is empty goes only when the mover has
 * forgotten it.
 *
 * The parts: copies_make.c makes them, copies_keep.c has the rest.
 *
 * Owner: the server. Lifetime: copies_init() to copies_deinit(), which no job of the mover is under way at.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_COPIES_H
#define GLAKE_DAEMON_COPIES_H

#include "daemon/memory/extent.h"
#include "daemon/store/mover_link.h"
#include "daemon/store/store.h"

/* No padding: it is hashed and compared as bytes. */
struct copy_key {
	uint64_t realm_id;
	struct digest digest;
};

enum copy_state {
	COPY_TAKING,
	COPY_WRITING,
	COPY_THERE,
	COPY_N_STATES,
};

struct copy {
	UT_hash_handle hh; /* copies.table */
	struct copy_key key;
	struct list link;    /* link: copies.order, while THERE: the longest unused first */
	struct realm *realm; /* owned reference */
	enum copy_state state;
	uint64_t content_bytes;
	uint64_t bytes;
	struct extents *in; /* borrowed; with extent */
	struct extent *extent;
	uint32_t n_models; /* DEMOTED ones, in whose places it stands */
	uint32_t n_pins;   /* sleepers that have it */
	bool is_private;   /* in no table, and in no order; its digest is known when it is THERE */
};

/* Somebody waits for a copy. Embedded by the caller, and zeroed but for the first group. */
struct copy_order {
	struct block *
		block; /* that is to be copied. The store keeps it until the order is gone. NULL: */
	const struct device *device; /* private memory of this device, as the next */
	int fd;                      /* borrowed until it is gone */
	uint64_t bytes;
	struct realm *realm;
	struct tenant *tenant; /* who pays, unless there is a copy already */
	/*
	 * Not called after a cancel. STATUS_OK: @copy is THERE, and pinned for the callee. Otherwise it is NULL, and @error is
	 * one line, valid during the call. May come before copies_order() returns.
	 */
	void (*done)(struct copy_order *order, struct copy *copy, enum status status,
	             const char *error);
	/* The last call, in any case: the mover has nothing of it any more, and the callee owns the order. */
	void (*gone)(struct copy_order *order);

	struct list link; /* link: copies.orders, or that of what makes the copy */
	struct copying *copying;
	bool is_over; /* done was called, or it was cancelled */
};

struct copies {
	struct store *store; /* borrowed, as the next */
	struct mover_link *mover;
	bool is_on;
	struct extents *nodes; /* owned: one for each NUMA node */
	size_t n_nodes;
	struct copy *table;
	struct list order;
	uint64_t bytes;        /* of all that are THERE */
	struct list wanted;    /* of block.wanted: to be copied, oldest first */
	struct list orders;    /* of copy_order.link: those that have not begun, oldest first */
	struct list copying;   /* of copying.link: under way */
	size_t n_ordered;      /* of them: ordered */
	unsigned n_forgetting; /* chunks that are free as soon as the mover has forgotten them */
	bool is_looking;       /* in copies_copy_next(), which need not be called then */
};

/* @nodes stay while it lives. 0 or -ENOMEM. */
int copies_init(struct copies *copies, struct store *store, struct mover_link *mover,
                struct allocator *allocator, struct location *nodes, size_t n_nodes);
/* No new ones, and those under way are given up. */
void copies_close(struct copies *copies);
void copies_deinit(struct copies *copies);

/* Whether blocks are copied from now on. */
void copies_set(struct copies *copies, bool is_on);

/* If nothing else were there. */
uint64_t copies_most_bytes(const struct copies *copies);

/* A copy of @block is made when its turn comes, unless there is one. */
void copies_want(struct copies *copies, struct block *block);

/* A copy that is waited for. */
void copies_order(struct copies *copies, struct copy_order *order);
/* Harmless if it is over. */
void copies_cancel(struct copies *copies, struct copy_order *order);

/* The copy of what @digest stands for, THERE; NULL: there is none. */
struct copy *copies_find(const struct copies *copies, const struct realm *realm,
                         const struct digest *digest);

/* It is used now. */
void copies_use(struct copies *copies, struct copy *copy);

/* It stands in the place of a DEMOTED model, and stays until it is let. */
void copies_hold(struct copies *copies, struct copy *copy);
void copies_let(struct copies *copies, struct copy *copy);

/* It stays, whoever wants room, until it is unpinned as often. One of private memory goes with that. */
void copies_pin(struct copies *copies, struct copy *copy);
void copies_unpin(struct copies *copies, struct copy *copy);

/* Read from it into a fresh chunk with @fd: *job ends with the digest of what came. Returns what mover_copy() does. */
int copies_read(struct copies *copies, struct copy *copy, struct digest_job *job,
                const struct device *device, int fd);

/* Those of @realm (NULL: of all realms) go that no model needs. */
void copies_evict(struct copies *copies, const struct realm *realm);

/*
 * Programs want @bytes at @at: copies there go, the longest unused first, until so much is free, or will be when the mover
 * has forgotten it.
 */
void copies_make_way(struct copies *copies, const struct location *at, uint64_t bytes);

/* What came from it was something else: nobody gets it any more. It goes with its last model. */
void copies_drop(struct copies *copies, struct copy *copy);

#endif
