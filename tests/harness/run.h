/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that know nothing of glake, run beside a real glaked with the shim preloaded: their arguments,
 * output and exit status.
 *
 *     world_begin();
 *     run_start(&run, NULL, run_in_build("tests/shim/program"), "dlsym", "steps", NULL);
 *     run_read(&run, "ready");
 *     run_continue(&run);
 *     run_end_well(&run);
 *
 * Any failure is a failed Check assertion, with the program's output behind it.
 *
 * Owner: the test, usually on the stack. Lifetime: start to end; when the test's process dies, the
 * program dies with it. Threads: one.
 */
#ifndef GLAKE_TESTS_HARNESS_RUN_H
#define GLAKE_TESTS_HARNESS_RUN_H

#include <sys/types.h>

#include "tests/harness/harness.h"

#define RUN_OUTPUT_BYTES 65536u

struct run {
	pid_t pid;
	int input;
	int output;
	char text[RUN_OUTPUT_BYTES]; /* output and complaints, read so far */
};

/* The full path of a file of $GLAKE_BUILD (default "build"). Static, until four calls later. */
const char *run_in_build(const char *name);

/* Start a program under the shim. @extra: "NAME=value" or NULL; then the arguments, ended by NULL. */
void run_start(struct run *run, const char *extra, ...);

/* Start a program as run_start() does, and wait until it is ready; or until it has ended well. */
#define run_until_ready(run, ...) \
	do { \
		run_start(run, __VA_ARGS__); \
		run_read(run, "ready"); \
	} while (0)
#define run_whole(run, ...) \
	do { \
		run_start(run, __VA_ARGS__); \
		run_end_well(run); \
	} while (0)

/* Read until @want has come, or with NULL until the end. */
void run_read(struct run *run, const char *want);

/* Let a program that waits go on; its output so far goes to stderr, and is forgotten. */
void run_continue(struct run *run);

/* Wait for the end. Returns the status of waitpid(); all output is in run->text. */
int run_end(struct run *run);

/* Like run_end(), and the status must be 0. */
void run_end_well(struct run *run);

/* Let it go on until it is ready again; or until it ends well. */
void run_go_on(struct run *run);
void run_finish(struct run *run);

/* For @extra of run_start(): the shim counts its calls. Then: @n of them or more were glaked's, and none the driver's. */
const char *run_counting(void);
void run_expect_owned(unsigned n);

/* The output must have @text. */
void run_expect(const struct run *run, const char *text);

#endif
