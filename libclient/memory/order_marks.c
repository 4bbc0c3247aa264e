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

void glake__order_give_mark(struct glake_order *order, CUcontext ctx, struct glake__mark *mark)
{
	struct glake__order_context *context = glake__order_context_of(order, ctx);
	if (context) {
		keep_mark(context, mark);
	} else {
		order->drv.cuEventDestroy(mark->event);
		free(mark);
	}
}

CUevent glake__order_mark_all(struct glake_order *order, CUcontext ctx)
{
	struct glake__mark *mark = NULL;
	uint64_t now_ns = clock_now_ns();
	pthread_mutex_lock(&order->lock);
	const struct glake__order_context *context = glake__order_context_of(order, ctx);
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
	for (struct glake__order_line *line = order->lines; is_recorded && line;
	     line = line->next) {
		if (line->of->ctx == ctx && !line->of->is_hidden) {
			glake__order_set_mark(line, mark, upto, now_ns);
		}
	}
	if (mark->n_parked == 0) {
		glake__order_give_mark(order, ctx, mark);
		event = NULL;
	}
	pthread_mutex_unlock(&order->lock);
	return event;
}

/* Does the stream get a mark with this free? *upto_out is then for glake__order_set_mark(). */
static bool is_mark_due(struct glake_order *order, const struct glake_stream *stream,
                        uint64_t now_ns, uint64_t *upto_out)
{
	pthread_mutex_lock(&order->lock);
	const struct glake__order_line *line = glake__order_find_line(order, stream->id);
	bool is_due = !line || !order->options.record || order->is_refused ||
	              line->n_unmarked >= MANY_UNMARKED || now_ns - line->marked_ns >= MARK_NS;
	*upto_out = order->n_numbers;
	pthread_mutex_unlock(&order->lock);
	return is_due;
}

int glake__order_record_mark(struct glake_order *order, void *handle, unsigned flags,
                             const struct glake_stream *stream, uint64_t now_ns, uint64_t *upto_out,
                             struct glake__mark **mark_out)
{
	*mark_out = NULL;
	if (!is_mark_due(order, stream, now_ns, upto_out)) {
		return 0;
	}
	int r = take_mark(order, stream->context, mark_out);
	if (r < 0) {
		return r;
	}
	CUresult result = glake__order_calls_of(order, flags)->record((*mark_out)->event, handle);
	if (result != CUDA_SUCCESS) {
		pthread_mutex_lock(&order->lock);
		glake__order_give_mark(order, stream->context, *mark_out);
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
