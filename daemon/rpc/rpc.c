/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/rpc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/rpc/rpc_handlers.h"
#include "daemon/base/text.h"
#include "proto/bounds.h"
#include "proto/cleanup.h"

_Static_assert((int)STATUS_COUNT == GLAKE__WIRE__STATUS__INTERNAL + 1 &&
                       (int)STATUS_BUSY == GLAKE__WIRE__STATUS__BUSY &&
                       (int)STATUS_BAD_FILE == GLAKE__WIRE__STATUS__BAD_FILE,
               "daemon/base/status.h and proto/glake.proto number the same things");

/* ---- answering ------------------------------------------------------------------------------- */

static int send_packed(struct session *session, answer_t *answer, const int *fds, size_t n_fds)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	size_t n_bytes = glake__wire__answer__get_packed_size(answer);
	if (n_bytes > sizeof(bytes)) {
		log_error("an answer of %zu bytes does not fit a packet", n_bytes);
		return -EMSGSIZE;
	}
	glake__wire__answer__pack(answer, bytes);
	return conn_send(&session->conn, bytes, n_bytes, fds, n_fds);
}

void rpc_answer(struct session *session, uint64_t id, answer_t *answer, const int *fds,
                size_t n_fds)
{
	answer->id = id;
	int r = send_packed(session, answer, fds, n_fds);
	if (r < 0) {
		/* The peer would wait for ever for what cannot be said. */
		session_reject(session, "an answer could not be sent: %s", strerror(-r));
	}
}

void rpc_answer_ok(struct session *session, uint64_t id)
{
	answer_t answer = GLAKE__WIRE__ANSWER__INIT;
	rpc_answer(session, id, &answer, NULL, 0);
}

void rpc_refuse(struct session *session, uint64_t id, enum status status, const char *format, ...)
{
	char text[512];
	answer_t answer = GLAKE__WIRE__ANSWER__INIT;
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	/* It may quote the client, and may have been cut inside a character. */
	text_clean(text);
	log_limited(&session->log_limit, LOG_LEVEL_DEBUG, "session %llu (pid %d): refused: %s",
	            (unsigned long long)session->id, (int)session->peer.pid, text);
	session->server->stats.requests_refused++;
	answer.status = (Glake__Wire__Status)status;
	answer.error = text;
	rpc_answer(session, id, &answer, NULL, 0);
}

bool rpc_notify(struct session *session, answer_t *notice)
{
	if (session->state != SESSION_OPEN) {
		return false;
	}
	if (conn_n_queued(&session->conn) > 0 || send_packed(session, notice, NULL, 0) < 0) {
		session->server->stats.notices_dropped++;
		return false;
	}
	return true;
}

bool rpc_notify_reclaim(struct session *session, const struct device *device, uint64_t bytes,
                        uint64_t id)
{
	answer_t notice = GLAKE__WIRE__ANSWER__INIT;
	Glake__Wire__Reclaim reclaim = GLAKE__WIRE__RECLAIM__INIT;
	reclaim.device = device->index;
	reclaim.bytes = bytes;
	reclaim.id = id;
	notice.body_case = GLAKE__WIRE__ANSWER__BODY_RECLAIM;
	notice.reclaim = &reclaim;
	bool is_sent = rpc_notify(session, &notice);
	session->server->stats.reclaims_sent += is_sent;
	return is_sent;
}

void rpc_notify_shutting_down(struct session *session, uint64_t grace_ms)
{
	answer_t notice = GLAKE__WIRE__ANSWER__INIT;
	Glake__Wire__ShuttingDown shutting_down = GLAKE__WIRE__SHUTTING_DOWN__INIT;
	shutting_down.grace_ms = grace_ms;
	notice.body_case = GLAKE__WIRE__ANSWER__BODY_SHUTTING_DOWN;
	notice.shutting_down = &shutting_down;
	rpc_notify(session, &notice);
}

void rpc_notify_evicted(struct session *session, const char *name)
{
	answer_t notice = GLAKE__WIRE__ANSWER__INIT;
	Glake__Wire__ModelEvicted evicted = GLAKE__WIRE__MODEL_EVICTED__INIT;
	evicted.name = (char *)name;
	notice.body_case = GLAKE__WIRE__ANSWER__BODY_MODEL_EVICTED;
	notice.model_evicted = &evicted;
	rpc_notify(session, &notice);
}

/* ---- what handlers share --------------------------------------------------------------------- */

struct device *rpc_device(struct session *session, uint64_t id, uint32_t index)
{
	if (index >= session->server->n_devices) {
		rpc_refuse(session, id, STATUS_BAD_REQUEST, "there is no device %u", index);
		return NULL;
	}
	return &session->server->devices[index];
}

bool rpc_may_act(const struct session *session, const struct realm *realm)
{
	return session->is_admin || session->realm == realm;
}

/* ---- the greeting ---------------------------------------------------------------------------- */

static Glake__Wire__Device describe_device(const struct session *session,
                                           const struct device *device)
{
	Glake__Wire__Device description = GLAKE__WIRE__DEVICE__INIT;
	description.index = device->index;
	description.uuid.data = (uint8_t *)device->uuid;
	description.uuid.len = sizeof(device->uuid);
	description.name = (char *)device->name;
	description.total_bytes = device->total_bytes;
	description.quota_bytes = session->tenant->devices[device->index].quota_bytes;
	return description;
}

