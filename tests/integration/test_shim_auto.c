/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs whose equal memory becomes one copy without anybody asking (tests/shim/auto.c), and that nothing is lost by it.
 */
#include <grp.h>
#include <stdlib.h>

#include "tests/check_glake.h"
#include "tests/harness/churn.h"
#include "tests/harness/readers.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "1x1GiB");
	readers_begin();
}

BEGIN_EACH(begin)

static void start_as(struct run *run, const char *dedup, const char *scenario)
{
	run_start(run, dedup, run_in_build("tests/shim/auto"), scenario, NULL);
}

static void run_as(const char *dedup, const char *scenario)
{
	struct run run;
	start_as(&run, dedup, scenario);
	run_end_well(&run);
}

static uint64_t block_bytes(void)
{
	return world_books().block_bytes;
}

START_TEST(two_programs_have_one_copy)
{
	struct run one;
	struct run two;
	start_as(&one, "GLAKE_DEDUP=auto", "reads");
	start_as(&two, "GLAKE_DEDUP=auto", "reads");
	run_read(&one, "sealed");
	run_read(&two, "sealed");
	ck_assert_uint_eq(block_bytes(), 4 * MIB);
	run_continue(&one);
	run_continue(&two);
	run_end_well(&one);
	run_end_well(&two);
}
END_TEST

/* So it is while several programs load: whoever asks the driver waits. */
START_TEST(a_look_that_waits_does_not_put_the_next_one_off)
{
	setenv("CUDASIM_FAULT", "auto/cuDeviceGetAttribute:*:slow=400", 1);
	run_as("GLAKE_DEDUP=auto", "reads");
}
END_TEST

static const char *const writes[] = {"plain",  "same",   "added", "unlisted", "hidden",
                                     "itself", "packed", "graph", "captured", "updated"};

START_TEST_WITH(it_is_private_before_it_may_be_written, .n = n_elements(writes))
{
	run_as("GLAKE_DEDUP=auto", writes[_i]);
}
END_TEST

START_TEST(a_graph_that_writes_was_there_before)
{
	run_as("GLAKE_DEDUP=auto", "old_graph");
}
END_TEST

START_TEST(a_graph_launches_what_a_library_has)
{
	run_as("GLAKE_DEDUP=auto", "library");
}
END_TEST

START_TEST(a_store_comes_late)
{
	run_as("GLAKE_DEDUP=auto", "late");
}
END_TEST

START_TEST(a_writer_comes_after_ten_thousand_reads)
{
	run_as("GLAKE_DEDUP=auto", "many");
}
END_TEST

/* With another group they are in another realm. */
START_TEST(two_realms_have_a_copy_each)
{
	const gid_t group = 4321;
	struct run runs[4];
	if (getuid() != 0) {
		return;
	}
	harness_reload(&harness,
	               WORLD_CONFIG "warm_bytes = \"64MiB\"; "
	                            "realms = ( { name = \"others\"; gids = [ 4321 ]; } );");
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_int_eq(setgroups(i & 1, &group), 0);
		start_as(&runs[i], "GLAKE_DEDUP=auto", "reads");
	}
	assert_ok(setgroups(0, NULL));
	for (unsigned i = 0; i < 4; i++) {
		run_read(&runs[i], "sealed");
	}
	ck_assert_uint_eq(block_bytes(), 2 * 4 * MIB);
	for (unsigned i = 0; i < 4; i++) {
		run_finish(&runs[i]);
	}
}
END_TEST

START_TEST(a_whole_parameter_is_read)
{
	struct run run;
	start_as(&run, "GLAKE_DEDUP=auto", "gathers");
	run_end_well(&run);
}
END_TEST

#define N_CROWD 12u

START_TEST_WITH(many_become_quiet_at_once, .timeout_s = 300)
{
	static struct run runs[N_CROWD];
	for (unsigned i = 0; i < N_CROWD; i++) {
		start_as(&runs[i], "GLAKE_DEDUP=auto", "reads");
	}
	for (unsigned i = 0; i < N_CROWD; i++) {
		run_read(&runs[i], "sealed");
	}
	ck_assert_uint_eq(block_bytes(), 4 * MIB);
	for (unsigned i = 0; i < N_CROWD; i++) {
		run_finish(&runs[i]);
	}
}
END_TEST

/* The mover dies when it begins to look, three times if it has to look so often: nothing is lost, and it is shared in the end. */
START_TEST(the_mover_dies_while_it_looks)
{
	struct run runs[2];
	start_as(&runs[0], "GLAKE_DEDUP=auto", "reads");
	start_as(&runs[1], "GLAKE_DEDUP=auto", "reads");
	kill(world_running_mover(), SIGKILL);
	for (unsigned i = 0, n_killed = 1; i < 300 && n_killed < 3; i++) {
		pid_t mover = world_mover();
		bool is_killed = mover && kill(mover, SIGKILL) == 0;
		n_killed += is_killed;
		usleep(is_killed ? 100000 : 10000);
	}
	for (unsigned i = 0; i < 2; i++) {
		run_read(&runs[i], "sealed");
	}
	for (unsigned i = 0; i < 2; i++) {
		run_finish(&runs[i]);
	}
}
END_TEST

