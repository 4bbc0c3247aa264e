/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory of each device is free by NVML's word, and which processes have some: it sees what
 * everybody uses and not only what glaked gave out. For listings, no decision hangs on it.
 *
 * NVML is libnvidia-ml.so.1, opened by dlopen() ($GLAKE_LIBNVML names another). Without it, or for a
 * device it does not know (a MIG instance is none), device_free_bytes() is 0, which means unknown;
 * one line in the log says why. Where it does not list processes, there are none. Its calls may take
 * long: they are made on libuv's pool, by one asking at a time.
 *
 * Owner: the server.
 * Lifetime: nvml_new() to nvml_free(), which comes when the loop has run dry.
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
	/* That it has of the driver, no managed or imported ones among them; 0 = unknown. */
	uint64_t bytes;
};

/*
 * The processes that have a context on @device, as of the last answer, by pid, each once; valid until
 * the loop turns. NULL is fine and knows of none.
 */
const struct nvml_process *nvml_processes(const struct nvml *nvml, uint32_t device, size_t *n_out);

/* That of @pid among such; NULL if it is not there, and for 0. */
const struct nvml_process *nvml_find_process(const struct nvml_process *processes, size_t n,
                                             uint32_t pid);

/* Ask what is free on every device, and who uses it, unless that is under way. NULL is fine. */
void nvml_ask(struct nvml *nvml);

/* Blocks for the library's end. NULL is fine. */
void nvml_free(struct nvml *nvml);

#endif
