/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/rpc_ask.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "daemon/rpc/rpc_handlers.h"

/* A program's first report comes at once, unless it is stopped; each later one within a batch of blocks. */
#define FIRST_REPORT_MS 10000u
#define NEXT_REPORT_MS 60000u
/* A program that wakes does not report: glaked brings its memory back, and tells who asked how far it is. */
#define LOOK_MS 100u

/* A program that has been asked. */
struct ask {
	struct list link;       /* link: rpc_context.asks */
	struct pending pending; /* of who waits for the answer; session NULL: it is glaked itself */
	struct rpc_wish wish;
	uint64_t id;           /* of the notice */
	struct holder *holder; /* owned reference; that is asked */
	uint64_t until_ms;     /* the next report comes before */
	bool has_reported;
	bool wants_progress;
	uint64_t look; /* the last that it was told of (rpc_context.n_looks) */
};

/* ---- the end ---------------------------------------------------------------------------------- */

static void ask_free(struct ask *ask)
{
	list_remove(&ask->link);
	holder_unref(ask->holder);
	free(ask);
}

/* The program goes on, and its reports are refused. */
static void cancel_ask(struct pending *pending)
{
	ask_free(container_of(pending, struct ask, pending));
}

/* Returns the session to answer; NULL: nobody waits for it. */
static struct session *ask_end(struct ask *ask, enum status status, uint64_t *request_out)
{
	struct session *session = ask->pending.session;
	*request_out = ask->pending.request;
	if (session) {
		session_end(&ask->pending);
	}
	if (ask->wish.done) {
		ask->wish.done(ask->wish.user, ask->holder, status);
	}
	ask_free(ask);
	return session;
}

__attribute__((format(printf, 3, 4))) static void ask_fail(struct ask *ask, enum status status,
                                                           const char *format, ...)
{
	char text[256];
	uint64_t request;
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	struct tenant *tenant = ask->holder->tenant;
	struct session *session = ask_end(ask, status, &request);
	if (session) {
		rpc_refuse(session, request, status, "%s", text);
	} else if (tenant) {
		log_limited(&tenant->log_limit, LOG_LEVEL_INFO, "%s", text);
	}
}

/*
 * Refuses one that is over for another reason than a report. False: there is none. A program that has lost
 * its connection may be back in time. One that waits for memory to wake says nothing meanwhile.
 */
static bool fail_one(struct rpc_context *rpc)
{
	uint64_t now_ms = uv_now(rpc->sessions.loop);
	struct ask *ask;
	list_for_each (ask, &rpc->asks, link) {
		const struct sleeper *sleeper = ask->holder->sleeper;
		uint64_t id = ask->holder->id;
		if (ask->holder->state == HOLDER_ENDED) {
			ask_fail(ask, STATUS_NOT_FOUND, "session %" PRIu64 " has ended", id);
			return true;
		}
		if (now_ms >= ask->until_ms && !(sleeper && sleeper->wake)) {
			ask_fail(ask, STATUS_BUSY, "session %" PRIu64 " (pid %d) does not answer%s",
			         id, (int)ask->holder->peer.pid,
			         ask->has_reported ? " any more" : ": is it stopped?");
			return true;
		}
	}
	return false;
}

/* An answer may end the session that it is for, and with it others of the list. */
void rpc_asks_tick(struct rpc_context *rpc)
{
	while (fail_one(rpc)) {
		/* From the beginning. */
	}
}

/* ---- how far a wake is ------------------------------------------------------------------------ */

static void tell_progress(struct ask *ask, Glake__Wire__LoadProgress *progress)
{
	progress->request = ask->pending.request;
	rpc_notify(ask->pending.session, ANSWER_OF(PROGRESS, progress, progress));
}

static bool is_of_sleep(const struct rpc_wish *wish)
{
	return wish->kind >= RPC_WISH_SLEEP;
}

static bool wants_looks(const struct ask *ask)
{
	return ask->wish.kind == RPC_WISH_WAKE && ask->wants_progress;
}

static void tell_look(struct ask *ask)
{
	const struct sleeper *sleeper = ask->holder->sleeper;
	Glake__Wire__LoadProgress progress = GLAKE__WIRE__LOAD_PROGRESS__INIT;
	if (!sleeper || !sleeper->wake) {
		return;
	}
	progress.done_bytes = sleep_wake_done_bytes(sleeper->wake);
	progress.total_bytes = sleeper->private_bytes + sleeper->shared_bytes;
	if (sleep_wake_is_waiting(sleeper->wake)) {
		progress.place = sleep_wake_place(sleeper->wake);
		progress.waiting_ms = sleep_wake_waited_ms(sleeper->wake);
	}
	tell_progress(ask, &progress);
}

