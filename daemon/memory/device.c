/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

static int attribute(const struct device *device, CUdevice_attribute which)
{
	int value = 0;
	if (device->drv->cuDeviceGetAttribute(&value, which, device->cu) != CUDA_SUCCESS) {
		return 0;
	}
	return value;
}

/*
 * A device may report support for fabric handles and still refuse to create them: that needs an
 * IMEX channel. So try it.
 */
static void probe_fabric(struct device *device)
{
	if (!attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)) {
		snprintf(device->fabric, sizeof(device->fabric), "no: not supported by the device");
		return;
	}
	CUmemAllocationProp properties = cudrv_chunk_properties(
		device->cu, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC,
		device->rdma);
	CUmemGenericAllocationHandle handle;
	CUresult result = device->drv->cuMemCreate(&handle, GLAKE_CHUNK_GRANULARITY, &properties,
	                                           0);
	if (result == CUDA_SUCCESS) {
		device->drv->cuMemRelease(handle);
		device->handle_types |= CU_MEM_HANDLE_TYPE_FABRIC;
		snprintf(device->fabric, sizeof(device->fabric), "yes");
		return;
	}
	snprintf(device->fabric, sizeof(device->fabric), "no: %s%s",
	         cudrv_error(device->drv, result),
	         result == CUDA_ERROR_NOT_PERMITTED ? " (no IMEX channel)" : "");
}

static int describe(struct device *device, int ordinal)
{
	const struct cudrv *drv = device->drv;
	size_t total_bytes;
	CUuuid uuid;
	CUresult result = drv->cuDeviceGet(&device->cu, ordinal);
	if (result == CUDA_SUCCESS) {
		result = drv->cuDeviceGetName(device->name, sizeof(device->name), device->cu);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuDeviceGetUuid(&uuid, device->cu);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuDeviceTotalMem(&total_bytes, device->cu);
	}
	if (result != CUDA_SUCCESS) {
		log_error("device %d: %s", ordinal, cudrv_error(drv, result));
		return cudrv_errno(result);
	}
	memcpy(device->uuid, uuid.bytes, sizeof(device->uuid));
	device->total_bytes = total_bytes;
	if (!attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
	    !attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
		log_error("device %d (%s) cannot export memory as file descriptors", ordinal,
		          device->name);
		return -ENOTSUP;
	}
	device->handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	device->rdma = attribute(device,
	                         CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	return 0;
}

int device_open(struct device *device, uv_loop_t *loop, const struct cudrv *drv, uint32_t index,
                int ordinal, uint64_t reserve_bytes)
{
	*device = (struct device){.index = index, .drv = drv, .anchor_fd = -1};
	int r = describe(device, ordinal);
	if (r < 0) {
		return r;
	}
	device->usable_bytes = reserve_bytes < device->total_bytes
	                               ? device->total_bytes - reserve_bytes
	                               : 0;
	probe_fabric(device);
	CUresult result = device_make_chunk(device, GLAKE_CHUNK_GRANULARITY, &device->anchor_fd,
	                                    NULL);
	if (result != CUDA_SUCCESS) {
		log_error("device %u (%s): cannot make the first chunk: %s", index, device->name,
		          cudrv_error(drv, result));
		return cudrv_errno(result);
	}
	r = worker_init(&device->worker, loop);
	if (r < 0) {
		log_error("device %u: cannot start its worker: %s", index, strerror(-r));
		fd_close(&device->anchor_fd);
		return r;
	}
	/* The anchor is counted as made ahead, and never granted. */
	device->use_bytes[CHUNK_POOL] = GLAKE_CHUNK_GRANULARITY;
	log_info("device %u: %s, %.1f GiB, fabric handles %s, RDMA %s", index, device->name,
	         (double)device->total_bytes / (1 << 30), device->fabric,
	         device->rdma ? "yes" : "no");
	return 0;
}

void device_close(struct device *device)
{
	worker_deinit(&device->worker);
	fd_close(&device->anchor_fd);
}

uint64_t device_physical_bytes(const struct device *device)
{
	uint64_t sum = 0;
	for (int use = 0; use < CHUNK_N_USES; use++) {
		sum += device->use_bytes[use];
	}
	return sum;
}

void device_see_free(struct device *device, uint64_t free_bytes)
{
	device->seen_free_bytes = free_bytes;
	device->seen_physical_bytes = device_physical_bytes(device);
}

uint64_t device_free_bytes(const struct device *device)
{
	uint64_t was_bytes = device->seen_free_bytes + device->seen_physical_bytes;
	uint64_t physical_bytes = device_physical_bytes(device);
	if (device->seen_free_bytes == 0) {
		return 0;
	}
	/* 0 means something else. */
	return was_bytes > physical_bytes ? was_bytes - physical_bytes : 1;
}

uint64_t device_most_bytes(const struct device *device)
{
	/* The anchor is never granted. */
	return device->usable_bytes > GLAKE_CHUNK_GRANULARITY
	               ? device->usable_bytes - GLAKE_CHUNK_GRANULARITY
	               : 0;
}

uint64_t device_room_bytes(const struct device *device)
{
	uint64_t taken_bytes = device_physical_bytes(device) + device->coming_bytes;
	return taken_bytes < device->usable_bytes ? device->usable_bytes - taken_bytes : 0;
}

bool device_has_room(const struct device *device, uint64_t bytes)
{
	return bytes <= device_room_bytes(device);
}

CUresult device_export_chunk(const struct device *device, CUmemGenericAllocationHandle handle,
                             int *fd_out)
{
	int fd = -1;
	CUresult result = device->drv->cuMemExportToShareableHandle(
		&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (result == CUDA_SUCCESS) {
		/*
		 * The driver does not promise this flag. A chunk that glake-mover inherits would
		 * outlive its release.
		 */
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		*fd_out = fd;
	}
	return result;
}

CUresult device_make_chunk(const struct device *device, uint64_t bytes, int *fd_out,
                           CUmemGenericAllocationHandle *handle_out)
{
	const struct cudrv *drv = device->drv;
	CUmemAllocationProp properties = cudrv_chunk_properties(device->cu, device->handle_types,
	                                                        device->rdma);
	CUmemGenericAllocationHandle handle;
	CUresult result = drv->cuMemCreate(&handle, bytes, &properties, 0);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	result = device_export_chunk(device, handle, fd_out);
	if (result == CUDA_SUCCESS && handle_out) {
		*handle_out = handle;
	} else {
		drv->cuMemRelease(handle);
	}
	return result;
}
