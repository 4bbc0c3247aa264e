/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/rpc/rpc_mistakes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/holders/mistakes.h"
#include "daemon/rpc/rpc_handlers.h"

#define PAGE_ROWS 64

static struct mistake_key key_of(const struct holder *holder)
{
	const struct holder_labels *labels = &holder->labels;
	return (struct mistake_key){
		.uid = holder->user->uid,
		.program = labels->program ? labels->program : "",
		.script = labels->script ? labels->script : "",
		.executable = labels->executable ? labels->executable : "",
	};
}

static void say(const struct mistake *mistake, char text_out[RPC_DOUBT_BYTES])
{
	snprintf(text_out, RPC_DOUBT_BYTES,
	         "it has lost its context while it was sealed by itself: see glakectl dedup, "
	         "and --forgive=%" PRIu64,
	         mistake->id);
}

char *rpc_doubt_of(const struct holder *holder, char text_out[RPC_DOUBT_BYTES])
{
	const struct mistake_key key = key_of(holder);
	const struct mistake *mistake = mistakes_find(&holder->all->mistakes, &key);
	text_out[0] = '\0';
	if (mistake) {
		say(mistake, text_out);
	}
	return text_out;
}

/* ---- a new one -------------------------------------------------------------------------------- */

static void forget(struct holders *holders, struct mistake *mistake)
{
	if (holders->watch) {
		holders->watch->mistake_gone(holders->watcher, mistake);
	}
	mistake_free(&holders->mistakes, mistake);
}

/* The first of the program's sessions that was not told yet. */
static struct session *next_to_tell(const struct rpc_context *rpc, const struct mistake_key *key,
                                    const struct holder *but, uint64_t after)
{
	struct session *next = NULL;
	struct session *session;
	list_for_each (session, &rpc->sessions.list, link) {
		const struct holder *holder = session->holder;
		if (session->state != SESSION_OPEN || holder == but || holder->id <= after ||
		    (next && next->holder->id <= holder->id) || holder->user->uid != key->uid) {
			continue;
		}
		const struct mistake_key other = key_of(holder);
		if (strcmp(other.program, key->program) == 0 &&
		    strcmp(other.script, key->script) == 0 &&
		    strcmp(other.executable, key->executable) == 0) {
			next = session;
		}
	}
	return next;
}

/* To tell one may end its session, and with it others of the list. */
static void tell_others(struct rpc_context *rpc, const struct mistake *mistake,
                        const struct holder *but)
{
	char why[RPC_DOUBT_BYTES];
	const struct mistake_key key = {mistake->uid, mistake->program, mistake->script,
	                                mistake->executable};
	uint64_t last = 0;
	struct session *session;
	say(mistake, why);
	while ((session = next_to_tell(rpc, &key, but, last))) {
		Glake__Wire__Doubt doubt = GLAKE__WIRE__DOUBT__INIT;
		last = session->holder->id;
		doubt.why = why;
		rpc_notify(session, ANSWER_OF(DOUBT, doubt, &doubt));
	}
}

uint64_t rpc_note_mistake(struct rpc_context *rpc, struct holder *holder,
                          const Glake__Wire__FaultReport *report, const char *kernels)
{
	struct holders *holders = &rpc->holders;
	const struct mistake_key key = key_of(holder);
	uint64_t words[GLAKE_MAX_SUSPECTS];
	struct mistake *mistake = mistakes_find(&holders->mistakes, &key);
	struct mistake *old;
	mistake = mistake ? mistake : mistakes_add(&holders->mistakes, &key, 0);
	if (!mistake) {
		return 0;
	}
	for (size_t i = 0; i < report->n_suspects; i++) {
		words[i] = report->suspects[i]->word;
	}
	mistake_note(&holders->mistakes, mistake, words, report->n_suspects, kernels);
	/* Not this one, which is the youngest. */
	while ((old = mistakes_too_many(&holders->mistakes)) && old != mistake) {
		forget(holders, old);
	}
	if (holders->watch) {
		holders->watch->mistake(holders->watcher, mistake);
	}
	uint64_t id = mistake->id;
	tell_others(rpc, mistake, holder);
	return id;
}

/* ---- asking and forgiving --------------------------------------------------------------------- */

static bool may_see(const struct session *session, const struct mistake *mistake)
{
	return session->holder->is_admin || session->holder->user->uid == mistake->uid;
}

static Glake__Wire__MistakeInfo describe(struct mistake *mistake)
{
	Glake__Wire__MistakeInfo row = GLAKE__WIRE__MISTAKE_INFO__INIT;
	row.id = mistake->id;
	row.uid = mistake->uid;
	row.program = mistake->program;
	row.script = mistake->script;
	row.executable = mistake->executable;
	row.time_ms = mistake->time_ms;
	row.n_faults = mistake->n_faults;
	row.n_words = mistake->n_words;
	row.kernels = mistake->kernels;
	return row;
}

void rpc_mistake_list(struct session *session, const request_t *request, struct fdlist *fds)
{
	RPC_PAGE(Glake__Wire__MistakeInfo, PAGE_ROWS);
	const struct mistakes *mistakes = &rpc_of(session)->holders.mistakes;
	struct mistake *mistake = mistakes_next(mistakes, request->mistake_list->after);
	for (; mistake; mistake = mistakes_next(mistakes, mistake->id)) {
		Glake__Wire__MistakeInfo row = describe(mistake);
		if (may_see(session, mistake) && !rpc_page_add(&page, mistake->id, &row.base)) {
			break;
		}
	}
	RPC_ANSWER_PAGE(session, request, page, Mistake, MISTAKE, mistake);
}

void rpc_mistake_forgive(struct session *session, const request_t *request, struct fdlist *fds)
{
	struct holders *holders = &rpc_of(session)->holders;
	const uint64_t id = request->mistake_forgive->id;
	uint64_t n = 0;
	struct mistake *mistake;
	struct mistake *spare;
	list_for_each_safe (mistake, spare, &holders->mistakes.list, link) {
		if ((id == 0 || mistake->id == id) && may_see(session, mistake)) {
			log_info("mistake %" PRIu64 " of uid %d is forgiven by uid %d: %s %s",
			         mistake->id, (int)mistake->uid, (int)session->holder->peer.uid,
			         mistake->program, mistake->script);
			forget(holders, mistake);
			n++;
		}
	}
	if (n == 0 && id != 0) {
		/* Nobody learns which mistakes others have. */
		rpc_refuse(session, request->id, STATUS_NOT_FOUND, "there is no mistake %" PRIu64,
		           id);
	} else {
		rpc_answer_ok(session, request->id);
	}
}
