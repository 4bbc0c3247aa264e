/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/events.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "daemon/base/text.h"

void events_init(struct events *events, struct stats *stats)
{
	events->own.n = 0;
	events->of_clients.n = 0;
	events->last_id = 0;
	events->stats = stats;
}

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static bool write_line(const struct event *event, struct log_limit *limit)
{
	/* Not every event is a client's; a limit of its own is never spent. */
	struct log_limit fresh = {0};
	char who[EVENT_REALM_BYTES + 64] = "";
	if (event->session) {
		snprintf(who, sizeof(who),
		         "session %llu (pid %d): ", (unsigned long long)event->session, event->pid);
	} else if (event->realm[0]) {
		snprintf(who, sizeof(who), "realm %s: ", event->realm);
	}
	return log_limited(limit ? limit : &fresh, LOG_LEVEL_ERROR, "%s%s", who, event->text);
}

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
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(event.text, sizeof(event.text), format, arguments);
	va_end(arguments);
	/* It may quote a client, and may be cut inside a character. */
	text_clean(event.text);
	if (!write_line(&event, subject->limit)) {
		return false;
	}
	events->stats->events_total++;
	struct event_ring *ring = subject->limit ? &events->of_clients : &events->own;
	events->stats->events_dropped += ring->n >= EVENTS_KEPT;
	event.id = ++events->last_id;
	ring->list[ring->n++ % EVENTS_KEPT] = event;
	return true;
}

static const struct event *next_in(const struct event_ring *ring, uint64_t after)
{
	uint64_t i = ring->n > EVENTS_KEPT ? ring->n - EVENTS_KEPT : 0;
	while (i < ring->n && ring->list[i % EVENTS_KEPT].id <= after) {
		i++;
	}
	return i < ring->n ? &ring->list[i % EVENTS_KEPT] : NULL;
}

const struct event *events_next(const struct events *events, uint64_t after)
{
	const struct event *own = next_in(&events->own, after);
	const struct event *other = next_in(&events->of_clients, after);
	return !own || (other && other->id < own->id) ? other : own;
}

const char *event_kind_name(enum event_kind kind)
{
	static const char *const names[EVENT_N_KINDS] = {
		[EVENT_BLOCK_DAMAGED] = "block_damaged",
		[EVENT_DEVICE_FAULT] = "device_fault",
		[EVENT_MOVER_FAILED] = "mover_failed",
	};
	return names[kind];
}
