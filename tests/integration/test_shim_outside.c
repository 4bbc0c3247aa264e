/* SPDX-License-Identifier: Apache-2.0 */
/* Programs under the shim that are sealed from outside: tests/shim/outside.c, beside a real glaked. */

#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define PAGE (2 * MIB)
/* So much of the scenario "weights" looks like weights; in "others" nothing does. */
#define WEIGHTS (13 * PAGE)

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "2x1GiB");
}

BEGIN_EACH(begin)

/* ---- help ---- */

static void start(struct run *run, const char *extra, const char *scenario)
{
	run_until_ready(run, extra, run_in_build("tests/shim/outside"), scenario, NULL);
}

static struct glake_seal_report seal_with(struct run *run, const struct glake_seal_options *options)
{
	struct glake_seal_report report = {.size = sizeof(report)};
	assert_ok(glake_seal_session(eye, world_session_of(run->pid), options, &report));
	return report;
}

static struct glake_seal_report seal(struct run *run)
{
	return seal_with(run, NULL);
}

static int try_seal(uint64_t session)
{
	struct glake_seal_report report = {.size = sizeof(report)};
	return glake_seal_session(eye, session, NULL, &report);
}

/* This program waits for one more line before its end. */
static void end_late(struct run *run)
{
	run_go_on(run);
	run_finish(run);
}

/* ---- one copy ---- */

START_TEST(two_programs_end_with_one_copy)
{
	struct run one, two;
	start(&one, NULL, "weights");
	start(&two, NULL, "weights");
	struct glake_seal_report first = seal(&one);
	ck_assert_uint_eq(first.sealed_bytes, WEIGHTS);
	ck_assert_uint_eq(first.failed_bytes, 0);
	ck_assert_uint_eq(first.unfilled_bytes + first.rewritten_bytes + first.pinned_bytes, 0);
	struct glake_seal_report second = seal(&two);
	ck_assert_uint_eq(second.sealed_bytes, WEIGHTS);
	ck_assert_uint_eq(second.shared_bytes, WEIGHTS);
	struct books books = world_books();
	ck_assert_uint_eq(books.private_bytes, 0);
	ck_assert_uint_le(books.used_block_bytes, WEIGHTS);
	/* Once more changes nothing. */
	run_go_on(&one);
	first = seal(&one);
	ck_assert_uint_eq(first.sealed_bytes, WEIGHTS);
	ck_assert_uint_eq(world_books().used_block_bytes, books.used_block_bytes);
	run_finish(&one);
	end_late(&two);
}
END_TEST

/* Loaders with threads fill one large allocation in any order. */
START_TEST(tensors_are_one_copy_in_any_order)
{
	struct run one, two;
	start(&one, NULL, "forward");
	start(&two, NULL, "backward");
	ck_assert_uint_eq(seal(&one).sealed_bytes, 8 * PAGE);
	struct glake_seal_report report = seal(&two);
	ck_assert_uint_eq(report.sealed_bytes, 8 * PAGE);
	ck_assert_uint_eq(report.shared_bytes, 8 * PAGE);
	run_finish(&one);
	run_finish(&two);
}
END_TEST

START_TEST(memory_of_all_devices_is_sealed)
{
	struct run one, two;
	start(&one, NULL, "two_devices");
	start(&two, NULL, "two_devices");
	ck_assert_uint_eq(seal(&one).sealed_bytes, 4 * PAGE);
	ck_assert_uint_eq(seal(&two).shared_bytes, 4 * PAGE);
	ck_assert_uint_eq(world_books().private_bytes, 0);
	run_finish(&one);
	run_finish(&two);
}
END_TEST

START_TEST(copies_on_streams_of_other_devices_are_waited_for)
{
	struct run run;
	start(&run, NULL, "other_device");
	assert_fails(GLAKE_E_BUSY, "held back", try_seal(world_session_of(run.pid)));
	ck_assert_uint_eq(world_books().used_block_bytes, 0);
	run_go_on(&run);
	ck_assert_uint_eq(seal(&run).sealed_bytes, PAGE);
	run_finish(&run);
}
END_TEST

static void note_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	uint64_t *last = user;
	ck_assert_uint_le(done_bytes, total_bytes);
	ck_assert_uint_ge(done_bytes, *last);
	*last = done_bytes;
}

