/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device memory that the program has from glaked: the library's heap (glake_shim.h), over all
 * connections, with the context and pool of each allocation.
 *
 * To free memory: claim it, so that no other thread frees it; make sure that nothing uses it;
 * release it.
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_HEAP_H
#define GLAKE_SHIM_HEAP_H

#include "glake_shim.h"
#include "shim/connection.h"
#include "shim/cuda_pool.h"

/* The target of an allocation: where it is made. */
struct heap_target {
	CUdevice device;
	CUcontext ctx;          /* allocates; the memory ends with it */
	uint64_t generation;    /* of ctx (context.h) */
	struct cuda_pool *pool; /* of cuMemAllocAsync(); NULL: of cuMemAlloc() */
	uint64_t
		stream; /* its id + 1, in whose order it is allocated, if that is stitched; else 0 */
};

/* The target of a cuMemAlloc() by this thread, now. False: there is no usable current context. */
bool heap_target_here(struct heap_target *target_out);

/*
 * Allocate. The memory is not initialised and at least 512-byte aligned; @n_bytes is not 0. *wait
 * is all zeroes, or as a call for the same memory left it. Blocks while glaked is asked. Returns 0
 * or CONNECTION_E_*.
 */
int heap_alloc(const struct heap_target *target, uint64_t n_bytes, struct glake__wait *wait,
               CUdeviceptr *address_out);

/* Like heap_alloc(), without asking glaked: does not block. False: glaked must be asked. */
bool heap_alloc_warm(const struct heap_target *target, uint64_t n_bytes, CUdeviceptr *address_out);

/* A description of an allocation. */
struct heap_facts {
	CUdeviceptr address;
	uint64_t n_bytes; /* as asked for */
	CUdeviceptr region_address;
	uint64_t region_bytes;
	uint64_t id;        /* the allocation's; never used again */
	uint64_t region_id; /* of the region */
	struct heap_target target;
	bool has_ipc;                        /* legacy IPC can name it */
	const struct connection *connection; /* borrowed; valid while the memory is */
};

/* Is @address in memory that the program has from glaked? Then @facts_out (may be NULL) is set. */
bool heap_find(CUdeviceptr address, struct heap_facts *facts_out);

/*
 * Give the region a name for other processes. Asks glaked. False: glaked does not answer, or the
 * region's connection is dead.
 */
bool heap_share(const struct heap_facts *facts, struct glake_share *share_out);

/* Give a claimed allocation back, parked or not. Nothing uses it any more. */
void heap_release(struct glake__allocation *allocation);
/* Release an allocation that is asleep, without waking it. False: that is impossible, and it is still the caller's. */
bool heap_release_asleep(struct glake__allocation *allocation);

/* Free memory of a pool in stream order, if another free there waits for an event. False: nothing has happened; park it. */
bool heap_join(CUdeviceptr address, const struct glake_stream *stream);

/*
 * Memory that is freed in stream order is parked while work may use it: it is no longer the
 * program's, and stays claimed. park, before @stream's event: false without host memory. parked: behind it.
 * unpark: it is the program's again. reuse: it becomes a new allocation; returns the address.
 */
bool heap_park(struct glake__allocation *allocation, const struct glake_stream *stream,
               struct glake__parking *parking_out);
void heap_parked(struct glake__parking *parking);
void heap_unpark(struct glake__allocation *allocation, struct glake__parking *parking);
CUdeviceptr heap_reuse(struct glake__allocation *allocation, const struct heap_target *target,
                       uint64_t n_bytes);

/* The numbers of @device's memory that is split, merged and stitched; 0s if there is none. */
struct glake_pool_stats heap_pool_stats(CUdevice device);
void heap_reset_pool_peaks(CUdevice device);

/* Keep @keep_bytes of the warm memory of @device, and give the rest back to glaked. */
void heap_trim(CUdevice device, uint64_t keep_bytes);

/* Context @ctx has ended: release what it allocated before @generation (context.h). */
void heap_release_ctx(CUcontext ctx, uint64_t generation);

/*
 * From now on device @reader may access memory of glaked on @device, present and future. Returns
 * CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY: then future memory is not opened.
 */
CUresult heap_add_peer(CUdevice device, CUdevice reader);

/* Is there memory of glaked on @device that @reader may not access? */
bool heap_is_closed_to(CUdevice device, CUdevice reader);

#endif
