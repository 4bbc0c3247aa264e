/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/nvml.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/log.h"
#include "proto/cleanup.h"

/* "GPU-", 32 digits, 4 dashes, NUL. */
#define UUID_TEXT_BYTES 41

/* Of nvml.h, which not every toolkit brings: nvmlReturn_t 0 is success, nvmlDevice_t is a pointer. */
struct memory {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
};

struct calls {
	int (*init)(void);
	int (*shutdown)(void);
	int (*device_by_uuid)(const char *uuid, void **device_out);
	int (*memory_info)(void *device, struct memory *memory_out);
	const char *(*error_string)(int error);
};

enum library_state {
	LIBRARY_CLOSED,
	LIBRARY_OPEN,
	LIBRARY_ABSENT, /* not tried again */
};

struct nvml {
	uv_work_t work;
	uv_loop_t *loop;        /* borrowed */
	const char *path;       /* of the environment */
	struct device *devices; /* borrowed; the pool's thread reads what is constant */
	uint32_t n_devices;
	bool is_asking;
	bool was_told; /* that something is wrong */

	/* The pool's thread's, while is_asking. */
	enum library_state state;
	struct calls calls;
	char error[256];       /* the first thing that went wrong, "" = nothing */
	uint64_t free_bytes[]; /* by device */
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

/* As NVML names a whole GPU: GPU-8-4-4-4-12 digits. */
static void name_device(const struct device *device, char text_out[UUID_TEXT_BYTES])
{
	char *at = text_out + sprintf(text_out, "GPU");
	for (size_t i = 0; i < sizeof(device->uuid); i++) {
		bool begins_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
		at += sprintf(at, "%s%02x", begins_group ? "-" : "", device->uuid[i]);
	}
}

/* 0 = unknown. */
static uint64_t ask_one(struct nvml *nvml, const struct device *device)
{
	char uuid[UUID_TEXT_BYTES];
	void *handle;
	struct memory memory;
	name_device(device, uuid);
	int r = nvml->calls.device_by_uuid(uuid, &handle);
	if (r == 0) {
		r = nvml->calls.memory_info(handle, &memory);
	}
	if (r != 0) {
		fail(nvml, "device %u (%s): %s", device->index, uuid, nvml->calls.error_string(r));
		return 0;
	}
	return memory.free;
}

static void ask_all(uv_work_t *work)
{
	struct nvml *nvml = container_of(work, struct nvml, work);
	if (nvml->state == LIBRARY_CLOSED) {
		nvml->state = open_library(nvml);
	}
	if (nvml->state == LIBRARY_OPEN) {
		for (uint32_t i = 0; i < nvml->n_devices; i++) {
			nvml->free_bytes[i] = ask_one(nvml, &nvml->devices[i]);
		}
	}
}

/* ---- on the loop thread ---------------------------------------------------------------------- */

static void on_answer(uv_work_t *work, int status)
{
	struct nvml *nvml = container_of(work, struct nvml, work);
	nvml->is_asking = false;
	for (uint32_t i = 0; i < nvml->n_devices; i++) {
		device_see_free(&nvml->devices[i], nvml->free_bytes[i]);
	}
	if (nvml->error[0] && !nvml->was_told) {
		nvml->was_told = true;
		log_info("what others use of the devices is not known: %s", nvml->error);
	}
}

struct nvml *nvml_new(uv_loop_t *loop, struct device *devices, uint32_t n_devices)
{
	struct nvml *nvml = calloc(1, sizeof(*nvml) + n_devices * sizeof(nvml->free_bytes[0]));
	if (!nvml) {
		return NULL;
	}
	const char *path = getenv("GLAKE_LIBNVML");
	nvml->path = path && *path ? path : "libnvidia-ml.so.1";
	nvml->loop = loop;
	nvml->devices = devices;
	nvml->n_devices = n_devices;
	return nvml;
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
		/* The library itself stays: like libcuda it may have threads. */
		nvml->calls.shutdown();
	}
	free(nvml);
}
