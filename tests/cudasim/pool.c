/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools: handles with counts. They keep no memory. */
#include "sim.h"

#include <stdlib.h>

struct pool {
	CUmemPoolProps props;
	uint64_t threshold;
	atomic_int_fast64_t used;
	atomic_int_fast64_t high;
	atomic_uint peers; /* bit per device that may reach what is in it */
};

static struct pool standard[SIM_MAX_DEVICES];
static struct pool of_graphs[SIM_MAX_DEVICES];
static _Atomic(struct pool *) current[SIM_MAX_DEVICES]; /* NULL: the standard one */

CUmemoryPool pool_current(unsigned device)
{
	struct pool *pool = atomic_load(&current[device]);

	return (CUmemoryPool)(pool ? pool : &standard[device]);
}

CUmemoryPool pool_of_graphs(unsigned device)
{
	return (CUmemoryPool)&of_graphs[device];
}

void pool_note(CUmemoryPool handle, int64_t bytes)
{
	struct pool *pool = (struct pool *)handle;

	if (pool) {
		int64_t now = atomic_fetch_add(&pool->used, bytes) + bytes;
		if (now > atomic_load(&pool->high)) {
			atomic_store(&pool->high, now);
		}
	}
}

CUresult cuMemPoolCreate(CUmemoryPool *pool_out, const CUmemPoolProps *props)
{
	ENTER(cuMemPoolCreate);
	if (!pool_out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct pool *pool = calloc(1, sizeof(*pool));
	if (!pool) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pool->props = *props;
	*pool_out = (CUmemoryPool)pool;
	return CUDA_SUCCESS;
}

/* Memory that is still in use refers to it, so it stays. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	ENTER(cuMemPoolDestroy);
	struct pool *pool = (struct pool *)handle;

	if (!pool || (pool >= standard && pool < standard + SIM_MAX_DEVICES)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned i = 0; i < SIM_MAX_DEVICES; i++) {
		struct pool *expected = pool;
		atomic_compare_exchange_strong(&current[i], &expected, NULL);
	}
	if (atomic_load(&pool->used) == 0) {
		free(pool);
	}
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	ENTER(cuMemPoolTrimTo);
	(void)keep;
	return handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	ENTER(cuMemPoolSetAttribute);
	struct pool *pool = (struct pool *)handle;

	if (!pool || !value) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold = *(cuuint64_t *)value;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		atomic_store(&pool->high, atomic_load(&pool->used));
		return *(cuuint64_t *)value == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	ENTER(cuMemPoolGetAttribute);
	CUresult forbidden = capture_check_unsafe();
	if (forbidden != CUDA_SUCCESS) {
		return forbidden;
	}
	struct pool *pool = (struct pool *)handle;

	if (!pool || !value) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = pool->threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = (cuuint64_t)atomic_load(&pool->used);
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = (cuuint64_t)atomic_load(&pool->high);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

bool pool_is_open_to(CUmemoryPool handle, unsigned device)
{
	struct pool *pool = (struct pool *)handle;

	return atomic_load(&pool->peers) & 1U << device;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute, void *value)
{
	ENTER(cuDeviceGetGraphMemAttribute);
	if (!value || !device_is_valid(dev)) {
		return value ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	}
	const struct pool *pool = &of_graphs[dev];
	switch (attribute) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = (cuuint64_t)atomic_load(&pool->used);
		return CUDA_SUCCESS;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = (cuuint64_t)atomic_load(&pool->high);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t n)
{
	ENTER(cuMemPoolSetAccess);
	struct pool *pool = (struct pool *)handle;

	if (!pool || (!access && n > 0)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; i < n; i++) {
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		    !device_is_valid(access[i].location.id)) {
			return CUDA_ERROR_INVALID_DEVICE;
		}
	}
	for (size_t i = 0; i < n; i++) {
		unsigned bit = 1U << access[i].location.id;
		if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
			atomic_fetch_or(&pool->peers, bit);
		} else {
			atomic_fetch_and(&pool->peers, ~bit);
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
	ENTER(cuDeviceGetDefaultMemPool);
	if (!pool_out || !device_is_valid(dev)) {
		return pool_out ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	}
	*pool_out = (CUmemoryPool)&standard[dev];
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
	ENTER(cuDeviceGetMemPool);
	if (!pool_out || !device_is_valid(dev)) {
		return pool_out ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	}
	*pool_out = pool_current((unsigned)dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool handle)
{
	ENTER(cuDeviceSetMemPool);
	if (!handle || !device_is_valid(dev)) {
		return handle ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	}
	atomic_store(&current[dev], (struct pool *)handle);
	return CUDA_SUCCESS;
}
