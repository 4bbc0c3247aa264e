/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies in host memory of what is on a GPU: the host tier.
 *
 * A copy is found by realm and digest, as a block is, and serves every GPU. That of a block serves whoever has a block of that
 * digest, and is cache when nobody holds it. That of a private chunk serves others once the mover has compared all their bytes
 * with it (copies_same.c). When nobody holds it, it is cache as long as one of those chunks is there: which needs no other copy
 * if its digest is the same when it sleeps again. A private chunk that reads zero has a copy that takes no host memory.
 *
 * The mover makes a copy, digests what it copies, and compares it with what it has written: only if they are equal, and for a
 * block the digest is the block's, the copy is THERE. Whoever reads it back has it digested again, on the GPU.
 *
 *            its turn has come        its extent is taken        the digest is right
 *   (none) -------------------> TAKING ------------------> WRITING ------------------> THERE
 *      ^                           | no room, cancelled       | failed, damaged           | oldest, and room is wanted;
 *      |                           |                          |                           | or the last holder lets it
 *      '---------------------------'--------------------------'---------------------------'
 *
 * Copies are made for two reasons (copies_make.c). In the background, blocks are copied one after the other, as soon as
 * their model is complete: they do not change, and when memory of the GPU is wanted it is too late. On order, somebody
 * waits: orders go first, several at a time, and there need be no background copies (copies_set()).
 *
 * If host memory is full, the copy goes that was used least lately, of those that may go: held by nobody, or by models only
 * that are in host memory alone, which are forgotten then.
 *
 * Who ordered a new copy pays for its extent until nobody holds it but such models: then it is cache, and the built-in
 * tenant pays, as for those made in the background. Another who holds it meanwhile, and who finds a copy that is there,
 * pays nothing: the charge is left as it is.
 *
 * What sleeps has nothing but its copy, so that one is parked for the next glaked (copies_park.c). The others are lost with
 * glaked, as cache.
 *
 * The mover has the large chunks mapped in which extents lie. So one that is empty goes only when the mover has
 * forgotten it.
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

/* The use of a copy that is THERE. */
enum copy_use {
	COPY_USE_NONE,  /* it is not THERE, or zero */
	COPY_USE_SLEEP, /* a program that sleeps, or is about to, has it: it is parked */
	COPY_USE_MODEL, /* models have it that are in host memory alone, and nobody else */
	COPY_USE_CACHE, /* nobody has it */
	COPY_USE_HELD,  /* somebody else: it is being read, or was just made */
	N_COPY_USES,
};

/* The uses of the copies on one node. */
struct copies_use {
	uint64_t bytes[N_COPY_USES]; /* of NONE: 0 */
	uint64_t
		slept_bytes; /* bytes that programs have there, each copy as often as it is parked; zeros, too */
};

struct copy_making;

struct copy {
	UT_hash_handle hh; /* copies.table, while is_found */
	struct copy_key key;
	struct list link; /* link: copies.order, while THERE and it may go: longest unused first */
	struct realm *realm; /* owned reference */
	enum copy_state state;
	enum copy_use use; /* as it is in copies.use */
	bool is_found;
	bool is_of_block; /* blocks share it uncompared; and it stays as cache */
	bool is_zero;     /* THERE, without an extent */
	uint64_t content_bytes;
	uint64_t bytes;     /* of what it is a copy of */
	struct extents *in; /* borrowed; with extent. Zeros count at the first node */
	struct extent *extent;
	struct copy_making *making; /* borrowed: it is on its way */
	struct list parked;         /* link: copies.parked, while n_parked > 0 */
	uint64_t id;                /* in the books; 0: they do not have it */
	uint32_t n_parked;
	uint32_t n_held;
	uint32_t n_offered; /* of these: by DEMOTED models */
	struct list pasts;  /* of copy_past.link */
};

/* A private chunk had this copy when it slept last. Embedded by its owner; all 0 if there was none. */
struct copy_past {
	struct list link;      /* link: copy.pasts, while there is the copy */
	struct copies *copies; /* borrowed */
	struct copy *copy;     /* borrowed; NULL: it has gone */
};

