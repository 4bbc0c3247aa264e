/* SPDX-License-Identifier: Apache-2.0 */
/* Programs under the shim that sleep and wake: tests/shim/sleep.c, beside a real glaked. */

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static int asker;

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\"; wake_wait_ms = 300;",
	            .devices = "1x256MiB");
	asker = connection_hello(&harness);
}

BEGIN_EACH(begin)

/* ---- help ---- */

static void start(struct run *run, const char *scenario)
{
	run_until_ready(run, NULL, run_in_build("tests/shim/sleep"), scenario, NULL);
}

/* Ask the program to sleep or to wake. Returns the answer; connection_free() it. */
static Glake__Wire__Answer *ask(const struct run *run, bool wakes)
{
	return connection_call(asker,
	                       REQUEST(SESSION_SLEEP, SessionSleep, session_sleep,
	                               .session = world_session_of(run->pid), .wakes = wakes),
	                       NULL, 0, NULL);
}

static void ck_answer(struct run *run, const Glake__Wire__Answer *answer, bool is_asleep)
{
	if (answer->status != GLAKE__WIRE__STATUS__OK) {
		kill(run->pid, SIGKILL);
		run_end(run);
	}
	ck_assert_msg(answer->status == GLAKE__WIRE__STATUS__OK, "%s %s", answer->error, run->text);
	ck_assert_int_eq(answer->session_sleep->is_asleep, is_asleep);
}

/* Returns how much has left. */
static uint64_t put_to_sleep(struct run *run)
{
	Glake__Wire__Answer *answer = ask(run, false);
	ck_answer(run, answer, true);
	uint64_t n_bytes = answer->session_sleep->private_bytes;
	connection_free(answer);
	return n_bytes;
}

static void wake(struct run *run)
{
	Glake__Wire__Answer *answer = ask(run, true);
	ck_answer(run, answer, false);
	connection_free(answer);
}

static void ck_busy(const struct run *run, const char *why)
{
	Glake__Wire__Answer *answer = ask(run, false);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__BUSY);
	ck_assert_ptr_nonnull(strstr(answer->error, why));
	connection_free(answer);
}

static void ck_asleep(void)
{
	ck_assert_uint_eq(world_books().private_bytes, 0);
}

