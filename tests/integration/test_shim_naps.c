/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that glaked puts to sleep by itself. */

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define SPEED 5u

static void begin_on(const char *devices, unsigned speed, const char *tenant, const char *more)
{
	static char config[512];
	snprintf(config, sizeof(config),
	         WORLD_CONFIG "warm_bytes = 0; min_awake_ms = 1000; %s "
	                      "tenants = ({ name = \"default\"; %s });",
	         more, tenant);
	world_begin(.config = config, .devices = devices, .speed = speed);
}

static void begin_at(unsigned speed, const char *tenant, const char *more)
{
	begin_on("1x64MiB", speed, tenant, more);
}

static void begin_with(const char *tenant, const char *more)
{
	begin_at(SPEED, tenant, more);
}

static void begin(const char *tenant)
{
	begin_with(tenant, "");
}

static void start_as(struct run *run, const char *scenario)
{
	run_until_ready(run, NULL, run_in_build("tests/shim/sleep"), scenario, NULL);
}

static void start(struct run *run)
{
	start_as(run, "waits_long");
}

START_TEST(a_program_that_is_idle_sleeps_and_wakes_when_it_works)
{
	struct run run;
	begin("idle_ms = 4000;");
	start(&run);
	for (uint64_t i = 1; i <= 2; i++) {
		world_wait_metric("sleeps_idle", i);
		ck_assert_uint_eq(world_books().private_bytes, 0);
		run_go_on(&run);
		ck_assert_uint_gt(world_books().private_bytes, 0);
	}
	run_finish(&run);
}
END_TEST

/* Start a program that is idle, and is being copied by a mover that is stopped. Returns the mover's pid. */
static pid_t begin_nap(struct run *run)
{
	world_start_mover();
	start(run);
	pid_t mover = world_running_mover();
	kill(mover, SIGSTOP);
	while (world_books().charged_host_bytes == 0) {
		usleep(1000);
	}
	return mover;
}

/* Copies are made: a mover that does not move holds nobody up, since nothing of the program's has changed. */
START_TEST(a_program_that_works_again_goes_on_before_it_has_fallen_asleep)
{
	struct run run;
	begin("idle_ms = 4000;");
	pid_t mover = begin_nap(&run);
	run_go_on(&run);
	ck_assert_uint_eq(world_metric("sleeps"), 0);
	ck_assert_uint_gt(world_books().private_bytes, 0);
	kill(mover, SIGCONT);
	world_wait_metric("sleeps_idle", 1);
	run_go_on(&run);
	run_finish(&run);
}
END_TEST

/* Each needs the room of the other. */
START_TEST(two_programs_take_turns_on_a_device_that_has_room_for_one)
{
	struct run a;
	struct run b;
	begin("on_pressure = \"sleep\";");
	start(&a);
	/* Until then glaked does not know that `a` is idle. */
	usleep(1500000);
	start(&b);
	ck_assert_uint_eq(world_metric("sleeps_pressure"), 1);
	for (uint64_t i = 2; i <= 5; i++) {
		usleep(1500000);
		run_go_on(i % 2 ? &b : &a);
		ck_assert_uint_eq(world_metric("sleeps_pressure"), i);
	}
	run_finish(&a);
	run_finish(&b);
}
END_TEST

/* Nobody answers for it: the request is refused, in the end. */
START_TEST(a_program_that_is_stopped_delays_a_request_and_no_more)
{
	struct run run;
	struct fdlist fds;
	uint64_t id;
	begin("on_pressure = \"sleep\";");
	int other = connection_hello(&harness);
	fdlist_init(&fds);
	start(&run);
	usleep(1500000);
	kill(run.pid, SIGSTOP);
	uint64_t begin_ms = harness_now_ms();
	int status = connection_alloc(other, 0, 40 * MIB, 1, &id, &fds);
	ck_assert_int_eq(status, GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY);
	/* The program was asked, and had ten seconds of glaked's to answer. */
	ck_assert_uint_ge(harness_now_ms() - begin_ms, 1500);
	kill(run.pid, SIGKILL);
	run_end(&run);
	fdlist_deinit(&fds);
	connection_close(&other);
}
END_TEST

static const char *const policies[] = {"idle_ms = 4000;", "on_pressure = \"sleep\";", ""};

