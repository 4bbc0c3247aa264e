/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A holder: a process that has something of glaked, its identity, and everything that it has.
 *
 *                                  .--- connection lost, process lives --.
 *                                  |                                     v
 *   NEW ---- Hello accepted ----> ATTACHED <---- Hello with its key ---- DETACHED
 *    |                             |                                     |
 *    |    Goodbye, bad bytes,      |                                     |  the process ends,
 *    |    the process ends         |                                     |  the daemon drains
 *    '-----------------------------'--> ENDED <--------------------------'
 *                                        '-> (freed with the last reference)
 *
 * A detached holder keeps what it has, because its process still has it mapped; a pidfd reports the
 * process's end. holder_end() is the only end: it gives back every chunk, model and block, so all
 * charges are refunded, whatever the process did. If the process has ended, what it made a will for is kept (kept_step.h).
 *
 * One table has everything, by ids that are unique on the node and never used again. Nothing points
 * from here to a connection: a session (session.h) points to its holder.
 *
 * Owner: the list of holders until it has ended, and each of its sessions.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_HOLDER_H
#define GLAKE_DAEMON_HOLDER_H

#include <stdbool.h>

#include "daemon/base/log_limits.h"
#include "daemon/base/hash.h"
#include "daemon/base/log.h"
#include "daemon/holders/mistakes.h"
#include "daemon/holders/orders.h"
#include "daemon/holders/refused.h"
#include "daemon/memory/chunk.h"
#include "daemon/memory/pressure.h"
#include "daemon/net/peer.h"
#include "daemon/net/process_watch.h"
#include "daemon/store/admit.h"
#include "daemon/store/realm.h"
#include "daemon/store/store.h"
#include "proto/limits.h"

enum holder_state {
	HOLDER_NEW,
	HOLDER_ATTACHED,
	HOLDER_DETACHED,
	HOLDER_ENDED,
	N_HOLDER_STATES,
};

/* Blocks of all models that it has open, again and again: they are walked through. 8 TiB of addresses. */
#define HOLDER_MAX_PLACES (4u * 1024 * 1024)
/* Weights that it has begun to publish. */
#define HOLDER_MAX_DRAFTS 64u
/*
 * The charge for an open model or block: glaked's memory for it, and for its record in the books. Its device memory may cost
 * its holder nothing, and it can be opened again and again.
 */
#define HOLDER_RECORD_BYTES 256u

enum held_kind {
	HELD_CHUNK,
	HELD_MODEL,
	HELD_BLOCK,
	HELD_DRAFT,
	HELD_READ, /* a chunk of another holder, for reading */
	HELD_SLEPT, /* a chunk, block or model of which only host memory has the content (sleeper.h) */
	N_HELD_KINDS,
};

/* One thing that is held. */
struct held {
	UT_hash_handle hh; /* holder.held, by id */
	uint64_t id;
	enum held_kind kind;
	uint64_t request;    /* the request that brought the thing */
	uint64_t ticket;     /* permits others to open the chunk; 0: nobody else may */
	struct admit *admit; /* has the chunk, which is being published; NULL: the chunk is here */
	bool is_parked;      /* the chunk is, since others may open it */
	struct user_charge place; /* for that */
	struct will *will;        /* the chunk's (will.h); NULL: none */
	struct held *readers;     /* the first that reads the chunk; NULL: nobody does */
	struct held *next_reader; /* link of readers, in the order of asking */
	struct held
		*source; /* of a HELD_READ: the chunk, borrowed from another holder, as the next */
	struct holder *owner; /* who has this. Of a HELD_READ, and of a chunk that is read */
	uint64_t
		origin; /* of a chunk that was read when glaked ended, and nobody else has: its id then; 0: none such */
	bool was_chunk;  /* a published block, under its chunk's id */
	bool was_known;  /* a published block that the store had already */
	bool was_alone;  /* a published block that was sealed without being asked */
	bool is_counted; /* among its block's n_alone */
	uint64_t
		copy; /* of a block: the chunk that the reserve gave for its private copy; 0: none */
	/* Owned: the chunk that the block is to replace, while the process has that mapped; or NULL. */
	struct chunk *own;
	struct charge record;   /* for glaked's memory; none for a chunk that is not published */
	struct bed *bed;        /* borrowed: it is being copied; or NULL. And when it was: */
	struct slept *slept;    /* owned by the holder's sleeper, or NULL */
	struct copy_past *past; /* owned: of a chunk that slept and is awake; or NULL */
	union {
		struct chunk chunk;  /* private; empty of a HELD_SLEPT */
		struct model *model; /* held in the store; or a draft */
		struct block *block; /* used in the store */
	};
};