START_TEST(what_was_unsealed_twice_is_not_sealed_again)
{
	run_as("GLAKE_DEDUP=auto", "twice");
}
END_TEST

START_TEST(an_address_is_used_again)
{
	run_as("GLAKE_DEDUP=auto", "again");
}
END_TEST

START_TEST(a_handle_is_used_again)
{
	run_as("GLAKE_DEDUP=auto", "anew");
}
END_TEST

/* A kernel that no table knows is taken for one that hides no pointer. */
START_TEST(others_may_be_launched_beside_if_that_is_said)
{
	run_as("GLAKE_DEDUP=observed", "beside");
	run_as("GLAKE_DEDUP=observed", "unlisted");
	run_as("GLAKE_DEDUP=observed", "hidden");
}
END_TEST

static int count_refused(void *user, const struct glake_event_row *row)
{
	*(unsigned *)user += strcmp(row->kind, "launch_refused") == 0;
	return 0;
}

START_TEST(a_launch_on_a_full_gpu_writes_to_host_memory)
{
	run_as("GLAKE_DEDUP=auto", "host_room");
}
END_TEST

/* Neither the GPU nor the host has room for the private copy: the launch is refused, and may be tried again. */
START_TEST(a_launch_without_room_is_refused)
{
	struct run run;
	unsigned n = 0;
	assert_ok(glake_set_host_quota(eye, "default", 0, 1));
	start_as(&run, "GLAKE_DEDUP=auto", "no_room");
	run_read(&run, "refused");
	while (n == 0) {
		usleep(10000);
		assert_ok(glake_list_events(eye, count_refused, &n));
	}
	ck_assert_uint_eq(n, 1);
	run_finish(&run);
}
END_TEST

#define OF_TENANT(word) \
	WORLD_CONFIG "warm_bytes = \"64MiB\"; tenants = ( { name = \"default\"; dedup = \"" word \
		     "\"; } );"

START_TEST(a_tenants_word_counts_where_the_program_has_none)
{
	struct run run;
	run_as(NULL, "unsealed");
	start_as(&run, NULL, "untold");
	run_read(&run, "started");
	harness_reload(&harness, OF_TENANT("auto"));
	run_as(NULL, "plain");
	run_as(NULL, "unlisted");
	run_as(NULL, "early");
	run_as("GLAKE_DEDUP=off", "unsealed");
	harness_reload(&harness, OF_TENANT("observed"));
	run_as(NULL, "beside");
	/* Its own word is stricter. */
	run_as("GLAKE_DEDUP=auto", "unlisted");
	harness_reload(&harness, OF_TENANT("off"));
	run_as(NULL, "unsealed");
	run_as("GLAKE_DEDUP=auto", "plain");
	/* Whose session is older keeps to what it was told. */
	run_finish(&run);
}
END_TEST

START_TEST(nobody_is_sealed_who_did_not_want_it)
{
	run_as(NULL, "unsealed");
	run_as("GLAKE_DEDUP=off", "unsealed");
}
END_TEST

START_TEST(without_a_table_nothing_is_sealed)
{
	assert_ok(unlink(world_path("readers.d/test.readers")));
	run_as("GLAKE_DEDUP=auto", "unsealed");
}
END_TEST

START_TEST(a_forged_table_does_not_count)
{
	const char *table = world_path("readers.d/test.readers");
	if (getuid() != 0) {
		return;
	}
	assert_ok(chmod(table, 0666));
	run_as("GLAKE_DEDUP=auto", "unsealed");
	assert_ok(chmod(table, 0644));
	assert_ok(chown(table, 1000, 0));
	run_as("GLAKE_DEDUP=auto", "unsealed");
	assert_ok(chown(table, 0, 0));
	assert_ok(chmod(world_path("readers.d"), 0777));
	run_as("GLAKE_DEDUP=auto", "unsealed");
	assert_ok(chmod(world_path("readers.d"), 0755));
	run_as("GLAKE_DEDUP=auto", "plain");
}
END_TEST

/* ---- what operators see ---- */

struct seen {
	pid_t pid;
	struct glake_session_row row;
	char why[320];
};

static int see(void *user, const struct glake_session_row *row)
{
	struct seen *seen = user;
	if ((pid_t)row->pid == seen->pid && row->reserved_bytes + row->shared_bytes > 0) {
		seen->row = *row;
		snprintf(seen->why, sizeof(seen->why), "%s", row->refused_why);
	}
	return 0;
}

/* The program reports now and then. */
static struct seen wait_for(pid_t pid, bool (*is_so)(const struct seen *seen))
{
	struct seen seen = {.pid = pid};
	while (!is_so(&seen)) {
		usleep(10000);
		assert_ok(glake_list_sessions(eye, see, &seen));
	}
	return seen;
}

static bool is_sealed(const struct seen *seen)
{
	return seen->row.alone_bytes == 4 * MIB;
}

