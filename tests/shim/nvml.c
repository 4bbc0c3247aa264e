/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that asks NVML, as others do, about memory and who has it.
 *
 *   nvml SCENARIO...
 *
 * It opens libnvidia-ml.so.1 and libcuda.so.1 by name, prints its findings, one line each, and ends
 * with 0, or with 1 and a line on stderr. With several scenarios it does one after the other.
 */
#include <cuda.h>
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/must.h"

#define MIB (1ull << 20)
#define N_THREADS 8

/* Structures of nvml.h. */
struct memory {
	uint64_t total;
	uint64_t free;
	uint64_t used;
};

struct memory_v2 {
	uint32_t version;
	uint64_t total;
	uint64_t reserved;
	uint64_t free;
	uint64_t used;
};

struct detail_list {
	uint32_t version;
	uint32_t mode;
	uint32_t n_rows;
	void *rows;
};

#define MEMORY_V2 0x02000028u
#define DETAIL_LIST_V1 0x01000018u

/* ---- the ways in ---- */

static void *open_by_name(const char *name)
{
	void *library = dlopen(name, RTLD_NOW);
	if (!library) {
		printf("no %s\n", name);
		fflush(stdout);
		_exit(0);
	}
	return library;
}

static void *nvml(const char *symbol)
{
	void *call = dlsym(open_by_name("libnvidia-ml.so.1"), symbol);
	must(call);
	return call;
}

#define cu(symbol) ((__typeof__(&symbol))dlsym(open_by_name("libcuda.so.1"), #symbol))
#define must_cuda(symbol, ...) must(cu(symbol)(__VA_ARGS__) == CUDA_SUCCESS)
#define call1(symbol, type) ((int (*)(type))nvml(#symbol))
#define call2(symbol, one, two) ((int (*)(one, two))nvml(#symbol))
#define call3(symbol, one, two, three) ((int (*)(one, two, three))nvml(#symbol))

static void *device(unsigned index)
{
	void *handle;
	must(call2(nvmlDeviceGetHandleByIndex_v2, unsigned, void **)(index, &handle) == 0);
	return handle;
}

/* ---- scenarios ---- */

static void init(void)
{
	printf("init %d\n", ((int (*)(void))nvml("nvmlInit_v2"))());
}

/* Calls that need no device. */
static void absent(void)
{
	unsigned n = 0;
	char name[64];
	init();
	printf("count %d\n", call1(nvmlDeviceGetCount_v2, unsigned *)(&n));
	printf("name %d\n",
	       call3(nvmlDeviceGetName, void *, char *, unsigned)(NULL, name, sizeof(name)));
	printf("shutdown %d\n", ((int (*)(void))nvml("nvmlShutdown"))());
	const char *(*text)(int) = (const char *(*)(int))nvml("nvmlErrorString");
	printf("\"%s\", \"%s\"\n", text(12), text(3));
	must(!dlsym(open_by_name("libnvidia-ml.so.1"), "nvmlNoSuchCall"));
}

static void memory(void)
{
	unsigned n;
	must(call1(nvmlDeviceGetCount_v2, unsigned *)(&n) == 0);
	for (unsigned i = 0; i < n; i++) {
		struct memory v1;
		struct memory_v2 v2 = {.version = MEMORY_V2};
		struct memory_v2 wrong = {.version = MEMORY_V2 + 1};
		must(call2(nvmlDeviceGetMemoryInfo, void *, struct memory *)(device(i), &v1) == 0);
		must(call2(nvmlDeviceGetMemoryInfo_v2, void *, struct memory_v2 *)(device(i),
		                                                                   &v2) == 0);
		must(v1.total == v1.free + v1.used && v1.total == v2.total);
		must(v2.total == v2.reserved + v2.free + v2.used && v2.version == MEMORY_V2);
		printf("memory %u total %llu free %llu used %llu reserved %llu free %llu used "
		       "%llu\n",
		       i, (unsigned long long)v1.total, (unsigned long long)v1.free,
		       (unsigned long long)v1.used, (unsigned long long)v2.reserved,
		       (unsigned long long)v2.free, (unsigned long long)v2.used);
		printf("wrong version %d\n", call2(nvmlDeviceGetMemoryInfo_v2, void *,
		                                   struct memory_v2 *)(device(i), &wrong));
		must(wrong.total == 0);
	}
}

static void print_rows(const char *call, int result, unsigned n, const char *rows, size_t row_bytes)
{
	printf("%s %d:", call, result);
	for (unsigned i = 0; result == 0 && i < n; i++) {
		uint32_t pid;
		uint64_t used;
		memcpy(&pid, rows + i * row_bytes, sizeof(pid));
		memcpy(&used, rows + i * row_bytes + 8, sizeof(used));
		for (size_t at = 16; at < row_bytes; at++) {
			must(rows[i * row_bytes + at] == (char)0xff);
		}
		printf(pid == (uint32_t)getpid() ? " self" : " %u", pid);
		printf(" %lld", (long long)used);
	}
	printf("\n");
}

