/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/order.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "libclient/link/error.h"
#include "libclient/link/fork.h"
#include "libclient/memory/fit.h"
#include "libclient/memory/ptr_table.h"
#include "libclient/link/sized.h"

/* With more parked on a stream, a free looks for those no longer in use. */
#define MANY_PARKED 16u
/* A stream without parked memory may be forgotten when there are more. */
#define MANY_STREAMS 64u
/* So many are searched for one that fits, the newest first, because they fit most often. */
#define MAX_LOOKS 256u
/* A stream gets a mark for its frees no more often, unless there are many. */
#define MARK_NS 1000000u
#define MANY_UNMARKED 16u
/* A free that finds many parked looks for what is done no more often. */
#define ASK_NS 20000u
/* An idle GPU gets to a mark that soon. */
#define IDLE_NS 1000000u
/* So many are released at a time, without the lock. */
#define MAX_DONE 64u

/* Calls that older drivers lack, or that exist twice, for the two default streams. */
struct calls {
	__typeof__(cuStreamGetId) *get_id;
	CUresult (*get_ctx)(CUstream stream, CUcontext *ctx); /* before its _v2 */
	CUresult (*get_ctx_v2)(CUstream stream, CUcontext *ctx, CUgreenCtx *green); /* CUDA 12.5 */
	__typeof__(cuEventRecord) *record;
	__typeof__(cuStreamWaitEvent) *wait;
	__typeof__(cuStreamIsCapturing) *is_capturing;
};

/*
 * An event that has been recorded behind frees. Each free could have its own, but an event between two kernels
 * costs the GPU microseconds; so a stream gets one now and then, for all of its frees since the last one. Those
 * without one are marked by context when somebody wants them (options.record).
 */
struct mark {
	CUevent event; /* owned; it dies with its context */
	uint64_t upto; /* it is behind all of its streams that have a number up to this one */
	unsigned n_parked;
	bool is_done;
	struct mark *next; /* link: spares */
};

/* An allocation that waits. */
struct parked {
	void *allocation;
	uint64_t n_bytes;
	int ordinal;
	uint64_t number;         /* grows */
	struct mark *mark;       /* shared; NULL: none yet */
	struct parked *next;     /* link: a stream's, from old to new; spares */
	struct parked *previous; /* link: a stream's */
	struct parked *next_fit; /* link: those of them that can serve, with n_bytes */
	struct parked *previous_fit;
};

/* One generation of a context: once it has ended, a new context may have its handle. */
struct context {
	CUcontext ctx;
	bool is_hidden;       /* it may be ending: its events must not be touched */
	uint64_t round;       /* the last one in which it was collected from */
	unsigned n_unmarked;  /* parked, without a mark */
	struct mark *spares;  /* owned */
	struct context *next; /* link: order.contexts */
};

struct line {
	struct glake_stream stream;
	struct context *of;    /* borrowed */
	struct parked *oldest; /* owned */
	struct parked *newest;
	struct parked *newest_fit; /* by previous_fit */
	unsigned n_parked;
	unsigned n_unmarked; /* without a mark */
	uint64_t marked_ns;  /* when it got its last mark */
	uint64_t asked_ns;   /* when a free last looked for what is done */
	struct line *next;   /* link: order.lines */
};

/* Allocations that nothing uses any more and that have left the order. */
struct done {
	size_t n;
	void *allocations[MAX_DONE];
};

struct glake_order {
	struct glake_order_options options;
	uint64_t fork_generation; /* of the process that made it */
	struct cudrv drv;
	__typeof__(cuCtxPushCurrent) *push;
	__typeof__(cuCtxPopCurrent) *pop;
	__typeof__(cuCtxGetDevice) *get_device;
	struct calls calls[2]; /* [1]: GLAKE_PER_THREAD */
	atomic_uint n_parked;  /* over all streams: spares others the lock */

