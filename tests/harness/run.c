/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/run.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check_glake.h"
#include "tests/harness/world.h"

#define MAX_ARGUMENTS 16

const char *run_in_build(const char *name)
{
	static char paths[4][PATH_MAX];
	static unsigned next;
	char *path = paths[next++ % 4];
	const char *folder = getenv("GLAKE_BUILD");
	snprintf(path, PATH_MAX, "%s/%s", folder && *folder ? folder : "build", name);
	char *full = realpath(path, NULL);
	if (full) {
		snprintf(path, PATH_MAX, "%s", full);
		free(full);
	}
	return path;
}

void run_start(struct run *run, const char *extra, ...)
{
	char *arguments[MAX_ARGUMENTS + 1] = {NULL};
	va_list list;
	int to_child[2];
	int from_child[2];
	va_start(list, extra);
	for (int i = 0; i < MAX_ARGUMENTS; i++) {
		arguments[i] = va_arg(list, char *);
		if (!arguments[i]) {
			break;
		}
	}
	va_end(list);
	ck_assert_int_eq(pipe2(to_child, O_CLOEXEC), 0);
	ck_assert_int_eq(pipe2(from_child, O_CLOEXEC), 0);
	*run = (struct run){.input = to_child[1], .output = from_child[0]};
	fflush(NULL);
	run->pid = fork();
	ck_assert_int_ge(run->pid, 0);
	if (run->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(to_child[0], STDIN_FILENO);
		dup2(from_child[1], STDOUT_FILENO);
		dup2(from_child[1], STDERR_FILENO);
		if (atoi(getenv("CLOCKSIM_SPEED") ? getenv("CLOCKSIM_SPEED") : "0") > 0) {
			harness_preload(run_in_build("clocksim.so"));
		}
		harness_preload(run_in_build("lib/glake/libglake-shim.so"));
		if (extra) {
			putenv((char *)extra);
		}
		execv(arguments[0], arguments);
		_exit(127);
	}
	close(to_child[0]);
	close(from_child[1]);
}

void run_read(struct run *run, const char *want)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	size_t n_bytes = strlen(run->text);
	while (!want || !strstr(run->text, want)) {
		struct pollfd ready = {.fd = run->output, .events = POLLIN};
		ck_assert_msg(harness_now_ms() < end_ms, "too slow, after:\n%s", run->text);
		if (poll(&ready, 1, 100) < 1) {
			continue;
		}
		ssize_t n = read(run->output, run->text + n_bytes, RUN_OUTPUT_BYTES - 1 - n_bytes);
		ck_assert_int_ge(n, 0);
		if (n == 0) {
			ck_assert_msg(!want, "no \"%s\" in:\n%s", want, run->text);
			return;
		}
		n_bytes += (size_t)n;
		run->text[n_bytes] = '\0';
	}
}

void run_continue(struct run *run)
{
	/* The output so far goes to the test's log, as a sanitizer's report may be in it. */
	fputs(run->text, stderr);
	run->text[0] = '\0';
	/* How a program ended that has already is for run_end() to say. */
	sighandler_t before = signal(SIGPIPE, SIG_IGN);
	ck_assert(write(run->input, "\n", 1) == 1 || errno == EPIPE);
	signal(SIGPIPE, before);
}

int run_end(struct run *run)
{
	int status;
	close(run->input);
	run_read(run, NULL);
	close(run->output);
	ck_assert_int_eq(waitpid(run->pid, &status, 0), run->pid);
	return status;
}

void run_end_well(struct run *run)
{
	int status = run_end(run);
	ck_assert_msg(status == 0, "status 0x%x, after:\n%s", status, run->text);
}

void run_go_on(struct run *run)
{
	run_continue(run);
	run_read(run, "ready");
}

void run_finish(struct run *run)
{
	run_continue(run);
	run_end_well(run);
}

const char *run_counting(void)
{
	static char variable[PATH_MAX + 16];
	snprintf(variable, sizeof(variable), "SHIM_COUNTS=%s/counts", harness.folder);
	return variable;
}

void run_expect_owned(unsigned n)
{
	unsigned n_owned = 0;
	unsigned n_passed = 1;
	FILE *file = fopen(strchr(run_counting(), '/'), "re");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_eq(fscanf(file, "{\"owned\": %u, \"passed\": %u", &n_owned, &n_passed), 2);
	fclose(file);
	ck_assert_uint_ge(n_owned, n);
	ck_assert_uint_eq(n_passed, 0);
}

void run_expect(const struct run *run, const char *text)
{
	ck_assert_msg(strstr(run->text, text), "no \"%s\" in:\n%s", text, run->text);
}
