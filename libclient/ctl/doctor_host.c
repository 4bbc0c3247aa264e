/* SPDX-License-Identifier: Apache-2.0 */
/* The doctor's look at the driver, the kernel, and this process: nothing here needs glaked. */
#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ctl/doctor.h"

/* ---- the driver ------------------------------------------------------------------------------- */

#define DRIVER_MS 20000

/* The answers of the driver, which was asked in a process of its own. */
struct driver {
	int is_open;
	int result; /* of cuInit() */
	int version;
	int n_devices;
	char text[256]; /* why it cannot be opened, or the name of the result */
};

static void *entry(void *library, const char *name)
{
	return dlsym(library, name);
}

static void start_driver(struct driver *driver)
{
	const char *name = getenv("GLAKE_LIBCUDA");
	void *library = dlopen(name && *name ? name : "libcuda.so.1", RTLD_NOW);
	if (!library) {
		snprintf(driver->text, sizeof(driver->text), "%s", dlerror());
		return;
	}
	int (*init)(unsigned) = (int (*)(unsigned))entry(library, "cuInit");
	int (*version)(int *) = (int (*)(int *))entry(library, "cuDriverGetVersion");
	int (*count)(int *) = (int (*)(int *))entry(library, "cuDeviceGetCount");
	int (*error)(int, const char **) = (int (*)(int, const char **))entry(library,
	                                                                      "cuGetErrorName");
	if (!init || !version || !count || !error) {
		snprintf(driver->text, sizeof(driver->text), "it is not a CUDA driver");
		return;
	}
	driver->is_open = 1;
	driver->result = init(0);
	version(&driver->version);
	const char *text = "";
	if (driver->result != 0) {
		error(driver->result, &text);
	} else {
		count(&driver->n_devices);
	}
	snprintf(driver->text, sizeof(driver->text), "%s", text ? text : "");
}

/* The driver's faults and threads stay in a child process. Returns whether it has answered. */
static bool ask_driver(struct driver *driver)
{
	int ends[2];
	if (pipe(ends) < 0) {
		return false;
	}
	pid_t child = fork();
	if (child == 0) {
		/* Neither under glake nor as a client of MPS. */
		setenv("GLAKE_SHIM", "off", 1);
		setenv("CUDA_MPS_PIPE_DIRECTORY", "/dev/null", 1);
		memset(driver, 0, sizeof(*driver));
		start_driver(driver);
		ssize_t n = write(ends[1], driver, sizeof(*driver));
		_exit(n != (ssize_t)sizeof(*driver));
	}
	close(ends[1]);
	struct pollfd ready = {.fd = ends[0], .events = POLLIN};
	bool is_answered = child > 0 && poll(&ready, 1, DRIVER_MS) == 1 &&
	                   read(ends[0], driver, sizeof(*driver)) == (ssize_t)sizeof(*driver);
	close(ends[0]);
	if (child > 0) {
		/* One that hangs in the driver may not end at all: it is not waited for. */
		kill(child, SIGKILL);
		waitpid(child, NULL, is_answered ? 0 : WNOHANG);
	}
	return is_answered;
}

/* The kernel's part of NVIDIA's driver: "580.95.05"; false: there is none. */
static bool read_module(char *text_out, size_t n_bytes)
{
	FILE *file = fopen("/proc/driver/nvidia/version", "re");
	char line[256] = "";
	if (!file) {
		return false;
	}
	char *read = fgets(line, sizeof(line), file);
	fclose(file);
	char *at = read;
	while (at && *at &&
	       !(isdigit((unsigned char)at[0]) && strchr(at, '.') &&
	         strspn(at, "0123456789") >= 3)) {
		at++;
	}
	size_t n = at ? strspn(at, "0123456789.") : 0;
	snprintf(text_out, n_bytes, "%.*s", (int)n, at ? at : "");
	return true;
}

/* "nvidia0", not "nvidia-uvm". */
static bool is_gpu(const char *name)
{
	return strncmp(name, "nvidia", 6) == 0 && isdigit((unsigned char)name[6]);
}

