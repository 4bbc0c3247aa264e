/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about a device: attributes, name, UUID, PCI address. The numbers are those of an H200. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values by CUdevice_attribute, from 1, as an H200 with driver 580 gave them. */
static const int attributes[] = {
	1024,      1024,       1024,   64,        2147483647, 65535,     65535,  49152, 65536,
	32,        2147483647, 65536,  1980000,   512,        1,         132,    0,     0,
	1,         0,          131072, 131072,    65536,      16384,     16384,  16384, 32768,
	32768,     2048,       512,    1,         1,          0,         6,      0,     3201000,
	6016,      62914560,   2048,   3,         1,          32768,     2048,   1,     32768,
	32768,     8192,       8192,   32768,     0,          32,        32768,  32768, 2046,
	32768,     131072,     65536,  16384,     16384,      16384,     32768,  2048,  32768,
	32768,     2048,       32768,  32768,     2046,       268435456, 131072, 65000, 2097120,
	32768,     32768,      9,      0,         32768,      1,         1,      1,     233472,
	65536,     1,          0,      0,         0,          2,         0,      1,     1,
	1,         0,          0,      0,         1,          1,         232448, 0,     1,
	0,         0,          1,      1,         0,          0,         32,     1,     39321600,
	134217728, 1,          1024,   1,         1,          1,         1,      1,     1,
	100,       9,          1,      1,         1,          1,         1,      1,     4,
	1,         1,          1,      0,         -1,         0,         0,      0,     0,
	0,         0,          0,      590680286, 415174878,  1,         1,      0,     1,
	1,         0,          0,
};

#define N_ATTRIBUTES (int)(sizeof(attributes) / sizeof(attributes[0]))
/* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, which is new in CUDA 12.5. */
#define MPS_ENABLED ((CUdevice_attribute)133)
#define PCI_BUS_OF(PHYSICAL) (0x10 + (PHYSICAL))

CUresult cuDeviceGetAttribute(int *value_out, CUdevice_attribute attribute, CUdevice dev)
{
	ENTER(cuDeviceGetAttribute);
	if (!value_out || attribute < 1 || attribute > N_ATTRIBUTES) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value_out = PCI_BUS_OF((int)device_physical(dev));
		break;
	case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
		*value_out = 0;
		break;
	case MPS_ENABLED:
		*value_out = getenv("CUDASIM_MPS") != NULL;
		break;
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
		*value_out = device_fabric() != FABRIC_NONE;
		break;
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
		*value_out = hostnode_is_supported();
		break;
	default:
		*value_out = attributes[attribute - 1];
	}
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	ENTER(cuDeviceGetName);
	if (!name || len <= 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	snprintf(name, (size_t)len, "CUDASIM");
	return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid_out, CUdevice dev)
{
	if (!uuid_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	device_uuid(device_physical(dev), (uint8_t *)uuid_out->bytes);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid_out, CUdevice dev)
{
	ENTER(cuDeviceGetUuid);
	return get_uuid(uuid_out, dev);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid_out, CUdevice dev)
{
	ENTER(cuDeviceGetUuid_v2);
	return get_uuid(uuid_out, dev);
}

CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice dev)
{
	char full[16];

	ENTER(cuDeviceGetPCIBusId);
	if (!text || len <= 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	int n = snprintf(full, sizeof(full), "0000:%02x:00.0", PCI_BUS_OF(device_physical(dev)));
	if (n >= len) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	strcpy(text, full);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev_out, const char *text)
{
	unsigned domain, bus, slot;

	ENTER(cuDeviceGetByPCIBusId);
	if (!dev_out || !text) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(text, "%x:%x", &bus, &slot) != 2) {
			return CUDA_ERROR_INVALID_VALUE;
		}
	}
	for (int dev = 0; dev < device_count(); dev++) {
		if (domain == 0 && slot == 0 && bus == PCI_BUS_OF(device_physical(dev))) {
			*dev_out = dev;
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes_out, CUdevice dev)
{
	ENTER(cuDeviceTotalMem_v2);
	if (!bytes_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	*bytes_out = device_total_bytes(dev);
	return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can_out, CUdevice dev, CUdevice peer)
{
	ENTER(cuDeviceCanAccessPeer);
	if (!can_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev) || !device_is_valid(peer)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	*can_out = dev != peer;
	return CUDA_SUCCESS;
}
