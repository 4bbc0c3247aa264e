/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory pools. Freed memory stays with its pool, up to the release threshold, and serves the next allocation that fits
 * in it; small allocations share chunks with others and do not stay.
 *
 * A driver gives back memory above the threshold when somebody waits; here it is given back at once.
 */
#include "sim.h"

struct pool {
	struct pool *next; /* link: created */
	CUmemPoolProps props;
	unsigned device;
	bool is_destroyed; /* but some of its memory is in use */
	bool is_imported;  /* from another process: nothing can be allocated */
	cuuint64_t threshold;
	int reuse[CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES + 1];
	atomic_int_fast64_t used;
	atomic_int_fast64_t high;
	int64_t reserved; /* under the space's lock, as all below */
	int64_t reserved_high;
	struct mapping *kept; /* link: mapping.next_kept */
	atomic_uint peers;    /* bit per device that may reach its memory */
};

static struct pool standard[SIM_MAX_DEVICES];
static struct pool of_graphs[SIM_MAX_DEVICES];
static _Atomic(struct pool *) current[SIM_MAX_DEVICES]; /* NULL: the standard one */
static struct pool *created;                            /* owned; under the space's lock */

__attribute__((constructor)) static void number_standard_pools(void)
{
	for (unsigned i = 0; i < SIM_MAX_DEVICES; i++) {
		standard[i].device = i;
	}
}

static struct pool *standard_of(unsigned device)
{
	return &standard[device];
}

CUmemoryPool pool_current(unsigned device)
{
	struct pool *pool = atomic_load(&current[device]);

	return (CUmemoryPool)(pool ? pool : standard_of(device));
}

CUmemoryPool pool_of_graphs(unsigned device)
{
	return (CUmemoryPool)&of_graphs[device];
}

static bool is_standard(const struct pool *pool)
{
	return pool >= standard && pool < standard + SIM_MAX_DEVICES;
}

/* The program's pool; NULL: there is none, or it is destroyed. */
static struct pool *pool_from_handle(CUmemoryPool handle)
{
	struct pool *pool = (struct pool *)handle;

	if (is_standard(pool)) {
		return pool;
	}
	space_lock_read();
	struct pool *found = created;
	while (found && (found != pool || found->is_destroyed)) {
		found = found->next;
	}
	space_unlock();
	return found;
}

bool pool_is_known(CUmemoryPool handle)
{
	return pool_from_handle(handle) != NULL;
}

unsigned pool_device(CUmemoryPool handle)
{
	return ((const struct pool *)handle)->device;
}

bool pool_is_imported(CUmemoryPool handle)
{
	return ((const struct pool *)handle)->is_imported;
}