static bool is_refused(const struct seen *seen)
{
	return seen->row.refused_bytes == 4 * MIB && seen->why[0];
}

struct shown {
	unsigned n;
	struct glake_candidate_row row;
	char state[16];
	char why[320];
};

static int show_candidate(void *user, const struct glake_candidate_row *row)
{
	struct shown *shown = user;
	shown->n++;
	shown->row = *row;
	snprintf(shown->state, sizeof(shown->state), "%s", row->state);
	snprintf(shown->why, sizeof(shown->why), "%s", row->refused_why);
	return 0;
}

static struct shown list_candidates(uint64_t session)
{
	struct shown shown = {.n = 0};
	uint64_t n = 0;
	assert_ok(glake_list_candidates(eye, session, show_candidate, &shown, &n));
	ck_assert_uint_eq(n, shown.n);
	ck_assert_uint_eq(shown.n, 1);
	ck_assert_uint_eq(shown.row.bytes, 4 * MIB);
	ck_assert_uint_eq(shown.row.filled_bytes, 4 * MIB);
	return shown;
}

START_TEST(states_and_reasons_are_shown)
{
	struct run run;
	start_as(&run, "GLAKE_DEDUP=auto", "shown");
	run_read(&run, "sealed");
	struct seen seen = wait_for(run.pid, is_sealed);
	ck_assert_uint_eq(seen.row.filling_bytes + seen.row.quiet_bytes + seen.row.refused_bytes,
	                  0);
	struct shown shown = list_candidates(seen.row.session);
	ck_assert_str_eq(shown.state, "sealed");
	ck_assert_str_eq(shown.why, "");
	run_continue(&run);
	run_read(&run, "written");
	seen = wait_for(run.pid, is_refused);
	ck_assert_msg(strstr(seen.why, "unlisted of build-id ") &&
	                      strstr(seen.why, "is in no table"),
	              "%s", seen.why);
	ck_assert_uint_eq(seen.row.alone_bytes, 0);
	shown = list_candidates(seen.row.session);
	ck_assert_str_eq(shown.state, "refused");
	ck_assert_str_eq(shown.why, seen.why);
	run_finish(&run);
}
END_TEST

static bool has_both(const struct seen *seen)
{
	return seen->row.alone_bytes == 4 * MIB && seen->row.refused_bytes == 4 * MIB;
}

START_TEST(what_the_program_maps_itself_stays_private)
{
	struct run run;
	struct shown shown = {.n = 0};
	start_as(&run, "GLAKE_DEDUP=auto", "mapped");
	run_read(&run, "mapped");
	struct seen seen = wait_for(run.pid, has_both);
	ck_assert_ptr_nonnull(strstr(seen.why, "the program maps it itself"));
	assert_ok(glake_list_candidates(eye, seen.row.session, show_candidate, &shown, NULL));
	ck_assert_uint_eq(shown.n, 2);
	ck_assert_str_eq(shown.state, "refused");
	ck_assert_str_eq(shown.why, seen.why);
	run_finish(&run);
}
END_TEST

/* ---- glake run and glake readers ---- */

static void expect(int status, const char *words, const char *a, const char *b, const char *c)
{
	struct run run;
	run_start(&run, "GLAKE_SHIM=off", run_in_build("bin/glake"), a, b, c, NULL);
	ck_assert_int_eq(run_end(&run), status << 8);
	run_expect(&run, words);
}

START_TEST(words_are_checked)
{
	expect(0, "--dedup=HOW", "--help", NULL, NULL);
	expect(125, "on: must be off, auto or observed", "run", "--dedup=on", "true");
	setenv("GLAKE_DEDUP_QUIET_MS", "soon", 1);
	expect(125, "GLAKE_DEDUP_QUIET_MS must be milliseconds", "run", "--dedup=auto", "true");
}
END_TEST

START_TEST(tables_are_checked)
{
	const char *table = world_path("readers.d/test.readers");
	expect(0, "for tests/shim/auto: 6 functions, 1 of them opaque; 4 words", "readers", table,
	       NULL);
	world_write_text("readers.d/bad.readers", "glake-readers 1\nfor \"x\"\nfunction f\n");
	expect(1, "bad.readers:3: there is no image before it", "readers",
	       world_path("readers.d/bad.readers"), table);
	expect(125, "which files?", "readers", NULL, NULL);
	if (getuid() == 0) {
		assert_ok(chmod(table, 0666));
		expect(1, "it counts only if root owns it", "readers", table, NULL);
	}
}
END_TEST

START_TEST_WITH(no_byte_is_lost_at_random, .timeout_s = 300)
{
	unsigned seed = churn_seed();
	struct run runs[2];
	setenv("GLAKE_DEDUP_QUIET_MS", "20", 1);
	for (unsigned i = 0; i < 2; i++) {
		churn_start(&runs[i], "GLAKE_DEDUP=auto", "tests/shim/auto", seed + i,
		            churn_seconds(5));
	}
	churn_end(runs, 2);
}
END_TEST
