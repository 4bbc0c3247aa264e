/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"
#include "proto/uuid.h"

/* No host runs so many processes with a context. */
#define MAX_PROCESSES 65536u

/* From nvml.h, which not every toolkit has: nvmlReturn_t 0 is success, nvmlDevice_t is a pointer. */
#define INSUFFICIENT_SIZE 7
#define NOT_AVAILABLE UINT64_MAX

struct memory {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
};

struct process_info {
	unsigned pid;
	unsigned long long used_bytes; /* or NOT_AVAILABLE */
	unsigned gpu_instance;
	unsigned compute_instance;
};

struct calls {
	int (*init)(void);
	int (*shutdown)(void);
	int (*device_by_uuid)(const char *uuid, void **device_out);
	int (*memory_info)(void *device, struct memory *memory_out);
	const char *(*error_string)(int error);
	/* *n: room in, number out. NULL where the library is too old to list them. */
	int (*list_processes)(void *device, unsigned *n, struct process_info *list_out);
};

enum library_state {
	LIBRARY_CLOSED,
	LIBRARY_OPEN,
	LIBRARY_ABSENT, /* not tried again */
};

/* The last answer about one device. */
struct answer {
	uint64_t free_bytes;            /* 0 = unknown */
	struct nvml_process *processes; /* owned, by pid */
	size_t n_processes;
};

struct nvml {
	uv_work_t work;
	uv_loop_t *loop;        /* borrowed */
	const char *path;       /* of the environment */
	struct device *devices; /* borrowed; the pool's thread reads what is constant */
	uint32_t n_devices;
	bool is_asking;
	bool was_told;          /* the log says that something is wrong */
	struct answer *answers; /* owned, by device: the last ones */

	/* Only the pool's thread uses these while is_asking. */
	enum library_state state;
	struct calls calls;
	char error[256];     /* the first error, "" = none */
	struct answer *news; /* after the last ones; all zero while nobody asks */
};

/* ---- on the pool's thread -------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void fail(struct nvml *nvml, const char *format, ...)
{
	va_list arguments;
	if (nvml->error[0]) {
		return;
	}
	va_start(arguments, format);
	vsnprintf(nvml->error, sizeof(nvml->error), format, arguments);
	va_end(arguments);
}

static bool resolve(struct nvml *nvml, void *library)
{
	const struct {
		const char *symbol;
		void **entry;
	} calls[] = {
		{"nvmlInit_v2", (void **)&nvml->calls.init},
		{"nvmlShutdown", (void **)&nvml->calls.shutdown},
		{"nvmlDeviceGetHandleByUUID", (void **)&nvml->calls.device_by_uuid},
		{"nvmlDeviceGetMemoryInfo", (void **)&nvml->calls.memory_info},
		{"nvmlErrorString", (void **)&nvml->calls.error_string},
	};
	for (size_t i = 0; i < n_elements(calls); i++) {
		*calls[i].entry = dlsym(library, calls[i].symbol);
		if (!*calls[i].entry) {
			fail(nvml, "%s has no call named %s", nvml->path, calls[i].symbol);
			return false;
		}
	}
	/* Version 2 differs only in its name. */
	void *entry = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
	entry = entry ? entry : dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v2");
	*(void **)&nvml->calls.list_processes = entry;
	return true;
}

static enum library_state open_library(struct nvml *nvml)
{
	void *library = dlopen(nvml->path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fail(nvml, "%s", dlerror());
		return LIBRARY_ABSENT;
	}
	if (!resolve(nvml, library)) {
		return LIBRARY_ABSENT;
	}
	int r = nvml->calls.init();
	if (r != 0) {
		fail(nvml, "nvmlInit: %s", nvml->calls.error_string(r));
		return LIBRARY_ABSENT;
	}
	return LIBRARY_OPEN;
}

/* The processes of @device, in a list that the caller owns; NULL: unknown, or no memory. */
static struct process_info *list_processes(const struct nvml *nvml, void *device, unsigned *n_out)
{
	struct process_info *list = NULL;
	unsigned room = 0;
	unsigned n = 0;
	int r = nvml->calls.list_processes ? INSUFFICIENT_SIZE : 0;
	/* Processes may start between the two calls. */
	while (r == INSUFFICIENT_SIZE && room < MAX_PROCESSES) {
		room = n + n / 2 + 16;
		room = room < MAX_PROCESSES ? room : MAX_PROCESSES;
		free(list);
		list = calloc(room, sizeof(*list));
		n = room;
		r = list ? nvml->calls.list_processes(device, &n, list) : -ENOMEM;
	}
	if (r != 0 || n > room) {
		free(list);
		return NULL;
	}
	*n_out = n;
	return list;
}

static int compare_pids(const void *one, const void *two)
{
	const struct nvml_process *left = one;
	const struct nvml_process *right = two;
	return left->pid < right->pid ? -1 : left->pid > right->pid;
}

