/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake-keeper as the service manager. Its glaked is this program in one of its roles, so that it can
 * do what it likes; both ends of the fd store are the real ones.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/base/notify.h"
#include "daemon/keep/fdstore.h"
#include "proto/cleanup.h"
#include "proto/wire.h"
#include "tests/check_glake.h"
#include "tests/harness/harness.h"
#include "tests/harness/run.h"

/* ---- the roles: they end with 9 if something is wrong ------------------------------------------- */

#define want(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "line %d: not %s\n", __LINE__, #condition); \
			_exit(9); \
		} \
	} while (0)

/* Files that the keeper may have open, if that is little. */
#define MAX_OPEN 200

static uv_loop_t loop;
static struct fdstore *store;

/* How many have started before. */
static int n_before(void)
{
	struct stat status;
	cleanup_fd int fd = open("starts", O_WRONLY | O_CREAT | O_APPEND, 0600);
	want(fd >= 0 && fstat(fd, &status) == 0 && write(fd, "x", 1) == 1);
	fprintf(stderr, "start %d\n", (int)status.st_size + 1);
	return (int)status.st_size;
}

static int file(const char *text)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	want(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	return fd;
}

static void put(const char *name)
{
	cleanup_fd int fd = file(name);
	want(fdstore_put(store, name, fd) == 0);
}

static bool was_passed(const char *name)
{
	char text[64] = "";
	cleanup_fd int fd = fdstore_take(store, name);
	return fd >= 0 && pread(fd, text, sizeof(text) - 1, 0) > 0 && strcmp(text, name) == 0;
}

static void die(void *user)
{
	kill(getpid(), SIGKILL);
}

static void die_when_kept(void)
{
	want(fdstore_barrier(store, die, NULL) == 0);
	uv_run(&loop, UV_RUN_DEFAULT);
	want(false);
}

static const char *name_of(const char *format, int number)
{
	static char name[32];
	snprintf(name, sizeof(name), format, number);
	return name;
}

/* Keeps many, without every third; then it dies, twice. */
static int hoard(int n)
{
	enum { N = 2000 };
	want(fdstore_is_kept(store));
	for (int i = 0; n > 0 && i < N; i++) {
		bool is_gone = i % 3 == 0 || (n == 2 && i == 1);
		want(was_passed(name_of("f%d", i)) == !is_gone);
	}
	if (n == 2) {
		want(was_passed("g"));
		return 0;
	}
	if (n == 1) {
		fdstore_remove(store, "f1");
		put("g");
		die_when_kept();
	}
	want(!fdstore_passed(store, 0));
	for (int i = 0; i < N; i++) {
		put(name_of("f%d", i));
	}
	for (int i = 0; i < N; i += 3) {
		fdstore_remove(store, name_of("f%d", i));
	}
	die_when_kept();
	return 9;
}

#define N_PIPES 300
static int pipes[N_PIPES][2];

static void look_at_pipes(void *user)
{
	char byte;
	for (int i = 0; i < N_PIPES; i++) {
		want(read(pipes[i][0], &byte, 1) == 0);
	}
	uv_stop(&loop);
}

/* When a barrier comes back, what was removed before is closed. */
static int remove_all(int n)
{
	for (int i = 0; i < N_PIPES; i++) {
		want(pipe2(pipes[i], O_CLOEXEC | O_NONBLOCK) == 0);
		want(fdstore_put(store, name_of("p%d", i), pipes[i][1]) == 0);
		fd_close(&pipes[i][1]);
		fdstore_remove(store, name_of("p%d", i));
	}
	want(fdstore_barrier(store, look_at_pipes, NULL) == 0);
	uv_run(&loop, UV_RUN_DEFAULT);
	return 0;
}

/* The keeper has room for 10, but glaked was told of 20. */
static int overfill(int n)
{
	if (n == 1) {
		want(was_passed("f9") && !was_passed("f10") && !fdstore_passed(store, 10));
		return 0;
	}
	for (int i = 0; i < 20; i++) {
		put(name_of("f%d", i));
	}
	die_when_kept();
	return 9;
}