/* Another program has all memory but so little that the sleeper cannot wake. */
static int fill_device(void)
{
	uint64_t ids[7];
	int other = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(other, 0, 32 * MIB, n_elements(ids), ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	return other;
}

struct slept_row {
	uint32_t pid;
	uint64_t private_bytes;
};

static int find_sleeper(void *user, const struct glake_sleeper_row *row)
{
	struct slept_row *wanted = user;
	wanted->private_bytes = row->pid == wanted->pid ? row->private_bytes
	                                                : wanted->private_bytes;
	return 0;
}

/* ---- sleeping and waking ---- */

START_TEST(memory_of_each_kind_leaves_and_comes_back_when_it_is_used)
{
	struct run run;
	start(&run, "everything");
	uint64_t n_bytes = world_books().private_bytes;
	ck_assert_uint_gt(n_bytes, 48 * MIB);
	ck_assert_uint_ge(put_to_sleep(&run), 48 * MIB);
	ck_asleep();
	/* The program asks about its memory, and sleeps on. */
	run_go_on(&run);
	ck_asleep();
	run_go_on(&run);
	ck_assert_uint_gt(world_books().private_bytes, 48 * MIB);
	put_to_sleep(&run);
	ck_asleep();
	run_finish(&run);
}
END_TEST

/* Sealed memory, too, which others may have. */
START_TEST(sealed_memory_sleeps_as_well)
{
	struct run run;
	struct glake_seal_report sealed = {.size = sizeof(sealed)};
	start(&run, "allocates");
	assert_ok(glake_seal_session(eye, world_session_of(run.pid), NULL, &sealed));
	ck_assert_uint_eq(sealed.sealed_bytes, 6 * MIB);
	Glake__Wire__Answer *answer = ask(&run, false);
	ck_answer(&run, answer, true);
	ck_assert_uint_eq(answer->session_sleep->shared_bytes, 6 * MIB);
	connection_free(answer);
	assert_fails(GLAKE_E_BUSY, "asleep",
	             glake_seal_session(eye, world_session_of(run.pid), NULL, &sealed));
	run_finish(&run);
}
END_TEST

/* Before anything has left. */
START_TEST(without_a_thread_to_wake_it_it_does_not_sleep)
{
	struct run run;
	start(&run, "threadless");
	ck_busy(&run, "no thread can be started");
	ck_assert_uint_ge(world_books().private_bytes, 6 * MIB);
	run_finish(&run);
}
END_TEST

static const char *const uses[] = {"allocates", "frees"};

START_TEST_WITH(calls_that_submit_nothing_wake_it, .n = 2)
{
	struct run run;
	start(&run, uses[_i]);
	put_to_sleep(&run);
	ck_asleep();
	run_finish(&run);
}
END_TEST

/* The copies go, too. What is freed by several threads, while another one wakes it, is freed once. */
START_TEST(memory_is_freed_without_a_wake)
{
	struct run run;
	start(&run, "frees_asleep");
	uint64_t n_bytes = put_to_sleep(&run);
	ck_assert_uint_eq(n_bytes, 6 * MIB + 34 * MIB + 8 * MIB + 2 * MIB + 4 * MIB);
	run_go_on(&run);
	ck_asleep();
	/* Asked again, the program says what it has now. */
	ck_assert_uint_eq(put_to_sleep(&run), n_bytes - 34 * MIB - 8 * MIB);
	struct slept_row row = {.pid = (uint32_t)run.pid};
	assert_ok(glake_list_sleepers(eye, find_sleeper, &row));
	ck_assert_uint_eq(row.private_bytes, n_bytes - 34 * MIB - 8 * MIB);
	run_go_on(&run);
	ck_assert_uint_eq(world_books().private_bytes, n_bytes - 8 * MIB);
	put_to_sleep(&run);
	run_finish(&run);
}
END_TEST

START_TEST(it_wakes_and_sleeps_when_asked)
{
	struct run run;
	start(&run, "allocates");
	for (int i = 0; i < 5; i++) {
		ck_assert_uint_ge(put_to_sleep(&run), 6 * MIB);
		/* A program that sleeps already says what it has. */
		ck_assert_uint_ge(put_to_sleep(&run), 6 * MIB);
		ck_asleep();
		wake(&run);
		wake(&run);
		ck_assert_uint_ge(world_books().private_bytes, 6 * MIB);
	}
	run_finish(&run);
}
END_TEST

/* ---- two operators at once --------------------------------------------------------------------- */

static const char *const wishes[] = {"sleep", "wake"};

/* One is told that the other was first, and of which mind. */
static void ask_twice(struct run *run, bool first_wakes)
{
	int first = connection_hello(&harness);
	kill(run->pid, SIGSTOP);
	uint64_t id = connection_send(first,
	                              REQUEST(SESSION_SLEEP, SessionSleep, session_sleep,
	                                      .session = world_session_of(run->pid),
	                                      .wakes = first_wakes),
	                              NULL, 0);
	connection_ping(first);
	for (int wakes = 0; wakes < 2; wakes++) {
		char why[64];
		Glake__Wire__Answer *answer = ask(run, wakes);
		snprintf(why, sizeof(why), "is being asked to %s already", wishes[first_wakes]);
		ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__BUSY);
		ck_assert_ptr_nonnull(strstr(answer->error, why));
		connection_free(answer);
	}
	kill(run->pid, SIGCONT);
	Glake__Wire__Answer *answer = connection_receive_for(first, id, NULL);
	ck_answer(run, answer, !first_wakes);
	connection_free(answer);
	connection_close(&first);
}

