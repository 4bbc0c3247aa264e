/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of readers that `glake learn` makes, and programs that are sealed by them (tests/shim/auto.c). */
#include <signal.h>
#include <stdlib.h>

#include "tests/check_glake.h"
#include "tests/harness/churn.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "1x1GiB");
	char folder[256];
	snprintf(folder, sizeof(folder), "%s", world_path("readers.d"));
	assert_ok(mkdir(folder, 0755));
	setenv("GLAKE_READERS", folder, 1);
	setenv("GLAKE_DEDUP_QUIET_MS", "300", 1);
}

BEGIN_EACH(begin)

static void run_as(const char *dedup, const char *scenario)
{
	struct run run;
	run_whole(&run, dedup, run_in_build("tests/shim/auto"), scenario, NULL);
}

/* Static. */
static const char *read_text(const char *path)
{
	static char text[65536];
	FILE *file = fopen(path, "re");
	ck_assert_ptr_nonnull(file);
	text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
	fclose(file);
	return text;
}

/* Numbers of launches differ from run to run. */
static void expect_line(const char *table, const char *line)
{
	bool is_there = false;
	size_t n = strlen(line);
	for (const char *at = table; at && !is_there; at = strchr(at, '\n')) {
		at += *at == '\n';
		is_there = strncmp(at, line, n) == 0 && strchr("\n ", at[n]);
	}
	ck_assert_msg(is_there, "\"%s\" is not in:\n%s", line, table);
}

/* The lines that matter, in their order. */
static void reduce(const char *table, char *lines_out)
{
	lines_out[0] = '\0';
	for (const char *at = table; at && *at; at = strchr(at, '\n')) {
		at += *at == '\n';
		size_t n = strcspn(at, "#\n");
		bool is_any = strspn(at, " ") < n && strncmp(at, "image ", 6) != 0;
		while (n > 0 && at[n - 1] == ' ') {
			n--;
		}
		if (is_any) {
			strncat(lines_out, at, n);
			strcat(lines_out, "\n");
		}
	}
}

static void learn(const char *table, const char *state)
{
	struct run run;
	char out[300];
	char with[300];
	snprintf(out, sizeof(out), "--out=%s", table);
	snprintf(with, sizeof(with), "--state=%s", state);
	run_whole(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", out, with,
	          "--for=what was seen", "--seconds=300", "--least=1", "--",
	          run_in_build("tests/shim/auto"), "learn", NULL);
	puts(run.text);
}

static const char true_lines[] = "glake-readers 1\n"
				 "for \"what was seen\"\n"
				 "function add\n"
				 "opaque hidden\n"
				 "function pair\n"
				 "  reads 0\n"
				 "function read\n"
				 "  reads 0\n"
				 "function same\n"
				 "function unlisted\n"
				 "function write\n";

/* Learn, twice, and see that it is that. */
static void expect_learned(const char *table)
{
	static char lines[4096];
	char state[256];
	snprintf(state, sizeof(state), "%s", world_path("state"));
	learn(table, state);
	reduce(read_text(table), lines);
	ck_assert_str_eq(lines, true_lines);
	expect_line(read_text(table), "  # writes 8");
	/* The state alone makes a table, of the functions that were launched often enough. */
	struct run run;
	char with[300];
	snprintf(with, sizeof(with), "--state=%s", state);
	run_whole(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", with, "--least=1000000",
	          NULL);
	run_expect(&run, "launches are too few: read");
	run_expect(&run, "opaque hidden");
	/* Another run finds no more, and the same. */
	learn(table, state);
	reduce(read_text(table), lines);
	ck_assert_str_eq(lines, true_lines);
}

START_TEST_WITH(what_is_learned_is_true, .timeout_s = 120)
{
	static const char *const writes[] = {"plain",  "same",  "hidden",   "itself",
	                                     "packed", "graph", "captured", "updated"};
	char table[256];
	struct run run;
	snprintf(table, sizeof(table), "%s", world_path("readers.d/learned.readers"));
	expect_learned(table);
	run_whole(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "readers", table, NULL);
	run_expect(&run, "for what was seen: 7 functions, 1 of them opaque; 2 words");
	/* And programs live by it. */
	for (size_t i = 0; i < n_elements(writes); i++) {
		run_as("GLAKE_DEDUP=auto", writes[i]);
	}
}
END_TEST

START_TEST_WITH(a_driver_keeps_access_to_what_is_mapped, .timeout_s = 120)
{
	char table[256];
	setenv("CUDASIM_ACCESS", "keep", 1);
	snprintf(table, sizeof(table), "%s", world_path("readers.d/learned.readers"));
	expect_learned(table);
}
END_TEST

/* A kernel that follows a pointer to where no word points is found, and readers are known, though nothing lies beside. */
START_TEST(one_allocation_is_enough)
{
	struct run run;
	run_whole(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", "--least=1",
	          "--seconds=60", "--", run_in_build("tests/shim/auto"), "learn in one", NULL);
	run_expect(&run, "opaque hidden");
	run_expect(&run, "function pair # 3 launches\n  reads 0 # 3");
	run_expect(&run, "# never launched beside weights that it did not name: read");
}
END_TEST

