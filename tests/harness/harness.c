/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "proto/cleanup.h"
#include "tests/check_glake.h"

#define POLL_MS 10
#define SETTLED_MS 300
#define LOG_BYTES (4u * 1024 * 1024)

uint64_t harness_now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void harness_sleep_ms(unsigned ms)
{
	struct timespec rest = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
	nanosleep(&rest, NULL);
}

/* ---- the log --------------------------------------------------------------------------------- */

const char *harness_log(const struct harness *harness)
{
	static char text[LOG_BYTES];
	size_t n_bytes = 0;
	FILE *file = fopen(harness->log_path, "re");
	if (file) {
		n_bytes = fread(text, 1, sizeof(text) - 1, file);
		fclose(file);
	}
	text[n_bytes] = '\0';
	return text;
}

static const char *log_tail(const struct harness *harness)
{
	const char *text = harness_log(harness);
	size_t n_bytes = strlen(text);
	return n_bytes > 3000 ? text + n_bytes - 3000 : text;
}

unsigned harness_n_log_lines(const struct harness *harness, const char *text)
{
	unsigned n_lines = 0;
	for (const char *at = harness_log(harness); (at = strstr(at, text)); n_lines++) {
		at += strcspn(at, "\n");
	}
	return n_lines;
}

void harness_wait_log(const struct harness *harness, const char *text)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (!strstr(harness_log(harness), text)) {
		ck_assert_msg(harness_now_ms() < end_ms, "not in the log: %s\n%s", text,
		              log_tail(harness));
		harness_sleep_ms(POLL_MS);
	}
}

/* ---- starting -------------------------------------------------------------------------------- */

static const char *build_folder(void)
{
	const char *folder = getenv("GLAKE_BUILD");
	return folder && *folder ? folder : "build";
}

static void in_folder(const struct harness *harness, const char *name, char *path_out)
{
	int n = snprintf(path_out, HARNESS_PATH_BYTES, "%s/%s", harness->folder, name);
	ck_assert_int_lt(n, (int)HARNESS_PATH_BYTES);
}

static void make_folder(struct harness *harness)
{
	const char *parent = getenv("TMPDIR");
	snprintf(harness->folder, sizeof(harness->folder), "%s/glaked.XXXXXX",
	         parent && *parent ? parent : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(harness->folder));
	/* Other users must pass: harness_as(), and a glaked with another uid. */
	ck_assert_int_eq(chmod(harness->folder, 0755), 0);
	if (harness->options.uid) {
		ck_assert_int_eq(chown(harness->folder, harness->options.uid, (gid_t)-1), 0);
	}
	in_folder(harness, "glaked.sock", harness->socket_path);
	in_folder(harness, "glaked.conf", harness->config_path);
	in_folder(harness, "log", harness->log_path);
	in_folder(harness, "notify", harness->notify_path);
}

/* The config has no patrol and no looks at layout unless the test sets them: they call the driver, and keep blocks, at any time. */
static void write_config(const struct harness *harness, const char *text)
{
	FILE *file = fopen(harness->config_path, "we");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_ge(fputs(text, file), 0);
	if (!strstr(text, "verify")) {
		ck_assert_int_ge(fputs("\nverify = \"off\";\n", file), 0);
	}
	if (!strstr(text, "measure_layout")) {
		ck_assert_int_ge(fputs("\nmeasure_layout = false;\n", file), 0);
	}
	ck_assert_int_eq(fclose(file), 0);
}

static int bind_to(int type, const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	ck_assert_uint_lt(strlen(path), sizeof(address.sun_path));
	strcpy(address.sun_path, path);
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
	ck_assert_int_ge(fd, 0);
	unlink(path);
	ck_assert_msg(bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "%s: %s", path,
	              strerror(errno));
	return fd;
}

void harness_preload(const char *path)
{
	char value[PATH_MAX * 2];
	const char *before = getenv("LD_PRELOAD");
	snprintf(value, sizeof(value), "%s%s%s", before ? before : "", before ? ":" : "", path);
	setenv("LD_PRELOAD", value, 1);
	/* Our library is preloaded before the sanitizer's, which is harmless. */
	before = getenv("ASAN_OPTIONS");
	snprintf(value, sizeof(value), "%s:verify_asan_link_order=0", before ? before : "");
	setenv("ASAN_OPTIONS", value, 1);
}

