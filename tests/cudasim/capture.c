/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture: work that is submitted to a captured stream becomes a node behind those that the stream
 * stands at. Events carry that place to other streams, which are captured then, too, until the capture
 * ends on the stream that it began on.
 *
 * Waiting for a context is forbidden while a stream of it is captured, and so is asking a captured
 * stream for its id. What is "potentially unsafe" depends on the mode of the calling thread: see
 * cuThreadExchangeStreamCaptureMode() in cuda.h. On an H200 with driver 580 such are cuMemAlloc() and
 * cuMemFree(), the same on streams that are not captured, queries of and waits for events and streams,
 * and cuMemPoolGetAttribute(), but none of the calls about virtual memory.
 */
#include "capture.h"

#include <string.h>

/* The content of capture_fork()'s blob. */
struct fork {
	uint64_t id;
	size_t n;
	struct node *deps[];
};

#define MAX_CAPTURES 16

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
pthread_mutex_t capture_lock = PTHREAD_MUTEX_INITIALIZER;
struct member capture_members[CAPTURE_MAX_MEMBERS];
static struct capture captures[MAX_CAPTURES];
static atomic_uint n_captures;

struct member *capture_find(const struct stream *stream)
{
	for (size_t i = 0; i < CAPTURE_MAX_MEMBERS; i++) {
		if (capture_members[i].stream == stream) {
			return &capture_members[i];
		}
	}
	return NULL;
}

