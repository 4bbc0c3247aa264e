/* SPDX-License-Identifier: Apache-2.0 */
/* An order to drain, or to end that (drain.h): the file first, in another thread, then the answer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/text.h"
#include "daemon/rpc/rpc_handlers.h"
#include "proto/cleanup.h"

struct order {
	uv_work_t work;
	struct pending pending;
	bool is_wanted; /* the session is there still */
	struct rpc_context *rpc;
	struct drained before;
	struct drained mark;
	uint32_t uid;
	int result;
};

static void cancel(struct pending *pending)
{
	container_of(pending, struct order, pending)->is_wanted = false;
}

static void write_mark(uv_work_t *work)
{
	struct order *order = container_of(work, struct order, work);
	order->result = drained_write(order->rpc->drain.path, &order->mark);
}

static void tell(const struct order *order)
{
	static const struct event_subject nobody = {.realm = NULL};
	const char *reason = order->mark.reason;
	if (order->mark.is_on && !order->before.is_on) {
		events_add(
			order->rpc->events, EVENT_DRAIN, &nobody,
			"glaked is drained: no new program is let in, %u are left; by uid %u%s%s",
			holders_n_programs(&order->rpc->holders), order->uid, *reason ? ": " : "",
			reason);
	} else if (!order->mark.is_on && order->before.is_on) {
		events_add(order->rpc->events, EVENT_DRAIN, &nobody,
		           "glaked is not drained any more; by uid %u", order->uid);
	}
}

static void on_written(uv_work_t *work, int status)
{
	struct order *order = container_of(work, struct order, work);
	struct drain *drain = &order->rpc->drain;
	int r = status < 0 ? status : order->result;
	drain->is_busy = false;
	drain->mark = r == 0 ? order->mark : order->before;
	if (r == 0) {
		tell(order);
	} else {
		log_error("cannot keep that glaked is %sdrained: %s: %s",
		          order->mark.is_on ? "" : "not ", drain->path, strerror(-r));
	}
	if (order->is_wanted) {
		struct session *session = order->pending.session;
		uint64_t id = order->pending.request;
		session_end(&order->pending);
		if (r == 0) {
			rpc_answer_ok(session, id);
		} else {
			rpc_refuse(session, id, STATUS_INTERNAL, "cannot write %s: %s", drain->path,
			           strerror(-r));
		}
	}
	free(order);
}

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void fill(struct order *order, const struct session *session, const Glake__Wire__Drain *body)
{
	const struct drained *before = &rpc_of(session)->drain.mark;
	order->is_wanted = true;
	order->rpc = rpc_of(session);
	order->before = *before;
	order->uid = session->holder->peer.uid;
	if (body->undo) {
		return;
	}
	order->mark = *before;
	if (!before->is_on) {
		order->mark = (struct drained){
			.is_on = true, .since_ms = now_ms(), .uid = order->uid};
	}
	if (body->reason[0]) {
		snprintf(order->mark.reason, sizeof(order->mark.reason), "%s", body->reason);
		text_clean(order->mark.reason);
	}
}

void rpc_drain(struct session *session, const request_t *request, struct fdlist *fds)
{
	struct rpc_context *rpc = rpc_of(session);
	if (!session->holder->is_admin) {
		rpc_refuse(session, request->id, STATUS_NO_PERMISSION,
		           "glaked is drained by root or the admin group");
		return;
	}
	if (strlen(request->drain->reason) > GLAKE_MAX_REASON_BYTES) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "the reason is longer than %u bytes", GLAKE_MAX_REASON_BYTES);
		return;
	}
	if (rpc->drain.is_busy) {
		rpc_refuse(session, request->id, STATUS_BUSY,
		           "another order to drain, or to end that, is being written");
		return;
	}
	cleanup_free struct order *order = calloc(1, sizeof(*order));
	if (!order) {
		rpc_refuse(session, request->id, STATUS_NO_HOST_MEMORY, "no memory in glaked");
		return;
	}
	fill(order, session, request->drain);
	if (!session_begin(session, &order->pending, request->id, cancel)) {
		rpc_refuse(session, request->id, STATUS_BUSY, "too many requests under way");
		return;
	}
	rpc->drain.is_busy = true;
	if (order->mark.is_on) {
		/* Who comes meanwhile is not let in. */
		rpc->drain.mark = order->mark;
	}
	uv_queue_work(rpc->sessions.loop, &order->work, write_mark, on_written);
	ptr_steal(order);
}
