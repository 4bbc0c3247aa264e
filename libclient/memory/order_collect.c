/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/order_parts.h"

#define ANY_ORDINAL (-1)
/* Idle GPUs get to their marks that soon. */
#define IDLE_NS 1000000u

/* Mark all that is parked in @ctx, and until @end_ns let an idle GPU get there. */
static void mark_all_until(struct glake_order *order, CUcontext ctx, uint64_t end_ns)
{
	CUevent event = glake__order_mark_all(order, ctx);
	while (event && clock_now_ns() < end_ns && order->drv.cuEventQuery(event) != CUDA_SUCCESS) {
	}
}

void glake__order_take_done(struct glake_order *order, struct glake__order_line *line,
                            struct glake__order_done *done)
{
	while (line->oldest && done->n < GLAKE__MAX_DONE &&
	       glake__order_is_done(order, line->oldest->mark)) {
		done->allocations[done->n++] = glake__order_take_allocation(order, line,
		                                                            line->oldest);
	}
}

void glake__order_release_done(struct glake_order *order, const struct glake__order_done *done)
{
	for (size_t i = 0; i < done->n; i++) {
		order->options.release(order->options.user, done->allocations[i]);
	}
}

static void take_done_of(struct glake_order *order, CUcontext ctx, struct glake__order_done *done)
{
	done->n = 0;
	pthread_mutex_lock(&order->lock);
	for (struct glake__order_line *line = order->lines; line; line = line->next) {
		if (line->of->ctx == ctx && !line->of->is_hidden) {
			glake__order_take_done(order, line, done);
		}
	}
	pthread_mutex_unlock(&order->lock);
}

static bool collect_done(struct glake_order *order, CUcontext ctx)
{
	struct glake__order_done done;
	bool is_any = false;
	do {
		take_done_of(order, ctx, &done);
		glake__order_release_done(order, &done);
		is_any |= done.n > 0;
	} while (done.n == GLAKE__MAX_DONE);
	return is_any;
}

static CUevent oldest_on(const struct glake__order_line *line, int ordinal)
{
	const struct glake__parked *parked = line->oldest;
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
	glake__order_mark_all(order, ctx);
	pthread_mutex_lock(&order->lock);
	for (const struct glake__order_line *line = order->lines; !event && line;
	     line = line->next) {
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
	CUstreamCaptureMode mode = glake__order_relax(order);
	glake__order_mark_all(order, context);
	bool is_any = collect_done(order, context);
	/* Enough rounds if no thread parks anything meanwhile. */
	unsigned n_left = waits ? order->n_parked : 0;
	while (n_left-- > 0 && wait_for_one(order, context, ANY_ORDINAL)) {
		is_any |= collect_done(order, context);
	}
	glake__order_restore(order, mode);
	return is_any;
}

/* With the lock of contexts held. One that was not collected from in this round, or NULL. */
static struct glake__order_context *next_context(struct glake_order *order, uint64_t round)
{
	pthread_mutex_lock(&order->lock);
	struct glake__order_context *context = order->contexts;
	while (context && context->round >= round) {
		context = context->next;
	}
	pthread_mutex_unlock(&order->lock);
	return context;
}

/* With the lock of contexts held. Waits *n_left times at most, and for idle GPUs until @idle_ns. */
static void take_done_in(struct glake_order *order, CUcontext ctx, int ordinal, uint64_t idle_ns,
                         unsigned *n_left, struct glake__order_done *done)
{
	CUcontext popped;
	if (order->push(ctx) != CUDA_SUCCESS) {
		return;
	}
	mark_all_until(order, ctx, idle_ns);
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
	struct glake__order_context *context;
	struct glake__order_done done;
	bool is_any = false;
	if (order->n_parked == 0) {
		return false;
	}
	pthread_mutex_lock(&order->lock);
	uint64_t round = ++order->n_rounds;
	pthread_mutex_unlock(&order->lock);
	CUstreamCaptureMode mode = glake__order_relax(order);
	unsigned n_left = order->n_parked;
	uint64_t idle_ns = clock_now_ns() + IDLE_NS;
	do {
		done.n = 0;
		if (!lock_contexts(order, ordinal >= 0)) {
			break;
		}
		context = next_context(order, round);
		if (context) {
			take_done_in(order, context->ctx, ordinal, idle_ns, &n_left, &done);
			if (done.n == 0) {
				context->round = round;
			}
		}
		pthread_mutex_unlock(&order->context_lock);
		glake__order_release_done(order, &done);
		is_any |= done.n > 0;
	} while (context);
	glake__order_restore(order, mode);
	return is_any;
}
