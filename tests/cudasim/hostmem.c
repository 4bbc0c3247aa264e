/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory that the device may reach: pinned (cuMemHostAlloc) or registered. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_BYTES 4096ULL
#define ALLOC_FLAGS \
	(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)
#define REGISTER_FLAGS \
	(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY)

static uint64_t mapped_bytes(const struct mapping *m)
{
	return (m->range.bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
}

/* Locked. */
static void hostmem_remove(struct mapping *m)
{
	space_remove(m);
	if (!m->is_registered) {
		munmap(m->host, mapped_bytes(m));
	}
	free(m);
}

static bool is_hostmem_of(const struct mapping *m, const struct ctx *ctx)
{
	return m->kind == SPACE_HOST && m->ctx == ctx;
}

void hostmem_free_all(const struct ctx *ctx)
{
	struct mapping **list;

	space_lock_write();
	size_t n = space_gather(is_hostmem_of, ctx, &list);
	for (size_t i = 0; i < n; i++) {
		hostmem_remove(list[i]);
	}
	space_unlock();
	free(list);
}

CUresult hostmem_free(uint64_t addr)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	space_lock_read();
	struct mapping *m = space_find(addr);
	bool is_ours = m && m->kind == SPACE_HOST && !m->is_registered && m->range.start == addr;
	space_unlock();
	if (!is_ours) {
		return err;
	}
	stream_wait_all();
	space_lock_write();
	m = space_find(addr);
	if (m && m->kind == SPACE_HOST && !m->is_registered && m->range.start == addr) {
		hostmem_remove(m);
		err = CUDA_SUCCESS;
	}
	space_unlock();
	return err;
}

static CUresult hostmem_add(void *host, uint64_t bytes, unsigned flags, bool is_registered,
                            bool is_managed)
{
	struct mapping *m = calloc(1, sizeof(*m));

	if (!m) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->range = (struct range){.start = (uintptr_t)host, .bytes = bytes};
	m->kind = SPACE_HOST;
	m->host = host;
	m->device = ctx_current()->device;
	m->ctx = ctx_current();
	m->id = space_new_id();
	m->on_host = true;
	m->is_registered = is_registered;
	m->is_managed = is_managed;
	m->host_flags = flags;
	memset(m->access, SPACE_WRITE, sizeof(m->access));
	CUresult err = CUDA_SUCCESS;
	space_lock_write();
	if (space_find_in(m->range.start, bytes)) {
		err = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	} else if (space_add(m) != 0) {
		err = CUDA_ERROR_OUT_OF_MEMORY;
	}
	space_unlock();
	if (err != CUDA_SUCCESS) {
		free(m);
	}
	return err;
}

static CUresult new_pages(void **host_out, size_t bytes, unsigned flags, bool is_managed)
{
	void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (host == MAP_FAILED) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	madvise(host, bytes, MADV_HUGEPAGE);
	CUresult err = hostmem_add(host, bytes, flags, false, is_managed);
	if (err != CUDA_SUCCESS) {
		munmap(host, bytes);
		return err;
	}
	*host_out = host;
	return CUDA_SUCCESS;
}

static CUresult host_alloc(void **host_out, size_t bytes, unsigned flags)
{
	if (!host_out || flags & ~(unsigned)ALLOC_FLAGS) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (bytes == 0) {
		*host_out = NULL;
		return CUDA_SUCCESS;
	}
	return new_pages(host_out, bytes, flags, false);
}

/* Managed memory is never on the device here. On a GPU, pages that a kernel has touched are, and nobody can tell how many. */
CUresult cuMemAllocManaged(CUdeviceptr *ptr_out, size_t bytes, unsigned int flags)
{
	ENTER(cuMemAllocManaged);
	if (!ptr_out || bytes == 0 ||
	    (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	void *host;
	CUresult err = new_pages(&host, bytes, 0, true);
	if (err == CUDA_SUCCESS) {
		*ptr_out = (uintptr_t)host;
	}
	return err;
}

CUresult cuMemHostAlloc(void **host_out, size_t bytes, unsigned int flags)
{
	ENTER(cuMemHostAlloc);
	return host_alloc(host_out, bytes, flags);
}

CUresult cuMemAllocHost_v2(void **host_out, size_t bytes)
{
	ENTER(cuMemAllocHost_v2);
	return host_alloc(host_out, bytes, 0);
}

CUresult cuMemFreeHost(void *host)
{
	ENTER(cuMemFreeHost);
	return hostmem_free((uintptr_t)host);
}

CUresult cuMemHostRegister_v2(void *host, size_t bytes, unsigned int flags)
{
	ENTER(cuMemHostRegister_v2);
	if (!host || bytes == 0 || flags & ~(unsigned)REGISTER_FLAGS) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return hostmem_add(host, bytes, flags, true, false);
}

CUresult cuMemHostUnregister(void *host)
{
	ENTER(cuMemHostUnregister);
	CUresult err = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;

	stream_wait_all(); /* a copy under way must not touch memory that the caller frees next */
	space_lock_write();
	struct mapping *m = space_find((uintptr_t)host);
	if (m && m->is_registered && m->range.start == (uintptr_t)host) {
		hostmem_remove(m);
		err = CUDA_SUCCESS;
	} else if (m) {
		err = CUDA_ERROR_INVALID_VALUE;
	}
	space_unlock();
	return err;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ptr_out, void *host, unsigned int flags)
{
	ENTER(cuMemHostGetDevicePointer_v2);
	if (!ptr_out || flags != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_read();
	struct mapping *m = space_find((uintptr_t)host);
	bool ok = m && m->kind == SPACE_HOST;
	space_unlock();
	if (ok) {
		*ptr_out = (uintptr_t)host;
	}
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostGetFlags(unsigned int *flags_out, void *host)
{
	ENTER(cuMemHostGetFlags);
	if (!flags_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_read();
	struct mapping *m = space_find((uintptr_t)host);
	bool ok = m && m->kind == SPACE_HOST && !m->is_registered;
	if (ok) {
		*flags_out = m->host_flags;
	}
	space_unlock();
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
