/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/context.h"

#include <errno.h>

/* With @context current. */
static CUresult copy(const struct cudrv *drv, CUcontext context, void *to, glake_ptr from,
                     uint64_t n_bytes)
{
	CUcontext previous = NULL;
	CUresult result = drv->cuCtxGetCurrent(&previous);
	if (result == CUDA_SUCCESS) {
		result = drv->cuCtxSetCurrent(context);
	}
	if (result != CUDA_SUCCESS) {
		return result;
	}
	result = drv->cuMemcpyDtoH(to, from, n_bytes);
	CUresult restored = drv->cuCtxSetCurrent(previous);
	return result != CUDA_SUCCESS ? result : restored;
}

int glake_read(struct glake_session *session, uint32_t device, void *to, glake_ptr from,
               uint64_t bytes)
{
	struct glake__device *found;
	int r = glake__session_check_device(session, device, &found);
	if (r < 0) {
		return r;
	}
	if (bytes == 0) {
		return 0;
	}
	const struct cudrv *drv = &session->drv;
	CUcontext context;
	CUresult result = drv->cuDevicePrimaryCtxRetain(&context, found->handle);
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "cuDevicePrimaryCtxRetain: %s",
		                   cudrv_error(drv, result));
	}
	result = copy(drv, context, to, from, bytes);
	drv->cuDevicePrimaryCtxRelease(found->handle);
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "copy of %llu bytes from 0x%llx: %s",
		                   (unsigned long long)bytes, (unsigned long long)from,
		                   cudrv_error(drv, result));
	}
	return 0;
}

/* ---- work of our own -------------------------------------------------------------------------- */

/* A context of a device for the time of some calls, and a stream in it. */
struct visit {
	const struct cudrv *drv;
	CUdevice device;
	CUcontext previous;
	bool is_primary; /* retained, and made current in place of the previous one */
	CUstreamCaptureMode mode;
	CUstream stream;
};

static bool is_here(const struct cudrv *drv, CUcontext current, CUdevice wanted)
{
	CUdevice device;
	return current && drv->cuCtxGetDevice(&device) == CUDA_SUCCESS && device == wanted;
}

static CUresult enter_primary(struct visit *visit)
{
	CUcontext context;
	CUresult result = visit->drv->cuDevicePrimaryCtxRetain(&context, visit->device);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	result = visit->drv->cuCtxSetCurrent(context);
	visit->is_primary = result == CUDA_SUCCESS;
	if (!visit->is_primary) {
		visit->drv->cuDevicePrimaryCtxRelease(visit->device);
	}
	return result;
}

static void leave(struct visit *visit)
{
	const struct cudrv *drv = visit->drv;
	if (visit->stream) {
		drv->cuStreamDestroy(visit->stream);
	}
	drv->cuThreadExchangeStreamCaptureMode(&visit->mode);
	if (visit->is_primary) {
		drv->cuCtxSetCurrent(visit->previous);
		drv->cuDevicePrimaryCtxRelease(visit->device);
	}
}

static CUresult enter(struct visit *visit, const struct glake__device *device)
{
	const struct cudrv *drv = &device->session->drv;
	*visit = (struct visit){
		.drv = drv,
		.device = device->handle,
		.mode = CU_STREAM_CAPTURE_MODE_RELAXED,
	};
	drv->cuThreadExchangeStreamCaptureMode(&visit->mode);
	CUresult result = drv->cuCtxGetCurrent(&visit->previous);
	if (result == CUDA_SUCCESS && !is_here(drv, visit->previous, device->handle)) {
		result = enter_primary(visit);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuStreamCreate(&visit->stream, CU_STREAM_NON_BLOCKING);
	}
	if (result != CUDA_SUCCESS) {
		leave(visit);
	}
	return result;
}

/* @from 0: zeroes. */
static int work(const struct glake__device *device, glake_ptr to, glake_ptr from, uint64_t n_bytes)
{
	const struct cudrv *drv = &device->session->drv;
	struct visit visit;
	CUresult result = enter(&visit, device);
	if (result == CUDA_SUCCESS) {
		result = from ? drv->cuMemcpyDtoDAsync(to, from, n_bytes, visit.stream)
		              : drv->cuMemsetD8Async(to, 0, n_bytes, visit.stream);
		CUresult waited = drv->cuStreamSynchronize(visit.stream);
		if (waited != CUDA_SUCCESS) {
			/* The memory may be unmapped next: nothing may be under way. */
			drv->cuCtxSynchronize();
		}
		result = result != CUDA_SUCCESS ? result : waited;
		leave(&visit);
	}
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "%s %llu bytes at 0x%llx: %s",
		                   from ? "copying" : "zeroing", (unsigned long long)n_bytes,
		                   (unsigned long long)to, cudrv_error(drv, result));
	}
	return 0;
}

int glake__context_copy(const struct glake__device *device, glake_ptr to, glake_ptr from,
                        uint64_t n_bytes)
{
	return work(device, to, from, n_bytes);
}

int glake__context_zero(const struct glake__device *device, glake_ptr ptr, uint64_t n_bytes)
{
	return work(device, ptr, 0, n_bytes);
}

void glake__context_quiesce(struct glake_session *session, const struct glake__device *device)
{
	const struct cudrv *drv = &session->drv;
	unsigned flags = 0;
	int is_active = 0;
	CUcontext context;
	CUcontext previous = NULL;
	if (drv->cuDevicePrimaryCtxGetState(device->handle, &flags, &is_active) != CUDA_SUCCESS ||
	    !is_active || drv->cuDevicePrimaryCtxRetain(&context, device->handle) != CUDA_SUCCESS) {
		return;
	}
	if (drv->cuCtxGetCurrent(&previous) == CUDA_SUCCESS &&
	    drv->cuCtxSetCurrent(context) == CUDA_SUCCESS) {
		drv->cuCtxSynchronize();
		drv->cuCtxSetCurrent(previous);
	}
	drv->cuDevicePrimaryCtxRelease(device->handle);
}