	/* Taken before the other one. Held while a context may end, or is entered to collect. */
	pthread_mutex_t context_lock;
	struct parked *dropped; /* owned; under it: of contexts that ended, to be released */
	pthread_mutex_t lock;   /* for what follows */
	struct parked *spares;  /* owned */
	uint64_t n_numbers;
	bool is_refused;    /* a context could not be marked last time */
	struct line *lines; /* owned list */
	unsigned n_lines;
	struct glake__ptr_table by_id; /* lines, by key_of() */
	struct context *contexts;      /* owned list */
	uint64_t n_rounds;
};

/* ---- with the lock held ----------------------------------------------------------------------- */

/* 0 is no key, and may be an id. */
static uint64_t key_of(uint64_t id)
{
	return id + 1;
}

static void append(struct glake_order *order, struct line *line, struct parked *parked)
{
	parked->next = NULL;
	parked->previous = line->newest;
	if (line->newest) {
		line->newest->next = parked;
	} else {
		line->oldest = parked;
	}
	line->newest = parked;
	if (parked->n_bytes > 0) {
		parked->previous_fit = line->newest_fit;
		if (line->newest_fit) {
			line->newest_fit->next_fit = parked;
		}
		line->newest_fit = parked;
	}
	line->n_parked++;
	line->n_unmarked += !parked->mark;
	line->of->n_unmarked += !parked->mark;
	order->n_parked++;
}

static void take_out(struct glake_order *order, struct line *line, struct parked *parked)
{
	if (parked->previous) {
		parked->previous->next = parked->next;
	} else {
		line->oldest = parked->next;
	}
	if (parked->next) {
		parked->next->previous = parked->previous;
	} else {
		line->newest = parked->previous;
	}
	if (parked->previous_fit) {
		parked->previous_fit->next_fit = parked->next_fit;
	}
	if (parked->next_fit) {
		parked->next_fit->previous_fit = parked->previous_fit;
	} else if (parked == line->newest_fit) {
		line->newest_fit = parked->previous_fit;
	}
	line->n_parked--;
	line->n_unmarked -= !parked->mark;
	line->of->n_unmarked -= !parked->mark;
	order->n_parked--;
}

/* The generation of @ctx that is not ending; NULL without memory. */
static struct context *context_of(struct glake_order *order, CUcontext ctx)
{
	struct context *context = order->contexts;
	while (context && (context->ctx != ctx || context->is_hidden)) {
		context = context->next;
	}
	if (!context && (context = calloc(1, sizeof(*context)))) {
		context->ctx = ctx;
		context->next = order->contexts;
		order->contexts = context;
	}
	return context;
}

static void keep_mark(struct context *context, struct mark *mark)
{
	mark->is_done = false;
	mark->next = context->spares;
	context->spares = mark;
}

static void keep_spare(struct glake_order *order, struct parked *parked)
{
	parked->next = order->spares;
	order->spares = parked;
}

static void put_mark(struct context *context, struct parked *parked)
{
	struct mark *mark = parked->mark;
	parked->mark = NULL;
	if (mark && --mark->n_parked == 0) {
		keep_mark(context, mark);
	}
}

/* @mark has been recorded behind all of @line's that have a number up to @upto. */
static void set_mark(struct line *line, struct mark *mark, uint64_t upto, uint64_t now_ns)
{
	mark->upto = upto;
	/* Those without one are the newest, but for few. */
	unsigned n_left = line->n_unmarked;
	for (struct parked *at = line->newest; at && n_left > 0; at = at->previous) {
		n_left -= !at->mark;
		if (!at->mark && at->number <= upto) {
			at->mark = mark;
			mark->n_parked++;
			line->n_unmarked--;
			line->of->n_unmarked--;
		}
	}
	line->marked_ns = now_ns;
}

/* Drop the line that @link points to. Nothing is parked on it. */
static void forget_line(struct glake_order *order, struct line **link)
{
	struct line *line = *link;
	*link = line->next;
	order->n_lines--;
	glake__ptr_table_remove(&order->by_id, key_of(line->stream.id));
	free(line);
}

static void forget_idle_lines(struct glake_order *order)
{
	struct line **link = &order->lines;
	while (*link) {
		if ((*link)->n_parked == 0) {
			forget_line(order, link);
		} else {
			link = &(*link)->next;
		}
	}
}