START_TEST(progress_is_told_and_a_dry_run_seals_nothing)
{
	struct run run;
	uint64_t last = 0;
	struct glake_seal_options options = {.size = sizeof(options), .dry_run = 1};
	start(&run, NULL, "weights");
	ck_assert_uint_eq(seal_with(&run, &options).sealed_bytes, WEIGHTS);
	ck_assert_uint_eq(world_books().used_block_bytes, 0);
	options = (struct glake_seal_options){
		.size = sizeof(options),
		.progress = note_progress,
		.progress_user = &last,
	};
	ck_assert_uint_eq(seal_with(&run, &options).sealed_bytes, WEIGHTS);
	ck_assert_uint_eq(last, WEIGHTS);
	end_late(&run);
}
END_TEST

START_TEST(what_is_no_weights_stays_private)
{
	struct run run;
	start(&run, NULL, "others");
	struct glake_seal_report report = seal(&run);
	/* The one page that was filled after it was allocated again. */
	ck_assert_uint_eq(report.sealed_bytes, PAGE);
	/* Written twice, a small buffer again and again, set, copied on the device twice, captured. */
	ck_assert_uint_eq(report.rewritten_bytes, 7 * PAGE);
	/* Half a page, two pages allocated again. */
	ck_assert_uint_eq(report.unfilled_bytes, 3 * PAGE);
	ck_assert_uint_eq(report.small_bytes, PAGE);
	run_finish(&run);
}
END_TEST

/* Kernels get the allocator's free space next. */
START_TEST(the_free_space_of_a_caching_allocator_stays_private)
{
	struct run run;
	start(&run, NULL, "carved");
	struct glake_seal_report report = seal(&run);
	run_finish(&run);
	ck_assert_uint_eq(report.sealed_bytes, PAGE);
	ck_assert_uint_eq(report.rewritten_bytes, PAGE);
	ck_assert_uint_eq(report.unfilled_bytes, 2 * PAGE);
}
END_TEST

START_TEST(written_pages_stay_private_when_asked_again)
{
	struct run run;
	start(&run, NULL, "writes");
	ck_assert_uint_eq(seal(&run).sealed_bytes, 4 * PAGE);
	run_go_on(&run);
	/* Page by page: a copy is as large as the block. */
	struct glake_seal_report report = seal(&run);
	ck_assert_uint_eq(report.sealed_bytes, 2 * PAGE);
	ck_assert_uint_eq(report.rewritten_bytes, 2 * PAGE);
	run_go_on(&run);
	ck_assert_uint_eq(seal(&run).sealed_bytes, 4 * PAGE);
	run_finish(&run);
}
END_TEST

START_TEST(a_thread_that_writes_meanwhile_loses_nothing)
{
	struct run run;
	start(&run, NULL, "busy");
	struct glake_seal_report report = seal(&run);
	ck_assert_uint_ge(report.sealed_bytes, 24 * PAGE);
	run_go_on(&run);
	seal(&run);
	run_finish(&run);
}
END_TEST

START_TEST(work_that_is_long_is_waited_for)
{
	struct run run;
	start(&run, NULL, "long_work");
	struct glake_seal_report report = seal(&run);
	ck_assert_str_eq(report.failed_why, "");
	ck_assert_uint_eq(report.sealed_bytes, PAGE);
	run_finish(&run);
}
END_TEST

/* ---- contexts ---- */

START_TEST(a_program_with_a_context_of_its_own_gets_no_other)
{
	struct run run;
	start(&run, "CUDASIM_FAULT=cuDevicePrimaryCtxRetain:*:die", "own_context");
	ck_assert_uint_eq(seal(&run).sealed_bytes, 8 * PAGE);
	end_late(&run);
}
END_TEST

/* One after the other, asked all the time. */
static const char *const ends[] = {"releases", "resets", "destroys"};

START_TEST_WITH(contexts_may_end_meanwhile, .n = 3)
{
	struct run run;
	uint64_t sealed_bytes = 0;
	/* Sealing in a context takes its time, as it ends a stream there. */
	start(&run, "CUDASIM_FAULT=cuStreamDestroy:*:slow=5", ends[_i]);
	for (unsigned i = 0; i < 40 || sealed_bytes == 0; i++) {
		struct glake_seal_report report = {.size = sizeof(report)};
		int r = glake_seal_session(eye, world_session_of(run.pid), NULL, &report);
		ck_assert_msg(r == 0 || r == GLAKE_E_BUSY, "%d: %s", r, glake_error());
		sealed_bytes += report.sealed_bytes;
	}
	run_finish(&run);
}
END_TEST

START_TEST(nothing_hangs_and_no_byte_is_lost_when_all_come_together)
{
	struct run run;
	start(&run, NULL, "adversary");
	for (unsigned i = 0; i < 12; i++) {
		int r = try_seal(world_session_of(run.pid));
		ck_assert_msg(r == 0 || r == GLAKE_E_BUSY, "%d: %s", r, glake_error());
	}
	run_go_on(&run);
	ck_assert_uint_eq(seal(&run).sealed_bytes, 6 * PAGE);
	run_finish(&run);
}
END_TEST

