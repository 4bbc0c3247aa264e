/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/session.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/inflight.h"
#include "proto/cleanup.h"

/* MAX_REFUSED sessions over a limit may wait for their Hello to be told so. More are closed without a word. */
#define MAX_REFUSED 64
/* A connection that does not greet in this time is closed. */
#define GREETING_MS 10000

static const bool moves[N_SESSION_STATES][N_SESSION_STATES] = {
	[SESSION_NEW] = {[SESSION_OPEN] = true, [SESSION_CLOSING] = true},
	[SESSION_OPEN] = {[SESSION_CLOSING] = true},
};

static void session_set_state(struct session *session, enum session_state state)
{
	assert(moves[session->state][state]);
	session->state = state;
}

static void on_conn_closed(struct conn *conn)
{
	struct session *session = container_of(conn, struct session, conn);
	struct sessions *sessions = session->all;
	holder_unref(session->holder);
	free(session);
	sessions->hooks->closed(sessions->user);
}

static void cancel_all(struct session *session)
{
	while (!list_is_empty(&session->pending)) {
		struct pending *pending = list_first(&session->pending, struct pending, link);
		list_remove(&pending->link);
		session->n_pending--;
		pending->cancel(pending);
	}
	assert(session->n_pending == 0);
}

/* The fate of the holder of a session that is closed. */
enum fate {
	HOLDER_ENDS,
	HOLDER_IS_LOST,  /* the connection is lost; the process may resume it */
	HOLDER_IS_TAKEN, /* another session of the process has it */
};

static void close_with(struct session *session, enum fate fate)
{
	if (session->state == SESSION_CLOSING) {
		return;
	}
	session_set_state(session, SESSION_CLOSING);
	list_remove(&session->link);
	pressure_client_leave(&session->warm);
	cancel_all(session);
	if (fate == HOLDER_IS_LOST && holder_detach(session->holder, session->conn.fd)) {
		session->all->stats->sessions_lost++;
	} else if (fate != HOLDER_IS_TAKEN) {
		holder_end(session->holder);
	}
	conn_close(&session->conn, on_conn_closed);
}

static void on_packet(struct conn *conn, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	struct session *session = container_of(conn, struct session, conn);
	session->holder->n_requests++;
	session->all->hooks->packet(session, bytes, n_bytes, fds);
}

static void on_conn_end(struct conn *conn, enum conn_end end, int error)
{
	struct session *session = container_of(conn, struct session, conn);
	if (end == CONN_END_MALFORMED) {
		session_reject(session, "a packet that is too long, or empty");
		return;
	}
	if (end == CONN_END_ERROR) {
		session_reject(session, "its socket failed: %s", strerror(-error));
		return;
	}
	close_with(session, HOLDER_IS_LOST);
}

/* Enters the tenant if no limit forbids it. Returns that limit, or NULL. */
static const char *enter(struct session *session, struct tenant *tenant)
{
	struct holder *holder = session->holder;
	const struct config *config = session->all->config;
	/* An admin must get in even if everything is full. */
	if (!holder->is_admin) {
		if (holder->all->n - 1 + inflight_n_left() >= config->max_sessions) {
			return "too many sessions";
		}
		if (inflight_n_of_user(&session->conn.inflight) +
		            holders_n_detached(holder->all, holder->peer.owner) >
		    config_user_sessions(config)) {
			return "too many sessions of this user";
		}
	}
	if (tenant_session_enter(tenant) != 0) {
		return "too many sessions of the tenant";
	}
	holder->tenant = tenant;
	return NULL;
}

/* The peer's identity decides, once, about tenant, realm and rights. */
static int identify(struct session *session, uid_t owner)
{
	struct sessions *sessions = session->all;
	const struct config *config = sessions->config;
	struct holder *holder = session->holder;
	struct peer *peer = &holder->peer;
	char realm[CONFIG_NAME_BYTES];
	int r = peer_init(peer, session->conn.fd, config_names_cgroups(config));
	peer->owner = owner;
	/* A refused session counts for its user as well. */
	int entered = conn_set_uid(&session->conn, owner);
	holder->user = user_ref(user_get(owner));
	if (r < 0 || entered < 0 || !holder->user) {
		return r < 0 ? r : -ENOMEM;
	}
	config_realm_of(config, peer, realm, sizeof(realm));
	holder->realm = realm_get(&sessions->holders->realms, realm);
	if (!holder->realm) {
		return -ENOMEM;
	}
	holder->is_admin = config_is_admin(config, peer->uid, peer->gids, peer->n_gids);
	const struct config_tenant *rule = config_tenant_of(config, peer);
	holder->refusal = enter(session, tenant_find(sessions->tenants, rule->name));
	return 0;
}

/* ---- its warm memory ------------------------------------------------------------------------- */

static struct session *session_of(const struct pressure_client *client)
{
	return container_of(client, struct session, warm);
}

static uint64_t held_bytes(const struct pressure_client *client, const struct location *at)
{
	return session_of(client)->holder->at[at->slot].reserved_bytes;
}

static bool ask_client(struct pressure_client *client, const struct location *at, uint64_t bytes,
                       uint64_t id)
{
	struct session *session = session_of(client);
	return session->all->hooks->reclaim(session, at, bytes, id);
}

static bool has_unread(const struct pressure_client *client)
{
	return conn_has_unread(&session_of(client)->conn);
}

