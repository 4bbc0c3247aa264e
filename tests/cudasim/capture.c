/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture, as far as it concerns memory: which calls it forbids, and that a forbidden call
 * ends it. Nothing is recorded: work on a capturing stream runs at once, and the graph is NULL; what
 * is allocated on one counts as memory of graphs.
 *
 * Waiting for a context is forbidden while a stream of it is captured, and so is asking a captured
 * stream for its id. What is "potentially unsafe" depends on the mode of the calling thread: see
 * cuThreadExchangeStreamCaptureMode() in cuda.h. On an H200 with driver 580 such are cuMemAlloc() and
 * cuMemFree(), the same on streams that are not captured, queries of and waits for events and streams,
 * and cuMemPoolGetAttribute(), but none of the calls about virtual memory.
 */
#include "sim.h"

#include <pthread.h>

#define MAX_CAPTURES 16

struct capture {
	struct stream *stream; /* NULL: a free place */
	CUstreamCaptureMode mode;
	pthread_t thread;
	bool is_broken;
};

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture captures[MAX_CAPTURES];
static atomic_uint n_captures;

/* Called with the lock held; NULL finds a free place. */
static struct capture *find(const struct stream *stream)
{
	for (size_t i = 0; i < MAX_CAPTURES; i++) {
		if (captures[i].stream == stream) {
			return &captures[i];
		}
	}
	return NULL;
}

bool capture_is_of(const struct stream *s)
{
	if (atomic_load(&n_captures) == 0) {
		return false;
	}
	pthread_mutex_lock(&lock);
	bool is_of = find(s) != NULL;
	pthread_mutex_unlock(&lock);
	return is_of;
}

static bool is_unsafe(const struct capture *capture)
{
	bool is_own = pthread_equal(capture->thread, pthread_self());

	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
		return false;
	}
	return is_own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
	              : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	                        thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

static bool is_of_stream(const struct capture *capture, const void *stream)
{
	return capture->stream == stream;
}

static bool is_of_ctx(const struct capture *capture, const void *ctx)
{
	return stream_ctx(capture->stream) == ctx;
}

static bool is_of_green(const struct capture *capture, const void *green)
{
	return stream_green(capture->stream) == green;
}

static bool is_forbidding(const struct capture *capture, const void *unused)
{
	(void)unused;
	return is_unsafe(capture);
}

/* All captures that @forbids break. */
static CUresult break_those(bool (*forbids)(const struct capture *capture, const void *of),
                            const void *of)
{
	CUresult err = CUDA_SUCCESS;

	if (atomic_load(&n_captures) == 0) {
		return err;
	}
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < MAX_CAPTURES; i++) {
		if (captures[i].stream && forbids(&captures[i], of)) {
			captures[i].is_broken = true;
			err = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	pthread_mutex_unlock(&lock);
	return err;
}

CUresult capture_check_unsafe(void)
{
	return break_those(is_forbidding, NULL);
}

CUresult capture_check_stream(const struct stream *s)
{
	return break_those(is_of_stream, s);
}

CUresult capture_check_ctx(const struct ctx *ctx)
{
	return break_those(is_of_ctx, ctx);
}

/* Called with the lock held. */
static void end(struct capture *capture)
{
	capture->stream = NULL;
	atomic_fetch_sub(&n_captures, 1);
}

void capture_end_of_stream(const struct stream *s)
{
	pthread_mutex_lock(&lock);
	struct capture *capture = find(s);
	if (capture) {
		end(capture);
	}
	pthread_mutex_unlock(&lock);
}

static void end_those(bool (*is_among)(const struct capture *capture, const void *of),
                      const void *of)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < MAX_CAPTURES; i++) {
		if (captures[i].stream && is_among(&captures[i], of)) {
			end(&captures[i]);
		}
	}
	pthread_mutex_unlock(&lock);
}

void capture_end_of_ctx(const struct ctx *ctx)
{
	end_those(is_of_ctx, ctx);
}

void capture_end_of_green(const struct green *green)
{
	end_those(is_of_green, green);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	ENTER(cuThreadExchangeStreamCaptureMode);
	if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUstreamCaptureMode before = thread_mode;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
	ENTER(cuStreamBeginCapture_v2);
	struct stream *s = stream_from_handle(handle);
	CUresult err = CUDA_ERROR_ILLEGAL_STATE;

	if (!s || !handle || handle == CU_STREAM_LEGACY) {
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	pthread_mutex_lock(&lock);
	struct capture *capture = find(s) ? NULL : find(NULL);
	if (capture) {
		*capture = (struct capture){.stream = s, .mode = mode, .thread = pthread_self()};
		atomic_fetch_add(&n_captures, 1);
		err = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph_out)
{
	ENTER(cuStreamEndCapture);
	struct stream *s = stream_from_handle(handle);
	CUresult err = CUDA_ERROR_ILLEGAL_STATE;

	if (!s || !graph_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&lock);
	struct capture *capture = find(s);
	if (capture && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(capture->thread, pthread_self())) {
		err = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	} else if (capture) {
		err = capture->is_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
		end(capture);
		*graph_out = NULL;
	}
	pthread_mutex_unlock(&lock);
	return err;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status_out)
{
	ENTER(cuStreamIsCapturing);
	struct stream *s = stream_from_handle(handle);

	if (!s || !status_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_mutex_lock(&lock);
	struct capture *capture = find(s);
	*status_out = !capture             ? CU_STREAM_CAPTURE_STATUS_NONE
	              : capture->is_broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
	                                   : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
