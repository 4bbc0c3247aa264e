/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/rpc.h"

#include <string.h>

#include "daemon/rpc/rpc_handlers.h"
#include "daemon/rpc/rpc_mistakes.h"
#include "daemon/base/text.h"
#include "proto/bounds.h"
#include "proto/cleanup.h"

/* ---- the greeting ---------------------------------------------------------------------------- */

static Glake__Wire__Host describe_node(const struct session *session, const struct location *at)
{
	Glake__Wire__Host description = GLAKE__WIRE__HOST__INIT;
	description.node = at->number;
	description.total_bytes = at->total_bytes;
	description.limit_bytes = at->usable_bytes;
	description.quota_bytes = session->holder->tenant->at[at->slot].quota_bytes;
	return description;
}

static Glake__Wire__Device describe_device(const struct session *session,
                                           const struct device *device)
{
	Glake__Wire__Device description = GLAKE__WIRE__DEVICE__INIT;
	description.index = device->index;
	description.uuid.data = (uint8_t *)device->uuid;
	description.uuid.len = sizeof(device->uuid);
	description.name = (char *)device->name;
	description.total_bytes = device->at.total_bytes;
	description.quota_bytes = session->holder->tenant->at[device->index].quota_bytes;
	return description;
}

static void greet(struct session *session, uint64_t id)
{
	struct rpc_context *rpc = rpc_of(session);
	Glake__Wire__HelloAnswer hello = GLAKE__WIRE__HELLO_ANSWER__INIT;
	Glake__Wire__Device devices[RPC_MAX_DEVICES];
	Glake__Wire__Device *list[n_elements(devices)];
	Glake__Wire__Host hosts[NODE_MAX];
	Glake__Wire__Host *host_list[NODE_MAX];
	char doubt[RPC_DOUBT_BYTES];
	uint64_t doubted[MISTAKES_OF_USER * GLAKE_MAX_SUSPECTS];

	hello.version = GLAKE_WIRE_VERSION;
	hello.session = session->holder->id;
	hello.tenant = session->holder->tenant->name;
	hello.realm = session->holder->realm->name;
	hello.admin = session->holder->is_admin;
	hello.key.data = session->holder->key;
	hello.key.len = sizeof(session->holder->key);
	hello.daemon_version = (char *)GLAKE_VERSION;
	hello.warm_bytes = rpc->config->warm_bytes;
	for (uint32_t i = 0; i < rpc->n_devices && i < n_elements(devices); i++) {
		devices[i] = describe_device(session, &rpc->devices[i]);
		list[i] = &devices[i];
		hello.n_devices++;
	}
	hello.devices = list;
	for (uint32_t i = 0; i < rpc->nodes->n; i++) {
		hosts[i] = describe_node(session, &rpc->nodes->at[i]);
		host_list[i] = &hosts[i];
		hello.n_hosts++;
	}
	hello.hosts = host_list;
	hello.knows_spare = true;
	hello.dedup = (Glake__Wire__Dedup)session->holder->tenant->dedup;
	hello.doubt = rpc_doubt_of(session->holder, doubt);
	hello.n_doubted = mistakes_words_of(&rpc->holders.mistakes, session->holder->user->uid,
	                                    doubted);
	hello.doubted = doubted;
	rpc_answer(session, id, ANSWER_OF(HELLO, hello, &hello), NULL, 0);
}

static void turn_away(struct session *session, const request_t *request, enum status status,
                      const char *why)
{
	rpc_refuse(session, request->id, status, "%s", why);
	session_close(session);
}

/* The session's holder is let in already, so no limit refuses it. */
static void resume(struct session *session, const request_t *request)
{
	const Glake__Wire__Hello *hello = request->hello;
	if (hello->key.len != GLAKE_KEY_BYTES || hello->n_unanswered > GLAKE_MAX_UNANSWERED ||
	    hello->n_released > GLAKE_MAX_RELEASED) {
		turn_away(session, request, STATUS_BAD_REQUEST, "that is no key");
	} else if (!session_resume(session, hello->key.data, hello->unanswered,
	                           hello->n_unanswered)) {
		turn_away(session, request, STATUS_NOT_FOUND, "this process has no such session");
	} else {
		holder_release_ids(session->holder, hello->released, hello->n_released);
		greet(session, request->id);
	}
}

static int greet_as(struct session *session, const Glake__Wire__Hello *hello, const uint8_t *key)
{
	const char *cgroup = session->holder->peer.cgroup;
	const struct holder_labels labels = {
		.program = text_clean_copy(hello->program),
		.name = text_clean_copy(hello->name),
		.script = text_clean_copy(hello->script),
		.arguments = text_clean_copy(hello->arguments),
		.executable = text_clean_copy(hello->executable),
		.cgroup = cgroup ? text_clean_copy(cgroup) : NULL,
	};
	session->holder->only_looks = hello->only_looks;
	return session_greet(session, &labels, hello->image, key);
}

