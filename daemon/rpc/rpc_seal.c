/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/rpc_seal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/text.h"
#include "daemon/rpc/rpc_handlers.h"

/* A program's first report comes at once, unless it is stopped; each later one within a batch of blocks. */
#define FIRST_REPORT_MS 10000u
#define NEXT_REPORT_MS 60000u

/* A pending SessionSeal. */
struct seal {
	struct list link; /* link: rpc_context.seal_list */
	struct pending pending;
	uint64_t id;           /* of the notice */
	struct holder *holder; /* owned reference; that is asked */
	uint64_t until_ms;     /* the next report comes before */
	bool has_reported;
	bool wants_progress;
};

/* ---- the end ---------------------------------------------------------------------------------- */

static void seal_free(struct seal *seal)
{
	list_remove(&seal->link);
	holder_unref(seal->holder);
	free(seal);
}

/* The program goes on, and its reports are refused. */
static void cancel_seal(struct pending *pending)
{
	seal_free(container_of(pending, struct seal, pending));
}

/* Returns the session to answer. */
static struct session *seal_end(struct seal *seal, uint64_t *request_out)
{
	struct session *session = seal->pending.session;
	*request_out = seal->pending.request;
	session_end(&seal->pending);
	seal_free(seal);
	return session;
}

__attribute__((format(printf, 3, 4))) static void seal_fail(struct seal *seal, enum status status,
                                                            const char *format, ...)
{
	char text[256];
	uint64_t request;
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	struct session *session = seal_end(seal, &request);
	rpc_refuse(session, request, status, "%s", text);
}

/*
 * Refuses one that is over for another reason than a report. False: there is none. A program that has lost
 * its connection may be back in time.
 */
static bool fail_one(struct rpc_context *rpc)
{
	uint64_t now_ms = uv_now(rpc->sessions.loop);
	struct seal *seal;
	list_for_each (seal, &rpc->seal_list, link) {
		uint64_t id = seal->holder->id;
		if (seal->holder->state == HOLDER_ENDED) {
			seal_fail(seal, STATUS_NOT_FOUND, "session %" PRIu64 " has ended", id);
			return true;
		}
		if (now_ms >= seal->until_ms) {
			seal_fail(seal, STATUS_BUSY,
			          "session %" PRIu64 " (pid %d) does not answer%s", id,
			          (int)seal->holder->peer.pid,
			          seal->has_reported ? " any more" : ": is it stopped?");
			return true;
		}
	}
	return false;
}

/* An answer may end the session that it is for, and with it others of the list. */
void rpc_seals_tick(struct rpc_context *rpc)
{
	while (fail_one(rpc)) {
		/* From the beginning. */
	}
}

/* ---- asking ----------------------------------------------------------------------------------- */

static struct seal *find_seal(const struct rpc_context *rpc, const struct holder *holder)
{
	struct seal *seal;
	list_for_each (seal, &rpc->seal_list, link) {
		if (seal->holder == holder) {
			return seal;
		}
	}
	return NULL;
}

static struct session *session_of(const struct rpc_context *rpc, const struct holder *holder)
{
	struct session *session;
	list_for_each (session, &rpc->sessions.list, link) {
		if (session->holder == holder && session->state == SESSION_OPEN) {
			return session;
		}
	}
	return NULL;
}

static bool notify(struct session *session, uint64_t id, bool is_dry_run)
{
	answer_t notice = GLAKE__WIRE__ANSWER__INIT;
	Glake__Wire__Seal body = GLAKE__WIRE__SEAL__INIT;
	body.id = id;
	body.dry_run = is_dry_run;
	notice.body_case = GLAKE__WIRE__ANSWER__BODY_SEAL;
	notice.seal = &body;
	return rpc_notify(session, &notice);
}

static void begin(struct session *session, const request_t *request, struct holder *holder)
{
	const Glake__Wire__SessionSeal *body = request->session_seal;
	struct rpc_context *rpc = rpc_of(session);
	struct session *asked = session_of(rpc, holder);
	struct seal *seal = calloc(1, sizeof(*seal));
	if (!seal) {
		rpc_refuse(session, request->id, STATUS_NO_HOST_MEMORY, "no host memory");
		return;
	}
	if (!session_begin(session, &seal->pending, request->id, cancel_seal)) {
		free(seal);
		rpc_refuse(session, request->id, STATUS_BUSY, "too many requests under way");
		return;
	}
	seal->id = ++rpc->holders.last_id;
	seal->holder = holder_ref(holder);
	seal->until_ms = uv_now(rpc->sessions.loop) + FIRST_REPORT_MS;
	seal->wants_progress = body->progress;
	list_insert(&rpc->seal_list, &seal->link);
	if (!asked || !notify(asked, seal->id, body->dry_run)) {
		seal_fail(seal, STATUS_BUSY,
		          "session %" PRIu64 " (pid %d) cannot be asked now: it %s", holder->id,
		          (int)holder->peer.pid,
		          asked ? "does not read" : "has lost its connection");
	}
}