static void check_nodes(struct findings *findings)
{
	static const char *const needed[] = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
	static const char remedy[] = "nvidia-modprobe -c0 -u, as root; a container needs the nodes "
				     "passed in (--gpus)";
	bool is_good = true;
	for (size_t i = 0; i < 2; i++) {
		if (access(needed[i], R_OK | W_OK) < 0) {
			is_good = false;
			finding_add(findings, "nodes", FINDING_ERROR, remedy, "%s: %s", needed[i],
			            strerror(errno));
		}
	}
	unsigned n_gpus = 0;
	DIR *dev = opendir("/dev");
	for (struct dirent *node; dev && (node = readdir(dev));) {
		char path[300];
		snprintf(path, sizeof(path), "/dev/%s", node->d_name);
		if (is_gpu(node->d_name) && access(path, R_OK | W_OK) < 0) {
			finding_add(findings, "nodes", FINDING_WARNING,
			            "give the user the device: its group, or the node's mode",
			            "%s: %s", path, strerror(errno));
		}
		n_gpus += is_gpu(node->d_name);
	}
	if (dev) {
		closedir(dev);
	}
	if (n_gpus == 0) {
		finding_add(findings, "nodes", FINDING_ERROR, remedy, "there is no /dev/nvidia0");
	} else if (is_good) {
		finding_add(findings, "nodes", FINDING_OK, NULL,
		            "/dev/nvidiactl, /dev/nvidia-uvm and %u GPU%s", n_gpus,
		            n_gpus == 1 ? "" : "s");
	}
}

void doctor_check_driver(struct findings *findings)
{
	char module[64] = "";
	struct driver driver;
	bool has_module = read_module(module, sizeof(module));
	if (!ask_driver(&driver)) {
		finding_add(findings, "driver", FINDING_ERROR,
		            "see dmesg for Xid; reset the GPU, or start the host again",
		            "the CUDA driver does not answer");
		return;
	}
	if (!driver.is_open) {
		finding_add(findings, "driver", FINDING_ERROR,
		            "install the driver; a container needs its libraries (--gpus, the "
		            "NVIDIA runtime)",
		            "%s", driver.text);
	} else if (driver.result != 0) {
		finding_add(findings, "driver", FINDING_ERROR,
		            strcmp(driver.text, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH") == 0
		                    ? "the driver was upgraded: load its module anew, or start "
		                      "the host again"
		                    : "see the device nodes below, and dmesg for Xid",
		            "the CUDA driver does not start: %s", driver.text);
	} else {
		finding_add(findings, "driver", driver.n_devices > 0 ? FINDING_OK : FINDING_ERROR,
		            driver.n_devices > 0 ? NULL : "is CUDA_VISIBLE_DEVICES empty?",
		            "CUDA %d.%d%s%s, %d device%s", driver.version / 1000,
		            driver.version % 1000 / 10, has_module ? ", module " : "", module,
		            driver.n_devices, driver.n_devices == 1 ? "" : "s");
	}
	bool works = driver.is_open && driver.result == 0;
	if (!works && !has_module) {
		finding_add(findings, "module", FINDING_ERROR, "modprobe nvidia, as root",
		            "the kernel module nvidia is not loaded");
	}
	/* A driver that works without them is another one. */
	if (has_module || !works) {
		check_nodes(findings);
	}
}

void doctor_check_mps(struct findings *findings)
{
	const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char path[512];
	snprintf(path, sizeof(path), "%s/control", folder && *folder ? folder : "/tmp/nvidia-mps");
	if (access(path, F_OK) == 0) {
		finding_add(findings, "mps", FINDING_WARNING,
		            "share no MPS server between tenants; seal in the program itself",
		            "programs of this environment are clients of MPS (%s): a fault of one "
		            "ends all, and none is sealed from outside",
		            path);
	} else {
		finding_add(findings, "mps", FINDING_OK, NULL, "no MPS server");
	}
}

/* ---- the kernel and this process -------------------------------------------------------------- */

void doctor_check_kernel(struct findings *findings)
{
	struct utsname name;
	unsigned major = 0;
	unsigned minor = 0;
	uname(&name);
	sscanf(name.release, "%u.%u", &major, &minor);
	long pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	if (pidfd < 0) {
		finding_add(findings, "kernel", FINDING_ERROR,
		            "Linux 5.4 or newer, and a seccomp profile that permits pidfd_open",
		            "%s: pidfd_open: %s", name.release, strerror(errno));
		return;
	}
	close((int)pidfd);
	if (syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0) < 0) {
		finding_add(findings, "kernel", FINDING_NOTE,
		            "a seccomp profile that permits membarrier",
		            "%s: membarrier: %s; launches under glake run cost some ns more",
		            name.release, strerror(errno));
	} else if (major < 6 || (major == 6 && minor < 8)) {
		finding_add(findings, "kernel", FINDING_NOTE,
		            "Linux 6.8 or newer, or trust_file_times",
		            "%s has no unique mount ids: models may be loaded again at each open",
		            name.release);
	} else {
		finding_add(findings, "kernel", FINDING_OK, NULL, "%s", name.release);
	}
}

