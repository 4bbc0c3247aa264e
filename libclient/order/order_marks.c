/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An event says that memory is unused only if it was recorded behind every free that it counts for. So a mark takes its upper
 * number under the lock before the event is recorded, and a free gives out its number after the work that uses the memory was
 * queued. Events die with their context: a mark keeps its generation, because a new context can have the old handle.
 */
#include "libclient/order/order_parts.h"

#include <time.h>

#include "libclient/link/fork.h"

/* A stream gets a mark for its frees no more often, unless there are many. */
#define MARK_NS 1000000u
#define MANY_UNMARKED 16u
/* Each free has a mark for this long after a stream wanted memory of another one, and the mark was late. */
#define WANTED_NS 10000000000u
/* A thread that destroys a stream waits this long for threads that mark it, which takes them microseconds. */
#define ENDS_NS 1000000000u

static void keep_mark(struct glake__order_context *context, struct glake__mark *mark)
{
	mark->is_done = false;
	mark->is_lost = false;
	mark->next = context->spares;
	context->spares = mark;
}

void glake__order_put_mark(struct glake__order_context *context, struct glake__parked *parked)
{
	struct glake__mark *mark = parked->mark;
	parked->mark = NULL;
	if (mark && --mark->n_parked == 0) {
		keep_mark(context, mark);
	}
}

void glake__order_set_mark(struct glake__order_line *line, struct glake__mark *mark, uint64_t upto,
                           uint64_t now_ns)
{
	mark->upto = upto;
	/* The frees without a mark are the newest, but for few. */
	unsigned n_unmarked = line->n_unmarked;
	unsigned n_seen = 0;
	for (struct glake__parked *at = line->newest; n_seen < n_unmarked; at = at->previous) {
		if (at->mark) {
			continue;
		}
		n_seen++;
		if (at->number <= upto) {
			at->mark = mark;
			at->is_late = true;
			mark->n_parked++;
			line->n_unmarked--;
			line->of->n_unmarked--;
		}
	}
	line->marked_ns = now_ns;
}

