/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/session.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/closer.h"
#include "daemon/rpc/rpc.h"
#include "proto/cleanup.h"

/* Sessions over a limit that may wait for their Hello to be told so; further ones are just closed. */
#define MAX_REFUSED 64

static void session_free(struct session *session)
{
	peer_deinit(&session->peer);
	realm_unref(session->realm);
	free(session->program);
	free(session);
}

static void on_conn_closed(struct conn *conn)
{
	struct session *session = container_of(conn, struct session, conn);
	struct server *server = session->server;
	session_free(session);
	server_forget_session(server);
}

static void on_packet(struct conn *conn, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	struct session *session = container_of(conn, struct session, conn);
	session->n_requests++;
	rpc_handle(session, bytes, n_bytes, fds);
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
	session_close(session);
}

/* Enters the tenant if it may. Returns what there is too much of, or NULL. */
static const char *enter(struct session *session, struct tenant *tenant)
{
	struct server *server = session->server;
	const struct config *config = server->config;
	/* An admin must get in to look when everything is full. */
	if (!session->is_admin) {
		if (server->n_sessions + transit_n_left() >= config->max_sessions) {
			return "too many sessions";
		}
		if (transit_n_of_user(&session->conn.transit) > config_user_sessions(config)) {
			return "too many sessions of this user";
		}
	}
	if (transit_has_left_too_many(&session->conn.transit, session->since_ms)) {
		return "too many sessions of this user have ended with answers unread";
	}
	if (tenant_session_enter(tenant) != 0) {
		return "too many sessions of the tenant";
	}
	session->tenant = tenant;
	return NULL;
}

/* Who it is decides, once, what it may. */
static int identify(struct session *session, uid_t owner)
{
	struct server *server = session->server;
	const struct peer *peer = &session->peer;
	char realm[CONFIG_NAME_BYTES];
	int r = peer_init(&session->peer, session->conn.fd, config_names_cgroups(server->config));
	session->peer.owner = owner;
	/* Of who is turned away as well. */
	int entered = conn_set_uid(&session->conn, owner);
	if (r < 0 || entered < 0) {
		return r < 0 ? r : entered;
	}
	config_realm_of(server->config, peer, realm, sizeof(realm));
	session->realm = realm_get(&server->realms, realm);
	if (!session->realm) {
		return -ENOMEM;
	}
	session->is_admin = config_is_admin(server->config, peer->uid, peer->gids, peer->n_gids);
	const struct config_tenant *rule = config_tenant_of(server->config, peer);
	session->refusal = enter(session, tenant_find(server->tenants, rule->name));
	return 0;
}

int session_new(struct server *server, int fd, uid_t owner)
{
	struct session *session = calloc(1, sizeof(*session) + server->n_devices *
	                                                               sizeof(session->devices[0]));
	int r = -ENOMEM;
	if (session) {
		session->server = server;
		list_init(&session->pending);
		r = conn_open(&session->conn, &server->loop, fd, on_packet, on_conn_end);
	}
	if (r < 0) {
		free(session);
		closer_close(CLOSER_NOBODY, CLOSER_CONNECTION, &fd, 1);
		return r;
	}
	session->id = server_next_id(server);
	session->since_ms = uv_now(&server->loop);
	list_insert(&server->sessions, &session->link);
	r = identify(session, owner);
	server->n_sessions++;
	if (r < 0) {
		session_reject(session, "cannot tell who it is: %s", strerror(-r));
		return r;
	}
	if (session->refusal) {
		server->stats.sessions_refused++;
		if (++server->n_refused > MAX_REFUSED) {
			session_close(session);
		}
		return 0;
	}
	server->stats.sessions_total++;
	return 0;
}

static void release_all_chunks(struct session *session)
{
	enum { BATCH = 64 };
	struct chunk chunks[BATCH];
	struct private_chunk *private;
	struct private_chunk *spare;
	for (uint32_t i = 0; i < session->server->n_devices; i++) {
		struct device *device = &session->server->devices[i];
		size_t n = 0;
		HASH_ITER(hh, session->chunks, private, spare)
		{
			if (private->chunk.device != device) {
				continue;
			}
			HASH_DEL(session->chunks, private);
			session->devices[i].reserved_bytes -= private->chunk.bytes;
			chunk_move(&chunks[n++], &private->chunk);
			free(private);
			if (n == BATCH) {
				chunk_release_all(chunks, n);
				n = 0;
			}
		}
		chunk_release_all(chunks, n);
	}
}

