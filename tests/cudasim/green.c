/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: streams of their own in the primary context of their device, which each of them
 * retains. All else, memory, events and modules, is the primary's, whoever made it.
 *
 * cuda.h does not say the following, which an H200 with driver 580 does. The default stream of a green context is not ordered
 * with that of the primary. Ending one waits for nothing, and queued work still runs. Where it was
 * current it stays so, and is of no use. The primary cannot be reset as long as there is one. It is assumed that the
 * program cannot release the primary contexts that green ones retain.
 */
#include "sim.h"

#include <pthread.h>

#define MAX_GREENS 64

/* Slots are used in turn, so that no handle is used again at once. */
static struct green greens[MAX_GREENS];
static size_t next_green;
/* Guards all members but `active`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct green *green_from_handle(const void *handle)
{
	for (size_t i = 0; handle && i < MAX_GREENS; i++) {
		if (handle == &greens[i] && atomic_load(&greens[i].active)) {
			return &greens[i];
		}
	}
	return NULL;
}

/* Takes a place for one of @ctx; NULL: there is none. */
static struct green *take(struct ctx *ctx)
{
	struct green *found = NULL;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; !found && i < MAX_GREENS; i++) {
		struct green *green = &greens[next_green++ % MAX_GREENS];
		found = green->ctx ? NULL : green;
	}
	if (found) {
		found->ctx = ctx;
		found->id = ctx_new_id();
	}
	pthread_mutex_unlock(&lock);
	return found;
}

static void give(struct green *green)
{
	pthread_mutex_lock(&lock);
	green->ctx = NULL;
	pthread_mutex_unlock(&lock);
}

static CUresult open_in(struct ctx *ctx, CUgreenCtx *green_out)
{
	struct green *green = take(ctx);

	if (!green) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult err = stream_new(ctx, green, STREAM_IS_LEGACY, 0, &green->null_stream);
	if (err != CUDA_SUCCESS) {
		give(green);
		return err;
	}
	atomic_store(&green->active, true);
	*green_out = (CUgreenCtx)green;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *green_out, CUdevResourceDesc desc, CUdevice dev,
                          unsigned int flags)
{
	ENTER(cuGreenCtxCreate);
	struct ctx *ctx;

	if (!green_out || !desc || flags != CU_GREEN_CTX_DEFAULT_STREAM) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!device_is_valid(dev)) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	if (resource_device(desc) != dev) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = ctx_retain(dev, true, &ctx);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	err = open_in(ctx, green_out);
	if (err != CUDA_SUCCESS) {
		ctx_release(ctx, true);
	}
	return err;
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
	ENTER(cuGreenCtxDestroy);
	struct green *green = green_from_handle(handle);

	/* If two threads come, one destroys it. */
	if (!green || !atomic_exchange(&green->active, false)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	struct ctx *ctx = green->ctx;
	capture_end_of_green(green);
	stream_free(green->null_stream);
	stream_detach_all(green);
	green->null_stream = NULL;
	give(green);
	ctx_release(ctx, true);
	return CUDA_SUCCESS;
}

CUresult cuCtxFromGreenCtx(CUcontext *ctx_out, CUgreenCtx handle)
{
	ENTER(cuCtxFromGreenCtx);
	struct green *green = green_from_handle(handle);

	if (!ctx_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!green) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*ctx_out = (CUcontext)green;
	return CUDA_SUCCESS;
}

/* The current context does not matter. */
CUresult cuGreenCtxStreamCreate(CUstream *stream_out, CUgreenCtx handle, unsigned int flags,
                                int priority)
{
	ENTER(cuGreenCtxStreamCreate);
	struct green *green = green_from_handle(handle);
	struct stream *s;

	if (!stream_out || flags != CU_STREAM_NON_BLOCKING) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!green) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	CUresult err = stream_new(green->ctx, green, flags, priority, &s);
	if (err == CUDA_SUCCESS) {
		*stream_out = (CUstream)s;
	}
	return err;
}