static void greet(struct session *session, uint64_t id)
{
	struct server *server = session->server;
	answer_t answer = GLAKE__WIRE__ANSWER__INIT;
	Glake__Wire__HelloAnswer hello = GLAKE__WIRE__HELLO_ANSWER__INIT;
	Glake__Wire__Device devices[RPC_MAX_DEVICES];
	Glake__Wire__Device *list[n_elements(devices)];

	hello.version = GLAKE_WIRE_VERSION;
	hello.session = session->id;
	hello.tenant = session->tenant->name;
	hello.realm = session->realm->name;
	hello.admin = session->is_admin;
	hello.daemon_version = (char *)GLAKE_VERSION;
	hello.warm_bytes = server->config->warm_bytes;
	for (uint32_t i = 0; i < server->n_devices && i < n_elements(devices); i++) {
		devices[i] = describe_device(session, &server->devices[i]);
		list[i] = &devices[i];
		hello.n_devices++;
	}
	hello.devices = list;
	answer.body_case = GLAKE__WIRE__ANSWER__BODY_HELLO;
	answer.hello = &hello;
	rpc_answer(session, id, &answer, NULL, 0);
}

/* Whoever is turned away here is told why, and closed. */
static void handle_hello(struct session *session, const request_t *request, struct fdlist *fds)
{
	if (session->state != SESSION_NEW) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "a second Hello");
		return;
	}
	if (request->hello->version != GLAKE_WIRE_VERSION) {
		rpc_refuse(session, request->id, STATUS_VERSION,
		           "glaked speaks version %u of the protocol, not %u", GLAKE_WIRE_VERSION,
		           request->hello->version);
		session_close(session);
		return;
	}
	if (session->refusal || session->server->state != SERVER_RUNNING) {
		bool is_draining = session->server->state != SERVER_RUNNING;
		rpc_refuse(session, request->id,
		           is_draining ? STATUS_SHUTTING_DOWN : STATUS_OVER_QUOTA,
		           is_draining ? "glaked is shutting down" : session->refusal);
		session_close(session);
		return;
	}
	if (strlen(request->hello->program) > GLAKE_MAX_NAME_BYTES) {
		/* A row of a listing has to fit a page. */
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "the program's name is longer than %u bytes", GLAKE_MAX_NAME_BYTES);
		session_close(session);
		return;
	}
	session->program = text_clean_copy(request->hello->program);
	session->state = SESSION_OPEN;
	greet(session, request->id);
}

static void handle_ping(struct session *session, const request_t *request, struct fdlist *fds)
{
	rpc_answer_ok(session, request->id);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static const struct {
	rpc_handler_fn handle;
	bool takes_fds;
	bool grants; /* gives something out: not while draining */
} handlers[] = {
	[GLAKE__WIRE__REQUEST__BODY_HELLO] = {handle_hello},
	[GLAKE__WIRE__REQUEST__BODY_PING] = {handle_ping},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC] = {rpc_chunk_alloc, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_FREE] = {rpc_chunk_free},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_SHARE] = {rpc_chunk_share, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_OPEN] = {rpc_chunk_open, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_USAGE_REPORT] = {rpc_usage_report},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN] = {rpc_model_open, .takes_fds = true,
                                                   .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_TENSORS] = {rpc_model_tensors},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_BLOCKS] = {rpc_model_blocks},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_CLOSE] = {rpc_model_close},
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_PUBLISH] = {rpc_block_publish, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_LOOKUP] = {rpc_block_lookup, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_RELEASE] = {rpc_block_release},
	[GLAKE__WIRE__REQUEST__BODY_STATUS_GET] = {rpc_status_get},
	[GLAKE__WIRE__REQUEST__BODY_DEVICE_GET] = {rpc_device_get},
	[GLAKE__WIRE__REQUEST__BODY_STATS_GET] = {rpc_stats_get},
	[GLAKE__WIRE__REQUEST__BODY_SESSION_LIST] = {rpc_session_list},
	[GLAKE__WIRE__REQUEST__BODY_TENANT_LIST] = {rpc_tenant_list},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_LIST] = {rpc_model_list},
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_LIST] = {rpc_block_list},
	[GLAKE__WIRE__REQUEST__BODY_PIN] = {rpc_pin},
	[GLAKE__WIRE__REQUEST__BODY_EVICT] = {rpc_evict},
	[GLAKE__WIRE__REQUEST__BODY_QUOTA_SET] = {rpc_quota_set},
};

static void dispatch(struct session *session, const request_t *request, struct fdlist *fds)
{
	size_t body = (size_t)request->body_case;
	if (session->state == SESSION_NEW && body != GLAKE__WIRE__REQUEST__BODY_HELLO) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "Hello comes first");
		session_close(session);
		return;
	}
	if (body >= n_elements(handlers) || !handlers[body].handle) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "no such request");
		return;
	}
	if (fds->n_fds > 0 && !handlers[body].takes_fds) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "fds with a request that takes none");
		return;
	}
	if (fds->is_cut) {
		rpc_refuse(session, request->id, STATUS_NO_FDS,
		           "glaked has no fds left for those of the request");
		return;
	}
	if (handlers[body].grants && session->server->state != SERVER_RUNNING) {
		rpc_refuse(session, request->id, STATUS_SHUTTING_DOWN, "glaked is shutting down");
		return;
	}
	handlers[body].handle(session, request, fds);
}

void rpc_handle(struct session *session, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	session->server->stats.requests_total++;
	const char *error = bounds_check_request(bytes, n_bytes);
	if (error) {
		session_reject(session, "a packet of %zu bytes: %s", n_bytes, error);
		return;
	}
	request_t *request = glake__wire__request__unpack(NULL, n_bytes, bytes);
	if (!request || request->id == 0) {
		session_reject(session, "%zu bytes that are no request", n_bytes);
	} else {
		dispatch(session, request, fds);
	}
	if (request) {
		glake__wire__request__free_unpacked(request, NULL);
	}
}
