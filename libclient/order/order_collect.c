/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context can end while its events are queried, and a release may take long. So the contexts are held (context_lock) while
 * one is entered that is not the caller's, and the lock is let go before anything is released. Where they cannot be held at
 * once, that collection takes nothing.
 */
#include "libclient/order/order_parts.h"

#include <limits.h>

/* Idle GPUs get to their marks that soon. */
#define IDLE_NS 1000000u
/* A thread that waits gives up when nothing has ended for this long: what is left may need that very thread. */
#define PATIENCE_NS 10000000000u
/* When something has ended, more often follows: a first wait goes on for this long. */
#define GRACE_NS 5000000u
/* The collector sleeps longer when nothing has ended for this long. */
#define SHORT_NS 2000000u
#define LONG_PAUSE_NS 500000u
/* Another thread that has taken what ended releases it within this. */
#define RELEASING_NS 100000000u
/* A thread that trims waits for it this long, on a machine where threads wait for a processor. */
#define SETTLE_NS 1000000000u

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
		order->n_releasing++;
		done->allocations[done->n++] = glake__order_take_allocation(order, line,
		                                                            line->oldest);
	}
}

void glake__order_release_done(struct glake_order *order, const struct glake__order_done *done)
{
	for (size_t i = 0; i < done->n; i++) {
		order->options.release(order->options.user, done->allocations[i]);
		order->n_released++;
		order->n_releasing--;
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

/* Called with the lock of contexts held. One that was not collected from in this round, or NULL. */
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

/* Called with the lock of contexts held. For idle GPUs it waits until @idle_ns. */
static void take_done_in(struct glake_order *order, CUcontext ctx, uint64_t idle_ns,
                         struct glake__order_done *done)
{
	CUcontext popped;
	if (order->push(ctx) != CUDA_SUCCESS) {
		return;
	}
	mark_all_until(order, ctx, idle_ns);
	take_done_of(order, ctx, done);
	order->pop(&popped);
}

/*
 * The lock is let go for each release: it may take long, and contexts may end meanwhile. While one is ending, or
 * another thread holds them, nothing is collected: then *is_cut is true.
 */
static bool collect_contexts(struct glake_order *order, uint64_t idle_ns, bool *is_cut)
{
	struct glake__order_context *context;
	struct glake__order_done done;
	bool is_any = false;
	pthread_mutex_lock(&order->lock);
	uint64_t round = ++order->n_rounds;
	pthread_mutex_unlock(&order->lock);
	do {
		done.n = 0;
		*is_cut = !glake__order_try_hold_contexts(order);
		if (*is_cut) {
			break;
		}
		context = next_context(order, round);
		if (context) {
			take_done_in(order, context->ctx, idle_ns, &done);
			if (done.n == 0) {
				context->round = round;
			}
		}
		pthread_mutex_unlock(&order->context_lock);
		glake__order_release_done(order, &done);
		is_any |= done.n > 0;
	} while (context);
	return is_any;
}

/* ---- waiting ------------------------------------------------------------------------------------ */

/* Whose end is waited for: what is parked in a context or, if that is NULL, of a device. */
struct scope {
	CUcontext ctx;
	int ordinal;
};

static bool is_in(const struct scope *scope, const struct glake__order_line *line,
                  const struct glake__parked *parked)
{
	return scope->ctx ? line->of->ctx == scope->ctx : parked->ordinal == scope->ordinal;
}

/* Will it ever be known to be done? While a context may be ending, what is parked there is hidden, not lost. */
static bool may_end(const struct glake__order_line *line, const struct glake__parked *parked)
{
	return parked->mark ? !parked->mark->is_lost : !line->is_ended && !line->is_refused;
}

/* Counts the frees with a number up to @upto that may end yet. */
static unsigned count_left(struct glake_order *order, const struct scope *scope, uint64_t upto)
{
	unsigned n = 0;
	pthread_mutex_lock(&order->lock);
	for (const struct glake__order_line *line = order->lines; line; line = line->next) {
		for (const struct glake__parked *at = line->oldest; at; at = at->next) {
			n += at->number <= upto && is_in(scope, line, at) && may_end(line, at);
		}
	}
	pthread_mutex_unlock(&order->lock);
	return n;
}

static bool collect_once(struct glake_order *order, const struct scope *scope)
{
	bool is_cut;
	if (!scope->ctx) {
		return collect_contexts(order, 0, &is_cut);
	}
	glake__order_mark_all(order, scope->ctx);
	return collect_done(order, scope->ctx);
}

static void begin_wait(struct glake_order *order, struct glake__order_wait *wait)
{
	if (wait->grace_ns == 0) {
		pthread_mutex_lock(&order->lock);
		wait->upto = order->n_numbers;
		pthread_mutex_unlock(&order->lock);
		wait->n_left = UINT_MAX;
		wait->grace_ns = GRACE_NS;
	} else if (wait->grace_ns < PATIENCE_NS) {
		wait->grace_ns *= 2;
	}
}

/* By any thread, since it was asked last. */
static bool has_released(struct glake_order *order, struct glake__order_wait *wait)
{
	uint64_t n_before = wait->n_released;
	wait->n_released = order->n_released;
	return wait->n_released != n_before;
}

struct glake__order_wait glake__order_watch(const struct glake_order *order)
{
	return (struct glake__order_wait){.n_released = order->n_released};
}

/* Other threads park and release all the time: only what was there at first counts. */
static void look(struct glake_order *order, const struct scope *scope,
                 struct glake__order_wait *wait, uint64_t now_ns)
{
	unsigned n_left = count_left(order, scope, wait->upto);
	if (n_left < wait->n_left) {
		wait->ended_ns = now_ns;
	}
	wait->n_left = n_left;
	uint64_t still_ns = now_ns - wait->ended_ns;
	wait->is_over = still_ns >= PATIENCE_NS ||
	                (n_left == 0 && (order->n_releasing == 0 || still_ns >= RELEASING_NS));
}

/* No lock is held while it sleeps, so contexts may end meanwhile. */
static bool await(struct glake_order *order, const struct scope *scope,
                  struct glake__order_wait *wait)
{
	const uint64_t begin_ns = clock_now_ns();
	uint64_t now_ns = begin_ns;
	bool is_any = false;
	begin_wait(order, wait);
	for (;;) {
		collect_once(order, scope);
		look(order, scope, wait, now_ns);
		is_any |= has_released(order, wait);
		if (wait->is_over || (is_any && now_ns - begin_ns >= wait->grace_ns)) {
			return is_any;
		}
		glake__order_pause(now_ns - wait->ended_ns < SHORT_NS ? GLAKE__PAUSE_NS
		                                                      : LONG_PAUSE_NS);
		now_ns = clock_now_ns();
	}
}

bool glake__order_await(struct glake_order *order, void *ctx, int ordinal,
                        struct glake__order_wait *wait)
{
	const struct scope scope = {ctx, ordinal};
	if (wait->is_over) {
		return false;
	}
	if (order->n_parked == 0 && order->n_releasing == 0) {
		wait->is_over = true;
		return has_released(order, wait);
	}
	CUstreamCaptureMode mode = glake__order_relax(order);
	bool is_any = await(order, &scope, wait);
	glake__order_restore(order, mode);
	return is_any;
}

static bool await_all(struct glake_order *order, CUcontext ctx, int ordinal)
{
	struct glake__order_wait wait = glake__order_watch(order);
	bool is_any = false;
	while (glake__order_await(order, ctx, ordinal, &wait)) {
		is_any = true;
	}
	return is_any;
}

/* ---- the public calls --------------------------------------------------------------------------- */

int glake_order_collect(struct glake_order *order, void *context, int waits)
{
	const struct scope scope = {.ctx = context};
	if (waits) {
		return await_all(order, context, 0);
	}
	if (order->n_parked == 0) {
		return false;
	}
	CUstreamCaptureMode mode = glake__order_relax(order);
	bool is_any = collect_once(order, &scope);
	glake__order_restore(order, mode);
	return is_any;
}

int glake_order_collect_all(struct glake_order *order, int ordinal)
{
	if (ordinal >= 0) {
		return await_all(order, NULL, ordinal);
	}
	if (order->n_parked == 0) {
		return false;
	}
	CUstreamCaptureMode mode = glake__order_relax(order);
	bool is_cut;
	bool is_any = collect_contexts(order, clock_now_ns() + IDLE_NS, &is_cut);
	glake__order_restore(order, mode);
	return is_any;
}

void glake__order_settle(struct glake_order *order)
{
	const uint64_t end_ns = clock_now_ns() + SETTLE_NS;
	bool is_cut = false;
	CUstreamCaptureMode mode = glake__order_relax(order);
	if (order->n_parked > 0) {
		collect_contexts(order, clock_now_ns() + IDLE_NS, &is_cut);
	}
	while (is_cut && clock_now_ns() < end_ns) {
		glake__order_pause(GLAKE__PAUSE_NS);
		collect_contexts(order, 0, &is_cut);
	}
	/* Other threads go on taking and releasing: what they have now counts. In this order, none is missed that is released between. */
	uint64_t n_due = order->n_releasing;
	n_due += order->n_released;
	while (order->n_releasing > 0 && order->n_released < n_due && clock_now_ns() < end_ns) {
		glake__order_pause(GLAKE__PAUSE_NS);
	}
	glake__order_restore(order, mode);
}
