/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/context.h"

#include <errno.h>

#include "libclient/space/space.h"
#include "proto/clock.h"

/* The pause between two questions whether work is over: at least, and at most. */
#define PAUSE_NS 5000u
#define MAX_PAUSE_NS 5000000u
/* A thread that sleeps wakes up about this much later, so it does not sleep for less. A small copy is over sooner. */
#define WAKE_NS 50000u

/* Called with @context current. */
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
	bool is_across;  /* a copy comes from another device */
	CUdevice source; /* then: its primary context is retained */
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
	if (visit->is_across) {
		drv->cuDevicePrimaryCtxRelease(visit->source);
	}
}

/* Called with the contexts held. */
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

/* An answer that leaves it open whether the work goes on is none. */
static bool is_over(CUresult result)
{
	return result == CUDA_SUCCESS || cudrv_is_lost(result);
}

/* The longer it has taken, the longer. */
static void pause_behind(uint64_t waited_ns)
{
	if (waited_ns >= WAKE_NS) {
		clock_sleep_ns(waited_ns / 8 < MAX_PAUSE_NS ? waited_ns / 8 : MAX_PAUSE_NS);
		return;
	}
	const uint64_t end_ns = clock_now_ns() + (waited_ns > PAUSE_NS ? waited_ns : PAUSE_NS);
	while (clock_now_ns() < end_ns) {
	}
}

/*
 * Asked, not waited for: a wait has no end of its own. CUDA_ERROR_NOT_READY: the memory may still be used.
 */
static CUresult wait_for(const struct visit *visit, uint64_t patience_ns)
{
	const uint64_t begin_ns = clock_now_ns();
	uint64_t waited_ns = 0;
	CUresult result;
	while (!is_over(result = visit->drv->cuStreamQuery(visit->stream)) &&
	       waited_ns < patience_ns) {
		pause_behind(waited_ns);
		waited_ns = clock_now_ns() - begin_ns;
	}
	return is_over(result) ? result : CUDA_ERROR_NOT_READY;
}

/* The stream and its context stay. */
static void leave_behind(struct visit *visit, struct glake__left *left)
{
	*left = (struct glake__left){
		.stream = visit->stream,
		.device = visit->device,
		.is_primary = visit->is_primary,
	};
	visit->drv->cuCtxGetCurrent(&left->context);
	visit->stream = NULL;
	visit->is_primary = false;
	/* The context of the source stays with it. */
	visit->is_across = false;
}

/*
 * Memory that is mapped on another device is not open to this one: the driver copies it only when the contexts of both are
 * named (measured: driver 580.159, two H200s).
 */
static CUresult copy_across(struct visit *visit, glake_ptr to, glake_ptr from, uint64_t n_bytes)
{
	const struct cudrv *drv = visit->drv;
	CUcontext here = NULL;
	CUcontext there = NULL;
	int ordinal;
	CUresult result = drv->cuCtxGetCurrent(&here);
	if (result == CUDA_SUCCESS) {
		result = drv->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		                                    from);
	}
	if (result == CUDA_SUCCESS) {
		result = drv->cuDeviceGet(&visit->source, ordinal);
	}
	if (result != CUDA_SUCCESS || visit->source == visit->device) {
		return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
	}
	result = drv->cuDevicePrimaryCtxRetain(&there, visit->source);
	visit->is_across = result == CUDA_SUCCESS;
	return result != CUDA_SUCCESS
	               ? result
	               : drv->cuMemcpyPeerAsync(to, here, from, there, n_bytes, visit->stream);
}

static CUresult submit(struct visit *visit, glake_ptr to, glake_ptr from, uint64_t n_bytes)
{
	const struct cudrv *drv = visit->drv;
	if (!from) {
		return drv->cuMemsetD8Async(to, 0, n_bytes, visit->stream);
	}
	CUresult result = drv->cuMemcpyDtoDAsync(to, from, n_bytes, visit->stream);
	return result == CUDA_ERROR_INVALID_VALUE ? copy_across(visit, to, from, n_bytes) : result;
}

/* In a context, which is held. */
static CUresult work_in(const struct glake__device *device, CUcontext context, glake_ptr to,
                        glake_ptr from, uint64_t n_bytes, uint64_t patience_ns,
                        struct glake__left *left_out)
{
	struct visit visit;
	CUresult result = enter(&visit, device, context);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	CUresult submitted = submit(&visit, to, from, n_bytes);
	result = wait_for(&visit, patience_ns);
	if (result == CUDA_ERROR_NOT_READY && left_out) {
		leave_behind(&visit, left_out);
	}
	leave(&visit);
	return result == CUDA_SUCCESS ? submitted : result;
}

int glake__context_work(const struct glake__device *device, glake_ptr to, glake_ptr from,
                        uint64_t n_bytes, uint64_t patience_ns, struct glake__left *left_out)
{
	void *context;
	int r = glake__context_hold(device->handle, &context);
	if (r < 0) {
		return r;
	}
	CUresult result = work_in(device, context, to, from, n_bytes, patience_ns, left_out);
	glake__context_let();
	if (result == CUDA_ERROR_NOT_READY) {
		return glake__fail(-EBUSY, "the GPU has no time for a copy");
	}
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
	return glake__context_work(device, to, from, n_bytes, UINT64_MAX, NULL);
}

/* A context that was current may be gone when it no longer is: then nobody can ask. */
bool glake__context_is_over(const struct cudrv *drv, struct glake__left *left)
{
	CUcontext current = NULL;
	if (!left->stream || drv->cuCtxGetCurrent(&current) != CUDA_SUCCESS ||
	    (current != left->context && !left->is_primary) ||
	    drv->cuCtxSetCurrent(left->context) != CUDA_SUCCESS) {
		return false;
	}
	bool has_ended = is_over(drv->cuStreamQuery(left->stream));
	if (has_ended) {
		drv->cuStreamDestroy(left->stream);
		left->stream = NULL;
	}
	drv->cuCtxSetCurrent(current);
	if (has_ended && left->is_primary) {
		drv->cuDevicePrimaryCtxRelease(left->device);
	}
	return has_ended;
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
