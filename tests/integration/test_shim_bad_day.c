/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bad days of programs under the shim: ends without a word, others in the same process, a glaked
 * that does not answer yet, and what nothing may be done for.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/harness.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define PROGRAM "tests/shim/program"
#define LINKED "tests/shim/linked"
#define DRIVER_API "tests/shim/driver_api"
#define NUMBERS "tests/shim/numbers"
#define PER_THREAD "tests/shim/driver_api_per_thread"
#define SECOND "tests/shim/second.so"
#define CONSTRUCTOR "tests/shim/constructor.so"
#define SHIM "lib/glake/libglake-shim.so"
#define MAX_QUEUED 8192

/* All there is has so many bytes, warm ones too. */
static void await_private(uint64_t n_bytes)
{
	int connection = connection_hello(&harness);
	connection_await_private(connection, n_bytes);
	connection_close(&connection);
}

/* Nobody has anything any more. */
static void await_nothing_private(void)
{
	await_private(0);
}

/* ---- ends without a word ---------------------------------------------------------------------- */

/* A program that has memory of every kind and work on it. */
static void start_busy(struct run *run)
{
	run_until_ready(run, NULL, run_in_build(PROGRAM), "dlsym", "busy", NULL);
	run_expect(run, "owned all passed 0 refused 0 connects 1");
	int connection = connection_hello(&harness);
	ck_assert_uint_ge(connection_private_bytes(connection), 22 * MIB);
	connection_close(&connection);
}

START_TEST(killed_while_the_gpu_works)
{
	struct run run;
	world_begin();
	start_busy(&run);
	kill(run.pid, SIGKILL);
	ck_assert_int_eq(WTERMSIG(run_end(&run)), SIGKILL);
}
END_TEST

START_TEST(gone_without_giving_back)
{
	struct run run;
	world_begin();
	start_busy(&run);
	run_finish(&run);
}
END_TEST

START_TEST(an_ipc_handle_of_the_killed_opens_nothing)
{
	struct run giver;
	struct run taker;
	char handles[257] = "";
	world_begin();
	run_until_ready(&giver, NULL, run_in_build(PROGRAM), "dlsym", "ipc_give", NULL);
	ck_assert_int_eq(sscanf(giver.text, "%128s %128s", handles, handles + 128), 2);
	kill(giver.pid, SIGKILL);
	ck_assert_int_eq(WTERMSIG(run_end(&giver)), SIGKILL);
	/* Its session ends a moment after it. */
	await_nothing_private();
	for (int i = 0; i < 2; i++) {
		run_whole(&taker, NULL, run_in_build(PROGRAM), "proc2", "ipc_dead",
		          handles + i * 128, NULL);
	}
}
END_TEST

/* ---- a glaked that gives nothing, or not yet -------------------------------------------------- */

/* No quota is written 0; this one is less than the smallest piece of memory. */
START_TEST(a_quota_of_next_to_nothing_is_out_of_memory)
{
	struct run run;
	world_begin(.config = "tenants = ( { name = \"default\"; device_bytes = 1; } );");
	run_whole(&run, NULL, run_in_build(PROGRAM), "dlsym", "greedy", "1048576", NULL);
	run_expect(&run, "got 0 free");
	run_expect(&run, "owned 0 passed 0 refused 1 connects 1 live 0");
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "proc2", "steps", "1", NULL);
	run_expect(&run, "result 2 owned 0 passed 0 refused 1");
	run_finish(&run);
}
END_TEST

/* A glaked of another release, on a socket of its own. */
static pid_t start_stranger(const char *socket_path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	ck_assert_uint_lt(strlen(socket_path), sizeof(address.sun_path));
	strcpy(address.sun_path, socket_path);
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	ck_assert_int_eq(listen(listener, 8), 0);
	fflush(NULL);
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	for (int connection; pid == 0 && (connection = accept(listener, NULL, NULL)) >= 0;) {
		uint8_t bytes[1000];
		Glake__Wire__Answer answer = GLAKE__WIRE__ANSWER__INIT;
		recv(connection, bytes, sizeof(bytes), 0);
		answer.id = 1;
		answer.status = GLAKE__WIRE__STATUS__VERSION;
		answer.error = (char *)"glaked speaks version 7 of the protocol";
		size_t n_bytes = glake__wire__answer__pack(&answer, bytes);
		send(connection, bytes, n_bytes, MSG_NOSIGNAL);
		close(connection);
	}
	close(listener);
	return pid;
}

