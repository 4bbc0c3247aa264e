/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/order/order_parts.h"

#include <dlfcn.h>
#include <time.h>

#include "libclient/link/fork.h"
#include "libclient/link/sized.h"
#include "proto/cleanup.h"

static CUresult ask_place(struct glake_order *order, const struct glake__order_calls *calls,
                          CUstream handle, struct glake_stream *stream)
{
	CUcontext ctx = NULL;
	CUcontext popped;
	CUdevice device;
	CUgreenCtx green;
	CUresult result = calls->get_ctx_v2 ? calls->get_ctx_v2(handle, &ctx, &green)
	                                    : calls->get_ctx(handle, &ctx);
	if (result != CUDA_SUCCESS || !ctx) {
		return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT : result;
	}
	result = order->push(ctx);
	if (result == CUDA_SUCCESS) {
		result = order->get_device(&device);
		order->pop(&popped);
		stream->context = ctx;
		stream->ordinal = device;
	}
	return result;
}

const struct glake__order_calls *glake__order_calls_of(const struct glake_order *order,
                                                       unsigned flags)
{
	return &order->calls[(flags & GLAKE_PER_THREAD) != 0];
}

/* The stream that this thread asked for last. */
static _Thread_local struct {
	uint64_t epoch; /* of the order; 0: none */
	struct glake_stream stream;
} last;

void glake__order_forget_streams(struct glake_order *order)
{
	static _Atomic uint64_t n_epochs; /* of all orders */
	order->epoch = ++n_epochs;
}

int glake_order_stream(struct glake_order *order, void *handle, unsigned flags,
                       struct glake_stream *stream_out)
{
	const struct glake__order_calls *calls = glake__order_calls_of(order, flags);
	unsigned long long id = 0;
	if (!calls->get_id || !calls->get_ctx || !calls->record || !calls->wait ||
	    !calls->is_capturing || !calls->query) {
		return glake__fail(-ENOSYS, "the driver has no default streams by thread");
	}
	CUresult result = calls->get_id(handle, &id);
	if (result == CUDA_SUCCESS && last.epoch == order->epoch && last.stream.id == id) {
		*stream_out = last.stream;
		return 0;
	}
	if (result == CUDA_SUCCESS) {
		pthread_mutex_lock(&order->lock);
		const struct glake__order_line *line = glake__order_find_line(order, id);
		if (line) {
			*stream_out = line->stream;
		}
		pthread_mutex_unlock(&order->lock);
		if (line) {
			last.epoch = order->epoch;
			last.stream = *stream_out;
			return 0;
		}
	}
	struct glake_stream stream = {.id = id};
	if (result == CUDA_SUCCESS) {
		result = ask_place(order, calls, handle, &stream);
	}
	if (result != CUDA_SUCCESS) {
		return glake__fail(GLAKE_E_CUDA, "the driver knows no such stream: %s",
		                   cudrv_error(&order->drv, result));
	}
	pthread_mutex_lock(&order->lock);
	bool is_known = glake__order_line_of(order, &stream) != NULL;
	pthread_mutex_unlock(&order->lock);
	if (!is_known) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	*stream_out = stream;
	return 0;
}

