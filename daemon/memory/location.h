/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A location: where bytes can be. A GPU, or host memory of a NUMA node.
 *
 * It has what both have: a worker for driver calls, the bytes by use, the limit. What only a GPU has is in
 * device.h, and how host memory is found in node.h.
 *
 * Invariant: all locations of a glaked have one order, that of their slots: GPUs by number, then nodes by number. A
 * request for several is granted in this order, so two of them do not wait for each other (alloc_several.h). Tables by
 * location (of tenants, holders, stocks, and of those who were asked) go by slot.
 *
 * Owner: a device, or the server's nodes.
 * Lifetime: device_open() or nodes_open() to location_close(), with the driver initialised throughout. The worker's
 *           thread runs from location_start() on: before the first chunk of the location is made or adopted.
 * Threads: the fields above `worker` are constant after the start, so the worker's thread may read them. All
 *          others belong to the loop thread.
 */
#ifndef GLAKE_DAEMON_LOCATION_H
#define GLAKE_DAEMON_LOCATION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/log.h"
#include "daemon/memory/worker.h"
#include "proto/cudrv.h"

/* "device 0", "host node 1" */
#define LOCATION_NAME_BYTES 32

enum location_kind {
	LOCATION_GPU,
	LOCATION_HOST,
};

/* The use of a chunk; each location keeps the sum of bytes per use. */
enum chunk_use {
	CHUNK_STOCK,   /* made ahead */
	CHUNK_PRIVATE, /* of one holder */
	CHUNK_LOADING, /* of a load; or the mover still has it, but nobody wants it any more */
	CHUNK_BLOCK,   /* of the store */
	CHUNK_COPIES,  /* large ones in host memory, see extent.h */
	CHUNK_KEPT,    /* outlived its process (holders/kept_step.h) */
	CHUNK_N_USES,
};

struct location {
	enum location_kind kind;
	uint32_t number; /* the GPU's, in the order of the configuration; or the NUMA node's */
	uint32_t slot;
	const struct cudrv *drv;        /* borrowed */
	CUmemAllocationProp properties; /* of its chunks */
	uint64_t total_bytes;
	uint64_t usable_bytes; /* by the configuration */
	uint64_t
		anchor_bytes; /* of a chunk of glaked's own: counted as made ahead, and never granted */
	struct log_limit log_limit; /* of lines about the driver's refusals, which requests cause */

	struct worker worker;
	bool is_started; /* the worker */
	uint64_t use_bytes[CHUNK_N_USES];
	uint64_t coming_bytes;          /* the worker is making them; in no use_bytes yet */
	uint64_t promised_bytes;        /* reserved for processes (promise.h); nobody's chunks */
	uint64_t unsealing_bytes;       /* the reserve for unsealing (reserve.h); nobody's chunks */
	uint64_t saved_alone_bytes;     /* by what was sealed by itself */
	double unsealing_part;          /* of these that the reserve wants */
	_Atomic uint64_t leaving_bytes; /* the worker will close them; in no use_bytes any more */
	uint64_t forgetting_bytes; /* of CHUNK_COPIES: free when the mover has forgotten them */
	uint64_t
		looked_at_bytes; /* of blocks that the mover reads unasked: they cannot be evicted until it is done */
	uint64_t used_block_bytes;    /* of CHUNK_BLOCK: blocks with users */
	uint64_t logical_block_bytes; /* sum over holders of the bytes of their blocks */
};

/* The worker must have nothing pending. Harmless if it has not started. */
void location_close(struct location *at);

/*
 * Start its worker, if it has not. Returns 0, or -errno after a log line: nothing can be made or released
 * there.
 */
int location_start(struct location *at, uv_loop_t *loop);

/* Write the location's name for log lines and answers. Returns @name. */
const char *location_name(const struct location *at, char name[LOCATION_NAME_BYTES]);

/* Bytes of chunks that exist: the word `physical` of the docs. */
uint64_t location_physical_bytes(const struct location *at);

/* The most bytes that can be granted at one time. */
uint64_t location_most_bytes(const struct location *at);

/* The bytes that may be made beyond existing chunks and those being made. */
uint64_t location_room_bytes(const struct location *at);
bool location_has_room(const struct location *at, uint64_t bytes);

/*
 * Worker's thread (or start-up): make a chunk of @bytes and export it. The caller owns the fd, and
 * the driver handle if @handle_out is not NULL. Otherwise the handle is released, and the fd alone
 * holds the memory.
 */
CUresult location_make_chunk(const struct location *at, uint64_t bytes, int *fd_out,
                             CUmemGenericAllocationHandle *handle_out);

/* Worker's thread: make an fd for a chunk that this process has made. The caller owns it. */
CUresult location_export_chunk(const struct location *at, CUmemGenericAllocationHandle handle,
                               int *fd_out);

#endif
