/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnvidia-ml.so.1 that says what it is told to, for the calls about devices, memory and processes.
 *
 *   NVMLSIM_DEVICES    "UUID=FREE_BYTES ...": what there is, by index; another UUID is not found.
 *                      Each has four times as much in all, and half as much is reserved
 *   NVMLSIM_PROCESSES  "UUID:PID=BYTES ...": what runs there, of all kinds, with a context that has
 *                      BYTES; "-" is not known, and "self" is who asks. Or a path: a file with
 *                      such words, read each time
 *   NVMLSIM_INIT_FAILS anything: nvmlInit_v2() fails
 *   NVMLSIM_SLOW_MS    how long nvmlInit_v2() takes
 *   NVMLSIM_LOG        a file that gets one line for each call of init, shutdown and memory,
 *                      with "on the main thread" where that is so
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NOT_AVAILABLE UINT64_MAX

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	ARGUMENT_VERSION_MISMATCH = 25,
};

struct memory {
	uint64_t total;
	uint64_t free;
	uint64_t used;
};

#define MEMORY_V2 (2u << 24 | (unsigned)sizeof(struct memory_v2))
struct memory_v2 {
	uint32_t version;
	uint64_t total;
	uint64_t reserved;
	uint64_t free;
	uint64_t used;
};

/* The rows of all versions begin with this. */
struct process_v1 {
	uint32_t pid;
	uint64_t used_bytes;
};

struct process_v2 {
	uint32_t pid;
	uint64_t used_bytes;
	uint32_t gpu_instance;
	uint32_t compute_instance;
};

struct process_detail {
	uint32_t pid;
	uint64_t used_bytes;
	uint32_t gpu_instance;
	uint32_t compute_instance;
	uint64_t protected_bytes;
};

#define DETAIL_LIST_V1 (1u << 24 | (unsigned)sizeof(struct detail_list))
struct detail_list {
	uint32_t version;
	uint32_t mode;
	uint32_t n_rows;
	struct process_detail *rows;
};

int nvmlInit(void);
int nvmlInit_v2(void);
int nvmlInitWithFlags(unsigned flags);
int nvmlShutdown(void);
const char *nvmlErrorString(int error);
int nvmlDeviceGetCount_v2(unsigned *n_out);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device_out);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device_out);
int nvmlDeviceGetUUID(void *device, char *uuid_out, unsigned n_bytes);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory_out);
int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory);
int nvmlDeviceGetRunningProcessDetailList(void *device, struct detail_list *list);

static int n_inits;

static void note(const char *call)
{
	char line[64];
	const char *path = getenv("NVMLSIM_LOG");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
	if (fd >= 0) {
		int n = snprintf(line, sizeof(line), "%s%s\n", call,
		                 gettid() == getpid() ? " on the main thread" : "");
		if (write(fd, line, (size_t)n) < 0) {
			abort();
		}
		close(fd);
	}
}

/* ---- the library ------------------------------------------------------------------------------ */

EXPORT int nvmlInit_v2(void)
{
	const char *slow_ms = getenv("NVMLSIM_SLOW_MS");
	note("init");
	usleep(slow_ms ? (useconds_t)atoi(slow_ms) * 1000 : 0);
	if (getenv("NVMLSIM_INIT_FAILS")) {
		return DRIVER_NOT_LOADED;
	}
	n_inits++;
	return SUCCESS;
}

EXPORT int nvmlInit(void)
{
	return nvmlInit_v2();
}

EXPORT int nvmlInitWithFlags(unsigned flags)
{
	return nvmlInit_v2();
}

EXPORT int nvmlShutdown(void)
{
	note("shutdown");
	return n_inits-- > 0 ? SUCCESS : UNINITIALIZED;
}

EXPORT const char *nvmlErrorString(int error)
{
	return error == NOT_FOUND ? "Not Found" : "Driver Not Loaded";
}

/* ---- devices: a handle is where the UUID stands in the environment ---------------------------- */

static const char *next_word(const char *at)
{
	at += strcspn(at, " ");
	return at + strspn(at, " ");
}

static const char *device_at(unsigned index)
{
	const char *at = getenv("NVMLSIM_DEVICES");
	for (unsigned i = 0; at && *at && i < index; i++) {
		at = next_word(at);
	}
	return at && *at ? at : NULL;
}

