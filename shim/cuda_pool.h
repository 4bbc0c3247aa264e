/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's memory pools. The shim serves allocations from some of them: from the default pool
 * of each device, and from pools of plain device memory that the program has created. The pools
 * stay the driver's. This file counts the bytes that the program has from glaked in each of them.
 *
 * Ownership: the process. Lifetime: the record of a destroyed pool stays until the last memory of
 * it is freed. Blocking: no, but some calls ask the driver. Threads: any. Errors: none; pools beyond
 * a maximum are left to the driver.
 */
#ifndef GLAKE_SHIM_CUDA_POOL_H
#define GLAKE_SHIM_CUDA_POOL_H

#include "shim/shim.h"

struct cuda_pool;

/* The pool of the driver's handle. NULL: the driver serves it. */
struct cuda_pool *cuda_pool_find(CUmemoryPool handle);
/* The pool that cuMemAllocAsync() takes from on @device; NULL as above. */
struct cuda_pool *cuda_pool_current(CUdevice device);
void cuda_pool_set_current(CUdevice device, CUmemoryPool handle);

/* The program has created a pool. */
void cuda_pool_created(CUmemoryPool handle, const CUmemPoolProps *properties);
/* The program is about to destroy a pool. */
void cuda_pool_destroyed(CUmemoryPool handle);

CUmemoryPool cuda_pool_handle(const struct cuda_pool *pool);
CUdevice cuda_pool_device(const struct cuda_pool *pool);

/*
 * Count memory of glaked: @used_bytes more are the program's, and @reserved_bytes more are used or
 * parked. Both may be negative. NULL is allowed, for memory of no pool.
 */
void cuda_pool_note(struct cuda_pool *pool, int64_t used_bytes, int64_t reserved_bytes);
uint64_t cuda_pool_reserved_bytes(const struct cuda_pool *pool);
/* The bytes that the driver keeps for all pools of @device. Asks the driver. */
uint64_t cuda_pool_driver_bytes(CUdevice device);
/* glaked's part of an attribute of the pool, in bytes; 0: it has none. */
uint64_t cuda_pool_attribute(const struct cuda_pool *pool, CUmemPool_attribute attribute);
/* Set a high mark back to the bytes that are used now. Other attributes are ignored. */
void cuda_pool_reset(struct cuda_pool *pool, CUmemPool_attribute attribute);

#endif