/* ---- refusals ---- */

/* Work that does not end, and a captured stream: the asker waits for both, so that nothing is waited for in the program. */
START_TEST_WITH(a_program_that_cannot_be_held_back_is_busy, .n = 2)
{
	static const struct {
		const char *scenario;
		const char *why;
		uint64_t sealed_bytes;
	} cases[] = {{"endless", "held back", 2 * PAGE}, {"captures", "captures", PAGE}};
	struct run run;
	start(&run, NULL, cases[_i].scenario);
	uint64_t session = world_session_of(run.pid);
	assert_fails(GLAKE_E_BUSY, cases[_i].why, try_seal(session));
	run_go_on(&run);
	ck_assert_uint_eq(seal(&run).sealed_bytes, cases[_i].sealed_bytes);
	run_finish(&run);
}
END_TEST

START_TEST(the_environment_of_the_program_wins)
{
	struct run run;
	start(&run, "GLAKE_DEDUP=off", "writes");
	assert_fails(GLAKE_E_NO_PERMISSION, "GLAKE_DEDUP=off", try_seal(world_session_of(run.pid)));
	run_go_on(&run);
	end_late(&run);
}
END_TEST

START_TEST(a_session_without_the_shim_is_refused)
{
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(eye, &info));
	assert_fails(GLAKE_E_BAD_REQUEST, "not under glake run", try_seal(info.session));
	assert_fails(GLAKE_E_NOT_FOUND, "no session 1", try_seal(1));
}
END_TEST

/* And wait until all its threads have stopped. */
static void stop(const struct run *run)
{
	int status = 0;
	kill(run->pid, SIGSTOP);
	ck_assert_int_eq(waitpid(run->pid, &status, WUNTRACED), run->pid);
	ck_assert(WIFSTOPPED(status));
}

START_TEST(a_program_that_ends_is_said_to_have)
{
	struct run run;
	start(&run, NULL, "writes");
	uint64_t session = world_session_of(run.pid);
	stop(&run);
	pid_t killer = fork();
	if (killer == 0) {
		sleep(1);
		kill(run.pid, SIGKILL);
		_exit(0);
	}
	assert_fails(GLAKE_E_NOT_FOUND, "has ended", try_seal(session));
	waitpid(killer, NULL, 0);
	run_end(&run);
}
END_TEST

START_TEST(a_stopped_program_is_not_waited_for)
{
	struct run run;
	start(&run, NULL, "writes");
	uint64_t session = world_session_of(run.pid);
	stop(&run);
	assert_fails(GLAKE_E_BUSY, "is it stopped?", try_seal(session));
	/* The program does now what it was asked for, and nobody waits for it; then it can be asked again. */
	kill(run.pid, SIGCONT);
	while (try_seal(session) != 0) {
		ck_assert_ptr_nonnull(strstr(glake_error(), "already"));
		usleep(10000);
	}
	run_go_on(&run);
	end_late(&run);
}
END_TEST

/* A NIC writes past the page tables of the GPU: nothing would keep it from sealed memory. */
static void expect_refused(const char *extra, const char *scenario, const char *words)
{
	struct run run;
	run_start(&run, extra, run_in_build("tests/shim/outside"), scenario, NULL);
	run_read(&run, "\n");
	if (strstr(run.text, "no namespaces")) {
		run_end_well(&run);
		return;
	}
	run_read(&run, "ready");
	assert_fails(GLAKE_E_NO_PERMISSION, words, try_seal(world_session_of(run.pid)));
	ck_assert_uint_eq(world_books().used_block_bytes, 0);
	run_finish(&run);
}

START_TEST(programs_that_faults_or_devices_reach_ask_themselves)
{
	expect_refused(NULL, "verbs", "/dev/infiniband/uverbs open");
	expect_refused(NULL, "gdrcopy", "/dev/gdrdrv open");
	expect_refused("CUDASIM_MPS=1", "serve", "a client of MPS");
	expect_refused(NULL, "past_the_shim", "past the shim");
}
END_TEST

/* ---- whoever is killed ---- */

/* A process that asks; its answer is its own. */
static pid_t ask_beside(uint64_t session)
{
	fflush(NULL);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		struct glake_seal_report report = {.size = sizeof(report)};
		struct glake_session *own = world_connect_blind();
		glake_seal_session(own, session, NULL, &report);
		_exit(0);
	}
	return pid;
}