/* After an upgrade of glaked alone, a program does not leave its quota without a word. */
START_TEST(a_glaked_of_another_version_is_no_reason_to_go_without)
{
	struct run run;
	char variable[PATH_MAX];
	world_begin();
	snprintf(variable, sizeof(variable), "GLAKE_SOCKET=%s/stranger", harness.folder);
	pid_t stranger = start_stranger(strchr(variable, '=') + 1);
	run_until_ready(&run, variable, run_in_build(PROGRAM), "dlsym", "steps", "1", NULL);
	run_expect(&run, "result 2 owned 0 passed 0 refused 1 connects 0");
	run_finish(&run);
	world_kill(stranger);
}
END_TEST

/* Connect until one more would have to wait. Returns how many. */
static unsigned fill_queue(int fds_out[MAX_QUEUED])
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	unsigned n = 0;
	ck_assert_uint_lt(strlen(harness.socket_path), sizeof(address.sun_path));
	strcpy(address.sun_path, harness.socket_path);
	for (;;) {
		ck_assert_uint_lt(n, MAX_QUEUED);
		int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		ck_assert_int_ge(fd, 0);
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
			ck_assert_int_eq(errno, EAGAIN);
			close(fd);
			return n;
		}
		fds_out[n++] = fd;
	}
}

/* The kernel says where a process waits. */
static void await_connect(pid_t pid)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	char path[64];
	int number = -1;
	snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
	while (number != SYS_connect) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		FILE *file = fopen(path, "re");
		ck_assert_ptr_nonnull(file);
		if (fscanf(file, "%d", &number) != 1) {
			number = -1;
		}
		fclose(file);
		harness_sleep_ms(1);
	}
}

/* glaked accepts nobody and its queue is full: who comes then is served when it goes on. */
START_TEST(a_full_socket_is_waited_for)
{
	static int fds[MAX_QUEUED];
	struct run run;
	world_begin();
	harness_signal(&harness, SIGSTOP);
	unsigned n = fill_queue(fds);
	ck_assert_uint_gt(n, 0);
	run_start(&run, NULL, run_in_build(PROGRAM), "dlsym", "basic", NULL);
	await_connect(run.pid);
	harness_signal(&harness, SIGCONT);
	run_end_well(&run);
	run_expect(&run, "owned all passed 0 refused 0 connects 1 live 0");
	while (n > 0) {
		close(fds[--n]);
	}
}
END_TEST

/* A child has no use for the sessions of its parent, and glaked waits for their ends. */
START_TEST(a_child_does_not_keep_a_glaked_that_ends)
{
	struct run run;
	struct harness other;
	char state[PATH_MAX + 16];
	int child = 0;
	world_begin_unseen(.config = "drain_ms = 3600000;");
	snprintf(state, sizeof(state), "CUDASIM_STATE=%s", getenv("CUDASIM_STATE"));
	harness_start(&other, &(struct harness_options){.env = (const char *const[]){state, NULL}});
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "moves", other.socket_path,
	                NULL);
	harness_signal(&harness, SIGTERM);
	harness_wait_log(&harness, "draining 1 sessions");
	run_finish(&run);
	const char *line = strstr(run.text, "child ");
	ck_assert(line && sscanf(line, "child %d", &child) == 1 && child > 1);
	int status = harness_wait_exit(&harness);
	kill(child, SIGKILL);
	ck_assert_int_eq(status, 0);
	harness_stop(&other);
}
END_TEST

START_TEST(questions_do_not_wait_for_a_stopped_glaked)
{
	struct run run;
	char path[PATH_MAX];
	world_begin();
	snprintf(path, sizeof(path), "%s/mute", harness.folder);
	run_whole(&run, "GLAKE_SHIM_OWN=alloc", run_in_build(PROGRAM), "dlsym", "asks", path, NULL);
	run_expect(&run, "owned 0 passed 1 refused 0 connects 0");
}
END_TEST

/* glaked is stopped for long: the driver serves meanwhile, and glaked when it goes on. */
START_TEST(a_stopped_glaked_is_done_without)
{
	struct run run;
	world_begin(.speed = 5);
	harness_signal(&harness, SIGSTOP);
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "steps", "1", NULL);
	run_expect(&run, "result 0 owned 0 passed all refused 0 connects 0");
	harness_signal(&harness, SIGCONT);
	run_finish(&run);
	run_whole(&run, NULL, run_in_build(PROGRAM), "dlsym", "basic", NULL);
	run_expect(&run, "owned all passed 0");
}
END_TEST

