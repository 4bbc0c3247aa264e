/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/sleep/sleeping.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/link/error.h"
#include "libclient/link/report.h"
#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
#include "libclient/sleep/party.h"
#include "libclient/space/space.h"
#include "proto/clock.h"

_Static_assert(GLAKE_MAX_STAYS == GLAKE_MAX_STAYS_SLEPT, "what is reported");

/* ---- a party ---------------------------------------------------------------------------------- */

static void drop(struct glake__sleeping *sleeping)
{
	if (sleeping) {
		free(sleeping->ids);
		free(sleeping->bytes);
		free(sleeping);
	}
}

void glake__sleeping_drop(struct glake__sleeping *first)
{
	while (first) {
		struct glake__sleeping *next = first->next;
		drop(first);
		first = next;
	}
}

/* A session whose connection is lost cannot sleep: it is a member only if it is the one that asks, which is told. */
static bool is_member(struct glake_session *at, const struct glake_session *asked)
{
	return at == asked || !glake__session_is_gone(at);
}

int glake__sleeping_gather_awake(struct glake_session *asked, struct glake__sleeping **first_out)
{
	struct glake__sleeping **end = first_out;
	*first_out = NULL;
	struct glake_session *at = glake__party_first(asked);
	for (; at; at = glake__party_next(at)) {
		if (at->asleep || !is_member(at, asked)) {
			continue;
		}
		struct glake__sleeping *sleeping = calloc(1, sizeof(*sleeping));
		if (!sleeping) {
			glake__sleeping_drop(*first_out);
			*first_out = NULL;
			return glake__fail(-ENOMEM, "out of memory");
		}
		sleeping->session = at;
		*end = sleeping;
		end = &sleeping->next;
	}
	return 0;
}

struct glake__sleeping *glake__sleeping_gather_asleep(struct glake_session *asked)
{
	struct glake__sleeping *first = NULL;
	struct glake__sleeping **end = &first;
	struct glake_session *at = glake__party_first(asked);
	for (; at; at = glake__party_next(at)) {
		struct glake__sleeping *sleeping = at->asleep;
		if (sleeping) {
			*end = sleeping;
			end = &sleeping->next;
			sleeping->next = NULL;
		}
	}
	return first;
}

/* ---- reports ---------------------------------------------------------------------------------- */

static void add_stay(struct glake_slept *slept, const struct glake_stay *stay)
{
	uint32_t i = 0;
	while (i < slept->n_stays && strcmp(slept->stays[i].why, stay->why) != 0) {
		i++;
	}
	if (i == GLAKE_MAX_STAYS_SLEPT) {
		i--;
	} else if (i == slept->n_stays) {
		slept->n_stays++;
		slept->stays[i] = (struct glake_stay){.why = stay->why};
	}
	slept->stays[i].bytes += stay->bytes;
}

void glake__sleeping_describe(const struct glake__sleeping *first, const struct glake_session *of,
                              uint64_t began_ns, uint64_t held_ns, struct glake_slept *slept_out)
{
	*slept_out = (struct glake_slept){.took_ns = clock_now_ns() - began_ns, .held_ns = held_ns};
	for (; first; first = first->next) {
		const struct glake__asleep *memory = &first->memory;
		if (of && of != first->session) {
			continue;
		}
		slept_out->private_bytes += memory->private_bytes;
		slept_out->shared_bytes += memory->shared_bytes;
		for (size_t i = 0; i < memory->n_stays; i++) {
			add_stay(slept_out, &memory->stays[i]);
		}
	}
}

int glake__sleeping_tell(struct glake__sleeping *sleeping)
{
	const struct glake__asleep *memory = &sleeping->memory;
	int r = memory->n_chunks > 0
	                ? glake__rpc_sleep_enter(sleeping->session, (uint32_t)sleeping->why,
	                                         memory->stays, memory->n_stays)
	                : 0;
	sleeping->state = r == 0 ? GLAKE__SLEEPING_AWAY : GLAKE__SLEEPING_UNTOLD;
	return r;
}

/* ---- the end ---------------------------------------------------------------------------------- */

void glake__sleeping_end_late_of(struct glake_session *session)
{
	if (session->end_late_models) {
		session->end_late_models(session);
	}
}

void glake__sleeping_end_late(struct glake__sleeping *first)
{
	char *text = glake__error_save();
	for (; first; first = first->next) {
		glake__sleeping_end_late_of(first->session);
	}
	glake__error_restore(text);
}

void glake__sleeping_let(struct glake__sleeping *first)
{
	char *text = glake__error_save();
	for (struct glake__sleeping *at = first; at; at = at->next) {
		if (at->is_held) {
			glake__asleep_let(&at->memory);
			at->is_held = false;
		}
		at->session->sleeps_along = false;
	}
	glake__error_restore(text);
}

void glake__sleeping_begin(struct glake__sleeping *first)
{
	for (; first; first = first->next) {
		first->session->asleep = first;
	}
}

/* @n sessions of the party of @session have woken: none of their memory is asleep any more. */
static void wake_gate(struct glake_session *session, unsigned n)
{
	const struct glake__gate *gate = &glake__space.gate;
	glake__space.n_asleep -= n;
	if (gate->wake && !glake__sleeping_gather_asleep(session)) {
		gate->wake(gate->user);
	}
}

void glake__sleeping_end(struct glake__sleeping *first, struct glake_session *session)
{
	unsigned n = 0;
	for (struct glake__sleeping *at = first; at; at = at->next, n++) {
		at->session->asleep = NULL;
	}
	glake__sleeping_let(first);
	wake_gate(session, n);
}
