/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory and arrays: the driver makes them, and they count as driver usage. */
#include "shim/array_size.h"
#include "shim/capture.h"
#include "shim/connection.h"
#include "shim/driver_usage.h"

/* Connect, so that glaked sees this program, too. Not during captures, because connecting makes CUDA calls. */
static void be_seen(void)
{
	bool is_refused;
	if (shim_can_own() && !capture_is_any()) {
		connection_unref(connection_get(&is_refused));
	}
}

static CUresult made(CUresult result, enum driver_usage_space space, uint64_t number,
                     enum driver_usage_kind kind, uint64_t n_bytes)
{
	if (result == CUDA_SUCCESS && !shim_is_forked()) {
		driver_usage_add(space, number, kind, n_bytes);
		be_seen();
	}
	return result;
}

CUresult shim_cuMemAllocManaged(CUdeviceptr *address_out, size_t n_bytes, unsigned flags)
{
	CUresult result = real(cuMemAllocManaged)(address_out, n_bytes, flags);
	return result == CUDA_SUCCESS ? made(result, DRIVER_USAGE_BY_ADDRESS, *address_out,
	                                     DRIVER_USAGE_MANAGED, n_bytes)
	                              : result;
}

/* ---- arrays ----------------------------------------------------------------------------------- */

static CUresult made_array(CUresult result, enum driver_usage_space space, const void *array,
                           const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned n_levels)
{
	return made(result, space, (uintptr_t)array, DRIVER_USAGE_ARRAYS,
	            array_size(descriptor, n_levels));
}

CUresult shim_cuArrayCreate_v2(CUarray *array_out, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
	CUresult result = real(cuArrayCreate_v2)(array_out, descriptor);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	const CUDA_ARRAY3D_DESCRIPTOR full = {
		.Width = descriptor->Width,
		.Height = descriptor->Height,
		.Format = descriptor->Format,
		.NumChannels = descriptor->NumChannels,
	};
	return made_array(result, DRIVER_USAGE_BY_ARRAY, *array_out, &full, 1);
}

CUresult shim_cuArray3DCreate_v2(CUarray *array_out, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
	CUresult result = real(cuArray3DCreate_v2)(array_out, descriptor);
	return result == CUDA_SUCCESS
	               ? made_array(result, DRIVER_USAGE_BY_ARRAY, *array_out, descriptor, 1)
	               : result;
}

CUresult shim_cuMipmappedArrayCreate(CUmipmappedArray *array_out,
                                     const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned n_levels)
{
	CUresult result = real(cuMipmappedArrayCreate)(array_out, descriptor, n_levels);
	return result == CUDA_SUCCESS ? made_array(result, DRIVER_USAGE_BY_MIPMAPPED_ARRAY,
	                                           *array_out, descriptor, n_levels)
	                              : result;
}

/* Called before the driver's call, which may give the handle to another array at once. */
static struct driver_usage_entry *take_array(enum driver_usage_space space, const void *array)
{
	return shim_is_forked() ? NULL : driver_usage_take(space, (uintptr_t)array);
}

CUresult shim_cuArrayDestroy(CUarray array)
{
	struct driver_usage_entry *entry = take_array(DRIVER_USAGE_BY_ARRAY, array);
	CUresult result = real(cuArrayDestroy)(array);
	driver_usage_settle(entry, result == CUDA_SUCCESS);
	return result;
}

CUresult shim_cuMipmappedArrayDestroy(CUmipmappedArray array)
{
	struct driver_usage_entry *entry = take_array(DRIVER_USAGE_BY_MIPMAPPED_ARRAY, array);
	CUresult result = real(cuMipmappedArrayDestroy)(array);
	driver_usage_settle(entry, result == CUDA_SUCCESS);
	return result;
}