/* The first that was not told this time; NULL: all were. */
static struct ask *next_look(const struct rpc_context *rpc)
{
	struct ask *ask;
	list_for_each (ask, &rpc->asks, link) {
		if (wants_looks(ask) && ask->look < rpc->n_looks) {
			return ask;
		}
	}
	return NULL;
}

/* To tell one may end its session, and with it others of the list: from the beginning each time. */
static void on_look(uv_timer_t *timer)
{
	struct rpc_context *rpc = timer->data;
	bool is_wanted = false;
	struct ask *ask;
	rpc->n_looks++;
	while ((ask = next_look(rpc))) {
		ask->look = rpc->n_looks;
		is_wanted = true;
		tell_look(ask);
	}
	if (!is_wanted) {
		uv_timer_stop(timer);
	}
}

static void begin_looks(struct rpc_context *rpc)
{
	rpc->looks->data = rpc;
	if (!uv_is_active((uv_handle_t *)rpc->looks)) {
		uv_timer_start(rpc->looks, on_look, LOOK_MS, LOOK_MS);
	}
}

/* ---- asking ----------------------------------------------------------------------------------- */

static struct ask *find_ask(const struct rpc_context *rpc, const struct holder *holder)
{
	struct ask *ask;
	list_for_each (ask, &rpc->asks, link) {
		if (ask->holder == holder) {
			return ask;
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

static bool notify(struct session *session, uint64_t id, const struct rpc_wish *wish)
{
	answer_t notice = GLAKE__WIRE__ANSWER__INIT;
	Glake__Wire__Seal seal = GLAKE__WIRE__SEAL__INIT;
	Glake__Wire__Sleep sleep = GLAKE__WIRE__SLEEP__INIT;
	if (is_of_sleep(wish)) {
		sleep.id = id;
		sleep.wakes = wish->kind == RPC_WISH_WAKE;
		sleep.why = (Glake__Wire__SleepWhy)wish->why;
		notice.body_case = GLAKE__WIRE__ANSWER__BODY_SLEEP;
		notice.sleep = &sleep;
	} else {
		seal.id = id;
		/* An earlier program, which knows no candidates, would seal. */
		seal.dry_run = wish->kind != RPC_WISH_SEAL;
		seal.candidates = wish->kind == RPC_WISH_CANDIDATES;
		notice.body_case = GLAKE__WIRE__ANSWER__BODY_SEAL;
		notice.seal = &seal;
	}
	return rpc_notify(session, &notice);
}

static void send_wish(struct rpc_context *rpc, struct ask *ask)
{
	struct session *asked = session_of(rpc, ask->holder);
	ask->id = ++rpc->holders.last_id;
	ask->until_ms = uv_now(rpc->sessions.loop) + FIRST_REPORT_MS;
	list_insert(&rpc->asks, &ask->link);
	if (!asked || !notify(asked, ask->id, &ask->wish)) {
		ask_fail(ask, STATUS_BUSY,
		         "session %" PRIu64 " (pid %d) cannot be asked now: it %s", ask->holder->id,
		         (int)ask->holder->peer.pid,
		         asked ? "does not read" : "has lost its connection");
	}
}

static struct ask *ask_new(struct holder *holder, const struct rpc_wish *wish)
{
	struct ask *ask = calloc(1, sizeof(*ask));
	if (ask) {
		list_init(&ask->link);
		ask->wish = *wish;
		ask->holder = holder_ref(holder);
	}
	return ask;
}

static bool follows(const struct holder *holder, const struct rpc_wish *wish)
{
	return is_of_sleep(wish) ? holder->follows_sleeps : holder->follows_seals;
}

bool rpc_may_ask(const struct rpc_context *rpc, const struct holder *holder,
                 const struct rpc_wish *wish)
{
	return holder->state == HOLDER_ATTACHED && follows(holder, wish) && !find_ask(rpc, holder);
}

bool rpc_falls_asleep(const struct rpc_context *rpc, const struct holder *holder)
{
	const struct ask *ask = find_ask(rpc, holder);
	return ask && ask->wish.kind == RPC_WISH_SLEEP;
}

bool rpc_is_asked_to_wake(const struct rpc_context *rpc, const struct holder *holder)
{
	const struct ask *ask;
	list_for_each (ask, &rpc->asks, link) {
		if (ask->wish.kind == RPC_WISH_WAKE && ask->holder->peer.pid == holder->peer.pid) {
			return true;
		}
	}
	return false;
}

void rpc_ask(struct rpc_context *rpc, struct holder *holder, const struct rpc_wish *wish)
{
	struct ask *ask = ask_new(holder, wish);
	if (ask) {
		send_wish(rpc, ask);
	}
}

static void begin(struct session *session, uint64_t request, struct holder *holder,
                  const struct rpc_wish *wish, bool wants_progress)
{
	struct ask *ask = ask_new(holder, wish);
	if (!ask) {
		rpc_refuse(session, request, STATUS_NO_HOST_MEMORY, "no host memory");
		return;
	}
	if (!session_begin(session, &ask->pending, request, cancel_ask)) {
		ask_free(ask);
		rpc_refuse(session, request, STATUS_BUSY, "too many requests under way");
		return;
	}
	ask->wants_progress = wants_progress;
	if (wants_looks(ask)) {
		begin_looks(rpc_of(session));
	}
	send_wish(rpc_of(session), ask);
}

static void ask_session(struct session *session, uint64_t request, uint64_t id,
                        const struct rpc_wish *wish, bool wants_progress)
{
	static const char *const names[] = {"seal", "seal", "seal", "sleep", "wake"};
	struct rpc_context *rpc = rpc_of(session);
	struct holder *holder = holder_by_id(&rpc->holders, id);
	/* Nobody learns which sessions other realms have. */
	if (!holder || holder->state == HOLDER_NEW || !rpc_may_act(session, holder->realm)) {
		rpc_refuse(session, request, STATUS_NOT_FOUND, "there is no session %" PRIu64, id);
	} else if (!follows(holder, wish)) {
		rpc_refuse(session, request, STATUS_BAD_REQUEST,
		           "session %" PRIu64
		           " (pid %d, %s) is not under glake run, or its glake is "
		           "older than glaked",
		           id, (int)holder->peer.pid,
		           holder->labels.program ? holder->labels.program : "");
	} else if (find_ask(rpc, holder)) {
		rpc_refuse(session, request, STATUS_BUSY,
		           "session %" PRIu64 " (pid %d) is being asked to %s already", id,
		           (int)holder->peer.pid, names[find_ask(rpc, holder)->wish.kind]);
	} else {
		begin(session, request, holder, wish, wants_progress);
	}
}

void rpc_session_seal(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__SessionSeal *body = request->session_seal;
	const struct rpc_wish wish = {.kind = body->candidates ? RPC_WISH_CANDIDATES
	                                      : body->dry_run  ? RPC_WISH_DRY_RUN
	                                                       : RPC_WISH_SEAL};
	ask_session(session, request->id, body->session, &wish, body->progress);
}

void rpc_session_sleep(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__SessionSleep *body = request->session_sleep;
	const struct rpc_wish wish = {.kind = body->wakes ? RPC_WISH_WAKE : RPC_WISH_SLEEP,
	                              .why = SLEEP_ASKED};
	ask_session(session, request->id, body->session, &wish, body->progress);
}

/* ---- reports ---------------------------------------------------------------------------------- */

static uint64_t bounded(uint64_t bytes)
{
	return bytes < GLAKE_MAX_REPORTED_BYTES ? bytes : GLAKE_MAX_REPORTED_BYTES;
}

static void pass_on_progress(struct rpc_context *rpc, struct ask *ask,
                             const Glake__Wire__SealProgress *report)
{
	Glake__Wire__LoadProgress body = GLAKE__WIRE__LOAD_PROGRESS__INIT;
	ask->has_reported = true;
	ask->until_ms = uv_now(rpc->sessions.loop) + NEXT_REPORT_MS;
	if (ask->wants_progress && !wants_looks(ask)) {
		body.done_bytes = bounded(report->done_bytes);
		body.total_bytes = bounded(report->total_bytes);
		tell_progress(ask, &body);
	}
}

static void pass_on(struct ask *ask, answer_t *answer)
{
	uint64_t request;
	struct session *session = ask_end(ask, STATUS_OK, &request);
	if (session) {
		rpc_answer(session, request, answer, NULL, 0);
	}
}

/* Nobody has asked for them with a seal, and numbers are cut as all that clients report. */
static void bound_candidates(const struct ask *ask, Glake__Wire__SealResult *result)
{
	if (ask->wish.kind != RPC_WISH_CANDIDATES || result->n_candidates > GLAKE_MAX_CANDIDATES ||
	    result->n_reasons > GLAKE_MAX_REASONS) {
		result->n_candidates = 0;
		result->n_reasons = 0;
		result->tells_candidates = false;
	}
	for (size_t i = 0; i < result->n_candidates; i++) {
		Glake__Wire__Candidate *row = result->candidates[i];
		row->bytes = bounded(row->bytes);
		row->filled_bytes = bounded(row->filled_bytes);
		row->reason = row->reason <= result->n_reasons ? row->reason : 0;
	}
	for (size_t i = 0; i < result->n_reasons; i++) {
		text_clean(result->reasons[i]);
	}
}

static void pass_on_result(struct ask *ask, Glake__Wire__SealResult *result)
{
	uint64_t *const numbers[] = {
		&result->sealed_bytes,   &result->shared_bytes,    &result->small_bytes,
		&result->unfilled_bytes, &result->rewritten_bytes, &result->pinned_bytes,
		&result->failed_bytes,
	};
	for (size_t i = 0; i < n_elements(numbers); i++) {
		*numbers[i] = bounded(*numbers[i]);
	}
	bound_candidates(ask, result);
	text_clean(result->pinned_why);
	text_clean(result->failed_why);
	pass_on(ask, ANSWER_OF(SESSION_SEAL, session_seal, result));
}

static void pass_on_sleep(struct ask *ask, Glake__Wire__SleepResult *result)
{
	result->private_bytes = bounded(result->private_bytes);
	result->shared_bytes = bounded(result->shared_bytes);
	result->n_stays = result->n_stays < GLAKE_MAX_STAYS ? result->n_stays : GLAKE_MAX_STAYS;
	for (size_t i = 0; i < result->n_stays; i++) {
		text_clean(result->stays[i]->why);
		result->stays[i]->bytes = bounded(result->stays[i]->bytes);
	}
	bool has_woken = ask->wish.kind == RPC_WISH_WAKE &&
	                 result->private_bytes + result->shared_bytes > 0;
	result->waited_ms = has_woken ? ask->holder->sleep.woke_waited_ms : 0;
	pass_on(ask, ANSWER_OF(SESSION_SLEEP, session_sleep, result));
}

/* The status that the asker gets. Others would tell him something about glaked. */
static enum status status_of(const Glake__Wire__SealProgress *report)
{
	switch ((enum status)report->status) {
	case STATUS_NO_PERMISSION:
	case STATUS_OVER_QUOTA:
	case STATUS_NO_DEVICE_MEMORY:
	case STATUS_NO_HOST_MEMORY:
	case STATUS_NO_FDS:
	case STATUS_MOVER_FAILED:
	case STATUS_BUSY:
		return (enum status)report->status;
	default:
		return STATUS_INTERNAL;
	}
}

/* The answer is written down once, however often a client gives it. */
static void follow(struct holder *holder, bool seals, bool sleeps)
{
	if (holder->follows_seals != seals || holder->follows_sleeps != sleeps) {
		holder->follows_seals = seals;
		holder->follows_sleeps = sleeps;
		holder_note_changed(holder);
	}
}

void rpc_seal_progress(struct session *session, const request_t *request, struct fdlist *fds)
{
	Glake__Wire__SealProgress *report = request->seal_progress;
	struct rpc_context *rpc = rpc_of(session);
	struct ask *ask = find_ask(rpc, session->holder);
	if (report->seal == 0) {
		follow(session->holder, !report->no_seals, report->sleeps);
	} else if (!ask || ask->id != report->seal) {
		rpc_refuse(session, request->id, STATUS_NOT_FOUND,
		           "nobody waits for this any more");
		return;
	} else if (report->status != GLAKE__WIRE__STATUS__OK) {
		ask_fail(ask, status_of(report), "session %" PRIu64 " (pid %d): %s",
		         session->holder->id, (int)session->holder->peer.pid, report->error);
	} else if (report->sleep && is_of_sleep(&ask->wish)) {
		pass_on_sleep(ask, report->sleep);
	} else if (report->result && !is_of_sleep(&ask->wish)) {
		pass_on_result(ask, report->result);
	} else {
		pass_on_progress(rpc, ask, report);
	}
	/* The session may have asked for its own sealing, and be gone by now. */
	if (session->state == SESSION_OPEN) {
		rpc_answer_ok(session, request->id);
	}
}