enum copy_order_state {
	COPY_ORDER_NEW,
	COPY_ORDER_QUEUED,  /* link: copies.orders */
	COPY_ORDER_WAITING, /* for a copy on its way; link: its making's */
	COPY_ORDER_OVER,    /* the mover may still have the chunk */
	COPY_ORDER_N_STATES,
};

/*
 * Somebody waits for a copy. Embedded by its owner, who sets the first group and zeroes the rest.
 *
 *       copies_order()            its turn; it is on its way
 *   NEW --------------> QUEUED --------------------------------> WAITING
 *    ^  '--------------. |                                         |
 *    |        refused  v v  it is there, it failed, cancelled      |
 *    '---- gone() ---- OVER <--------------------------------------'
 */
struct copy_order {
	/* The order is for a private chunk, or for a block: one of the two. */
	struct block *block; /* borrowed: the store keeps it until done (store_begin_compare()) */
	struct {
		const struct device *device;
		int fd; /* borrowed until done, or gone */
		uint64_t bytes;
		struct realm *realm;
		struct copy_past past; /* the chunk's copy when it slept last, if any; until gone */
	} chunk;
	struct tenant *tenant; /* borrowed until done: pays for a new copy */
	/*
	 * Comes once, unless the order is cancelled; perhaps before copies_order() returns. STATUS_OK: @copy is THERE, and
	 * held for the callee as by copies_hold(). Otherwise it is NULL, and @error one line: STATUS_OVER_QUOTA,
	 * STATUS_NO_HOST_MEMORY (there is no room, or the chunk is too large), STATUS_NO_FDS, STATUS_MOVER_FAILED,
	 * STATUS_BUSY (the mover has too much to do, or an earlier glaked left the block to its users), STATUS_SHUTTING_DOWN,
	 * STATUS_INTERNAL.
	 */
	void (*done)(struct copy_order *order, struct copy *copy, enum status status,
	             const char *error);
	/*
	 * The last call, always: the order may be freed. The mover has nothing of a private chunk any more; a dead one that
	 * cannot end may have kept it since. A block's is the store's to keep.
	 */
	void (*gone)(struct copy_order *order);

	enum copy_order_state state;
	struct list link;
	struct copy_making *making; /* borrowed, while WAITING */
};

struct copies {
	struct store *store; /* borrowed, as the next */
	struct mover_link *mover;
	bool is_on;
	bool is_closing;
	struct extents *nodes; /* owned: one for each NUMA node */
	size_t n_nodes;
	struct copies_use *use; /* owned: by node */
	struct copy *table;
	struct list order;
	struct list parked;         /* of copy.parked: what the next glaked is to have */
	uint64_t bytes;             /* of host memory, in all that are THERE */
	struct list wanted;         /* of block.wanted: to be copied, oldest first */
	struct list orders;         /* of copy_order.link: before all that is wanted */
	struct list looked;         /* of copy_making.link: before all orders */
	struct copy_making *taking; /* the making that looks for room, one at a time; or NULL */
	struct list writing;        /* of copy_making.link: the mover has them, or had */
	size_t n_writing;           /* of these and of looked */
	bool expects_same; /* the last private chunk needed no copy of its own: the next is looked at first */
	bool expects_new; /* the last one that had a copy has changed: the next is not looked at for that */
	unsigned n_forgetting; /* chunks that are free as soon as the mover has forgotten them */
	bool is_looking;       /* in make_next(), which need not be called then */
};

/* @nodes stay while it lives. 0 or -ENOMEM. */
int copies_init(struct copies *copies, struct store *store, struct mover_link *mover,
                struct allocator *allocator, struct location *nodes, size_t n_nodes);
/* No new ones, and those under way are given up, orders as well. */
void copies_close(struct copies *copies);
void copies_deinit(struct copies *copies);

/* Whether blocks are copied from now on. */
void copies_set(struct copies *copies, bool is_on);

/* Keep @bytes of host memory free for copies, by node: made ahead, and given back when programs want it. */
void copies_keep_ready(struct copies *copies, const struct config_sizes *bytes);
/* To be called once a second. */
void copies_tick(struct copies *copies);

/* The bytes that copies could have if nothing else were there. */
uint64_t copies_most_bytes(const struct copies *copies);

