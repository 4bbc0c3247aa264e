/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/shimmed.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const shimmed_ways[SHIMMED_N_WAYS] = {"driver", "shim", "off"};

/* ---- in the parent ---------------------------------------------------------------------------- */

static void find_shim(char path_out[PATH_MAX])
{
	char self[PATH_MAX] = "";
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
		bench_fail("/proc/self/exe cannot be read");
	}
	for (int i = 0; i < 3; i++) {
		char *slash = strrchr(self, '/');
		if (slash) {
			*slash = '\0';
		}
	}
	snprintf(path_out, PATH_MAX, "%.*s/lib/glake/libglake-shim.so", PATH_MAX - 64, self);
	if (access(path_out, R_OK) < 0) {
		bench_fail("there is no %s", path_out);
	}
}

void shimmed_start(struct shimmed *child, enum shimmed_way way, const char *what)
{
	char shim[PATH_MAX];
	int from_child[2];
	int to_child[2];
	find_shim(shim);
	if (pipe2(from_child, O_CLOEXEC) < 0 || pipe2(to_child, O_CLOEXEC) < 0) {
		bench_fail("no pipe");
	}
	fflush(NULL);
	child->pid = fork();
	if (child->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(to_child[0], STDIN_FILENO);
		dup2(from_child[1], STDOUT_FILENO);
		if (way != SHIMMED_NOT) {
			setenv("LD_PRELOAD", shim, 1);
		}
		if (way == SHIMMED_OFF) {
			setenv("GLAKE_SHIM", "off", 1);
		}
		execl("/proc/self/exe", program_invocation_short_name, "--measure", what,
		      shimmed_ways[way], NULL);
		_exit(127);
	}
	close(from_child[1]);
	close(to_child[0]);
	child->output = fdopen(from_child[0], "r");
	child->go = to_child[1];
	if (child->pid < 0 || !child->output) {
		bench_fail("no process");
	}
}

void shimmed_await(struct shimmed *child)
{
	char line[32];
	if (!fgets(line, sizeof(line), child->output) || strcmp(line, "ready\n") != 0) {
		bench_fail("a measuring process does not get ready");
	}
}

void shimmed_let_go(struct shimmed *child)
{
	if (write(child->go, "", 1) != 1) {
		bench_fail("a measuring process has ended");
	}
}

void shimmed_collect(struct shimmed *child, struct bench_samples *samples, size_t n_numbers)
{
	size_t number;
	uint64_t value;
	while (fscanf(child->output, "%zu %" SCNu64, &number, &value) == 2) {
		if (number >= n_numbers) {
			bench_fail("there is no number %zu", number);
		}
		bench_samples_add(&samples[number], value);
	}
}

void shimmed_end(struct shimmed *child)
{
	int status;
	close(child->go);
	fclose(child->output);
	if (waitpid(child->pid, &status, 0) != child->pid || status != 0) {
		bench_fail("a measuring process ended with status 0x%x", (unsigned)status);
	}
}

/* ---- in the child ----------------------------------------------------------------------------- */

void shimmed_must(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		bench_fail("%s: error %d", what, (int)result);
	}
}

const char *shimmed_what(int argc, char **argv)
{
	return argc == 4 && strcmp(argv[1], "--measure") == 0 ? argv[2] : NULL;
}

static void open_path(struct cu *cu, const char *path)
{
	cu->library = dlopen(path, RTLD_NOW);
	if (!cu->library) {
		bench_fail("%s", dlerror());
	}
#define CALL(name, symbol) \
	cu->name = (__typeof__(cu->name))dlsym(cu->library, #symbol); \
	if (!cu->name) { \
		bench_fail("the driver has no %s", #symbol); \
	}
#include "tests/bench/shimmed.def"
}

void shimmed_open(struct cu *cu, int argc, char **argv)
{
	const char *path = getenv("GLAKE_LIBCUDA");
	bool is_shimmed = strcmp(argv[argc - 1], shimmed_ways[SHIMMED_NOT]) != 0;
	/* By name it is the shim, whose SONAME that is. */
	open_path(cu, is_shimmed || !path ? "libcuda.so.1" : path);
}

/* The driver among what is loaded, which is not the shim. */
static int find_real(struct dl_phdr_info *info, size_t n_bytes, void *user)
{
	const char *slash = strrchr(info->dlpi_name, '/');
	if (!slash || strncmp(slash, "/libcuda.so", 11) != 0) {
		return 0;
	}
	snprintf(user, PATH_MAX, "%s", info->dlpi_name);
	return 1;
}

void shimmed_open_real(struct cu *cu)
{
	char path[PATH_MAX] = "";
	dl_iterate_phdr(find_real, path);
	open_path(cu, path);
	if (dlsym(cu->library, "glake_shim_count")) {
		bench_fail("%s is not the driver", path);
	}
}

void shimmed_start_cuda(const struct cu *cu)
{
	CUcontext ctx;
	shimmed_must(cu->init(0), "cuInit");
	shimmed_must(cu->retain(&ctx, 0), "cuDevicePrimaryCtxRetain");
	shimmed_must(cu->set_current(ctx), "cuCtxSetCurrent");
}

void shimmed_wait(void)
{
	char byte;
	puts("ready");
	fflush(stdout);
	if (read(STDIN_FILENO, &byte, 1) != 1) {
		bench_fail("nobody says go");
	}
}

void shimmed_send(size_t number, uint64_t value)
{
	printf("%zu %" PRIu64 "\n", number, value);
}

void shimmed_done(void)
{
	char byte;
	puts("done");
	fflush(stdout);
	(void)!read(STDIN_FILENO, &byte, 1);
	_exit(0);
}
