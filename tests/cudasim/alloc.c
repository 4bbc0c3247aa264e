/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemAlloc() and its family, and cuMemGetInfo(). */
#include "graph.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PITCH_BYTES 512

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

void alloc_chunk_free(const struct alloc_chunk *chunk)
{
	munmap(chunk->host, chunk->phys->bytes);
	space_unreserve(chunk->res);
	phys_unref(chunk->phys);
}

CUresult alloc_chunk_new(unsigned device, uint64_t bytes, bool keeps_fd,
                         struct alloc_chunk *chunk_out)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device},
	};
	struct phys *phys;
	struct reservation *res;

	CUresult err = phys_new(&prop, bytes, &phys);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	err = space_reserve(bytes, SIM_GRANULARITY, 0, &res);
	if (err != CUDA_SUCCESS) {
		phys_unref(phys);
		return err;
	}
	res->is_internal = true;
	uint8_t *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, phys->fd, 0);
	if (host == MAP_FAILED) {
		space_unreserve(res);
		phys_unref(phys);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!keeps_fd) {
		phys_drop_fd(phys);
	}
	*chunk_out = (struct alloc_chunk){.res = res, .phys = phys, .host = host};
	return CUDA_SUCCESS;
}

void alloc_give(struct mapping *m)
{
	if (m->slab) {
		slab_give(m);
	} else {
		alloc_chunk_free(&(struct alloc_chunk){m->res, m->phys, m->host});
	}
	free(m);
}

static void free_locked(struct mapping *m)
{
	space_remove(m);
	pool_give(m);
}