/* Neither what is there nor what comes is the driver's. */
START_TEST(a_restart_is_waited_for)
{
	struct run run;
	world_begin(.is_activated = true, .keeps_fds = true);
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "steps", "2", NULL);
	run_expect(&run, "result 0 owned all passed 0 refused 0 connects 1");
	harness_kill(&harness);
	ck_assert_int_eq(rename(harness.socket_path, world_path("away")), 0);
	run_continue(&run);
	/* The program has surely asked by then. */
	harness_sleep_ms(200);
	ck_assert_int_eq(rename(world_path("away"), harness.socket_path), 0);
	harness_restart(&harness);
	run_read(&run, "ready");
	run_expect(&run, "result 0 owned all passed 0 refused 0 connects 1");
	run_finish(&run);
}
END_TEST

/* glaked is away for longer than anybody waits. Then it is asked again soon, and the session goes on. */
START_TEST(a_slow_restart_is_no_end)
{
	struct run run;
	world_begin(.devices = "1x1GiB", .is_activated = true, .keeps_fds = true, .speed = 5);
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "steps", "40", NULL);
	harness_kill(&harness);
	run_go_on(&run);
	run_expect(&run, "result 0 owned 1 passed 1 refused 0 connects 1");
	harness_restart(&harness);
	for (int i = 2; i < 40 && !strstr(run.text, "served 2\n"); i++) {
		harness_sleep_ms(100);
		run_go_on(&run);
	}
	run_expect(&run, "served 2\n");
	run_expect(&run, "refused 0 connects 1");
	kill(run.pid, SIGKILL);
	run_end(&run);
}
END_TEST

/* More threads than glaked takes requests of. */
START_TEST(a_busy_session_is_no_reason_to_go_without)
{
	struct run run;
	world_begin(.config = "pool = (); max_requests_in_flight = 1;");
	run_whole(&run, NULL, run_in_build(PROGRAM), "dlsym", "threads", NULL);
	run_expect(&run, "passed 0 refused 0 connects 1");
}
END_TEST

/* A chunk of glaked's that cannot be mapped is not had of the driver instead, beside the quota. */
START_TEST(a_failure_of_ours_is_out_of_memory)
{
	struct run run;
	world_begin();
	run_until_ready(&run, "CUDASIM_FAULT=cuMemMap:1:fail=999", run_in_build(PROGRAM), "dlsym",
	                "steps", "2", NULL);
	run_expect(&run, "result 2 owned 0 passed 0 refused 1 connects 1");
	run_go_on(&run);
	run_expect(&run, "result 0 owned all passed 0 refused 1 connects 1");
	run_finish(&run);
}
END_TEST

/* Who sleeps on warm memory of a glaked that is gone does not keep it from others. */
START_TEST(warm_memory_goes_with_glaked)
{
	static struct run sleeper;
	static struct run other;
	world_begin(.config = "pool = ();", .speed = 10);
	run_until_ready(&sleeper, NULL, run_in_build(PROGRAM), "dlsym", "idle", "104857600", NULL);
	harness_kill(&harness);
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	do {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		run_whole(&other, NULL, run_in_build(PROGRAM), "dlsym", "greedy", "104857600",
		          NULL);
	} while (!strstr(other.text, "got 209715200"));
	run_finish(&sleeper);
}
END_TEST

/* ---- what a process does to itself ------------------------------------------------------------ */

START_TEST(the_programs_files_are_left_alone)
{
	struct run run;
	world_begin();
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "usurp", NULL);
	run_expect(&run, "owned all passed 0 refused 0 connects 1 live 0");
	/* The session goes on with another connection, and all is warm in it. */
	await_private(12 * MIB);
	run_finish(&run);
}
END_TEST

/* The program can take nothing of glaked while its table is full, but what it has stays charged. */
START_TEST(a_full_table_of_files_ends_no_session)
{
	static const struct {
		const char *extra;
		const char *counts;
	} policies[] = {
		{"GLAKE_SHIM_ABSENT=pass", "owned 1 passed 1 refused 0 connects 1"},
		{"GLAKE_SHIM_ABSENT=refuse", "owned all passed 0 refused 1 connects 1"},
	};
	struct run run;
	world_begin();
	int connection = connection_hello(&harness);
	for (int i = 0; i < 2; i++) {
		run_until_ready(&run, policies[i].extra, run_in_build(PROGRAM), "dlsym", "no_fds",
		                NULL);
		ck_assert_uint_eq(connection_private_bytes(connection), 6 * MIB);
		run_go_on(&run);
		run_expect(&run, policies[i].counts);
		ck_assert_uint_eq(connection_private_bytes(connection), 6 * MIB);
		run_finish(&run);
		run_expect(&run, "served 2\n");
		await_nothing_private();
	}
}
END_TEST

