/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/device.h"

#include <string.h>

int device_fault(const struct cudrv *drv, CUresult result, const char *call, struct fault *fault)
{
	bool is_lost = cudrv_is_lost(result) || result == CUDA_ERROR_UNKNOWN;
	enum fault_kind kind = result == CUDA_ERROR_OUT_OF_MEMORY ? FAULT_NO_DEVICE_MEMORY
	                       : is_lost                          ? FAULT_DEVICE_LOST
	                                                          : FAULT_INTERNAL;
	return fault_set(fault, kind, "%s: %s", call, cudrv_error(drv, result));
}

int devices_init(struct devices *devices, const struct cudrv *drv, struct fault *fault)
{
	int n_devices;
	CUresult result = drv->cuDeviceGetCount(&n_devices);
	if (result != CUDA_SUCCESS) {
		return device_fault(drv, result, "cuDeviceGetCount", fault);
	}
	*devices = (struct devices){.drv = drv};
	pthread_mutex_init(&devices->lock, NULL);
	for (int i = 0; i < n_devices && devices->n_devices < DEVICE_MAX; i++) {
		struct device *device = &devices->devices[devices->n_devices];
		CUuuid uuid;
		if (drv->cuDeviceGet(&device->ordinal, i) != CUDA_SUCCESS ||
		    drv->cuDeviceGetUuid(&uuid, device->ordinal) != CUDA_SUCCESS) {
			continue;
		}
		device->drv = drv;
		device->index = (unsigned)devices->n_devices++;
		memcpy(device->uuid, uuid.bytes, sizeof(device->uuid));
	}
	return 0;
}

static void close_device(struct device *device)
{
	const struct cudrv *drv = device->drv;
	if (!device->context) {
		return;
	}
	drv->cuCtxSetCurrent(device->context);
	digester_deinit(&device->digester);
	kernels_unload(&device->kernels);
	if (device->copy_stream) {
		drv->cuStreamDestroy(device->copy_stream);
	}
	drv->cuCtxSetCurrent(NULL);
	drv->cuDevicePrimaryCtxRelease(device->ordinal);
	device->context = NULL;
	device->copy_stream = NULL;
	device->is_open = false;
}

void devices_deinit(struct devices *devices)
{
	for (size_t i = 0; i < devices->n_devices; i++) {
		close_device(&devices->devices[i]);
	}
	pthread_mutex_destroy(&devices->lock);
}

static CUresult make_digester(struct device *device)
{
	return digester_init(&device->digester, &device->kernels, device->context,
	                     device->copy_stream);
}

static int open_device(struct device *device, struct fault *fault)
{
	const struct cudrv *drv = device->drv;
	CUresult result = drv->cuDevicePrimaryCtxRetain(&device->context, device->ordinal);
	if (result != CUDA_SUCCESS) {
		device->context = NULL;
		return device_fault(drv, result, "cuDevicePrimaryCtxRetain", fault);
	}
	const char *call = "cuCtxSetCurrent";
	if ((result = drv->cuCtxSetCurrent(device->context)) == CUDA_SUCCESS) {
		call = "cuStreamCreate";
		result = drv->cuStreamCreate(&device->copy_stream, CU_STREAM_NON_BLOCKING);
	}
	if (result == CUDA_SUCCESS) {
		call = "loading the kernels";
		result = kernels_load(&device->kernels, drv, device->ordinal);
	}
	if (result == CUDA_SUCCESS) {
		call = "making the digester";
		result = make_digester(device);
		result = result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
	}
	if (result != CUDA_SUCCESS) {
		close_device(device);
		return device_fault(drv, result, call, fault);
	}
	device->is_open = true;
	return 0;
}

int devices_find(struct devices *devices, const uint8_t *uuid, size_t n_uuid_bytes,
                 struct device **device_out, struct fault *fault)
{
	struct device *device = NULL;
	for (size_t i = 0; i < devices->n_devices && n_uuid_bytes == 16; i++) {
		if (memcmp(devices->devices[i].uuid, uuid, 16) == 0) {
			device = &devices->devices[i];
		}
	}
	if (!device) {
		return fault_set(fault, FAULT_INTERNAL, "no device has this UUID");
	}
	pthread_mutex_lock(&devices->lock);
	int error = device->is_open ? 0 : open_device(device, fault);
	pthread_mutex_unlock(&devices->lock);
	if (!error) {
		error = device_enter(device, fault);
	}
	if (!error) {
		*device_out = device;
	}
	return error;
}

int device_need_digester(struct devices *devices, struct device *device, struct fault *fault)
{
	pthread_mutex_lock(&devices->lock);
	CUresult result = device->digester.drv ? CUDA_SUCCESS : make_digester(device);
	pthread_mutex_unlock(&devices->lock);
	return result == CUDA_SUCCESS
	               ? 0
	               : device_fault(device->drv, result, "making the digester", fault);
}

int device_enter(const struct device *device, struct fault *fault)
{
	CUresult result = device->drv->cuCtxSetCurrent(device->context);
	return result == CUDA_SUCCESS ? 0
	                              : device_fault(device->drv, result, "cuCtxSetCurrent", fault);
}

int chunk_reserve(const struct cudrv *drv, uint64_t bytes, CUdeviceptr *address_out,
                  struct fault *fault)
{
	CUresult result = drv->cuMemAddressReserve(address_out, bytes, 0, 0, 0);
	return result == CUDA_SUCCESS ? 0 : device_fault(drv, result, "cuMemAddressReserve", fault);
}

void chunk_unreserve(const struct cudrv *drv, CUdeviceptr address, uint64_t bytes)
{
	CUresult result = drv->cuMemAddressFree(address, bytes);
	if (result != CUDA_SUCCESS) {
		say("cuMemAddressFree: %s", cudrv_error(drv, result));
	}
}

int chunk_map(const struct device *device, int fd, CUdeviceptr address, uint64_t bytes,
              enum chunk_access access, struct fault *fault)
{
	const struct cudrv *drv = device->drv;
	CUmemGenericAllocationHandle handle;
	CUresult result = drv->cuMemImportFromShareableHandle(
		&handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (result != CUDA_SUCCESS) {
		device_fault(drv, result, "cuMemImportFromShareableHandle", fault);
		/* The driver's answer to an fd that is no chunk. */
		if (result == CUDA_ERROR_UNKNOWN) {
			fault->kind = FAULT_INTERNAL;
		}
		return MOVER_E_FAULT;
	}
	result = drv->cuMemMap(address, bytes, 0, handle, 0);
	drv->cuMemRelease(handle);
	if (result != CUDA_SUCCESS) {
		return device_fault(drv, result, "cuMemMap", fault);
	}
	CUmemAccessDesc descriptor = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
		.flags = (CUmemAccess_flags)access,
	};
	result = drv->cuMemSetAccess(address, bytes, &descriptor, 1);
	if (result != CUDA_SUCCESS) {
		drv->cuMemUnmap(address, bytes);
		return device_fault(drv, result, "cuMemSetAccess", fault);
	}
	return 0;
}

int chunk_unmap(const struct cudrv *drv, CUdeviceptr address, uint64_t bytes, struct fault *fault)
{
	CUresult result = drv->cuMemUnmap(address, bytes);
	return result == CUDA_SUCCESS ? 0 : device_fault(drv, result, "cuMemUnmap", fault);
}
