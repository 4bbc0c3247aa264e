/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture, as far as it concerns memory: which calls it forbids, and that a forbidden call
 * ends it. Nothing is recorded: work on a capturing stream runs at once, and the graph is NULL; what
 * is allocated on one counts as memory of graphs.
 *
 * While any stream is captured, waiting for a context is forbidden. Allocating and freeing is, unless
 * every capture was begun in relaxed mode, or the calling thread is in it. (A real driver also looks at
 * which thread has begun the capture.)
 */
#include "sim.h"

#include <pthread.h>

#define MAX_CAPTURES 16

struct capture {
	struct stream *stream; /* NULL: a free place */
	CUstreamCaptureMode mode;
	bool is_broken;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture captures[MAX_CAPTURES];
static atomic_uint n_captures;
static _Thread_local CUstreamCaptureMode thread_mode;

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

CUresult capture_check(enum capture_call call)
{
	CUresult err = CUDA_SUCCESS;

	if (atomic_load(&n_captures) == 0 ||
	    (call == CAPTURE_MEMORY && thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)) {
		return err;
	}
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < MAX_CAPTURES; i++) {
		struct capture *capture = &captures[i];
		if (capture->stream &&
		    (call == CAPTURE_WAIT || capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)) {
			capture->is_broken = true;
			err = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	pthread_mutex_unlock(&lock);
	return err;
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
		*capture = (struct capture){.stream = s, .mode = mode};
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
	if (capture) {
		err = capture->is_broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
		capture->stream = NULL;
		atomic_fetch_sub(&n_captures, 1);
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