START_TEST(of_two_operators_the_first_is_followed)
{
	struct run run;
	start(&run, "allocates");
	ask_twice(&run, false);
	ck_asleep();
	ask_twice(&run, true);
	ck_assert_uint_ge(world_books().private_bytes, 6 * MIB);
	run_finish(&run);
}
END_TEST

/* The request goes on without the operator, and nobody asks the program twice; it does what it is asked. */
START_TEST(an_operator_who_goes_away_changes_nothing)
{
	struct run run;
	start(&run, "allocates");
	kill(run.pid, SIGSTOP);
	int first = connection_hello(&harness);
	connection_send(first,
	                REQUEST(SESSION_SLEEP, SessionSleep, session_sleep,
	                        .session = world_session_of(run.pid)),
	                NULL, 0);
	connection_ping(first);
	connection_close(&first);
	kill(run.pid, SIGCONT);
	world_wait_metric("sleeps", 1);
	put_to_sleep(&run);
	wake(&run);
	run_finish(&run);
}
END_TEST

START_TEST(a_captured_stream_is_waited_for_by_the_asker)
{
	struct run run;
	start(&run, "captures");
	ck_busy(&run, "captures");
	run_go_on(&run);
	put_to_sleep(&run);
	run_finish(&run);
}
END_TEST

/* They launch in the moment that it falls asleep, and in the moment that it wakes. */
START_TEST(threads_that_launch_lose_nothing)
{
	struct run run;
	unsigned n_asleep = 0;
	start(&run, "busy");
	for (int i = 0; i < 30 || n_asleep == 0; i++) {
		Glake__Wire__Answer *answer = ask(&run, false);
		ck_assert_msg(answer->status == GLAKE__WIRE__STATUS__OK ||
		                      answer->status == GLAKE__WIRE__STATUS__BUSY,
		              "%s", answer->error);
		n_asleep += answer->status == GLAKE__WIRE__STATUS__OK;
		connection_free(answer);
	}
	run_finish(&run);
}
END_TEST

/* Its work never ends by itself for longer than a moment: its next kernel is held back. */
START_TEST(a_device_that_never_rests_is_no_reason)
{
	struct run run;
	start(&run, "saturates");
	put_to_sleep(&run);
	run_finish(&run);
}
END_TEST

/* ---- while there is no room: it is refused now and then, and asked for again ---- */

static void start_waiting(struct run *run, const char *scenario, int *other_out)
{
	start(run, scenario);
	put_to_sleep(run);
	*other_out = fill_device();
	run_continue(run);
	run_read(run, "launches");
}

START_TEST(who_waits_goes_on_as_soon_as_there_is_room)
{
	struct run run;
	int other;
	start_waiting(&run, "waits", &other);
	run_read(&run, "ready");
	/* The program has been refused more than once by then. */
	usleep(1500000);
	ck_assert_uint_eq(world_books().private_bytes, 7 * 32 * MIB);
	connection_close(&other);
	run_finish(&run);
}
END_TEST

static int note_state(void *user, const struct glake_sleeper_row *row)
{
	snprintf(user, 16, "%s", row->state);
	return 0;
}

static void await_state(const char *state)
{
	char now[16] = "";
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (strcmp(now, state) != 0) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		assert_ok(glake_list_sleepers(eye, note_state, now));
		harness_sleep_ms(5);
	}
}

/*
 * The program has been refused, and pauses before it asks again. It is stopped: that it is asked to wake is glaked's doing then,
 * and it wakes as soon as it goes on.
 */
static void stop_refused(const struct run *run)
{
	world_wait_metric("wakes_refused", 3);
	ck_assert_int_eq(kill(run->pid, SIGSTOP), 0);
	await_state("asleep");
	ck_assert_uint_eq(harness_n_log_lines(&harness, "is asked to wake"), 0);
}

