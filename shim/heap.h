/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device memory that the program has of us: the library's heap (glake_shim.h), of whichever session is
 * the current one, and what the program sees of it: contexts, pools, counts.
 *
 * To free memory: claim it, so that nobody else does; see to it that nothing uses it; release it.
 *
 * Owner: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_HEAP_H
#define GLAKE_SHIM_HEAP_H

#include "glake_shim.h"
#include "shim/connection.h"
#include "shim/pool.h"

struct heap_place {
	CUdevice device;
	CUcontext ctx;       /* which allocates: it dies with it */
	uint64_t generation; /* of ctx (context.h) */
	struct pool *pool;   /* of cuMemAllocAsync(); NULL: of cuMemAlloc() */
};

/* Of cuMemAlloc(), now, on this thread. False without a current context that is any good. */
bool heap_place_here(struct heap_place *place_out);

/*
 * Memory that is not initialised, at least 512-byte aligned; @n_bytes is not 0. @wait: zeroes, or as a call
 * for the same memory left it. 0 or CONNECTION_E_*.
 */
int heap_alloc(const struct heap_place *place, uint64_t n_bytes, struct glake__wait *wait,
               CUdeviceptr *address_out);

/* What there is to know of an allocation. */
struct heap_facts {
	CUdeviceptr address;
	uint64_t n_bytes; /* as asked for */
	CUdeviceptr region_address;
	uint64_t region_bytes;
	uint64_t id;        /* of the allocation; never used again */
	uint64_t region_id; /* of the region */
	struct heap_place place;
	bool has_ipc;                        /* legacy IPC can name it */
	const struct connection *connection; /* whose it is; it may be gone with the memory */
};

/* Is @address anywhere in memory that the program has of us? Then @facts_out (may be NULL). */
bool heap_find(CUdeviceptr address, struct heap_facts *facts_out);

/* Name the region for other processes. False if glaked, or the one that gave it, is gone. */
bool heap_share(const struct heap_facts *facts, struct glake_share *share_out);

/* Nothing uses a claimed one any more; parked or not. */
void heap_release(struct glake__allocation *allocation);

/*
 * What is freed in stream order is parked, while work may use it: it is not the program's any more,
 * and still claimed. It is released, or becomes another allocation: of the size that parking returns.
 */
uint64_t heap_park(struct glake__allocation *allocation);
void heap_unpark(struct glake__allocation *allocation);
CUdeviceptr heap_reuse(struct glake__allocation *allocation, const struct heap_place *place,
                       uint64_t n_bytes);

/* Of the free memory kept for @device, @keep_bytes remain. */
void heap_trim(CUdevice device, uint64_t keep_bytes);

/* The life of @ctx before @generation (context.h) is over, and with it all that it has allocated. */
void heap_release_ctx(CUcontext ctx, uint64_t generation);

/*
 * From now on, @reader may access what we have and will have on @device. The driver's error if it
 * may not; then what we will have is not opened.
 */
CUresult heap_add_peer(CUdevice device, CUdevice reader);

#endif