/* For who looks whether it fits the rest of the configuration: glakectl doctor. */
START_TEST_WITH(the_status_has_the_policy, .n = 3)
{
	begin(policies[_i]);
	struct glake_status status = world_status();
	ck_assert_int_eq(status.sleeps_idle, _i == 0);
	ck_assert_int_eq(status.sleeps_on_pressure, _i == 1);
	ck_assert_uint_eq(status.mover_idle_ms, 0);
	ck_assert_int_eq(status.waits, 0);
}
END_TEST

/*
 * Two programs of 24 MiB leave room for the mover's buffers, 16 MiB, and not for another 24. With the machine's own clock, since
 * each turn is a copy: on a busy machine one takes long, and after a minute glaked gives it up.
 */
static void begin_beside_mover(void)
{
	begin_on("1x70MiB", 1, "on_pressure = \"sleep\";",
	         "pressure = \"wait\"; wait_ms = 3600000;");
}

/* Each waits for the room of the other. Who came first gets it; the other one wakes for its own, and gets what it waits for. */
START_TEST(two_programs_that_wait_for_each_other_both_get_room)
{
	struct run a;
	struct run b;
	begin_beside_mover();
	start_as(&a, "grows");
	start_as(&b, "grows");
	usleep(1500000);
	run_continue(&a);
	run_continue(&b);
	run_read(&a, "ready");
	run_read(&b, "ready");
	ck_assert_uint_ge(world_metric("sleeps_pressure"), 2);
	run_finish(&a);
	run_finish(&b);
}
END_TEST

/* Only two have room for what they have, and only one for what it wants. */
START_TEST(programs_that_want_more_than_there_is_take_turns)
{
	struct run runs[3];
	begin_beside_mover();
	for (size_t i = 0; i < n_elements(runs); i++) {
		start_as(&runs[i], "grows_and_shrinks");
		usleep(1500000);
	}
	for (size_t i = 0; i < n_elements(runs); i++) {
		run_continue(&runs[i]);
	}
	for (size_t i = 0; i < n_elements(runs); i++) {
		run_read(&runs[i], "ready");
	}
	for (size_t i = 0; i < n_elements(runs); i++) {
		run_finish(&runs[i]);
	}
}
END_TEST

/* ---- who is not put to sleep -------------------------------------------------------------------- */

static int connect_other(void)
{
	uint64_t id;
	int other = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(other, 0, 40 * MIB, 1, &id, NULL),
	                 GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY);
	return other;
}

/* When the log had the line with @text for the @n-th time, by the calendar; waits for it. */
static uint64_t logged_ms(const char *text, unsigned n)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (harness_n_log_lines(&harness, text) < n) {
		ck_assert_msg(harness_now_ms() < end_ms, "%u lines of \"%s\"\n%s",
		              harness_n_log_lines(&harness, text), text, harness_log(&harness));
		harness_sleep_ms(20);
	}
	const char *at = harness_log(&harness);
	for (unsigned i = 0; i < n; i++) {
		at = strstr(at, text) + 1;
	}
	while (at > harness_log(&harness) && at[-1] != '\n') {
		at--;
	}
	unsigned hour;
	unsigned minute;
	unsigned second;
	unsigned ms;
	ck_assert_int_eq(sscanf(at, "%*10cT%u:%u:%u.%u", &hour, &minute, &second, &ms), 4);
	return ((hour * 60 + minute) * 60 + second) * 1000ull + ms;
}

/* The program is idle, but cannot sleep: it is asked again after ten seconds of glaked's, then after twenty. */
START_TEST(a_program_that_is_busy_is_asked_less_and_less)
{
	static const char why[] = "no thread can be started";
	struct run run;
	begin("idle_ms = 2000;");
	start_as(&run, "threadless");
	uint64_t first_ms = logged_ms(why, 1);
	uint64_t second_ms = logged_ms(why, 2);
	uint64_t third_ms = logged_ms(why, 3);
	ck_assert_uint_ge(second_ms - first_ms, 9000 / SPEED);
	ck_assert_uint_ge(third_ms - second_ms, 19000 / SPEED);
	ck_assert_uint_eq(world_metric("sleeps"), 0);
	run_finish(&run);
}
END_TEST

