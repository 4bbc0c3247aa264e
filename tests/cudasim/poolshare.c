/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools in other processes. The fd of a pool tells only its device. Each pointer tells where its
 * exporter keeps the fd of the memory, so the pointer opens as long as the exporter lives, for the same user.
 */
#include "sim.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define POINTER_MAGIC 0x7274706c6f6f70ULL

/* The content of a CUmemPoolPtrExportData. */
struct pointer {
	uint64_t magic;
	uint64_t registry_id;
	uint64_t inode;
	uint64_t bytes;
	int32_t pid;
	int32_t fd;
	uint32_t device; /* physical ordinal */
};

_Static_assert(sizeof(struct pointer) <= sizeof(CUmemPoolPtrExportData), "fits");

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool pool,
                                          CUmemAllocationHandleType type, unsigned long long flags)
{
	ENTER(cuMemPoolExportToShareableHandle);
	char name[64];

	if (!handle_out || !pool_is_known(pool) || flags != 0 ||
	    type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !pool_is_shareable(pool)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	snprintf(name, sizeof(name), "cudasim-pool:%" PRIx64 ":%u", registry_id(),
	         device_physical((CUdevice)pool_device(pool)));
	int fd = memfd_create(name, MFD_CLOEXEC);
	if (fd < 0) {
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*(int *)handle_out = fd;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags)
{
	ENTER(cuMemPoolImportFromShareableHandle);
	char path[64];
	char target[128];
	uint64_t id;
	unsigned physical;

	if (!pool_out || flags != 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", (int)(intptr_t)handle);
	ssize_t n = readlink(path, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = '\0';
	if (sscanf(target, "/memfd:cudasim-pool:%" SCNx64 ":%u", &id, &physical) != 2 ||
	    id != registry_id()) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	int device = device_from_physical(physical);
	return device < 0 ? CUDA_ERROR_INVALID_DEVICE
	                  : pool_new_imported(pool_out, (unsigned)device);
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data_out, CUdeviceptr ptr)
{
	ENTER(cuMemPoolExportPointer);
	struct pointer pointer = {
		.magic = POINTER_MAGIC, .registry_id = registry_id(), .pid = getpid()};

	if (!data_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	space_lock_write();
	struct mapping *m = space_find(ptr);
	bool ok = m && m->pool && m->range.start == ptr && pool_is_shareable(m->pool);
	if (ok) {
		phys_mark_shared(m->phys);
		pointer.inode = chunkfd_inode_of(m->phys->fd);
		pointer.bytes = m->range.bytes;
		pointer.fd = m->phys->fd;
		pointer.device = device_physical((CUdevice)m->device);
	}
	space_unlock();
	if (ok) {
		memset(data_out, 0, sizeof(*data_out));
		memcpy(data_out, &pointer, sizeof(pointer));
	}
	return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Map the exporter's memory at an address of its own. */
static CUresult map(const struct pointer *pointer, int device, struct mapping *m)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
	struct chunk_label label;
	uint64_t bytes = 0;
	int fd = chunkfd_reopen(pointer->pid, pointer->fd, pointer->inode);

	if (fd < 0 || !chunkfd_read(fd, &label, &bytes) || pointer->bytes > bytes) {
		if (fd >= 0) {
			close(fd);
		}
		return CUDA_ERROR_INVALID_VALUE;
	}
	m->phys = phys_from_fd(fd, &prop, bytes);
	if (!m->phys) {
		close(fd);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->phys->is_shared = true;
	m->host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m->host == MAP_FAILED) {
		phys_unref(m->phys);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult err = space_reserve(bytes, SIM_GRANULARITY, 0, &m->res);
	if (err != CUDA_SUCCESS) {
		munmap(m->host, bytes);
		phys_unref(m->phys);
		return err;
	}
	m->res->is_internal = true;
	m->range = (struct range){.start = m->res->range.start, .bytes = pointer->bytes};
	return CUDA_SUCCESS;
}

static CUresult import(const struct pointer *pointer, CUmemoryPool pool, CUdeviceptr *ptr_out)
{
	int device = device_from_physical(pointer->device);
	struct mapping *m = device < 0 ? NULL : calloc(1, sizeof(*m));

	if (!m) {
		return device < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->kind = SPACE_ALLOC;
	m->device = (unsigned)device;
	m->ctx = ctx_of_device(m->device);
	m->id = space_new_id();
	m->pool = pool;
	m->access[device] = SPACE_WRITE;
	space_lock_write();
	CUresult err = map(pointer, device, m);
	return alloc_enter(m, err, ptr_out);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool pool,
                                CUmemPoolPtrExportData *data)
{
	ENTER(cuMemPoolImportPointer);
	struct pointer pointer;

	if (!ptr_out || !data || !pool_is_known(pool) || !pool_is_imported(pool)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	memcpy(&pointer, data, sizeof(pointer));
	if (pointer.magic != POINTER_MAGIC || pointer.registry_id != registry_id() ||
	    pointer.device != device_physical((CUdevice)pool_device(pool))) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return import(&pointer, pool, ptr_out);
}