bool glake__order_is_done(const struct glake_order *order, struct glake__mark *mark)
{
	if (mark && !mark->is_done) {
		CUresult result = order->drv.cuEventQuery(mark->event);
		mark->is_done = result == CUDA_SUCCESS;
		mark->is_lost = cudrv_is_lost(result);
	}
	return mark && mark->is_done;
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
static int take_mark(struct glake_order *order, CUcontext ctx, struct glake__mark **mark_out)
{
	pthread_mutex_lock(&order->lock);
	struct glake__order_context *context = glake__order_context_of(order, ctx);
	struct glake__mark *mark = context ? context->spares : NULL;
	uint64_t generation = context ? context->generation : 0;
	if (mark) {
		context->spares = mark->next;
	}
	pthread_mutex_unlock(&order->lock);
	if (!mark) {
		mark = context ? calloc(1, sizeof(*mark)) : NULL;
		CUresult result = mark ? make_event(order, ctx, &mark->event) : CUDA_SUCCESS;
		if (!mark || result != CUDA_SUCCESS) {
			free(mark);
			return mark ? glake__fail(GLAKE_E_CUDA, "cuEventCreate: %s",
			                          cudrv_error(&order->drv, result))
			            : glake__fail(-ENOMEM, "out of memory");
		}
		mark->generation = generation;
	}
	*mark_out = mark;
	return 0;
}

/* A context that is here now may have the handle of the mark's. */
void glake__order_give_mark(struct glake_order *order, struct glake__mark *mark)
{
	struct glake__order_context *context = order->contexts;
	while (context && context->generation != mark->generation) {
		context = context->next;
	}
	if (context) {
		keep_mark(context, mark);
	} else {
		/* The event has gone with it. */
		free(mark);
	}
}

/* Does @mark tell of the work on @line? */
static bool is_marked_by(const struct glake__order_line *line, const struct glake__mark *mark)
{
	return line->of->generation == mark->generation && !line->of->is_hidden;
}

/* Called with the lock held: a mark for all that has none is about to be recorded. */
static void tell_unmarked(struct glake_order *order, const struct glake__order_line *line)
{
	unsigned n_left = order->options.marking ? line->n_unmarked : 0;
	for (const struct glake__parked *at = line->newest; n_left > 0; at = at->previous) {
		if (!at->mark) {
			order->options.marking(order->options.user, at->allocation);
			n_left--;
		}
	}
}

/* ---- which streams ------------------------------------------------------------------------------ */

/* Is it a thread's default stream? Other threads have no handle of it. */
static bool is_per_thread(const void *handle, unsigned flags)
{
	return handle == CU_STREAM_PER_THREAD || (!handle && flags & GLAKE_PER_THREAD);
}

static bool is_legacy(const void *handle, unsigned flags)
{
	return handle == CU_STREAM_LEGACY || (!handle && !(flags & GLAKE_PER_THREAD));
}

bool glake__order_is_own(const struct glake_order *order, void *handle, unsigned flags,
                         const struct glake_stream *stream)
{
	CUcontext current = NULL;
	if (!is_legacy(handle, flags)) {
		return is_per_thread(handle, flags);
	}
	return order->drv.cuCtxGetCurrent(&current) != CUDA_SUCCESS || current != stream->context;
}

/* A stream that is to get a mark. */
struct marking {
	struct glake_stream stream;
	void *handle;
	unsigned flags;
	uint64_t upto;
};

/* One that is its threads' own has a mark for each free. */
static bool is_marking(const struct glake__order_line *line, CUcontext ctx)
{
	return line->n_unmarked > 0 && line->of->ctx == ctx && !line->of->is_hidden &&
	       !line->is_ended;
}

/* Called with the lock held. The handle stays until end_marking(). */
static struct marking begin_marking(struct glake_order *order, struct glake__order_line *line)
{
	line->n_marking++;
	tell_unmarked(order, line);
	return (struct marking){line->stream, line->handle, line->flags, order->n_numbers};
}

/* False: there are no more in this round. */
static bool next_marking(struct glake_order *order, CUcontext ctx, uint64_t round,
                         struct marking *marking_out)
{
	pthread_mutex_lock(&order->lock);
	struct glake__order_line *line = order->lines;
	while (line && (line->round >= round || !is_marking(line, ctx))) {
		line = line->next;
	}
	if (line) {
		line->round = round;
		*marking_out = begin_marking(order, line);
	}
	pthread_mutex_unlock(&order->lock);
	return line != NULL;
}

/* ---- marking them ------------------------------------------------------------------------------- */

/*
 * Behind an event on the legacy default stream all streams that block would wait for those that it waits for, and the
 * program did not ask for that: it is asked whether it has come to its end instead. Also that could end a capture.
 */
static bool is_idle(const struct glake_order *order, const struct marking *marking)
{
	const struct glake__order_calls *calls = glake__order_calls_of(order, marking->flags);
	CUstreamCaptureStatus status;
	if (order->options.is_idle) {
		return order->options.is_idle(order->options.user, marking->handle);
	}
	CUstreamCaptureMode mode = glake__order_relax(order);
	bool is_idle = calls->is_capturing(marking->handle, &status) == CUDA_SUCCESS &&
	               status == CU_STREAM_CAPTURE_STATUS_NONE &&
	               calls->query(marking->handle) == CUDA_SUCCESS;
	glake__order_restore(order, mode);
	return is_idle;
}

enum marked { MARKED, NOT_YET, REFUSED, ENDED };

/*
 * A capture must not have the event. One may begin before it is recorded, in another thread: then the event is of no
 * use, and asking about it would end the capture.
 */
static enum marked record_on(const struct glake_order *order, const struct marking *marking,
                             CUevent event)
{
	const struct glake__order_calls *calls = glake__order_calls_of(order, marking->flags);
	CUstreamCaptureStatus before;
	CUstreamCaptureStatus behind;
	if (calls->is_capturing(marking->handle, &before) != CUDA_SUCCESS) {
		return ENDED;
	}
	return before == CU_STREAM_CAPTURE_STATUS_NONE &&
	                       calls->record(event, marking->handle) == CUDA_SUCCESS &&
	                       calls->is_capturing(marking->handle, &behind) == CUDA_SUCCESS &&
	                       behind == CU_STREAM_CAPTURE_STATUS_NONE
	               ? MARKED
	               : REFUSED;
}

static enum marked mark_now(const struct glake_order *order, const struct marking *marking,
                            struct glake__mark *mark)
{
	if (!is_legacy(marking->handle, marking->flags)) {
		return record_on(order, marking, mark->event);
	}
	mark->is_done = is_idle(order, marking);
	return mark->is_done ? MARKED : NOT_YET;
}

/* Called with the lock held. The line is there as long as its context. */
static void end_marking(struct glake_order *order, const struct marking *marking,
                        struct glake__mark *mark, enum marked result, uint64_t now_ns)
{
	struct glake__order_line *line = glake__order_find_line(order, marking->stream.id);
	if (!line) {
		return;
	}
	line->n_marking--;
	line->is_refused = result == REFUSED;
	line->is_ended |= result == ENDED;
	if (result == MARKED && is_marked_by(line, mark)) {
		glake__order_set_mark(line, mark, marking->upto, now_ns);
	}
}

/* The event, or NULL: there is no new mark. */
static CUevent mark_marking(struct glake_order *order, const struct marking *marking)
{
	CUcontext ctx = marking->stream.context;
	CUcontext popped;
	struct glake__mark *mark = NULL;
	enum marked result = NOT_YET;
	uint64_t now_ns = clock_now_ns();
	if (order->push(ctx) == CUDA_SUCCESS) {
		if (take_mark(order, ctx, &mark) == 0) {
			result = mark_now(order, marking, mark);
		}
		order->pop(&popped);
	}
	CUevent event = mark && !mark->is_done ? mark->event : NULL;
	pthread_mutex_lock(&order->lock);
	end_marking(order, marking, mark, result, now_ns);
	if (mark && mark->n_parked == 0) {
		glake__order_give_mark(order, mark);
		event = NULL;
	}
	pthread_mutex_unlock(&order->lock);
	return event;
}

CUevent glake__order_mark_all(struct glake_order *order, CUcontext ctx)
{
	struct marking marking;
	CUevent newest = NULL;
	pthread_mutex_lock(&order->lock);
	const struct glake__order_context *context = glake__order_context_of(order, ctx);
	bool is_due = context && context->n_unmarked > 0;
	uint64_t round = ++order->n_rounds;
	pthread_mutex_unlock(&order->lock);
	while (is_due && next_marking(order, ctx, round, &marking)) {
		CUevent event = mark_marking(order, &marking);
		newest = event ? event : newest;
	}
	return newest;
}

/* ---- streams that end --------------------------------------------------------------------------- */

static bool is_being_marked(struct glake_order *order, uint64_t id)
{
	pthread_mutex_lock(&order->lock);
	const struct glake__order_line *line = glake__order_find_line(order, id);
	bool is_being = line && line->n_marking > 0;
	pthread_mutex_unlock(&order->lock);
	return is_being;
}

/* From now on nobody begins to use the handle. What has got no mark stays until the context ends. */
static void end_line(struct glake_order *order, uint64_t id)
{
	uint64_t end_ns = clock_now_ns() + ENDS_NS;
	pthread_mutex_lock(&order->lock);
	struct glake__order_line *line = glake__order_find_line(order, id);
	if (line) {
		line->is_ended = true;
	}
	pthread_mutex_unlock(&order->lock);
	while (line && is_being_marked(order, id) && clock_now_ns() < end_ns) {
		glake__order_pause(GLAKE__PAUSE_NS);
	}
}

void glake_order_stream_ends(struct glake_order *order, const struct glake_stream *stream)
{
	struct marking marking;
	pthread_mutex_lock(&order->lock);
	struct glake__order_line *line = glake__order_find_line(order, stream->id);
	bool is_due = line && is_marking(line, stream->context);
	if (is_due) {
		marking = begin_marking(order, line);
	}
	pthread_mutex_unlock(&order->lock);
	if (is_due) {
		mark_marking(order, &marking);
	}
	end_line(order, stream->id);
}

void glake__order_handle_ends(struct glake_order *order, const void *handle)
{
	pthread_mutex_lock(&order->lock);
	const struct glake__order_line *line = order->lines;
	while (line && (line->is_ended || line->handle != handle)) {
		line = line->next;
	}
	uint64_t id = line ? line->stream.id : 0;
	pthread_mutex_unlock(&order->lock);
	if (line) {
		end_line(order, id);
	}
}

/* ---- with a free ------------------------------------------------------------------------------ */

static bool is_wanted(const struct glake_order *order, uint64_t now_ns)
{
	return order->wanted_ns > 0 && now_ns - order->wanted_ns < WANTED_NS;
}

bool glake__order_is_mark_due(struct glake_order *order, bool is_own,
                              const struct glake_stream *stream, uint64_t now_ns,
                              uint64_t *upto_out)
{
	const struct glake__order_line *line = glake__order_find_line(order, stream->id);
	bool is_due = !line || is_own || line->is_refused || line->n_unmarked >= MANY_UNMARKED ||
	              now_ns - line->marked_ns >= MARK_NS || is_wanted(order, now_ns);
	if (is_due && line) {
		tell_unmarked(order, line);
	}
	*upto_out = order->n_numbers;
	return is_due;
}

int glake__order_record_mark(struct glake_order *order, void *handle, unsigned flags,
                             const struct glake_stream *stream, void *allocation,
                             struct glake__mark **mark_out)
{
	int r = take_mark(order, stream->context, mark_out);
	if (r < 0) {
		return r;
	}
	if (order->options.marking) {
		order->options.marking(order->options.user, allocation);
	}
	CUresult result = glake__order_calls_of(order, flags)->record((*mark_out)->event, handle);
	if (result != CUDA_SUCCESS) {
		pthread_mutex_lock(&order->lock);
		glake__order_give_mark(order, *mark_out);
		pthread_mutex_unlock(&order->lock);
		return glake__fail(GLAKE_E_CUDA, "cuEventRecord: %s",
		                   cudrv_error(&order->drv, result));
	}
	return 0;
}

void glake__order_free_marks(struct glake__mark *list)
{
	while (list) {
		struct glake__mark *mark = list;
		list = mark->next;
		free(mark);
	}
}

void glake__order_end_marks(struct glake_order *order, CUcontext ctx, struct glake__mark *list)
{
	CUcontext popped;
	bool is_alive = order->fork_generation == glake__fork_generation() && list &&
	                order->push(ctx) == CUDA_SUCCESS;
	for (const struct glake__mark *mark = list; is_alive && mark; mark = mark->next) {
		order->drv.cuEventDestroy(mark->event);
	}
	if (is_alive) {
		order->pop(&popped);
	}
	glake__order_free_marks(list);
}
