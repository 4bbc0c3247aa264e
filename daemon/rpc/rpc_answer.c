/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/rpc_answer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/text.h"
#include "proto/cleanup.h"

_Static_assert((int)STATUS_COUNT == GLAKE__WIRE__STATUS__NO_DRIVER + 1 &&
                       (int)STATUS_BUSY == GLAKE__WIRE__STATUS__BUSY &&
                       (int)STATUS_BAD_FILE == GLAKE__WIRE__STATUS__BAD_FILE,
               "daemon/base/status.h and proto/glake.proto number the same things");

static int send_packed(struct session *session, answer_t *answer, const int *fds, size_t n_fds)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	size_t n_bytes = glake__wire__answer__get_packed_size(answer);
	if (n_bytes > sizeof(bytes)) {
		log_limited(&session->log_limit, LOG_LEVEL_ERROR,
		            "an answer of %zu bytes does not fit a packet", n_bytes);
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
		/* Otherwise the peer would wait for the answer for ever. */
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
	/* The text may quote the client, and may be cut inside a character. */
	text_clean(text);
	log_limited(&session->log_limit, LOG_LEVEL_DEBUG, "session %llu (pid %d): refused: %s",
	            (unsigned long long)session->holder->id, (int)session->holder->peer.pid, text);
	rpc_of(session)->stats->requests_refused++;
	answer.status = (Glake__Wire__Status)status;
	answer.error = text;
	rpc_answer(session, id, &answer, NULL, 0);
}

void rpc_refuse_open(struct session *session, uint64_t id)
{
	rpc_refuse(session, id, STATUS_NO_HOST_MEMORY,
	           "the session has too much open, or all of tenant %s (manifest_bytes), or glaked "
	           "is out of host memory",
	           session->holder->tenant->name);
}

void rpc_refuse_unparked(struct session *session, uint64_t id, const char *thing, uint64_t thing_id)
{
	rpc_refuse(session, id, STATUS_NO_FDS, "%s %llu has no fd since glaked was restarted",
	           thing, (unsigned long long)thing_id);
}

bool rpc_notify(struct session *session, answer_t *notice)
{
	if (session->state != SESSION_OPEN) {
		return false;
	}
	if (conn_n_queued(&session->conn) > 0 || send_packed(session, notice, NULL, 0) < 0) {
		rpc_of(session)->stats->notices_dropped++;
		return false;
	}
	return true;
}

bool rpc_notify_reclaim(struct session *session, const struct location *at, uint64_t bytes,
                        uint64_t id)
{
	Glake__Wire__Reclaim reclaim = GLAKE__WIRE__RECLAIM__INIT;
	reclaim.device = at->number;
	reclaim.bytes = bytes;
	reclaim.id = id;
	bool is_sent = rpc_notify(session, ANSWER_OF(RECLAIM, reclaim, &reclaim));
	rpc_of(session)->stats->reclaims_sent += is_sent;
	return is_sent;
}

void rpc_notify_shutting_down(struct session *session, uint64_t grace_ms)
{
	Glake__Wire__ShuttingDown shutting_down = GLAKE__WIRE__SHUTTING_DOWN__INIT;
	shutting_down.grace_ms = grace_ms;
	rpc_notify(session, ANSWER_OF(SHUTTING_DOWN, shutting_down, &shutting_down));
}

void rpc_notify_evicted(struct session *session, const char *name)
{
	Glake__Wire__ModelEvicted evicted = GLAKE__WIRE__MODEL_EVICTED__INIT;
	evicted.name = (char *)name;
	rpc_notify(session, ANSWER_OF(MODEL_EVICTED, model_evicted, &evicted));
}

/* ---- what handlers share --------------------------------------------------------------------- */

struct device *rpc_device(struct session *session, uint64_t id, uint32_t index)
{
	if (index >= rpc_of(session)->n_devices) {
		rpc_refuse(session, id, STATUS_BAD_REQUEST, "there is no device %u", index);
		return NULL;
	}
	return &rpc_of(session)->devices[index];
}

struct location *rpc_location(struct session *session, uint64_t id, int kind, uint32_t number)
{
	const struct rpc_context *rpc = rpc_of(session);
	if (kind == GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU) {
		struct device *device = rpc_device(session, id, number);
		return device ? &device->at : NULL;
	}
	for (uint32_t i = rpc->n_devices; i < rpc->n_locations; i++) {
		struct location *at = rpc->locations[i];
		if (kind == GLAKE__WIRE__LOCATION_KIND__LOCATION_HOST && at->number == number) {
			return at;
		}
	}
	const char *why = rpc->nodes->lacking;
	rpc_refuse(session, id, STATUS_BAD_REQUEST, "there is no %s %u%s%s",
	           kind == GLAKE__WIRE__LOCATION_KIND__LOCATION_HOST ? "host node"
	                                                             : "location of that kind",
	           number, why[0] ? ": " : "", why);
	return NULL;
}

/* The tag and the length before a row take at most this many bytes. */
#define ROW_OVERHEAD_BYTES 10

bool rpc_page_add(struct rpc_page *page, uint64_t id, const ProtobufCMessage *row)
{
	size_t row_bytes = protobuf_c_message_get_packed_size(row) + ROW_OVERHEAD_BYTES;
	if (page->n_rows == page->max_rows || page->n_bytes + row_bytes > GLAKE_PAGE_BYTES) {
		page->next = page->last;
		return false;
	}
	size_t message_bytes = row->descriptor->sizeof_message;
	char *place = (char *)page->rows + page->n_rows * message_bytes;
	memcpy(place, row, message_bytes);
	memcpy((char *)page->list + page->n_rows * sizeof(place), &place, sizeof(place));
	page->n_rows++;
	page->n_bytes += row_bytes;
	page->last = id;
	return true;
}

bool rpc_may_act(const struct session *session, const struct realm *realm)
{
	return session->holder->is_admin || session->holder->realm == realm;
}
