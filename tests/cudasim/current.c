/* SPDX-License-Identifier: Apache-2.0 */
/* Each thread's stack of current contexts, green ones too. */
#include "sim.h"

#define MAX_STACK 64

struct place {
	struct ctx *ctx;     /* NULL: nowhere */
	struct green *green; /* NULL: in the primary one itself */
};

static _Thread_local struct place stack[MAX_STACK];
static _Thread_local unsigned depth;

static struct place current(void)
{
	return depth > 0 ? stack[depth - 1] : (struct place){NULL, NULL};
}

struct ctx *ctx_current(void)
{
	return current().ctx;
}

struct green *ctx_current_green(void)
{
	return current().green;
}

static struct place place_from_handle(CUcontext handle)
{
	struct ctx *ctx = ctx_find(handle);

	if (ctx) {
		return (struct place){ctx, NULL};
	}
	struct green *green = green_from_handle(handle);
	return (struct place){green ? green->ctx : NULL, green};
}

static CUcontext handle_of(struct place place)
{
	return place.green ? (CUcontext)place.green : (CUcontext)place.ctx;
}

struct ctx *ctx_from_handle(CUcontext handle)
{
	return place_from_handle(handle).ctx;
}

CUresult ctx_check_current(void)
{
	struct place place = current();

	if (place.green && !atomic_load(&place.green->active)) {
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	}
	return ctx_check(place.ctx);
}

CUresult ctx_push(struct ctx *ctx)
{
	if (depth == MAX_STACK) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	stack[depth++] = (struct place){ctx, NULL};
	return CUDA_SUCCESS;
}

void ctx_pop_if(const struct ctx *ctx)
{
	if (current().ctx == ctx) {
		depth--;
	}
}

CUresult cuCtxGetCurrent(CUcontext *ctx_out)
{
	ENTER(cuCtxGetCurrent);
	if (!ctx_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*ctx_out = handle_of(current());
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
	ENTER(cuCtxSetCurrent);
	struct place place = place_from_handle(handle);

	if (handle && !place.ctx) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (depth > 0) {
		depth--;
	}
	if (place.ctx) {
		stack[depth++] = place;
	}
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext handle)
{
	ENTER(cuCtxPushCurrent_v2);
	struct place place = place_from_handle(handle);

	if (!handle) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!place.ctx || depth == MAX_STACK) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	stack[depth++] = place;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx_out)
{
	ENTER(cuCtxPopCurrent_v2);
	if (depth == 0) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	depth--;
	if (ctx_out) {
		*ctx_out = handle_of(stack[depth]);
	}
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *dev_out)
{
	ENTER(cuCtxGetDevice);
	if (!dev_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!ctx_current()) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*dev_out = (CUdevice)ctx_current()->device;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id_out)
{
	ENTER(cuCtxGetId);
	struct place place = handle ? place_from_handle(handle) : current();

	if (!id_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!place.ctx || !atomic_load(&place.ctx->active) ||
	    (place.green && !atomic_load(&place.green->active))) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*id_out = place.green ? place.green->id : ctx_id(place.ctx);
	return CUDA_SUCCESS;
}
