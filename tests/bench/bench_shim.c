/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the shim costs: the same calls in a process without it, with it, and with it switched off.
 *
 *   start      cuInit(), a context and the first cuMemAlloc(), from the first call on
 *   call       cuCtxGetCurrent(): what an entry adds to a call that is not hooked
 *   launch     an empty kernel; no hook either
 *   alloc      cuMemAlloc() and cuMemFree() as a pair, nothing running, by size
 *   async      cuMemAllocAsync() and cuMemFreeAsync() as a pair, on a stream of its own, nothing
 *              running, from a pool that keeps what is freed
 *   cold       the first cuMemAlloc() of 1 GiB
 *   info       cuMemGetInfo()
 *
 *   bench_shim [RUNS]
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/bench.h"

#define N_CALLS 2000000u
#define N_LAUNCHES 100000u
#define N_PAIRS 2000u
#define N_INFOS 100u

static const char empty_kernel[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
				   ".visible .entry empty()\n{\n\tret;\n}\n";

static const struct {
	const char *name;
	const char *unit;
	const char *target;
} numbers[] = {
	{"start", "ms", "+30 at most"},    {"call", "ns", "+10 at most"},
	{"launch", "ns", "+10 at most"},   {"alloc 64 KiB", "us", ""},
	{"alloc 2 MiB", "us", "2"},        {"alloc 64 MiB", "us", "2"},
	{"async 64 KiB", "us", "driver"},  {"async 64 MiB", "us", "driver"},
	{"cold 1 GiB alloc", "us", "150"}, {"info", "us", ""},
};
#define N_NUMBERS (sizeof(numbers) / sizeof(numbers[0]))

/* ---- in the child: measure, print one number a line -------------------------------------------- */

struct cu {
	void *library;
	__typeof__(cuInit) *init;
	__typeof__(cuDevicePrimaryCtxRetain) *retain;
	__typeof__(cuCtxSetCurrent) *set_current;
	__typeof__(cuCtxGetCurrent) *get_current;
	__typeof__(cuCtxSynchronize) *synchronize;
	__typeof__(cuMemAlloc) *alloc;
	__typeof__(cuMemFree) *free;
	__typeof__(cuMemGetInfo) *info;
	__typeof__(cuStreamCreate) *new_stream;
	__typeof__(cuMemAllocAsync) *alloc_async;
	__typeof__(cuMemFreeAsync) *free_async;
	__typeof__(cuDeviceGetDefaultMemPool) *default_pool;
	__typeof__(cuMemPoolSetAttribute) *set_pool;
	__typeof__(cuModuleLoadData) *load;
	__typeof__(cuModuleGetFunction) *get_function;
	__typeof__(cuLaunchKernel) *launch;
};

static void *find(const struct cu *cu, const char *name)
{
	void *found = dlsym(cu->library, name);
	if (!found) {
		bench_fail("the driver has no %s", name);
	}
	return found;
}

static void must(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		bench_fail("%s: error %d", what, (int)result);
	}
}

static void open_driver(struct cu *cu, bool is_shimmed)
{
	const char *path = getenv("GLAKE_LIBCUDA");
	/* By name it is the shim, whose SONAME that is. */
	cu->library = dlopen(is_shimmed || !path ? "libcuda.so.1" : path, RTLD_NOW);
	if (!cu->library) {
		bench_fail("%s", dlerror());
	}
	cu->init = find(cu, "cuInit");
	cu->retain = find(cu, "cuDevicePrimaryCtxRetain");
	cu->set_current = find(cu, "cuCtxSetCurrent");
	cu->get_current = find(cu, "cuCtxGetCurrent");
	cu->synchronize = find(cu, "cuCtxSynchronize");
	cu->alloc = find(cu, "cuMemAlloc_v2");
	cu->free = find(cu, "cuMemFree_v2");
	cu->info = find(cu, "cuMemGetInfo_v2");
	cu->new_stream = find(cu, "cuStreamCreate");
	cu->alloc_async = find(cu, "cuMemAllocAsync");
	cu->free_async = find(cu, "cuMemFreeAsync");
	cu->default_pool = find(cu, "cuDeviceGetDefaultMemPool");
	cu->set_pool = find(cu, "cuMemPoolSetAttribute");
	cu->load = find(cu, "cuModuleLoadData");
	cu->get_function = find(cu, "cuModuleGetFunction");
	cu->launch = find(cu, "cuLaunchKernel");
}

