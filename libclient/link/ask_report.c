/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of glaked to a program: whom they are passed on to, and the reports to glaked of their outcome. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"
#include "libclient/link/report.h"
#include "libclient/link/call.h"
#include "libclient/link/session.h"

static void send_report(struct glake_session *session, Glake__Wire__SealProgress *body)
{
	Glake__Wire__Request *request = REQUEST_OF(SEAL_PROGRESS, seal_progress, body);
	glake__call_forget(&session->link, request);
}

static void follow(struct glake_session *session)
{
	Glake__Wire__SealProgress body = GLAKE__WIRE__SEAL_PROGRESS__INIT;
	body.sleeps = session->link.sleep != NULL;
	body.no_seals = session->link.seal == NULL;
	send_report(session, &body);
}

void glake__seal_follow(struct glake_session *session, glake__seal_ask_fn *ask, void *user)
{
	session->link.seal_user = user;
	session->link.seal = ask;
	follow(session);
}

void glake__sleep_follow(struct glake_session *session, glake__sleep_ask_fn *ask, void *user)
{
	session->link.sleep_user = user;
	session->link.sleep = ask;
	follow(session);
}

void glake__doubt_follow(struct glake_session *session, glake__doubt_fn *doubt, void *user)
{
	session->link.doubt_user = user;
	session->link.doubt = doubt;
}

/* If the program ends, or can start no thread, glaked has not failed. */
static Glake__Wire__Status status_of(int error)
{
	return error == -EPERM || error == GLAKE_E_NO_PERMISSION
	               ? GLAKE__WIRE__STATUS__NO_PERMISSION
	       : error == -EBUSY || error == GLAKE_E_BUSY || error == -ESHUTDOWN || error == -EAGAIN
	               ? GLAKE__WIRE__STATUS__BUSY
	       : error == -ENOMEM || error == GLAKE_E_NO_HOST_MEMORY
	               ? GLAKE__WIRE__STATUS__NO_HOST_MEMORY
	       : error == GLAKE_E_OVER_QUOTA       ? GLAKE__WIRE__STATUS__OVER_QUOTA
	       : error == GLAKE_E_NO_DEVICE_MEMORY ? GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY
	       : error == GLAKE_E_NO_FDS           ? GLAKE__WIRE__STATUS__NO_FDS
	       : error == GLAKE_E_MOVER            ? GLAKE__WIRE__STATUS__MOVER_FAILED
	                                           : GLAKE__WIRE__STATUS__INTERNAL;
}

static Glake__Wire__SealResult result_of(const struct glake__seal_report *report)
{
	Glake__Wire__SealResult result = GLAKE__WIRE__SEAL_RESULT__INIT;
	result.sealed_bytes = report->candidates->sealed_bytes;
	result.shared_bytes = report->sealed->shared_bytes;
	result.small_bytes = report->candidates->small_bytes;
	result.unfilled_bytes = report->candidates->unfilled_bytes;
	result.rewritten_bytes = report->candidates->rewritten_bytes;
	result.pinned_bytes = report->sealed->pinned_bytes;
	result.failed_bytes = report->failed_bytes;
	if (report->sealed->pinned_why) {
		result.pinned_why = (char *)report->sealed->pinned_why;
	}
	if (report->failed_why) {
		result.failed_why = (char *)report->failed_why;
	}
	result.took_ns = report->took_ns;
	result.held_ns = report->sealed->held_ns;
	result.longest_held_ns = report->sealed->longest_held_ns;
	return result;
}

void glake__seal_tell(struct glake_session *session, uint64_t id,
                      const struct glake__seal_report *report)
{
	Glake__Wire__SealProgress body = GLAKE__WIRE__SEAL_PROGRESS__INIT;
	Glake__Wire__SealResult result;
	body.seal = id;
	body.done_bytes = report->done_bytes;
	body.total_bytes = report->total_bytes;
	if (report->is_over && report->error) {
		body.status = status_of(report->error);
		body.error = (char *)report->why;
	} else if (report->is_over) {
		result = result_of(report);
		body.result = &result;
	}
	send_report(session, &body);
}

/* The number of @why among the reasons + 1, which are few; 0: there is no room for one more. */
static uint32_t number_of(const char *why, char **reasons, size_t *n_reasons)
{
	size_t i = 0;
	while (i < *n_reasons && strcmp(reasons[i], why) != 0) {
		i++;
	}
	if (!why[0] || i == GLAKE_MAX_REASONS) {
		return 0;
	}
	if (i == *n_reasons) {
		reasons[(*n_reasons)++] = (char *)why;
	}
	return (uint32_t)i + 1;
}

/* Without memory the asker waits in vain, and is told so by glaked. */
void glake__candidates_tell(struct glake_session *session, uint64_t id,
                            const struct glake__candidate_list *list)
{
	Glake__Wire__SealProgress body = GLAKE__WIRE__SEAL_PROGRESS__INIT;
	Glake__Wire__SealResult result = GLAKE__WIRE__SEAL_RESULT__INIT;
	char *reasons[GLAKE_MAX_REASONS];
	cleanup_free Glake__Wire__Candidate *rows = calloc(list->n + 1, sizeof(*rows));
	cleanup_free Glake__Wire__Candidate **pointers = calloc(list->n + 1, sizeof(*pointers));
	if (!rows || !pointers) {
		return;
	}
	for (size_t i = 0; i < list->n; i++) {
		const struct glake__candidate *from = &list->rows[i];
		glake__wire__candidate__init(&rows[i]);
		rows[i].address = from->ptr;
		rows[i].bytes = from->n_bytes;
		rows[i].filled_bytes = from->filled_bytes;
		rows[i].state = (Glake__Wire__CandidateState)from->state;
		rows[i].n_unsealed = from->n_unsealed;
		rows[i].reason = number_of(from->why, reasons, &result.n_reasons);
		pointers[i] = &rows[i];
	}
	result.tells_candidates = true;
	result.candidates = pointers;
	result.n_candidates = list->n;
	result.all_candidates = (uint32_t)list->n_all;
	result.reasons = reasons;
	body.seal = id;
	body.result = &result;
	send_report(session, &body);
}

void glake__sleep_tell(struct glake_session *session, uint64_t id,
                       const struct glake__sleep_report *report)
{
	Glake__Wire__SealProgress body = GLAKE__WIRE__SEAL_PROGRESS__INIT;
	Glake__Wire__SleepResult result = GLAKE__WIRE__SLEEP_RESULT__INIT;
	Glake__Wire__SleepStay rows[GLAKE_MAX_STAYS_SLEPT];
	Glake__Wire__SleepStay *list[GLAKE_MAX_STAYS_SLEPT];
	body.seal = id;
	body.done_bytes = report->done_bytes;
	body.total_bytes = report->total_bytes;
	if (report->is_over && report->error) {
		body.status = status_of(report->error);
		body.error = (char *)report->why;
	} else if (report->is_over) {
		const struct glake_slept *slept = report->slept;
		result.is_asleep = report->is_asleep;
		result.private_bytes = slept->private_bytes;
		result.shared_bytes = slept->shared_bytes;
		result.took_ns = slept->took_ns;
		result.held_ns = slept->held_ns;
		for (uint32_t i = 0; i < slept->n_stays; i++) {
			glake__wire__sleep_stay__init(&rows[i]);
			rows[i].why = (char *)slept->stays[i].why;
			rows[i].bytes = slept->stays[i].bytes;
			list[result.n_stays++] = &rows[i];
		}
		result.stays = list;
		body.sleep = &result;
	}
	send_report(session, &body);
}
