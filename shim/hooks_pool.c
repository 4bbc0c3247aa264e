/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's pools. Answers about them include the memory that they have from glaked. */
#include "proto/limits.h"
#include "shim/graphmem.h"
#include "shim/order.h"

static bool owns_pools(void)
{
	return shim_policy()->owns_async && shim_can_own() && !shim_is_forked();
}

CUresult shim_cuMemPoolCreate(CUmemoryPool *pool_out, const CUmemPoolProps *properties)
{
	CUresult result = real(cuMemPoolCreate)(pool_out, properties);
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		cuda_pool_created(*pool_out, properties);
	}
	return result;
}

/* The pool is forgotten before the driver's call, which may give the handle to another pool at once. */
CUresult shim_cuMemPoolDestroy(CUmemoryPool pool)
{
	if (!shim_is_forked()) {
		cuda_pool_destroyed(pool);
	}
	return real(cuMemPoolDestroy)(pool);
}

CUresult shim_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	CUresult result = real(cuDeviceSetMemPool)(device, pool);
	if (result == CUDA_SUCCESS && owns_pools()) {
		cuda_pool_set_current(device, pool);
	}
	return result;
}

CUresult shim_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	CUresult result = real(cuMemSetMemPool)(location, type, pool);
	if (result == CUDA_SUCCESS && owns_pools() &&
	    location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    type == CU_MEM_ALLOCATION_TYPE_PINNED) {
		cuda_pool_set_current(location->id, pool);
	}
	return result;
}

static struct cuda_pool *find(CUmemoryPool pool)
{
	return owns_pools() ? cuda_pool_find(pool) : NULL;
}

static uint64_t at_least(uint64_t value, uint64_t least)
{
	return value > least ? value : least;
}

/*
 * Free memory for stitching serves all pools of the device, and is counted in the pool that
 * cuMemAllocAsync() takes from: PyTorch calls that reserved. A pool reserves whole chunks: as with the driver, a small
 * allocation takes its bytes from free ones.
 */
static uint64_t reserved_of(const struct cuda_pool *pool, CUmemPool_attribute attribute)
{
	uint64_t n_bytes = cuda_pool_attribute(pool, attribute);
	bool is_high = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
	if (pool == cuda_pool_current(cuda_pool_device(pool))) {
		struct glake_pool_stats stats = heap_pool_stats(cuda_pool_device(pool));
		uint64_t now = cuda_pool_reserved_bytes(pool) + stats.reserved_bytes -
		               stats.used_bytes;
		n_bytes = is_high ? at_least(at_least(n_bytes, stats.peak_reserved_bytes), now)
		                  : now;
	}
	return glake_chunk_bytes(n_bytes);
}

static uint64_t ours_of(const struct cuda_pool *pool, CUmemPool_attribute attribute)
{
	bool is_reserved = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ||
	                   attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
	return is_reserved ? reserved_of(pool, attribute) : cuda_pool_attribute(pool, attribute);
}

CUresult shim_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = real(cuMemPoolGetAttribute)(handle, attribute, value);
	const struct cuda_pool *pool = result == CUDA_SUCCESS ? find(handle) : NULL;
	uint64_t ours = pool ? ours_of(pool, attribute) : 0;
	if (ours > 0) {
		/* All attributes that glaked has a part in have 64 bits. */
		*(cuuint64_t *)value += ours;
	}
	return result;
}

CUresult shim_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = real(cuMemPoolSetAttribute)(handle, attribute, value);
	struct cuda_pool *pool = result == CUDA_SUCCESS ? find(handle) : NULL;
	if (pool) {
		cuda_pool_reset(pool, attribute);
		if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH &&
		    pool == cuda_pool_current(cuda_pool_device(pool))) {
			heap_reset_pool_peaks(cuda_pool_device(pool));
		}
	}
	return result;
}

/* Warm memory belongs to the device, not to a pool. */
CUresult shim_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes)
{
	CUresult result = real(cuMemPoolTrimTo)(handle, keep_bytes);
	const struct cuda_pool *pool = result == CUDA_SUCCESS ? find(handle) : NULL;
	if (pool) {
		graphmem_collect();
		order_settle();
		uint64_t reserved_bytes = cuda_pool_reserved_bytes(pool);
		heap_trim(cuda_pool_device(pool),
		          keep_bytes > reserved_bytes ? keep_bytes - reserved_bytes : 0);
	}
	return result;
}

/* Access to glaked's memory is never taken back: other memory of the device may need it. */
CUresult shim_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t n)
{
	CUresult result = real(cuMemPoolSetAccess)(handle, access, n);
	const struct cuda_pool *pool = result == CUDA_SUCCESS ? find(handle) : NULL;
	for (size_t i = 0; pool && result == CUDA_SUCCESS && i < n; i++) {
		if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    access[i].location.id != cuda_pool_device(pool) &&
		    access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
			result = heap_add_peer(cuda_pool_device(pool), access[i].location.id);
		}
	}
	return result;
}
