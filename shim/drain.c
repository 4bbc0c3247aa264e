/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can go wrong, and why it does not. Work that was submitted before a change, and is missed, would fault on the changed
 * range. So each live context gets an event behind all its work, recorded while the gate is closed and nobody submits. The
 * handle of a context that ends would be stale: the contexts are held from before the gate closes until the work is done. Work
 * may wait for a thread at the gate and so never end: all waits share one deadline; after it the gate opens, and nothing has
 * changed.
 * Recording in a context with a captured stream would end the capture. So nothing is marked while a stream is captured; the
 * marks from before the first capture (`calm`) serve as long as all that was submitted since went to captured streams. See
 * docs/decisions/024.
 */
#include "shim/drain.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "shim/capture.h"
#include "shim/context.h"
#include "shim/gate.h"
#include "shim/order.h"
#include "shim/sleep.h"

/* The thread polls this long without sleeping: most work is done by then. */
#define SPIN_NS 50000u
#define PAUSE_NS 20000

/* The beginning of a capture waits at most this long for threads that are inside. */
#define MARK_NS 20000000u

/* An event behind all work that a context had when the gate closed. */
struct mark {
	CUcontext ctx;
	CUevent event;     /* owned */
	struct mark *next; /* link: drain.marks */
};

struct drain {
	struct mark *marks; /* owned list: marks not reached yet */
	int error;
};

/* A context that is gone has no work. */
static bool has_ended(CUresult result)
{
	return result == CUDA_ERROR_INVALID_CONTEXT || cudrv_is_lost(result);
}

/* Map to -EAGAIN what may succeed later. */
static int error_of(CUresult result)
{
	return result == CUDA_SUCCESS || has_ended(result)       ? 0
	       : result == CUDA_ERROR_OUT_OF_MEMORY              ? -EAGAIN
	       : result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? -EAGAIN
	                                                         : GLAKE_E_CUDA;
}

/* ---- marks ------------------------------------------------------------------------------------ */

/* Called with the mark's context current. */
static CUresult record(struct mark *mark)
{
	CUresult result = real(cuEventCreate)(&mark->event, CU_EVENT_DISABLE_TIMING);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	result = real(cuCtxRecordEvent)(mark->ctx, mark->event);
	if (result != CUDA_SUCCESS) {
		real(cuEventDestroy_v2)(mark->event);
	}
	return result;
}

static CUresult query(struct mark *mark)
{
	CUresult result = real(cuEventQuery)(mark->event);
	if (result != CUDA_ERROR_NOT_READY) {
		real(cuEventDestroy_v2)(mark->event);
	}
	return result;
}

static CUresult drop(struct mark *mark)
{
	return real(cuEventDestroy_v2)(mark->event);
}

static CUresult inside(CUresult (*act)(struct mark *mark), struct mark *mark)
{
	CUcontext popped;
	CUresult result = real(cuCtxPushCurrent_v2)(mark->ctx);
	if (result == CUDA_SUCCESS) {
		result = act(mark);
		real(cuCtxPopCurrent_v2)(&popped);
	}
	return result;
}

static void add_mark(void *user, CUcontext ctx, CUdevice device)
{
	struct drain *drain = user;
	struct mark *mark = drain->error ? NULL : malloc(sizeof(*mark));
	(void)device;
	if (!mark) {
		drain->error = drain->error ? drain->error : -EAGAIN;
		return;
	}
	*mark = (struct mark){.ctx = ctx, .next = drain->marks};
	CUresult result = inside(record, mark);
	if (result == CUDA_SUCCESS) {
		drain->marks = mark;
	} else {
		drain->error = error_of(result);
		free(mark);
	}
}

/* Remove marks that are reached. */
static void look_at_marks(struct drain *drain)
{
	struct mark **link = &drain->marks;
	while (*link) {
		struct mark *mark = *link;
		CUresult result = inside(query, mark);
		if (result == CUDA_ERROR_NOT_READY) {
			link = &mark->next;
			continue;
		}
		drain->error = drain->error ? drain->error : error_of(result);
		*link = mark->next;
		free(mark);
	}
}

static void drop_marks(struct drain *drain)
{
	while (drain->marks) {
		struct mark *mark = drain->marks;
		drain->marks = mark->next;
		inside(drop, mark);
		free(mark);
	}
}