/* A connection that cannot be made anew at once is no other session's turn. */
START_TEST(a_lost_connection_keeps_its_session)
{
	struct run run;
	world_begin();
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "loses", NULL);
	run_expect(&run, "owned 1 passed 1 refused 0 connects 1");
	await_private(14 * MIB);
	run_finish(&run);
}
END_TEST

START_TEST(cancelled_threads_hold_up_nobody)
{
	struct run run;
	world_begin();
	run_whole(&run, NULL, run_in_build(PROGRAM), "dlsym", "cancels", NULL);
	run_expect(&run, "owned all passed 0 refused 0 connects 1");
}
END_TEST

/* Our thread is unmapping, and slow at it, when exit() comes to the driver's own end. */
START_TEST(the_driver_ends_when_we_have)
{
	struct run run;
	world_begin(.speed = 5);
	run_until_ready(&run, "CUDASIM_FAULT=cuMemUnmap:*:slow=1000", run_in_build(PROGRAM),
	                "dlsym", "exits", "6291456", NULL);
	harness_kill(&harness);
	harness_sleep_ms(300 / 5);
	run_finish(&run);
}
END_TEST

/* Who loads it has the loader's lock and wants ours; who connects, ours. Not the loader's as well. */
START_TEST(libraries_allocate_while_they_are_loaded)
{
	struct run run;
	world_begin();
	harness_signal(&harness, SIGSTOP);
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "loads",
	                run_in_build(CONSTRUCTOR), NULL);
	harness_sleep_ms(300);
	run_continue(&run);
	run_read(&run, "loading");
	harness_sleep_ms(300);
	harness_signal(&harness, SIGCONT);
	run_end_well(&run);
	ck_assert_ptr_null(strstr(run.text, "no memory"));
}
END_TEST

/* ---- others in the process, and processes without any of it ----------------------------------- */

static void run_with_preload(struct run *run, const char *first, const char *second)
{
	char preload[2 * PATH_MAX + 16];
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s:%s", run_in_build(first),
	         run_in_build(second));
	run_whole(run, preload, run_in_build(LINKED), "linked", "basic", NULL);
	run_expect(run, "owned all passed 0 refused 0 connects 1 live 0");
}

START_TEST(a_second_preload_library_goes_with_it)
{
	struct run run;
	world_begin();
	/* In front of the shim, the second library can call the driver, and sees all calls that it would see without the shim. */
	run_with_preload(&run, SECOND, SHIM);
	run_expect(&run, "seen 16");
	run_with_preload(&run, SHIM, SECOND);
	run_expect(&run, "seen 0");
	ck_assert_ptr_null(strstr(run.text, "no version"));
}
END_TEST

/* How often something below was opened since the last time. */
static unsigned count_opens(int watch)
{
	char events[16384] __attribute__((aligned(__alignof__(struct inotify_event))));
	unsigned n = 0;
	ssize_t n_bytes;
	while ((n_bytes = read(watch, events, sizeof(events))) > 0) {
		for (ssize_t at = 0; at < n_bytes; n++) {
			const struct inotify_event *event = (void *)(events + at);
			at += (ssize_t)(sizeof(*event) + event->len);
		}
	}
	return n;
}

/* A copy that only the programs of this test open, beside the socket. */
static void use_own_driver(void)
{
	struct run run;
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/libcuda.so.1", harness.folder);
	run_whole(&run, NULL, "/bin/cp", run_in_build("cudasim/libcuda.so.1"), path, NULL);
	setenv("GLAKE_LIBCUDA", path, 1);
}

/* Neither the driver nor glaked hears of programs without CUDA, be they ever so many. */
START_TEST(programs_without_cuda_open_nothing)
{
	struct run run;
	world_begin();
	use_own_driver();
	int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	ck_assert_int_ge(watch, 0);
	ck_assert_int_ge(inotify_add_watch(watch, harness.folder, IN_OPEN), 0);
	int connection = connection_hello(&harness);
	uint64_t n_sessions = connection_counter(connection, "sessions_total");
	count_opens(watch);

	run_whole(&run, NULL, "/bin/sh", "-c",
	          "for i in 1 2 3 4 5; do (/bin/true; ls /proc/self/fd; env) | sort; done", NULL);
	ck_assert_uint_eq(count_opens(watch), 0);
	ck_assert_uint_eq(connection_counter(connection, "sessions_total"), n_sessions);

	run_whole(&run, NULL, run_in_build(PROGRAM), "dlsym", "basic", NULL);
	ck_assert_uint_gt(count_opens(watch), 0);
	ck_assert_uint_eq(connection_counter(connection, "sessions_total"), n_sessions + 1);
	connection_close(&connection);
	close(watch);
}
END_TEST

