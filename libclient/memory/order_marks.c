/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/order_parts.h"

#include "libclient/link/fork.h"

/* A stream gets a mark for its frees no more often, unless there are many. */
#define MARK_NS 1000000u
#define MANY_UNMARKED 16u

static void keep_mark(struct glake__order_context *context, struct glake__mark *mark)
{
	mark->is_done = false;
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
	/* Those without one are the newest, but for few. */
	unsigned n_unmarked = line->n_unmarked;
	unsigned n_seen = 0;
	for (struct glake__parked *at = line->newest; n_seen < n_unmarked; at = at->previous) {
		if (at->mark) {
			continue;
		}
		n_seen++;
		if (at->number <= upto) {
			at->mark = mark;
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
		mark->is_done = order->drv.cuEventQuery(mark->event) == CUDA_SUCCESS;
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

/* With the lock held: a mark for all that has none is about to be recorded. */
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

/* ---- by stream -------------------------------------------------------------------------------- */

/* Is it a thread's default stream? Other threads have no handle of it. */
static bool is_per_thread(void *handle, unsigned flags)
{
	return handle == CU_STREAM_PER_THREAD || (!handle && flags & GLAKE_PER_THREAD);
}

/* A stream that is to get a mark. */
struct target {
	struct glake_stream stream;
	void *handle;
	unsigned flags;
	uint64_t upto;
};

static bool is_target(const struct glake__order_line *line, CUcontext ctx)
{
	return line->n_unmarked > 0 && line->of->ctx == ctx && !line->of->is_hidden &&
	       !is_per_thread(line->handle, line->flags);
}

/* With the lock held. */
static struct target begin_target(struct glake_order *order, const struct glake__order_line *line)
{
	tell_unmarked(order, line);
	return (struct target){line->stream, line->handle, line->flags, order->n_numbers};
}

/* False: there are no more in this round. */
static bool next_target(struct glake_order *order, CUcontext ctx, uint64_t round,
                        struct target *target_out)
{
	pthread_mutex_lock(&order->lock);
	struct glake__order_line *line = order->lines;
	while (line && (line->round >= round || !is_target(line, ctx))) {
		line = line->next;
	}
	if (line) {
		line->round = round;
		*target_out = begin_target(order, line);
	}
	pthread_mutex_unlock(&order->lock);
	return line != NULL;
}

/*
 * A capture must not have the event. One may begin before it is recorded, in another thread: then the event is of no
 * use, and asking about it would end the capture.
 */
static bool record_on(struct glake_order *order, const struct target *target, CUevent event)
{
	const struct glake__order_calls *calls = glake__order_calls_of(order, target->flags);
	CUstreamCaptureStatus before;
	CUstreamCaptureStatus behind;
	return calls->is_capturing(target->handle, &before) == CUDA_SUCCESS &&
	       before == CU_STREAM_CAPTURE_STATUS_NONE &&
	       calls->record(event, target->handle) == CUDA_SUCCESS &&
	       calls->is_capturing(target->handle, &behind) == CUDA_SUCCESS &&
	       behind == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The event, or NULL: there is no new mark. */
static CUevent mark_target(struct glake_order *order, const struct target *target)
{
	CUcontext ctx = target->stream.context;
	CUcontext popped;
	struct glake__mark *mark;
	uint64_t now_ns = clock_now_ns();
	if (order->push(ctx) != CUDA_SUCCESS) {
		return NULL;
	}
	bool is_taken = take_mark(order, ctx, &mark) == 0;
	bool is_recorded = is_taken && record_on(order, target, mark->event);
	order->pop(&popped);
	if (!is_taken) {
		return NULL;
	}
	CUevent event = mark->event;
	pthread_mutex_lock(&order->lock);
	struct glake__order_line *line = glake__order_find_line(order, target->stream.id);
	if (is_recorded && line && is_marked_by(line, mark)) {
		glake__order_set_mark(line, mark, target->upto, now_ns);
	}
	if (mark->n_parked == 0) {
		glake__order_give_mark(order, mark);
		event = NULL;
	}
	pthread_mutex_unlock(&order->lock);
	return event;
}

static CUevent mark_streams(struct glake_order *order, CUcontext ctx)
{
	struct target target;
	CUevent newest = NULL;
	pthread_mutex_lock(&order->lock);
	uint64_t round = ++order->n_rounds;
	pthread_mutex_unlock(&order->lock);
	while (next_target(order, ctx, round, &target)) {
		CUevent event = mark_target(order, &target);
		newest = event ? event : newest;
	}
	return newest;
}

void glake_order_stream_ends(struct glake_order *order, const struct glake_stream *stream)
{
	struct target target;
	pthread_mutex_lock(&order->lock);
	const struct glake__order_line *line = glake__order_find_line(order, stream->id);
	bool is_due = line && is_target(line, stream->context);
	if (is_due) {
		target = begin_target(order, line);
	}
	pthread_mutex_unlock(&order->lock);
	if (is_due) {
		mark_target(order, &target);
	}
}

/* ---- by context ------------------------------------------------------------------------------- */

static CUevent mark_context(struct glake_order *order, CUcontext ctx)
{
	struct glake__mark *mark = NULL;
	uint64_t now_ns = clock_now_ns();
	if (take_mark(order, ctx, &mark) < 0) {
		return NULL;
	}
	pthread_mutex_lock(&order->lock);
	for (const struct glake__order_line *line = order->lines; line; line = line->next) {
		if (line->of->ctx == ctx && !line->of->is_hidden) {
			tell_unmarked(order, line);
		}
	}
	uint64_t upto = order->n_numbers;
	pthread_mutex_unlock(&order->lock);
	CUevent event = mark->event;
	bool is_recorded = order->options.record(order->options.user, ctx, mark->event) == 0;
	pthread_mutex_lock(&order->lock);
	order->is_refused = !is_recorded;
	for (struct glake__order_line *line = order->lines; is_recorded && line;
	     line = line->next) {
		if (is_marked_by(line, mark)) {
			glake__order_set_mark(line, mark, upto, now_ns);
		}
	}
	if (mark->n_parked == 0) {
		glake__order_give_mark(order, mark);
		event = NULL;
	}
	pthread_mutex_unlock(&order->lock);
	return event;
}

CUevent glake__order_mark_all(struct glake_order *order, CUcontext ctx)
{
	pthread_mutex_lock(&order->lock);
	const struct glake__order_context *context = glake__order_context_of(order, ctx);
	bool is_due = context && context->n_unmarked > 0;
	pthread_mutex_unlock(&order->lock);
	if (!is_due) {
		return NULL;
	}
	return order->options.record ? mark_context(order, ctx) : mark_streams(order, ctx);
}

/* ---- with a free ------------------------------------------------------------------------------ */

/* May what is freed there get its mark later? */
static bool can_wait(const struct glake_order *order, void *handle, unsigned flags)
{
	return order->options.record ? !order->is_refused : !is_per_thread(handle, flags);
}

bool glake__order_is_mark_due(struct glake_order *order, void *handle, unsigned flags,
                              const struct glake_stream *stream, uint64_t now_ns,
                              uint64_t *upto_out)
{
	const struct glake__order_line *line = glake__order_find_line(order, stream->id);
	bool is_due = !line || !can_wait(order, handle, flags) ||
	              line->n_unmarked >= MANY_UNMARKED || now_ns - line->marked_ns >= MARK_NS;
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
