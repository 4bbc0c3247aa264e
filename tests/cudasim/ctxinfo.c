/* SPDX-License-Identifier: Apache-2.0 */
/* Queries and settings of a context. */
#include "sim.h"

#define API_VERSION 3020 /* all drivers return this */

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version_out)
{
	ENTER(cuCtxGetApiVersion);
	if (!version_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!(handle ? ctx_from_handle(handle) : ctx_current())) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	*version_out = API_VERSION;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least_out, int *greatest_out)
{
	ENTER(cuCtxGetStreamPriorityRange);
	if (least_out) {
		*least_out = 0;
	}
	if (greatest_out) {
		*greatest_out = -5;
	}
	return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags_out)
{
	ENTER(cuCtxGetFlags);
	if (!flags_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*flags_out = ctx_current()->flags;
	return CUDA_SUCCESS;
}

/* The defaults of an H200; they limit nothing here. */
static atomic_ulong limits[CU_LIMIT_MAX] = {
	[CU_LIMIT_STACK_SIZE] = 1024,
	[CU_LIMIT_PRINTF_FIFO_SIZE] = 7340032,
	[CU_LIMIT_MALLOC_HEAP_SIZE] = 8388608,
	[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
	[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
	[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

CUresult cuCtxGetLimit(size_t *value_out, CUlimit limit)
{
	ENTER(cuCtxGetLimit);
	if (!value_out || (unsigned)limit >= CU_LIMIT_MAX) {
		return value_out ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
	}
	*value_out = atomic_load(&limits[limit]);
	return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	ENTER(cuCtxSetLimit);
	if ((unsigned)limit >= CU_LIMIT_MAX) {
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	}
	atomic_store(&limits[limit], value);
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config_out)
{
	ENTER(cuCtxGetCacheConfig);
	if (!config_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*config_out = CU_FUNC_CACHE_PREFER_NONE;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	ENTER(cuCtxSetCacheConfig);
	(void)config;
	return CUDA_SUCCESS;
}

/* The event is behind all work submitted until now in the context and its green contexts. */
CUresult cuCtxRecordEvent(CUcontext handle, CUevent event)
{
	ENTER(cuCtxRecordEvent);
	struct green *green = green_from_handle(handle);
	struct ctx *ctx = handle ? ctx_from_handle(handle) : ctx_current();

	if (!ctx || ctx_check(ctx) != CUDA_SUCCESS) {
		return ctx ? ctx_check(ctx) : CUDA_ERROR_INVALID_CONTEXT;
	}
	CUresult err = capture_check_ctx(ctx);
	return err == CUDA_SUCCESS ? event_record_ctx(event, ctx, green) : err;
}

CUresult cuCtxSynchronize(void)
{
	ENTER(cuCtxSynchronize);
	struct ctx *ctx = ctx_current();
	CUresult err = capture_check_ctx(ctx);

	if (err != CUDA_SUCCESS) {
		return err;
	}
	if (ctx_current_green()) {
		stream_wait_green(ctx_current_green());
	} else {
		stream_wait_ctx(ctx);
	}
	return atomic_load(&ctx->poison);
}

/* All contexts of a device may reach the same peers. */
static atomic_uint *peers(void)
{
	return &ctx_of_device(ctx_current()->device)->peers;
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags)
{
	ENTER(cuCtxEnablePeerAccess);
	struct ctx *peer = ctx_from_handle(handle);

	if (flags != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!peer || !atomic_load(&peer->active)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	if (peer == ctx_current()) {
		return CUDA_ERROR_INVALID_DEVICE;
	}
	unsigned bit = 1U << peer->device;
	return atomic_fetch_or(peers(), bit) & bit ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
	                                           : CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
	ENTER(cuCtxDisablePeerAccess);
	struct ctx *peer = ctx_from_handle(handle);

	if (!peer) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	unsigned bit = 1U << peer->device;
	return atomic_fetch_and(peers(), ~bit) & bit ? CUDA_SUCCESS
	                                             : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}