/* ---- the gate --------------------------------------------------------------------------------- */

/* Called with the gate closed and the contexts held. */
static void mark_work(struct drain *drain)
{
	*drain = (struct drain){.error = 0};
	if (!context_each(add_mark, drain)) {
		drain->error = -EAGAIN;
	}
	look_at_marks(drain);
}

/* Called with the contexts held. */
static int wait_for_marks(struct drain *drain, uint64_t deadline_ns)
{
	const uint64_t spin_end_ns = clock_now_ns() + SPIN_NS;
	while (drain->marks && drain->error == 0) {
		uint64_t now_ns = clock_now_ns();
		if (now_ns >= deadline_ns) {
			drain->error = -EAGAIN;
		} else if (now_ns >= spin_end_ns) {
			clock_sleep_ns(PAUSE_NS);
		}
		look_at_marks(drain);
	}
	drop_marks(drain);
	return drain->error;
}

static int close_until(uint64_t deadline_ns)
{
	uint64_t now_ns = clock_now_ns();
	return gate_close(now_ns < deadline_ns ? deadline_ns - now_ns : 0);
}

/* ---- captures --------------------------------------------------------------------------------- */

atomic_bool drain_is_calm;

/* Marks behind all work that was submitted before the first capture began. */
static struct drain calm;
/* Held across driver calls: marks are asked, and dropped, by one thread at a time. */
static pthread_mutex_t calm_lock = PTHREAD_MUTEX_INITIALIZER;

/* Called with the contexts held. */
static void look_at_calm(struct drain *drain)
{
	pthread_mutex_lock(&calm_lock);
	look_at_marks(&calm);
	*drain = (struct drain){.error = calm.error || calm.marks ? -EAGAIN : 0};
	pthread_mutex_unlock(&calm_lock);
}

static int wait_for_calm(uint64_t deadline_ns)
{
	CUstreamCaptureMode mode = capture_relax();
	struct drain drain;
	look_at_calm(&drain);
	while (drain.error && drain_is_calm && clock_now_ns() < deadline_ns) {
		clock_sleep_ns(PAUSE_NS);
		look_at_calm(&drain);
	}
	capture_restore(mode);
	return drain_is_calm ? drain.error : -EAGAIN;
}

/* Close the gate. While a stream is captured, that succeeds only if the calm marks can tell whether work is under way. */
static int close_now(uint64_t deadline_ns)
{
	int r = close_until(deadline_ns);
	if (r == -EAGAIN) {
		/* There is no membarrier; the second try does without it. */
		r = close_until(deadline_ns);
	}
	if (r < 0) {
		return r == -ETIMEDOUT ? -EAGAIN : r;
	}
	/* A capture may have begun before the gate closed. Now none can begin. */
	if (capture_is_any() && !drain_is_calm) {
		gate_open();
		return -EAGAIN;
	}
	return 0;
}

static int close_and_wait(uint64_t deadline_ns)
{
	struct drain drain;
	int r = close_now(deadline_ns);
	if (r < 0) {
		return r;
	}
	if (capture_is_any()) {
		r = wait_for_calm(deadline_ns);
	} else {
		mark_work(&drain);
		r = wait_for_marks(&drain, deadline_ns);
	}
	if (r < 0) {
		gate_open();
	}
	return r;
}

/* Close the gate only to mark the work. Captures that begin after that are not disturbed, because queries are relaxed. */
static int wait_and_open(uint64_t deadline_ns)
{
	struct drain drain;
	int r = close_now(deadline_ns);
	if (r < 0) {
		return r;
	}
	if (capture_is_any()) {
		gate_open();
		return wait_for_calm(deadline_ns);
	}
	mark_work(&drain);
	gate_open();
	CUstreamCaptureMode mode = capture_relax();
	r = wait_for_marks(&drain, deadline_ns);
	capture_restore(mode);
	return r;
}

/* Another thread may hold the contexts for long, so they are taken while the gate is open. */
static int hold_contexts(uint64_t deadline_ns)
{
	if (shim_is_forked() || !real(cuCtxRecordEvent)) {
		return -ENOTSUP;
	}
	bool is_captured = capture_is_any() && !drain_is_calm;
	return is_captured || !order_try_hold_contexts(deadline_ns) ? -EAGAIN : 0;
}