static void print(double value)
{
	printf("%.6f\n", value);
}

static void measure_start(const struct cu *cu)
{
	CUcontext ctx;
	CUdeviceptr ptr;
	uint64_t begin_ns = bench_now_ns();
	must(cu->init(0), "cuInit");
	must(cu->retain(&ctx, 0), "cuDevicePrimaryCtxRetain");
	must(cu->set_current(ctx), "cuCtxSetCurrent");
	must(cu->alloc(&ptr, 1024), "cuMemAlloc");
	print((double)(bench_now_ns() - begin_ns) / 1e6);
}

static void measure_call(const struct cu *cu)
{
	CUcontext ctx;
	uint64_t begin_ns = bench_now_ns();
	for (unsigned i = 0; i < N_CALLS; i++) {
		cu->get_current(&ctx);
	}
	print((double)(bench_now_ns() - begin_ns) / N_CALLS);
}

static void measure_launch(const struct cu *cu)
{
	CUmodule module;
	CUfunction function;
	if (cu->load(&module, empty_kernel) != CUDA_SUCCESS ||
	    cu->get_function(&function, module, "empty") != CUDA_SUCCESS) {
		print(0);
		return;
	}
	uint64_t spent_ns = 0;
	for (unsigned i = 0; i < N_LAUNCHES / 500; i++) {
		uint64_t begin_ns = bench_now_ns();
		for (unsigned j = 0; j < 500; j++) {
			must(cu->launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "launch");
		}
		spent_ns += bench_now_ns() - begin_ns;
		must(cu->synchronize(), "cuCtxSynchronize");
	}
	print((double)spent_ns / N_LAUNCHES);
}

static void measure_pairs(const struct cu *cu, uint64_t n_bytes)
{
	struct bench_samples samples = {0};
	for (unsigned i = 0; i < N_PAIRS; i++) {
		CUdeviceptr ptr;
		uint64_t begin_ns = bench_now_ns();
		must(cu->alloc(&ptr, n_bytes), "cuMemAlloc");
		must(cu->free(ptr), "cuMemFree");
		bench_samples_add(&samples, bench_now_ns() - begin_ns);
	}
	print((double)bench_percentile(&samples, 50) / 1e3);
	bench_samples_deinit(&samples);
}