bool pool_is_shareable(CUmemoryPool handle)
{
	const struct pool *pool = (const struct pool *)handle;

	return !pool->is_imported &&
	       pool->props.handleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

/* ---- memory, with the space locked for writing ---- */

static uint64_t held_bytes(const struct mapping *m)
{
	return m->phys ? m->phys->bytes : m->range.bytes;
}

static void drop_kept(struct pool *pool, uint64_t keep)
{
	while (pool->kept && pool->reserved > (int64_t)keep) {
		struct mapping *m = pool->kept;
		pool->kept = m->next_kept;
		pool->reserved -= (int64_t)held_bytes(m);
		alloc_give(m);
	}
}

static void forget_if_unused(struct pool *pool)
{
	if (!pool->is_destroyed || atomic_load(&pool->used) > 0) {
		return;
	}
	drop_kept(pool, 0);
	for (struct pool **at = &created; *at; at = &(*at)->next) {
		if (*at == pool) {
			*at = pool->next;
			free(pool);
			return;
		}
	}
}

/* Take the smallest kept mapping that is large enough. */
bool pool_take(CUmemoryPool handle, uint64_t bytes, struct mapping *m)
{
	struct pool *pool = (struct pool *)handle;
	struct mapping **best = NULL;

	for (struct mapping **at = pool ? &pool->kept : NULL; at && *at; at = &(*at)->next_kept) {
		if (held_bytes(*at) >= bytes && (!best || held_bytes(*at) < held_bytes(*best))) {
			best = at;
		}
	}
	if (!best) {
		return false;
	}
	struct mapping *kept = *best;
	*best = kept->next_kept;
	pool->reserved -= (int64_t)held_bytes(kept); /* pool_charge() counts it again */
	m->range = (struct range){.start = kept->range.start, .bytes = bytes};
	m->host = kept->host;
	m->res = kept->res;
	m->phys = kept->phys;
	free(kept);
	return true;
}

bool pool_has_room(CUmemoryPool handle, uint64_t bytes)
{
	const struct pool *pool = (const struct pool *)handle;

	return !pool || pool->props.maxSize == 0 ||
	       (uint64_t)atomic_load(&pool->used) + bytes <= pool->props.maxSize;
}

static void raise_high(int64_t now, int64_t *high)
{
	*high = now > *high ? now : *high;
}

static void note_used(struct pool *pool, int64_t bytes)
{
	int64_t now = atomic_fetch_add(&pool->used, bytes) + bytes;

	if (now > atomic_load(&pool->high)) {
		atomic_store(&pool->high, now);
	}
}

void pool_charge(const struct mapping *m)
{
	struct pool *pool = (struct pool *)m->pool;

	if (!pool) {
		return;
	}
	note_used(pool, (int64_t)m->range.bytes);
	pool->reserved += (int64_t)held_bytes(m);
	raise_high(pool->reserved, &pool->reserved_high);
}

void pool_give(struct mapping *m)
{
	struct pool *pool = (struct pool *)m->pool;

	if (!pool) {
		alloc_give(m);
		return;
	}
	atomic_fetch_sub(&pool->used, (int64_t)m->range.bytes);
	if (m->phys && (uint64_t)pool->reserved <= pool->threshold && !pool->is_destroyed) {
		m->next_kept = pool->kept;
		pool->kept = m;
	} else {
		pool->reserved -= (int64_t)held_bytes(m);
		alloc_give(m);
		forget_if_unused(pool);
	}
}

void pool_graph_reserve(unsigned device, int64_t bytes)
{
	struct pool *pool = &of_graphs[device];

	pool->reserved += bytes;
	raise_high(pool->reserved, &pool->reserved_high);
}

void pool_graph_use(unsigned device, int64_t bytes)
{
	note_used(&of_graphs[device], bytes);
}

bool pool_trim_device(unsigned device)
{
	int64_t before = 0;
	int64_t after = 0;

	for (struct pool *pool = standard_of(device); pool;
	     pool = is_standard(pool) ? created : pool->next) {
		if (pool->device == device) {
			before += pool->reserved;
			drop_kept(pool, 0);
			after += pool->reserved;
		}
	}
	return after < before;
}

/* ---- life ---- */

static CUresult pool_new(CUmemoryPool *pool_out, const CUmemPoolProps *props, bool is_imported)
{
	struct pool *pool = calloc(1, sizeof(*pool));

	if (!pool) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pool->props = *props;
	pool->device = (unsigned)props->location.id;
	pool->is_imported = is_imported;
	space_lock_write();
	pool->next = created;
	created = pool;
	space_unlock();
	*pool_out = (CUmemoryPool)pool;
	return CUDA_SUCCESS;
}

CUresult pool_new_imported(CUmemoryPool *pool_out, unsigned device)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device},
	};

	return pool_new(pool_out, &props, true);
}

CUresult cuMemPoolCreate(CUmemoryPool *pool_out, const CUmemPoolProps *props)
{
	ENTER(cuMemPoolCreate);
	if (!pool_out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    props->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (!device_is_valid(props->location.id)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	return pool_new(pool_out, props, false);
}

/* The pool stays as long as some of its memory is in use. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	ENTER(cuMemPoolDestroy);
	struct pool *pool = pool_from_handle(handle);

	if (!pool || is_standard(pool)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned i = 0; i < SIM_MAX_DEVICES; i++) {
		struct pool *expected = pool;
		atomic_compare_exchange_strong(&current[i], &expected, NULL);
	}
	space_lock_write();
	pool->is_destroyed = true;
	drop_kept(pool, 0);
	forget_if_unused(pool);
	space_unlock();
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	ENTER(cuMemPoolTrimTo);
	struct pool *pool = pool_from_handle(handle);

	if (!pool) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_write();
	drop_kept(pool, keep);
	space_unlock();
	return CUDA_SUCCESS;
}

/* ---- attributes ---- */

static bool is_reuse(CUmemPool_attribute attribute)
{
	return attribute >= CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
	       attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	ENTER(cuMemPoolSetAttribute);
	struct pool *pool = pool_from_handle(handle);
	CUresult err = CUDA_SUCCESS;

	if (!pool || !value) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_write();
	if (is_reuse(attribute)) {
		pool->reuse[attribute] = *(int *)value ? 1 : -1; /* 0: the default */
	} else if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
		pool->threshold = *(cuuint64_t *)value;
	} else if ((attribute != CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH &&
	            attribute != CU_MEMPOOL_ATTR_USED_MEM_HIGH) ||
	           *(cuuint64_t *)value != 0) {
		err = CUDA_ERROR_INVALID_VALUE;
	} else if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) {
		pool->reserved_high = pool->reserved;
	} else {
		atomic_store(&pool->high, atomic_load(&pool->used));
	}
	space_unlock();
	return err;
}