void doctor_check_limits(struct findings *findings)
{
	struct rlimit files;
	struct rlimit locked;
	getrlimit(RLIMIT_NOFILE, &files);
	getrlimit(RLIMIT_MEMLOCK, &locked);
	/* A client has an fd for each handle that it maps only while it maps it; but models have many. */
	bool is_low = files.rlim_max < 4096;
	char text[32] = "any amount";
	if (locked.rlim_cur != RLIM_INFINITY) {
		snprintf(text, sizeof(text), "%llu KiB",
		         (unsigned long long)locked.rlim_cur / 1024);
	}
	finding_add(findings, "limits", is_low ? FINDING_WARNING : FINDING_OK,
	            is_low ? "ulimit -Hn 65536: /etc/security/limits.conf, LimitNOFILE= of the "
	                     "unit, --ulimit nofile= of the container"
	                   : NULL,
	            "a program started here may open %llu files (soft limit %llu) and lock %s of "
	            "memory",
	            (unsigned long long)files.rlim_max, (unsigned long long)files.rlim_cur, text);
}

void doctor_check_cgroup(struct findings *findings, const char *path)
{
	char line[4096];
	if (doctor_read_line(path, "0::/", line, sizeof(line))) {
		finding_add(findings, "cgroup", FINDING_OK, NULL, "this process is in %s",
		            line + 3);
	} else {
		finding_add(findings, "cgroup", FINDING_NOTE,
		            "systemd.unified_cgroup_hierarchy=1 on the kernel's command line, or "
		            "tenants by users and groups",
		            "no unified hierarchy: tenants.cgroup names nobody");
	}
}

/* ---- subordinate uids ------------------------------------------------------------------------- */

#define MAX_RANGES 4096u

struct range {
	char owner[64];
	unsigned long long first;
	unsigned long long n;
};

static size_t read_ranges(FILE *file, struct range *ranges)
{
	char line[512];
	size_t n = 0;
	while (n < MAX_RANGES && fgets(line, sizeof(line), file)) {
		struct range *range = &ranges[n];
		if (sscanf(line, "%63[^:#]:%llu:%llu", range->owner, &range->first, &range->n) ==
		            3 &&
		    range->n > 0) {
			n++;
		}
	}
	return n;
}

static int by_first(const void *a, const void *b)
{
	const struct range *left = a;
	const struct range *right = b;
	return left->first < right->first ? -1 : left->first > right->first;
}

void doctor_check_subuids(struct findings *findings, const char *path)
{
	FILE *file = fopen(path, "re");
	struct range *ranges = calloc(MAX_RANGES, sizeof(*ranges));
	size_t n = file && ranges ? read_ranges(file, ranges) : 0;
	bool is_good = true;
	if (file) {
		fclose(file);
	}
	if (n > 0) {
		qsort(ranges, n, sizeof(*ranges), by_first);
	}
	for (size_t i = 1; i < n; i++) {
		const struct range *before = &ranges[i - 1];
		const struct range *range = &ranges[i];
		if (range->first < before->first + before->n &&
		    strcmp(range->owner, before->owner) != 0) {
			is_good = false;
			finding_add(findings, "subuids", FINDING_WARNING,
			            "give each user a range of its own: such a uid counts as a "
			            "user of its own",
			            "%s: the ranges of %s and %s overlap at %llu", path,
			            before->owner, range->owner, range->first);
		}
	}
	if (is_good) {
		finding_add(findings, "subuids", FINDING_OK, NULL, "%zu range%s in %s", n,
		            n == 1 ? "" : "s", path);
	}
	free(ranges);
}
