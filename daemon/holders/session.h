/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one connected process, who it is, and everything it has.
 *
 *   NEW ---- Hello accepted ----> OPEN
 *    |                             |
 *    '---- peer gone, bad bytes, limits, daemon ends ----> CLOSING -> (freed by the loop)
 *
 * session_close() is the only way out: it cancels what is under way and gives back every chunk,
 * model and block, so that all charges are paid back whatever the peer did.
 *
 * Owner: the server's list; freed when its connection is closed.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_SESSION_H
#define GLAKE_DAEMON_SESSION_H

#include <stdbool.h>

#include "daemon/net/conn.h"
#include "daemon/base/hash.h"
#include "daemon/base/log.h"
#include "daemon/net/peer.h"
#include "daemon/server.h"

enum session_state {
	SESSION_NEW,
	SESSION_OPEN,
	SESSION_CLOSING,
};

/* A private chunk. */
struct private_chunk {
	UT_hash_handle hh; /* session.chunks, by id */
	uint64_t id;
	uint64_t ticket; /* who knows it may open the chunk; 0: nobody else may */
	bool is_busy;    /* being published */
	struct chunk chunk;
};

struct open_model {
	UT_hash_handle hh; /* session.models, by id */
	uint64_t id;
	struct model *model; /* held */
};

struct held_block {
	UT_hash_handle hh; /* session.blocks, by id */
	uint64_t id;
	struct block *block; /* used */
};

/* A request that is answered later; embedded in the operation. */
struct pending {
	struct list link; /* link: session.pending */
	struct session *session;
	uint64_t request;
	/* The session ends: undo and free the operation. */
	void (*cancel)(struct pending *pending);
};

/* What a process has of the driver itself on a device, as it reports; bounded, and never trusted. */
struct driver_memory {
	uint64_t managed_bytes; /* as asked for */
	uint64_t array_bytes;
	uint64_t graph_bytes;
	uint64_t other_bytes;
};

struct session_device {
	uint64_t reserved_bytes; /* of chunks */
	uint64_t shared_bytes;   /* of models and blocks */
	struct driver_memory driver;
};

struct session {
	struct list link; /* link: server.sessions */
	struct server *server;
	struct conn conn;
	enum session_state state;
	uint64_t id;
	struct peer peer;
	struct tenant *tenant; /* entered; NULL with a refusal */
	struct realm *realm;   /* owned reference */
	bool is_admin;
	const char *refusal; /* static: over that limit, only there to be told so; NULL: let in */
	char *program;       /* owned; what the client calls itself; NULL before Hello */
	uint64_t since_ms;
	uint64_t n_requests;
	struct log_limit log_limit; /* of lines that its requests cause */

	struct list pending;
	unsigned n_pending;
	struct private_chunk *chunks;
	struct open_model *models;
	struct held_block *blocks;
	uint64_t live_bytes; /* as the client reports, and so the next */
	uint64_t warm_bytes;
	uint64_t peak_bytes;
	uint64_t n_owned;
	uint64_t n_passed;

	uint64_t last_reclaim;     /* id of the last Reclaim that it was sent; 0 = none yet */
	uint64_t followed_reclaim; /* of the last that it answered */
	uint64_t reclaim_ms;       /* since when it owes an answer, or when it gave the last */
	struct session_device devices[]; /* by index */
};

/*
 * A session for an accepted connection, of a peer that counts as @owner (owner.h); takes @fd over in any
 * case. Returns 0 or -errno.
 */
int session_new(struct server *server, int fd, uid_t owner);

/* Idempotent. @session stays valid until the loop turns. */
void session_close(struct session *session);

/* Close for what the peer did, with one line in the log unless its tenant has spent its lines. */
__attribute__((format(printf, 2, 3))) void session_reject(struct session *session,
                                                          const char *format, ...);

/* Returns whether the session may have one more request under way; then @pending hangs on it. */
bool session_begin(struct session *session, struct pending *pending, uint64_t request,
                   void (*cancel)(struct pending *pending));
/* The operation is over and will be answered by the caller. */
void session_end(struct pending *pending);

/*
 * Ask for @bytes of warm memory of @device; 0 = do not ask. Returns whether the session owes an answer
 * and may still give one in time, or gave it just now (ALLOC_AFTER_MS). What it said of its warm memory
 * does not count: it may be old.
 */
bool session_reclaim(struct session *session, const struct device *device, uint64_t bytes);

/* Give a chunk back. @private is freed. */
void session_release_chunk(struct session *session, struct private_chunk *private);

/* Record a model that is held already. Returns its id, or 0: no memory. */
uint64_t session_add_model(struct session *session, struct model *model);
void session_remove_model(struct session *session, struct open_model *open);

/* Record a block that is used already. Returns its id, or 0: no memory. */
uint64_t session_add_block(struct session *session, struct block *block);
void session_remove_block(struct session *session, struct held_block *held);

#endif
