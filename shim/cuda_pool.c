/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/cuda_pool.h"

#include <pthread.h>
#include <stdatomic.h>

#define MAX_POOLS 256u /* later ones are left to the driver */

struct cuda_pool {
	CUmemoryPool handle; /* NULL: destroyed, or a free slot */
	CUdevice device;
	bool is_foreign; /* the driver serves it */
	atomic_int_fast64_t used_bytes;
	atomic_int_fast64_t used_high;
	atomic_int_fast64_t reserved_bytes; /* used and parked */
	atomic_int_fast64_t reserved_high;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_pool pools[MAX_POOLS]; /* a slot once used stays below n_pools */
static size_t n_pools;

/* The pools of each device; the driver is asked when they are first wanted. */
static struct {
	atomic_bool is_known;
	struct cuda_pool *standard;          /* borrowed */
	_Atomic(struct cuda_pool *) current; /* borrowed; NULL: the driver's */
	CUmemoryPool current_handle;         /* under the lock */
} devices[SHIM_MAX_DEVICES];

/* ---- with the lock held ----------------------------------------------------------------------- */

static struct cuda_pool *find_locked(CUmemoryPool handle)
{
	for (size_t i = 0; handle && i < n_pools; i++) {
		if (pools[i].handle == handle) {
			return &pools[i];
		}
	}
	return NULL;
}

static struct cuda_pool *add_locked(CUmemoryPool handle, CUdevice device, bool is_foreign)
{
	size_t at = 0;
	while (at < n_pools && (pools[at].handle || pools[at].reserved_bytes != 0)) {
		at++;
	}
	if (at == MAX_POOLS) {
		return NULL;
	}
	struct cuda_pool *pool = &pools[at];
	n_pools += at == n_pools;
	pool->handle = handle;
	pool->device = device;
	pool->is_foreign = is_foreign;
	pool->used_high = 0;
	pool->reserved_high = 0;
	return pool;
}

static void set_current_locked(CUdevice device, CUmemoryPool handle)
{
	struct cuda_pool *pool = find_locked(handle);
	bool is_ours = pool && !pool->is_foreign && pool->device == device;
	devices[device].current = is_ours ? pool : NULL;
	devices[device].current_handle = handle;
}

/* ---- pools ------------------------------------------------------------------------------------ */

/* Asks the driver, without the lock. */
static void learn(CUdevice device)
{
	CUmemoryPool standard = NULL;
	CUmemoryPool now = NULL;
	bool is_there = real(cuDeviceGetDefaultMemPool) && real(cuDeviceGetMemPool) &&
	                real(cuDeviceGetDefaultMemPool)(&standard, device) == CUDA_SUCCESS &&
	                real(cuDeviceGetMemPool)(&now, device) == CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	if (is_there && !devices[device].is_known) {
		devices[device].standard = add_locked(standard, device, false);
		set_current_locked(device, now);
	}
	devices[device].is_known = true;
	pthread_mutex_unlock(&lock);
}

static bool is_device(CUdevice device)
{
	return device >= 0 && device < SHIM_MAX_DEVICES;
}

struct cuda_pool *cuda_pool_current(CUdevice device)
{
	if (!is_device(device)) {
		return NULL;
	}
	if (!devices[device].is_known) {
		learn(device);
	}
	return devices[device].current;
}

struct cuda_pool *cuda_pool_find(CUmemoryPool handle)
{
	CUdevice device;
	/* An unknown handle may be the default pool of a device that was not asked for yet. */
	if (real(cuCtxGetDevice)(&device) == CUDA_SUCCESS) {
		cuda_pool_current(device);
	}
	pthread_mutex_lock(&lock);
	struct cuda_pool *pool = find_locked(handle);
	bool is_ours = pool && !pool->is_foreign;
	pthread_mutex_unlock(&lock);
	return is_ours ? pool : NULL;
}

void cuda_pool_set_current(CUdevice device, CUmemoryPool handle)
{
	if (!is_device(device)) {
		return;
	}
	cuda_pool_current(device);
	pthread_mutex_lock(&lock);
	set_current_locked(device, handle);
	pthread_mutex_unlock(&lock);
}

/* Are bytes set that our toolkit reserves? Then the program wants something of a later driver. */
static bool asks_more(const CUmemPoolProps *properties)
{
	const unsigned char *bytes = (const void *)properties;
	size_t at = offsetof(CUmemPoolProps, maxSize) + sizeof(properties->maxSize);
	while (at < sizeof(*properties) && bytes[at] == 0) {
		at++;
	}
	return at < sizeof(*properties);
}

static bool is_plain(const CUmemPoolProps *properties)
{
	return properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
	       properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	       is_device(properties->location.id) && properties->maxSize == 0 &&
	       !asks_more(properties);
}

void cuda_pool_created(CUmemoryPool handle, const CUmemPoolProps *properties)
{
	if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    is_device(properties->location.id)) {
		pthread_mutex_lock(&lock);
		add_locked(handle, properties->location.id, !is_plain(properties));
		pthread_mutex_unlock(&lock);
	}
}