static void processes_of(void *handle)
{
	static const struct {
		const char *symbol;
		size_t row_bytes;
	} calls[] = {
		{"nvmlDeviceGetComputeRunningProcesses", 16},
		{"nvmlDeviceGetComputeRunningProcesses_v2", 24},
		{"nvmlDeviceGetComputeRunningProcesses_v3", 24},
		{"nvmlDeviceGetGraphicsRunningProcesses", 16},
		{"nvmlDeviceGetGraphicsRunningProcesses_v2", 24},
		{"nvmlDeviceGetGraphicsRunningProcesses_v3", 24},
		{"nvmlDeviceGetMPSComputeRunningProcesses", 16},
		{"nvmlDeviceGetMPSComputeRunningProcesses_v2", 24},
		{"nvmlDeviceGetMPSComputeRunningProcesses_v3", 24},
	};
	char rows[8 * 32];
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		int (*list)(void *, unsigned *,
		            void *) = (int (*)(void *, unsigned *, void *))nvml(calls[i].symbol);
		unsigned n_needed = 0;
		unsigned n = 8;
		int result = list(handle, &n_needed, NULL);
		must(result == (n_needed ? 7 : 0));
		result = list(handle, &n, rows);
		must(n == n_needed);
		print_rows(calls[i].symbol, result, n, rows, calls[i].row_bytes);
		n = n_needed - 1;
		must(n_needed == 0 || (list(handle, &n, rows) == 7 && n == n_needed));
	}
	struct detail_list list = {.version = DETAIL_LIST_V1};
	int (*details)(void *, struct detail_list *) = (int (*)(void *, struct detail_list *))nvml(
		"nvmlDeviceGetRunningProcessDetailList");
	must(details(handle, &list) == (list.n_rows ? 7 : 0));
	list.rows = rows;
	print_rows("details", details(handle, &list), list.n_rows, rows, 32);
	list.version = 1;
	must(details(handle, &list) == 25);
}

static void processes(void)
{
	unsigned n;
	must(call1(nvmlDeviceGetCount_v2, unsigned *)(&n) == 0);
	for (unsigned i = 0; i < n; i++) {
		processes_of(device(i));
	}
}

/* A monitor leaves no fds behind in its process. */
static unsigned n_open_fds(void)
{
	unsigned n = 0;
	DIR *folder = opendir("/proc/self/fd");
	must(folder);
	while (readdir(folder)) {
		n++;
	}
	closedir(folder);
	return n;
}

static bool is_mapped(const char *name)
{
	char line[1024];
	bool is_found = false;
	FILE *maps = fopen("/proc/self/maps", "r");
	must(maps);
	while (fgets(line, sizeof(line), maps)) {
		is_found = is_found || strstr(line, name);
	}
	fclose(maps);
	return is_found;
}

static void leaves_nothing(void)
{
	struct memory info;
	unsigned n_before = n_open_fds();
	for (unsigned i = 0; i < 10; i++) {
		must(call2(nvmlDeviceGetMemoryInfo, void *, struct memory *)(device(0), &info) ==
		     0);
	}
	printf("fds %d driver %d\n", (int)(n_open_fds() - n_before), is_mapped("cudasim"));
}

/* 0 without the library of ours. */
static void connects(void)
{
	uint64_t (*count)(void) = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "glake_nvml_connects");
	printf("connects %llu\n", count ? (unsigned long long)count() : 0);
}

static CUdeviceptr allocate(CUdevice gpu, uint64_t n_bytes)
{
	CUcontext ctx;
	CUdeviceptr address;
	must_cuda(cuInit, 0);
	must_cuda(cuDevicePrimaryCtxRetain, &ctx, gpu);
	must_cuda(cuCtxSetCurrent, ctx);
	must_cuda(cuMemAlloc_v2, &address, n_bytes);
	return address;
}

static void allocates(void)
{
	allocate(0, 10 * MIB);
}

static void allocates_elsewhere(void)
{
	allocate(1, 6 * MIB);
}

/* Both say the same, also of memory that was freed just now and is warm. */
static void agrees(void)
{
	size_t free_bytes = 0;
	size_t total_bytes = 0;
	struct memory info = {0};
	CUdeviceptr address = allocate(0, 20 * MIB);
	allocate(0, 10 * MIB);
	must_cuda(cuMemFree_v2, address);
	must_cuda(cuMemGetInfo_v2, &free_bytes, &total_bytes);
	must(call2(nvmlDeviceGetMemoryInfo, void *, struct memory *)(device(0), &info) == 0);
	must(info.free == free_bytes);
	must(info.total == total_bytes);
	printf("agree total %zu free %zu\n", total_bytes, free_bytes);
}

/* NVML before, CUDA after: what the call without CUDA is good for. */
static void forks(void)
{
	int status;
	fflush(stdout);
	pid_t pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		memory();
		allocates();
		processes_of(device(0));
		fflush(stdout);
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid && status == 0);
}

static void *ask_often(void *user)
{
	struct memory info;
	char rows[8 * 24];
	for (unsigned i = 0; i < 50; i++) {
		unsigned n = 8;
		must(call2(nvmlDeviceGetMemoryInfo, void *, struct memory *)(device(0), &info) ==
		     0);
		must(info.total == info.free + info.used);
		must(call3(nvmlDeviceGetComputeRunningProcesses_v3, void *, unsigned *,
		           void *)(device(0), &n, rows) == 0);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t ids[N_THREADS];
	for (unsigned i = 0; i < N_THREADS; i++) {
		must(pthread_create(&ids[i], NULL, ask_often, NULL) == 0);
	}
	for (unsigned i = 0; i < N_THREADS; i++) {
		pthread_join(ids[i], NULL);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} scenarios[] = {
		{"init", init},
		{"absent", absent},
		{"memory", memory},
		{"processes", processes},
		{"leaves", leaves_nothing},
		{"connects", connects},
		{"allocates", allocates},
		{"elsewhere", allocates_elsewhere},
		{"agrees", agrees},
		{"forks", forks},
		{"threads", threads},
		{"wait", wait_for_line},
	};
	for (int i = 1; i < argc; i++) {
		for (size_t j = 0; j < sizeof(scenarios) / sizeof(scenarios[0]); j++) {
			if (strcmp(argv[i], scenarios[j].name) == 0) {
				scenarios[j].run();
			}
		}
	}
	return 0;
}