/* Merge the entries of a process that is listed several times, once for each part of the device. */
static size_t merge(struct nvml_process *processes, size_t n)
{
	size_t n_merged = 0;
	qsort(processes, n, sizeof(*processes), compare_pids);
	for (size_t i = 0; i < n; i++) {
		if (n_merged > 0 && processes[n_merged - 1].pid == processes[i].pid) {
			processes[n_merged - 1].bytes += processes[i].bytes;
		} else {
			processes[n_merged++] = processes[i];
		}
	}
	return n_merged;
}

static void ask_processes(const struct nvml *nvml, void *device, struct answer *answer)
{
	unsigned n = 0;
	cleanup_free struct process_info *list = list_processes(nvml, device, &n);
	struct nvml_process *processes = list ? calloc(n + 1, sizeof(*processes)) : NULL;
	for (unsigned i = 0; processes && i < n; i++) {
		uint64_t bytes = list[i].used_bytes;
		processes[i] = (struct nvml_process){
			.pid = list[i].pid,
			.bytes = bytes == NOT_AVAILABLE ? 0 : bytes,
		};
	}
	answer->processes = processes;
	answer->n_processes = processes ? merge(processes, n) : 0;
}

static void ask_one(struct nvml *nvml, const struct device *device, struct answer *answer)
{
	char uuid[UUID_TEXT_BYTES];
	void *handle;
	struct memory memory;
	uuid_name_gpu(device->uuid, uuid);
	int r = nvml->calls.device_by_uuid(uuid, &handle);
	if (r == 0) {
		r = nvml->calls.memory_info(handle, &memory);
	}
	if (r != 0) {
		fail(nvml, "device %u (%s): %s", device->index, uuid, nvml->calls.error_string(r));
		return;
	}
	answer->free_bytes = memory.free;
	ask_processes(nvml, handle, answer);
}

static void ask_all(uv_work_t *work)
{
	struct nvml *nvml = container_of(work, struct nvml, work);
	if (nvml->state == LIBRARY_CLOSED) {
		nvml->state = open_library(nvml);
	}
	if (nvml->state == LIBRARY_OPEN) {
		for (uint32_t i = 0; i < nvml->n_devices; i++) {
			ask_one(nvml, &nvml->devices[i], &nvml->news[i]);
		}
	}
}

/* ---- on the loop thread ---------------------------------------------------------------------- */

static void on_answer(uv_work_t *work, int status)
{
	struct nvml *nvml = container_of(work, struct nvml, work);
	nvml->is_asking = false;
	for (uint32_t i = 0; i < nvml->n_devices; i++) {
		device_see_free(&nvml->devices[i], nvml->news[i].free_bytes);
		free(nvml->answers[i].processes);
		nvml->answers[i] = nvml->news[i];
		nvml->news[i] = (struct answer){0};
	}
	if (nvml->error[0] && !nvml->was_told) {
		nvml->was_told = true;
		log_info("NVML cannot tell the use of the devices: %s", nvml->error);
	}
}

struct nvml *nvml_new(uv_loop_t *loop, struct device *devices, uint32_t n_devices)
{
	struct nvml *nvml = calloc(1, sizeof(*nvml));
	struct answer *answers = calloc(2 * n_devices + 1, sizeof(*answers));
	if (!nvml || !answers) {
		free(answers);
		free(nvml);
		return NULL;
	}
	nvml->answers = answers;
	nvml->news = answers + n_devices;
	const char *path = getenv("GLAKE_LIBNVML");
	nvml->path = path && *path ? path : "libnvidia-ml.so.1";
	nvml->loop = loop;
	nvml->devices = devices;
	nvml->n_devices = n_devices;
	return nvml;
}

const struct nvml_process *nvml_processes(const struct nvml *nvml, uint32_t device, size_t *n_out)
{
	*n_out = nvml ? nvml->answers[device].n_processes : 0;
	return nvml ? nvml->answers[device].processes : NULL;
}

const struct nvml_process *nvml_find_process(const struct nvml_process *processes, size_t n,
                                             uint32_t pid)
{
	struct nvml_process wanted = {.pid = pid};
	return pid && n ? bsearch(&wanted, processes, n, sizeof(wanted), compare_pids) : NULL;
}

void nvml_ask(struct nvml *nvml)
{
	if (!nvml || nvml->is_asking || nvml->state == LIBRARY_ABSENT) {
		return;
	}
	nvml->is_asking = uv_queue_work(nvml->loop, &nvml->work, ask_all, on_answer) == 0;
}

void nvml_free(struct nvml *nvml)
{
	if (nvml && nvml->state == LIBRARY_OPEN) {
		/* The library stays loaded: like libcuda, it may have threads. */
		nvml->calls.shutdown();
	}
	for (uint32_t i = 0; nvml && i < nvml->n_devices; i++) {
		free(nvml->answers[i].processes);
	}
	free(nvml ? nvml->answers : NULL);
	free(nvml);
}
