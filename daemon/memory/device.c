/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

static int attribute(const struct device *device, CUdevice_attribute which)
{
	int value = 0;
	if (device->at.drv->cuDeviceGetAttribute(&value, which, device->cu) != CUDA_SUCCESS) {
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
	CUresult result = device->at.drv->cuMemCreate(&handle, GLAKE_CHUNK_GRANULARITY, &properties,
	                                              0);
	if (result == CUDA_SUCCESS) {
		device->at.drv->cuMemRelease(handle);
		device->at.properties.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_FABRIC;
		snprintf(device->fabric, sizeof(device->fabric), "yes");
		return;
	}
	snprintf(device->fabric, sizeof(device->fabric), "no: %s%s",
	         cudrv_error(device->at.drv, result),
	         result == CUDA_ERROR_NOT_PERMITTED ? " (no IMEX channel)" : "");
}

static int describe(struct device *device, int ordinal)
{
	const struct cudrv *drv = device->at.drv;
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
	device->at.total_bytes = total_bytes;
	if (!attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
	    !attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
		log_error("device %d (%s) cannot export memory as file descriptors", ordinal,
		          device->name);
		return -ENOTSUP;
	}
	device->rdma = attribute(device,
	                         CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	device->at.properties = cudrv_chunk_properties(
		device->cu, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, device->rdma);
	return 0;
}

int device_open(struct device *device, uv_loop_t *loop, const struct cudrv *drv, uint32_t index,
                int ordinal, uint64_t reserve_bytes)
{
	*device = (struct device){.at = {.kind = LOCATION_GPU,
	                                 .number = index,
	                                 .slot = index,
	                                 .drv = drv,
	                                 .anchor_bytes = GLAKE_CHUNK_GRANULARITY},
	                          .index = index,
	                          .anchor_fd = -1};
	int r = describe(device, ordinal);
	if (r < 0) {
		return r;
	}
	device->at.usable_bytes = reserve_bytes < device->at.total_bytes
	                                  ? device->at.total_bytes - reserve_bytes
	                                  : 0;
	probe_fabric(device);
	CUresult result = location_make_chunk(&device->at, GLAKE_CHUNK_GRANULARITY,
	                                      &device->anchor_fd, NULL);
	if (result != CUDA_SUCCESS) {
		log_error("device %u (%s): cannot make the first chunk: %s", index, device->name,
		          cudrv_error(drv, result));
		return cudrv_errno(result);
	}
	r = location_start(&device->at, loop);
	if (r < 0) {
		fd_close(&device->anchor_fd);
		return r;
	}
	device->at.use_bytes[CHUNK_STOCK] = device->at.anchor_bytes;
	log_info("device %u: %s, %.1f GiB, fabric handles %s, RDMA %s", index, device->name,
	         (double)device->at.total_bytes / (1 << 30), device->fabric,
	         device->rdma ? "yes" : "no");
	return 0;
}

void device_close(struct device *device)
{
	location_close(&device->at);
	fd_close(&device->anchor_fd);
}

struct device *location_device(struct location *at)
{
	return at->kind == LOCATION_GPU ? container_of(at, struct device, at) : NULL;
}

void device_see_free(struct device *device, uint64_t free_bytes)
{
	device->seen_free_bytes = free_bytes;
	device->seen_physical_bytes = location_physical_bytes(&device->at);
}

uint64_t device_free_bytes(const struct device *device)
{
	uint64_t was_bytes = device->seen_free_bytes + device->seen_physical_bytes;
	uint64_t physical_bytes = location_physical_bytes(&device->at);
	if (device->seen_free_bytes == 0) {
		return 0;
	}
	/* The result is not 0, which means something else. */
	return was_bytes > physical_bytes ? was_bytes - physical_bytes : 1;
}
