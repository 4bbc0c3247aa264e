/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Refusals of a holder, as events: an operator learns which program was refused memory, and why.
 *
 * The first refusal by each bound is an event at once. A program may ask again and again; what follows is added up, and the
 * sum is one event REFUSED_SUM_MS later, or at the holder's end. So none is lost, and one holder causes few events,
 * whatever it does.
 *
 * Owner: embedded in the holder, whose realm must stay as long. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_REFUSED_H
#define GLAKE_DAEMON_REFUSED_H

#include <uv.h>

#include "daemon/base/events.h"
#include "daemon/base/list.h"
#include "daemon/memory/refusal.h"

#define REFUSED_SUM_MS 60000u

/* The refused requests of all holders. */
struct refused_sums {
	struct list list;      /* of refused.link: the oldest first */
	struct events *events; /* borrowed; NULL: nobody wants any */
	uv_loop_t *loop;       /* borrowed */
};

struct refused {
	struct list link;         /* link: refused_sums.list, while some are in no event */
	uint64_t n;               /* in all */
	uint64_t n_untold;        /* in no event yet, */
	uint64_t since_ms;        /* the first of them since then */
	unsigned told;            /* bounds of which one was an event: bits */
	struct event_subject who; /* of the last, and so the next */
	struct event_refusal last;
	char why[REFUSAL_TEXT_BYTES];
};

void refused_init(struct refused *refused);

/* A request of @program was refused. Harmless for no bound. */
void refused_note(struct refused_sums *sums, struct refused *refused,
                  const struct event_subject *who, const char *program,
                  const struct refusal *refusal);

/* To be called once in a while: report the sums that are due. */
void refused_tick(struct refused_sums *sums);

/* The holder ends: its sum is an event now. */
void refused_end(struct refused_sums *sums, struct refused *refused);

#endif
