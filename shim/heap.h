/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device memory that the program has of us, by address.
 *
 * A region is one piece of glake_alloc(): either one allocation of the program, or a slab that holds
 * many small ones. Any address in it is found by way of its start.
 *
 * To free memory: claim it, so that nobody else does; see to it that nothing uses it; release it.
 *
 * One lock for all. No request to glaked and no wait happens under it, and no driver call but that of
 * giving access to peers.
 *
 * Owner: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_HEAP_H
#define GLAKE_SHIM_HEAP_H

#include "glake.h"
#include "shim/owner.h"
#include "shim/pool.h"

struct heap_place {
	CUdevice device;
	CUcontext ctx;     /* which allocates: it dies with it */
	uint64_t era;      /* of ctx (context.h) */
	struct pool *pool; /* of cuMemAllocAsync(); NULL: of cuMemAlloc() */
};

/* Of cuMemAlloc(), now, on this thread. False without a current context that is any good. */
bool heap_place_here(struct heap_place *place_out);

/* Memory that is not initialised, at least 512-byte aligned; @n_bytes is not 0. 0 or OWNER_E_*. */
int heap_alloc(const struct heap_place *place, uint64_t n_bytes, CUdeviceptr *address_out);

/* What there is to know of an allocation. */
struct heap_facts {
	CUdeviceptr address;
	uint64_t n_bytes; /* as asked for */
	CUdeviceptr region_address;
	uint64_t region_bytes;
	uint64_t id;        /* of the allocation; never used again */
	uint64_t region_id; /* of the region */
	struct heap_place place;
	bool has_ipc; /* legacy IPC can name it */
};

/* Is @address anywhere in memory that the program has of us? Then @facts_out (may be NULL). */
bool heap_find(CUdeviceptr address, struct heap_facts *facts_out);

/* Or at least in memory that is mapped for its next allocations? */
bool heap_has(CUdeviceptr address);

/* Name the region for other processes. False if glaked, or the one that gave it, is gone. */
bool heap_share(const struct heap_facts *facts, struct glake_share *share_out);

struct allocation;

/* The allocation that starts at @address, now nobody else's to free; NULL if there is none. */
struct allocation *heap_claim(CUdeviceptr address);
CUcontext heap_ctx_of(const struct allocation *allocation);
CUdevice heap_device_of(const struct allocation *allocation);
/* The program has it after all. */
void heap_unclaim(struct allocation *allocation);
/* Nothing uses it any more; parked or not. */
void heap_release(struct allocation *allocation);

/*
 * What is freed in stream order is parked, while work may use it: it is not the program's any more,
 * and still claimed. It is released, or becomes another allocation.
 */
void heap_park(struct allocation *allocation);
void heap_unpark(struct allocation *allocation);
CUdeviceptr heap_reuse(struct allocation *allocation, const struct heap_place *place,
                       uint64_t n_bytes);
/* The bytes that it takes, that one of @n_bytes would, and that one may have that it becomes. */
uint64_t heap_capacity(const struct allocation *allocation);
uint64_t heap_round(uint64_t n_bytes);
uint64_t heap_reusable(const struct allocation *allocation);

/* Of the free memory kept for @device, @keep_bytes remain. */
void heap_trim(CUdevice device, uint64_t keep_bytes);

/* The life of @ctx before @era (context.h) is over, and with it all that it has allocated. */
void heap_release_ctx(CUcontext ctx, uint64_t era);

/*
 * From now on, @reader may access what we have and will have on @device. The driver's error if it
 * may not; then what we will have is not opened.
 */
CUresult heap_add_peer(CUdevice device, CUdevice reader);

#endif