/* The program has not been idle for long, and has not said so: that it does nothing now is enough for who finds no room. */
START_TEST(who_needs_room_gets_it_from_a_program_between_its_requests)
{
	struct run run;
	uint64_t id;
	int other;
	begin_at(1, "on_pressure = \"sleep\";", "pressure = \"wait\"; wait_ms = 100000;");
	start(&run);
	other = connection_hello(&harness);
	for (int i = 0; i < 2; i++) {
		ck_assert_uint_eq(world_metric("sleeps_pressure"), (uint64_t)i);
		ck_assert_int_eq(connection_alloc(other, 0, 40 * MIB, 1, &id, NULL),
		                 GLAKE__WIRE__STATUS__OK);
		ck_assert_uint_eq(world_metric("sleeps_pressure"), (uint64_t)i + 1);
		ck_assert_int_eq(connection_free_chunks(other, &id, 1), GLAKE__WIRE__STATUS__OK);
		run_go_on(&run);
	}
	connection_close(&other);
	run_finish(&run);
}
END_TEST

/* Not after ten seconds, but when it is idle: it was busy for a reason that is over. */
START_TEST(a_program_that_was_busy_and_has_worked_is_asked_again)
{
	struct run run;
	begin_at(1, "idle_ms = 2500;", "");
	pid_t mover = begin_nap(&run);
	run_go_on(&run);
	uint64_t busy_ms = harness_now_ms();
	kill(mover, SIGCONT);
	world_wait_metric("sleeps_idle", 1);
	ck_assert_uint_lt(harness_now_ms() - busy_ms, 9000);
	run_go_on(&run);
	run_finish(&run);
}
END_TEST

/* Nobody is asked for ten seconds then. */
START_TEST(without_host_memory_idle_programs_stay_awake)
{
	static const char why[] = "more on host node 0";
	struct run run;
	begin_with("idle_ms = 2000;", "host_bytes = \"8MiB\";");
	start(&run);
	uint64_t first_ms = logged_ms(why, 1);
	uint64_t second_ms = logged_ms(why, 2);
	ck_assert_uint_ge(second_ms - first_ms, 9000 / SPEED);
	ck_assert_uint_eq(world_metric("sleeps"), 0);
	run_go_on(&run);
	run_go_on(&run);
	run_finish(&run);
}
END_TEST

/* The request that wants its room is refused, and the log says why. */
START_TEST(without_host_memory_pressure_puts_nobody_to_sleep)
{
	struct run run;
	begin_with("on_pressure = \"sleep\";", "host_bytes = \"8MiB\";");
	start(&run);
	usleep(1500000);
	int other = connect_other();
	harness_wait_log(&harness, "more on host node 0");
	ck_assert_uint_eq(world_metric("sleeps"), 0);
	connection_close(&other);
	run_go_on(&run);
	run_go_on(&run);
	run_finish(&run);
}
END_TEST

/* ---- who cannot wake ---------------------------------------------------------------------------- */

static int note_event(void *user, const struct glake_event_row *row)
{
	unsigned *n = user;
	*n += strcmp(row->kind, "wake_refused") == 0;
	return 0;
}

static unsigned n_told(void)
{
	unsigned n = 0;
	assert_ok(glake_list_events(eye, note_event, &n));
	return n;
}

/* After a minute of glaked's an operator is told, once, however often it asks. */
START_TEST(a_program_that_finds_no_room_for_long_is_an_event)
{
	struct run run;
	struct fdlist fds;
	uint64_t id;
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	begin_at(30, "idle_ms = 2000;", "wake_wait_ms = 15000;");
	start(&run);
	world_wait_metric("sleeps", 1);
	int other = connection_hello(&harness);
	fdlist_init(&fds);
	/* Its memory may still be on its way out: a request waits for that, but only for a second of glaked's. */
	while (connection_alloc(other, 0, 40 * MIB, 1, &id, &fds) != GLAKE__WIRE__STATUS__OK) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(10);
	}
	fdlist_deinit(&fds);
	run_continue(&run);
	while (n_told() == 0) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(50);
	}
	ck_assert_uint_ge(world_metric("wakes_refused"), 3);
	world_wait_metric("wakes_refused", world_metric("wakes_refused") + 1);
	ck_assert_uint_eq(n_told(), 1);
	connection_close(&other);
	run_read(&run, "ready");
	run_go_on(&run);
	run_finish(&run);
}
END_TEST