/*
 * If the current pool is destroyed, the default pool becomes current again. The default pool itself
 * cannot be destroyed, though a program may try.
 */
void cuda_pool_destroyed(CUmemoryPool handle)
{
	pthread_mutex_lock(&lock);
	struct cuda_pool *pool = find_locked(handle);
	if (pool && devices[pool->device].standard == pool) {
		pthread_mutex_unlock(&lock);
		return;
	}
	if (pool) {
		pool->handle = NULL;
	}
	for (CUdevice i = 0; i < SHIM_MAX_DEVICES; i++) {
		if (devices[i].standard && devices[i].current_handle == handle) {
			set_current_locked(i, devices[i].standard->handle);
		}
	}
	pthread_mutex_unlock(&lock);
}

CUmemoryPool cuda_pool_handle(const struct cuda_pool *pool)
{
	return pool->handle;
}

CUdevice cuda_pool_device(const struct cuda_pool *pool)
{
	return pool->device;
}

/* ---- how much --------------------------------------------------------------------------------- */

static void grow(atomic_int_fast64_t *value, atomic_int_fast64_t *high, int64_t n_bytes)
{
	int64_t now = atomic_fetch_add(value, n_bytes) + n_bytes;
	int64_t before = *high;
	while (now > before && !atomic_compare_exchange_weak(high, &before, now)) {
	}
}

void cuda_pool_note(struct cuda_pool *pool, int64_t used_bytes, int64_t reserved_bytes)
{
	if (pool) {
		grow(&pool->used_bytes, &pool->used_high, used_bytes);
		grow(&pool->reserved_bytes, &pool->reserved_high, reserved_bytes);
	}
}

uint64_t cuda_pool_reserved_bytes(const struct cuda_pool *pool)
{
	return (uint64_t)pool->reserved_bytes;
}

uint64_t cuda_pool_driver_bytes(CUdevice device)
{
	uint64_t total = 0;
	cuda_pool_current(device);
	/* The lock is held across the driver's calls, so that no pool is destroyed meanwhile. */
	pthread_mutex_lock(&lock);
	for (size_t i = 0; real(cuMemPoolGetAttribute) && i < n_pools; i++) {
		cuuint64_t n_bytes = 0;
		if (pools[i].handle && pools[i].device == device &&
		    real(cuMemPoolGetAttribute)(pools[i].handle,
		                                CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
		                                &n_bytes) == CUDA_SUCCESS) {
			total += n_bytes;
		}
	}
	pthread_mutex_unlock(&lock);
	return total;
}

uint64_t cuda_pool_attribute(const struct cuda_pool *pool, CUmemPool_attribute attribute)
{
	switch (attribute) {
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return (uint64_t)pool->used_bytes;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return (uint64_t)pool->used_high;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		return (uint64_t)pool->reserved_bytes;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return (uint64_t)pool->reserved_high;
	default:
		return 0;
	}
}

void cuda_pool_reset(struct cuda_pool *pool, CUmemPool_attribute attribute)
{
	if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
		pool->used_high = pool->used_bytes;
	} else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
		pool->reserved_high = pool->reserved_bytes;
	}
}
