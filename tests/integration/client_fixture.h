/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of the client library against the real daemon on the simulated driver: a daemon of
 * one's own per test, files to load, and a look at what a process holds.
 *
 * Owner: a test's fixture, in the forked test process. The daemon dies with it.
 * Threads: the test's main thread.
 */
#ifndef GLAKE_TESTS_CLIENT_FIXTURE_H
#define GLAKE_TESTS_CLIENT_FIXTURE_H

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "libclient/glake_admin.h"
#include "proto/cudrv.h"
#include "tests/check_glake.h"

#define MIB (1024ull * 1024)
#define GIB (1024ull * MIB)

static char folder[200];
static pid_t daemon_pid;

static inline const char *path_of(const char *name)
{
	static _Thread_local char paths[8][512];
	static _Thread_local unsigned next;
	char *path = paths[next++ % 8];
	snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
	return path;
}

static inline void write_file(const char *name, const void *bytes, size_t n_bytes)
{
	int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, bytes, n_bytes), (ssize_t)n_bytes);
	close(fd);
}

static inline void write_text(const char *name, const char *text)
{
	write_file(name, text, strlen(text));
}

static inline bool daemon_answers(void)
{
	struct glake_connect_options options = {.size = sizeof(options), .no_cuda = 1};
	struct glake_session *session;
	if (glake_connect(&options, &session) < 0) {
		return false;
	}
	glake_disconnect(session);
	return true;
}

/* @config: the text of a configuration. Faults of the test are not the daemon's. */
static inline void start_daemon(const char *config)
{
	write_text("glaked.conf", config);
	const char *build = getenv("GLAKE_BUILD");
	char program[512];
	snprintf(program, sizeof(program), "%s/bin/glaked", build ? build : "build");
	pid_t parent = getpid();
	daemon_pid = fork();
	ck_assert_int_ge(daemon_pid, 0);
	if (daemon_pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent) {
			_exit(1);
		}
		unsetenv("CUDASIM_FAULT_FILE");
		int log = open(path_of("log"), O_WRONLY | O_CREAT | O_APPEND, 0600);
		dup2(log, 1);
		dup2(log, 2);
		execl(program, program, "-c", path_of("glaked.conf"), (char *)NULL);
		_exit(127);
	}
	for (int i = 0; i < 1000 && !daemon_answers(); i++) {
		usleep(10000);
	}
	ck_assert_msg(daemon_answers(), "glaked does not answer: %s", glake_error());
}

static inline void kill_daemon(void)
{
	if (daemon_pid > 0) {
		kill(daemon_pid, SIGKILL);
		waitpid(daemon_pid, NULL, 0);
		daemon_pid = 0;
	}
}

static inline void set_up(void)
{
	const char *base = getenv("TMPDIR");
	snprintf(folder, sizeof(folder), "%s/client.XXXXXX", base ? base : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	setenv("GLAKE_SOCKET", path_of("socket"), 1);
	setenv("CUDASIM_FAULT_FILE", path_of("faults"), 1);
	setenv("CUDASIM_DEVICES", "2x16GiB", 0);
	if (!getenv("GLAKE_LIBCUDA")) {
		setenv("GLAKE_LIBCUDA", "build/cudasim/libcuda.so.1", 1);
	}
	write_text("faults", "");
}

static inline void tear_down(void)
{
	kill_daemon();
	char command[600];
	snprintf(command, sizeof(command), "rm -rf '%s'", folder);
	ck_assert_int_eq(system(command), 0);
}

/* Rules of CUDASIM_FAULT for this process, from now on. A file is read anew when its time differs. */
static inline void set_faults(const char *rules)
{
	usleep(20000);
	write_text("faults", rules);
}

static inline struct glake_session *connect_new(void)
{
	struct glake_session *session = NULL;
	int r = glake_connect(NULL, &session);
	ck_assert_msg(r == 0, "%s", glake_error());
	return session;
}

static inline size_t count_fds(void)
{
	size_t n_fds = 0;
	DIR *dir = opendir("/proc/self/fd");
	while (readdir(dir)) {
		n_fds++;
	}
	closedir(dir);
	return n_fds;
}

static inline int find_row(void *user, const struct glake_session_row *row)
{
	struct glake_session_row *wanted = user;
	if (row->session == wanted->session) {
		*wanted = *row;
		return 1;
	}
	return 0;
}

/* What the daemon has in its books for @session. */
static inline struct glake_session_row row_of(struct glake_session *session)
{
	struct glake_session_info info = {.size = sizeof(info)};
	ck_assert_int_eq(glake_session_info(session, &info), 0);
	struct glake_session_row row = {.session = info.session};
	ck_assert_int_eq(glake_list_sessions(session, find_row, &row), 1);
	return row;
}

static inline struct glake_usage usage_of(struct glake_session *session)
{
	struct glake_usage usage = {.size = sizeof(usage)};
	ck_assert_int_eq(glake_usage(session, &usage), 0);
	return usage;
}

#define assert_ok(call) \
	do { \
		int assert_ok_r = (call); \
		ck_assert_msg(assert_ok_r == 0, #call " = %d: %s", assert_ok_r, glake_error()); \
	} while (0)

#endif