START_TEST_WITH(weights_that_are_busy_are_learned_later, .timeout_s = 120)
{
	struct run run;
	run_whole(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", "--least=1",
	          "--seconds=60", "--", run_in_build("tests/shim/auto"), "learn later", NULL);
	run_expect(&run, "function read");
}
END_TEST

/* ---- what may go wrong ---- */

/* `glake learn @options -- auto @scenario` prints a table, and ends so. */
static void expect(int status, const char *words, const char *option, const char *scenario)
{
	struct run run;
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", option, "--",
	          run_in_build("tests/shim/auto"), scenario, NULL);
	ck_assert_int_eq(run_end(&run), status << 8);
	run_expect(&run, words);
}

START_TEST(threads_go_on_beside_each_other)
{
	expect(0, "function read", "--seconds=60", "threads");
}
END_TEST

/* Kernels of all kinds, copies, sets, graphs that are changed, and code that is unloaded: the bytes are always right. */
START_TEST_WITH(no_byte_is_lost_at_random, .timeout_s = 300)
{
	char seed[16];
	struct run run;
	snprintf(seed, sizeof(seed), "%u", churn_seed());
	setenv("GLAKE_DEDUP_QUIET_MS", "50", 1);
	run_whole(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", "--seconds=60", "--",
	          run_in_build("tests/shim/auto"), seed, "3", NULL);
	/* A busy machine may not have run it for as long as it is waited for. */
	if (!strstr(run.text, "opaque read # it did not end alone")) {
		run_expect(&run, "function read");
	}
}
END_TEST

/* Learning asks for the error a while after another thread has got it. */
START_TEST_WITH(a_thread_ends_the_program_with_the_error_of_another, .n = 2, .timeout_s = 120)
{
	setenv("CUDASIM_FAULT", "auto/cuCtxSynchronize:*:slow=200", 1);
	expect(0, "a fault: write, given words 0", "--seconds=60",
	       _i == 0 ? "ends by a query" : "ends by a search");
}
END_TEST

START_TEST_WITH(a_kernel_that_does_not_end_alone, .timeout_s = 60)
{
	expect(0, "opaque wait # it did not end alone", "--seconds=60", "stuck");
}
END_TEST

START_TEST(runs_end)
{
	expect(1, "auto: it failed by itself, twice", "--seconds=60", "fails");
	expect(1, "auto: it took too long (--seconds)", "--seconds=3", "long");
	expect(1, "auto: there was a fault in each run (--runs)", "--runs=1", "learn");
	setenv("CUDASIM_FAULT", "auto/cuInit:*:slow=3000", 1);
	expect(1, "auto: it took too long (--seconds), and had loaded nothing", "--seconds=1",
	       "long");
}
END_TEST

START_TEST(a_program_has_nothing_to_learn_from)
{
	struct run run;
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", "true", NULL);
	ck_assert_int_eq(run_end(&run), 1 << 8);
	run_expect(&run, "true: it had nothing to learn from");
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", "no-such-program", NULL);
	ck_assert_int_eq(run_end(&run), 127 << 8);
	run_expect(&run, "no-such-program");
}
END_TEST

START_TEST(it_can_be_told_to_end)
{
	struct run run;
	run_until_ready(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", "--",
	                run_in_build("tests/shim/auto"), "long", NULL);
	assert_ok(kill(run.pid, SIGTERM));
	ck_assert_int_eq(run_end(&run), (128 + SIGTERM) << 8);
	run_expect(&run, "auto: told to end");
	run_expect(&run, "function read");
}
END_TEST

static void refuse(const char *words, const char *verb, const char *option)
{
	struct run run;
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), verb, option, "true", NULL);
	ck_assert_int_eq(run_end(&run), 125 << 8);
	run_expect(&run, words);
}

START_TEST(words_are_checked)
{
	char option[300];
	refuse("--runs: must be a number", "learn", "--runs=some");
	refuse("--runs: must be a number", "learn", "--runs=0");
	refuse("--seconds: must be a number", "learn", "--seconds=1m");
	refuse("--least: must be a number", "learn", "--least=-1");
	refuse("--for: must have no quotes", "learn", "--for=a \"b\"");
	refuse("--dedup: is not for glake learn", "learn", "--dedup=auto");
	refuse("that is an option of glake learn", "run", "--runs=1");
	refuse("learn: must be off, auto or observed", "run", "--dedup=learn");
	snprintf(option, sizeof(option), "--state=%s", world_path("none"));
	struct run run;
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", option, NULL);
	ck_assert_int_eq(run_end(&run), 125 << 8);
	run_expect(&run, "none: nothing is known yet");
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", NULL);
	ck_assert_int_eq(run_end(&run), 125 << 8);
	run_expect(&run, "learn what?");
	world_write_text("state", "glake-learned 1\nfunction f\n");
	snprintf(option, sizeof(option), "--state=%s", world_path("state"));
	refuse("state:2: it is no state of glake learn", "learn", option);
}
END_TEST
