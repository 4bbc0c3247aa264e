/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/capture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "glake_order.h"
#include "shim/context.h"
#include "shim/order.h"

#define PROBE_BYTES 512
#define MAX_PROBES 256u

/*
 * A captured stream. It is known by its handle, because asking it for its id would end the capture.
 * The default stream of a thread has the same handle in all threads and contexts, so the thread and
 * the context are noted too.
 */
struct capture {
	CUstream stream;
	pthread_t thread;     /* of a default stream */
	CUcontext ctx;        /* of the stream; it may be a green one */
	CUcontext primary;    /* of ctx; owns the memory */
	uint64_t generation;  /* of both contexts */
	uint64_t id;          /* the driver's, if is_in_graph */
	bool is_in_graph;     /* the program had made the graph */
	struct capture *next; /* link: captures */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures; /* owned list */
static atomic_uint n_captures;

bool capture_is_any(void)
{
	return atomic_load_explicit(&n_captures, memory_order_relaxed) > 0;
}

/* ---- asking the driver ------------------------------------------------------------------------ */

CUstreamCaptureMode capture_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	real(cuThreadExchangeStreamCaptureMode)(&mode);
	return mode;
}

void capture_restore(CUstreamCaptureMode mode)
{
	real(cuThreadExchangeStreamCaptureMode)(&mode);
}

/*
 * A tiny allocation, made to ask the driver. Freeing it would wait, so it is kept until the program frees memory, and
 * waits itself, while no stream is captured. It ends with its context.
 */
struct probe {
	CUdeviceptr address;
	CUcontext ctx;
	uint64_t generation; /* of ctx */
};

static struct probe probes[MAX_PROBES]; /* under the lock */
static size_t n_probes;
static atomic_bool has_probes;

/* The contexts are held, because the address of a probe whose context ends could be another allocation's. */
void capture_free_probes(void)
{
	struct probe taken[MAX_PROBES];
	if (!has_probes || capture_is_any() || !order_try_hold_contexts(0)) {
		return;
	}
	pthread_mutex_lock(&lock);
	size_t n_taken = n_probes;
	memcpy(taken, probes, n_taken * sizeof(taken[0]));
	n_probes = 0;
	has_probes = false;
	pthread_mutex_unlock(&lock);
	CUstreamCaptureMode mode = capture_relax();
	for (size_t i = 0; i < n_taken; i++) {
		real(cuMemFree_v2)(taken[i].address);
	}
	capture_restore(mode);
	order_let_contexts();
}

/* Beyond MAX_PROBES a probe is not noted, and ends with its context. */
void capture_keep_probe(CUdeviceptr address)
{
	struct probe probe = {.address = address, .generation = context_generation()};
	real(cuCtxGetCurrent)(&probe.ctx);
	probe.ctx = context_primary(probe.ctx);
	pthread_mutex_lock(&lock);
	if (n_probes < MAX_PROBES) {
		probes[n_probes++] = probe;
		has_probes = true;
	}
	pthread_mutex_unlock(&lock);
}

CUresult capture_ask_alloc(void)
{
	CUdeviceptr probe = 0;
	if (!capture_is_any()) {
		return CUDA_SUCCESS;
	}
	CUresult result = real(cuMemAlloc_v2)(&probe, PROBE_BYTES);
	if (result == CUDA_SUCCESS) {
		capture_keep_probe(probe);
	}
	return result;
}

CUresult capture_ask_free(void)
{
	CUdeviceptr probe = 0;
	CUresult result = real(cuMemAlloc_v2)(&probe, PROBE_BYTES);
	return result == CUDA_SUCCESS ? real(cuMemFree_v2)(probe) : result;
}

/* ---- captures --------------------------------------------------------------------------------- */

shim_capture_info_fn *capture_info_call(unsigned flags)
{
	return flags & GLAKE_PER_THREAD ? real(cuStreamGetCaptureInfo_v2_ptsz)
	                                : real(cuStreamGetCaptureInfo_v2);
}

static bool is_per_thread(CUstream stream, unsigned flags)
{
	return stream == CU_STREAM_PER_THREAD || (!stream && flags & GLAKE_PER_THREAD);
}

/* Identify a stream without asking it. */
static struct capture describe(CUstream stream, unsigned flags)
{
	struct capture capture = {.stream = stream};
	if (is_per_thread(stream, flags)) {
		capture.stream = CU_STREAM_PER_THREAD;
		capture.thread = pthread_self();
		real(cuCtxGetCurrent)(&capture.ctx);
	}
	return capture;
}

static bool is_of(const struct capture *capture, const struct capture *stream)
{
	return capture->stream == stream->stream &&
	       (stream->stream != CU_STREAM_PER_THREAD ||
	        (pthread_equal(capture->thread, stream->thread) && capture->ctx == stream->ctx));
}

/* Called with the lock held. The link to the capture, or to the end of the list. */
static struct capture **link_of(const struct capture *stream)
{
	struct capture **link = &captures;
	while (*link && !is_of(*link, stream)) {
		link = &(*link)->next;
	}
	return link;
}

/* Called with the lock held. */
static void drop(struct capture **link)
{
	struct capture *capture = *link;
	*link = capture->next;
	n_captures--;
	free(capture);
}

static void remove_stream(const struct capture *stream)
{
	pthread_mutex_lock(&lock);
	struct capture **link = link_of(stream);
	if (*link) {
		drop(link);
	}
	pthread_mutex_unlock(&lock);
}

