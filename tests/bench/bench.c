/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/bench.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "glake.h"
#include "proto/cleanup.h"

#define START_MS 60000
#define STOP_MS 60000
#define CALM_US 300000
#define CALM_TRIES 20
#define LABEL_COLUMNS 44

static char folder[PATH_MAX];
static pid_t owner; /* of the folder: not a child that was forked */
static bool is_simulated;

/* ---- ends ------------------------------------------------------------------------------------ */

void bench_fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	fflush(stdout);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	exit(1);
}

double bench_number(int argc, char **argv, int i, double fallback)
{
	if (i >= argc) {
		return fallback;
	}
	char *end;
	double number = strtod(argv[i], &end);
	if (end == argv[i] || *end != '\0' || !(number > 0)) {
		bench_fail("%s is not a number greater than 0", argv[i]);
	}
	return number;
}

void bench_check(int err, const char *what)
{
	if (err < 0) {
		bench_fail("%s: %s: %s", what, glake_strerror(err), glake_error());
	}
}

void bench_check_cuda(const struct cudrv *drv, CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		bench_fail("%s: %s", what, cudrv_error(drv, result));
	}
}

static int remove_entry(const char *path, const struct stat *stat, int type, struct FTW *where)
{
	remove(path);
	return 0;
}

static void remove_folder(void)
{
	if (getpid() == owner) {
		nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	}
}

/* ---- the beginning --------------------------------------------------------------------------- */

uint64_t bench_now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t bench_random(uint64_t *state)
{
	/* splitmix64 */
	uint64_t word = (*state += 0x9e3779b97f4a7c15u);
	word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
	word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
	return word ^ (word >> 31);
}

/* A file of the tree this program is in: build/ or an unpacked tarball, both of one layout. */
static void beside(const char *name, char path_out[PATH_MAX])
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (n < 0) {
		bench_fail("readlink: %s", strerror(errno));
	}
	self[n] = '\0';
	for (int i = 0; i < 3; i++) {
		char *slash = strrchr(self, '/');
		if (slash) {
			*slash = '\0';
		}
	}
	if (snprintf(path_out, PATH_MAX, "%s/%s", self, name) >= PATH_MAX) {
		bench_fail("%s: the path is too long", self);
	}
}

/* In a process of its own: a driver that was started once stays, with its threads and files. */
static bool system_has_device(void)
{
	pid_t child = fork();
	if (child == 0) {
		struct cudrv drv;
		int n_devices = 0;
		unsetenv("GLAKE_LIBCUDA");
		_exit(cudrv_open(&drv, NULL, NULL, 0) == 0 && drv.cuInit(0) == CUDA_SUCCESS &&
		                      drv.cuDeviceGetCount(&n_devices) == CUDA_SUCCESS &&
		                      n_devices > 0
		              ? 0
		              : 1);
	}
	int status = 1;
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static void choose_driver(const char *sim_devices)
{
	char path[PATH_MAX];
	const char *asked = getenv("GLAKE_LIBCUDA");
	if (!asked && !system_has_device()) {
		beside("cudasim/libcuda.so.1", path);
		setenv("GLAKE_LIBCUDA", path, 1);
		asked = path;
	}
	is_simulated = asked && strstr(asked, "cudasim");
	if (!is_simulated) {
		return;
	}
	/* A registry of our own, shared with our daemon. */
	if (snprintf(path, sizeof(path), "%s/cudasim", folder) < (int)sizeof(path)) {
		setenv("CUDASIM_STATE", path, 1);
	}
	if (sim_devices) {
		setenv("CUDASIM_DEVICES", sim_devices, 0);
	}
}

void bench_begin(const char *name, const char *sim_devices)
{
	const char *parent = getenv("TMPDIR");
	struct rlimit limit;
	cpu_set_t cpus;
	setvbuf(stdout, NULL, _IOLBF, 0);
	snprintf(folder, sizeof(folder), "%s/glake-bench.XXXXXX",
	         parent && *parent ? parent : "/tmp");
	if (!mkdtemp(folder)) {
		bench_fail("%s: %s", folder, strerror(errno));
	}
	owner = getpid();
	atexit(remove_folder);
	choose_driver(sim_devices);
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	CPU_ZERO(&cpus);
	sched_getaffinity(0, sizeof(cpus), &cpus);
	const char *libcuda = getenv("GLAKE_LIBCUDA");
	printf("%s: glake %s, %d cores, driver %s\n", name, glake_version(), CPU_COUNT(&cpus),
	       is_simulated                  ? "cudasim"
	       : libcuda && *libcuda != '\0' ? libcuda
	                                     : "of the system");
}

bool bench_is_simulated(void)
{
	return is_simulated;
}

const char *bench_folder(void)
{
	return folder;
}

void bench_open_cuda(struct cudrv *drv)
{
	char error[512] = "";
	CUcontext context;
	if (cudrv_open(drv, NULL, error, sizeof(error)) < 0) {
		bench_fail("%s", error);
	}
	bench_check_cuda(drv, drv->cuInit(0), "cuInit");
	bench_check_cuda(drv, drv->cuDevicePrimaryCtxRetain(&context, 0), "the primary context");
	bench_check_cuda(drv, drv->cuCtxSetCurrent(context), "the primary context");
}

/* ---- a daemon -------------------------------------------------------------------------------- */

static void path_in_folder(const char *name, char *path_out, size_t path_bytes)
{
	if (snprintf(path_out, path_bytes, "%s/%s", folder, name) >= (int)path_bytes) {
		bench_fail("%s: the path is too long: set TMPDIR to a shorter one", folder);
	}
}

static void write_config(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");
	if (!file || fputs(text, file) < 0 || fclose(file) != 0) {
		bench_fail("%s: %s", path, strerror(errno));
	}
}

static void show_log(void)
{
	char path[PATH_MAX];
	char line[1200];
	path_in_folder("glaked.log", path, sizeof(path));
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		fputs(line, stderr);
	}
	if (file) {
		fclose(file);
	}
}

