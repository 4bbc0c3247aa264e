/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/order.h"

#include <pthread.h>

#include "proto/clock.h"
#include "shim/context.h"

/* The pause between two tries to hold the contexts. */
#define HOLD_PAUSE_NS 20000

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic(struct glake_order *) order; /* NULL: there is none yet, or the driver is too old */

static _Atomic(order_idle_fn *) asker;
static _Atomic(order_keep_fn *) keeper;

void order_set_calls(order_idle_fn *ask, order_keep_fn *keep)
{
	asker = ask;
	keeper = keep;
}

static void release(void *user, void *released)
{
	struct glake__allocation *allocation = released;
	order_keep_fn *keep = keeper;
	(void)user;
	if (allocation->is_parked || !keep || !keep(allocation)) {
		heap_release(allocation);
	}
}

static void marking(void *user, void *allocation)
{
	(void)user;
	glake__heap_marking(allocation);
}

static int is_idle(void *user, void *stream)
{
	order_idle_fn *ask = asker;
	(void)user;
	return ask && ask(stream);
}

static void make_order(void)
{
	const struct glake_order_options options = {
		.size = sizeof(options),
		.libcuda = shim_libcuda(),
		.release = release,
		.is_idle = is_idle,
		.marking = marking,
	};
	struct glake_order *made;
	if (glake_order_new(&options, &made) == 0) {
		order = made;
	}
}

static struct glake_order *get_order(void)
{
	pthread_once(&once, make_order);
	return order;
}

bool order_find_stream(CUstream handle, unsigned flags, struct glake_stream *stream_out)
{
	return get_order() && glake_order_stream(order, handle, flags, stream_out) == 0;
}

static int alloc(const struct heap_target *target, uint64_t n_bytes, struct glake__wait *wait,
                 CUdeviceptr *address_out)
{
	order_collect(target->ctx);
	if (order) {
		wait->parked = glake__order_watch(order);
	}
	int r = heap_alloc(target, n_bytes, wait, address_out);
	while (r == CONNECTION_E_REFUSED && order &&
	       glake__order_await(order, target->ctx, 0, &wait->parked)) {
		wait->is_room_made = false;
		r = heap_alloc(target, n_bytes, wait, address_out);
	}
	return r;
}

int order_alloc(const struct heap_target *target, uint64_t n_bytes, CUdeviceptr *address_out)
{
	struct glake__wait wait = {0};
	return alloc(target, n_bytes, &wait, address_out);
}

struct glake__wait order_wait_on(CUstream handle, unsigned flags)
{
	return (struct glake__wait){.order = get_order(), .stream = handle, .flags = flags};
}

int order_alloc_async(const struct glake_stream *stream, struct cuda_pool *pool, uint64_t n_bytes,
                      struct glake__wait *wait, CUdeviceptr *address_out)
{
	const struct heap_target target = {
		.device = stream->ordinal,
		.ctx = stream->context,
		.pool = pool,
		.generation = context_generation(),
		.stream = shim_policy()->stitches ? stream->id + 1 : 0,
	};
	const struct glake__tag tag = {.stream = target.stream};
	if (glake__pool_serves(&tag, n_bytes) && heap_alloc_warm(&target, n_bytes, address_out)) {
		return 0;
	}
	/* Memory of a pool is never parked whole, so this finds only other memory. */
	struct glake__allocation *parked = glake_order_take(order, stream,
	                                                    glake__heap_round(n_bytes));
	if (parked) {
		*address_out = heap_reuse(parked, &target, n_bytes);
		return 0;
	}
	return alloc(&target, n_bytes, wait, address_out);
}

bool order_free(CUstream handle, unsigned flags, const struct glake_stream *stream,
                struct glake__allocation *allocation)
{
	struct glake__parking parking;
	if (!heap_park(allocation, stream, &parking)) {
		return false;
	}
	if (glake_order_park(order, handle, flags, stream, allocation, allocation->ordinal,
	                     parking.n_reusable) < 0) {
		heap_unpark(allocation, &parking);
		return false;
	}
	heap_parked(&parking);
	return true;
}

bool order_free_whole(CUstream handle, unsigned flags, const struct glake_stream *stream,
                      struct glake__allocation *allocation)
{
	return glake_order_park(order, handle, flags, stream, allocation, allocation->ordinal, 0) ==
	       0;
}

static bool is_default(CUstream handle)
{
	return !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

void order_stream_ends(CUstream handle, bool is_captured)
{
	struct glake_stream stream;
	if (!order || is_default(handle)) {
		return;
	}
	if (is_captured) {
		glake__order_handle_ends(order, handle);
	} else if (glake_order_stream(order, handle, 0, &stream) == 0) {
		glake_order_stream_ends(order, &stream);
	}
}

void order_stream_waits(CUstream handle, unsigned flags)
{
	struct glake_stream stream;
	if (order && glake_order_stream(order, handle, flags, &stream) == 0) {
		glake__order_stream_waits(order, &stream);
	}
}

void order_collect(CUcontext ctx)
{
	if (get_order()) {
		glake_order_collect(order, ctx, false);
	}
}

void order_collect_all(void)
{
	if (get_order()) {
		glake_order_collect_all(order, -1);
	}
}

void order_settle(void)
{
	if (get_order()) {
		glake__order_settle(order);
	}
}

void order_hold_contexts(void)
{
	if (get_order()) {
		glake__order_hold_contexts(order);
	}
}

bool order_try_hold_contexts(uint64_t deadline_ns)
{
	if (!get_order()) {
		return false;
	}
	while (!glake__order_try_hold_contexts(order)) {
		if (clock_now_ns() >= deadline_ns) {
			return false;
		}
		clock_sleep_ns(HOLD_PAUSE_NS);
	}
	return true;
}

void order_let_contexts(void)
{
	if (order) {
		glake__order_let_contexts(order);
	}
}

void order_hide_ctx(CUcontext ctx)
{
	if (order) {
		glake__order_hide_context(order, ctx);
	}
}

void order_show_ctx(CUcontext ctx)
{
	if (order) {
		glake__order_show_context(order, ctx);
	}
}

void order_drop_ctx(void)
{
	if (order) {
		glake__order_drop_context(order);
	}
}
