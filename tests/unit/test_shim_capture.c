/* SPDX-License-Identifier: Apache-2.0 */
/* The shim's view of captures: which streams, of which threads and contexts, and until when. */
#include <sys/wait.h>

#include "shim/capture.h"
#include "shim/context.h"
#include "shim/order.h"
#include "tests/check_glake.h"
#include "tests/shim/green.h"
#include "tests/unit/drained.h"

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode);

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **deps, size_t *n_deps);

static void begin_capture(CUstream stream)
{
	ck_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

static CUresult try_end(CUstream stream)
{
	CUgraph graph = NULL;
	CUresult result = cuStreamEndCapture(stream, &graph);
	if (graph) {
		ck_ok(cuGraphDestroy(graph));
	}
	return result;
}

/* ---- from the beginning to the end ------------------------------------------------------------- */

START_TEST(a_capture_is_one_from_its_beginning_to_its_end)
{
	begin();
	CUstream stream = new_stream();
	CUstream other = new_stream();
	ck_assert(!capture_is_any() && !capture_may_have(stream, 0));
	begin_capture(stream);
	ck_assert(capture_is_any());
	ck_assert(capture_may_have(stream, 0) && !capture_may_have(other, 0));
	/* The capture goes on, and is one. */
	ck_assert_int_ne(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED),
	                 CUDA_SUCCESS);
	ck_assert(capture_is_any());
	ck_ok(try_end(stream));
	ck_assert(!capture_is_any());
	/* The legacy stream has none. */
	ck_assert_int_ne(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
	ck_assert(!capture_is_any());
}
END_TEST

static void *end_elsewhere(void *stream)
{
	CUcontext ctx = NULL;
	ck_ok(cuDevicePrimaryCtxRetain(&ctx, 0));
	ck_ok(cuCtxSetCurrent(ctx));
	ck_assert_int_eq((int)try_end(stream), (int)CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	return NULL;
}

START_TEST(only_what_ends_it_ends_it)
{
	pthread_t thread;
	begin();
	CUstream stream = new_stream();
	ck_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	pthread_create(&thread, NULL, end_elsewhere, stream);
	pthread_join(thread, NULL);
	ck_assert(capture_is_any());
	/* Now it is invalid, and its end fails. */
	ck_assert_int_ne(cuStreamSynchronize(stream), CUDA_SUCCESS);
	ck_assert(capture_is_any());
	ck_assert_int_ne(try_end(stream), CUDA_SUCCESS);
	ck_assert(!capture_is_any());
}
END_TEST

static CUresult say_nothing(CUstream stream, CUstreamCaptureStatus *status)
{
	return CUDA_ERROR_UNKNOWN;
}

/* A wrong "no" would end a capture. */
START_TEST(what_the_driver_does_not_say_may_be)
{
	begin();
	CUstream stream = new_stream();
	CUstream other = new_stream();
	begin_capture(stream);
	ck_assert(!capture_may_have(other, 0));
	shim_real.real_cuStreamIsCapturing = say_nothing;
	ck_assert(capture_may_have(other, 0));
	shim_real.real_cuStreamIsCapturing = NULL;
	ck_assert(capture_may_have(other, 0));
}
END_TEST

START_TEST(a_child_has_none)
{
	int status;
	begin();
	CUstream stream = new_stream();
	begin_capture(stream);
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		_exit(capture_may_have(stream, 0) ? 1 : 0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	ck_assert(capture_may_have(stream, 0));
}
END_TEST

/* ---- default streams of threads ---------------------------------------------------------------- */

static atomic_int stage;

static void go_on(int to)
{
	stage = to;
}

static void await(int wanted)
{
	while (stage < wanted) {
		usleep(100);
	}
}

static void *capture_there(void *ctx)
{
	ck_ok(cuCtxSetCurrent(ctx));
	begin_capture(CU_STREAM_PER_THREAD);
	go_on(1);
	await(2);
	ck_ok(try_end(CU_STREAM_PER_THREAD));
	return NULL;
}

START_TEST(each_thread_has_its_own)
{
	pthread_t thread;
	CUcontext ctx = begin();
	begin_capture(CU_STREAM_PER_THREAD);
	pthread_create(&thread, NULL, capture_there, ctx);
	await(1);
	ck_ok(try_end(CU_STREAM_PER_THREAD));
	ck_assert(capture_is_any());
	go_on(2);
	pthread_join(thread, NULL);
	ck_assert(!capture_is_any());
}
END_TEST

START_TEST(and_so_has_each_context)
{
	CUcontext created = NULL;
	CUcontext ctx = begin();
	begin_capture(CU_STREAM_PER_THREAD);
	ck_ok(cuCtxCreate_v2(&created, 0, 0));
	begin_capture(CU_STREAM_PER_THREAD);
	ck_ok(try_end(CU_STREAM_PER_THREAD));
	ck_assert(capture_is_any());
	ck_ok(cuCtxSetCurrent(ctx));
	ck_ok(try_end(CU_STREAM_PER_THREAD));
	ck_assert(!capture_is_any());
}
END_TEST

START_TEST(it_has_two_names)
{
	begin();
	ck_ok(cuStreamBeginCapture_v2_ptsz(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
	ck_assert(capture_is_any());
	ck_ok(try_end(CU_STREAM_PER_THREAD));
	ck_assert(!capture_is_any());
}
END_TEST

START_TEST(the_legacy_stream_is_idle_or_not)
{
	begin();
	CUstream stream = new_stream();
	ck_assert(capture_ask_idle(CU_STREAM_LEGACY));
	begin_capture(stream);
	ck_assert(!capture_ask_idle(CU_STREAM_LEGACY));
	ck_ok(try_end(stream));
	ck_ok(launch_spin(kernel("spin"), NULL, FLAG, DONE));
	ck_assert(!capture_ask_idle(CU_STREAM_LEGACY));
	words[FLAG] = 1;
	ck_ok(cuStreamSynchronize(NULL));
	ck_assert(capture_ask_idle(CU_STREAM_LEGACY));
}
END_TEST

/* ---- contexts ---------------------------------------------------------------------------------- */

START_TEST(it_is_in_one_context)
{
	CUcontext created = NULL;
	CUcontext ctx = begin();
	CUstream here = new_stream();
	CUstream also_here = new_stream();
	ck_ok(cuCtxCreate_v2(&created, 0, 0));
	CUstream there = new_stream();
	begin_capture(here);
	ck_assert(capture_may_be_in(here, 0, ctx));
	ck_assert(!capture_may_be_in(here, 0, created));
	/* The other stream may have been brought along. */
	ck_assert(capture_may_be_in(also_here, 0, ctx));
	ck_assert(!capture_may_be_in(there, 0, created));
	begin_capture(there);
	ck_assert(!capture_may_be_in(here, 0, created));
	ck_assert(!capture_may_be_in(there, 0, ctx));
	ck_ok(try_end(there));
	ck_ok(try_end(here));
}
END_TEST

/* Only captures from before the generation that is given are dropped: a later context may have the handle. */
START_TEST(it_ends_with_its_context)
{
	CUcontext ctx = begin();
	CUstream stream = new_stream();
	context_next_generation();
	begin_capture(stream);
	capture_drop_ctx(ctx, context_generation());
	ck_assert(capture_is_any());
	capture_drop_ctx((CUcontext)&ctx, context_generation() + 1);
	ck_assert(capture_is_any());
	capture_drop_ctx(ctx, context_generation() + 1);
	ck_assert(!capture_is_any());
}
END_TEST

START_TEST_WITH(a_green_one_ends_by_itself_and_with_the_primary_one, .n = 2)
{
	CUcontext ctx = begin();
	if (!green_split()) {
		return;
	}
	struct green green = green_new(0);
	begin_capture(green.stream);
	ck_assert(capture_may_be_in(green.stream, 0, ctx));
	capture_drop_ctx(_i ? ctx : green.ctx, context_generation() + 1);
	ck_assert(!capture_is_any());
}
END_TEST

/* ---- graphs of the program --------------------------------------------------------------------- */

START_TEST(a_capture_in_a_graph_is_known_by_its_id)
{
	CUstreamCaptureStatus status;
	cuuint64_t id = 0;
	CUgraph graph;
	CUgraph ended;
	begin();
	CUstream stream = new_stream();
	ck_ok(cuGraphCreate(&graph, 0));
	for (int i = 0; i < 2; i++) {
		ck_ok(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0,
		                                  CU_STREAM_CAPTURE_MODE_RELAXED));
		ck_ok(cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL));
		ck_assert(capture_is_in_graph(id));
		/* Without an id it may be any. */
		ck_assert_int_eq(capture_is_in_graph(id + 1000), i == 1);
		ck_ok(cuStreamEndCapture(stream, &ended));
		ck_assert(!capture_is_in_graph(id));
		shim_real.real_cuStreamGetCaptureInfo_v2 = NULL;
	}
	begin_capture(stream);
	ck_assert(!capture_is_in_graph(id));
	ck_ok(try_end(stream));
}
END_TEST

/* ---- tiny allocations, made to ask ------------------------------------------------------------- */

static struct shim_real behind;
static int n_allocs;
static int n_frees;

static CUresult alloc(CUdeviceptr *ptr, size_t n_bytes)
{
	n_allocs++;
	return behind.real_cuMemAlloc_v2(ptr, n_bytes);
}

static CUresult free_it(CUdeviceptr ptr)
{
	n_frees++;
	return behind.real_cuMemFree_v2(ptr);
}

static CUcontext begin_counting(void)
{
	CUcontext ctx = begin();
	behind = shim_real;
	shim_real.real_cuMemAlloc_v2 = alloc;
	shim_real.real_cuMemFree_v2 = free_it;
	return ctx;
}

START_TEST(who_asks_leaves_nothing)
{
	begin_counting();
	CUstream stream = new_stream();
	/* Nobody need be asked. */
	ck_ok(capture_ask_alloc());
	ck_assert_int_eq(n_allocs, 0);
	for (int i = 1; i <= 3; i++) {
		begin_capture(stream);
		/* Relaxed for this thread, too. */
		CUstreamCaptureMode mode = capture_relax();
		ck_ok(capture_ask_alloc());
		capture_free_probes();
		ck_assert_int_eq(n_frees, i - 1);
		capture_restore(mode);
		ck_ok(try_end(stream));
		mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
		ck_ok(cuThreadExchangeStreamCaptureMode(&mode));
		capture_free_probes();
		ck_assert_int_eq(n_allocs, i);
		ck_assert_int_eq(n_frees, i);
		capture_free_probes();
		ck_assert_int_eq(n_frees, i);
		ck_ok(cuThreadExchangeStreamCaptureMode(&mode));
		ck_assert_int_eq((int)mode, (int)CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	}
	ck_ok(capture_ask_free());
	ck_assert_int_eq(n_allocs, 4);
	ck_assert_int_eq(n_frees, 4);
	/* Contexts can end. */
	ck_assert(order_try_hold_contexts(0));
	order_let_contexts();
}
END_TEST

static void *hold_and_let(void *is_held)
{
	*(bool *)is_held = order_try_hold_contexts(0);
	if (*(bool *)is_held) {
		order_let_contexts();
	}
	return NULL;
}

/* There are 256 places. What is too many stays the context's. */
START_TEST(too_many_are_not_noted)
{
	pthread_t thread;
	bool is_held = false;
	begin_counting();
	for (uintptr_t i = 0; i < 300; i++) {
		CUdeviceptr ptr;
		ck_ok(behind.real_cuMemAlloc_v2(&ptr, 512));
		capture_keep_probe(ptr);
	}
	capture_free_probes();
	ck_assert_int_eq(n_frees, 256);
	pthread_create(&thread, NULL, hold_and_let, &is_held);
	pthread_join(thread, NULL);
	ck_assert(is_held);
}
END_TEST

START_TEST(they_end_with_their_context)
{
	CUdeviceptr ptr;
	CUcontext ctx = begin_counting();
	ck_ok(behind.real_cuMemAlloc_v2(&ptr, 512));
	capture_keep_probe(ptr);
	capture_drop_ctx(ctx, context_generation());
	capture_drop_ctx((CUcontext)&ctx, context_generation() + 1);
	capture_free_probes();
	ck_assert_int_eq(n_frees, 1);
	ck_ok(behind.real_cuMemAlloc_v2(&ptr, 512));
	capture_keep_probe(ptr);
	capture_drop_ctx(ctx, context_generation() + 1);
	capture_free_probes();
	ck_assert_int_eq(n_frees, 1);
	if (green_split()) {
		struct green green = green_new(0);
		ck_ok(cuCtxSetCurrent(green.ctx));
		capture_keep_probe(ptr);
		/* The probe is the primary context's. */
		capture_drop_ctx(green.ctx, context_generation() + 1);
		capture_free_probes();
		ck_assert_int_eq(n_frees, 2);
	}
}
END_TEST
