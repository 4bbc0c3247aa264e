/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one connection of a client, and what is under way on it. What the client has is its
 * holder's (holder.h).
 *
 *   NEW ---- Hello accepted ----> OPEN
 *    |                             |
 *    '---- peer gone, bad bytes, limits, daemon ends ----> CLOSING -> (freed by the loop)
 *
 * Whatever ends it, what is under way is cancelled. session_close() ends the holder as well; one whose
 * connection was lost keeps it while its process lives, and another session may go on with it.
 *
 * Owner: the list of sessions; freed when its connection is closed.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_SESSION_H
#define GLAKE_DAEMON_SESSION_H

#include <stdbool.h>

#include "daemon/config/config.h"
#include "daemon/holders/holder.h"
#include "daemon/memory/pressure.h"
#include "daemon/net/conn.h"

enum session_state {
	SESSION_NEW,
	SESSION_OPEN,
	SESSION_CLOSING,
	N_SESSION_STATES,
};

struct session;

/* What those above have to see to. */
struct session_hooks {
	/* One packet has come. fds that are left in @fds are the caller's to close. */
	void (*packet)(struct session *session, const uint8_t *bytes, size_t n_bytes,
	               struct fdlist *fds);
	/* Ask for warm memory; @id names the asking. Returns whether that was sent. */
	bool (*reclaim)(struct session *session, const struct device *device, uint64_t bytes,
	                uint64_t id);
	/* A session was freed. @user: sessions.user. */
	void (*closed)(void *user);
};

/* All sessions, and what they are made of. */
struct sessions {
	struct list list;
	uv_loop_t *loop; /* borrowed, as what follows */
	struct holders *holders;
	struct pressure *pressure;
	const struct config *config;
	struct tenant_table *tenants;
	struct stats *stats;
	const struct session_hooks *hooks;
	void *user;
};

/* A request that is answered later; embedded in the operation. */
struct pending {
	struct list link; /* link: session.pending */
	struct session *session;
	uint64_t request;
	/* The session ends: undo and free the operation. */
	void (*cancel)(struct pending *pending);
};

struct session {
	struct list link;     /* link: sessions.list, until it is closing */
	struct sessions *all; /* borrowed */
	struct conn conn;
	enum session_state state;
	struct holder *holder;      /* owned reference; stays after its end */
	struct log_limit log_limit; /* of lines that its requests cause */

	struct list pending;
	unsigned n_pending;

	struct pressure_client warm; /* its warm memory; let in only */
};

/*
 * A session for an accepted connection, of a peer that counts as @owner (owner.h); takes @fd over in any
 * case. Returns 0 or -errno.
 */
int session_new(struct sessions *sessions, int fd, uid_t owner);

/* Its Hello is accepted: see holder_attach(). */
int session_greet(struct session *session, char *program, uint64_t image);

/*
 * Its Hello is accepted as that of the process that has @key: the session goes on with that one's
 * holder, and if there is still another session of it, takes over from that. What requests with the
 * numbers @unanswered brought goes back. Returns false: there is none such.
 */
bool session_resume(struct session *session, const uint8_t *key, const uint64_t *unanswered,
                    size_t n_unanswered);

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

/* Once in a while: close those that did not greet, and whose process has ended. */
void sessions_tick(struct sessions *sessions);

void sessions_close(struct sessions *sessions);

#endif
