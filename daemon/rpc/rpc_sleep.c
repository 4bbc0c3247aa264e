/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of programs that sleep, and the list of them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/text.h"
#include "daemon/holders/sleeper.h"
#include "daemon/rpc/rpc_handlers.h"
#include "daemon/rpc/wake_again.h"

/* A pending SleepCopy or SleepLeave. */
struct sleep_request {
	struct pending pending;
	struct sleep_batch *batch;
	struct sleep_wake *wake;
};

static void cancel_sleep_request(struct pending *pending)
{
	struct sleep_request *operation = container_of(pending, struct sleep_request, pending);
	sleep_batch_cancel(operation->batch);
	sleep_wake_cancel(operation->wake);
	free(operation);
}

static void on_done(void *user, enum status status, const char *error)
{
	struct sleep_request *operation = user;
	struct session *session = operation->pending.session;
	uint64_t id = operation->pending.request;
	session_end(&operation->pending);
	free(operation);
	if (status == STATUS_OK) {
		rpc_answer_ok(session, id);
	} else {
		rpc_refuse(session, id, status, "%s", error);
	}
}

static void on_woken(void *user, enum status status, const char *error)
{
	const struct sleep_request *operation = user;
	struct session *session = operation->pending.session;
	wake_again_note(rpc_of(session), session->holder, status);
	on_done(user, status, error);
}

/* Begin a sleep or a wake; NULL after a refusal. */
static struct sleep_request *begin(struct session *session, uint64_t id)
{
	struct sleep_request *operation = calloc(1, sizeof(*operation));
	if (!operation) {
		rpc_refuse(session, id, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return NULL;
	}
	if (!session_begin(session, &operation->pending, id, cancel_sleep_request)) {
		free(operation);
		rpc_refuse(session, id, STATUS_BUSY, "too many requests under way");
		return NULL;
	}
	return operation;
}

void rpc_sleep_copy(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__SleepCopy *body = request->sleep_copy;
	char error[SLEEP_ERROR_BYTES];
	if (body->n_ids == 0 || body->n_ids > GLAKE_MAX_SLEPT) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "%zu things in one request",
		           body->n_ids);
		return;
	}
	struct sleep_request *operation = begin(session, request->id);
	if (!operation) {
		return;
	}
	enum status status = sleeper_copy(session->holder, rpc_of(session)->sleep_context,
	                                  body->ids, body->n_ids, on_done, operation,
	                                  &operation->batch, error);
	if (status != STATUS_OK) {
		on_done(operation, status, error);
	}
}

/* Read what stays on the GPU. False: there are too many entries, or one is too long. */
static bool read_stays(const Glake__Wire__SleepEnter *body, struct sleep_stay *stays_out)
{
	bool is_good = body->n_stays <= GLAKE_MAX_STAYS;
	for (size_t i = 0; is_good && i < body->n_stays; i++) {
		uint64_t bytes = body->stays[i]->bytes;
		struct sleep_stay *stay = &stays_out[i];
		int n = snprintf(stay->why, sizeof(stay->why), "%s", body->stays[i]->why);
		stay->bytes = bytes < GLAKE_MAX_REPORTED_BYTES ? bytes : GLAKE_MAX_REPORTED_BYTES;
		text_clean(stay->why);
		is_good = n >= 0 && (size_t)n < sizeof(stay->why);
	}
	return is_good;
}

void rpc_sleep_enter(struct session *session, const request_t *request, struct fdlist *fds)
{
	const Glake__Wire__SleepEnter *body = request->sleep_enter;
	struct sleep_stay stays[GLAKE_MAX_STAYS];
	if ((unsigned)body->why >= N_SLEEP_WHYS || !read_stays(body, stays)) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "that is no reason");
	} else if (sleeper_enter(session->holder, (enum sleep_why)body->why, stays,
	                         body->n_stays) != STATUS_OK) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "nothing has a copy");
	} else {
		rpc_answer_ok(session, request->id);
	}
}

/* The SleepCopy that is under way, or if @wakes the SleepLeave. NULL: none is. */
static struct sleep_request *find_request(const struct session *session, bool wakes)
{
	struct pending *pending;
	list_for_each (pending, &session->pending, link) {
		struct sleep_request *operation = container_of(pending, struct sleep_request,
		                                               pending);
		if (pending->cancel == cancel_sleep_request &&
		    (wakes ? operation->wake != NULL : operation->batch != NULL)) {
			return operation;
		}
	}
	return NULL;
}

/* Refuse the session's sleep: its process goes on working. Returns whether there was one. */
static bool end_copy(struct session *session)
{
	struct sleep_request *operation = find_request(session, false);
	if (operation) {
		sleep_batch_cancel(operation->batch);
		on_done(operation, STATUS_BUSY, "the program goes on working");
	}
	return operation != NULL;
}

/* Refuse the session's wake: its process does not wait any more. */
static void stop_wake(struct session *session)
{
	struct sleep_request *operation = find_request(session, true);
	if (operation) {
		sleep_wake_cancel(operation->wake);
		on_done(operation, STATUS_BUSY, "the program does not wait any more");
	}
}

