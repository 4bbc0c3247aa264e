/* SPDX-License-Identifier: Apache-2.0 */
/* Programs under the shim that have sessions of their own, and sleep as a whole: tests/shim/sleep_whole.c. */
#include <signal.h>

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/models.h"
#include "tests/harness/run.h"

#define PRIVATE_BYTES (8 * MIB)
#define CONFIG WORLD_CONFIG "warm_bytes = \"0\"; trust_file_times = true; wake_wait_ms = 300; "

static int asker;
static const char *path;

static void begin_with(const struct harness_options *options)
{
	world_begin_as(options);
	asker = connection_hello(&harness);
	path = world_write_layers("whole.safetensors", 1);
}

static void begin(void)
{
	begin_with(&(struct harness_options){.config = CONFIG, .devices = "1x256MiB"});
}

static void start_with(struct run *run, const char *scenario, const char *model)
{
	run_until_ready(run, NULL, run_in_build("tests/shim/sleep_whole"), scenario, model, NULL);
}

static void start(struct run *run, const char *scenario)
{
	start_with(run, scenario, path);
}

/* ---- asking ----------------------------------------------------------------------------------- */

struct sessions {
	uint32_t pid;
	uint64_t ids[4];
	size_t n;
};

static int take_session(void *user, const struct glake_session_row *row)
{
	struct sessions *sessions = user;
	if (row->pid == sessions->pid) {
		ck_assert_uint_lt(sessions->n, n_elements(sessions->ids));
		sessions->ids[sessions->n++] = row->session;
	}
	return 0;
}

/* Only the shim's session is asked; with connection_free(). */
static Glake__Wire__Answer *ask(const struct run *run, bool wakes)
{
	struct sessions sessions = {.pid = (uint32_t)run->pid};
	Glake__Wire__Answer *answer = NULL;
	assert_ok(glake_list_sessions(eye, take_session, &sessions));
	ck_assert_uint_ge(sessions.n, 2);
	for (size_t i = 0; i < sessions.n; i++) {
		if (answer) {
			connection_free(answer);
		}
		answer = connection_call(asker,
		                         REQUEST(SESSION_SLEEP, SessionSleep, session_sleep,
		                                 .session = sessions.ids[i], .wakes = wakes),
		                         NULL, 0, NULL);
		if (answer->status != GLAKE__WIRE__STATUS__BAD_REQUEST) {
			break;
		}
	}
	return answer;
}

static void put_to_sleep(const struct run *run)
{
	Glake__Wire__Answer *answer = ask(run, false);
	ck_assert_msg(answer->status == GLAKE__WIRE__STATUS__OK, "%s %s", answer->error, run->text);
	ck_assert(answer->session_sleep->is_asleep);
	ck_assert_uint_eq(answer->session_sleep->private_bytes, PRIVATE_BYTES);
	ck_assert_uint_eq(answer->session_sleep->shared_bytes, WORLD_MODEL_BYTES);
	ck_assert_uint_eq(answer->session_sleep->n_stays, 0);
	connection_free(answer);
}

static void refuse_wake(const struct run *run)
{
	Glake__Wire__Answer *answer = ask(run, true);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY);
	connection_free(answer);
}

static void wake(const struct run *run)
{
	Glake__Wire__Answer *answer = ask(run, true);
	ck_assert_msg(answer->status == GLAKE__WIRE__STATUS__OK, "%s", answer->error);
	ck_assert(!answer->session_sleep->is_asleep);
	connection_free(answer);
}

struct sleepers {
	uint32_t pid;
	unsigned n;
	unsigned n_waking;
};

static int take_sleeper(void *user, const struct glake_sleeper_row *row)
{
	struct sleepers *sleepers = user;
	sleepers->n += row->pid == sleepers->pid;
	sleepers->n_waking += row->pid == sleepers->pid && strcmp(row->state, "waking") == 0;
	return 0;
}

static struct sleepers sleepers_of(const struct run *run)
{
	struct sleepers sleepers = {.pid = (uint32_t)run->pid};
	assert_ok(glake_list_sleepers(eye, take_sleeper, &sleepers));
	return sleepers;
}

