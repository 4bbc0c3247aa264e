/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/map.h"

#include "libclient/link/error.h"

static const struct cudrv *drv(void)
{
	return &glake__space.drv;
}

static int driver_error(CUresult result, const char *what, glake_ptr ptr, uint64_t n_bytes)
{
	return glake__fail(GLAKE_E_CUDA, "%s of %llu bytes at 0x%llx: %s", what,
	                   (unsigned long long)n_bytes, (unsigned long long)ptr,
	                   cudrv_error(drv(), result));
}

int glake__map_reserve(uint64_t n_bytes, uint64_t alignment, glake_ptr hint, glake_ptr *ptr_out)
{
	CUdeviceptr ptr = 0;
	CUresult result = drv()->cuMemAddressReserve(&ptr, n_bytes, alignment, hint, 0);
	if (result != CUDA_SUCCESS) {
		return driver_error(result, "cuMemAddressReserve", hint, n_bytes);
	}
	*ptr_out = ptr;
	return 0;
}

int glake__map_unreserve(glake_ptr ptr, uint64_t n_bytes)
{
	CUresult result = drv()->cuMemAddressFree(ptr, n_bytes);
	return result == CUDA_SUCCESS ? 0 : driver_error(result, "cuMemAddressFree", ptr, n_bytes);
}

int glake__map_import(int fd, CUmemGenericAllocationHandle *handle_out)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = drv()->cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "cuMemImportFromShareableHandle: %s",
		                   cudrv_error(drv(), result));
	}
	*handle_out = handle;
	return 0;
}

int glake__map_retain(glake_ptr ptr, CUmemGenericAllocationHandle *handle_out)
{
	CUmemGenericAllocationHandle handle;
	CUresult result = drv()->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr);
	if (result != CUDA_SUCCESS) {
		return driver_error(result, "cuMemRetainAllocationHandle", ptr, 0);
	}
	*handle_out = handle;
	return 0;
}

void glake__map_release(CUmemGenericAllocationHandle handle)
{
	drv()->cuMemRelease(handle);
}

/* Memory with the properties that glaked gives its chunks. */
int glake__map_create(int device, uint64_t n_bytes, CUmemGenericAllocationHandle *handle_out)
{
	int rdma = 0;
	drv()->cuDeviceGetAttribute(
		&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
	CUmemAllocationProp properties = cudrv_chunk_properties(
		device, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, rdma);
	CUresult result = drv()->cuMemCreate(handle_out, n_bytes, &properties, 0);
	return result == CUDA_SUCCESS ? 0 : driver_error(result, "cuMemCreate", 0, n_bytes);
}

int glake__map_handle(glake_ptr ptr, uint64_t n_bytes, CUmemGenericAllocationHandle handle)
{
	CUresult result = drv()->cuMemMap(ptr, n_bytes, 0, handle, 0);
	return result == CUDA_SUCCESS ? 0 : driver_error(result, "cuMemMap", ptr, n_bytes);
}

int glake__map_access(glake_ptr ptr, uint64_t n_bytes, uint64_t readers, enum glake__access access)
{
	static const CUmemAccess_flags flags[] = {
		[GLAKE__ACCESS_NONE] = CU_MEM_ACCESS_FLAGS_PROT_NONE,
		[GLAKE__ACCESS_READ] = CU_MEM_ACCESS_FLAGS_PROT_READ,
		[GLAKE__ACCESS_WRITE] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUmemAccessDesc list[GLAKE__MAX_DEVICES];
	size_t n = 0;
	for (int device = 0; readers; device++, readers >>= 1) {
		if (readers & 1) {
			list[n++] = (CUmemAccessDesc){
				.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
				.flags = flags[access],
			};
		}
	}
	CUresult result = n ? drv()->cuMemSetAccess(ptr, n_bytes, list, n) : CUDA_SUCCESS;
	return result == CUDA_SUCCESS ? 0 : driver_error(result, "cuMemSetAccess", ptr, n_bytes);
}

int glake__map_unmap(glake_ptr ptr, uint64_t n_bytes)
{
	CUresult result = drv()->cuMemUnmap(ptr, n_bytes);
	return result == CUDA_SUCCESS ? 0 : driver_error(result, "cuMemUnmap", ptr, n_bytes);
}