void rpc_sleep_leave(struct session *session, const request_t *request, struct fdlist *fds)
{
	bool keeps_copies = request->sleep_leave->keeps_copies;
	if (request->sleep_leave->stops) {
		stop_wake(session);
		if (session->state != SESSION_CLOSING) {
			rpc_answer_ok(session, request->id);
		}
		return;
	}
	bool has_ended = !keeps_copies && end_copy(session);
	struct sleeper *sleeper = session->holder->sleeper;
	if (session->state == SESSION_CLOSING) {
		return;
	}
	if (!sleeper && has_ended) {
		rpc_answer_ok(session, request->id);
	} else if (!sleeper) {
		rpc_refuse(session, request->id, STATUS_BAD_REQUEST, "the session does not sleep");
	} else if (sleeper->state == SLEEPER_COPIED) {
		if (!keeps_copies) {
			sleeper_leave(session->holder);
		}
		rpc_answer_ok(session, request->id);
	} else if (sleeper->state == SLEEPER_WAKING) {
		rpc_refuse(session, request->id, STATUS_BUSY, "the session is waking already");
	} else {
		struct sleep_request *operation = begin(session, request->id);
		if (operation) {
			sleeper_wake(sleeper, keeps_copies, request->sleep_leave->patience_ms,
			             on_woken, operation, &operation->wake);
		}
	}
}

/* ---- the list --------------------------------------------------------------------------------- */

#define PAGE_ROWS 64u
/* Things that sleep are looked at for one page, and those of one row. */
#define PAGE_SLEPT 16384

struct sleeper_row {
	Glake__Wire__SleepStay stays[GLAKE_MAX_STAYS];
	Glake__Wire__SleepStay *list[GLAKE_MAX_STAYS];
	char *models[GLAKE_MAX_SLEPT_MODELS];
};

static uint64_t gpu_bytes_of(struct store *store, const struct slept *slept)
{
	const struct realm *realm = slept->sleeper->holder->realm;
	uint64_t bytes = 0;
	for (size_t i = 0; slept->kind != HELD_CHUNK && i < slept->n_copies; i++) {
		const struct copy *copy = slept->copies[i];
		bytes += store_find_block(store, realm, slept->at, &copy->key.digest) ? copy->bytes
		                                                                      : 0;
	}
	return bytes;
}

/* The bytes of the sleeper's blocks that the GPU has, for others or as cache: they need no copy back. */
static uint64_t gpu_bytes(struct store *store, const struct sleeper *sleeper, size_t *n_steps)
{
	uint64_t bytes = 0;
	const struct slept *slept;
	list_for_each (slept, &sleeper->slept, link) {
		*n_steps += slept->n_copies;
		bytes += gpu_bytes_of(store, slept);
	}
	return bytes;
}

static void list_models(const struct sleeper *sleeper, struct sleeper_row *place,
                        Glake__Wire__SleeperInfo *row)
{
	const struct slept *slept;
	row->models = place->models;
	list_for_each (slept, &sleeper->slept, link) {
		if (slept->name && row->n_models < GLAKE_MAX_SLEPT_MODELS) {
			place->models[row->n_models++] = slept->name;
		}
	}
}

static void describe(const struct sleeper *sleeper, struct sleeper_row *place,
                     Glake__Wire__SleeperInfo *row)
{
	struct holder *holder = sleeper->holder;
	const struct holder_labels *labels = &holder->labels;
	glake__wire__sleeper_info__init(row);
	row->session = holder->id;
	row->pid = (uint32_t)holder->peer.pid;
	row->uid = holder->peer.uid;
	row->program = labels->program ? labels->program : row->program;
	row->name = labels->name ? labels->name : row->name;
	row->script = labels->script ? labels->script : row->script;
	row->tenant = holder->tenant->name;
	row->realm = holder->realm->name;
	row->state = (char *)(sleeper->wake ? "waking" : "asleep");
	row->why = (Glake__Wire__SleepWhy)sleeper->why;
	row->asleep_ms = uv_now(holder->all->loop) - sleeper->since_ms;
	row->private_bytes = sleeper->private_bytes;
	row->shared_bytes = sleeper->shared_bytes;
	row->stays = place->list;
	for (uint32_t i = 0; i < sleeper->n_stays; i++) {
		glake__wire__sleep_stay__init(&place->stays[i]);
		place->stays[i].why = (char *)sleeper->stays[i].why;
		place->stays[i].bytes = sleeper->stays[i].bytes;
		place->list[row->n_stays++] = &place->stays[i];
	}
	list_models(sleeper, place, row);
	if (sleeper->wake && sleep_wake_is_waiting(sleeper->wake)) {
		row->place = sleep_wake_place(sleeper->wake);
		row->waiting_ms = sleep_wake_waited_ms(sleeper->wake);
	}
	row->n_sleeps = holder->sleep.n_sleeps;
	row->slept_ns = holder->sleep.slept_ns;
	row->woke_ns = holder->sleep.woke_ns;
	row->woke_waited_ms = holder->sleep.woke_waited_ms;
}

/* List the sleepers in the order of ids, as pages go. */
void rpc_sleeper_list(struct session *session, const request_t *request, struct fdlist *fds)
{
	RPC_PAGE(Glake__Wire__SleeperInfo, PAGE_ROWS);
	static struct sleeper_row places[PAGE_ROWS + 1];
	size_t n_steps = 0;
	struct holder *holder;
	list_for_each (holder, &rpc_of(session)->holders.list, link) {
		struct sleeper *sleeper = holder->sleeper;
		Glake__Wire__SleeperInfo next;
		if (holder->id <= request->sleeper_list->after || !sleeper ||
		    sleeper->state == SLEEPER_COPIED || !rpc_may_act(session, holder->realm)) {
			continue;
		}
		if (n_steps > PAGE_SLEPT) {
			page.next = page.last;
			break;
		}
		describe(sleeper, &places[page.n_rows], &next);
		next.gpu_bytes = gpu_bytes(rpc_of(session)->store, sleeper, &n_steps);
		if (!rpc_page_add(&page, holder->id, &next.base)) {
			break;
		}
	}
	RPC_ANSWER_PAGE(session, request, page, Sleeper, SLEEPER, sleeper);
}