/* Where glaked says that it is ready. */
static int open_notify(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	unlink(path);
	strcpy(address.sun_path, path);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		bench_fail("%s: %s", path, strerror(errno));
	}
	return fd;
}

static void __attribute__((noreturn))
run_daemon(const char *config_path, const char *socket_path, const char *notify_path)
{
	char program[PATH_MAX];
	char log_path[PATH_MAX];
	const char *asked = getenv("GLAKED");
	if (asked && *asked) {
		snprintf(program, sizeof(program), "%s", asked);
	} else {
		beside("bin/glaked", program);
	}
	path_in_folder("glaked.log", log_path, sizeof(log_path));
	int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	dup2(log, STDERR_FILENO);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setenv("NOTIFY_SOCKET", notify_path, 1);
	unsetenv("WATCHDOG_USEC");
	unsetenv("LISTEN_FDS");
	execl(program, program, "--config", config_path, "--socket", socket_path, NULL);
	fprintf(stderr, "%s: %s\n", program, strerror(errno));
	_exit(127);
}

static bool is_dead(pid_t pid, int *status_out)
{
	return waitpid(pid, status_out, WNOHANG) == pid;
}

static void wait_until_ready(pid_t pid, int notify)
{
	uint64_t deadline_ns = bench_now_ns() + START_MS * 1000000ull;
	struct pollfd waiting = {.fd = notify, .events = POLLIN};
	char text[512];
	int status;
	while (bench_now_ns() < deadline_ns) {
		if (poll(&waiting, 1, 100) == 1) {
			ssize_t n = recv(notify, text, sizeof(text) - 1, 0);
			text[n > 0 ? n : 0] = '\0';
			if (strstr(text, "READY=1")) {
				return;
			}
		} else if (is_dead(pid, &status)) {
			show_log();
			bench_fail("glaked does not start (status 0x%x)", (unsigned)status);
		}
	}
	show_log();
	bench_fail("glaked does not get ready");
}

void bench_daemon_start(struct bench_daemon *daemon, const char *config)
{
	char config_path[PATH_MAX];
	char notify_path[sizeof(daemon->socket_path)];
	path_in_folder("glaked.conf", config_path, sizeof(config_path));
	path_in_folder("glaked.sock", daemon->socket_path, sizeof(daemon->socket_path));
	path_in_folder("notify", notify_path, sizeof(notify_path));
	write_config(config_path, config);
	cleanup_fd int notify = open_notify(notify_path);
	fflush(NULL);
	uint64_t begin_ns = bench_now_ns();
	daemon->pid = fork();
	if (daemon->pid == 0) {
		run_daemon(config_path, daemon->socket_path, notify_path);
	}
	if (daemon->pid < 0) {
		bench_fail("fork: %s", strerror(errno));
	}
	wait_until_ready(daemon->pid, notify);
	daemon->start_ns = bench_now_ns() - begin_ns;
	setenv("GLAKE_SOCKET", daemon->socket_path, 1);
}