/*
 * A process's memory of the driver itself on a device, as the process reports it; bounded, never
 * trusted.
 */
struct driver_memory {
	uint64_t managed_bytes; /* as requested */
	uint64_t array_bytes;
	uint64_t graph_bytes;
	uint64_t other_bytes;
};

/* X(name): as in a PoolReport. */
/* clang-format off */
#define HOLDER_POOL_LIST(X) \
	X(live_bytes) X(peak_live_bytes) X(reserved_bytes) X(peak_reserved_bytes) \
	X(n_allocs) X(n_stitches) X(stitched_bytes) X(n_reuses) \
	X(n_grows) X(n_mapped) X(n_unmapped) X(n_kept) \
	X(kept_bytes) X(free_bytes)
/* clang-format on */

/*
 * The holder's memory in stream order at a location, as it reports it; the bytes that there are now, bounded. All 0: it has
 * none.
 */
struct holder_pool {
#define HOLDER_POOL_MEMBER(name) uint64_t name;
	HOLDER_POOL_LIST(HOLDER_POOL_MEMBER)
#undef HOLDER_POOL_MEMBER
};

/* The holder's memory at a location. All but the first is of GPUs only. */
struct holder_location {
	uint64_t reserved_bytes; /* of chunks */
	uint64_t shared_bytes;   /* of models and blocks */
	double part_bytes;       /* of them, each divided by its mappings: as last found */
	double part_so_far;      /* part_bytes, while holder_look_at_sharing() adds it up */
	struct driver_memory driver;
	struct holder_pool pool;
	struct promise *promise; /* entered, with the other sessions of the process; or NULL */
	uint64_t reusable_bytes; /* of reserved_bytes then, by the last report */
};

/* The memory that the holder has in common with others, on all devices. */
struct holder_sharing {
	uint64_t sealed_bytes;        /* blocks that were its chunks */
	uint64_t sealed_common_bytes; /* of them: mapped more than once */
	double part_bytes;            /* of all its blocks, each divided by its mappings */
};

/* A walk over the holder's things that adds holder_sharing up in steps. */
struct sharing_walk {
	struct holder_sharing so_far;
	struct held *at; /* the next thing; NULL: at the beginning */
	size_t place;    /* of its model */
};

/* Memory that the holder seals without being asked (Alone of glake.proto). */
struct holder_alone {
	bool is_told;
	uint64_t filling_bytes;
	uint64_t quiet_bytes;
	uint64_t sealed_bytes;
	uint64_t refused_bytes;
	uint64_t n_refused_launches;
	char why[GLAKE_MAX_ALONE_WHY_BYTES];
};

/* The process's report about itself. */
struct holder_usage {
	uint64_t live_bytes;
	uint64_t warm_bytes;
	uint64_t peak_bytes;
	uint64_t n_owned;
	uint64_t n_passed;
	uint64_t unsealed_bytes[GLAKE_N_UNSEALED];
	uint64_t n_seals;
	uint64_t seal_ns;
	uint64_t held_ns;
	struct holder_alone alone;
	uint64_t idle_since_ms;  /* by the loop's clock; 0: it works, or nobody knows */
	bool knows_reusable;     /* the program reports that, by location */
	uint64_t reserved_bytes; /* glaked's own number of then: of all devices */
};

/* The hindrance of a wake, the worst last (rpc/wake_again.h). */
enum wake_hindrance {
	WAKE_HINDRANCE_NONE,
	WAKE_HINDRANCE_ROOM,
	WAKE_HINDRANCE_LIMIT,
};