/* The context of a stream: the capture ends with it. */
static CUcontext ctx_of(CUstream stream)
{
	CUcontext ctx = NULL;
	if (!real(cuStreamGetCtx) || real(cuStreamGetCtx)(stream, &ctx) != CUDA_SUCCESS) {
		real(cuCtxGetCurrent)(&ctx);
	}
	return ctx;
}

/* The lock is held across the driver's call, so that no capture begins meanwhile. */
bool capture_ask_idle(CUstream legacy)
{
	pthread_mutex_lock(&lock);
	bool is_idle = n_captures == 0 && real(cuStreamQuery)(legacy) == CUDA_SUCCESS;
	pthread_mutex_unlock(&lock);
	return is_idle;
}

/* Called before the driver's call, so that no thread misses a capture that has begun. */
bool capture_begins(CUstream stream, unsigned flags)
{
	struct capture *capture = shim_is_forked() ? NULL : calloc(1, sizeof(*capture));
	if (!capture) {
		/* Without a note nobody knows when the capture ends, so it counts for ever. */
		n_captures += !shim_is_forked();
		return false;
	}
	*capture = describe(stream, flags);
	capture->generation = context_generation();
	if (capture->stream != CU_STREAM_PER_THREAD) {
		capture->ctx = ctx_of(stream);
	}
	capture->primary = context_primary(capture->ctx);
	pthread_mutex_lock(&lock);
	bool is_new = !*link_of(capture);
	if (is_new) {
		capture->next = captures;
		captures = capture;
		n_captures++;
	}
	pthread_mutex_unlock(&lock);
	if (!is_new) {
		free(capture);
	}
	return is_new;
}

CUresult capture_begun(CUstream stream, unsigned flags, bool is_new, CUresult result)
{
	if (is_new && result != CUDA_SUCCESS) {
		struct capture failed = describe(stream, flags);
		remove_stream(&failed);
	}
	return result;
}

/* If the id is not known, every capture counts as one in a graph until this one ends. */
CUresult capture_begun_in_graph(CUstream stream, unsigned flags, bool is_new, CUresult result)
{
	CUstreamCaptureStatus status;
	cuuint64_t id = 0;
	shim_capture_info_fn *ask = capture_info_call(flags);
	if (!is_new || result != CUDA_SUCCESS) {
		return capture_begun(stream, flags, is_new, result);
	}
	if (ask) {
		ask(stream, &status, &id, NULL, NULL, NULL);
	}
	const struct capture begun = describe(stream, flags);
	pthread_mutex_lock(&lock);
	struct capture *capture = *link_of(&begun);
	if (capture) {
		capture->id = id;
		capture->is_in_graph = true;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

bool capture_is_in_graph(uint64_t id)
{
	pthread_mutex_lock(&lock);
	const struct capture *capture = captures;
	while (capture && !(capture->is_in_graph && (capture->id == id || capture->id == 0))) {
		capture = capture->next;
	}
	pthread_mutex_unlock(&lock);
	return capture != NULL;
}

/* A stream that joined a capture is in the primary context of some captured stream. */
bool capture_may_be_in(CUstream stream, unsigned flags, CUcontext ctx)
{
	bool may_be = false;
	const struct capture wanted = describe(stream, flags);
	pthread_mutex_lock(&lock);
	const struct capture *found = *link_of(&wanted);
	for (const struct capture *one = captures; one; one = one->next) {
		may_be |= one->primary == ctx;
	}
	may_be = found ? found->primary == ctx : may_be;
	pthread_mutex_unlock(&lock);
	return may_be;
}

static bool has_any(void)
{
	return capture_is_any() && !shim_is_forked();
}

/* Only the driver knows whether a failed call has ended the capture. */
static bool is_captured(CUstream stream, unsigned flags)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	__typeof__(cuStreamIsCapturing) *ask = flags & GLAKE_PER_THREAD
	                                               ? real(cuStreamIsCapturing_ptsz)
	                                               : real(cuStreamIsCapturing);
	return !ask || ask(stream, &status) != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool capture_may_have(CUstream stream, unsigned flags)
{
	return has_any() && is_captured(stream, flags);
}

CUresult capture_ended(CUstream stream, unsigned flags, CUresult result)
{
	if (has_any() && (result == CUDA_SUCCESS || !is_captured(stream, flags))) {
		struct capture ended = describe(stream, flags);
		remove_stream(&ended);
	}
	return result;
}

CUresult capture_stream_destroyed(CUstream stream, CUresult result)
{
	if (has_any() && result == CUDA_SUCCESS) {
		struct capture gone = {.stream = stream};
		remove_stream(&gone);
	}
	return result;
}

void capture_drop_ctx(CUcontext ctx, uint64_t generation)
{
	size_t n_kept = 0;
	pthread_mutex_lock(&lock);
	for (struct capture **link = &captures; *link;) {
		const struct capture *capture = *link;
		if ((capture->ctx == ctx || capture->primary == ctx) &&
		    capture->generation < generation) {
			drop(link);
		} else {
			link = &(*link)->next;
		}
	}
	for (size_t i = 0; i < n_probes; i++) {
		if (probes[i].ctx != ctx || probes[i].generation >= generation) {
			probes[n_kept++] = probes[i];
		}
	}
	n_probes = n_kept;
	pthread_mutex_unlock(&lock);
}
