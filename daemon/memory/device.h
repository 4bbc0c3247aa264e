/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One GPU: a location, and what only a GPU has: its names, the abilities of its chunks, and what NVML says.
 *
 * glaked has no context: creating, exporting and releasing chunks needs none.
 *
 * Owner: the server's array. Lifetime: device_open() to device_close(), with the driver initialised
 * throughout. Threads: the loop thread; see location.h.
 */
#ifndef GLAKE_DAEMON_DEVICE_H
#define GLAKE_DAEMON_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/memory/location.h"

struct device {
	struct location at;
	uint32_t index; /* of at: its number, and its slot */
	CUdevice cu;
	uint8_t uuid[16];
	char name[64];
	bool rdma;
	char fabric[96]; /* "yes", or the reason why fabric handles are not used */
	int anchor_fd;   /* owned: without another fd, an export or a close costs 750 us, not 15 */
	uint64_t seen_free_bytes;     /* free by NVML; 0 = unknown */
	uint64_t seen_physical_bytes; /* location_physical_bytes() at that time */
};

/*
 * Open the driver's device @ordinal, find out which handles it can export, and start its worker.
 * Blocks in driver calls: start-up only. Returns 0, or -errno after one log line.
 */
int device_open(struct device *device, uv_loop_t *loop, const struct cudrv *drv, uint32_t index,
                int ordinal, uint64_t reserve_bytes);

/* The worker must have nothing pending. */
void device_close(struct device *device);

/* The GPU that a location is; NULL: it is none. */
struct device *location_device(struct location *at);

/* NVML reports @free_bytes free bytes; 0 = unknown. */
void device_see_free(struct device *device, uint64_t free_bytes);

/* NVML's last number, corrected for chunks made and released since. 0 = unknown. */
uint64_t device_free_bytes(const struct device *device);

#endif
