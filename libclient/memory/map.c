/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/map.h"

static int driver_error(const struct glake_session *session, CUresult result, const char *what,
                        glake_ptr ptr, uint64_t n_bytes)
{
	return glake__fail(GLAKE_E_CUDA, "%s of %llu bytes at 0x%llx: %s", what,
	                   (unsigned long long)n_bytes, (unsigned long long)ptr,
	                   cudrv_error(&session->drv, result));
}

int glake__map_reserve(struct glake_session *session, uint64_t n_bytes, uint64_t alignment,
                       glake_ptr *ptr_out)
{
	CUdeviceptr ptr = 0;
	CUresult result = session->drv.cuMemAddressReserve(&ptr, n_bytes, alignment, 0, 0);
	if (result != CUDA_SUCCESS) {
		return driver_error(session, result, "cuMemAddressReserve", 0, n_bytes);
	}
	*ptr_out = ptr;
	return 0;
}

int glake__map_unreserve(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes)
{
	CUresult result = session->drv.cuMemAddressFree(ptr, n_bytes);
	if (result != CUDA_SUCCESS) {
		return driver_error(session, result, "cuMemAddressFree", ptr, n_bytes);
	}
	return 0;
}

int glake__map_import(struct glake_session *session, int fd,
                      CUmemGenericAllocationHandle *handle_out)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = session->drv.cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "cuMemImportFromShareableHandle: %s",
		                   cudrv_error(&session->drv, result));
	}
	*handle_out = handle;
	return 0;
}

void glake__map_release(struct glake_session *session, CUmemGenericAllocationHandle handle)
{
	session->drv.cuMemRelease(handle);
}

int glake__map_handle(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes,
                      CUmemGenericAllocationHandle handle)
{
	CUresult result = session->drv.cuMemMap(ptr, n_bytes, 0, handle, 0);
	if (result != CUDA_SUCCESS) {
		return driver_error(session, result, "cuMemMap", ptr, n_bytes);
	}
	return 0;
}

int glake__map_fd(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes, int fd)
{
	CUmemGenericAllocationHandle handle;
	int r = glake__map_import(session, fd, &handle);
	if (r < 0) {
		return r;
	}
	r = glake__map_handle(session, ptr, n_bytes, handle);
	glake__map_release(session, handle);
	return r;
}

int glake__map_access(struct glake_session *session, const struct glake__device *device,
                      glake_ptr ptr, uint64_t n_bytes, bool writable)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->handle},
		.flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	                          : CU_MEM_ACCESS_FLAGS_PROT_READ,
	};
	CUresult result = session->drv.cuMemSetAccess(ptr, n_bytes, &access, 1);
	if (result != CUDA_SUCCESS) {
		return driver_error(session, result, "cuMemSetAccess", ptr, n_bytes);
	}
	return 0;
}

int glake__map_unmap(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes)
{
	CUresult result = session->drv.cuMemUnmap(ptr, n_bytes);
	if (result != CUDA_SUCCESS) {
		return driver_error(session, result, "cuMemUnmap", ptr, n_bytes);
	}
	return 0;
}