void rpc_session_seal(struct session *session, const request_t *request, struct fdlist *fds)
{
	uint64_t id = request->session_seal->session;
	struct rpc_context *rpc = rpc_of(session);
	struct holder *holder = holder_by_id(&rpc->holders, id);
	/* Of other realms nobody learns that they have such a session. */
	if (!holder || holder->state == HOLDER_NEW || !rpc_may_act(session, holder->realm)) {
		rpc_refuse(session, request->id, STATUS_NOT_FOUND, "there is no session %" PRIu64,
		           id);
	} else if (!holder->follows_seals) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST,
		           "session %" PRIu64
		           " (pid %d, %s) is not under glake run, or its glake is "
		           "older than glaked",
		           id, (int)holder->peer.pid, holder->program ? holder->program : "");
	} else if (find_seal(rpc, holder)) {
		rpc_refuse(session, request->id, STATUS_BUSY,
		           "session %" PRIu64 " (pid %d) is being sealed already", id,
		           (int)holder->peer.pid);
	} else {
		begin(session, request, holder);
	}
}

/* ---- reports ---------------------------------------------------------------------------------- */

static uint64_t bounded(uint64_t bytes)
{
	return bytes < GLAKE_MAX_REPORTED_BYTES ? bytes : GLAKE_MAX_REPORTED_BYTES;
}

static void pass_on_progress(struct seal *seal, const Glake__Wire__SealProgress *report)
{
	answer_t notice = GLAKE__WIRE__ANSWER__INIT;
	Glake__Wire__LoadProgress body = GLAKE__WIRE__LOAD_PROGRESS__INIT;
	seal->has_reported = true;
	seal->until_ms = uv_now(seal->pending.session->all->loop) + NEXT_REPORT_MS;
	if (!seal->wants_progress) {
		return;
	}
	body.request = seal->pending.request;
	body.done_bytes = bounded(report->done_bytes);
	body.total_bytes = bounded(report->total_bytes);
	notice.body_case = GLAKE__WIRE__ANSWER__BODY_PROGRESS;
	notice.progress = &body;
	rpc_notify(seal->pending.session, &notice);
}

static void pass_on_result(struct seal *seal, Glake__Wire__SealResult *result)
{
	answer_t answer = GLAKE__WIRE__ANSWER__INIT;
	uint64_t *const numbers[] = {
		&result->sealed_bytes,   &result->shared_bytes,    &result->small_bytes,
		&result->unfilled_bytes, &result->rewritten_bytes, &result->pinned_bytes,
		&result->failed_bytes,
	};
	for (size_t i = 0; i < n_elements(numbers); i++) {
		*numbers[i] = bounded(*numbers[i]);
	}
	text_clean(result->pinned_why);
	text_clean(result->failed_why);
	answer.body_case = GLAKE__WIRE__ANSWER__BODY_SESSION_SEAL;
	answer.session_seal = result;
	uint64_t request;
	struct session *session = seal_end(seal, &request);
	rpc_answer(session, request, &answer, NULL, 0);
}

/* Others would tell the asker something about glaked. */
static enum status status_of(const Glake__Wire__SealProgress *report)
{
	switch ((enum status)report->status) {
	case STATUS_NO_PERMISSION:
	case STATUS_NO_HOST_MEMORY:
	case STATUS_BUSY:
		return (enum status)report->status;
	default:
		return STATUS_INTERNAL;
	}
}

/* It is written down once, however often a client says so. */
static void follow(struct holder *holder)
{
	if (!holder->follows_seals) {
		holder->follows_seals = true;
		holder_note_changed(holder);
	}
}

void rpc_seal_progress(struct session *session, const request_t *request, struct fdlist *fds)
{
	Glake__Wire__SealProgress *report = request->seal_progress;
	struct seal *seal = find_seal(rpc_of(session), session->holder);
	if (report->seal == 0) {
		follow(session->holder);
	} else if (!seal || seal->id != report->seal) {
		rpc_refuse(session, request->id, STATUS_NOT_FOUND,
		           "nobody waits for this any more");
		return;
	} else if (report->status != GLAKE__WIRE__STATUS__OK) {
		seal_fail(seal, status_of(report), "session %" PRIu64 " (pid %d): %s",
		          session->holder->id, (int)session->holder->peer.pid, report->error);
	} else if (report->result) {
		pass_on_result(seal, report->result);
	} else {
		pass_on_progress(seal, report);
	}
	/* It may have asked for its own sealing, and be gone by now. */
	if (session->state == SESSION_OPEN) {
		rpc_answer_ok(session, request->id);
	}
}
