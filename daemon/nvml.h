/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory of each device is free by NVML's word, which sees what everybody uses and not
 * only what glaked gave out: for listings, no decision hangs on it.
 *
 * NVML is libnvidia-ml.so.1, opened by dlopen() ($GLAKE_LIBNVML names another). Without it, or for a
 * device it does not know (a MIG instance is none), device_free_bytes() is 0, which means unknown;
 * one line in the log says why. Its calls may take long: they are made on libuv's pool, by one
 * asking at a time.
 *
 * Owner: the server.
 * Lifetime: nvml_new() to nvml_free(), which comes when the loop has run dry.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_NVML_H
#define GLAKE_DAEMON_NVML_H

#include <stdint.h>
#include <uv.h>

#include "daemon/device.h"

struct nvml;

/* Opens nothing yet. @devices must stay until nvml_free(). NULL: no memory. */
struct nvml *nvml_new(uv_loop_t *loop, struct device *devices, uint32_t n_devices);

/* Ask what is free on every device, unless that is under way. NULL is fine. */
void nvml_ask(struct nvml *nvml);

/* Blocks for the library's end. NULL is fine. */
void nvml_free(struct nvml *nvml);

#endif
