/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/refused.h"

#include <inttypes.h>
#include <stdio.h>

void refused_init(struct refused *refused)
{
	list_init(&refused->link);
}

static void tell_first(const struct refused_sums *sums, struct refused *refused)
{
	refused->last.n = 1;
	events_add(sums->events, EVENT_MEMORY_REFUSED, &refused->who, "%s was refused %s",
	           refused->last.program, refused->why);
}

static void tell_sum(const struct refused_sums *sums, struct refused *refused)
{
	refused->last.n = refused->n_untold;
	refused->n_untold = 0;
	list_remove(&refused->link);
	events_add(sums->events, EVENT_MEMORY_REFUSED, &refused->who,
	           "%s was refused %" PRIu64 " time%s more, the last time %s",
	           refused->last.program, refused->last.n, refused->last.n == 1 ? "" : "s",
	           refused->why);
}

static void describe(struct refused *refused, const struct event_subject *who, const char *program,
                     const struct refusal *refusal)
{
	struct event_refusal *last = &refused->last;
	refused->who = *who;
	refused->who.refusal = last;
	*last = (struct event_refusal){.bound = bound_name(refusal->bound),
	                               .is_host = refusal->at->kind == LOCATION_HOST,
	                               .number = refusal->at->number,
	                               .wanted = refusal->wanted,
	                               .used = refusal->used,
	                               .limit = refusal->limit};
	snprintf(last->tenant, sizeof(last->tenant), "%s", refusal->tenant->name);
	snprintf(last->program, sizeof(last->program), "%s",
	         program && *program ? program : "a program");
	refusal_text(refusal, refused->why);
}

void refused_note(struct refused_sums *sums, struct refused *refused,
                  const struct event_subject *who, const char *program,
                  const struct refusal *refusal)
{
	unsigned bit = 1u << refusal->bound;
	if (refusal->bound == BOUND_NONE) {
		return;
	}
	refused->n++;
	if (!sums->events) {
		return;
	}
	describe(refused, who, program, refusal);
	if (!(refused->told & bit)) {
		refused->told |= bit;
		tell_first(sums, refused);
	} else if (refused->n_untold++ == 0) {
		refused->since_ms = uv_now(sums->loop);
		list_insert(&sums->list, &refused->link);
	}
}

void refused_tick(struct refused_sums *sums)
{
	uint64_t now_ms = uv_now(sums->loop);
	struct refused *refused;
	struct refused *spare;
	list_for_each_safe (refused, spare, &sums->list, link) {
		if (now_ms - refused->since_ms < REFUSED_SUM_MS) {
			return;
		}
		tell_sum(sums, refused);
	}
}

void refused_end(struct refused_sums *sums, struct refused *refused)
{
	if (refused->n_untold > 0) {
		tell_sum(sums, refused);
	}
}
