/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of events. */
#include "daemon/base/events.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/check_glake.h"

static struct stats stats;
static struct events events;

static void begin(void)
{
	memset(&events, 0xa5, sizeof(events));
	events_init(&events, &stats);
}

BEGIN_EACH(begin)

static bool add(const struct event_subject *subject, unsigned number)
{
	return events_add(&events, EVENT_DEVICE_FAULT, subject, "number %u", number);
}

START_TEST(events_are_seen_in_their_order)
{
	ck_assert_ptr_null(events_next(&events, 0));
	const struct event_subject one = {.realm = "r", .session = 7, .pid = 9};
	ck_assert(add(&one, 1));
	ck_assert(add(&(struct event_subject){.realm = NULL}, 2));
	const struct event *event = events_next(&events, 0);
	ck_assert_uint_eq(event->id, 1);
	ck_assert_uint_eq(event->session, 7);
	ck_assert_int_eq(event->pid, 9);
	ck_assert_str_eq(event->realm, "r");
	ck_assert_str_eq(event->text, "number 1");
	ck_assert_str_eq(event_kind_name(event->kind), "device_fault");
	ck_assert_uint_gt(event->time_ms, 1600000000000);
	event = events_next(&events, 1);
	ck_assert_uint_eq(event->id, 2);
	ck_assert_str_eq(event->realm, "");
	ck_assert_ptr_null(events_next(&events, 2));
	ck_assert_ptr_null(events_next(&events, UINT64_MAX));
	ck_assert_uint_eq(stats.events_total, 2);
	ck_assert_uint_eq(stats.events_dropped, 0);
}
END_TEST

START_TEST(the_oldest_are_dropped)
{
	for (unsigned i = 1; i <= EVENTS_KEPT + 3; i++) {
		ck_assert(add(&(struct event_subject){.realm = NULL}, i));
	}
	uint64_t after = 0;
	unsigned n_seen = 0;
	const struct event *event;
	while ((event = events_next(&events, after))) {
		after = event->id;
		ck_assert_uint_eq(event->id, ++n_seen + 3);
	}
	ck_assert_uint_eq(n_seen, EVENTS_KEPT);
	ck_assert_uint_eq(stats.events_dropped, 3);
}
END_TEST

/* Programs that are refused in a loop. */
START_TEST(refusals_push_no_other_event_out)
{
	const struct event_refusal refusal = {.n = 1, .bound = "quota", .program = "a\033b"};
	struct event_subject subject = {.realm = "uid:1", .refusal = &refusal};
	add(&(struct event_subject){.realm = "uid:1"}, 7);
	for (unsigned i = 0; i < EVENTS_KEPT + 9; i++) {
		ck_assert(events_add(&events, EVENT_MEMORY_REFUSED, &subject, "refused"));
	}
	ck_assert_str_eq(events_next(&events, 0)->text, "number 7");
	ck_assert_uint_eq(events_next(&events, 0)->refusal.n, 0);
	ck_assert_uint_eq(events_next(&events, 1)->id, 11);
	ck_assert_uint_eq(events_next(&events, 1)->refusal.n, 1);
	ck_assert_str_eq(events_next(&events, 1)->refusal.program, "a?b");
	ck_assert_uint_eq(stats.events_dropped, 9);
}
END_TEST

START_TEST(one_client_cannot_push_the_events_of_others_out)
{
	struct log_limit limit = {0};
	unsigned n_kept = 0;
	for (unsigned i = 0; i < 2 * EVENTS_KEPT; i++) {
		n_kept += add(&(struct event_subject){.realm = "r", .limit = &limit}, i);
	}
	ck_assert_uint_lt(n_kept, 2 * LOG_LIMIT_BURST);
	ck_assert_uint_eq(events.last_id, n_kept);
}
END_TEST

/* However patient it is: what glaked itself has found stays, in its place. */
START_TEST(clients_cannot_push_out_what_glaked_has_found)
{
	ck_assert(add(&(struct event_subject){.realm = "r"}, 1));
	for (unsigned i = 0; i < 2 * EVENTS_KEPT; i++) {
		struct log_limit limit = {0};
		ck_assert(add(&(struct event_subject){.realm = "r", .limit = &limit}, i));
	}
	ck_assert(add(&(struct event_subject){.realm = "r"}, 2));
	ck_assert_str_eq(events_next(&events, 0)->text, "number 1");
	uint64_t last = 0;
	unsigned n = 0;
	const struct event *event;
	for (; (event = events_next(&events, last)); n++) {
		ck_assert_uint_gt(event->id, last);
		last = event->id;
	}
	ck_assert_uint_eq(n, EVENTS_KEPT + 2);
	ck_assert_uint_eq(last, 2 * EVENTS_KEPT + 2);
	ck_assert_uint_eq(stats.events_dropped, EVENTS_KEPT);
}
END_TEST

/* A program can damage its own blocks, as often as it likes. */
START_TEST(one_realm_cannot_push_out_what_was_found_of_others)
{
	for (unsigned i = 0; i < 100; i++) {
		ck_assert(add(&(struct event_subject){.realm = i % 2 ? "a" : "b"}, i));
	}
	ck_assert(add(&(struct event_subject){.realm = NULL}, 100));
	for (unsigned i = 0; i < 4 * EVENTS_KEPT; i++) {
		ck_assert(add(&(struct event_subject){.realm = "r"}, 1000 + i));
	}
	uint64_t last = 0;
	unsigned n = 0;
	const struct event *event;
	for (; (event = events_next(&events, last)); n++) {
		last = event->id;
		/* The events of others are the oldest; of its own the last are there. */
		ck_assert_uint_eq(last,
		                  n <= 100 ? n + 1 : 4 * EVENTS_KEPT + 101 - (EVENTS_KEPT - n - 1));
	}
	ck_assert_uint_eq(n, EVENTS_KEPT);
	ck_assert_uint_eq(stats.events_total, 4 * EVENTS_KEPT + 101);
}
END_TEST

static unsigned count_lines(FILE *log, const char *text)
{
	char line[2048];
	unsigned n = 0;
	rewind(log);
	while (fgets(line, sizeof(line), log)) {
		n += strstr(line, text) != NULL;
	}
	return n;
}

START_TEST(one_realm_does_not_fill_the_log)
{
	FILE *log = tmpfile();
	ck_assert_ptr_nonnull(log);
	ck_assert_int_ge(dup2(fileno(log), STDERR_FILENO), 0);
	for (unsigned i = 0; i < 1000; i++) {
		ck_assert(add(&(struct event_subject){.realm = "r"}, i));
	}
	ck_assert(add(&(struct event_subject){.realm = "other"}, 1));
	ck_assert_uint_lt(count_lines(log, "realm r:"), 2 * LOG_LIMIT_BURST);
	ck_assert_uint_eq(count_lines(log, "realm other:"), 1);
	fclose(log);
}
END_TEST

START_TEST(a_text_is_one_line)
{
	char text[2 * EVENT_TEXT_BYTES];
	memset(text, 'x', sizeof(text));
	text[0] = '\n';
	text[sizeof(text) - 1] = '\0';
	events_add(&events, EVENT_MOVER_FAILED, &(struct event_subject){.realm = NULL}, "%s", text);
	const struct event *event = events_next(&events, 0);
	ck_assert_uint_eq(strlen(event->text), EVENT_TEXT_BYTES - 1);
	ck_assert_int_eq(event->text[0], '?');
}
END_TEST
