/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of readers that `glake learn` makes, and programs that are sealed by them (tests/shim/auto.c). */
#include <stdlib.h>

#include "tests/check_glake.h"
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
	run_start(&run, dedup, run_in_build("tests/shim/auto"), scenario, NULL);
	run_end_well(&run);
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
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "learn", out, with,
	          "--for=what was seen", "--seconds=60", "--", run_in_build("tests/shim/auto"),
	          "learn", NULL);
	run_end_well(&run);
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
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "readers", table, NULL);
	run_end_well(&run);
	run_expect(&run, "for what was seen: 7 functions, 1 of them opaque; 2 reading words");
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