static struct line *find_line(const struct glake_order *order, uint64_t id)
{
	return glake__ptr_table_get(&order->by_id, key_of(id));
}

static struct line *line_of(struct glake_order *order, const struct glake_stream *stream)
{
	struct line *line = find_line(order, stream->id);
	if (line) {
		return line;
	}
	if (order->n_lines >= MANY_STREAMS) {
		forget_idle_lines(order);
	}
	struct context *context = context_of(order, stream->context);
	line = context ? calloc(1, sizeof(*line)) : NULL;
	if (!line || glake__ptr_table_add(&order->by_id, key_of(stream->id), line) < 0) {
		free(line);
		return NULL;
	}
	line->stream = *stream;
	line->of = context;
	line->next = order->lines;
	order->lines = line;
	order->n_lines++;
	return line;
}

/* Memory may be freed on a stream of another device. */
static struct parked *find_fit(const struct line *line, uint64_t n_bytes)
{
	struct parked *parked = line->newest_fit;
	for (unsigned i = 0; parked && i < MAX_LOOKS; i++, parked = parked->previous_fit) {
		if (glake__fits(parked->n_bytes, n_bytes) &&
		    parked->ordinal == line->stream.ordinal) {
			return parked;
		}
	}
	return NULL;
}

/* Returns the allocation. */
static void *take_allocation(struct glake_order *order, struct line *line, struct parked *parked)
{
	void *allocation = parked->allocation;
	take_out(order, line, parked);
	put_mark(line->of, parked);
	keep_spare(order, parked);
	return allocation;
}

static bool is_done(const struct glake_order *order, struct mark *mark)
{
	if (mark && !mark->is_done) {
		mark->is_done = order->drv.cuEventQuery(mark->event) == CUDA_SUCCESS;
	}
	return mark && mark->is_done;
}

/*
 * Take the allocations of a stream that are no longer in use. The queries happen with the lock
 * held: they do not wait, and the first "not yet" ends them.
 */
static void take_done(struct glake_order *order, struct line *line, struct done *done)
{
	while (line->oldest && done->n < MAX_DONE && is_done(order, line->oldest->mark)) {
		done->allocations[done->n++] = take_allocation(order, line, line->oldest);
	}
}

/* ---- without it ------------------------------------------------------------------------------- */

/*
 * While a stream of the process is captured, no other thread may query events, or the capture
 * fails; and a capture may begin at any moment. In relaxed mode a thread may, because no capture
 * records our events.
 */
static CUstreamCaptureMode relax(const struct glake_order *order)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	order->drv.cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

static void restore(const struct glake_order *order, CUstreamCaptureMode mode)
{
	order->drv.cuThreadExchangeStreamCaptureMode(&mode);
}

static void release_done(struct glake_order *order, const struct done *done)
{
	for (size_t i = 0; i < done->n; i++) {
		order->options.release(order->options.user, done->allocations[i]);
	}
}

static CUresult make_event(struct glake_order *order, CUcontext ctx, CUevent *event_out)
{
	CUcontext popped;
	CUresult result = order->push(ctx);
	if (result == CUDA_SUCCESS) {
		result = order->drv.cuEventCreate(event_out, CU_EVENT_DISABLE_TIMING);
		order->pop(&popped);
	}
	return result;
}

/* A mark that is not recorded yet, and the caller's. */
static int take_mark(struct glake_order *order, CUcontext ctx, struct mark **mark_out)
{
	pthread_mutex_lock(&order->lock);
	struct context *context = context_of(order, ctx);
	struct mark *mark = context ? context->spares : NULL;
	if (mark) {
		context->spares = mark->next;
	}
	pthread_mutex_unlock(&order->lock);
	if (!mark) {
		mark = calloc(1, sizeof(*mark));
		CUresult result = mark ? make_event(order, ctx, &mark->event) : CUDA_SUCCESS;
		if (!mark || result != CUDA_SUCCESS) {
			free(mark);
			return mark ? glake__fail(GLAKE_E_CUDA, "cuEventCreate: %s",
			                          cudrv_error(&order->drv, result))
			            : glake__fail(-ENOMEM, "out of memory");
		}
	}
	*mark_out = mark;
	return 0;
}