/* ---- programs of the driver API --------------------------------------------------------------- */

static void run_parts(struct run *run, const char *extra, const char *program)
{
	run_whole(run, extra, run_in_build(program), "memory", "async", "pools", "vmm", "places",
	          "graphs", NULL);
}

static void compute_with_and_without(const char *program)
{
	static struct run with;
	static struct run without;
	world_begin();
	run_parts(&without, "GLAKE_SHIM=off", program);
	run_parts(&with, run_counting(), program);
	ck_assert_str_eq(with.text, without.text);
	run_expect_owned(151);
	/* Without the shim the simulator's handles between processes open nothing. */
	run_whole(&with, NULL, run_in_build(program), "ipc", NULL);
	run_expect(&with, "given c3141a40981401d1\nanswered ");
}

START_TEST(the_driver_api_computes_the_same)
{
	compute_with_and_without(DRIVER_API);
}
END_TEST

/* Memory that was handed out must stay what and where it is, and the reason can be shown. */
START_TEST(what_is_handed_out_is_pinned)
{
	static const char *const lines = "plain: not pinned\n"
					 "named: named for other processes\n"
					 "the next: not pinned\n"
					 "with a handle: not pinned\n"
					 "twice: not pinned\n"
					 "once: not pinned\n"
					 "retained: not pinned\n"
					 "exported: its descriptor was handed out\n"
					 "imported: another process's\n";
	struct run run;
	world_begin();
	run_whole(&run, NULL, run_in_build(DRIVER_API), "pins", NULL);
	ck_assert_str_eq(run.text, lines);
}
END_TEST

/* The driver's _ptsz and _ptds entries. */
START_TEST(default_streams_of_threads_compute_the_same)
{
	compute_with_and_without(PER_THREAD);
}
END_TEST

/* Handles of cuMemCreate(), as allocators use them, and as they must not. */
START_TEST(numbers_behave_as_handles_of_the_driver)
{
	static struct run with;
	static struct run without;
	char path[PATH_MAX];
	char variable[PATH_MAX + 16];
	unsigned counts[2] = {0};
	world_begin();
	snprintf(path, sizeof(path), "%s/counts", harness.folder);
	snprintf(variable, sizeof(variable), "SHIM_COUNTS=%s", path);
	run_whole(&without, "GLAKE_SHIM=off", run_in_build(NUMBERS), "stale", NULL);
	run_whole(&with, run_counting(), run_in_build(NUMBERS), "stale", NULL);
	run_expect(&with, "another 0000000000000001");
	ck_assert_str_eq(with.text, without.text);
	FILE *file = fopen(path, "re");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_eq(fscanf(file, "{\"owned\": %u, \"passed\": %u", &counts[0], &counts[1]), 2);
	fclose(file);
	ck_assert_uint_gt(counts[0], 50);
	ck_assert_uint_eq(counts[1], 0);
}
END_TEST

/* And so they do where no glaked is: the driver makes the memory. */
START_TEST(numbers_of_the_drivers_own_memory_behave_the_same)
{
	static struct run with;
	static struct run without;
	world_begin();
	run_whole(&without, "GLAKE_SHIM=off", run_in_build(NUMBERS), "stale", NULL);
	run_whole(&with, "GLAKE_SOCKET=/nowhere/glaked.sock", run_in_build(NUMBERS), "stale", NULL);
	ck_assert_str_eq(with.text, without.text);
}
END_TEST

/* Kernels of another device in what a pool had and will have, when cuMemPoolSetAccess() says so. */
START_TEST(pools_open_to_other_devices)
{
	struct run with;
	struct run without;
	world_begin();
	run_whole(&without, "GLAKE_SHIM=off", run_in_build(DRIVER_API), "peers", NULL);
	run_whole(&with, NULL, run_in_build(DRIVER_API), "peers", NULL);
	run_expect(&with, "pooled ");
	ck_assert_str_eq(with.text, without.text);
}
END_TEST