/* How it has slept. */
struct holder_sleep {
	uint64_t n_sleeps;
	uint64_t slept_ns;         /* the last sleep took glaked, */
	uint64_t woke_ns;          /* and the last wake, waiting aside, */
	uint64_t woke_waited_ms;   /* the length of that wait */
	uint64_t awake_since_ms;   /* the last wake; 0: it never slept */
	uint64_t refused_since_ms; /* no room since then to wake; 0: not refused yet */
	bool is_told;              /* of that, an operator */
	bool wants_room; /* its process asked for that wake by itself; until it is awake */
	enum wake_hindrance hindrance; /* when wants_room was set, or at the last look since */
	bool is_damaged;               /* some of it, in host memory, and an operator knows */
	bool is_asleep;                /* the program sleeps, or waits to wake */
	uint64_t nap_busy_ms;  /* glaked asked it to sleep, and it was busy; 0: it was not */
	uint64_t nap_pause_ms; /* it is left alone for this long since, unless it works meanwhile */
};

struct holder;
struct slept;
struct sleeper;

/*
 * Somebody who wants to know of all holders that have greeted, of what they hold, drafts aside, and of each change of
 * what holder_adopt*() takes. A block that is being parked is still known as the chunk that it was.
 */
struct kept_step;
struct kept_steps;

struct holder_watch {
	/* New, or changed. */
	void (*holder)(void *user, const struct holder *holder);
	void (*holder_gone)(void *user, const struct holder *holder);
	void (*held)(void *user, const struct holder *holder, const struct held *held);
	void (*held_gone)(void *user, const struct held *held);
	/* A thing has a copy, whether or not it is on the GPU. */
	void (*slept)(void *user, const struct slept *slept);
	void (*slept_gone)(void *user, const struct slept *slept);
	/* The sleeper is ASLEEP, until it is gone. */
	void (*sleeper)(void *user, const struct sleeper *sleeper);
	void (*sleeper_gone)(void *user, const struct sleeper *sleeper);
	void (*mistake)(void *user, const struct mistake *mistake);
	void (*mistake_gone)(void *user, const struct mistake *mistake);
	/* The step outlived its process, and its chunks are parked. */
	void (*kept)(void *user, const struct kept_step *step);
	void (*kept_gone)(void *user, const struct kept_step *step);
};

/* Users of a block are looked for in steps, between other things. */
struct holder_walk {
	struct list
		*at; /* of holders.list: whose things are looked at; NULL: nothing is looked for */
	struct held *held; /* the next of them; NULL: at the end */
};

/* All holders of the node, and what they need. */
struct holders {
	struct holder_walk walk;
	struct list list; /* of struct holder, by id */
	uint32_t n;
	uint32_t n_refused; /* of them: beyond a limit, and only there to be told so */
	uint64_t last_id;   /* of holders and things held */
	uint64_t last_will;
	bool is_draining; /* no holder becomes detached any more */
	uv_loop_t *loop;  /* borrowed */
	uint32_t n_locations;
	struct location *const *locations; /* borrowed, by slot */
	struct store *store;               /* borrowed */
	struct kept_steps *kept;           /* borrowed; what outlives its process; NULL: nothing */
	struct orders orders;
	struct list sleepers; /* of sleeper.link: the longest asleep first */
	struct list reading;  /* of sleep_wake.turn: they copy from host memory in this order */
	uint64_t n_unkept;    /* named chunks that are not parked */
	struct list realms;
	struct refused_sums refused;
	struct mistakes mistakes;
	const struct holder_watch *watch; /* NULL: nobody; then the next is not used */
	void *watcher;
	struct log_limits log_limits; /* by owner: of lines about holders without a tenant */
};

/*
 * How lists name a process: safe to show, never trusted. All owned; NULL: unknown, or there was no memory. The client says
 * all but the cgroup, whose name may be anything, too.
 */
struct holder_labels {
	char *program;    /* its name for itself */
	char *name;       /* the name that somebody gave it */
	char *script;     /* the script that its interpreter runs */
	char *arguments;  /* in no book: they may hold secrets */
	char *executable; /* the file that it runs; never shown as it is */
	char *cgroup;     /* peer.cgroup */
};