static void measure_async(const struct cu *cu, uint64_t n_bytes)
{
	CUstream stream;
	CUmemoryPool pool;
	cuuint64_t keep_bytes = UINT64_MAX;
	must(cu->new_stream(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	must(cu->default_pool(&pool, 0), "cuDeviceGetDefaultMemPool");
	must(cu->set_pool(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_bytes),
	     "cuMemPoolSetAttribute");
	struct bench_samples samples = {0};
	for (unsigned i = 0; i < N_PAIRS; i++) {
		CUdeviceptr ptr;
		uint64_t begin_ns = bench_now_ns();
		must(cu->alloc_async(&ptr, n_bytes, stream), "cuMemAllocAsync");
		must(cu->free_async(ptr, stream), "cuMemFreeAsync");
		bench_samples_add(&samples, bench_now_ns() - begin_ns);
		if (i % 100 == 99) {
			must(cu->synchronize(), "cuCtxSynchronize");
		}
	}
	print((double)bench_percentile(&samples, 50) / 1e3);
	bench_samples_deinit(&samples);
}

static void measure_cold(const struct cu *cu)
{
	CUdeviceptr ptr;
	uint64_t begin_ns = bench_now_ns();
	CUresult result = cu->alloc(&ptr, GIB);
	uint64_t spent_ns = bench_now_ns() - begin_ns;
	if (result != CUDA_SUCCESS) {
		print(0);
		return;
	}
	must(cu->free(ptr), "cuMemFree");
	print((double)spent_ns / 1e3);
}

static void measure_info(const struct cu *cu)
{
	size_t free_bytes;
	size_t total_bytes;
	uint64_t begin_ns = bench_now_ns();
	for (unsigned i = 0; i < N_INFOS; i++) {
		must(cu->info(&free_bytes, &total_bytes), "cuMemGetInfo");
	}
	print((double)(bench_now_ns() - begin_ns) / N_INFOS / 1e3);
}

static int measure(bool is_shimmed)
{
	struct cu cu;
	open_driver(&cu, is_shimmed);
	measure_start(&cu);
	measure_call(&cu);
	measure_launch(&cu);
	measure_pairs(&cu, 64 * KIB);
	measure_pairs(&cu, 2 * MIB);
	measure_pairs(&cu, 64 * MIB);
	measure_async(&cu, 64 * KIB);
	measure_async(&cu, 64 * MIB);
	measure_cold(&cu);
	measure_info(&cu);
	fflush(stdout);
	/* Without the driver's own farewell. */
	_exit(0);
}

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

/* One child; its numbers are added to the samples. */
static void run_child(const char *shim, const char *variable, struct bench_samples *samples)
{
	int ends[2];
	if (pipe(ends) < 0) {
		bench_fail("no pipe");
	}
	pid_t pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDOUT_FILENO);
		if (shim) {
			setenv("LD_PRELOAD", shim, 1);
		}
		if (variable) {
			setenv(variable, "off", 1);
		}
		execl("/proc/self/exe", "bench_shim", shim ? "--shimmed" : "--plain", NULL);
		_exit(127);
	}
	close(ends[1]);
	FILE *output = fdopen(ends[0], "r");
	double value;
	size_t n = 0;
	while (output && n < N_NUMBERS && fscanf(output, "%lf", &value) == 1) {
		bench_samples_add(&samples[n++], (uint64_t)(value * 1000));
	}
	int status;
	if (output) {
		fclose(output);
	}
	waitpid(pid, &status, 0);
	if (n != N_NUMBERS || status != 0) {
		bench_fail("the measuring process ended with status 0x%x", (unsigned)status);
	}
}

static double median(struct bench_samples *samples)
{
	return (double)bench_percentile(samples, 50) / 1000;
}

int main(int argc, char **argv)
{
	struct bench_samples plain[N_NUMBERS] = {0};
	struct bench_samples shimmed[N_NUMBERS] = {0};
	struct bench_samples off[N_NUMBERS] = {0};
	struct bench_daemon daemon;
	char shim[PATH_MAX];
	if (argc > 1 && strncmp(argv[1], "--", 2) == 0) {
		return measure(strcmp(argv[1], "--shimmed") == 0);
	}
	unsigned n_runs = argc > 1 ? (unsigned)atoi(argv[1]) : 3;
	bench_begin("shim", "1x2GiB");
	find_shim(shim);
	bench_daemon_start(&daemon, "");
	for (unsigned i = 0; i < n_runs; i++) {
		run_child(NULL, NULL, plain);
		run_child(shim, NULL, shimmed);
		run_child(shim, "GLAKE_SHIM", off);
	}
	for (size_t i = 0; i < N_NUMBERS; i++) {
		bench_print(numbers[i].name, "driver %.2f  shim %.2f  off %.2f %s%s%s%s",
		            median(&plain[i]), median(&shimmed[i]), median(&off[i]),
		            numbers[i].unit, *numbers[i].target ? "  (target " : "",
		            numbers[i].target, *numbers[i].target ? ")" : "");
		bench_samples_deinit(&plain[i]);
		bench_samples_deinit(&shimmed[i]);
		bench_samples_deinit(&off[i]);
	}
	bench_daemon_stop(&daemon);
	return 0;
}
