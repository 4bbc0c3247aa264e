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

struct drain_work {
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
	container_of(pending, struct drain_work, pending)->is_wanted = false;
}

static void write_mark(uv_work_t *work)
{
	struct drain_work *drain_work = container_of(work, struct drain_work, work);
	drain_work->result = drained_write(drain_work->rpc->drain.path, &drain_work->mark);
}

static void tell(const struct drain_work *drain_work)
{
	static const struct event_subject nobody = {.realm = NULL};
	const char *reason = drain_work->mark.reason;
	if (drain_work->mark.is_on && !drain_work->before.is_on) {
		events_add(
			drain_work->rpc->events, EVENT_DRAIN, &nobody,
			"glaked is drained: no new program is let in, %u are left; by uid %u%s%s",
			holders_n_programs(&drain_work->rpc->holders), drain_work->uid,
			*reason ? ": " : "", reason);
	} else if (!drain_work->mark.is_on && drain_work->before.is_on) {
		events_add(drain_work->rpc->events, EVENT_DRAIN, &nobody,
		           "glaked is not drained any more; by uid %u", drain_work->uid);
	}
}

static void on_written(uv_work_t *work, int status)
{
	struct drain_work *drain_work = container_of(work, struct drain_work, work);
	struct drain *drain = &drain_work->rpc->drain;
	int r = status < 0 ? status : drain_work->result;
	drain->is_busy = false;
	drain->mark = r == 0 ? drain_work->mark : drain_work->before;
	if (r == 0) {
		tell(drain_work);
	} else {
		log_error("cannot keep that glaked is %sdrained: %s: %s",
		          drain_work->mark.is_on ? "" : "not ", drain->path, strerror(-r));
	}
	if (drain_work->is_wanted) {
		struct session *session = drain_work->pending.session;
		uint64_t id = drain_work->pending.request;
		session_end(&drain_work->pending);
		if (r == 0) {
			rpc_answer_ok(session, id);
		} else {
			rpc_refuse(session, id, STATUS_INTERNAL, "cannot write %s: %s", drain->path,
			           strerror(-r));
		}
	}
	free(drain_work);
}

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void fill(struct drain_work *drain_work, const struct session *session,
                 const Glake__Wire__Drain *body)
{
	const struct drained *before = &rpc_of(session)->drain.mark;
	drain_work->is_wanted = true;
	drain_work->rpc = rpc_of(session);
	drain_work->before = *before;
	drain_work->uid = session->holder->peer.uid;
	if (body->undo) {
		return;
	}
	drain_work->mark = *before;
	if (!before->is_on) {
		drain_work->mark = (struct drained){
			.is_on = true, .since_ms = now_ms(), .uid = drain_work->uid};
	}
	if (body->reason[0]) {
		snprintf(drain_work->mark.reason, sizeof(drain_work->mark.reason), "%s",
		         body->reason);
		text_clean(drain_work->mark.reason);
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
	cleanup_free struct drain_work *drain_work = calloc(1, sizeof(*drain_work));
	if (!drain_work) {
		rpc_refuse(session, request->id, STATUS_NO_HOST_MEMORY, "no memory in glaked");
		return;
	}
	fill(drain_work, session, request->drain);
	if (!session_begin(session, &drain_work->pending, request->id, cancel)) {
		rpc_refuse(session, request->id, STATUS_BUSY, "too many requests under way");
		return;
	}
	rpc->drain.is_busy = true;
	if (drain_work->mark.is_on) {
		/* Sessions that come meanwhile are not let in. */
		rpc->drain.mark = drain_work->mark;
	}
	uv_queue_work(rpc->sessions.loop, &drain_work->work, write_mark, on_written);
	ptr_steal(drain_work);
}
