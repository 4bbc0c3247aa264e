/* SPDX-License-Identifier: Apache-2.0 */
/* The pools themselves, which are the driver's: what of theirs is ours is added. */
#include "shim/order.h"

static bool owns_pools(void)
{
	return shim_policy()->owns_async && shim_can_own() && !shim_is_forked();
}

CUresult shim_cuMemPoolCreate(CUmemoryPool *pool_out, const CUmemPoolProps *properties)
{
	CUresult result = real(cuMemPoolCreate)(pool_out, properties);
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		pool_created(*pool_out, properties);
	}
	return result;
}

/* Forgotten first: the handle may be another pool's as soon as the driver has destroyed it. */
CUresult shim_cuMemPoolDestroy(CUmemoryPool pool)
{
	if (!shim_is_forked()) {
		pool_destroyed(pool);
	}
	return real(cuMemPoolDestroy)(pool);
}

CUresult shim_cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	CUresult result = real(cuDeviceSetMemPool)(device, pool);
	if (result == CUDA_SUCCESS && owns_pools()) {
		pool_set_current(device, pool);
	}
	return result;
}

CUresult shim_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	CUresult result = real(cuMemSetMemPool)(location, type, pool);
	if (result == CUDA_SUCCESS && owns_pools() &&
	    location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    type == CU_MEM_ALLOCATION_TYPE_PINNED) {
		pool_set_current(location->id, pool);
	}
	return result;
}

static struct pool *find(CUmemoryPool pool)
{
	return owns_pools() ? pool_find(pool) : NULL;
}

CUresult shim_cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = real(cuMemPoolGetAttribute)(handle, attribute, value);
	const struct pool *pool = result == CUDA_SUCCESS ? find(handle) : NULL;
	uint64_t ours = pool ? pool_attribute(pool, attribute) : 0;
	if (ours > 0) {
		/* Only attributes of 64 bits have a part of ours. */
		*(cuuint64_t *)value += ours;
	}
	return result;
}

CUresult shim_cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	CUresult result = real(cuMemPoolSetAttribute)(handle, attribute, value);
	struct pool *pool = result == CUDA_SUCCESS ? find(handle) : NULL;
	if (pool) {
		pool_reset(pool, attribute);
	}
	return result;
}

/* What is free is not any pool's, but the device's. */
CUresult shim_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes)
{
	CUresult result = real(cuMemPoolTrimTo)(handle, keep_bytes);
	const struct pool *pool = result == CUDA_SUCCESS ? find(handle) : NULL;
	if (pool) {
		order_collect_all();
		uint64_t reserved_bytes = pool_reserved_bytes(pool);
		heap_trim(pool_device(pool),
		          keep_bytes > reserved_bytes ? keep_bytes - reserved_bytes : 0);
	}
	return result;
}

/* Given once, access to ours stays: other memory of the device may have it for another reason. */
CUresult shim_cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t n)
{
	CUresult result = real(cuMemPoolSetAccess)(handle, access, n);
	const struct pool *pool = result == CUDA_SUCCESS ? find(handle) : NULL;
	for (size_t i = 0; pool && result == CUDA_SUCCESS && i < n; i++) {
		if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    access[i].location.id != pool_device(pool) &&
		    access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
			result = heap_add_peer(pool_device(pool), access[i].location.id);
		}
	}
	return result;
}
