/* SPDX-License-Identifier: Apache-2.0 */
/* The figures that somebody sees who asks programs to sleep and to wake: tests/shim/sleep.c, beside a real glaked. */

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static int filler; /* has what the programs do not have */

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\"; wake_wait_ms = 100000;",
	            .devices = "1x64MiB");
}
BEGIN_EACH(begin)

static void start_as(struct run *run, const char *scenario)
{
	run_until_ready(run, NULL, run_in_build("tests/shim/sleep"), scenario, NULL);
}

static void start(struct run *run)
{
	start_as(run, "allocates");
}

/* Neither has room to wake. */
static void fill_device(void)
{
	filler = connection_hello(&harness);
	int status = GLAKE__WIRE__STATUS__OK;
	while (status == GLAKE__WIRE__STATUS__OK) {
		uint64_t id;
		status = connection_alloc(filler, 0, 4 * MIB, 1, &id, NULL);
	}
}

static int count_waiting(void *user, const struct glake_sleeper_row *row)
{
	*(unsigned *)user += row->place > 0;
	return 0;
}

static void await_waiting(unsigned n_wanted)
{
	unsigned n = 0;
	while (n < n_wanted) {
		n = 0;
		assert_ok(glake_list_sleepers(eye, count_waiting, &n));
		usleep(10000);
	}
}

/* ---- what the asker is told ---- */

struct seen {
	unsigned n_waits;
	uint32_t first_place;
	uint64_t waiting_ms;
	uint64_t done_bytes;
	uint64_t total_bytes;
	struct glake_sleep_report report;
	char stays_why[64]; /* of the first that stays */
	uint64_t stays_bytes;
};

/* The asker sees the wake wait twice: then there is room. */
static void see_waiting(void *user, uint32_t place, uint64_t waiting_ms)
{
	struct seen *seen = user;
	seen->first_place = seen->n_waits == 0 ? place : seen->first_place;
	seen->waiting_ms = waiting_ms > seen->waiting_ms ? waiting_ms : seen->waiting_ms;
	if (++seen->n_waits == 2) {
		connection_close(&filler);
	}
}

static void see_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	struct seen *seen = user;
	ck_assert_uint_le(done_bytes, total_bytes);
	seen->done_bytes = done_bytes;
	seen->total_bytes = total_bytes;
}

static int see_report(void *user, const struct glake_sleep_report *report)
{
	struct seen *seen = user;
	seen->report = *report;
	if (report->n_stays > 0) {
		seen->stays_bytes = report->stays[0].bytes;
		snprintf(seen->stays_why, sizeof(seen->stays_why), "%s", report->stays[0].why);
	}
	return 0;
}

static void ask(const struct run *run, bool wakes, struct seen *seen)
{
	const struct glake_sleep_options options = {.size = sizeof(options),
	                                            .wakes = wakes,
	                                            .progress = see_progress,
	                                            .progress_user = seen,
	                                            .waiting = see_waiting};
	*seen = (struct seen){.n_waits = 0};
	assert_ok(glake_sleep_session(eye, world_session_of(run->pid), &options, see_report, seen));
	ck_assert_int_eq(seen->report.is_asleep, !wakes);
}

START_TEST(who_asks_for_a_wake_hears_where_it_waits)
{
	struct run first;
	struct run second;
	struct seen seen;
	start(&first);
	start(&second);
	ask(&first, false, &seen);
	ck_assert_uint_eq(seen.done_bytes, seen.report.private_bytes);
	ck_assert_uint_eq(seen.report.waited_ms, 0);
	ask(&second, false, &seen);
	fill_device();
	/* The first program wants its memory by itself, and is the first to wait. */
	run_continue(&first);
	await_waiting(1);
	ask(&second, true, &seen);
	ck_assert_uint_eq(seen.first_place, 2);
	ck_assert_uint_ge(seen.n_waits, 2);
	ck_assert_uint_ge(seen.report.waited_ms, seen.waiting_ms);
	/* All of it counts, and not only what the program did itself in the end. */
	ck_assert_uint_ge(seen.report.took_ns / 1000000 + 50, seen.waiting_ms);
	run_end_well(&first);
	/* The second program is awake: nothing is waited for. */
	ask(&second, true, &seen);
	ck_assert_uint_eq(seen.n_waits, 0);
	ck_assert_uint_eq(seen.report.waited_ms, 0);
	run_finish(&second);
}
END_TEST

START_TEST(who_asks_for_sleep_hears_what_stays_and_why)
{
	struct run run;
	struct seen seen;
	start_as(&run, "named");
	ask(&run, false, &seen);
	ck_assert_uint_eq(seen.report.n_stays, 1);
	ck_assert_str_eq(seen.stays_why, "named for other processes");
	ck_assert_uint_eq(seen.stays_bytes, 4 * MIB);
	ck_assert_uint_eq(seen.report.private_bytes, 2 * MIB);
	ask(&run, true, &seen);
	run_finish(&run);
}
END_TEST

/* Who asked has gone: the program wakes all the same when there is room. */
START_TEST(a_wake_goes_on_without_who_asked_for_it)
{
	struct run run;
	struct seen seen;
	start(&run);
	ask(&run, false, &seen);
	fill_device();
	int asker = connection_hello(&harness);
	connection_send(asker,
	                REQUEST(SESSION_SLEEP, SessionSleep, session_sleep,
	                        .session = world_session_of(run.pid), .wakes = true,
	                        .progress = true),
	                NULL, 0);
	await_waiting(1);
	connection_close(&asker);
	connection_close(&filler);
	world_wait_metric("wakes", 1);
	run_finish(&run);
}
END_TEST