/* The end of a connection whose close waits for the reader, who does not read. */
static int slow_end(void)
{
	static const struct linger linger = {.l_onoff = 1, .l_linger = 2};
	struct sockaddr_in address = {.sin_family = AF_INET,
	                              .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(address);
	char bytes[4096] = "";
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	int end = socket(AF_INET, SOCK_STREAM, 0);
	want(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
	want(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	want(connect(end, (struct sockaddr *)&address, length) == 0);
	while (send(end, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
	}
	want(setsockopt(end, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	return end;
}

/* This glaked has few files, too, and each message that waits to be sent takes one. */
static void put_when_possible(const char *name, int fd)
{
	int r;
	while ((r = fdstore_put(store, name, fd)) == -EMFILE) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	want(r == 0);
}

/* More is removed than can be closed in time, and than the keeper may have open. */
static int overtake(int n)
{
	enum { N = 3 * MAX_OPEN };
	int r;
	if (n == 1) {
		want(was_passed("last"));
		return 0;
	}
	int last = file("last");
	int slow = slow_end();
	want(fdstore_put(store, "slow", slow) == 0);
	fd_close(&slow);
	fdstore_remove(store, "slow");
	for (int i = 0; i < N; i++) {
		put_when_possible(name_of("f%d", i), last);
		fdstore_remove(store, name_of("f%d", i));
	}
	put_when_possible("last", last);
	while ((r = fdstore_barrier(store, die, NULL)) == -EMFILE) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	uv_run(&loop, UV_RUN_DEFAULT);
	return 9;
}

static int crash(int n)
{
	signal(SIGSEGV, SIG_DFL);
	raise(SIGSEGV);
	return 9;
}

static int be_silent(int n)
{
	want(notify_watchdog_interval_ms() == 500);
	notify_ready(NULL);
	while (n == 0) {
		pause();
	}
	return 0;
}

/* A driver can hang. */
static int never_be_ready(int n)
{
	while (n == 0) {
		pause();
	}
	return 0;
}

static int fail_later(int n)
{
	notify_ready(NULL);
	return n == 0 ? 1 : 0;
}

static int fail_at_once(int n)
{
	return 3;
}

/* Serves until it is told to end, and says how many fds were passed. */
static int serve(int n)
{
	int number;
	sigset_t set;
	unsigned n_passed = 0;
	while (fdstore_passed(store, n_passed)) {
		n_passed++;
	}
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	notify_ready("here");
	fprintf(stderr, "%u passed; socket %s\n", n_passed, getenv("NOTIFY_SOCKET"));
	while (sigwait(&set, &number) == 0 && number == SIGHUP) {
		fprintf(stderr, "SIGHUP came\n");
	}
	fprintf(stderr, "%s came\n", number == SIGINT ? "SIGINT" : "SIGTERM");
	notify_stopping();
	return 0;
}

/* Leaves all to the next one, though it is told to end. */
static int serve_and_leave(int n)
{
	serve(n);
	return 75;
}

enum { N_HELD = 50 };

static void say_kept(void *user)
{
	fprintf(stderr, "kept; socket %s\n", getenv("NOTIFY_SOCKET"));
}

/* Keeps some, and then has to be ended; the next one wants them back, and no others. */
static int hold(int n)
{
	for (int i = 0; i < N_HELD; i++) {
		if (n == 0) {
			put(name_of("f%d", i));
		} else {
			want(was_passed(name_of("f%d", i)));
		}
	}
	want(n == 0 || !fdstore_passed(store, N_HELD));
	if (n > 0) {
		return 0;
	}
	notify_ready(NULL);
	want(fdstore_barrier(store, say_kept, NULL) == 0);
	uv_run(&loop, UV_RUN_DEFAULT);
	for (;;) {
		pause();
	}
}

static const struct {
	const char *name;
	int (*run)(int n_before);
} roles[] = {
	{"hoard", hoard},           {"remove", remove_all},     {"overfill", overfill},
	{"crash", crash},           {"fail", fail_at_once},     {"silent", be_silent},
	{"fail_later", fail_later}, {"serve", serve},           {"never_ready", never_be_ready},
	{"quiet", fail_later},      {"leave", serve_and_leave}, {"hold", hold},
	{"overtake", overtake},
};

static int play(const char *name)
{
	/* Its own lines would be lost, too. */
	if (strcmp(name, "quiet") == 0) {
		dup2(open("log", O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
	}
	int n = n_before();
	if (strcmp(name, "overfill") == 0) {
		setenv("FDSTORE", "20", 1);
	}
	want(uv_loop_init(&loop) == 0 && fdstore_open(&loop, &store) == 0);
	for (size_t i = 0; i < n_elements(roles); i++) {
		if (strcmp(name, roles[i].name) == 0) {
			return roles[i].run(n);
		}
	}
	return 9;
}

/* ---- the tests ------------------------------------------------------------------------------- */

static char self[512];
static pid_t keeper;

static const char *log_text(void)
{
	static char text[1 << 20];
	cleanup_fd int fd = open("log", O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = '\0';
	return text;
}

static void wait_log(const char *text)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (!strstr(log_text(), text)) {
		ck_assert_msg(harness_now_ms() < end_ms, "not said: %s\n%s", text, log_text());
		harness_sleep_ms(5);
	}
}

/* The stderr of the keeper and its glaked; -1: the log. */
static int their_stderr = -1;

static rlim_t max_open; /* 0: as many as the test */

/* Start a keeper with one option (NULL: none) and that glaked, in a folder of its own. */
static void start(const char *option, const char *role)
{
	char folder[256];
	const char *parent = getenv("TMPDIR");
	snprintf(folder, sizeof(folder), "%s/keeper.XXXXXX", parent && *parent ? parent : "/tmp");
	const char *program = run_in_build("bin/glake-keeper");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	ck_assert_int_eq(chdir(folder), 0);
	keeper = fork();
	ck_assert_int_ge(keeper, 0);
	if (keeper == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int fd = open("log", O_WRONLY | O_CREAT | O_APPEND, 0600);
		dup2(their_stderr >= 0 ? their_stderr : fd, STDERR_FILENO);
		close(fd);
		if (max_open) {
			setrlimit(RLIMIT_NOFILE, &(struct rlimit){max_open, max_open});
		}
		execl(program, "glake-keeper", option ? option : "--", self, role, NULL);
		_exit(127);
	}
}

static int end(void)
{
	int status = 0;
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (waitpid(keeper, &status, WNOHANG) == 0) {
		if (harness_now_ms() >= end_ms) {
			kill(keeper, SIGKILL);
			ck_abort_msg("the keeper does not end:\n%s", log_text());
		}
		harness_sleep_ms(5);
	}
	ck_assert_msg(WIFEXITED(status), "status 0x%x\n%s", status, log_text());
	return WEXITSTATUS(status);
}

static void ends_with(int wanted)
{
	int status = end();
	ck_assert_msg(status == wanted, "status %d, not %d\n%s", status, wanted, log_text());
}

static int n_starts(void)
{
	struct stat status;
	ck_assert_int_eq(stat("starts", &status), 0);
	return (int)status.st_size;
}

START_TEST(what_is_kept_comes_back_and_what_is_removed_does_not)
{
	start(NULL, "hoard");
	ends_with(0);
	ck_assert_int_eq(n_starts(), 3);
}
END_TEST

START_TEST(barrier_comes_back_after_the_close_of_what_was_removed)
{
	start(NULL, "remove");
	ends_with(0);
}
END_TEST

START_TEST(what_is_slow_to_close_is_waited_for)
{
	max_open = MAX_OPEN;
	start(NULL, "overtake");
	ends_with(0);
	ck_assert_ptr_null(strstr(log_text(), "is lost"));
}
END_TEST

START_TEST(more_than_there_is_room_for_is_told)
{
	start("--max-fds=10", "overfill");
	ends_with(0);
	wait_log("no room for more than 10 fds: f10 is lost");
}
END_TEST

/* Five starts at once; the sixth has a delay, and each after it a longer one. */
START_TEST(a_crash_at_every_start_is_not_a_hot_loop)
{
	start(NULL, "crash");
	wait_log("was killed by signal 11; the next one starts in 400 ms, with 0 kept fds");
	ck_assert_int_le(n_starts(), 9);
	kill(keeper, SIGTERM);
	ends_with(128 + SIGSEGV);
}
END_TEST

START_TEST(silent_one_is_replaced)
{
	start("--watchdog=1", "silent");
	ends_with(0);
	wait_log("glaked does not answer its watchdog");
	wait_log("was killed by signal 6");
	ck_assert_int_eq(n_starts(), 2);
}
END_TEST

START_TEST(one_that_does_not_become_ready_is_replaced)
{
	setenv("CLOCKSIM_SPEED", "10", 1);
	harness_preload(run_in_build("clocksim.so"));
	start("--watchdog=1", "never_ready");
	ends_with(0);
	wait_log("glaked does not become ready");
	ck_assert_int_eq(n_starts(), 2);
}
END_TEST

START_TEST(failure_before_the_first_ready_is_the_keepers)
{
	start(NULL, "fail");
	ends_with(3);
	ck_assert_int_eq(n_starts(), 1);
}
END_TEST

START_TEST(failure_after_it_is_not)
{
	start(NULL, "fail_later");
	ends_with(0);
	wait_log("ended with status 1; the next one starts in 0 ms");
	ck_assert_int_eq(n_starts(), 2);
}
END_TEST

/* A log that nobody reads is no reason to lose what is kept: its reader has gone, or sleeps. */
START_TEST_WITH(unread_log_does_no_harm, .n = 2)
{
	char bytes[4096] = "";
	int ends[2];
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	if (_i == 0) {
		close(ends[0]);
	} else {
		while (write(ends[1], bytes, sizeof(bytes)) > 0) {
		}
	}
	fcntl(ends[1], F_SETFL, 0);
	their_stderr = ends[1];
	start(NULL, "quiet");
	ends_with(0);
	ck_assert_int_eq(n_starts(), 2);
}
END_TEST

/* With SIGINT glaked drains. With SIGTERM it leaves everything to the next one, which will not be. */
START_TEST(sigterm_drains_and_ends_both_and_the_rest_is_passed_on)
{
	start(NULL, "serve");
	wait_log("start 1\n0 passed");
	kill(keeper, SIGHUP);
	wait_log("SIGHUP came");
	kill(keeper, SIGTERM);
	ends_with(0);
	wait_log("SIGINT came");
	ck_assert_int_eq(n_starts(), 1);
}
END_TEST

/* glaked may be leaving when its keeper is told to end: nobody may take that for a wish to be started again. */
START_TEST(one_that_leaves_at_the_end_of_both_has_ended_well)
{
	start(NULL, "leave");
	wait_log("start 1\n0 passed");
	kill(keeper, SIGTERM);
	ends_with(0);
	ck_assert_int_eq(n_starts(), 1);
}
END_TEST

/* The socket that glaked says it has. */
static struct sockaddr_un its_address(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *path = strstr(log_text(), "socket /") + strlen("socket ");
	snprintf(address.sun_path, sizeof(address.sun_path), "%.*s", (int)strcspn(path, "\n"),
	         path);
	return address;
}

/* Another user does not even get that far. */
static void stranger_is_shut_out(int fd, const struct sockaddr_un *address)
{
	int status;
	if (!harness_is_root()) {
		return;
	}
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		_exit(setresuid(65534, 65534, 65534) == 0 &&
		                      connect(fd, (const struct sockaddr *)address,
		                              sizeof(*address)) < 0 &&
		                      errno == EACCES
		              ? 0
		              : 1);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}

/* They could empty the store or fill it, end glaked or its patience, or bring a file that never closes. */
START_TEST(others_are_not_heard)
{
	static const char *const texts[] = {"FDSTORE=1\nFDNAME=a",
	                                    "FDSTORE=1\nFDNAME=f1",
	                                    "FDSTOREREMOVE=1\nFDNAME=f1",
	                                    "BARRIER=1",
	                                    "STOPPING=1",
	                                    "WATCHDOG=trigger",
	                                    "\n=\n\xff"};
	enum { N_MESSAGES = 700, N_FDS = 253 };
	struct stat status;
	int fds[N_FDS];
	start(NULL, "hold");
	wait_log("kept; socket /");
	struct sockaddr_un address = its_address();
	cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	stranger_is_shut_out(fd, &address);
	/* One of the same user, as glake-mover is. */
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	for (size_t i = 0; i < N_FDS; i++) {
		fds[i] = fd;
	}
	for (size_t i = 0; i < N_MESSAGES; i++) {
		const char *text = texts[i % n_elements(texts)];
		ck_assert_int_eq(wire_send(fd, text, strlen(text), fds, i % (N_FDS + 1), 0), 0);
	}
	*strrchr(address.sun_path, '/') = '\0';
	ck_assert_int_eq(stat(address.sun_path, &status), 0);
	ck_assert_uint_eq(status.st_mode & 0777, 0700);
	kill(keeper, SIGUSR2);
	ends_with(0);
	ck_assert_int_eq(n_starts(), 2);
	ck_assert_int_ne(access(address.sun_path, F_OK), 0);
}
END_TEST

/* The keeper may be a service itself: its manager hears glaked, but not of its end when another one follows. */
START_TEST(own_manager_hears_glaked)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char name[64];
	char heard[4096] = "";
	const struct timeval patience = {.tv_sec = HARNESS_TIMEOUT_MS / 1000};
	int n_bytes = snprintf(name, sizeof(name), "@glake-outer-%d", (int)getpid());
	memcpy(address.sun_path + 1, name + 1, (size_t)n_bytes - 1);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	ck_assert_int_eq(
		bind(fd, (struct sockaddr *)&address,
	             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n_bytes)),
		0);
	setenv("NOTIFY_SOCKET", name, 1);
	start(NULL, "serve");
	wait_log("start 1\n0 passed");
	kill(keeper, SIGUSR2);
	wait_log("start 2\n0 passed");
	wait_log("SIGTERM came");
	kill(keeper, SIGTERM);
	ends_with(0);
	while (!strstr(heard, "STOPPING=1")) {
		ssize_t n = recv(fd, name, sizeof(name) - 1, 0);
		ck_assert_int_gt(n, 0);
		name[n] = '\0';
		strcat(strcat(heard, name), "|");
	}
	ck_assert_ptr_eq(strstr(heard, "READY=1\nSTATUS=here|STATUS=glaked ended with"), heard);
	ck_assert_ptr_nonnull(strstr(heard, "|READY=1\nSTATUS=here|STOPPING=1|"));
}
END_TEST

int main(int argc, char **argv)
{
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
		return 1;
	}
	return argc > 1 ? play(argv[1]) : tests_run();
}

/* ---- keepers that are killed -------------------------------------------------------------------- */

static char runtime_folder[256];

/* In a folder that all keepers of the test have. */
static unsigned n_folders(void)
{
	unsigned n = 0;
	DIR *folder = opendir(runtime_folder);
	ck_assert_ptr_nonnull(folder);
	const struct dirent *entry;
	while ((entry = readdir(folder))) {
		n += entry->d_name[0] != '.';
	}
	closedir(folder);
	return n;
}

/* All sockets look as if they were long there. */
static void make_old(void)
{
	static const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
	DIR *folder = opendir(runtime_folder);
	const struct dirent *entry;
	ck_assert_ptr_nonnull(folder);
	while ((entry = readdir(folder))) {
		char path[600];
		snprintf(path, sizeof(path), "%s/%s/s", runtime_folder, entry->d_name);
		utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
	}
	closedir(folder);
}

static void kill_keeper(void)
{
	kill(keeper, SIGKILL);
	ck_assert_int_eq(waitpid(keeper, NULL, 0), keeper);
}

static void serve_one(void)
{
	start(NULL, "serve");
	wait_log("socket");
}

/* A folder of @mode, and a socket in it that nobody listens to. */
static void leave_folder(const char *path, mode_t mode)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/s", path);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(mkdir(path, mode), 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

START_TEST(the_folder_of_a_killed_keeper_goes_with_the_next_start)
{
	char path[280];
	char target[280];
	const char *parent = getenv("TMPDIR");
	snprintf(runtime_folder, sizeof(runtime_folder), "%s/run.XXXXXX",
	         parent && *parent ? parent : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(runtime_folder));
	setenv("RUNTIME_DIRECTORY", runtime_folder, 1);
	serve_one();
	kill_keeper();
	ck_assert_uint_eq(n_folders(), 1);
	/* The folder stays: it could be that of a keeper which is about to listen. */
	serve_one();
	ck_assert_uint_eq(n_folders(), 2);
	pid_t living = keeper;
	make_old();
	serve_one();
	ck_assert_uint_eq(n_folders(), 2);
	/* Folders that only look like a keeper's stay: one that others can enter, and one that is elsewhere. */
	snprintf(path, sizeof(path), "%s/glake-keeper.open", runtime_folder);
	leave_folder(path, 0755);
	snprintf(target, sizeof(target), "%s/elsewhere", runtime_folder);
	leave_folder(target, 0700);
	snprintf(path, sizeof(path), "%s/glake-keeper.link", runtime_folder);
	ck_assert_int_eq(symlink(target, path), 0);
	kill_keeper();
	make_old();
	serve_one();
	ck_assert_uint_eq(n_folders(), 2 + 3);
	strcat(target, "/s");
	ck_assert_int_eq(access(target, F_OK), 0);
	kill(keeper, SIGTERM);
	ends_with(0);
	keeper = living;
	kill(keeper, SIGTERM);
	ends_with(0);
	ck_assert_uint_eq(n_folders(), 3);
}
END_TEST