/* A copy of @block is made when its turn comes, unless there is one. */
void copies_want(struct copies *copies, struct block *block);

void copies_order(struct copies *copies, struct copy_order *order);
/* done() is not called; gone() follows, perhaps at once. Harmless if done() was called and gone() was not. */
void copies_cancel(struct copies *copies, struct copy_order *order);

/* The copy of the block for which @digest stands, THERE; NULL: there is none. */
struct copy *copies_find(const struct copies *copies, const struct realm *realm,
                         const struct digest *digest);

/* @copy stays until it is let. */
void copies_hold(struct copies *copies, struct copy *copy);
void copies_let(struct copies *copies, struct copy *copy);

/*
 * Remember @copy for a private chunk that sleeps no more; to be called before the copy is let. The copy may go at any time;
 * copies_forget() says that the chunk goes, or has another one. It is harmless if nothing was remembered.
 */
void copies_remember(struct copies *copies, struct copy *copy, struct copy_past *past);
void copies_forget(struct copy_past *past);

/* A holder of @copy, a model that is DEMOTED now, is forgotten for room if that is wanted (store_forget_demoted()). */
void copies_offer(struct copies *copies, struct copy *copy);
/* @copy is not offered any more. */
void copies_keep(struct copies *copies, struct copy *copy);
/* The holder that offered @copy lets it. That is no use of the copy. */
void copies_let_offered(struct copies *copies, struct copy *copy);

/*
 * Park @copy, THERE and held, for the next glaked until as many calls of copies_unpark(). It is on record when this returns,
 * and the next glaked has it when parking.h's number copies_unparked() has passed. Returns 0, also if nobody keeps fds; or
 * COPIES_E_NOT_PARKED: the fd store is full, or @user, who pays, has its share of it.
 */
enum { COPIES_E_NOT_PARKED = 1 };
int copies_park(struct copies *copies, struct copy *copy, struct user *user);
void copies_unpark(struct copies *copies, struct copy *copy);
/* The number of the order that parks @copy; 0: it need not be waited for. */
uint64_t copies_unparked(const struct copy *copy);
/* The watch of the store has forgotten everything: it is told of what is parked. */
void copies_note_all(const struct copies *copies);
/* The name in the fd store of the large chunk with that id. */
#define COPIES_PARKED_BYTES 24u
void copies_parked_name(uint64_t id, char name[COPIES_PARKED_BYTES]);

/*
 * Read @copy into a fresh chunk with @fd, of copy->bytes: *job ends with the digest of the bytes that came, which has to be
 * that of copy->key. Returns what mover_copy() does.
 */
int copies_read(struct copies *copies, struct copy *copy, struct digest_job *job,
                const struct device *device, int fd);

/* Evict the copies of @realm (NULL: of all realms) that nobody holds. */
void copies_evict(struct copies *copies, const struct realm *realm);

/*
 * Programs want @bytes at @at: chunks that are kept ready there go, then copies, the longest unused first, until that much is
 * free, or will be when the mover has forgotten it.
 */
void copies_make_way(struct copies *copies, const struct location *at, uint64_t bytes);

/* The bytes that were read from @copy were others: nobody gets it any more. It goes with its last holder. */
void copies_drop(struct copies *copies, struct copy *copy);

/* ---- from an earlier glaked ---- */

/* The extents at a node; NULL: there is no such node. */
struct extents *copies_at(struct copies *copies, const struct location *at);

struct copy_adopted {
	struct realm *realm;
	struct tenant *tenant; /* pays, whatever its limit is */
	struct digest digest;
	uint64_t content_bytes;
	uint64_t bytes;
	bool is_found;
	bool is_of_block;
	bool is_zero; /* the next are not set then */
	struct extents *in;
	struct extent_chunk *chunk;
	uint64_t offset;
};

/*
 * Adopt a copy that is THERE, held and parked until copies_settle_adopted(): then a copy that nobody else holds is cache if it
 * is found, or goes. NULL: it cannot be, or no memory.
 */
struct copy *copies_adopt(struct copies *copies, uint64_t id, const struct copy_adopted *as);
void copies_settle_adopted(struct copies *copies);

#endif