static void begin(struct session *session, const request_t *request)
{
	const Glake__Wire__Hello *hello = request->hello;
	const uint8_t *key = hello->new_key.len == GLAKE_KEY_BYTES ? hello->new_key.data : NULL;
	if (key && session_resume(session, key, NULL, 0)) {
		/* The answer to an earlier one was lost. */
		greet(session, request->id);
	} else if (!drain_lets_in(&rpc_of(session)->drain, session->holder, hello->only_looks)) {
		char why[DRAIN_WHY_BYTES];
		rpc_of(session)->stats->sessions_drained++;
		drain_say_why(&rpc_of(session)->drain, why);
		turn_away(session, request, STATUS_DRAINED, why);
	} else if (session->holder->refusal) {
		turn_away(session, request, STATUS_OVER_QUOTA, session->holder->refusal);
	} else if (!session->holder->is_admin && !store_has_room(rpc_of(session)->store)) {
		turn_away(session, request, STATUS_NO_HOST_MEMORY, STORE_NO_ROOM);
	} else if (strlen(hello->name) > GLAKE_MAX_LABEL_BYTES ||
	           strlen(hello->script) > GLAKE_MAX_LABEL_BYTES ||
	           strlen(hello->executable) > GLAKE_MAX_LABEL_BYTES ||
	           strlen(hello->arguments) > GLAKE_MAX_NAME_BYTES) {
		turn_away(session, request, STATUS_BAD_REQUEST,
		          "the process's name, script or arguments are too long");
	} else if (strlen(hello->program) > GLAKE_MAX_NAME_BYTES) {
		/* A row of a listing must fit a page. */
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "the program's name is longer than %u bytes", GLAKE_MAX_NAME_BYTES);
		session_close(session);
	} else if (greet_as(session, hello, key) < 0) {
		turn_away(session, request, STATUS_INTERNAL, "no random numbers");
	} else {
		greet(session, request->id);
	}
}

/* A refused client is told the reason, and closed. */
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
	if (rpc_of(session)->is_draining) {
		turn_away(session, request, STATUS_SHUTTING_DOWN, "glaked is shutting down");
	} else if (request->hello->key.len > 0) {
		resume(session, request);
	} else {
		begin(session, request);
	}
}

static void handle_goodbye(struct session *session, const request_t *request, struct fdlist *fds)
{
	rpc_answer_ok(session, request->id);
	session_close(session);
}

