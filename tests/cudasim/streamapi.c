/* SPDX-License-Identifier: Apache-2.0 */
/* The exported functions for streams, and host functions on them. */
#include "work.h"

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

/* Frees the stream also in a poisoned context, and then returns its error, because nobody can try again. */
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

CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags_out)
{
	ENTER(cuStreamGetFlags);
	struct stream *s = stream_from_handle(handle);

	if (!s || !flags_out) {
		return s ? CUDA_ERROR_INVALID_VALUE : stream_missing(handle);
	}
	*flags_out = stream_flags(s) & CU_STREAM_NON_BLOCKING;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int *priority_out)
{
	ENTER(cuStreamGetPriority);
	struct stream *s = stream_from_handle(handle);

	if (!s || !priority_out) {
		return s ? CUDA_ERROR_INVALID_VALUE : stream_missing(handle);
	}
	*priority_out = stream_priority(s);
	return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *dev_out)
{
	ENTER(cuStreamGetDevice);
	struct stream *s = stream_from_handle(handle);

	if (!s || !dev_out) {
		return s ? CUDA_ERROR_INVALID_VALUE : stream_missing(handle);
	}
	*dev_out = (CUdevice)stream_ctx(s)->device;
	return CUDA_SUCCESS;
}

/* All attributes are hints, which nothing here depends on. */
CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
                              const CUstreamAttrValue *value)
{
	ENTER(cuStreamSetAttribute);
	(void)attribute;
	if (!value || !stream_from_handle(handle)) {
		return value ? stream_missing(handle) : CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute,
                              CUstreamAttrValue *value_out)
{
	ENTER(cuStreamGetAttribute);
	struct stream *s = stream_from_handle(handle);

	if (!s || !value_out) {
		return s ? CUDA_ERROR_INVALID_VALUE : stream_missing(handle);
	}
	*value_out = (CUstreamAttrValue){{0}};
	if (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) {
		value_out->syncPolicy = CU_SYNC_POLICY_AUTO;
	} else if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
		value_out->priority = stream_priority(s);
	}
	return CUDA_SUCCESS;
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src)
{
	ENTER(cuStreamCopyAttributes);
	if (!stream_from_handle(dst) || !stream_from_handle(src)) {
		return stream_missing(stream_from_handle(dst) ? src : dst);
	}
	return CUDA_SUCCESS;
}

/* Managed memory is in host memory, whoever it is attached to. */
CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr ptr, size_t bytes, unsigned int flags)
{
	ENTER(cuStreamAttachMemAsync);
	(void)bytes;
	if (!stream_from_handle(handle)) {
		return stream_missing(handle);
	}
	space_lock_read();
	struct mapping *m = space_find(ptr);
	bool is_managed = m && m->is_managed;
	space_unlock();
	return is_managed && flags <= CU_MEM_ATTACH_SINGLE ? CUDA_SUCCESS
	                                                   : CUDA_ERROR_INVALID_VALUE;
}

struct callback {
	CUstream stream;
	CUstreamCallback fn;
	void *data;
	struct ctx *ctx;
};

/* Called also when the context is lost; the status says so. */
static void call_back(void *arg)
{
	const struct callback *callback = arg;

	callback->fn(callback->stream, atomic_load(&callback->ctx->poison), callback->data);
}

static CUresult run_nothing(struct ctx *ctx, void *arg)
{
	(void)ctx;
	(void)arg;
	return CUDA_SUCCESS;
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback fn, void *data, unsigned int flags)
{
	ENTER(cuStreamAddCallback);
	struct stream *s = stream_from_handle(handle);

	if (!fn || flags != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!s) {
		return stream_missing(handle);
	}
	CUresult err = capture_check_stream(s);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	struct callback callback = {handle, fn, data, stream_ctx(s)};
	return stream_submit(s, run_nothing, call_back, &callback, sizeof(callback));
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *data)
{
	ENTER(cuLaunchHostFunc);
	struct stream *s = stream_from_handle(handle);
	struct work work = {.type = CU_GRAPH_NODE_TYPE_HOST, .of.call = {fn, data}};

	if (!fn) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return s ? work_submit(s, &work) : stream_missing(handle);
}