static void await_sleepers(const struct run *run, unsigned n, unsigned n_waking)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	struct sleepers sleepers = sleepers_of(run);
	while (sleepers.n != n || sleepers.n_waking != n_waking) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(1);
		sleepers = sleepers_of(run);
	}
}

/* In the GPU's books, but for what is cache. */
static uint64_t bytes_in_use(void)
{
	return world_books().private_bytes + world_books().used_block_bytes;
}

static void evict_all(void)
{
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
}

static void ck_whole_asleep(const struct run *run)
{
	ck_assert_uint_eq(sleepers_of(run).n, 2);
	ck_assert_uint_eq(bytes_in_use(), 0);
	evict_all();
	ck_assert_uint_eq(world_books().block_bytes, 0);
}

static int count_session(void *user, const struct glake_session_row *row)
{
	(void)row;
	(*(unsigned *)user)++;
	return 0;
}

static void await_sessions(unsigned n)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	unsigned found = 0;
	assert_ok(glake_list_sessions(eye, count_session, &found));
	while (found != n) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(1);
		found = 0;
		assert_ok(glake_list_sessions(eye, count_session, &found));
	}
}

/* Another program, that leaves @n_bytes of the device. */
static int fill_but(uint64_t n_bytes)
{
	uint64_t id;
	int other = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(other, 0, 256 * MIB - n_bytes, 1, &id, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	return other;
}

static int fill(void)
{
	uint64_t id;
	int other = connection_hello(&harness);
	for (uint64_t n_bytes = 128 * MIB; n_bytes >= 2 * MIB;) {
		bool is_full = connection_alloc(other, 0, n_bytes, 1, &id, NULL) !=
		               GLAKE__WIRE__STATUS__OK;
		n_bytes = is_full ? n_bytes / 2 : n_bytes;
	}
	return other;
}

/* ---- the whole -------------------------------------------------------------------------------- */

START_TEST(memory_and_models_leave_and_come_back_together)
{
	struct run run;
	begin();
	start(&run, "works");
	put_to_sleep(&run);
	ck_whole_asleep(&run);
	run_go_on(&run);
	ck_assert_uint_eq(sleepers_of(&run).n, 0);
	ck_assert_uint_eq(bytes_in_use(), PRIVATE_BYTES + WORLD_MODEL_BYTES);
	put_to_sleep(&run);
	ck_whole_asleep(&run);
	wake(&run);
	ck_assert_uint_eq(bytes_in_use(), PRIVATE_BYTES + WORLD_MODEL_BYTES);
	put_to_sleep(&run);
	run_finish(&run);
}
END_TEST

START_TEST(a_program_that_puts_its_own_session_to_sleep_sleeps_as_a_whole)
{
	struct run run;
	begin();
	start(&run, "sleeps_by_itself");
	ck_whole_asleep(&run);
	run_go_on(&run);
	ck_whole_asleep(&run);
	/* Now it can be asked as well. */
	wake(&run);
	ck_assert_uint_eq(sleepers_of(&run).n, 0);
	run_finish(&run);
}
END_TEST

START_TEST(the_driver_knows_what_the_library_has_mapped)
{
	struct run run;
	begin();
	run_start(&run, NULL, run_in_build("tests/shim/sleep_whole"), "is_known", path, NULL);
	run_finish(&run);
}
END_TEST

START_TEST(who_comes_later_can_join)
{
	struct run run;
	begin();
	start(&run, "joins");
	put_to_sleep(&run);
	run_go_on(&run);
	ck_assert_uint_eq(sleepers_of(&run).n, 2);
	ck_assert_uint_eq(bytes_in_use(), WORLD_MODEL_BYTES);
	run_go_on(&run);
	ck_assert_uint_eq(sleepers_of(&run).n, 3);
	ck_assert_uint_eq(bytes_in_use(), 0);
	run_finish(&run);
}
END_TEST

/* ---- room ------------------------------------------------------------------------------------- */

/* Either half is the one without. */
START_TEST(with_room_for_one_half_it_gives_that_back_and_sleeps_on)
{
	struct run run;
	begin();
	start(&run, "works");
	put_to_sleep(&run);
	evict_all();
	int other = fill_but(WORLD_MODEL_BYTES);
	uint64_t others_bytes = bytes_in_use();
	refuse_wake(&run);
	ck_assert_uint_eq(sleepers_of(&run).n, 2);
	ck_assert_uint_eq(bytes_in_use(), others_bytes);
	refuse_wake(&run);
	ck_assert_uint_eq(bytes_in_use(), others_bytes);
	connection_close(&other);
	run_go_on(&run);
	run_finish(&run);
}
END_TEST

/* Room for one of them, or for the first half of both and no second: whoever is first, neither waits for ever. */
START_TEST(two_that_wake_do_not_hold_what_the_other_waits_for)
{
	static struct run runs[2];
	uint64_t id;
	begin();
	start_with(&runs[0], "works_once", path);
	start_with(&runs[1], "works_once", world_write_layers("other.safetensors", 2));
	put_to_sleep(&runs[0]);
	put_to_sleep(&runs[1]);
	evict_all();
	int room = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(room, 0, 2 * PRIVATE_BYTES + WORLD_MODEL_BYTES - 2 * MIB,
	                                  1, &id, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	int other = fill();
	run_continue(&runs[0]);
	run_continue(&runs[1]);
	await_sleepers(&runs[0], 2, 1);
	await_sleepers(&runs[1], 2, 1);
	connection_close(&room);
	run_end_well(&runs[0]);
	run_end_well(&runs[1]);
	connection_close(&other);
}
END_TEST

/* ---- sessions that end ------------------------------------------------------------------------ */

START_TEST(a_session_that_ends_asleep_leaves_the_rest_asleep)
{
	struct run run;
	begin();
	start(&run, "ends_asleep");
	put_to_sleep(&run);
	evict_all();
	run_go_on(&run);
	/* Nobody waits for an answer to a goodbye. */
	await_sleepers(&run, 1, 0);
	ck_assert_uint_eq(bytes_in_use(), 0);
	run_finish(&run);
}
END_TEST

/* With room for nothing, or for what comes first. */
START_TEST_WITH(a_session_can_end_while_the_wake_waits, .n = 2)
{
	struct run run;
	world_begin_as(&(struct harness_options){.config = WORLD_CONFIG
	                                         "warm_bytes = \"0\"; trust_file_times = true; ",
	                                         .devices = "1x256MiB"});
	asker = connection_hello(&harness);
	path = world_write_layers("whole.safetensors", 1);
	start(&run, "ends_waking");
	put_to_sleep(&run);
	evict_all();
	int other = _i == 0 ? fill() : fill_but(WORLD_MODEL_BYTES);
	run_go_on(&run);
	/* Memory that is on the GPU and not mapped yet is not listed. */
	await_sleepers(&run, _i == 0 ? 2 : 1, 1);
	run_go_on(&run);
	connection_close(&other);
	run_finish(&run);
}
END_TEST

/* ---- bad days --------------------------------------------------------------------------------- */

START_TEST(killed_asleep_it_leaves_nothing)
{
	struct run run;
	begin();
	start(&run, "works");
	put_to_sleep(&run);
	connection_close(&asker);
	kill(run.pid, SIGKILL);
	run_end(&run);
	world_evict_until(&books_before);
	ck_assert_uint_eq(sleepers_of(&run).n, 0);
}
END_TEST

START_TEST(it_sleeps_through_the_end_of_glaked)
{
	struct run run;
	begin_with(&(struct harness_options){
		.config = CONFIG, .devices = "1x256MiB", .is_activated = true, .keeps_fds = true});
	start(&run, "works");
	put_to_sleep(&run);
	evict_all();
	connection_close(&asker);
	await_sessions(3);
	harness_kill(&harness);
	harness_restart(&harness);
	run_go_on(&run);
	ck_assert_uint_eq(bytes_in_use(), PRIVATE_BYTES + WORLD_MODEL_BYTES);
	run_finish(&run);
}
END_TEST