static void handle_ping(struct session *session, const request_t *request, struct fdlist *fds)
{
	rpc_answer_ok(session, request->id);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static const struct {
	rpc_handler_fn handle;
	bool takes_fds;
	bool grants; /* the request grants something, so it is refused while draining */
	bool is_taken; /* the session gets memory or a model, so the request is refused to who only looks */
	bool is_written; /* the grant is written in the books, so it is refused while they have no room */
} handlers[] = {
	[GLAKE__WIRE__REQUEST__BODY_HELLO] = {handle_hello},
	[GLAKE__WIRE__REQUEST__BODY_GOODBYE] = {handle_goodbye},
	[GLAKE__WIRE__REQUEST__BODY_PING] = {handle_ping},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC] = {rpc_chunk_alloc, .grants = true,
                                                    .is_taken = true, .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_PROMISE] = {rpc_promise, .grants = true, .is_taken = true,
                                                .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_FREE] = {rpc_chunk_free},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_SHARE] = {rpc_chunk_share, .grants = true,
                                                    .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_OPEN] = {rpc_chunk_open, .grants = true, .is_taken = true,
                                                   .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_KEEP] = {rpc_chunk_keep, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_UNKEEP] = {rpc_chunk_unkeep},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_ADOPT] = {rpc_chunk_adopt, .grants = true,
                                                    .is_taken = true, .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_CHUNK_READ] = {rpc_chunk_read, .grants = true, .is_taken = true,
                                                   .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_USAGE_REPORT] = {rpc_usage_report},
	[GLAKE__WIRE__REQUEST__BODY_FAULT_REPORT] = {rpc_fault_report},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN] = {rpc_model_open, .takes_fds = true,
                                                   .grants = true, .is_taken = true,
                                                   .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_TENSORS] = {rpc_model_tensors},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_BLOCKS] = {rpc_model_blocks},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_CLOSE] = {rpc_model_close},
	[GLAKE__WIRE__REQUEST__BODY_WEIGHTS_PUBLISH] = {rpc_weights_publish, .grants = true,
                                                        .is_taken = true},
	[GLAKE__WIRE__REQUEST__BODY_WEIGHTS_ATTACH] = {rpc_weights_attach, .grants = true,
                                                       .is_taken = true, .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_PUBLISH] = {rpc_block_publish, .grants = true,
                                                      .is_taken = true, .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_LOOKUP] = {rpc_block_lookup, .grants = true,
                                                     .is_taken = true, .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_RELEASE] = {rpc_block_release},
	[GLAKE__WIRE__REQUEST__BODY_STATUS_GET] = {rpc_status_get},
	[GLAKE__WIRE__REQUEST__BODY_DEVICE_GET] = {rpc_device_get},
	[GLAKE__WIRE__REQUEST__BODY_STATS_GET] = {rpc_stats_get},
	[GLAKE__WIRE__REQUEST__BODY_SESSION_LIST] = {rpc_session_list},
	[GLAKE__WIRE__REQUEST__BODY_TENANT_LIST] = {rpc_tenant_list},
	[GLAKE__WIRE__REQUEST__BODY_MODEL_LIST] = {rpc_model_list},
	[GLAKE__WIRE__REQUEST__BODY_BLOCK_LIST] = {rpc_block_list},
	[GLAKE__WIRE__REQUEST__BODY_EVENT_LIST] = {rpc_event_list},
	[GLAKE__WIRE__REQUEST__BODY_USE_LIST] = {rpc_use_list},
	[GLAKE__WIRE__REQUEST__BODY_PIN] = {rpc_pin, .is_written = true},
	[GLAKE__WIRE__REQUEST__BODY_EVICT] = {rpc_evict},
	[GLAKE__WIRE__REQUEST__BODY_QUOTA_SET] = {rpc_quota_set},
	[GLAKE__WIRE__REQUEST__BODY_SESSION_SEAL] = {rpc_session_seal, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_SEAL_PROGRESS] = {rpc_seal_progress},
	[GLAKE__WIRE__REQUEST__BODY_SLEEP_COPY] = {rpc_sleep_copy, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_SLEEP_ENTER] = {rpc_sleep_enter},
	[GLAKE__WIRE__REQUEST__BODY_SLEEP_LEAVE] = {rpc_sleep_leave, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_SESSION_SLEEP] = {rpc_session_sleep, .grants = true},
	[GLAKE__WIRE__REQUEST__BODY_SLEEPER_LIST] = {rpc_sleeper_list},
	[GLAKE__WIRE__REQUEST__BODY_DRAIN] = {rpc_drain},
	[GLAKE__WIRE__REQUEST__BODY_MISTAKE_LIST] = {rpc_mistake_list},
	[GLAKE__WIRE__REQUEST__BODY_MISTAKE_FORGIVE] = {rpc_mistake_forgive},
	[GLAKE__WIRE__REQUEST__BODY_READERS_GET] = {rpc_readers_get},
	[GLAKE__WIRE__REQUEST__BODY_LAYOUT_LIST] = {rpc_layout_list},
};

/* Whether the request may be written down. Things that are given back always are: the books keep room for them. */
static bool may_write(const struct session *session, const request_t *request)
{
	bool is_unpin = request->body_case == GLAKE__WIRE__REQUEST__BODY_PIN && request->pin->unpin;
	return is_unpin || store_has_room(rpc_of(session)->store);
}

static void dispatch(struct session *session, const request_t *request, struct fdlist *fds)
{
	size_t body = (size_t)request->body_case;
	if (session->state == SESSION_NEW && body != GLAKE__WIRE__REQUEST__BODY_HELLO) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "Hello must come first");
		session_close(session);
		return;
	}
	if (body >= n_elements(handlers) || !handlers[body].handle) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "unknown request");
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
	if (handlers[body].grants && rpc_of(session)->is_draining) {
		rpc_refuse(session, request->id, STATUS_SHUTTING_DOWN, "glaked is shutting down");
		return;
	}
	if (handlers[body].is_taken && session->holder->only_looks) {
		rpc_refuse(session, request->id, STATUS_NO_PERMISSION,
		           "this session said that it only looks");
		return;
	}
	if (handlers[body].is_written && !may_write(session, request)) {
		rpc_refuse(session, request->id, STATUS_NO_HOST_MEMORY, "%s", STORE_NO_ROOM);
		return;
	}
	handlers[body].handle(session, request, fds);
}

static void handle(struct session *session, const uint8_t *bytes, size_t n_bytes,
                   struct fdlist *fds)
{
	rpc_of(session)->stats->requests_total++;
	const char *error = bounds_check_request(bytes, n_bytes);
	if (error) {
		session_reject(session, "a packet of %zu bytes: %s", n_bytes, error);
		return;
	}
	request_t *request = glake__wire__request__unpack(NULL, n_bytes, bytes);
	if (!request || request->id == 0) {
		session_reject(session, "%zu bytes that are not a request", n_bytes);
	} else {
		dispatch(session, request, fds);
	}
	if (request) {
		glake__wire__request__free_unpacked(request, NULL);
	}
}

void rpc_handle(struct session *session, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	struct stats *stats = rpc_of(session)->stats;
	uint64_t began_ns = uv_hrtime();
	handle(session, bytes, n_bytes, fds);
	histogram_add(&stats->request_time, uv_hrtime() - began_ns);
}
