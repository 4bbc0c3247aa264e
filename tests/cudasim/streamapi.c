/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for streams, and host functions on them. */
#include "sim.h"

static CUresult create(CUstream *stream_out, unsigned flags, int priority)
{
	struct stream *s;

	if (!stream_out || flags & ~(unsigned)CU_STREAM_NON_BLOCKING) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = stream_new(ctx_current(), ctx_current_green(), flags, priority, &s);
	if (err == CUDA_SUCCESS) {
		*stream_out = (CUstream)s;
	}
	return err;
}

CUresult cuStreamCreate(CUstream *stream_out, unsigned int flags)
{
	ENTER(cuStreamCreate);
	return create(stream_out, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *stream_out, unsigned int flags, int priority)
{
	ENTER(cuStreamCreateWithPriority);
	return create(stream_out, flags, priority);
}

/* Frees also in a poisoned context, and then says what is wrong: nobody can try again. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
	ENTER(cuStreamDestroy_v2);
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	struct stream *s = stream_from_handle(handle);
	if (!s) {
		return stream_missing(handle);
	}
	struct ctx *ctx = stream_ctx(s);
	capture_end_of_stream(s);
	stream_free(s);
	return ctx_check(ctx);
}

CUresult cuStreamSynchronize(CUstream handle)
{
	ENTER(cuStreamSynchronize);
	struct stream *s = stream_from_handle(handle);

	if (!s) {
		return stream_missing(handle);
	}
	CUresult err = capture_is_of(s) ? capture_check_stream(s) : capture_check_unsafe();
	return err == CUDA_SUCCESS ? stream_wait(s) : err;
}

CUresult cuStreamQuery(CUstream handle)
{
	ENTER(cuStreamQuery);
	struct stream *s = stream_from_handle(handle);

	if (!s) {
		return stream_missing(handle);
	}
	bool idle = stream_is_idle(s);
	CUresult err = atomic_load(&stream_ctx(s)->poison);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id_out)
{
	ENTER(cuStreamGetId);
	struct stream *s = stream_from_handle(handle);

	if (!s || !id_out) {
		return s ? CUDA_ERROR_INVALID_VALUE : stream_missing(handle);
	}
	CUresult err = capture_check_stream(s);
	if (err == CUDA_SUCCESS) {
		*id_out = stream_id(s);
	}
	return err;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *ctx_out)
{
	ENTER(cuStreamGetCtx);
	struct stream *s = stream_from_handle(handle);

	if (!s || !ctx_out) {
		return s ? CUDA_ERROR_INVALID_VALUE : stream_missing(handle);
	}
	*ctx_out = stream_green(s) ? (CUcontext)stream_green(s) : (CUcontext)stream_ctx(s);
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *ctx_out, CUgreenCtx *green_out)
{
	ENTER(cuStreamGetCtx_v2);
	struct stream *s = stream_from_handle(handle);

	if (!s || !ctx_out || !green_out) {
		return s ? CUDA_ERROR_INVALID_VALUE : stream_missing(handle);
	}
	*ctx_out = (CUcontext)stream_ctx(s);
	*green_out = (CUgreenCtx)stream_green(s);
	return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *green_out)
{
	ENTER(cuStreamGetGreenCtx);
	struct stream *s = stream_from_handle(handle);

	if (!s || !green_out) {
		return s ? CUDA_ERROR_INVALID_VALUE : stream_missing(handle);
	}
	*green_out = (CUgreenCtx)stream_green(s);
	return CUDA_SUCCESS;
}

struct host_call {
	CUhostFn fn;
	void *data;
};

static CUresult run_host_call(struct ctx *ctx, void *arg)
{
	struct host_call *call = arg;

	(void)ctx;
	call->fn(call->data);
	return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *data)
{
	ENTER(cuLaunchHostFunc);
	struct stream *s = stream_from_handle(handle);
	struct host_call call = {.fn = fn, .data = data};

	if (!fn) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return s ? stream_submit(s, run_host_call, NULL, &call, sizeof(call))
	         : stream_missing(handle);
}