struct holder {
	struct list link;    /* link: holders.list, until it has ended */
	struct holders *all; /* borrowed */
	unsigned n_refs;
	enum holder_state state;
	uint64_t id;
	uint8_t key[GLAKE_KEY_BYTES]; /* random; valid once it was attached */
	uint64_t image;               /* of the program, as the client reports it; 0 = unknown */
	struct process_watch *watch;  /* owned; of the process, while it is detached */
	struct peer peer;
	uint64_t started;      /* peer_start_time(); 0: unknown, or nobody watches */
	struct user *user;     /* owned reference; of peer.owner. NULL until it is identified */
	struct tenant *tenant; /* entered; NULL with a refusal */
	struct realm *realm;   /* owned reference */
	bool is_admin;
	bool follows_seals; /* the client has said so, and so the next */
	bool follows_sleeps;
	bool only_looks;             /* the holder gets nothing, and is no program */
	bool has_faulted;            /* the client has said so */
	bool has_process_ended;      /* the process is known to have */
	const char *refusal;         /* static: the limit that refuses it; NULL: it is let in */
	struct holder_labels labels; /* empty before Hello */
	uint64_t since_ms;
	uint64_t n_requests;
	struct held *held;
	uint32_t n_held[N_HELD_KINDS];
	struct list wills;       /* the oldest first */
	size_t n_places;         /* of blocks in its models, and one for each model */
	struct sleeper *sleeper; /* owned; NULL: nothing of it has a copy */
	struct holder_sleep sleep;
	struct refused refused;
	struct pressure_wait wait; /* the longest of its requests', when that was looked at last */
	struct holder_usage usage;
	struct holder_sharing sharing; /* as holder_look_at_sharing() last found it */
	struct sharing_walk sharing_walk;
	struct holder_location at[]; /* by slot */
};

static inline struct payer holder_payer(const struct holder *holder)
{
	return (struct payer){holder->tenant, holder->user};
}

/* A request of it was refused. Harmless for no bound, and for a holder that has ended. */
void holder_note_refusal(struct holder *holder, const struct refusal *refusal);

/* Ids begin after @last_id. */
void holders_init(struct holders *holders, uv_loop_t *loop, struct location *const *locations,
                  uint32_t n_locations, struct store *store, uint64_t last_id);

/* Enters it into the list; the caller has one reference. Its identity is set later. NULL: no memory. */
struct holder *holder_new(struct holders *holders);
struct holder *holder_ref(struct holder *holder);
/* NULL is fine. */
void holder_unref(struct holder *holder);

/*
 * Hello is accepted, on @socket. @labels are taken over. Detached
 * holders of the same process with another @image end: the process has replaced its program. @key NULL: a new one.
 * Returns 0, or -errno: no random numbers.
 */
int holder_attach(struct holder *holder, int socket, const struct holder_labels *labels,
                  uint64_t image, const uint8_t *key);

/*
 * @ticket permits others to open the chunks from now on, and after a restart as well: that is on record when this
 * returns, and the chunks are parked when parking_pending() has passed. Returns whether all will be: not if nobody keeps
 * fds, the fd store is full, or the user has its share of it. If holder_may_share() says no, the user has to wait for
 * orders_await().
 */
bool holder_may_share(const struct holder *holder, struct held *const *chunks, size_t n_chunks);
bool holder_share_chunks(struct holder *holder, struct held *const *chunks, size_t n_chunks,
                         uint64_t ticket);

/* The name in the fd store of the chunk with that id. */
#define HOLDER_PARKED_BYTES 24u
void holder_parked_name(uint64_t id, char name[HOLDER_PARKED_BYTES]);

/* The holder, or something that it holds, has changed. */
void holder_note_changed(const struct holder *holder);
void holder_note(const struct holder *holder, const struct held *held);
/* The watches of holders and store have forgotten everything: they are told of all holders, and of their drafts. */
void holders_note_all(const struct holders *holders);

/*
 * The holder's connection, with the socket @fd, is lost. Returns whether the holder stays: not if its process has ended or
 * cannot be watched, or if the daemon drains.
 */
bool holder_detach(struct holder *holder, int fd);
/* The holder has another connection. */
void holder_resume(struct holder *holder);

