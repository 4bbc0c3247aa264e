/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/context.h"

#include <stdlib.h>

#include "libclient/memory/space.h"

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

/* The program may have let it go meanwhile, and this is its end. */
static void release_primary(const struct cudrv *drv, CUdevice device)
{
	const struct glake__gate *gate = &glake__space.gate;
	if (gate->release_primary) {
		gate->release_primary(gate->user, device);
	} else {
		drv->cuDevicePrimaryCtxRelease(device);
	}
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
	release_primary(drv, found->handle);
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
	CUcontext previous; /* current before */
	bool is_primary;    /* retained */
	CUstreamCaptureMode mode;
	CUstream stream;
};

static bool is_here(const struct cudrv *drv, CUcontext current, CUdevice wanted)
{
	CUdevice device;
	return current && drv->cuCtxGetDevice(&device) == CUDA_SUCCESS && device == wanted;
}

/* One that the program has; else the current one if it fits; else the primary one, until leave(). */
static CUresult choose(struct visit *visit, CUcontext held, CUcontext *context_out)
{
	const struct cudrv *drv = visit->drv;
	CUresult result = CUDA_SUCCESS;
	*context_out = held;
	if (!held && is_here(drv, visit->previous, visit->device)) {
		*context_out = visit->previous;
	} else if (!held) {
		result = drv->cuDevicePrimaryCtxRetain(context_out, visit->device);
		visit->is_primary = result == CUDA_SUCCESS;
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
	drv->cuCtxSetCurrent(visit->previous);
	if (visit->is_primary) {
		drv->cuDevicePrimaryCtxRelease(visit->device);
	}
}

/* With the contexts held. */
static CUresult enter(struct visit *visit, const struct glake__device *device, CUcontext held)
{
	const struct cudrv *drv = &device->session->drv;
	CUcontext context = NULL;
	*visit = (struct visit){
		.drv = drv,
		.device = device->handle,
		.mode = CU_STREAM_CAPTURE_MODE_RELAXED,
	};
	CUresult result = drv->cuCtxGetCurrent(&visit->previous);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	drv->cuThreadExchangeStreamCaptureMode(&visit->mode);
	result = choose(visit, held, &context);
	if (result == CUDA_SUCCESS && context != visit->previous) {
		result = drv->cuCtxSetCurrent(context);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuStreamCreate(&visit->stream, CU_STREAM_NON_BLOCKING);
	}
	if (result != CUDA_SUCCESS) {
		leave(visit);
	}
	return result;
}

static CUresult copy_inside(struct visit *visit, glake_ptr to, glake_ptr from, uint64_t n_bytes)
{
	return visit->drv->cuMemcpyDtoDAsync(to, from, n_bytes, visit->stream);
}

/* From the host, since setting memory is a kernel, and those of the program may fill the GPU for long. */
static CUresult zero_inside(struct visit *visit, glake_ptr to, glake_ptr from, uint64_t n_bytes)
{
	(void)from;
	void *zeroes = calloc(1, n_bytes);
	CUresult result = zeroes ? visit->drv->cuMemcpyHtoDAsync(to, zeroes, n_bytes, visit->stream)
	                         : CUDA_ERROR_OUT_OF_MEMORY;
	if (result == CUDA_SUCCESS) {
		result = visit->drv->cuStreamSynchronize(visit->stream);
	}
	free(zeroes);
	return result;
}

typedef CUresult act_fn(struct visit *visit, glake_ptr to, glake_ptr from, uint64_t n_bytes);

/* In a context, which is held. */
static CUresult act_in(const struct glake__device *device, CUcontext context, act_fn *act,
                       glake_ptr to, glake_ptr from, uint64_t n_bytes)
{
	const struct cudrv *drv = &device->session->drv;
	struct visit visit;
	CUresult result = enter(&visit, device, context);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	result = act(&visit, to, from, n_bytes);
	CUresult waited = drv->cuStreamSynchronize(visit.stream);
	if (waited != CUDA_SUCCESS) {
		/* The memory may be unmapped next: nothing may be under way. */
		drv->cuCtxSynchronize();
	}
	leave(&visit);
	return result != CUDA_SUCCESS ? result : waited;
}

static int work(const struct glake__device *device, act_fn *act, glake_ptr to, glake_ptr from,
                uint64_t n_bytes)
{
	void *context;
	int r = glake__context_hold(device->handle, &context);
	if (r < 0) {
		return r;
	}
	CUresult result = act_in(device, context, act, to, from, n_bytes);
	glake__context_let();
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "%s %llu bytes at 0x%llx: %s",
		                   from ? "copying" : "zeroing", (unsigned long long)n_bytes,
		                   (unsigned long long)to,
		                   cudrv_error(&device->session->drv, result));
	}
	return 0;
}

int glake__context_copy(const struct glake__device *device, glake_ptr to, glake_ptr from,
                        uint64_t n_bytes)
{
	return work(device, copy_inside, to, from, n_bytes);
}

int glake__context_zero(const struct glake__device *device, glake_ptr ptr, uint64_t n_bytes)
{
	return work(device, zero_inside, ptr, 0, n_bytes);
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
	release_primary(drv, device->handle);
}