void bench_daemon_stop(struct bench_daemon *daemon)
{
	uint64_t deadline_ns = bench_now_ns() + STOP_MS * 1000000ull;
	int status;
	kill(daemon->pid, SIGTERM);
	while (!is_dead(daemon->pid, &status)) {
		if (bench_now_ns() > deadline_ns) {
			show_log();
			bench_fail("glaked does not end");
		}
		usleep(1000);
	}
	if (status != 0) {
		show_log();
		bench_fail("glaked ended with status 0x%x", (unsigned)status);
	}
}

static uint64_t count_fds(pid_t pid)
{
	char path[64];
	uint64_t n = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *list = opendir(path);
	while (list && readdir(list)) {
		n++;
	}
	if (list) {
		closedir(list);
	}
	return n > 2 ? n - 2 : 0;
}

struct bench_process bench_process_now(pid_t pid)
{
	struct bench_process process = {.n_fds = count_fds(pid)};
	char path[64];
	char line[256];
	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file) {
		bench_fail("%s: %s", path, strerror(errno));
	}
	while (fgets(line, sizeof(line), file)) {
		unsigned long long kib;
		if (sscanf(line, "Rss: %llu", &kib) == 1) {
			process.rss_bytes = kib * KIB;
		} else if (sscanf(line, "Pss: %llu", &kib) == 1) {
			process.pss_bytes = kib * KIB;
		} else if (sscanf(line, "Private_Dirty: %llu", &kib) == 1) {
			process.private_bytes = kib * KIB;
		}
	}
	fclose(file);
	return process;
}

struct bench_process bench_process_calm(pid_t pid)
{
	struct bench_process last = bench_process_now(pid);
	for (int i = 0; i < CALM_TRIES; i++) {
		usleep(CALM_US);
		struct bench_process now = bench_process_now(pid);
		if (now.n_fds == last.n_fds && now.private_bytes == last.private_bytes) {
			return now;
		}
		last = now;
	}
	return last;
}

/* ---- numbers --------------------------------------------------------------------------------- */

void bench_samples_add(struct bench_samples *samples, uint64_t value)
{
	if (samples->n == samples->capacity) {
		samples->capacity = samples->capacity ? 2 * samples->capacity : 1024;
		samples->values = realloc(samples->values,
		                          samples->capacity * sizeof(samples->values[0]));
		if (!samples->values) {
			bench_fail("no memory");
		}
	}
	samples->values[samples->n++] = value;
}

void bench_samples_deinit(struct bench_samples *samples)
{
	free(samples->values);
	*samples = (struct bench_samples){0};
}

static int compare_values(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a;
	uint64_t right = *(const uint64_t *)b;
	return (left > right) - (left < right);
}

uint64_t bench_percentile(struct bench_samples *samples, double percent)
{
	if (samples->n == 0) {
		return 0;
	}
	qsort(samples->values, samples->n, sizeof(samples->values[0]), compare_values);
	size_t i = (size_t)((double)(samples->n - 1) * percent / 100 + 0.5);
	return samples->values[i];
}

void bench_print(const char *label, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	printf("  %-*s", LABEL_COLUMNS, label);
	vprintf(format, arguments);
	putchar('\n');
	va_end(arguments);
}

void bench_print_latency(const char *label, struct bench_samples *samples)
{
	bench_print(label, "p50 %.1f  p90 %.1f  p99 %.1f  max %.0f us  (%zu)",
	            (double)bench_percentile(samples, 50) / 1e3,
	            (double)bench_percentile(samples, 90) / 1e3,
	            (double)bench_percentile(samples, 99) / 1e3,
	            (double)bench_percentile(samples, 100) / 1e3, samples->n);
}

void bench_print_runs(const char *label, struct bench_samples *samples, double divisor,
                      const char *unit)
{
	bench_print(label, "%.4g (%.4g .. %.4g) %s, %zu runs",
	            (double)bench_percentile(samples, 50) / divisor,
	            (double)bench_percentile(samples, 0) / divisor,
	            (double)bench_percentile(samples, 100) / divisor, unit, samples->n);
}
