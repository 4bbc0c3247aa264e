/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: streams of their own in the primary context of their device, which each of them
 * retains. All else, memory, events and modules, is the primary's, whoever made it.
 *
 * What cuda.h does not say: the default stream of one is in no order with that of the primary; the end
 * waits for its work; the reset of the primary ends it, and then it still has to be destroyed.
 */
#include "sim.h"

#include <pthread.h>

#define MAX_GREENS 64

/* The first free one is taken, so a handle is soon used again. */
static struct green greens[MAX_GREENS];
/* For all but the `active` of those there are. Taken inside the lock of the contexts. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct green *green_from_context(CUcontext handle)
{
	for (size_t i = 0; handle && i < MAX_GREENS; i++) {
		if (handle == (CUcontext)&greens[i] && atomic_load(&greens[i].active)) {
			return &greens[i];
		}
	}
	return NULL;
}

/* Also one that has ended, and is not destroyed yet. */
static struct green *from_handle(CUgreenCtx handle)
{
	for (size_t i = 0; handle && i < MAX_GREENS; i++) {
		if (handle == (CUgreenCtx)&greens[i].handle && greens[i].ctx) {
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
		found = greens[i].ctx ? NULL : &greens[i];
	}
	if (found) {
		found->ctx = ctx;
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
	CUresult err = stream_new(ctx, green, CU_STREAM_DEFAULT, 0, &green->null_stream);
	if (err != CUDA_SUCCESS) {
		give(green);
		return err;
	}
	green->id = ctx_new_id();
	atomic_store(&green->active, true);
	*green_out = (CUgreenCtx)&green->handle;
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
	CUresult err = ctx_retain(dev, &ctx);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	err = open_in(ctx, green_out);
	if (err != CUDA_SUCCESS) {
		ctx_release(ctx);
	}
	return err;
}

/* False: it has ended before. */
static bool end(struct green *green)
{
	bool is_first = atomic_exchange(&green->active, false);

	if (is_first) {
		stream_wait_green(green);
		capture_end_of_green(green);
		stream_free(green->null_stream);
		stream_detach_all(green);
		green->null_stream = NULL;
	}
	return is_first;
}

void green_end_all(const struct ctx *ctx)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < MAX_GREENS; i++) {
		if (greens[i].ctx == ctx) {
			end(&greens[i]);
		}
	}
	pthread_mutex_unlock(&lock);
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
	ENTER(cuGreenCtxDestroy);
	struct green *green = from_handle(handle);

	if (!green) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	struct ctx *ctx = green->ctx;
	bool is_first = end(green);
	give(green);
	ctx_release(ctx);
	return is_first ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult cuCtxFromGreenCtx(CUcontext *ctx_out, CUgreenCtx handle)
{
	ENTER(cuCtxFromGreenCtx);
	struct green *green = from_handle(handle);

	if (!ctx_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!green || !atomic_load(&green->active)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*ctx_out = (CUcontext)green;
	return CUDA_SUCCESS;
}

/* Whatever context is current, if any. */
CUresult cuGreenCtxStreamCreate(CUstream *stream_out, CUgreenCtx handle, unsigned int flags,
                                int priority)
{
	ENTER(cuGreenCtxStreamCreate);
	struct green *green = from_handle(handle);
	struct stream *s;

	if (!stream_out || flags != CU_STREAM_NON_BLOCKING) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!green || !atomic_load(&green->active)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	CUresult err = stream_new(green->ctx, green, flags, priority, &s);
	if (err == CUDA_SUCCESS) {
		*stream_out = (CUstream)s;
	}
	return err;
}