/* The holder that a connection of @peer may resume with @key (GLAKE_KEY_BYTES); NULL: none. */
struct holder *holder_by_key(const struct holders *holders, const struct peer *peer,
                             const uint8_t *key);

/* The number of detached holders of a user (peer.owner). */
size_t holders_n_detached(const struct holders *holders, uid_t owner);

/* The number of those that do not only look: greeted, and not ended. */
uint32_t holders_n_programs(const struct holders *holders);
/* Whether the process of @holder is one of them, by this or another session. */
bool holder_has_program(const struct holder *holder);

/* Detached holders end, and so will all that lose their connection. */
void holders_drain(struct holders *holders);

/*
 * A holder of an earlier glaked, DETACHED, in the order of ids. The caller sets its key, image and other numbers. Takes
 * @peer over; and @pidfd if it returns a holder. NULL: no memory, or no fd.
 */
struct holder *holder_adopt(struct holders *holders, uint64_t id, struct peer *peer, int pidfd,
                            struct realm *realm, struct tenant *tenant);
/* Adopt a thing that the holder held, as @as says: id, request, ticket and flags. Takes @chunk over. Return 0 or -ENOMEM. */
int holder_adopt_chunk(struct holder *holder, const struct held *as, struct chunk *chunk);
int holder_adopt_model(struct holder *holder, const struct held *as, struct model *model);
int holder_adopt_block(struct holder *holder, const struct held *as, struct block *block);
/* Adopt the chunk @source, which @owner has, for reading. */
int holder_adopt_reading(struct holder *holder, const struct held *as, struct holder *owner,
                         struct held *source);
/* The chunk that has come from this one, which it was read of, and its holder; NULL: none. */
struct held *holders_find_origin(const struct holders *holders, uint64_t origin,
                                 struct holder **owner_out);
/* Adopt a thing of which only copies are left. With a record, if @is_open: a block or model. NULL: no memory. */
struct held *holder_adopt_slept(struct holder *holder, const struct held *as, bool is_open);

/* The subject of events about the holder, borrowed from it. */
struct event_subject holder_subject(const struct holder *holder);

/* Whether it is a session of this peer's process, or of another one with its number. */
bool holder_is_of(const struct holder *holder, const struct peer *peer);

/*
 * @promise, at @slot, is of all sessions of the process from now on, and has @bytes. What they have there comes out of it.
 * New sessions enter with holder_attach(). NULL: there is none.
 */
struct promise *holder_find_promise(const struct holder *holder, uint32_t slot);
void holder_set_promise(struct holder *holder, struct promise *promise, uint64_t bytes);
/* The bytes that the sessions of the process have there: the part of a promise that need not be reserved. */
uint64_t holder_process_bytes(const struct holder *holder, uint32_t slot);
/* Set the driver's memory of the process at @slot, by its last report. */
void holder_set_driver(struct holder *holder, uint32_t slot, const struct driver_memory *driver);
/* For holder.c alone: a session of the process comes, or goes. */
void holder_enter_promises(struct holder *holder);
void holder_leave_promises(struct holder *holder);

/* Idempotent. None of its requests may be pending. */
void holder_end(struct holder *holder);

/* The holder of that id, if it was let in and has not ended; else NULL. */
struct holder *holder_by_id(const struct holders *holders, uint64_t id);

/* Find the thing of that id; NULL: the holder has none. */
struct held *holder_find_any(const struct holder *holder, uint64_t id);
/* Find the thing of that kind and id; NULL: the holder has none. */
struct held *holder_find(const struct holder *holder, enum held_kind kind, uint64_t id);

/* Take over all @chunks; @held_out gets their entries. Returns 0, or -ENOMEM: none is taken over. */
int holder_add_chunks(struct holder *holder, uint64_t request, struct chunk *chunks,
                      size_t n_chunks, struct held **held_out);
/* Record a draft that the caller holds; HOLDER_MAX_DRAFTS is the caller's to check. NULL: no memory. */
struct held *holder_add_draft(struct holder *holder, uint64_t request, struct model *draft);
/* The draft is published or gone. */
void holder_forget_draft(struct holder *holder, struct held *held);
/*
 * Record a model that the caller holds, or a block that it uses. Returns its id, or 0: no memory,
 * HOLDER_MAX_PLACES, or its tenant cannot pay for the record.
 */