/* Nothing is parked behind it. Called with the lock held. */
static void give_mark_locked(struct glake_order *order, CUcontext ctx, struct mark *mark)
{
	struct context *context = context_of(order, ctx);
	if (context) {
		keep_mark(context, mark);
	} else {
		order->drv.cuEventDestroy(mark->event);
		free(mark);
	}
}

/*
 * Record a mark behind all that is parked in @ctx. If that is refused, because of a capture, what has no mark stays
 * parked, and each free gets one. NULL: there is no new one.
 */
static CUevent mark_all(struct glake_order *order, CUcontext ctx)
{
	struct mark *mark = NULL;
	uint64_t now_ns = clock_now_ns();
	pthread_mutex_lock(&order->lock);
	const struct context *context = context_of(order, ctx);
	bool is_due = context && context->n_unmarked > 0 && order->options.record;
	uint64_t upto = order->n_numbers;
	pthread_mutex_unlock(&order->lock);
	if (!is_due || take_mark(order, ctx, &mark) < 0) {
		return NULL;
	}
	CUevent event = mark->event;
	bool is_recorded = order->options.record(order->options.user, ctx, mark->event) == 0;
	pthread_mutex_lock(&order->lock);
	order->is_refused = !is_recorded;
	for (struct line *line = order->lines; is_recorded && line; line = line->next) {
		if (line->of->ctx == ctx && !line->of->is_hidden) {
			set_mark(line, mark, upto, now_ns);
		}
	}
	if (mark->n_parked == 0) {
		give_mark_locked(order, ctx, mark);
		event = NULL;
	}
	pthread_mutex_unlock(&order->lock);
	return event;
}

/* The same, and let an idle GPU get there. */
static void mark_all_now(struct glake_order *order, CUcontext ctx)
{
	CUevent event = mark_all(order, ctx);
	uint64_t end_ns = clock_now_ns() + IDLE_NS;
	while (event && clock_now_ns() < end_ns && order->drv.cuEventQuery(event) != CUDA_SUCCESS) {
	}
}

/* ---- streams ---------------------------------------------------------------------------------- */

static CUresult ask_place(struct glake_order *order, const struct calls *calls, CUstream handle,
                          struct glake_stream *stream)
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

static const struct calls *calls_of(const struct glake_order *order, unsigned flags)
{
	return &order->calls[(flags & GLAKE_PER_THREAD) != 0];
}