/* Locked. */
static CUresult take_memory(struct mapping *m, uint64_t bytes)
{
	struct alloc_chunk chunk;

	if (!pool_has_room(m->pool, bytes)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	bool is_shareable = m->pool && pool_is_shareable(m->pool);
	if (bytes < SIM_GRANULARITY && !is_shareable) {
		return slab_take(m->device, bytes, m);
	}
	/* Sizes that would wrap around when rounded up are refused here, too. */
	if (bytes > device_total_bytes((CUdevice)m->device)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (pool_take(m->pool, bytes, m)) {
		return CUDA_SUCCESS;
	}
	CUresult err = alloc_chunk_new(m->device, round_up(bytes, SIM_GRANULARITY), is_shareable,
	                               &chunk);
	if (err == CUDA_ERROR_OUT_OF_MEMORY && pool_trim_device(m->device)) {
		err = alloc_chunk_new(m->device, round_up(bytes, SIM_GRANULARITY), is_shareable,
		                      &chunk);
	}
	if (err == CUDA_SUCCESS) {
		m->range = (struct range){.start = chunk.res->range.start, .bytes = bytes};
		m->host = chunk.host;
		m->res = chunk.res;
		m->phys = chunk.phys;
	}
	return err;
}

CUresult alloc_enter(struct mapping *m, CUresult err, CUdeviceptr *ptr_out)
{
	if (err != CUDA_SUCCESS) {
		free(m);
	} else if (space_add(m) != 0) {
		alloc_give(m);
		err = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		*ptr_out = m->range.start;
		pool_charge(m);
	}
	space_unlock();
	return err;
}

CUresult alloc_device(unsigned device, uint64_t bytes, CUmemoryPool pool, CUdeviceptr *ptr_out)
{
	struct mapping *m = calloc(1, sizeof(*m));

	if (!m) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->kind = SPACE_ALLOC;
	m->device = device;
	m->ctx = pool ? ctx_of_device(device) : ctx_current();
	m->id = space_new_id();
	m->pool = pool;
	m->access[device] = SPACE_WRITE;
	space_lock_write();
	CUresult err = take_memory(m, bytes);
	return alloc_enter(m, err, ptr_out);
}

static bool is_freeable(const struct mapping *m, CUdeviceptr ptr)
{
	return m && m->kind == SPACE_ALLOC && m->range.start == ptr;
}

CUresult alloc_free(CUdeviceptr ptr)
{
	space_lock_write();
	struct mapping *m = space_find(ptr);
	bool ok = is_freeable(m, ptr);
	if (ok && m->graphmem) {
		ok = graphmem_give(m->graphmem);
	} else if (ok) {
		free_locked(m);
	}
	space_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool is_alloc_of(const struct mapping *m, const struct ctx *ctx)
{
	return m->kind == SPACE_ALLOC && m->ctx == ctx && !m->graphmem;
}

void alloc_free_all(const struct ctx *ctx)
{
	struct mapping **list;

	space_lock_write();
	size_t n = space_gather(is_alloc_of, ctx, &list);
	for (size_t i = 0; i < n; i++) {
		free_locked(list[i]);
	}
	if (!ctx_is_created(ctx)) {
		pool_trim_device(ctx->device);
		graphmem_end_device(ctx->device);
	}
	space_unlock();
	free(list);
}

CUresult cuMemGetInfo_v2(size_t *free_out, size_t *total_out)
{
	ENTER(cuMemGetInfo_v2);
	if (!free_out || !total_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUdevice dev = (CUdevice)ctx_current()->device;
	uint64_t used = registry_used_bytes(device_physical(dev));
	*total_out = device_total_bytes(dev);
	*free_out = used < *total_out ? *total_out - used : 0;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr_out, size_t bytes)
{
	ENTER(cuMemAlloc_v2);
	if (!ptr_out || bytes == 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = capture_check_unsafe();
	if (err != CUDA_SUCCESS) {
		return err;
	}
	return alloc_device(ctx_current()->device, bytes, NULL, ptr_out);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr_out, size_t *pitch_out, size_t width_bytes,
                            size_t height, unsigned int element_bytes)
{
	ENTER(cuMemAllocPitch_v2);
	if (!ptr_out || !pitch_out || width_bytes == 0 || height == 0 ||
	    (element_bytes != 4 && element_bytes != 8 && element_bytes != 16)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	uint64_t pitch = round_up(width_bytes, PITCH_BYTES);
	uint64_t bytes;
	if (pitch < width_bytes || __builtin_mul_overflow(pitch, height, &bytes)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult err = capture_check_unsafe();
	if (err != CUDA_SUCCESS) {
		return err;
	}
	err = alloc_device(ctx_current()->device, bytes, NULL, ptr_out);
	if (err == CUDA_SUCCESS) {
		*pitch_out = pitch;
	}
	return err;
}

/* Waits for the device, as a driver does. Pinned host memory may be given back here, too. */
CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	ENTER(cuMemFree_v2);
	if (ptr == 0) {
		return CUDA_SUCCESS;
	}
	CUresult forbidden = capture_check_unsafe();
	if (forbidden != CUDA_SUCCESS) {
		return forbidden;
	}
	space_lock_read();
	struct mapping *m = space_find(ptr);
	bool is_device = is_freeable(m, ptr);
	struct ctx *ctx = m ? m->ctx : NULL;
	space_unlock();
	if (!is_device) {
		return hostmem_free(ptr);
	}
	CUresult err = atomic_load(&ctx->poison);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	stream_wait_ctx(ctx);
	return alloc_free(ptr);
}

/* An allocation on a captured stream becomes a node, which allocates when it is launched. */
static CUresult alloc_of_graph(CUdeviceptr *ptr_out, size_t bytes, unsigned device,
                               struct stream *s)
{
	struct work work = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};
	CUresult err = graphmem_new(device, bytes, &work.of.memory);

	if (err != CUDA_SUCCESS) {
		return err;
	}
	CUdeviceptr ptr = graphmem_address(work.of.memory);
	err = work_submit(s, &work);
	if (err == CUDA_SUCCESS) {
		*ptr_out = ptr;
	}
	return err;
}

static CUresult alloc_async(CUdeviceptr *ptr_out, size_t bytes, CUmemoryPool pool, CUstream handle)
{
	struct stream *s = stream_from_handle(handle);

	if (!ptr_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!s) {
		return stream_missing(handle);
	}
	if (bytes == 0) {
		*ptr_out = 0;
		return CUDA_SUCCESS;
	}
	unsigned device = stream_ctx(s)->device;
	if (capture_is_of(s)) {
		return alloc_of_graph(ptr_out, bytes, pool ? pool_device(pool) : device, s);
	}
	CUresult err = capture_check_unsafe();
	if (err != CUDA_SUCCESS) {
		return err;
	}
	pool = pool ? pool : pool_current(device);
	err = alloc_device(pool_device(pool), bytes, pool, ptr_out);
	if (err == CUDA_ERROR_OUT_OF_MEMORY && stream_wait(s) == CUDA_SUCCESS) {
		/* Memory that was freed on the stream earlier is in the pool now. */
		err = alloc_device(pool_device(pool), bytes, pool, ptr_out);
	}
	return err;
}

CUresult cuMemAllocAsync(CUdeviceptr *ptr_out, size_t bytes, CUstream handle)
{
	ENTER(cuMemAllocAsync);
	return alloc_async(ptr_out, bytes, NULL, handle);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr_out, size_t bytes, CUmemoryPool pool,
                                 CUstream handle)
{
	ENTER(cuMemAllocFromPoolAsync);
	return pool_is_known(pool) && !pool_is_imported(pool)
	               ? alloc_async(ptr_out, bytes, pool, handle)
	               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream handle)
{
	ENTER(cuMemFreeAsync);
	struct stream *s = stream_from_handle(handle);

	if (!s) {
		return stream_missing(handle);
	}
	if (ptr == 0) {
		return CUDA_SUCCESS;
	}
	bool is_captured = capture_is_of(s);
	CUresult err = is_captured ? CUDA_SUCCESS : capture_check_unsafe();
	if (err != CUDA_SUCCESS) {
		return err;
	}
	space_lock_read();
	bool ok = is_freeable(space_find(ptr), ptr);
	space_unlock();
	struct work work = {.type = CU_GRAPH_NODE_TYPE_MEM_FREE, .of.freed = ptr};
	return ok || (is_captured && graphmem_is_at(ptr)) ? work_submit(s, &work)
	                                                  : CUDA_ERROR_INVALID_VALUE;
}
