/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams: queues with one thread each, made with the first piece of work. Every operation has a
 * ticket, in the order of submission over all streams. It waits for those before it on its own
 * stream and, by the rules of the legacy default stream, for earlier tickets on others: work on
 * that stream comes after all that is queued on the blocking streams of its context, and theirs
 * after its. Waits only ever point at smaller tickets, so nothing can wait in a circle.
 *
 * One lock for all streams. A stream leaves the list when its handle is closed and its queue is
 * empty.
 */
#include "sim.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAM_MAGIC 0x6d7274735f6d6973ULL

struct op {
	struct op *next;
	op_fn run;
	void (*done)(void *arg);
	uint64_t ticket;
	bool is_apart; /* it waits only for earlier work of its own stream */
	_Alignas(max_align_t) unsigned char arg[];
};

struct stream {
	uint64_t magic;
	uint64_t id;
	struct stream *next; /* link: streams */
	struct ctx *ctx;
	struct green *green; /* NULL: none, or it is gone */
	uint64_t green_id;   /* the green context's id, also when it is gone; 0: none */
	unsigned flags;      /* CU_STREAM_*, STREAM_IS_LEGACY */
	int priority;
	uint64_t thread; /* the thread whose default stream it is; 0: none */
	unsigned n_refs; /* by the handle, the thread, and threads that wait */
	bool has_thread;
	bool is_closed;   /* no handle any more */
	bool is_detached; /* its green context is gone */
	struct op *first; /* stays here until it is done */
	struct op **last;
	pthread_cond_t has_work;
};

