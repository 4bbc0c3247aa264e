/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

#include <pthread.h>
#include <stdlib.h>

#define EVENT_MAGIC 0x746e76655f6d6973ULL
#define EVENT_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

struct event {
	uint64_t magic;
	struct ctx *ctx;
	unsigned flags;
	struct mark *mark;  /* one reference, under the lock; NULL before the first record */
	struct blob *fork;  /* one reference, if it was recorded on a captured stream */
	struct event *next; /* link: events */
	struct event *previous;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All events. Those of a context that ended stay here, so that they are no leak. */
static struct event *events;

static struct event *event_from_handle(CUevent handle)
{
	struct event *e = (struct event *)handle;

	return e && e->magic == EVENT_MAGIC ? e : NULL;
}

/* The mark of the last record, with a reference for the caller, or NULL. */
static struct mark *event_mark(struct event *e)
{
	pthread_mutex_lock(&lock);
	struct mark *mark = e->mark;
	if (mark) {
		mark_ref(mark);
	}
	pthread_mutex_unlock(&lock);
	return mark;
}

/* Takes over mark and fork, one of which is NULL. */
static void event_set(struct event *e, struct mark *mark, struct blob *fork)
{
	pthread_mutex_lock(&lock);
	struct mark *before = e->mark;
	struct blob *fork_before = e->fork;
	e->mark = mark;
	e->fork = fork;
	pthread_mutex_unlock(&lock);
	mark_unref(before);
	blob_unref(fork_before);
}

/* The fork, with a reference for the caller; NULL: the event was not recorded on a captured stream. */
static struct blob *event_fork(struct event *e)
{
	pthread_mutex_lock(&lock);
	struct blob *fork = blob_ref(e->fork);
	pthread_mutex_unlock(&lock);
	return fork;
}

static bool is_captured(struct event *e)
{
	struct blob *fork = event_fork(e);

	blob_unref(fork);
	return fork != NULL;
}

bool event_is_known(CUevent handle)
{
	return event_from_handle(handle) != NULL;
}

void event_record_mark(CUevent handle, struct mark *mark)
{
	event_set(event_from_handle(handle), mark, NULL);
}

struct mark *event_last_mark(CUevent handle)
{
	return event_mark(event_from_handle(handle));
}

CUresult cuEventCreate(CUevent *event_out, unsigned int flags)
{
	ENTER(cuEventCreate);
	if (!event_out || flags & ~(unsigned)EVENT_FLAGS) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct event *e = calloc(1, sizeof(*e));
	if (!e) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	e->magic = EVENT_MAGIC;
	e->ctx = ctx_current();
	e->flags = flags;
	pthread_mutex_lock(&lock);
	e->next = events;
	if (events) {
		events->previous = e;
	}
	events = e;
	pthread_mutex_unlock(&lock);
	*event_out = (CUevent)e;
	return CUDA_SUCCESS;
}

/* Frees the event also in a poisoned context, and then returns its error, because nobody can try again. */
CUresult cuEventDestroy_v2(CUevent handle)
{
	ENTER(cuEventDestroy_v2);
	struct event *e = event_from_handle(handle);

	if (!e) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	struct ctx *ctx = e->ctx;
	event_set(e, NULL, NULL);
	pthread_mutex_lock(&lock);
	if (e->previous) {
		e->previous->next = e->next;
	} else {
		events = e->next;
	}
	if (e->next) {
		e->next->previous = e->previous;
	}
	pthread_mutex_unlock(&lock);
	e->magic = 0;
	free(e);
	return ctx_check(ctx);
}

/* Record the event by a node, and not as a place in the capture. */
static CUresult record_outside(CUevent event, struct stream *s)
{
	struct work work = {.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .of.event = {event, NULL}};

	return work_submit(s, &work);
}

static CUresult record(CUevent handle, CUstream stream, unsigned flags)
{
	struct event *e = event_from_handle(handle);
	struct stream *s = stream_from_handle(stream);

	if (!e || !s) {
		return e ? stream_missing(stream) : CUDA_ERROR_INVALID_HANDLE;
	}
	if (capture_is_of(s) && flags & CU_EVENT_RECORD_EXTERNAL) {
		return record_outside(handle, s);
	}
	struct blob *fork = capture_fork(s);
	struct mark *mark = fork ? NULL : stream_mark(s);
	if (!mark && !fork) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event_set(e, mark, fork);
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	ENTER(cuEventRecord);
	return record(event, stream, 0);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
	ENTER(cuEventRecordWithFlags);
	return flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL ? CUDA_ERROR_INVALID_VALUE
	                                                   : record(event, stream, flags);
}

CUresult event_record_ctx(CUevent handle, struct ctx *ctx, struct green *green)
{
	struct event *e = event_from_handle(handle);

	if (!e || e->ctx != ctx) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	struct mark *mark = stream_mark_ctx(ctx, green);
	if (!mark) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event_set(e, mark, NULL);
	return CUDA_SUCCESS;
}

static CUresult wait_captured(struct stream *s, struct event *e, unsigned flags)
{
	if (flags & CU_EVENT_WAIT_EXTERNAL) {
		struct work work = {
			.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
			.of.event = {(CUevent)e, NULL},
		};
		return work_submit(s, &work);
	}
	return capture_isolate(s);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned int flags)
{
	ENTER(cuStreamWaitEvent);
	struct event *e = event_from_handle(handle);
	struct stream *s = stream_from_handle(stream);
	CUresult err = CUDA_SUCCESS;

	if (!e || !s) {
		return e ? stream_missing(stream) : CUDA_ERROR_INVALID_HANDLE;
	}
	if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct blob *fork = event_fork(e);
	if (fork) {
		err = capture_join(s, fork);
		blob_unref(fork);
		return err;
	}
	struct mark *mark = event_mark(e);
	if (capture_is_of(s)) {
		err = mark || flags ? wait_captured(s, e, flags) : CUDA_SUCCESS;
	} else if (mark) {
		err = stream_wait_mark(s, mark);
	}
	mark_unref(mark);
	return err;
}

/* May the event be queried, or waited for, now? */
static CUresult check_asked(struct event *e)
{
	if (!e) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	CUresult forbidden = capture_check_unsafe();
	if (forbidden != CUDA_SUCCESS) {
		return forbidden;
	}
	return is_captured(e) ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent handle)
{
	ENTER(cuEventQuery);
	struct event *e = event_from_handle(handle);
	CUresult refused = check_asked(e);

	if (refused != CUDA_SUCCESS) {
		return refused;
	}
	struct mark *mark = event_mark(e);
	bool is_reached = !mark || mark_is_reached(mark);
	mark_unref(mark);
	CUresult err = atomic_load(&e->ctx->poison);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	return is_reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent handle)
{
	ENTER(cuEventSynchronize);
	struct event *e = event_from_handle(handle);
	CUresult refused = check_asked(e);

	if (refused != CUDA_SUCCESS) {
		return refused;
	}
	struct mark *mark = event_mark(e);
	if (mark) {
		mark_wait(mark);
		mark_unref(mark);
	}
	return atomic_load(&e->ctx->poison);
}

static CUresult elapsed(const struct mark *start, const struct mark *end, float *ms_out)
{
	if (!start || !end) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	if (!mark_is_reached(start) || !mark_is_reached(end)) {
		return CUDA_ERROR_NOT_READY;
	}
	*ms_out = (float)((double)(int64_t)(mark_time_ns(end) - mark_time_ns(start)) / 1e6);
	return CUDA_SUCCESS;
}

static CUresult elapsed_of_events(float *ms_out, CUevent start, CUevent end)
{
	struct event *a = event_from_handle(start);
	struct event *b = event_from_handle(end);

	if (!ms_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!a || !b || (a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	struct mark *mark_a = event_mark(a);
	struct mark *mark_b = event_mark(b);
	CUresult err = elapsed(mark_a, mark_b, ms_out);
	mark_unref(mark_a);
	mark_unref(mark_b);
	return err;
}

CUresult cuEventElapsedTime(float *ms_out, CUevent start, CUevent end)
{
	ENTER(cuEventElapsedTime);
	return elapsed_of_events(ms_out, start, end);
}

CUresult cuEventElapsedTime_v2(float *ms_out, CUevent start, CUevent end)
{
	ENTER(cuEventElapsedTime_v2);
	return elapsed_of_events(ms_out, start, end);
}
