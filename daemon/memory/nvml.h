/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The free memory of each device by NVML, and the processes that use memory. NVML sees all use, not only
 * glaked's. This serves listings only; no decision depends on it.
 *
 * NVML is libnvidia-ml.so.1, opened by dlopen() ($GLAKE_LIBNVML names another). Without it, or for
 * a device that it does not know (a MIG instance), device_free_bytes() is 0, which means unknown,
 * and one line in the log gives the reason. If it does not list processes, the list is empty. Its
 * calls may take long, so they run on libuv's pool, one query at a time.
 *
 * Owner: the server.
 * Lifetime: nvml_new() to nvml_free(), after the loop has ended.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_NVML_H
#define GLAKE_DAEMON_NVML_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/memory/device.h"

struct nvml;

/* Opens nothing yet. @devices must stay until nvml_free(). NULL: no memory. */
struct nvml *nvml_new(uv_loop_t *loop, struct device *devices, uint32_t n_devices);

struct nvml_process {
	uint32_t pid; /* in our pid namespace */
	/* The process's memory of the driver, without managed and imported memory; 0 = unknown. */
	uint64_t bytes;
};

/*
 * The processes with a context on @device by the last answer, sorted by pid, each once. Valid until
 * the next turn of the loop. NULL is fine: no processes.
 */
const struct nvml_process *nvml_processes(const struct nvml *nvml, uint32_t device, size_t *n_out);

/* The entry of @pid; NULL if there is none, and for 0. */
const struct nvml_process *nvml_find_process(const struct nvml_process *processes, size_t n,
                                             uint32_t pid);

/* Start a query, unless one is running. NULL is fine. */
void nvml_ask(struct nvml *nvml);

/* Blocks while the library shuts down. NULL is fine. */
void nvml_free(struct nvml *nvml);

#endif