struct mark {
	unsigned n_refs;
	unsigned n_pending; /* streams that have not reached it */
	bool is_reached;
	uint64_t time_ns;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER; /* something was done or reached */
static struct stream *streams;                             /* with a handle or with work */
static uint64_t last_ticket;
static uint64_t last_id;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* --- locked helpers --- */

static void unref(struct stream *s)
{
	if (--s->n_refs == 0) {
		s->magic = 0;
		pthread_cond_destroy(&s->has_work);
		free(s);
	}
}

static void list_remove(struct stream *s)
{
	for (struct stream **at = &streams; *at; at = &(*at)->next) {
		if (*at == s) {
			*at = s->next;
			return;
		}
	}
}

/* Is anything queued that was submitted up to this ticket? */
static bool is_busy(const struct stream *s, uint64_t ticket)
{
	return s->first && s->first->ticket <= ticket;
}

/*
 * Does the legacy default stream order a's work after what is already on b? Each green context has its
 * own, whose order lasts longer than the context.
 */
static bool orders_after(const struct stream *a, const struct stream *b)
{
	if (a == b || a->ctx != b->ctx || a->green_id != b->green_id) {
		return false;
	}
	return (a->flags & STREAM_IS_LEGACY && !(b->flags & CU_STREAM_NON_BLOCKING)) ||
	       (b->flags & STREAM_IS_LEGACY && !(a->flags & CU_STREAM_NON_BLOCKING));
}

/* Is there work on other streams, up to this ticket, that comes before work on this one? */
static bool must_wait(const struct stream *s, uint64_t ticket)
{
	for (const struct stream *other = streams; other; other = other->next) {
		if (orders_after(s, other) && is_busy(other, ticket)) {
			return true;
		}
	}
	return false;
}

/* --- the thread of a stream --- */

static void op_run(struct stream *s, struct op *op)
{
	if (atomic_load(&s->ctx->poison) == CUDA_SUCCESS) {
		CUresult err = op->run(s->ctx, op->arg);
		if (err != CUDA_SUCCESS) {
			ctx_poison(s->ctx, err);
		}
	}
	if (op->done) {
		op->done(op->arg);
	}
}

static void *stream_main(void *arg)
{
	struct stream *s = arg;

	pthread_mutex_lock(&lock);
	for (;;) {
		while (!s->first && !s->is_closed) {
			pthread_cond_wait(&s->has_work, &lock);
		}
		struct op *op = s->first;
		if (!op) {
			break;
		}
		while (!op->is_apart && must_wait(s, op->ticket)) {
			pthread_cond_wait(&progress, &lock);
		}
		pthread_mutex_unlock(&lock);
		op_run(s, op);
		pthread_mutex_lock(&lock);
		s->first = op->next;
		if (!s->first) {
			s->last = &s->first;
		}
		free(op);
		pthread_cond_broadcast(&progress);
	}
	list_remove(s);
	unref(s);
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* Locked. Signals are for the application's threads. */
static bool start_thread(struct stream *s)
{
	sigset_t all;
	sigset_t before;
	pthread_attr_t attr;
	pthread_t thread;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	s->n_refs++;
	s->has_thread = pthread_create(&thread, &attr, stream_main, s) == 0;
	if (!s->has_thread) {
		s->n_refs--;
	}
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return s->has_thread;
}

/* --- submitting --- */

static struct op *op_new(op_fn run, void (*done)(void *arg), const void *arg, size_t arg_bytes)
{
	struct op *op = calloc(1, sizeof(*op) + arg_bytes);

	if (op) {
		op->run = run;
		op->done = done;
		memcpy(op->arg, arg, arg_bytes);
	}
	return op;
}

/* Locked. Takes the operation over if it succeeds. */
static CUresult enqueue(struct stream *s, struct op *op)
{
	if (!s->has_thread && !start_thread(s)) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	op->ticket = ++last_ticket;
	*s->last = op;
	s->last = &op->next;
	pthread_cond_signal(&s->has_work);
	return CUDA_SUCCESS;
}

CUresult stream_submit(struct stream *s, op_fn run, void (*done)(void *arg), const void *arg,
                       size_t arg_bytes)
{
	struct op *op = op_new(run, done, arg, arg_bytes);

	if (!op) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_lock(&lock);
	CUresult err = enqueue(s, op);
	pthread_mutex_unlock(&lock);
	if (err != CUDA_SUCCESS) {
		free(op);
	}
	return err;
}

/* --- waiting --- */

CUresult stream_wait(struct stream *s)
{
	struct ctx *ctx = s->ctx;

	pthread_mutex_lock(&lock);
	uint64_t ticket = last_ticket;
	s->n_refs++;
	/* For the legacy default stream that includes the blocking streams. */
	while (is_busy(s, ticket) || (s->flags & STREAM_IS_LEGACY && must_wait(s, ticket))) {
		pthread_cond_wait(&progress, &lock);
	}
	unref(s);
	pthread_mutex_unlock(&lock);
	return atomic_load(&ctx->poison);
}

/* Locked. */
static bool is_any_busy(const struct ctx *ctx, const struct green *green, uint64_t ticket)
{
	for (const struct stream *s = streams; s; s = s->next) {
		if ((!ctx || s->ctx == ctx) && (!green || s->green == green) &&
		    is_busy(s, ticket)) {
			return true;
		}
	}
	return false;
}

static void wait_all(const struct ctx *ctx, const struct green *green)
{
	pthread_mutex_lock(&lock);
	uint64_t ticket = last_ticket;
	while (is_any_busy(ctx, green, ticket)) {
		pthread_cond_wait(&progress, &lock);
	}
	pthread_mutex_unlock(&lock);
}

void stream_wait_ctx(struct ctx *ctx)
{
	wait_all(ctx, NULL);
}

void stream_wait_all(void)
{
	wait_all(NULL, NULL);
}

void stream_wait_green(const struct green *green)
{
	wait_all(green->ctx, green);
}

/* Locked. */
static bool is_idle(const struct stream *s)
{
	return !s->first && (!(s->flags & STREAM_IS_LEGACY) || !must_wait(s, last_ticket));
}

bool stream_is_idle(struct stream *s)
{
	pthread_mutex_lock(&lock);
	bool idle = is_idle(s);
	pthread_mutex_unlock(&lock);
	return idle;
}

/* --- life of a stream --- */

CUresult stream_new(struct ctx *ctx, struct green *green, unsigned flags, int priority,
                    struct stream **stream_out)
{
	struct stream *s = calloc(1, sizeof(*s));

	if (!s) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	s->magic = STREAM_MAGIC;
	s->ctx = ctx;
	s->green = green;
	s->green_id = green ? green->id : 0;
	s->flags = flags;
	s->priority = priority;
	s->n_refs = 1;
	s->last = &s->first;
	pthread_cond_init(&s->has_work, NULL);
	pthread_mutex_lock(&lock);
	s->id = ++last_id;
	s->next = streams;
	streams = s;
	pthread_mutex_unlock(&lock);
	*stream_out = s;
	return CUDA_SUCCESS;
}

/* Locked. Its thread, if it has one, takes it off the list after the last operation. */
static void close_stream(struct stream *s)
{
	s->is_closed = true;
	if (s->has_thread) {
		pthread_cond_signal(&s->has_work);
	} else {
		list_remove(s);
	}
	unref(s);
}

void stream_free(struct stream *s)
{
	pthread_mutex_lock(&lock);
	close_stream(s);
	pthread_mutex_unlock(&lock);
}

void stream_free_all(struct ctx *ctx)
{
	pthread_mutex_lock(&lock);
	for (struct stream *s = streams, *next; s; s = next) {
		next = s->next;
		if (s->ctx == ctx && !s->is_closed) {
			close_stream(s);
		}
	}
	pthread_mutex_unlock(&lock);
}

/* The streams are leaked, as by a driver, until the primary context ends. */
void stream_detach_all(const struct green *green)
{
	pthread_mutex_lock(&lock);
	for (struct stream *s = streams; s; s = s->next) {
		if (s->green == green) {
			s->green = NULL;
			s->is_detached = true;
		}
	}
	pthread_mutex_unlock(&lock);
}

/* An id of the thread that is never used again, other than ids of the system. */
static uint64_t this_thread(void)
{
	static atomic_uint_fast64_t last_thread;
	static _Thread_local uint64_t number;

	if (number == 0) {
		number = atomic_fetch_add(&last_thread, 1) + 1;
	}
	return number;
}

/* The default stream of this thread in a context; it stays until the context goes. */
static struct stream *stream_of_thread(struct ctx *ctx)
{
	uint64_t thread = this_thread();
	struct stream *found = NULL;

	pthread_mutex_lock(&lock);
	for (struct stream *s = streams; !found && s; s = s->next) {
		found = s->ctx == ctx && s->thread == thread && !s->is_closed ? s : NULL;
	}
	pthread_mutex_unlock(&lock);
	/* Only this thread makes its own stream, so there is no race. */
	if (!found && stream_new(ctx, NULL, 0, 0, &found) == CUDA_SUCCESS) {
		pthread_mutex_lock(&lock);
		found->thread = thread;
		pthread_mutex_unlock(&lock);
	}
	return found;
}

_Thread_local bool stream_zero_is_own;

struct stream *stream_from_handle(CUstream handle)
{
	struct stream *s = (struct stream *)handle;

	if (!handle && stream_zero_is_own) {
		handle = CU_STREAM_PER_THREAD;
	}
	if (!handle || handle == CU_STREAM_LEGACY) {
		const struct green *green = ctx_current_green();
		return green ? green->null_stream : ctx_current()->null_stream;
	}
	if (handle == CU_STREAM_PER_THREAD) {
		return ctx_current_green() ? NULL : stream_of_thread(ctx_current());
	}
	return s->magic == STREAM_MAGIC && !s->is_detached ? s : NULL;
}

CUresult stream_missing(CUstream handle)
{
	const struct stream *s = (const struct stream *)handle;

	return handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD &&
	                       s->magic == STREAM_MAGIC && s->is_detached
	               ? CUDA_ERROR_CONTEXT_IS_DESTROYED
	               : CUDA_ERROR_INVALID_HANDLE;
}

uint64_t stream_id(const struct stream *s)
{
	return s->id;
}

struct ctx *stream_ctx(const struct stream *s)
{
	return s->ctx;
}

struct green *stream_green(const struct stream *s)
{
	return s->green;
}

unsigned stream_flags(const struct stream *s)
{
	return s->flags;
}

int stream_priority(const struct stream *s)
{
	return s->priority;
}

/* --- marks --- */

static void reach_locked(struct mark *mark)
{
	mark->time_ns = now_ns();
	mark->is_reached = true;
	pthread_cond_broadcast(&progress);
}

static void unref_locked(struct mark *mark)
{
	if (--mark->n_refs == 0) {
		free(mark);
	}
}

static CUresult run_nothing(struct ctx *ctx, void *arg)
{
	(void)ctx;
	(void)arg;
	return CUDA_SUCCESS;
}

/* The mark is reached also in a poisoned context, or else somebody would wait for ever. */
static void mark_done(void *arg)
{
	struct mark *mark = *(struct mark **)arg;

	pthread_mutex_lock(&lock);
	if (--mark->n_pending == 0) {
		reach_locked(mark);
	}
	unref_locked(mark);
	pthread_mutex_unlock(&lock);
}

/* Locked. Put the mark behind all work of the stream; @is_apart: and not behind work of other streams. */
static CUresult mark_add(struct mark *mark, struct stream *s, bool is_apart)
{
	struct op *op = op_new(run_nothing, mark_done, &mark, sizeof(struct mark *));

	if (op) {
		op->is_apart = is_apart;
	}
	if (!op || enqueue(s, op) != CUDA_SUCCESS) {
		free(op);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	mark->n_refs++;
	mark->n_pending++;
	return CUDA_SUCCESS;
}

struct mark *mark_new(void)
{
	struct mark *mark = calloc(1, sizeof(*mark));

	if (mark) {
		mark->n_refs = 1;
	}
	return mark;
}

struct mark *stream_mark_ctx(struct ctx *ctx, const struct green *green)
{
	struct mark *mark = mark_new();
	CUresult err = CUDA_SUCCESS;

	if (!mark) {
		return NULL;
	}
	pthread_mutex_lock(&lock);
	for (struct stream *s = streams; err == CUDA_SUCCESS && s; s = s->next) {
		if (s->ctx == ctx && (!green || s->green == green) && s->first) {
			err = mark_add(mark, s, true);
		}
	}
	if (err != CUDA_SUCCESS) {
		unref_locked(mark); /* streams that have it already let it go later */
		mark = NULL;
	} else if (mark->n_pending == 0) {
		reach_locked(mark);
	}
	pthread_mutex_unlock(&lock);
	return mark;
}

struct mark *stream_mark(struct stream *s)
{
	struct mark *mark = mark_new();

	if (!mark) {
		return NULL;
	}
	pthread_mutex_lock(&lock);
	if (!s->first && !must_wait(s, last_ticket)) {
		reach_locked(mark);
	} else if (mark_add(mark, s, false) != CUDA_SUCCESS) {
		unref_locked(mark);
		mark = NULL;
	}
	pthread_mutex_unlock(&lock);
	return mark;
}

void mark_reach(struct mark *mark)
{
	pthread_mutex_lock(&lock);
	if (!mark->is_reached) {
		reach_locked(mark);
	}
	pthread_mutex_unlock(&lock);
}

void mark_wait(struct mark *mark)
{
	pthread_mutex_lock(&lock);
	mark->n_refs++;
	while (!mark->is_reached) {
		pthread_cond_wait(&progress, &lock);
	}
	unref_locked(mark);
	pthread_mutex_unlock(&lock);
}

void mark_ref(struct mark *mark)
{
	pthread_mutex_lock(&lock);
	mark->n_refs++;
	pthread_mutex_unlock(&lock);
}

void mark_unref(struct mark *mark)
{
	if (mark) {
		pthread_mutex_lock(&lock);
		unref_locked(mark);
		pthread_mutex_unlock(&lock);
	}
}

static CUresult run_mark_wait(struct ctx *ctx, void *arg)
{
	(void)ctx;
	mark_wait(*(struct mark **)arg);
	return CUDA_SUCCESS;
}

static void drop_mark(void *arg)
{
	mark_unref(*(struct mark **)arg);
}

CUresult stream_wait_mark(struct stream *s, struct mark *mark)
{
	if (mark_is_reached(mark)) {
		return CUDA_SUCCESS;
	}
	mark_ref(mark);
	CUresult err = stream_submit(s, run_mark_wait, drop_mark, &mark, sizeof(struct mark *));
	if (err != CUDA_SUCCESS) {
		mark_unref(mark);
	}
	return err;
}

bool mark_is_reached(const struct mark *mark)
{
	pthread_mutex_lock(&lock);
	bool is_reached = mark->is_reached;
	pthread_mutex_unlock(&lock);
	return is_reached;
}

uint64_t mark_time_ns(const struct mark *mark)
{
	return mark->time_ns; /* does not change any more once the mark is reached */
}