static void release_all(struct session *session)
{
	struct open_model *open;
	struct open_model *spare_open;
	struct held_block *held;
	struct held_block *spare_held;
	while (!list_is_empty(&session->pending)) {
		struct pending *pending = list_first(&session->pending, struct pending, link);
		list_remove(&pending->link);
		session->n_pending--;
		pending->cancel(pending);
	}
	release_all_chunks(session);
	HASH_ITER(hh, session->models, open, spare_open)
	{
		session_remove_model(session, open);
	}
	HASH_ITER(hh, session->blocks, held, spare_held)
	{
		session_remove_block(session, held);
	}
	assert(session->n_pending == 0);
	for (uint32_t i = 0; i < session->server->n_devices; i++) {
		assert(session->devices[i].reserved_bytes == 0 &&
		       session->devices[i].shared_bytes == 0);
	}
}

void session_close(struct session *session)
{
	if (session->state == SESSION_CLOSING) {
		return;
	}
	session->state = SESSION_CLOSING;
	list_remove(&session->link);
	session->server->n_sessions--;
	release_all(session);
	if (session->tenant) {
		tenant_session_leave(session->tenant);
		session->tenant = NULL;
	}
	if (session->refusal) {
		session->server->n_refused--;
	}
	conn_close(&session->conn, on_conn_closed);
}

/* Of all sessions of a tenant: who is closed comes again. */
static struct log_limit *limit_of_rejects(struct session *session)
{
	return session->tenant ? &session->tenant->log_limit : &session->server->log_limit;
}

void session_reject(struct session *session, const char *format, ...)
{
	char text[256];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	log_limited(limit_of_rejects(session), LOG_LEVEL_WARNING,
	            "session %llu (pid %d, uid %u) closed: %s", (unsigned long long)session->id,
	            (int)session->peer.pid, (unsigned)session->peer.uid, text);
	session->server->stats.sessions_bad++;
	session_close(session);
}

bool session_begin(struct session *session, struct pending *pending, uint64_t request,
                   void (*cancel)(struct pending *pending))
{
	if (session->n_pending >= session->server->config->max_requests_in_flight) {
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

bool session_reclaim(struct session *session, const struct device *device, uint64_t bytes)
{
	uint64_t now = uv_now(&session->server->loop);
	bool has_followed = session->followed_reclaim == session->last_reclaim;
	/* Who does not read what he is sent is not asked, and not waited for. */
	if (bytes > 0 && rpc_notify_reclaim(session, device, bytes, session->last_reclaim + 1)) {
		session->last_reclaim++;
		session->reclaim_ms = has_followed ? now : session->reclaim_ms;
	}
	bool is_owed = session->followed_reclaim != session->last_reclaim;
	if (now - session->reclaim_ms < (is_owed ? ALLOC_LATE_MS : ALLOC_AFTER_MS)) {
		return true;
	}
	/* What lies unread may be the answer: then it is we that are late. */
	return is_owed && conn_has_unread(&session->conn);
}

void session_release_chunk(struct session *session, struct private_chunk *private)
{
	HASH_DEL(session->chunks, private);
	session->devices[private->chunk.device->index].reserved_bytes -= private->chunk.bytes;
	chunk_release(&private->chunk);
	free(private);
}

uint64_t session_add_model(struct session *session, struct model *model)
{
	struct open_model *open = calloc(1, sizeof(*open));
	if (!open) {
		return 0;
	}
	open->id = server_next_id(session->server);
	open->model = model;
	HASH_ADD(hh, session->models, id, sizeof(open->id), open);
	if (!hash_has(open)) {
		free(open);
		return 0;
	}
	session->devices[model->device->index].shared_bytes += model->span_bytes;
	model->device->logical_block_bytes += model->span_bytes;
	return open->id;
}

void session_remove_model(struct session *session, struct open_model *open)
{
	struct model *model = open->model;
	HASH_DEL(session->models, open);
	free(open);
	session->devices[model->device->index].shared_bytes -= model->span_bytes;
	model->device->logical_block_bytes -= model->span_bytes;
	store_unhold_model(&session->server->store, model, session->tenant->priority);
}

uint64_t session_add_block(struct session *session, struct block *block)
{
	struct held_block *held = calloc(1, sizeof(*held));
	if (!held) {
		return 0;
	}
	held->id = server_next_id(session->server);
	held->block = block;
	HASH_ADD(hh, session->blocks, id, sizeof(held->id), held);
	if (!hash_has(held)) {
		free(held);
		return 0;
	}
	struct device *device = block->chunk.device;
	session->devices[device->index].shared_bytes += block->chunk.bytes;
	device->logical_block_bytes += block->chunk.bytes;
	return held->id;
}

void session_remove_block(struct session *session, struct held_block *held)
{
	struct block *block = held->block;
	HASH_DEL(session->blocks, held);
	free(held);
	struct device *device = block->chunk.device;
	session->devices[device->index].shared_bytes -= block->chunk.bytes;
	device->logical_block_bytes -= block->chunk.bytes;
	store_unuse_block(&session->server->store, block, session->tenant->priority);
}