void harness_environment(const struct harness *harness)
{
	char path[PATH_MAX];
	setenv("GLAKE_SOCKET", harness->socket_path, 1);
	in_folder(harness, "cudasim", path);
	setenv("CUDASIM_STATE", path, 1);
	setenv("CUDASIM_DEVICES", harness->options.devices, 1);
	snprintf(path, sizeof(path), "%s/cudasim/libcuda.so.1", build_folder());
	setenv("GLAKE_LIBCUDA", path, 0);
	snprintf(path, sizeof(path), "%u", harness->options.speed);
	setenv("CLOCKSIM_SPEED", path, 1);
	snprintf(path, sizeof(path), "%u", harness->options.slowness);
	setenv("CLOCKSIM_SLOWNESS", path, 1);
	unsetenv("CUDASIM_FAULT");
	unsetenv("CUDASIM_FAULT_FILE");
}

static void set_environment(const struct harness *harness)
{
	char path[PATH_MAX];
	harness_environment(harness);
	if (harness->options.faults) {
		setenv("CUDASIM_FAULT", harness->options.faults, 1);
	}
	if (harness->options.speed || harness->options.slowness) {
		snprintf(path, sizeof(path), "%s/clocksim.so", build_folder());
		harness_preload(path);
	}
	in_folder(harness, ".faults", path);
	setenv("CUDASIM_FAULT_FILE", path, 1);
	setenv("NOTIFY_SOCKET", harness->notify_path, 1);
	unsetenv("GLAKE_SOCKET");
	unsetenv("GLAKE_CONFIG");
	unsetenv("JOURNAL_STREAM");
	for (const char *const *more = harness->options.env; more && *more; more++) {
		putenv((char *)*more);
	}
}

static void become_user(uid_t uid, gid_t gid)
{
	if (setgroups(0, NULL) < 0 || setresgid(gid, gid, gid) < 0 ||
	    setresuid(uid, uid, uid) < 0) {
		fprintf(stderr, "cannot become uid %u: %s\n", (unsigned)uid, strerror(errno));
		_exit(125);
	}
}

/* Called in the child, between fork and exec. */
static void become_glaked(const struct harness *harness)
{
	char program[PATH_MAX];
	char keeper[PATH_MAX];
	char pid[16];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	int log_fd = open(harness->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
	int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (log_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(log_fd, STDOUT_FILENO) < 0 ||
	    dup2(harness->options.stderr_fd ? harness->options.stderr_fd : log_fd, STDERR_FILENO) <
	            0) {
		_exit(126);
	}
	set_environment(harness);
	if (harness->options.keeps_fds) {
		fdkeeper_pass(&harness->fdkeeper, harness->listen_fd);
	} else if (harness->options.is_activated) {
		snprintf(pid, sizeof(pid), "%d", (int)getpid());
		setenv("LISTEN_PID", pid, 1);
		setenv("LISTEN_FDS", "1", 1);
		dup2(harness->listen_fd, 3);
	}
	if (harness->options.has_keeper) {
		/* Close Check's own file, which else the first glaked would have, and no later one. */
		close_range(harness->options.is_activated ? 4 : 3, UINT_MAX, 0);
	}
	if (harness->options.max_fds) {
		struct rlimit limit = {harness->options.max_fds, harness->options.max_fds};
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (harness->options.uid) {
		become_user(harness->options.uid, harness->options.uid);
	}
	snprintf(program, sizeof(program), "%s/bin/glaked", build_folder());
	snprintf(keeper, sizeof(keeper), "%s/bin/glake-keeper", build_folder());
	const char *max_kept = harness->options.max_kept ? harness->options.max_kept : "1000000";
	const char *arguments[] = {keeper,
	                           "--max-fds",
	                           max_kept,
	                           "--",
	                           program,
	                           "--socket",
	                           harness->socket_path,
	                           "--config",
	                           harness->config_path,
	                           NULL};
	if (!harness->options.config) {
		arguments[7] = NULL;
	}
	char **begin = (char **)(harness->options.has_keeper ? arguments : arguments + 4);
	execv(begin[0], begin);
	dprintf(STDERR_FILENO, "cannot run %s: %s\n", begin[0], strerror(errno));
	_exit(127);
}

static void spawn(struct harness *harness)
{
	fflush(NULL);
	harness->pid = fork();
	ck_assert_int_ge(harness->pid, 0);
	if (harness->pid == 0) {
		become_glaked(harness);
	}
	harness->keeper = harness->options.has_keeper ? harness->pid : 0;
}

/* The pid of our child: the keeper, or else glaked. */
static pid_t *child_of(struct harness *harness)
{
	return harness->keeper ? &harness->keeper : &harness->pid;
}

/* Find the pid of glaked, when it is ready. */
static void find_pid(struct harness *harness)
{
	char path[64];
	int pid = 0;
	if (harness->keeper) {
		snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)harness->keeper,
		         (int)harness->keeper);
		FILE *file = fopen(path, "re");
		ck_assert_ptr_nonnull(file);
		ck_assert_int_eq(fscanf(file, "%d", &pid), 1);
		fclose(file);
		harness->pid = pid;
	}
}