START_TEST(an_asker_who_is_killed_harms_nothing)
{
	struct run run;
	start(&run, NULL, "weights");
	uint64_t session = world_session_of(run.pid);
	for (unsigned i = 0; i < 8; i++) {
		pid_t asker = ask_beside(session);
		usleep(i * 3000);
		world_kill(asker);
	}
	while (try_seal(session) != 0) {
		ck_assert_ptr_nonnull(strstr(glake_error(), "already"));
		usleep(1000);
	}
	ck_assert_uint_eq(seal(&run).sealed_bytes, WEIGHTS);
	end_late(&run);
}
END_TEST

START_TEST(two_who_ask_at_once_get_one_sealing)
{
	struct run run;
	start(&run, NULL, "serve");
	uint64_t session = world_session_of(run.pid);
	stop(&run);
	pid_t asker = ask_beside(session);
	/* As soon as the other one has asked. On a slow machine we may be first, and nobody answers us. */
	int r;
	do {
		struct glake_seal_options options = {.size = sizeof(options)};
		struct glake_seal_report report = {.size = sizeof(report)};
		usleep(200000);
		r = glake_seal_session(eye, session, &options, &report);
	} while (r == 0 || !strstr(glake_error(), "already"));
	ck_assert_int_eq(r, GLAKE_E_BUSY);
	kill(run.pid, SIGCONT);
	waitpid(asker, NULL, 0);
	ck_assert_uint_eq(seal(&run).sealed_bytes, PAGE);
	run_finish(&run);
}
END_TEST

START_TEST(a_program_that_is_killed_meanwhile_leaves_nothing)
{
	for (unsigned i = 0; i < 6; i++) {
		struct run run;
		start(&run, NULL, "weights");
		uint64_t session = world_session_of(run.pid);
		pid_t killer = fork();
		if (killer == 0) {
			usleep(i * 4000);
			kill(run.pid, SIGKILL);
			_exit(0);
		}
		int r = try_seal(session);
		ck_assert_msg(r == 0 || r == GLAKE_E_NOT_FOUND, "%d: %s", r, glake_error());
		waitpid(killer, NULL, 0);
		run_end(&run);
	}
}
END_TEST

START_TEST(a_program_that_ends_meanwhile_ends_well)
{
	for (unsigned i = 0; i < 6; i++) {
		struct run run;
		start(&run, NULL, "busy");
		pid_t asker = ask_beside(world_session_of(run.pid));
		usleep(i * 5000);
		run_go_on(&run);
		run_finish(&run);
		waitpid(asker, NULL, 0);
	}
}
END_TEST

START_TEST(a_mover_that_is_killed_meanwhile_costs_a_try)
{
	struct run run;
	world_start_mover();
	start(&run, NULL, "busy");
	for (unsigned i = 0; i < 3; i++) {
		struct glake_seal_report report;
		pid_t asker = ask_beside(world_session_of(run.pid));
		usleep(i * 10000);
		if (world_mover() > 0) {
			kill(world_mover(), SIGKILL);
		}
		waitpid(asker, NULL, 0);
		report = seal(&run);
		ck_assert_uint_ge(report.sealed_bytes + report.failed_bytes, 24 * PAGE);
	}
	run_go_on(&run);
	ck_assert_uint_eq(seal(&run).failed_bytes, 0);
	run_finish(&run);
}
END_TEST

START_TEST(programs_keep_all_bytes_without_glaked)
{
	struct run run;
	start(&run, NULL, "busy");
	pid_t asker = ask_beside(world_session_of(run.pid));
	usleep(20000);
	harness_kill(&harness);
	waitpid(asker, NULL, 0);
	end_late(&run);
}
END_TEST

/* Programs that write, free and load anything, asked all the time. */
START_TEST(no_byte_is_lost)
{
	struct run runs[3];
	for (unsigned i = 0; i < 3; i++) {
		start(&runs[i], NULL, "anything");
	}
	uint64_t shared_bytes = 0;
	for (unsigned i = 0; i < 150; i++) {
		struct glake_seal_report report = {.size = sizeof(report)};
		int r = glake_seal_session(eye, world_session_of(runs[i % 3].pid), NULL, &report);
		shared_bytes += report.shared_bytes;
		/* Memory that is freed meanwhile is no error; a GPU that is busy may be one. */
		const char *why = r < 0 ? glake_error() : report.failed_why;
		ck_assert_msg(r == 0 || r == GLAKE_E_BUSY, "%d: %s", r, why);
		ck_assert_msg(!why[0] || strstr(why, "held back"), "%s", why);
		/* Let it go on. */
		usleep(2000);
	}
	ck_assert_uint_gt(shared_bytes, 0);
	for (unsigned i = 0; i < 3; i++) {
		run_finish(&runs[i]);
	}
}
END_TEST