uint64_t holder_add_model(struct holder *holder, uint64_t request, struct model *model);
uint64_t holder_add_block(struct holder *holder, uint64_t request, struct block *block);

/* The chunk is to become a block: pay for the record. False: the tenant cannot. */
bool holder_pay_record(struct holder *holder, struct held *held);

/*
 * The chunk of @held, sealed by itself if was_alone is set, was moved away and has become @block, which the caller uses; or was
 * found equal to it (@was_known). @own is NULL, or that chunk, which is taken over and stays charged until the process has
 * mapped the block in its place: not without memory for that.
 */
void holder_turn_block(struct holder *holder, struct held *held, struct block *block,
                       bool was_known, struct chunk *own);
/* The process has mapped the block. */
void holder_drop_own(struct holder *holder, struct held *held);

/*
 * May a chunk of @bytes at @at, the private copy of the block @id, have the reserve (reserve.h)? Once, and only if the block
 * was sealed by itself, and others have it, too, or had it before.
 */
bool holder_may_unseal(const struct holder *holder, uint64_t id, const struct location *at,
                       uint64_t bytes);
/* @chunk is that copy. Harmless if the reserve gave nothing. */
void holder_note_copy(struct holder *holder, uint64_t id, const struct held *chunk);

/*
 * @holder reads the chunk @source of @owner, another holder, who has it as before. If he gives it back, puts it to sleep or
 * ends it is the first reader's, whose tenant pays then, whatever its limits are. Returns the new entry; NULL: no memory, or
 * its tenant cannot pay for the record.
 */
struct held *holder_add_reading(struct holder *holder, uint64_t request, struct holder *owner,
                                struct held *source);
/* Whom of those that read @source @holder has; NULL: none. */
struct held *holder_reading_of(const struct held *source, const struct holder *holder);
/* The chunk, which @reader reads, is its holder's, and @held is gone. */
void holder_hand_over(struct holder *holder, struct held *held, struct held *reader);

/* The private chunk goes to @chunk_out, which nobody reads, and @held is gone. It is charged as before. */
void holder_leave_chunk(struct holder *holder, struct held *held, struct chunk *chunk_out);

/* @held has a copy, and the process does not have it mapped: its memory goes, or is left to others. */
void holder_put_to_sleep(struct holder *holder, struct held *held);
/* @held is on the GPU again: in @chunk, which is taken over; or as @block, which the caller uses, or @model, which he holds. */
void holder_wake_chunk(struct holder *holder, struct held *held, struct chunk *chunk);
void holder_wake_block(struct holder *holder, struct held *held, struct block *block);
void holder_wake_model(struct holder *holder, struct held *held, struct model *model);

/*
 * Look for those who use @block, which is being withdrawn, all models were looked at. One search at a time. Of each
 * call of holders_walk(), *@n_steps steps at most are taken and subtracted, each a holder or a thing. Returns whether it was
 * the last.
 */
typedef void (*holder_fn)(void *user, const struct holder *holder);
void holders_begin_walk(struct holders *holders);
bool holders_walk(struct holders *holders, const struct block *block, size_t *n_steps,
                  holder_fn on_user, void *user);

/*
 * Bring holder.sharing and part_bytes at each location up to date. Walks all that it holds, in *@n_steps steps at most, each a
 * thing or a place of a model, and subtracts them. Returns false if these were too few: then sharing is as before, and the next
 * call goes on.
 */
bool holder_look_at_sharing(struct holder *holder, size_t *n_steps);

/*
 * Give back everything that these requests, GLAKE_MAX_UNANSWERED at most, brought: the client does not know of it. What they
 * adopted is kept once more.
 */
void holder_release_unanswered(struct holder *holder, const uint64_t *requests, size_t n_requests);

/* Release those of these things that the holder has. The others were released before. */
void holder_release_ids(struct holder *holder, const uint64_t *ids, size_t n_ids);

/* Give the memory of @held back and free @held. A publication is cancelled. */
void holder_release(struct holder *holder, struct held *held);

#endif