static void check_alive(struct harness *harness)
{
	int status;
	pid_t *child = child_of(harness);
	if (*child && waitpid(*child, &status, WNOHANG) == *child) {
		*child = harness->pid = 0;
		ck_abort_msg("glaked ended with status 0x%x\n%s", status, log_tail(harness));
	}
}

void harness_wait_notified(struct harness *harness, const char *want)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	for (;;) {
		char text[1024] = "\n";
		struct pollfd ready = {.fd = harness->notify_fd, .events = POLLIN};
		if (poll(&ready, 1, POLL_MS) == 1) {
			ssize_t n = recv(harness->notify_fd, text + 1, sizeof(text) - 3, 0);
			ck_assert_int_gt(n, 0);
			text[1 + n] = '\n';
			text[2 + n] = '\0';
			if (strstr(text, want)) {
				return;
			}
		} else {
			check_alive(harness);
		}
		ck_assert_msg(harness_now_ms() < end_ms, "glaked did not say %s%s", want + 1,
		              log_tail(harness));
	}
}

static void await_ready(struct harness *harness)
{
	harness_wait_notified(harness, "\nREADY=1\n");
	find_pid(harness);
}

static void prepare(struct harness *harness, const struct harness_options *options)
{
	*harness = (struct harness){.notify_fd = -1, .listen_fd = -1};
	if (options) {
		harness->options = *options;
	}
	if (!harness->options.devices) {
		harness->options.devices = "2x256MiB";
	}
	make_folder(harness);
	if (harness->options.config) {
		write_config(harness, harness->options.config);
	}
	harness->notify_fd = bind_to(SOCK_DGRAM, harness->notify_path);
	ck_assert_int_eq(chmod(harness->notify_path, 0777), 0);
	if (harness->options.is_activated) {
		harness->listen_fd = bind_to(SOCK_SEQPACKET, harness->socket_path);
		ck_assert_int_eq(listen(harness->listen_fd, 64), 0);
	}
	if (harness->options.keeps_fds) {
		fdkeeper_begin(&harness->fdkeeper, harness->notify_fd);
		harness->notify_fd = harness->fdkeeper.control;
	}
}

void harness_start(struct harness *harness, const struct harness_options *options)
{
	prepare(harness, options);
	spawn(harness);
	await_ready(harness);
}

int harness_start_failing(struct harness *harness, const struct harness_options *options)
{
	prepare(harness, options);
	spawn(harness);
	return harness_wait_exit(harness);
}

void harness_restart(struct harness *harness)
{
	ck_assert_int_eq(harness->pid, 0);
	if (!harness->keeper) {
		spawn(harness);
	}
	await_ready(harness);
}

/* ---- ending ---------------------------------------------------------------------------------- */

int harness_wait_exit(struct harness *harness)
{
	int status = 0;
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	pid_t *child = child_of(harness);
	while (waitpid(*child, &status, WNOHANG) == 0) {
		if (harness_now_ms() >= end_ms) {
			kill(harness->pid, SIGABRT);
			ck_abort_msg("glaked does not end\n%s", log_tail(harness));
		}
		harness_sleep_ms(POLL_MS);
	}
	*child = harness->pid = 0;
	return status;
}

void harness_leave(struct harness *harness)
{
	harness_signal(harness, SIGTERM);
	int status = harness_wait_exit(harness);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == HARNESS_LEAVES, "0x%x\n%s",
	              status, harness_log(harness));
}

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
	return remove(path);
}

static void end_keeper(struct harness *harness)
{
	if (harness->fdkeeper.pid) {
		harness->notify_fd = -1;
		fdkeeper_end(&harness->fdkeeper);
	}
}