static void end_woken(struct run *run, const char *why)
{
	harness_wait_log(&harness, why);
	ck_assert_int_eq(kill(run->pid, SIGCONT), 0);
	run_finish(run);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "is asked to wake"), 1);
}

START_TEST(who_was_refused_is_asked_to_wake_when_there_is_room)
{
	struct run run;
	int other;
	start_waiting(&run, "waits", &other);
	run_read(&run, "ready");
	stop_refused(&run);
	connection_close(&other);
	end_woken(&run, "is asked to wake: there is room for it now");
}
END_TEST

START_TEST(who_was_refused_is_asked_to_wake_when_its_limit_is_raised)
{
	struct run run;
	start(&run, "waits");
	uint64_t n_bytes = put_to_sleep(&run);
	assert_ok(glake_force_quota(eye, "default", 0, n_bytes / 2));
	run_continue(&run);
	run_read(&run, "launches");
	run_read(&run, "ready");
	stop_refused(&run);
	assert_ok(glake_force_quota(eye, "default", 0, n_bytes - 1));
	harness_sleep_ms(2500);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "is asked to wake"), 0);
	assert_ok(glake_set_quota(eye, "default", 0, n_bytes));
	end_woken(&run, "is asked to wake: its tenant's limit allows it now");
}
END_TEST

/* Nobody in the program waits. */
START_TEST(a_wake_that_an_operator_asked_for_and_was_refused_is_over)
{
	struct run run;
	int other;
	start(&run, "handles");
	put_to_sleep(&run);
	other = fill_device();
	Glake__Wire__Answer *answer = ask(&run, true);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY);
	connection_free(answer);
	connection_close(&other);
	harness_sleep_ms(2500);
	ck_asleep();
	run_continue(&run);
	run_read(&run, "launches");
	run_read(&run, "ready");
	run_finish(&run);
}
END_TEST

START_TEST(exit_waits_for_nobody)
{
	struct run run;
	int other;
	start_waiting(&run, "exits", &other);
	run_end_well(&run);
	connection_close(&other);
}
END_TEST

START_TEST(a_program_that_ends_is_busy)
{
	struct run run;
	start(&run, "lingers");
	put_to_sleep(&run);
	wake(&run);
	run_go_on(&run);
	ck_busy(&run, "cannot be held back");
	run_finish(&run);
}
END_TEST

START_TEST(a_signal_ends_it)
{
	struct run run;
	int other;
	start_waiting(&run, "waits", &other);
	run_read(&run, "ready");
	kill(run.pid, SIGTERM);
	int status = run_end(&run);
	ck_assert(WIFSIGNALED(status));
	ck_assert_int_eq(WTERMSIG(status), SIGTERM);
	connection_close(&other);
}
END_TEST

/* ThreadSanitizer runs handlers when the thread is back from the kernel: here it is not. */
#if defined(__SANITIZE_THREAD__)
#define N_HANDLED 0
#else
#define N_HANDLED 3
#endif

START_TEST(its_handlers_run)
{
	struct run run;
	int other;
	start_waiting(&run, "handles", &other);
	run_read(&run, "ready");
	for (int i = 0; i < N_HANDLED; i++) {
		kill(run.pid, SIGTERM);
		run_read(&run, "handled");
		run.text[0] = '\0';
	}
	connection_close(&other);
	run_finish(&run);
}
END_TEST

static const char *const others[] = {"cancels", "forks"};

START_TEST_WITH(threads_may_be_cancelled_and_children_made, .n = 2)
{
	struct run run;
	int other;
	start_waiting(&run, others[_i], &other);
	run_read(&run, "ready");
	connection_close(&other);
	run_finish(&run);
}
END_TEST

START_TEST(it_may_become_another_program)
{
	struct run run;
	int other;
	start_waiting(&run, "executes", &other);
	run_end_well(&run);
	connection_close(&other);
}
END_TEST
