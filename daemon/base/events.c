/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/events.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <xxhash.h>

#include "daemon/base/text.h"

void events_init(struct events *events, struct stats *stats)
{
	/* Places are read after they were written only: until then they need no memory. */
	events->own.n = events->of_clients.n = events->refusals.n = 0;
	events->limits = events->refusal_limits = (struct log_limits){0};
	events->last_id = 0;
	events->stats = stats;
}

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static enum log_level level_of(const struct event *event)
{
	switch (event->kind) {
	case EVENT_MEMORY_REFUSED:
		return LOG_LEVEL_WARNING;
	case EVENT_DRAIN:
	case EVENT_CONFIG:
		return LOG_LEVEL_INFO;
	default:
		return LOG_LEVEL_ERROR;
	}
}

static bool write_line(const struct event *event, struct log_limit *limit)
{
	char who[EVENT_REALM_BYTES + 64] = "";
	if (event->session) {
		snprintf(who, sizeof(who),
		         "session %llu (pid %d): ", (unsigned long long)event->session, event->pid);
	} else if (event->realm[0]) {
		snprintf(who, sizeof(who), "realm %s: ", event->realm);
	}
	return log_limited(limit, level_of(event), "%s%s", who, event->text);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static unsigned count_from(const struct event_list *list, unsigned i)
{
	uint64_t realm = list->realms[list->in_order[i]];
	unsigned n = 0;
	for (; i < list->n; i++) {
		n += list->realms[list->in_order[i]] == realm;
	}
	return n;
}

/* The first event of the realm that has most. */
static unsigned find_victim(const struct event_list *list)
{
	unsigned victim = 0;
	unsigned n_most = 0;
	for (unsigned i = 0; i < list->n; i++) {
		unsigned n = count_from(list, i);
		victim = n > n_most ? i : victim;
		n_most = n > n_most ? n : n_most;
	}
	return victim;
}

/* Returns the place that is free then. */
static unsigned drop_one(struct event_list *list)
{
	unsigned victim = find_victim(list);
	unsigned place = list->in_order[victim];
	list->n--;
	memmove(&list->in_order[victim], &list->in_order[victim + 1],
	        (list->n - victim) * sizeof(list->in_order[0]));
	return place;
}

static void keep(struct event_list *list, const struct event *event, uint64_t realm)
{
	unsigned place = list->n < EVENTS_KEPT ? list->n : drop_one(list);
	list->places[place] = *event;
	list->realms[place] = realm;
	list->in_order[list->n++] = place;
}

/* ---------------------------------------------------------------------------------------------- */

bool events_add(struct events *events, enum event_kind kind, const struct event_subject *subject,
                const char *format, ...)
{
	struct event event = {
		.time_ms = now_ms(),
		.kind = kind,
		.pid = subject->pid,
		.session = subject->session,
	};
	snprintf(event.realm, sizeof(event.realm), "%s", subject->realm ? subject->realm : "");
	snprintf(event.cgroup, sizeof(event.cgroup), "%s", subject->cgroup ? subject->cgroup : "");
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(event.text, sizeof(event.text), format, arguments);
	va_end(arguments);
	if (subject->refusal) {
		event.refusal = *subject->refusal;
		text_clean(event.refusal.program);
	}
	/* The text may quote a client, and may be cut inside a character. */
	text_clean(event.text);
	uint64_t realm = XXH3_64bits(event.realm, strlen(event.realm));
	struct log_limits *limits = subject->refusal ? &events->refusal_limits : &events->limits;
	struct log_limit *limit = subject->limit ? subject->limit : log_limits_of(limits, realm);
	/* An event that glaked itself has found is kept in any case. */
	if (!write_line(&event, limit) && subject->limit) {
		return false;
	}
	struct event_list *list = subject->refusal ? &events->refusals
	                          : subject->limit ? &events->of_clients
	                                           : &events->own;
	events->stats->events_total++;
	events->stats->events_dropped += list->n == EVENTS_KEPT;
	event.id = ++events->last_id;
	keep(list, &event, realm);
	return true;
}

static const struct event *next_in(const struct event_list *list, uint64_t after)
{
	unsigned i = 0;
	while (i < list->n && list->places[list->in_order[i]].id <= after) {
		i++;
	}
	return i < list->n ? &list->places[list->in_order[i]] : NULL;
}

const struct event *events_next(const struct events *events, uint64_t after)
{
	const struct event_list *const lists[] = {&events->own, &events->of_clients,
	                                          &events->refusals};
	const struct event *first = NULL;
	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		const struct event *event = next_in(lists[i], after);
		first = !first || (event && event->id < first->id) ? event : first;
	}
	return first;
}

const char *event_kind_name(enum event_kind kind)
{
	static const char *const names[EVENT_N_KINDS] = {
		[EVENT_BLOCK_DAMAGED] = "block_damaged",
		[EVENT_COPY_DAMAGED] = "copy_damaged",
		[EVENT_LAUNCH_REFUSED] = "launch_refused",
		[EVENT_DEVICE_FAULT] = "device_fault",
		[EVENT_WAKE_REFUSED] = "wake_refused",
		[EVENT_LIMIT_TOO_SMALL] = "limit_too_small",
		[EVENT_MOVER_FAILED] = "mover_failed",
		[EVENT_MEMORY_REFUSED] = "memory_refused",
		[EVENT_DRAIN] = "drain",
		[EVENT_CONFIG] = "config",
	};
	return names[kind];
}