bool glake__order_is_captured(const struct glake_order *order, CUstream handle, unsigned flags)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	const struct glake__order_calls *calls = glake__order_calls_of(order, flags);
	return calls->is_capturing && calls->is_capturing(handle, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUstreamCaptureMode glake__order_relax(const struct glake_order *order)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	order->drv.cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

void glake__order_restore(const struct glake_order *order, CUstreamCaptureMode mode)
{
	order->drv.cuThreadExchangeStreamCaptureMode(&mode);
}

void glake__order_pause(uint64_t ns)
{
	cleanup_cancel int cancel = cancel_disable();
	clock_sleep_ns(ns);
}

static bool find_calls(struct glake_order *order)
{
	const struct {
		const char *symbol;
		void **entry;
		bool is_vital; /* default streams by thread and green contexts are not */
	} wanted[] = {
		{"cuCtxPushCurrent_v2", (void **)&order->push, true},
		{"cuCtxPopCurrent_v2", (void **)&order->pop, true},
		{"cuCtxGetDevice", (void **)&order->get_device, true},
		{"cuStreamGetId", (void **)&order->calls[0].get_id, true},
		{"cuStreamGetCtx", (void **)&order->calls[0].get_ctx, true},
		{"cuStreamGetCtx_v2", (void **)&order->calls[0].get_ctx_v2, false},
		{"cuEventRecord", (void **)&order->calls[0].record, true},
		{"cuStreamWaitEvent", (void **)&order->calls[0].wait, true},
		{"cuStreamIsCapturing", (void **)&order->calls[0].is_capturing, true},
		{"cuStreamQuery", (void **)&order->calls[0].query, true},
		{"cuStreamGetId_ptsz", (void **)&order->calls[1].get_id, false},
		{"cuStreamGetCtx_ptsz", (void **)&order->calls[1].get_ctx, false},
		{"cuStreamGetCtx_v2_ptsz", (void **)&order->calls[1].get_ctx_v2, false},
		{"cuEventRecord_ptsz", (void **)&order->calls[1].record, false},
		{"cuStreamWaitEvent_ptsz", (void **)&order->calls[1].wait, false},
		{"cuStreamIsCapturing_ptsz", (void **)&order->calls[1].is_capturing, false},
		{"cuStreamQuery_ptsz", (void **)&order->calls[1].query, false},
	};
	for (size_t i = 0; i < n_elements(wanted); i++) {
		*wanted[i].entry = dlsym(order->drv.library, wanted[i].symbol);
		if (!*wanted[i].entry && wanted[i].is_vital) {
			glake__fail(-ENOSYS, "the CUDA driver library has no call named %s",
			            wanted[i].symbol);
			return false;
		}
	}
	return true;
}

static void init_recursive(pthread_mutex_t *lock)
{
	pthread_mutexattr_t attributes;
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(lock, &attributes);
	pthread_mutexattr_destroy(&attributes);
}

int glake__order_over(const struct cudrv *drv, const struct glake_order_options *options,
                      struct glake_order **order_out)
{
	struct glake_order *order = calloc(1, sizeof(*order));
	if (!order) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	order->options = *options;
	glake__order_forget_streams(order);
	order->fork_generation = glake__fork_generation();
	order->drv = *drv;
	if (!find_calls(order)) {
		free(order);
		return -ENOSYS;
	}
	init_recursive(&order->context_lock);
	pthread_mutex_init(&order->lock, NULL);
	*order_out = order;
	return 0;
}

int glake_order_new(const struct glake_order_options *options, struct glake_order **order_out)
{
	struct glake_order_options full;
	struct cudrv drv;
	char text[512] = "";
	int r = glake__sized_in(options, &full, sizeof(full));
	if (r < 0) {
		return r;
	}
	if (!full.release) {
		return glake__fail(-EINVAL, "an order needs to be told how to release");
	}
	r = cudrv_open(&drv, full.libcuda, text, sizeof(text));
	if (r < 0) {
		return glake__fail(r == -ENOSYS ? r : GLAKE_E_NO_DRIVER, "%s", text);
	}
	return glake__order_over(&drv, &full, order_out);
}

void glake_order_free(struct glake_order *order)
{
	if (!order) {
		return;
	}
	while (order->lines) {
		struct glake__order_line *line = order->lines;
		while (line->oldest) {
			struct glake__parked *parked = line->oldest;
			glake__order_take_out(order, line, parked);
			glake__order_put_mark(line->of, parked);
			order->options.release(order->options.user, parked->allocation);
			free(parked);
		}
		glake__order_forget_line(order, &order->lines);
	}
	while (order->contexts) {
		struct glake__order_context *context = order->contexts;
		order->contexts = context->next;
		glake__order_end_marks(order, context->ctx, context->spares);
		free(context);
	}
	glake__order_free_nodes(order->spares);
	glake__ptr_table_deinit(&order->by_id);
	free(order);
}