static uint64_t free_of(const char *device)
{
	return strtoull(strchr(device, '=') + 1, NULL, 10);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *n_out)
{
	for (*n_out = 0; device_at(*n_out); (*n_out)++) {
	}
	return n_inits > 0 ? SUCCESS : UNINITIALIZED;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device_out)
{
	const char *at = device_at(index);
	*device_out = (void *)at;
	return n_inits == 0 ? UNINITIALIZED : at ? SUCCESS : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device_out)
{
	size_t n = strlen(uuid);
	if (n_inits == 0) {
		return UNINITIALIZED;
	}
	const char *at;
	for (unsigned i = 0; (at = device_at(i)); i++) {
		if (strncmp(at, uuid, n) == 0 && at[n] == '=') {
			*device_out = (void *)at;
			return SUCCESS;
		}
	}
	return NOT_FOUND;
}

EXPORT int nvmlDeviceGetUUID(void *device, char *uuid_out, unsigned n_bytes)
{
	int n = (int)strcspn(device, "=");
	return snprintf(uuid_out, n_bytes, "%.*s", n, (const char *)device) < (int)n_bytes
	               ? SUCCESS
	               : INSUFFICIENT_SIZE;
}

/* ---- memory ----------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory_out)
{
	note("memory");
	uint64_t free_bytes = free_of(device);
	*memory_out = (struct memory){
		.total = 4 * free_bytes, .free = free_bytes, .used = 3 * free_bytes};
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory)
{
	note("memory");
	if (memory->version != MEMORY_V2) {
		return ARGUMENT_VERSION_MISMATCH;
	}
	uint64_t free_bytes = free_of(device);
	memory->total = 4 * free_bytes;
	memory->reserved = free_bytes / 2;
	memory->free = free_bytes;
	memory->used = memory->total - memory->reserved - memory->free;
	return SUCCESS;
}

/* ---- processes -------------------------------------------------------------------------------- */

/* Valid until the next call. */
static const char *processes(void)
{
	static _Thread_local char text[4096];
	const char *value = getenv("NVMLSIM_PROCESSES");
	if (!value || *value != '/') {
		return value;
	}
	int fd = open(value, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;
	text[n > 0 ? n : 0] = '\0';
	if (fd >= 0) {
		close(fd);
	}
	return text;
}

/* The @position'th process of @device. */
static bool process_at(const char *device, unsigned position, struct process_v1 *process_out)
{
	size_t n = strcspn(device, "=");
	const char *at = processes();
	for (; at && *at; at = next_word(at)) {
		if (strncmp(at, device, n) != 0 || at[n] != ':' || position-- > 0) {
			continue;
		}
		const char *pid = at + n + 1;
		const char *used = strchr(pid, '=') + 1;
		bool is_self = strncmp(pid, "self", 4) == 0;
		process_out->pid = is_self ? (uint32_t)getpid() : (uint32_t)strtoul(pid, NULL, 10);
		process_out->used_bytes = *used == '-' ? NOT_AVAILABLE : strtoull(used, NULL, 10);
		return true;
	}
	return false;
}

static int list_processes(const char *device, unsigned *n, void *rows, size_t row_bytes)
{
	unsigned room = *n;
	struct process_v1 process;
	for (*n = 0; process_at(device, *n, &process); (*n)++) {
		if (*n < room && rows) {
			char *row = (char *)rows + *n * row_bytes;
			memset(row, 0xff, row_bytes);
			memcpy(row, &process, sizeof(process));
		}
	}
	return *n > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define LIST(symbol, row) \
	int symbol(void *device, unsigned *n, row *rows); \
	EXPORT int symbol(void *device, unsigned *n, row *rows) \
	{ \
		return list_processes(device, n, rows, sizeof(*rows)); \
	}
LIST(nvmlDeviceGetComputeRunningProcesses, struct process_v1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, struct process_v2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, struct process_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, struct process_v1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, struct process_v2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, struct process_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, struct process_v1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, struct process_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, struct process_v2)

EXPORT int nvmlDeviceGetRunningProcessDetailList(void *device, struct detail_list *list)
{
	if (list->version != DETAIL_LIST_V1) {
		return ARGUMENT_VERSION_MISMATCH;
	}
	return list_processes(device, &list->n_rows, list->rows, sizeof(*list->rows));
}