void harness_clean(struct harness *harness)
{
	ck_assert_int_eq(harness->pid, 0);
	end_keeper(harness);
	fd_close(&harness->notify_fd);
	fd_close(&harness->listen_fd);
	nftw(harness->folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void harness_end(struct harness *harness)
{
	check_alive(harness);
	ck_assert_int_gt(*child_of(harness), 0);
	ck_assert_int_eq(kill(*child_of(harness), SIGTERM), 0);
	/* glaked leaves all to the next one. With a keeper the status is 0, as no next one will come. */
	int wanted = harness->options.keeps_fds && !harness->keeper ? HARNESS_LEAVES : 0;
	int status = harness_wait_exit(harness);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == wanted,
	              "glaked ended with status 0x%x\n%s", status, log_tail(harness));
	const char *log = harness_log(harness);
	ck_assert_msg(!strstr(log, "Assertion") && !strstr(log, "assert"), "%s", log);
	ck_assert_msg(harness->options.is_activated || harness->options.has_keeper ||
	                      access(harness->socket_path, F_OK) != 0,
	              "glaked leaves its socket");
	end_keeper(harness);
}

void harness_stop(struct harness *harness)
{
	harness_end(harness);
	harness_clean(harness);
}

void harness_kill(struct harness *harness)
{
	harness_signal(harness, SIGKILL);
	if (harness->keeper) {
		harness->pid = 0; /* the keeper reaps it */
	} else {
		harness_wait_exit(harness);
	}
}

void harness_signal(struct harness *harness, int signal)
{
	ck_assert_int_gt(harness->pid, 0);
	ck_assert_int_eq(kill(harness->pid, signal), 0);
}

void harness_reload(struct harness *harness, const char *config)
{
	ck_assert_ptr_nonnull(harness->options.config);
	write_config(harness, config);
	harness_signal(harness, SIGHUP);
	harness_wait_notified(harness, "\nRELOADING=1\n");
	harness_wait_notified(harness, "\nREADY=1\n");
}

/* ---- looking --------------------------------------------------------------------------------- */

size_t harness_n_fds(const struct harness *harness)
{
	char path[64];
	size_t n_fds = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)harness->pid);
	DIR *folder = opendir(path);
	ck_assert_msg(folder, "%s: %s\n%s", path, strerror(errno), log_tail(harness));
	for (struct dirent *entry; (entry = readdir(folder));) {
		n_fds += entry->d_name[0] != '.';
	}
	closedir(folder);
	return n_fds;
}

void harness_print_fds(const struct harness *harness)
{
	char command[64];
	snprintf(command, sizeof(command), "ls -l /proc/%d/fd >&2", (int)harness->pid);
	if (system(command) != 0) {
		fprintf(stderr, "cannot list fds\n");
	}
}

void harness_wait_n_fds(const struct harness *harness, size_t n_fds)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	size_t now;
	while ((now = harness_n_fds(harness)) != n_fds) {
		if (harness_now_ms() >= end_ms) {
			harness_print_fds(harness);
			ck_abort_msg("glaked has %zu fds, not %zu\n%s", now, n_fds,
			             log_tail(harness));
		}
		harness_sleep_ms(POLL_MS);
	}
}

size_t harness_settle_n_fds(const struct harness *harness)
{
	size_t n_fds = harness_n_fds(harness);
	uint64_t since_ms = harness_now_ms();
	uint64_t end_ms = since_ms + HARNESS_TIMEOUT_MS;
	while (harness_now_ms() - since_ms < SETTLED_MS) {
		size_t now = harness_n_fds(harness);
		if (now != n_fds) {
			n_fds = now;
			since_ms = harness_now_ms();
		}
		ck_assert_msg(since_ms < end_ms, "the fds of glaked do not settle");
		harness_sleep_ms(POLL_MS);
	}
	return n_fds;
}

uint64_t harness_rss_bytes(const struct harness *harness)
{
	char path[64];
	unsigned long long size, resident;
	snprintf(path, sizeof(path), "/proc/%d/statm", (int)harness->pid);
	FILE *file = fopen(path, "re");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_eq(fscanf(file, "%llu %llu", &size, &resident), 2);
	fclose(file);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- being somebody else --------------------------------------------------------------------- */

bool harness_is_root(void)
{
	if (geteuid() == 0) {
		return true;
	}
	printf("SKIP: needs root\n");
	return false;
}

static void become(struct harness *harness, uid_t uid, gid_t gid)
{
	ck_assert_int_eq(chdir(harness->folder), 0);
	strcpy(harness->folder, ".");
	strcpy(harness->socket_path, "glaked.sock");
	strcpy(harness->config_path, "glaked.conf");
	strcpy(harness->log_path, "log");
	strcpy(harness->notify_path, "notify");
	become_user(uid, gid);
}

static void in_child(struct harness *harness, bool becomes, uid_t uid, gid_t gid, harness_fn fn,
                     void *user)
{
	int status;
	fflush(NULL);
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		if (becomes) {
			become(harness, uid, gid);
		}
		fn(harness, user);
		fflush(NULL);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_msg(status == 0, "in a child process: status 0x%x\n%s", status,
	              log_tail(harness));
}

void harness_as(struct harness *harness, uid_t uid, gid_t gid, harness_fn fn, void *user)
{
	in_child(harness, true, uid, gid, fn, user);
}

void harness_in_child(struct harness *harness, harness_fn fn, void *user)
{
	in_child(harness, false, 0, 0, fn, user);
}
