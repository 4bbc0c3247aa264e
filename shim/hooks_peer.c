/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that may access each other's memory. */
#include "shim/context.h"
#include "shim/heap.h"
#include "shim/quiesce.h"

static CUresult device_of(CUcontext ctx, CUdevice *device_out)
{
	CUcontext popped;
	CUresult result = real(cuCtxPushCurrent_v2)(ctx);
	if (result == CUDA_SUCCESS) {
		result = real(cuCtxGetDevice)(device_out);
		real(cuCtxPopCurrent_v2)(&popped);
	}
	return result;
}

/*
 * The driver opens its own memory of @peer to the current context, and the shim opens glaked's. If
 * that fails, the driver's is closed again, so that the program can try once more.
 */
CUresult shim_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	CUresult result = real(cuCtxEnablePeerAccess)(peer, flags);
	CUcontext current = NULL;
	CUdevice reader;
	CUdevice device;
	if (result != CUDA_SUCCESS || shim_is_forked() ||
	    real(cuCtxGetCurrent)(&current) != CUDA_SUCCESS ||
	    real(cuCtxGetDevice)(&reader) != CUDA_SUCCESS ||
	    device_of(peer, &device) != CUDA_SUCCESS || device == reader) {
		return result;
	}
	current = context_primary(current);
	result = CUDA_ERROR_OUT_OF_MEMORY;
	if (quiesce_add_reader(context_primary(peer), current)) {
		result = heap_add_peer(device, reader);
	}
	if (result != CUDA_SUCCESS) {
		quiesce_drop_reader(context_primary(peer), current);
		real(cuCtxDisablePeerAccess)(peer);
	}
	return result;
}

CUresult shim_cuCtxDisablePeerAccess(CUcontext peer)
{
	CUresult result = real(cuCtxDisablePeerAccess)(peer);
	CUcontext current = NULL;
	if (result == CUDA_SUCCESS && !shim_is_forked() &&
	    real(cuCtxGetCurrent)(&current) == CUDA_SUCCESS) {
		quiesce_drop_reader(context_primary(peer), context_primary(current));
	}
	return result;
}
