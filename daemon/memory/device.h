/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One GPU: its properties, the abilities of its chunks, its worker and its books.
 *
 * glaked has no context: creating, exporting and releasing chunks needs none.
 *
 * Owner: the server's array. Lifetime: device_open() to device_close(), with the driver initialised
 * throughout. Threads: the fields above `worker` are constant after device_open(), so the worker's
 * thread may read them. All
 *          others belong to the loop thread.
 */
#ifndef GLAKE_DAEMON_DEVICE_H
#define GLAKE_DAEMON_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/log.h"
#include "daemon/memory/worker.h"
#include "proto/cudrv.h"

/* What a chunk is for; each device keeps the sum of bytes per use. */
enum chunk_use {
	CHUNK_POOL,    /* made ahead */
	CHUNK_PRIVATE, /* of one holder */
	CHUNK_LOADING, /* of a load; or the mover still has it, but nobody wants it any more */
	CHUNK_BLOCK,   /* of the store */
	CHUNK_N_USES,
};

struct device {
	uint32_t index; /* glaked's number: position in the server's array */
	CUdevice cu;
	const struct cudrv *drv; /* borrowed */
	uint8_t uuid[16];
	char name[64];
	uint64_t total_bytes;
	uint64_t usable_bytes; /* total minus reserve_bytes of the config */
	unsigned handle_types;
	bool rdma;
	char fabric[96];            /* "yes", or the reason why fabric handles are not used */
	struct log_limit log_limit; /* of lines about its driver's refusals, which requests cause */
	int anchor_fd; /* owned: without another fd, an export or a close costs 750 us, not 15 */

	struct worker worker;
	uint64_t use_bytes[CHUNK_N_USES];
	uint64_t coming_bytes;          /* the worker is making them; in no use_bytes yet */
	_Atomic uint64_t leaving_bytes; /* the worker will close them; in no use_bytes any more */
	uint64_t used_block_bytes;      /* of CHUNK_BLOCK: blocks with users */
	uint64_t logical_block_bytes;   /* sum over holders of the bytes of their blocks */
	uint64_t seen_free_bytes;       /* free by NVML; 0 = unknown */
	uint64_t seen_physical_bytes;   /* device_physical_bytes() at that time */
};

/*
 * Open the driver's device @ordinal, find out which handles it can export, and start its worker.
 * Blocks in driver calls: start-up only. Returns 0, or -errno after one log line.
 */
int device_open(struct device *device, uv_loop_t *loop, const struct cudrv *drv, uint32_t index,
                int ordinal, uint64_t reserve_bytes);

/* The worker must have nothing pending. */
void device_close(struct device *device);

/* Bytes of chunks that exist: the word `physical` of the docs. */
uint64_t device_physical_bytes(const struct device *device);

/* NVML reports @free_bytes free bytes; 0 = unknown. */
void device_see_free(struct device *device, uint64_t free_bytes);

/* NVML's last number, corrected for chunks made and released since. 0 = unknown. */
uint64_t device_free_bytes(const struct device *device);

/* The most bytes that can be granted at one time. */
uint64_t device_most_bytes(const struct device *device);

/* The bytes that may be made beyond existing chunks and those being made. */
uint64_t device_room_bytes(const struct device *device);
bool device_has_room(const struct device *device, uint64_t bytes);

/*
 * Worker's thread (or start-up): make a chunk of @bytes and export it. The caller owns the fd, and
 * the driver handle if @handle_out is not NULL. Otherwise the handle is released, and the fd alone
 * holds the memory.
 */
CUresult device_make_chunk(const struct device *device, uint64_t bytes, int *fd_out,
                           CUmemGenericAllocationHandle *handle_out);

/* Worker's thread: make an fd for a chunk that this process has made. The caller owns it. */
CUresult device_export_chunk(const struct device *device, CUmemGenericAllocationHandle handle,
                             int *fd_out);

#endif