struct capture *capture_of_id(uint64_t id)
{
	for (size_t i = 0; i < MAX_CAPTURES; i++) {
		if (captures[i].id == id) {
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
	pthread_mutex_lock(&capture_lock);
	bool is_of = capture_find(s) != NULL;
	pthread_mutex_unlock(&capture_lock);
	return is_of;
}

bool capture_is_to(const struct graph *graph)
{
	bool is_to = false;

	pthread_mutex_lock(&capture_lock);
	for (size_t i = 0; i < MAX_CAPTURES; i++) {
		is_to |= captures[i].id && captures[i].graph == graph;
	}
	pthread_mutex_unlock(&capture_lock);
	return is_to;
}

void capture_count(void)
{
	atomic_fetch_add(&n_captures, 1);
}

/* ---- what is forbidden ---- */

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
	const struct member *member = capture_find(stream);

	return member && member->capture == capture;
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

/* Break all captures that @forbids selects. */
static CUresult break_those(bool (*forbids)(const struct capture *capture, const void *of),
                            const void *of)
{
	CUresult err = CUDA_SUCCESS;

	if (atomic_load(&n_captures) == 0) {
		return err;
	}
	pthread_mutex_lock(&capture_lock);
	for (size_t i = 0; i < MAX_CAPTURES; i++) {
		if (captures[i].id && forbids(&captures[i], of)) {
			captures[i].is_broken = true;
			err = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	pthread_mutex_unlock(&capture_lock);
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

/* ---- members ---- */

void capture_leave(struct member *member)
{
	free(member->deps);
	*member = (struct member){NULL};
}

CUresult capture_stand_at(struct member *member, struct node *const *deps, size_t n)
{
	struct node **copy = calloc(n + 1, sizeof(struct node *));

	if (!copy) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (n > 0) {
		memcpy(copy, deps, n * sizeof(struct node *));
	}
	free(member->deps);
	member->deps = copy;
	member->n_deps = n;
	return CUDA_SUCCESS;
}

CUresult capture_stand_also_at(struct member *member, struct node *const *deps, size_t n)
{
	struct node **all = calloc(member->n_deps + n + 1, sizeof(struct node *));
	size_t n_all = member->n_deps;

	if (!all) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (n_all > 0) {
		memcpy(all, member->deps, n_all * sizeof(struct node *));
	}
	for (size_t i = 0; i < n; i++) {
		bool is_new = true;
		for (size_t k = 0; k < n_all; k++) {
			is_new &= all[k] != deps[i];
		}
		if (is_new) {
			all[n_all++] = deps[i];
		}
	}
	free(member->deps);
	member->deps = all;
	member->n_deps = n_all;
	return CUDA_SUCCESS;
}

struct member *capture_enter(struct stream *s, struct capture *capture)
{
	struct member *member = capture_find(NULL);

	if (member) {
		*member = (struct member){.stream = s, .capture = capture};
	}
	return member;
}

void capture_end(struct capture *capture)
{
	for (size_t i = 0; i < CAPTURE_MAX_MEMBERS; i++) {
		if (capture_members[i].stream && capture_members[i].capture == capture) {
			capture_leave(&capture_members[i]);
		}
	}
	capture->id = 0;
	capture->stream = NULL;
	atomic_fetch_sub(&n_captures, 1);
}

void capture_drop(struct capture *capture)
{
	if (!capture->is_given) {
		graph_free(capture->graph);
	}
	capture_end(capture);
}

/* Drop a capture that began on the stream, which is destroyed; break a capture that the stream has joined. */
void capture_end_of_stream(const struct stream *s)
{
	pthread_mutex_lock(&capture_lock);
	struct member *member = capture_find(s);
	if (member && member->capture->stream == s) {
		capture_drop(member->capture);
	} else if (member) {
		member->capture->is_broken = true;
		capture_leave(member);
	}
	pthread_mutex_unlock(&capture_lock);
}

static void end_those(bool (*is_among)(const struct capture *capture, const void *of),
                      const void *of)
{
	pthread_mutex_lock(&capture_lock);
	for (size_t i = 0; i < MAX_CAPTURES; i++) {
		if (captures[i].id && is_among(&captures[i], of)) {
			capture_drop(&captures[i]);
		}
	}
	pthread_mutex_unlock(&capture_lock);
}

void capture_end_of_ctx(const struct ctx *ctx)
{
	end_those(is_of_ctx, ctx);
}

void capture_end_of_green(const struct green *green)
{
	end_those(is_of_green, green);
}

/* ---- work and events ---- */

bool capture_is_implicit(const struct stream *s, bool is_breaking)
{
	bool is_found = false;

	for (size_t i = 0; stream_flags(s) & STREAM_IS_LEGACY && i < CAPTURE_MAX_MEMBERS; i++) {
		const struct stream *other = capture_members[i].stream;
		if (other && !(stream_flags(other) & CU_STREAM_NON_BLOCKING) &&
		    stream_ctx(other) == stream_ctx(s) && stream_green(other) == stream_green(s)) {
			is_found = true;
			capture_members[i].capture->is_broken |= is_breaking;
		}
	}
	return is_found;
}

static CUresult add(struct member *member, struct work *work)
{
	struct node *node;

	if (member->capture->is_broken) {
		work_drop(work);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	CUresult err = graph_add(member->capture->graph, member->deps, member->n_deps, work, &node);
	return err == CUDA_SUCCESS ? capture_stand_at(member, &node, 1) : err;
}

bool capture_add(struct stream *s, struct work *work, CUresult *err_out)
{
	if (atomic_load(&n_captures) == 0) {
		return false;
	}
	pthread_mutex_lock(&capture_lock);
	struct member *member = capture_find(s);
	bool is_ours = member || capture_is_implicit(s, true);
	if (member) {
		*err_out = add(member, work);
	} else if (is_ours) {
		work_drop(work);
		*err_out = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	pthread_mutex_unlock(&capture_lock);
	return is_ours;
}

struct blob *capture_fork(const struct stream *s)
{
	struct blob *blob = NULL;

	if (atomic_load(&n_captures) == 0) {
		return NULL;
	}
	pthread_mutex_lock(&capture_lock);
	const struct member *member = capture_find(s);
	if (member) {
		blob = blob_new(NULL, sizeof(struct fork) + member->n_deps * sizeof(struct node *));
	}
	if (blob) {
		struct fork *fork = (struct fork *)blob->data;
		fork->id = member->capture->id;
		fork->n = member->n_deps;
		memcpy(fork->deps, member->deps, fork->n * sizeof(struct node *));
	}
	pthread_mutex_unlock(&capture_lock);
	return blob;
}

static CUresult join(struct stream *s, const struct fork *fork)
{
	struct capture *capture = capture_of_id(fork->id);
	struct member *member = capture_find(s);

	if (!capture || (member && member->capture != capture)) {
		if (member) {
			member->capture->is_broken = true;
		}
		if (capture) {
			capture->is_broken = true;
		}
		return capture ? CUDA_ERROR_STREAM_CAPTURE_MERGE : CUDA_ERROR_CAPTURED_EVENT;
	}
	if (capture->is_broken) {
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	if (stream_flags(s) & STREAM_IS_LEGACY) {
		capture->is_broken = true;
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	member = member ? member : capture_enter(s, capture);
	return member ? capture_stand_also_at(member, fork->deps, fork->n)
	              : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult capture_join(struct stream *s, const struct blob *fork)
{
	pthread_mutex_lock(&capture_lock);
	CUresult err = join(s, (const struct fork *)fork->data);
	pthread_mutex_unlock(&capture_lock);
	return err;
}

CUresult capture_isolate(const struct stream *s)
{
	return break_those(is_of_stream, s) == CUDA_SUCCESS ? CUDA_SUCCESS
	                                                    : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
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