static const struct pressure_client_ops warm_ops = {
	.held_bytes = held_bytes,
	.ask = ask_client,
	.has_unread = has_unread,
};

/* ---- coming and going ------------------------------------------------------------------------ */

/* Takes over @fd if it returns 0. */
static int open_session(struct session *session, struct sessions *sessions, int fd)
{
	session->all = sessions;
	list_init(&session->pending);
	session->holder = holder_new(sessions->holders);
	if (!session->holder) {
		return -ENOMEM;
	}
	int r = conn_open(&session->conn, sessions->loop, fd, on_packet, on_conn_end);
	if (r < 0) {
		holder_end(session->holder);
		holder_unref(session->holder);
	}
	return r;
}

int session_new(struct sessions *sessions, int fd, uid_t owner)
{
	struct session *session = calloc(1, sizeof(*session));
	int r = session ? open_session(session, sessions, fd) : -ENOMEM;
	if (r < 0) {
		free(session);
		inflight_close_socket(INFLIGHT_OURS, fd);
		return r;
	}
	list_insert(&sessions->list, &session->link);
	r = identify(session, owner);
	if (r < 0) {
		session_reject(session, "cannot read its credentials: %s", strerror(-r));
		return 0;
	}
	if (session->holder->refusal) {
		sessions->stats->sessions_refused++;
		if (++sessions->holders->n_refused > MAX_REFUSED) {
			session_close(session);
		}
		return 0;
	}
	pressure_client_enter(sessions->pressure, &session->warm, &warm_ops,
	                      session->holder->tenant);
	sessions->stats->sessions_total++;
	return 0;
}

int session_greet(struct session *session, const struct holder_labels *labels, uint64_t image,
                  const uint8_t *key)
{
	int r = holder_attach(session->holder, session->conn.fd, labels, image, key);
	if (r == 0) {
		session_set_state(session, SESSION_OPEN);
	}
	return r;
}

bool session_resume(struct session *session, const uint8_t *key, const uint64_t *unanswered,
                    size_t n_unanswered)
{
	struct holder *holder = holder_by_key(session->all->holders, &session->holder->peer, key);
	struct session *other;
	struct session *spare;
	/* A socket can outlive the process that made it, and another one then has its number. */
	if (!holder || peer_has_ended(&session->holder->peer, session->conn.fd)) {
		return false;
	}
	if (holder->state == HOLDER_DETACHED) {
		holder_resume(holder);
	} else {
		list_for_each_safe (other, spare, &session->all->list, link) {
			if (other->holder == holder) {
				close_with(other, HOLDER_IS_TAKEN);
			}
		}
	}
	holder_end(session->holder);
	holder_unref(session->holder);
	session->holder = holder_ref(holder);
	/* The one before it may have been refused, or be another tenant's. */
	pressure_client_leave(&session->warm);
	pressure_client_enter(session->all->pressure, &session->warm, &warm_ops, holder->tenant);
	holder_release_unanswered(holder, unanswered, n_unanswered);
	session_set_state(session, SESSION_OPEN);
	session->all->stats->sessions_resumed++;
	return true;
}

void session_close(struct session *session)
{
	close_with(session, HOLDER_ENDS);
}

/* One limit for all sessions of a tenant, because a closed client connects again. */
static struct log_limit *limit_of_rejects(const struct holder *holder)
{
	return holder->tenant ? &holder->tenant->log_limit
	                      : log_limits_of(&holder->all->log_limits, holder->peer.owner);
}

void session_reject(struct session *session, const char *format, ...)
{
	const struct holder *holder = session->holder;
	char text[256];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	log_limited(limit_of_rejects(holder), LOG_LEVEL_WARNING,
	            "session %llu (pid %d, uid %u) closed: %s", (unsigned long long)holder->id,
	            (int)holder->peer.pid, (unsigned)holder->peer.uid, text);
	session->all->stats->sessions_bad++;
	session_close(session);
}

bool session_begin(struct session *session, struct pending *pending, uint64_t request,
                   void (*cancel)(struct pending *pending))
{
	if (session->n_pending >= session->all->config->max_requests_in_flight) {
		return false;
	}
	pending->session = session;
	pending->request = request;
	pending->cancel = cancel;
	list_insert(&session->pending, &pending->link);
	session->n_pending++;
	return true;
}

void session_end(struct pending *pending)
{
	list_remove(&pending->link);
	pending->session->n_pending--;
}

/* ---- all of them ----------------------------------------------------------------------------- */

/*
 * The end of a connection shows the end of a client, but not while the client's own end lies unread
 * in glaked's. So glaked asks the kernel about clients that it does not read from.
 */
static bool has_left(const struct session *session)
{
	return conn_is_held_up(&session->conn) &&
	       peer_has_ended(&session->holder->peer, session->conn.fd);
}

void sessions_tick(struct sessions *sessions)
{
	struct session *session;
	struct session *spare;
	uint64_t now = uv_now(sessions->loop);
	list_for_each_safe (session, spare, &sessions->list, link) {
		if (session->state == SESSION_NEW &&
		    now - session->holder->since_ms > GREETING_MS &&
		    !conn_has_unread(&session->conn)) {
			session_reject(session, "no Hello within ten seconds");
		} else if (has_left(session)) {
			close_with(session, HOLDER_IS_LOST);
		}
	}
}

void sessions_close(struct sessions *sessions)
{
	while (!list_is_empty(&sessions->list)) {
		session_close(list_first(&sessions->list, struct session, link));
	}
}
