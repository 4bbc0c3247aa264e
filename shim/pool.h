/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's memory pools. Allocations from some are ours: from the default pool of each device, and
 * from the program's own ones of plain device memory. The pools stay the driver's; here is what the
 * program has of us in them, and what it has of the driver.
 *
 * Owner: the process. Lifetime: a pool that was destroyed keeps its place while memory of it is in
 * use. Threads: any.
 */
#ifndef GLAKE_SHIM_POOL_H
#define GLAKE_SHIM_POOL_H

#include "shim/shim.h"

struct pool;

/* NULL: its memory is the driver's. */
struct pool *pool_find(CUmemoryPool handle);
/* That cuMemAllocAsync() takes from on @device; NULL as above. */
struct pool *pool_current(CUdevice device);
void pool_set_current(CUdevice device, CUmemoryPool handle);

/* The program has made one, and destroyed one. */
void pool_created(CUmemoryPool handle, const CUmemPoolProps *properties);
void pool_destroyed(CUmemoryPool handle);

CUmemoryPool pool_handle(const struct pool *pool);
CUdevice pool_device(const struct pool *pool);

/* What the program has, and what is kept for it besides, has grown by so much. NULL is fine. */
void pool_note(struct pool *pool, int64_t used_bytes, int64_t reserved_bytes);
uint64_t pool_reserved_bytes(const struct pool *pool);
/* What the driver itself keeps for all pools of @device. Asks it. */
uint64_t pool_driver_bytes(CUdevice device);
/* Our part of the attribute; 0 if we have none in it. */
uint64_t pool_attribute(const struct pool *pool, CUmemPool_attribute attribute);
/* A high mark starts anew. */
void pool_reset(struct pool *pool, CUmemPool_attribute attribute);

#endif
