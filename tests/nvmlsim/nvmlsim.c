/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnvidia-ml.so.1 that says what it is told to, for the five calls that glaked makes.
 *
 *   NVMLSIM_DEVICES    "UUID=FREE_BYTES ...": what there is; another UUID is not found
 *   NVMLSIM_INIT_FAILS anything: nvmlInit_v2() fails
 *   NVMLSIM_SLOW_MS    how long nvmlInit_v2() takes
 *   NVMLSIM_LOG        a file that gets one line for each call of init, shutdown and memory,
 *                      with "on the main thread" where that is so
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	NOT_FOUND = 6,
	DRIVER_NOT_LOADED = 9,
};

struct memory {
	unsigned long long total;
	unsigned long long free;
	unsigned long long used;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device_out);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory_out);
const char *nvmlErrorString(int error);

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

EXPORT int nvmlShutdown(void)
{
	note("shutdown");
	return n_inits-- > 0 ? SUCCESS : UNINITIALIZED;
}

/* The handle is where the number stands in the environment. */
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device_out)
{
	const char *devices = getenv("NVMLSIM_DEVICES");
	const char *at = devices ? strstr(devices, uuid) : NULL;
	if (n_inits == 0) {
		return UNINITIALIZED;
	}
	if (!at || at[strlen(uuid)] != '=') {
		return NOT_FOUND;
	}
	*device_out = (void *)(at + strlen(uuid) + 1);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory_out)
{
	note("memory");
	unsigned long long free_bytes = strtoull(device, NULL, 10);
	*memory_out = (struct memory){
		.total = 4 * free_bytes, .free = free_bytes, .used = 3 * free_bytes};
	return SUCCESS;
}

EXPORT const char *nvmlErrorString(int error)
{
	return error == NOT_FOUND ? "Not Found" : "Driver Not Loaded";
}
