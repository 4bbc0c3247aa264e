/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that say where managed memory should be. It always stays in host memory. */
#include "work.h"

static CUresult check_range(CUdeviceptr addr, size_t bytes)
{
	CUresult err = CUDA_ERROR_INVALID_VALUE;

	space_lock_read();
	const struct mapping *m = space_find(addr);
	if (bytes > 0 && m && m->is_managed && addr + bytes <= m->range.start + m->range.bytes) {
		err = CUDA_SUCCESS;
	}
	space_unlock();
	return err;
}

static CUresult check_location(CUmemLocation location)
{
	return location.type != CU_MEM_LOCATION_TYPE_DEVICE || device_is_valid(location.id)
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_INVALID_DEVICE;
}

static CUmemLocation location_of(CUdevice dev)
{
	return (CUmemLocation){
		.type = dev == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
	                                     : CU_MEM_LOCATION_TYPE_DEVICE,
		.id = dev,
	};
}

static CUresult advise(CUdeviceptr addr, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = check_location(location);
	return err == CUDA_SUCCESS ? check_range(addr, bytes) : err;
}

CUresult cuMemAdvise(CUdeviceptr addr, size_t bytes, CUmem_advise advice, CUdevice dev)
{
	ENTER(cuMemAdvise);
	return advise(addr, bytes, advice, location_of(dev));
}

CUresult cuMemAdvise_v2(CUdeviceptr addr, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	ENTER(cuMemAdvise_v2);
	return advise(addr, bytes, advice, location);
}

/* A prefetch does nothing, but takes its place on the stream. */
static CUresult prefetch(CUdeviceptr addr, size_t bytes, CUmemLocation location, CUstream handle)
{
	struct stream *s = stream_from_handle(handle);
	struct work work = {.type = CU_GRAPH_NODE_TYPE_EMPTY};

	if (!s) {
		return stream_missing(handle);
	}
	CUresult err = check_location(location);
	if (err == CUDA_SUCCESS) {
		err = check_range(addr, bytes);
	}
	return err == CUDA_SUCCESS ? work_submit(s, &work) : err;
}

CUresult cuMemPrefetchAsync(CUdeviceptr addr, size_t bytes, CUdevice dev, CUstream stream)
{
	ENTER(cuMemPrefetchAsync);
	return prefetch(addr, bytes, location_of(dev), stream);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr addr, size_t bytes, CUmemLocation location,
                               unsigned int flags, CUstream stream)
{
	ENTER(cuMemPrefetchAsync_v2);
	return flags == 0 ? prefetch(addr, bytes, location, stream) : CUDA_ERROR_INVALID_VALUE;
}
