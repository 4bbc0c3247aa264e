/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One GPU as glaked sees it: what it is, what its chunks can do, its worker, and its books.
 *
 * glaked makes no context anywhere: creating, exporting and releasing chunks needs none.
 *
 * Owner: the server's array.
 * Lifetime: device_open() to device_close(), with the driver initialised throughout.
 * Threads: the fields above `worker` are constant after device_open() and may be read by the
 *          worker's thread; everything else belongs to the loop thread.
 */
#ifndef GLAKE_DAEMON_DEVICE_H
#define GLAKE_DAEMON_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/memory/worker.h"
#include "proto/cudrv.h"

/* What a chunk is for; each device keeps the sum of bytes per use. */
enum chunk_use {
	CHUNK_POOL,    /* made ahead, nobody's */
	CHUNK_PRIVATE, /* one session's */
	CHUNK_LOADING, /* granted to a load, or wanted by nobody while the mover still has it */
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
	uint64_t usable_bytes; /* total less what the config reserves */
	unsigned handle_types;
	bool rdma;
	char fabric[96]; /* "yes", or why fabric handles are not used */
	int anchor_fd;   /* owned: export and close of a lone fd cost 750 us, of others 15 */

	struct worker worker;
	uint64_t use_bytes[CHUNK_N_USES];
	uint64_t coming_bytes;          /* being made by the worker, in no use_bytes yet */
	_Atomic uint64_t leaving_bytes; /* to be closed by the worker, in no use_bytes any more */
	uint64_t used_block_bytes;      /* of CHUNK_BLOCK: blocks somebody has open */
	uint64_t logical_block_bytes;   /* sum over sessions of block bytes they have open */
	uint64_t seen_free_bytes;       /* by NVML, whoever uses the rest; 0 = unknown */
	uint64_t seen_physical_bytes;   /* device_physical_bytes() then */
};

/*
 * Learn about the driver's device @ordinal, find out what handles it can export, start its worker.
 * Blocks for driver calls: start-up only. Returns 0, or -errno after one log line.
 */
int device_open(struct device *device, uv_loop_t *loop, const struct cudrv *drv, uint32_t index,
                int ordinal, uint64_t reserve_bytes);

/* The worker must have nothing pending. */
void device_close(struct device *device);

/* Bytes of chunks that exist: the word `physical` of the docs. */
uint64_t device_physical_bytes(const struct device *device);

/* NVML saw @free_bytes free just now; 0 = it cannot tell. */
void device_see_free(struct device *device, uint64_t free_bytes);

/* What NVML saw, corrected for what glaked made and released since then. 0 = unknown. */
uint64_t device_free_bytes(const struct device *device);

/* What all chunks may come to that are ever given out at a time. */
uint64_t device_most_bytes(const struct device *device);

/* What more may be made, beside what exists and what is being made. */
uint64_t device_room_bytes(const struct device *device);
bool device_has_room(const struct device *device, uint64_t bytes);

/*
 * Worker's thread (or start-up): make a chunk of @bytes and export it. The fd is the caller's.
 * With @handle_out non-NULL the driver handle is kept as well, else it is released: the fd alone
 * holds the memory then.
 */
CUresult device_make_chunk(const struct device *device, uint64_t bytes, int *fd_out,
                           CUmemGenericAllocationHandle *handle_out);

/* Worker's thread: an fd, the caller's, for a chunk that this process has made. */
CUresult device_export_chunk(const struct device *device, CUmemGenericAllocationHandle handle,
                             int *fd_out);

#endif