int glake_order_stream(struct glake_order *order, void *handle, unsigned flags,
                       struct glake_stream *stream_out)
{
	const struct calls *calls = calls_of(order, flags);
	unsigned long long id = 0;
	if (!calls->get_id || !calls->get_ctx || !calls->record || !calls->wait ||
	    !calls->is_capturing) {
		return glake__fail(-ENOSYS, "the driver has no default streams by thread");
	}
	CUresult result = calls->get_id(handle, &id);
	if (result == CUDA_SUCCESS) {
		pthread_mutex_lock(&order->lock);
		const struct line *line = find_line(order, id);
		if (line) {
			*stream_out = line->stream;
		}
		pthread_mutex_unlock(&order->lock);
		if (line) {
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
	bool is_known = line_of(order, &stream) != NULL;
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
	const struct calls *calls = calls_of(order, flags);
	return calls->is_capturing && calls->is_capturing(handle, &status) == CUDA_SUCCESS &&
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* ---- parking ---------------------------------------------------------------------------------- */

void *glake_order_take(struct glake_order *order, const struct glake_stream *stream, uint64_t bytes)
{
	if (order->n_parked == 0) {
		return NULL;
	}
	pthread_mutex_lock(&order->lock);
	struct line *line = find_line(order, stream->id);
	struct parked *parked = line && !line->of->is_hidden ? find_fit(line, bytes) : NULL;
	void *allocation = parked ? take_allocation(order, line, parked) : NULL;
	pthread_mutex_unlock(&order->lock);
	return allocation;
}

/* Take allocations that are no longer in use, if many are parked on the stream. The GPU may be far behind. */
static void take_some(struct glake_order *order, struct line *line, uint64_t now_ns,
                      struct done *done)
{
	if (line->n_parked > MANY_PARKED && now_ns - line->asked_ns >= ASK_NS &&
	    !line->of->is_hidden) {
		line->asked_ns = now_ns;
		CUstreamCaptureMode mode = relax(order);
		take_done(order, line, done);
		restore(order, mode);
	}
}

static struct parked *take_spare(struct glake_order *order)
{
	pthread_mutex_lock(&order->lock);
	struct parked *parked = order->spares;
	if (parked) {
		order->spares = parked->next;
	}
	pthread_mutex_unlock(&order->lock);
	return parked ? parked : malloc(sizeof(*parked));
}

static void give_spare(struct glake_order *order, struct parked *parked)
{
	pthread_mutex_lock(&order->lock);
	keep_spare(order, parked);
	pthread_mutex_unlock(&order->lock);
}

/* Does the stream get a mark with this free? *upto_out is then for set_mark(). */
static bool is_mark_due(struct glake_order *order, const struct glake_stream *stream,
                        uint64_t now_ns, uint64_t *upto_out)
{
	pthread_mutex_lock(&order->lock);
	const struct line *line = find_line(order, stream->id);
	bool is_due = !line || !order->options.record || order->is_refused ||
	              line->n_unmarked >= MANY_UNMARKED || now_ns - line->marked_ns >= MARK_NS;
	*upto_out = order->n_numbers;
	pthread_mutex_unlock(&order->lock);
	return is_due;
}

/* NULL and 0: none is due. It is recorded behind this free and all up to *upto_out. */
static int record_mark(struct glake_order *order, void *handle, unsigned flags,
                       const struct glake_stream *stream, uint64_t now_ns, uint64_t *upto_out,
                       struct mark **mark_out)
{
	*mark_out = NULL;
	if (!is_mark_due(order, stream, now_ns, upto_out)) {
		return 0;
	}
	int r = take_mark(order, stream->context, mark_out);
	if (r < 0) {
		return r;
	}
	CUresult result = calls_of(order, flags)->record((*mark_out)->event, handle);
	if (result != CUDA_SUCCESS) {
		pthread_mutex_lock(&order->lock);
		give_mark_locked(order, stream->context, *mark_out);
		pthread_mutex_unlock(&order->lock);
		return glake__fail(GLAKE_E_CUDA, "cuEventRecord: %s",
		                   cudrv_error(&order->drv, result));
	}
	return 0;
}

int glake_order_park(struct glake_order *order, void *handle, unsigned flags,
                     const struct glake_stream *stream, void *allocation, int ordinal,
                     uint64_t bytes)
{
	struct done done = {.n = 0};
	struct mark *mark;
	uint64_t upto = 0;
	uint64_t now_ns = clock_now_ns();
	struct parked *parked = take_spare(order);
	if (!parked) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	int r = record_mark(order, handle, flags, stream, now_ns, &upto, &mark);
	if (r < 0) {
		give_spare(order, parked);
		return r;
	}
	*parked = (struct parked){.allocation = allocation, .n_bytes = bytes, .ordinal = ordinal};
	pthread_mutex_lock(&order->lock);
	struct line *line = line_of(order, stream);
	if (line) {
		parked->number = ++order->n_numbers;
		append(order, line, parked);
		if (mark) {
			set_mark(line, mark, upto, now_ns);
			/* Recorded behind this one, too, but perhaps not behind those between. */
			parked->mark = mark;
			mark->n_parked++;
			line->n_unmarked--;
			line->of->n_unmarked--;
		}
		take_some(order, line, now_ns, &done);
	} else {
		keep_spare(order, parked);
		if (mark) {
			give_mark_locked(order, stream->context, mark);
		}
	}
	pthread_mutex_unlock(&order->lock);
	release_done(order, &done);
	return line ? 0 : glake__fail(-ENOMEM, "out of memory");
}

/*
 * Threads that parked at the same time may have marks of their own, which the newest one is not behind. All of it with
 * the lock held: a mark that is let go is recorded anew.
 */
static CUresult follow_locked(struct glake_order *order, const struct line *line, CUstream handle,
                              unsigned flags)
{
	uint64_t n_followed = 0;
	CUresult result = CUDA_SUCCESS;
	const struct parked *at = line->newest;
	while (result == CUDA_SUCCESS && at && at->number > n_followed) {
		const struct mark *mark = at->mark;
		result = mark ? calls_of(order, flags)->wait(handle, mark->event, 0)
		              : CUDA_ERROR_NOT_READY;
		n_followed = mark && mark->upto > n_followed ? mark->upto : n_followed;
		at = at->previous;
	}
	return result;
}

static CUcontext context_with(struct glake_order *order, uint64_t id)
{
	pthread_mutex_lock(&order->lock);
	const struct line *line = find_line(order, id);
	CUcontext ctx = line ? line->of->ctx : NULL;
	pthread_mutex_unlock(&order->lock);
	return ctx;
}

int glake_order_follow(struct glake_order *order, void *handle, unsigned flags, uint64_t from)
{
	CUcontext ctx = context_with(order, from);
	CUresult result = CUDA_SUCCESS;
	if (glake__order_is_captured(order, handle, flags)) {
		return glake__fail(-EBUSY, "the stream is being captured");
	}
	if (ctx) {
		mark_all(order, ctx);
	}
	pthread_mutex_lock(&order->lock);
	const struct line *line = find_line(order, from);
	bool is_any = line && line->n_parked > 0;
	if (is_any) {
		result = line->of->is_hidden ? CUDA_ERROR_NOT_READY
		                             : follow_locked(order, line, handle, flags);
	}
	pthread_mutex_unlock(&order->lock);
	if (!is_any) {
		return glake__fail(-ENOENT, "nothing is parked on stream %llu",
		                   (unsigned long long)from);
	}
	if (result == CUDA_ERROR_NOT_READY) {
		return glake__fail(-EBUSY, "the other stream cannot be waited for now");
	}
	return result == CUDA_SUCCESS ? 0
	                              : glake__fail(GLAKE_E_CUDA, "cuStreamWaitEvent: %s",
	                                            cudrv_error(&order->drv, result));
}

/* ---- collecting ------------------------------------------------------------------------------- */

#define ANY_ORDINAL (-1)

static void take_done_of(struct glake_order *order, CUcontext ctx, struct done *done)
{
	done->n = 0;
	pthread_mutex_lock(&order->lock);
	for (struct line *line = order->lines; line; line = line->next) {
		if (line->of->ctx == ctx && !line->of->is_hidden) {
			take_done(order, line, done);
		}
	}
	pthread_mutex_unlock(&order->lock);
}

static bool collect_done(struct glake_order *order, CUcontext ctx)
{
	struct done done;
	bool is_any = false;
	do {
		take_done_of(order, ctx, &done);
		release_done(order, &done);
		is_any |= done.n > 0;
	} while (done.n == MAX_DONE);
	return is_any;
}

static CUevent oldest_on(const struct line *line, int ordinal)
{
	const struct parked *parked = line->oldest;
	while (parked && ordinal != ANY_ORDINAL && parked->ordinal != ordinal) {
		parked = parked->next;
	}
	return parked && parked->mark ? parked->mark->event : NULL;
}

/*
 * Wait for one allocation that is parked in @ctx. It stays parked: meanwhile another thread may
 * take it, and its event may be spare or recorded anew. False: there is none, or the context is
 * lost, and its work may still use the memory.
 */
static bool wait_for_one(struct glake_order *order, CUcontext ctx, int ordinal)
{
	CUevent event = NULL;
	mark_all(order, ctx);
	pthread_mutex_lock(&order->lock);
	for (const struct line *line = order->lines; !event && line; line = line->next) {
		if (line->of->ctx == ctx && !line->of->is_hidden) {
			event = oldest_on(line, ordinal);
		}
	}
	pthread_mutex_unlock(&order->lock);
	return event && order->drv.cuEventSynchronize(event) == CUDA_SUCCESS;
}

/* Parked memory of a context is hidden while it may be ending, even if it does not end. */
static void await_ends(struct glake_order *order)
{
	pthread_mutex_lock(&order->context_lock);
	pthread_mutex_unlock(&order->context_lock);
}

int glake_order_collect(struct glake_order *order, void *context, int waits)
{
	if (order->n_parked == 0) {
		return false;
	}
	if (waits) {
		await_ends(order);
	}
	CUstreamCaptureMode mode = relax(order);
	mark_all(order, context);
	bool is_any = collect_done(order, context);
	/* Enough rounds if no thread parks anything meanwhile. */
	unsigned n_left = waits ? order->n_parked : 0;
	while (n_left-- > 0 && wait_for_one(order, context, ANY_ORDINAL)) {
		is_any |= collect_done(order, context);
	}
	restore(order, mode);
	return is_any;
}

/* With the lock of contexts held. One that was not collected from in this round, or NULL. */
static struct context *next_context(struct glake_order *order, uint64_t round)
{
	pthread_mutex_lock(&order->lock);
	struct context *context = order->contexts;
	while (context && context->round >= round) {
		context = context->next;
	}
	pthread_mutex_unlock(&order->lock);
	return context;
}

/* With the lock of contexts held. Waits *n_left times at most. */
static void take_done_in(struct glake_order *order, CUcontext ctx, int ordinal, unsigned *n_left,
                         struct done *done)
{
	CUcontext popped;
	if (order->push(ctx) != CUDA_SUCCESS) {
		return;
	}
	mark_all_now(order, ctx);
	take_done_of(order, ctx, done);
	if (done->n == 0 && ordinal >= 0 && *n_left > 0 && wait_for_one(order, ctx, ordinal)) {
		--*n_left;
		take_done_of(order, ctx, done);
	}
	order->pop(&popped);
}

/*
 * A thread that must not wait takes the lock only if no context is ending and no thread waits in
 * one.
 */
static bool lock_contexts(struct glake_order *order, bool waits)
{
	return waits ? pthread_mutex_lock(&order->context_lock) == 0
	             : pthread_mutex_trylock(&order->context_lock) == 0;
}

/* The lock is let go for each release: it may take long, and contexts may end meanwhile. */
int glake_order_collect_all(struct glake_order *order, int ordinal)
{
	struct context *context;
	struct done done;
	bool is_any = false;
	if (order->n_parked == 0) {
		return false;
	}
	pthread_mutex_lock(&order->lock);
	uint64_t round = ++order->n_rounds;
	pthread_mutex_unlock(&order->lock);
	CUstreamCaptureMode mode = relax(order);
	unsigned n_left = order->n_parked;
	do {
		done.n = 0;
		if (!lock_contexts(order, ordinal >= 0)) {
			break;
		}
		context = next_context(order, round);
		if (context) {
			take_done_in(order, context->ctx, ordinal, &n_left, &done);
			if (done.n == 0) {
				context->round = round;
			}
		}
		pthread_mutex_unlock(&order->context_lock);
		release_done(order, &done);
		is_any |= done.n > 0;
	} while (context);
	restore(order, mode);
	return is_any;
}

/* ---- contexts that end ------------------------------------------------------------------------ */

void glake__order_hold_contexts(struct glake_order *order)
{
	pthread_mutex_lock(&order->context_lock);
}

bool glake__order_try_hold_contexts(struct glake_order *order)
{
	return pthread_mutex_trylock(&order->context_lock) == 0;
}

static void set_hidden(struct glake_order *order, CUcontext ctx, bool is_hidden)
{
	pthread_mutex_lock(&order->lock);
	for (struct context *context = order->contexts; context; context = context->next) {
		if (context->ctx == ctx) {
			context->is_hidden = is_hidden;
		}
	}
	pthread_mutex_unlock(&order->lock);
}

void glake__order_hide_context(struct glake_order *order, void *context)
{
	set_hidden(order, context, true);
}

void glake__order_show_context(struct glake_order *order, void *context)
{
	set_hidden(order, context, false);
}

static void free_nodes(struct parked *list)
{
	while (list) {
		struct parked *parked = list;
		list = parked->next;
		free(parked);
	}
}

/* Their events are gone. */
static void free_marks(struct mark *list)
{
	while (list) {
		struct mark *mark = list;
		list = mark->next;
		free(mark);
	}
}

/* Called with the lock held, when no line is of them. Their events are gone. */
static void drop_hidden(struct glake_order *order)
{
	struct context **link = &order->contexts;
	while (*link) {
		struct context *context = *link;
		if (context->is_hidden) {
			*link = context->next;
			free_marks(context->spares);
			free(context);
		} else {
			link = &context->next;
		}
	}
}

/* The events are gone with the context. The nodes keep the allocations until they are released. */
void glake__order_drop_context(struct glake_order *order)
{
	struct parked *list = NULL;
	pthread_mutex_lock(&order->lock);
	struct line **link = &order->lines;
	while (*link) {
		struct line *line = *link;
		if (!line->of->is_hidden) {
			link = &line->next;
			continue;
		}
		while (line->oldest) {
			struct parked *parked = line->oldest;
			take_out(order, line, parked);
			put_mark(line->of, parked);
			parked->next = list;
			list = parked;
		}
		forget_line(order, link);
	}
	drop_hidden(order);
	pthread_mutex_unlock(&order->lock);
	while (list) {
		struct parked *parked = list;
		list = parked->next;
		parked->next = order->dropped;
		order->dropped = parked;
	}
}

/* The lock is let go first: releases may take long, and other contexts may end meanwhile. */
void glake__order_let_contexts(struct glake_order *order)
{
	struct parked *list = order->dropped;
	order->dropped = NULL;
	pthread_mutex_unlock(&order->context_lock);
	for (const struct parked *parked = list; parked; parked = parked->next) {
		order->options.release(order->options.user, parked->allocation);
	}
	free_nodes(list);
}

/* ---- making and ending ------------------------------------------------------------------------ */

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
		{"cuStreamGetId_ptsz", (void **)&order->calls[1].get_id, false},
		{"cuStreamGetCtx_ptsz", (void **)&order->calls[1].get_ctx, false},
		{"cuStreamGetCtx_v2_ptsz", (void **)&order->calls[1].get_ctx_v2, false},
		{"cuEventRecord_ptsz", (void **)&order->calls[1].record, false},
		{"cuStreamWaitEvent_ptsz", (void **)&order->calls[1].wait, false},
		{"cuStreamIsCapturing_ptsz", (void **)&order->calls[1].is_capturing, false},
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

int glake__order_over(const struct cudrv *drv, const struct glake_order_options *options,
                      struct glake_order **order_out)
{
	struct glake_order *order = calloc(1, sizeof(*order));
	if (!order) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	order->options = *options;
	order->fork_generation = glake__fork_generation();
	order->drv = *drv;
	if (!find_calls(order)) {
		free(order);
		return -ENOSYS;
	}
	pthread_mutex_init(&order->context_lock, NULL);
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

/* If a context cannot be entered, it has ended with its events. In a forked child all have. */
static void end_marks(struct glake_order *order, CUcontext ctx, struct mark *list)
{
	CUcontext popped;
	bool is_alive = order->fork_generation == glake__fork_generation() && list &&
	                order->push(ctx) == CUDA_SUCCESS;
	for (const struct mark *mark = list; is_alive && mark; mark = mark->next) {
		order->drv.cuEventDestroy(mark->event);
	}
	if (is_alive) {
		order->pop(&popped);
	}
	free_marks(list);
}

void glake_order_free(struct glake_order *order)
{
	if (!order) {
		return;
	}
	while (order->lines) {
		struct line *line = order->lines;
		while (line->oldest) {
			struct parked *parked = line->oldest;
			take_out(order, line, parked);
			put_mark(line->of, parked);
			order->options.release(order->options.user, parked->allocation);
			free(parked);
		}
		forget_line(order, &order->lines);
	}
	while (order->contexts) {
		struct context *context = order->contexts;
		order->contexts = context->next;
		end_marks(order, context->ctx, context->spares);
		free(context);
	}
	free_nodes(order->spares);
	glake__ptr_table_deinit(&order->by_id);
	free(order);
}