/* Called with the space locked. */
static CUresult get_attribute(const struct pool *pool, CUmemPool_attribute attribute, void *value)
{
	if (is_reuse(attribute)) {
		*(int *)value = pool->reuse[attribute] >= 0;
		return CUDA_SUCCESS;
	}
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = pool->threshold;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*(cuuint64_t *)value = (cuuint64_t)pool->reserved;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*(cuuint64_t *)value = (cuuint64_t)pool->reserved_high;
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*(cuuint64_t *)value = (cuuint64_t)atomic_load(&pool->used);
		return CUDA_SUCCESS;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*(cuuint64_t *)value = (cuuint64_t)atomic_load(&pool->high);
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
	ENTER(cuMemPoolGetAttribute);
	CUresult err = capture_check_unsafe();
	if (err != CUDA_SUCCESS) {
		return err;
	}
	const struct pool *pool = pool_from_handle(handle);
	if (!pool || !value) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_read();
	err = get_attribute(pool, attribute, value);
	space_unlock();
	return err;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute, void *value)
{
	ENTER(cuDeviceGetGraphMemAttribute);
	/* The attribute of a pool for each attribute of graph memory. */
	static const CUmemPool_attribute same[] = {
		[CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT] = CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
		[CU_GRAPH_MEM_ATTR_USED_MEM_HIGH] = CU_MEMPOOL_ATTR_USED_MEM_HIGH,
		[CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT] = CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
		[CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH] = CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
	};

	if (!value || !device_is_valid(dev)) {
		return value ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	}
	if ((unsigned)attribute >= sizeof(same) / sizeof(same[0])) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_read();
	CUresult err = get_attribute(&of_graphs[dev], same[attribute], value);
	space_unlock();
	return err;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute attribute, void *value)
{
	ENTER(cuDeviceSetGraphMemAttribute);
	if (!value || !device_is_valid(dev)) {
		return value ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	}
	if ((attribute != CU_GRAPH_MEM_ATTR_USED_MEM_HIGH &&
	     attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) ||
	    *(cuuint64_t *)value != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct pool *pool = &of_graphs[dev];
	space_lock_write();
	if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) {
		atomic_store(&pool->high, atomic_load(&pool->used));
	} else {
		pool->reserved_high = pool->reserved;
	}
	space_unlock();
	return CUDA_SUCCESS;
}

/* ---- access ---- */

bool pool_is_open_to(CUmemoryPool handle, unsigned device)
{
	struct pool *pool = (struct pool *)handle;

	return atomic_load(&pool->peers) & 1U << device;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t n)
{
	ENTER(cuMemPoolSetAccess);
	struct pool *pool = pool_from_handle(handle);

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

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags_out, CUmemoryPool handle,
                            CUmemLocation *location)
{
	ENTER(cuMemPoolGetAccess);
	struct pool *pool = pool_from_handle(handle);

	if (!pool || !flags_out || !location) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || !device_is_valid(location->id)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	*flags_out = pool->device == (unsigned)location->id ||
	                             pool_is_open_to(handle, (unsigned)location->id)
	                     ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	                     : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
	ENTER(cuDeviceGetDefaultMemPool);
	if (!pool_out || !device_is_valid(dev)) {
		return pool_out ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	}
	*pool_out = (CUmemoryPool)standard_of((unsigned)dev);
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

static CUresult set_current(CUdevice dev, CUmemoryPool handle)
{
	struct pool *pool = pool_from_handle(handle);

	if (!pool || !device_is_valid(dev)) {
		return pool ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	}
	if (pool->device != (unsigned)dev || pool->is_imported) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	atomic_store(&current[dev], pool);
	return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool handle)
{
	ENTER(cuDeviceSetMemPool);
	return set_current(dev, handle);
}

#if CUDA_VERSION >= 13000
/* Pools have device memory here, never host or managed memory. */
static CUresult check_location(const CUmemLocation *location, CUmemAllocationType type)
{
	if (!location) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (type != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return device_is_valid(location->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location,
                                CUmemAllocationType type)
{
	ENTER(cuMemGetDefaultMemPool);
	CUresult err = pool_out ? check_location(location, type) : CUDA_ERROR_INVALID_VALUE;

	if (err == CUDA_SUCCESS) {
		*pool_out = (CUmemoryPool)standard_of((unsigned)location->id);
	}
	return err;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
	ENTER(cuMemGetMemPool);
	CUresult err = pool_out ? check_location(location, type) : CUDA_ERROR_INVALID_VALUE;

	if (err == CUDA_SUCCESS) {
		*pool_out = pool_current((unsigned)location->id);
	}
	return err;
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
	ENTER(cuMemSetMemPool);
	CUresult err = check_location(location, type);

	return err == CUDA_SUCCESS ? set_current(location->id, pool) : err;
}
#endif
