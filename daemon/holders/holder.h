/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A holder: a process that has something of glaked's, who it is, and all it has.
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
 * A detached holder keeps what it has, since its process still has it mapped; a pidfd tells when that
 * ends. holder_end() is the only way out: it gives back every chunk, model and block, so that all
 * charges are paid back whatever the process did.
 *
 * All it has is in one table, by ids that nothing else of this node ever has. Nothing there or here
 * points to a connection: a session (session.h) points to its holder.
 *
 * Owner: the list of holders until it has ended, and each session of it.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_HOLDER_H
#define GLAKE_DAEMON_HOLDER_H

#include <stdbool.h>

#include "daemon/base/hash.h"
#include "daemon/base/log.h"
#include "daemon/memory/chunk.h"
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

enum held_kind {
	HELD_CHUNK,
	HELD_MODEL,
	HELD_BLOCK,
	N_HELD_KINDS,
};

/* One thing that is held. */
struct held {
	UT_hash_handle hh; /* holder.held, by id */
	uint64_t id;
	enum held_kind kind;
	uint64_t request;    /* by which the client got it */
	uint64_t ticket;     /* who knows it may open the chunk; 0: nobody else may */
	struct admit *admit; /* the chunk is being published, and there; NULL: it is here */
	bool was_chunk;      /* a block that was published, under its chunk's id */
	bool was_known;      /* the same: with an equal block in the store */
	union {
		struct chunk chunk;  /* private */
		struct model *model; /* held in the store */
		struct block *block; /* used in the store */
	};
};

/* What a process has of the driver itself on a device, as it reports; bounded, and never trusted. */
struct driver_memory {
	uint64_t managed_bytes; /* as asked for */
	uint64_t array_bytes;
	uint64_t graph_bytes;
	uint64_t other_bytes;
};

struct holder_device {
	uint64_t reserved_bytes; /* of chunks */
	uint64_t shared_bytes;   /* of models and blocks */
	struct driver_memory driver;
};

/* What the process reports of itself. */
struct holder_usage {
	uint64_t live_bytes;
	uint64_t warm_bytes;
	uint64_t peak_bytes;
	uint64_t n_owned;
	uint64_t n_passed;
};

/* All holders of the node, and what they are made of. */
struct holders {
	struct list list; /* of struct holder, by id */
	uint32_t n;
	uint32_t n_refused; /* of them: only there to be told that they are too many */
	uint64_t last_id;   /* of holders, and what they hold */
	bool is_draining;   /* none becomes detached any more */
	uv_loop_t *loop;    /* borrowed */
	uint32_t n_devices;
	struct device *devices; /* borrowed, as the next */
	struct store *store;
	struct list realms;
	struct log_limit log_limit; /* of lines about holders without a tenant */
};

struct holder {
	struct list link;    /* link: holders.list, until it has ended */
	struct holders *all; /* borrowed */
	unsigned n_refs;
	enum holder_state state;
	uint64_t id;
	uint8_t key[GLAKE_KEY_BYTES]; /* random; valid once it was attached */
	uint64_t image;               /* of the program, as it says; 0 = unknown */
	struct process_watch *watch;  /* owned; of the process, while it is detached */
	struct peer peer;
	struct tenant *tenant; /* entered; NULL with a refusal */
	struct realm *realm;   /* owned reference */
	bool is_admin;
	const char *refusal; /* static: over that limit, only there to be told so; NULL: let in */
	char *program;       /* owned; what the client calls itself; NULL before Hello */
	uint64_t since_ms;
	uint64_t n_requests;
	struct held *held;
	uint32_t n_held[N_HELD_KINDS];
	struct holder_usage usage;
	struct holder_device devices[]; /* by index */
};

/* Ids begin behind @last_id. */
void holders_init(struct holders *holders, uv_loop_t *loop, struct device *devices,
                  uint32_t n_devices, struct store *store, uint64_t last_id);

/* In the list, with one reference: the caller's. Who it is comes later. NULL: no memory. */
struct holder *holder_new(struct holders *holders);
struct holder *holder_ref(struct holder *holder);
/* NULL is fine. */
void holder_unref(struct holder *holder);

/*
 * Hello is accepted: @program (taken over; may be NULL) is what it calls itself. What its process held
 * before it became another program, of another @image, ends. Returns 0 or -errno: no random numbers.
 */
int holder_attach(struct holder *holder, char *program, uint64_t image);

/*
 * Its connection, with the socket @fd, is lost. Returns whether it is kept: not if its process has
 * ended, or cannot be watched, or the daemon drains.
 */
bool holder_detach(struct holder *holder, int fd);
/* It has another connection. */
void holder_resume(struct holder *holder);

/* The one that a connection of @peer may have with @key (GLAKE_KEY_BYTES); NULL: none. */
struct holder *holder_by_key(const struct holders *holders, const struct peer *peer,
                             const uint8_t *key);

/* Detached holders of a user (peer.owner). */
size_t holders_n_detached(const struct holders *holders, uid_t owner);

/* Those that are detached end; and so will those that lose their connection. */
void holders_drain(struct holders *holders);

/* Idempotent. No request of it is under way. */
void holder_end(struct holder *holder);

/* A holder that has been let in, and has not ended; NULL: there is none of that id. */
struct holder *holder_by_id(const struct holders *holders, uint64_t id);

/* NULL: it holds nothing of that kind by that id. */
struct held *holder_find(const struct holder *holder, enum held_kind kind, uint64_t id);

/* Take all @chunks over: their entries into @held_out. Returns 0, or -ENOMEM: none is taken. */
int holder_add_chunks(struct holder *holder, uint64_t request, struct chunk *chunks,
                      size_t n_chunks, struct held **held_out);
/* Record a model that is held, or a block that is used, already. Returns its id, or 0: no memory. */
uint64_t holder_add_model(struct holder *holder, uint64_t request, struct model *model);
uint64_t holder_add_block(struct holder *holder, uint64_t request, struct block *block);

/* The chunk of @held, which was moved away, has become @block, used already. */
void holder_turn_block(struct holder *holder, struct held *held, struct block *block,
                       bool was_known);

/* Give back what these requests brought: the client does not know of it. */
void holder_release_unanswered(struct holder *holder, const uint64_t *requests, size_t n_requests);

/* Give it back; its publication is cancelled. @held is freed. */
void holder_release(struct holder *holder, struct held *held);

#endif
