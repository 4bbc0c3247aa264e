/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A session: one connection of a client, and its pending requests. Everything that the client has
 * belongs to its holder (holder.h).
 *
 *   NEW ---- Hello accepted ----> OPEN
 *    |                             |
 *    '---- peer gone, bad bytes, limits, daemon ends ----> CLOSING -> (freed by the loop)
 *
 * At its end the pending requests are cancelled. session_close() ends the holder as well. If the
 * connection was lost, the holder stays while its process lives, and another session may resume it.
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

/* The calls into the upper layers. */
struct session_hooks {
	/* A packet. The caller closes fds that stay in @fds. */
	void (*packet)(struct session *session, const uint8_t *bytes, size_t n_bytes,
	               struct fdlist *fds);
	/* Send a Reclaim with the number @id. Returns whether it was sent. */
	bool (*reclaim)(struct session *session, const struct location *at, uint64_t bytes,
	                uint64_t id);
	/* A session was freed. @user: sessions.user. */
	void (*closed)(void *user);
};

/* All sessions, and what they need. */
struct sessions {
	struct list list;
	uv_loop_t *loop; /* borrowed, like the rest */
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
	struct log_limit log_limit; /* of lines about its requests */

	struct list pending;
	unsigned n_pending;

	struct pressure_client warm; /* its warm memory, if it is let in */
};

/*
 * A session for the accepted connection @fd of a peer that counts as @owner (owner.h). Takes over
 * @fd in any case. Returns 0, also if it is refused, or -errno: there is no session.
 */
int session_new(struct sessions *sessions, int fd, uid_t owner);

/* The session's Hello is accepted: see holder_attach(). */
int session_greet(struct session *session, const struct holder_labels *labels, uint64_t image,
                  const uint8_t *key);

/*
 * The session's Hello has the @key of a holder of the same process: the session resumes that holder. If the holder still has
 * another session, that one is closed. Everything that the requests @unanswered brought goes back. Returns false: there is no
 * such holder.
 */
bool session_resume(struct session *session, const uint8_t *key, const uint64_t *unanswered,
                    size_t n_unanswered);

/* Idempotent. @session stays valid until the next turn of the loop. */
void session_close(struct session *session);

/* Close because of what the peer did, with one line in the log, if its tenant has lines left. */
__attribute__((format(printf, 2, 3))) void session_reject(struct session *session,
                                                          const char *format, ...);

/* Enter @pending. Returns false if the session has too many pending requests. */
bool session_begin(struct session *session, struct pending *pending, uint64_t request,
                   void (*cancel)(struct pending *pending));
/* The operation is over; the caller answers it. */
void session_end(struct pending *pending);

/* To be called once in a while: close sessions without a Hello, and sessions whose process has ended. */
void sessions_tick(struct sessions *sessions);

void sessions_close(struct sessions *sessions);

#endif
