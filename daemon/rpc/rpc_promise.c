/* SPDX-License-Identifier: Apache-2.0 */
/* A process is to be promised memory. */
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/memory/promise_request.h"
#include "daemon/rpc/rpc_handlers.h"
#include "proto/cleanup.h"

/* A pending Promise. */
struct promise_wait {
	struct pending pending;
	struct promise *promise; /* a reference */
	struct promise_request *request;
	uint64_t bytes;
	struct refusal refusal;
};

static void free_wait(struct promise_wait *wait)
{
	promise_unref(wait->promise);
	free(wait);
}

static void cancel_promise(struct pending *pending)
{
	struct promise_wait *wait = container_of(pending, struct promise_wait, pending);
	promise_request_cancel(wait->request);
	free_wait(wait);
}

struct pressure_wait rpc_promise_wait(const struct pending *pending)
{
	const struct promise_wait *wait = container_of(pending, const struct promise_wait, pending);
	return promise_request_wait_of(pending->cancel == cancel_promise ? wait->request : NULL);
}

/* There is one already: the process repeats itself, or another session of it was first. */
static void answer_again(struct session *session, uint64_t id, const struct promise *promise,
                         uint64_t bytes)
{
	if (promise->bytes == bytes) {
		rpc_answer_ok(session, id);
	} else {
		rpc_refuse(session, id, STATUS_BAD_REQUEST,
		           "this process was promised %" PRIu64 " bytes of device %u before",
		           promise->bytes, promise->at->number);
	}
}

static void on_reserved(void *user, enum status status)
{
	struct promise_wait *wait = user;
	struct session *session = wait->pending.session;
	struct promise *other = holder_find_promise(session->holder, wait->promise->at->slot);
	uint64_t id = wait->pending.request;
	char text[REFUSAL_TEXT_BYTES];
	session_end(&wait->pending);
	if (other) {
		answer_again(session, id, other, wait->bytes);
	} else if (status == STATUS_OK) {
		holder_set_promise(session->holder, wait->promise, wait->bytes);
		rpc_answer_ok(session, id);
	} else {
		alloc_explain(status, &wait->refusal, text);
		holder_note_refusal(session->holder, &wait->refusal);
		rpc_refuse(session, id, status, "a promise: %s", text);
	}
	free_wait(wait);
}

static struct promise_wait *begin(struct session *session, uint64_t id, struct location *at)
{
	struct promise_wait *wait = calloc(1, sizeof(*wait));
	struct promises *promises = &rpc_of(session)->allocator->promises;
	if (wait) {
		wait->promise = promise_new(promises, at, session->holder->tenant);
	}
	if (!wait || !wait->promise) {
		free(wait);
		rpc_refuse(session, id, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return NULL;
	}
	if (!session_begin(session, &wait->pending, id, cancel_promise)) {
		free_wait(wait);
		rpc_refuse(session, id, STATUS_BUSY, "too many requests under way");
		return NULL;
	}
	return wait;
}

static void start(struct session *session, const request_t *request, struct location *at)
{
	const Glake__Wire__Promise *body = request->promise;
	uint64_t had = holder_process_bytes(session->holder, at->slot);
	struct promise_wait *wait = begin(session, request->id, at);
	if (!wait) {
		return;
	}
	wait->bytes = body->bytes;
	const struct promise_wanted wanted = {.promise = wait->promise,
	                                      .tenant = session->holder->tenant,
	                                      .bytes = body->bytes - had,
	                                      .waited_ms = body->waited_ms,
	                                      .refusal = &wait->refusal};
	enum status status = STATUS_OK;
	if (wanted.bytes > 0) {
		status = promise_request_start(rpc_of(session)->allocator, &wanted, on_reserved,
		                               wait, &wait->request);
	}
	if (status != STATUS_OK || wanted.bytes == 0) {
		on_reserved(wait, status);
	}
}

void rpc_promise(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__Promise *body = request->promise;
	struct location *at = rpc_location(session, request->id,
	                                   GLAKE__WIRE__LOCATION_KIND__LOCATION_GPU, body->device);
	if (!at) {
		return;
	}
	const struct promise *promise = holder_find_promise(session->holder, at->slot);
	uint64_t had = holder_process_bytes(session->holder, at->slot);
	if (promise) {
		answer_again(session, request->id, promise, body->bytes);
	} else if (body->bytes == 0 || body->bytes % GLAKE_CHUNK_GRANULARITY || body->bytes < had) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "a promise of %" PRIu64 " bytes: the process has %" PRIu64 " now",
		           body->bytes, had);
	} else {
		start(session, request, at);
	}
}