static int with_contexts(int (*act)(uint64_t deadline_ns), uint64_t patience_ns)
{
	const uint64_t deadline_ns = clock_now_ns() + patience_ns;
	int r = hold_contexts(deadline_ns);
	if (r == 0) {
		r = act(deadline_ns);
		order_let_contexts();
	}
	return r;
}

static int wait_closed(uint64_t deadline_ns)
{
	struct drain drain;
	mark_work(&drain);
	return wait_for_marks(&drain, deadline_ns);
}

int drain_await(uint64_t patience_ns)
{
	return with_contexts(wait_closed, patience_ns);
}

/*
 * The contexts stay held until the gate opens: the closer's own work needs one, and another thread that took them could wait for
 * the gate, or for work that a thread at the gate has to go on with.
 */
static int close_gate(void *user, uint64_t patience_ns)
{
	(void)user;
	const uint64_t deadline_ns = clock_now_ns() + patience_ns;
	int r = hold_contexts(deadline_ns);
	if (r < 0) {
		return r;
	}
	r = close_and_wait(deadline_ns);
	if (r < 0) {
		order_let_contexts();
	}
	return r;
}

static void open_gate(void *user)
{
	(void)user;
	gate_open();
	order_let_contexts();
}

static int wait_at_gate(void *user, uint64_t patience_ns)
{
	(void)user;
	return with_contexts(wait_and_open, patience_ns);
}

static void leave_work(void *user)
{
	(void)user;
	drain_is_calm = false;
}

/* ---- contexts --------------------------------------------------------------------------------- */

static int hold_context(void *user, int device, uint64_t patience_ns, void **context_out)
{
	(void)user;
	if (!order_try_hold_contexts(clock_now_ns() + patience_ns)) {
		return -EAGAIN;
	}
	*context_out = context_of(device);
	if (!*context_out && context_generation() > 0) {
		order_let_contexts();
		return -ENOENT;
	}
	return 0;
}

static void let_context(void *user)
{
	(void)user;
	order_let_contexts();
}

/* ---- sleep ------------------------------------------------------------------------------------ */

static int fall_asleep(void *user)
{
	(void)user;
	return sleep_enter();
}

static void wake_up(void *user)
{
	(void)user;
	sleep_leave();
}

static void want_awake(void *user)
{
	(void)user;
	sleep_is_wanted();
}

static bool is_awake_wanted(void *user)
{
	(void)user;
	return sleep_is_awaited();
}

const struct glake__gate drain_gate = {
	.close = close_gate,
	.open = open_gate,
	.wait = wait_at_gate,
	.left = leave_work,
	.hold_context = hold_context,
	.let_context = let_context,
	.sleep = fall_asleep,
	.wake = wake_up,
	.wanted = want_awake,
	.is_wanted = is_awake_wanted,
};

/* ---- captures begin --------------------------------------------------------------------------- */

/* Mark all work. drain_is_calm is set before the gate opens, so that drain_look_at() sees all later submissions. */
static int mark_calm(uint64_t deadline_ns)
{
	int r = close_now(deadline_ns);
	if (r < 0) {
		return r;
	}
	pthread_mutex_lock(&calm_lock);
	if (!capture_is_any()) {
		drop_marks(&calm);
		mark_work(&calm);
		drain_is_calm = calm.error == 0;
	}
	pthread_mutex_unlock(&calm_lock);
	gate_open();
	return 0;
}

void drain_before_capture(void)
{
	if (glake__sealed.n > 0 && !capture_is_any()) {
		cleanup_cancel int cancel = cancel_disable();
		with_contexts(mark_calm, MARK_NS);
	}
}

void drain_look_at(CUstream stream, bool is_per_thread)
{
	if (!capture_may_have(stream, is_per_thread ? GLAKE_PER_THREAD : 0)) {
		drain_is_calm = false;
	}
}

void drain_ctx_ends(CUcontext ctx)
{
	pthread_mutex_lock(&calm_lock);
	for (struct mark **link = &calm.marks; *link;) {
		struct mark *mark = *link;
		if (mark->ctx == ctx) {
			*link = mark->next;
			free(mark);
			drain_is_calm = false;
		} else {
			link = &mark->next;
		}
	}
	pthread_mutex_unlock(&calm_lock);
}
