/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draining during captures: while memory is sealed, all work is marked before the first one begins. As long as nothing
 * is submitted but to captured streams, the gate closes as soon as the marks are reached.
 */
#include <errno.h>

#include "glake_shim.h"
#include "proto/cleanup.h"
#include "shim/capture.h"
#include "shim/drain.h"
#include "shim/gate.h"
#include "shim/shim.h"
#include "tests/check_glake.h"
#include "tests/unit/drained.h"
#include "tests/unit/forbid.h"
#include "tests/unit/own_process.h"
#include "tests/unit/submitter.h"

CUresult cuMemPrefetchAsync_v2(CUdeviceptr ptr, size_t n_bytes, CUmemLocation location,
                               unsigned flags, CUstream stream);
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream stream, void **params, void **extra);

static int close_for(uint64_t patience_ns)
{
	return drain_gate.close(NULL, patience_ns);
}

static void expect_closes(void)
{
	ck_assert_int_eq(close_for(LONG_NS), 0);
	drain_gate.open(NULL);
}

static void expect_busy(void)
{
	ck_assert_int_eq(close_for(SOON_NS), -EAGAIN);
	ck_assert_uint_eq(gate.state & GATE_CLOSED, 0);
}

static void expect_over(void)
{
	expect_closes();
	ck_assert_int_eq(drain_gate.wait(NULL, LONG_NS), 0);
}

/* As if memory were sealed. */
static CUcontext begin_sealed(void)
{
	CUcontext ctx = begin();
	glake__sealed.n = 1;
	return ctx;
}

static void begin_capture(CUstream stream)
{
	ck_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

/* Others may be waited for meanwhile. */
static void begin_relaxed(CUstream stream)
{
	ck_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
}

START_TEST(work_from_before_is_waited_for_during_a_capture)
{
	begin_sealed();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	CUstream captured = new_stream();
	for (int i = 0; i < 3; i++) {
		words[FLAG] = words[DONE] = 0;
		ck_ok(launch_spin(spin, stream, FLAG, DONE));
		begin_capture(captured);
		ck_assert(drain_is_calm);
		expect_busy();
		ck_assert_int_eq(drain_gate.wait(NULL, SOON_NS), -EAGAIN);
		/* A launch that is captured is no work. */
		ck_ok(launch_spin(spin, captured, FLAG, DONE));
		ck_assert(drain_is_calm);
		words[FLAG] = 1;
		expect_over();
		ck_assert_uint_eq(words[DONE], 1);
		ck_ok(launch_spin(spin, captured, FLAG, DONE));
		end_capture(captured, 2);
		expect_over();
	}
}
END_TEST

START_TEST(other_work_ends_the_calm)
{
	begin_sealed();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	CUstream captured = new_stream();
	const CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
	CUdeviceptr ptr;
	ck_ok(cuMemAlloc(&ptr, 4096));
	words[FLAG] = 1;
	CUdeviceptr managed;
	ck_ok(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
	for (int i = 0; i < 5; i++) {
		begin_relaxed(captured);
		expect_closes();
		switch (i) {
		case 4:
			ck_ok(cuMemPrefetchAsync_v2(managed, 4096, here, 0, stream));
			break;
		case 0:
			ck_ok(launch_spin(spin, stream, FLAG, DONE));
			break;
		case 1:
			ck_ok(cuMemsetD8Async(ptr, 0, 16, stream));
			break;
		case 2:
			ck_ok(cuStreamWaitValue32(stream, word(FLAG), 1, CU_STREAM_WAIT_VALUE_EQ));
			break;
		default:
			ck_ok(cuStreamWriteValue32(stream, word(FLAG), 1, 0));
			break;
		}
		ck_ok(cuStreamSynchronize(stream));
		ck_assert(!drain_is_calm);
		expect_busy();
		ck_assert_int_eq(drain_gate.wait(NULL, SOON_NS), -EAGAIN);
		end_capture(captured, 0);
		expect_over();
	}
}
END_TEST

/* The stream is looked up by its meaning for the call. */
START_TEST(default_streams_of_threads_are_captured_too)
{
	begin_sealed();
	CUfunction spin = kernel("spin");
	words[FLAG] = 1;
	begin_capture(CU_STREAM_PER_THREAD);
	ck_ok(launch_spin(spin, CU_STREAM_PER_THREAD, FLAG, DONE));
	ck_assert(drain_is_calm);
	/* NULL is the same stream for _ptsz calls. */
	uint64_t at[] = {word(FLAG), word(DONE)};
	void *params[] = {&at[0], &at[1]};
	ck_ok(cuLaunchKernel_ptsz(spin, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
	ck_assert(drain_is_calm);
	expect_closes();
	end_capture(CU_STREAM_PER_THREAD, 2);
	expect_over();
}
END_TEST

START_TEST(the_librarys_own_work_ends_the_calm)
{
	begin_sealed();
	CUstream captured = new_stream();
	begin_capture(captured);
	expect_closes();
	drain_gate.left(NULL);
	expect_busy();
	end_capture(captured, 0);
	expect_over();
}
END_TEST

/* A stream that is captured beside is not asked, and no second capture marks anew. */
START_TEST(a_second_capture_changes_nothing)
{
	begin_sealed();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	CUstream captured[] = {new_stream(), new_stream()};
	words[FLAG] = 1;
	begin_relaxed(captured[0]);
	begin_relaxed(captured[1]);
	expect_closes();
	end_capture(captured[0], 0);
	/* end_capture() launched the graph to a stream that was not captured any more. */
	expect_busy();
	ck_ok(launch_spin(spin, stream, FLAG, DONE));
	end_capture(captured[1], 0);
	expect_over();
}
END_TEST

START_TEST(without_sealed_memory_nothing_is_marked)
{
	begin();
	CUstream captured = new_stream();
	begin_capture(captured);
	ck_assert(!drain_is_calm);
	expect_busy();
	end_capture(captured, 0);
	expect_over();
}
END_TEST

/* The mark of a context ends with it. */
START_TEST(a_context_that_ends_ends_the_calm)
{
	CUcontext created = NULL;
	CUcontext ctx = begin_sealed();
	CUstream captured = new_stream();
	ck_ok(cuCtxCreate_v2(&created, 0, 0));
	ck_ok(launch_spin(kernel("spin"), new_stream(), FLAG, DONE));
	ck_ok(cuCtxSetCurrent(ctx));
	begin_relaxed(captured);
	expect_busy();
	words[FLAG] = 1;
	ck_ok(cuCtxDestroy(created));
	ck_assert(!drain_is_calm);
	expect_busy();
	end_capture(captured, 0);
	expect_over();
}
END_TEST

/* The mode of the thread is its own again. */
START_TEST(waiting_leaves_the_mode_of_the_thread)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
	begin_sealed();
	CUstream captured = new_stream();
	ck_ok(cuThreadExchangeStreamCaptureMode(&mode));
	for (int i = 0; i < 2; i++) {
		if (i == 1) {
			begin_capture(captured);
		}
		expect_over();
		mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
		ck_ok(cuThreadExchangeStreamCaptureMode(&mode));
		ck_assert_int_eq((int)mode, (int)CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	}
	end_capture(captured, 0);
}
END_TEST

/* ---- threads ----------------------------------------------------------------------------------- */

/* A check that is cancelled would leave memory behind. */
static void *capture_there(void *argument)
{
	CUcontext ctx = NULL;
	cuDevicePrimaryCtxRetain(&ctx, 0);
	cuCtxSetCurrent(ctx);
	cuStreamBeginCapture(argument, CU_STREAM_CAPTURE_MODE_GLOBAL);
	pthread_testcancel();
	return NULL;
}

/* Before the capture the gate is closed for a moment, with the contexts held. */
START_TEST(who_begins_a_capture_is_not_cancelled_meanwhile)
{
	struct submitter inside;
	pthread_t thread;
	CUgraph graph;
	begin_sealed();
	CUstream captured = new_stream();
	submitter_start(&inside);
	submitter_go(&inside, 1);
	pthread_create(&thread, NULL, capture_there, captured);
	while (!(gate.state & GATE_CLOSED) && !capture_is_any()) {
		usleep(10);
	}
	pthread_cancel(thread);
	pthread_join(thread, NULL);
	submitter_go(&inside, 0);
	submitter_end(&inside);
	ck_assert_uint_eq(gate.state & GATE_CLOSED, 0);
	if (capture_is_any()) {
		cuStreamEndCapture(captured, &graph);
		cuStreamDestroy(captured);
	}
	expect_over();
}
END_TEST

/* No patience, and somebody is inside. */
START_TEST(a_deadline_may_have_passed)
{
	struct submitter inside;
	begin();
	submitter_start(&inside);
	submitter_go(&inside, 1);
	ck_assert_int_eq(close_for(0), -EAGAIN);
	submitter_go(&inside, 0);
	submitter_end(&inside);
	expect_over();
}
END_TEST

/* There is a second try, which does not need it. */
START_TEST(it_closes_without_membarrier)
{
	begin();
	forbid_membarrier();
	expect_over();
}
END_TEST

static void close_in_vain(void)
{
	_exit(close_for(SOON_NS) == -ENOTSUP ? 0 : 1);
}

START_TEST(a_child_drains_nothing)
{
	begin();
	ck_assert_int_eq(status_of(close_in_vain), 0);
	expect_over();
}
END_TEST

/* ---- contexts ---------------------------------------------------------------------------------- */

START_TEST(a_context_is_held_if_there_is_one)
{
	void *held = NULL;
	CUcontext ctx = begin();
	ck_assert_int_eq(drain_gate.hold_context(NULL, 0, SOON_NS, &held), 0);
	ck_assert_ptr_eq(held, ctx);
	drain_gate.let_context(NULL);
	/* The program has ended its own: what it noted there is gone. */
	ck_ok(cuDevicePrimaryCtxRelease(0));
	ck_assert_int_eq(drain_gate.hold_context(NULL, 0, SOON_NS, &held), -ENOENT);
	expect_over();
}
END_TEST

START_TEST(who_never_had_one_is_told_so)
{
	void *held = &held;
	setenv("CUDASIM_DEVICES", "1x64MiB", 1);
	ck_ok(cuInit(0));
	ck_assert_int_eq(drain_gate.hold_context(NULL, 0, SOON_NS, &held), 0);
	ck_assert_ptr_null(held);
	drain_gate.let_context(NULL);
}
END_TEST

/* ---- the driver -------------------------------------------------------------------------------- */

static struct shim_real behind;
static int n_events;
static int n_to_fail; /* the next call but so many fails, */
static CUresult failure;

static CUresult fails(void)
{
	return n_to_fail > 0 && --n_to_fail == 0 ? failure : CUDA_SUCCESS;
}

static CUresult create_event(CUevent *event, unsigned flags)
{
	CUresult result = fails();
	result = result == CUDA_SUCCESS ? behind.real_cuEventCreate(event, flags) : result;
	n_events += result == CUDA_SUCCESS;
	return result;
}

static CUresult destroy_event(CUevent event)
{
	n_events--;
	return behind.real_cuEventDestroy_v2(event);
}

static CUresult record_context(CUcontext ctx, CUevent event)
{
	CUresult result = fails();
	return result == CUDA_SUCCESS ? behind.real_cuCtxRecordEvent(ctx, event) : result;
}

static bool ends_calm; /* when it is asked, as another thread's work may */

static CUresult query_event(CUevent event)
{
	CUresult result = fails();
	if (ends_calm) {
		drain_gate.left(NULL);
	}
	return result == CUDA_SUCCESS ? behind.real_cuEventQuery(event) : result;
}

/* From here on events are counted. */
static void count_events(void)
{
	behind = shim_real;
	shim_real.real_cuEventCreate = create_event;
	shim_real.real_cuEventDestroy_v2 = destroy_event;
	shim_real.real_cuCtxRecordEvent = record_context;
	shim_real.real_cuEventQuery = query_event;
}

START_TEST(no_event_is_left)
{
	begin_sealed();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	CUstream captured = new_stream();
	count_events();
	for (int i = 0; i < 4; i++) {
		words[FLAG] = 0;
		expect_closes();
		ck_assert_int_eq(n_events, 0);
		ck_ok(launch_spin(spin, stream, FLAG, DONE));
		expect_busy();
		ck_assert_int_eq(n_events, 0);
		ck_assert_int_eq(drain_gate.wait(NULL, SOON_NS), -EAGAIN);
		ck_assert_int_eq(n_events, 0);
		/* Events of the calm stay, as long as nobody looks at them, */
		begin_capture(captured);
		ck_assert_int_eq(n_events, 1);
		words[FLAG] = 1;
		if (i % 2) {
			expect_closes();
			ck_assert_int_eq(n_events, 0);
		}
		end_capture(captured, 0);
		ck_ok(cuStreamSynchronize(stream));
		/* and no longer than until the next ones. */
		begin_capture(captured);
		expect_closes();
		ck_assert_int_eq(n_events, 0);
		end_capture(captured, 0);
	}
}
END_TEST

START_TEST(the_calm_may_end_while_it_is_waited_for)
{
	begin_sealed();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	CUstream captured = new_stream();
	count_events();
	ck_ok(launch_spin(spin, stream, FLAG, DONE));
	begin_relaxed(captured);
	words[FLAG] = 1;
	/* The marks are reached, but they say nothing any more. */
	ck_ok(cuStreamSynchronize(stream));
	ends_calm = true;
	expect_busy();
	end_capture(captured, 0);
	expect_over();
}
END_TEST

/* Then it is not known what work there is. */
START_TEST(without_all_marks_there_is_no_calm)
{
	begin_sealed();
	CUstream captured = new_stream();
	count_events();
	failure = CUDA_ERROR_OUT_OF_MEMORY;
	n_to_fail = 1;
	begin_capture(captured);
	ck_assert(!drain_is_calm);
	expect_busy();
	end_capture(captured, 0);
	expect_over();
}
END_TEST

/* An error that may pass is tried again; a context that has ended has no work; all else is for good. */
START_TEST(errors_of_the_driver_are_told_apart)
{
	static const struct {
		CUresult result;
		int wanted;
	} errors[] = {
		{CUDA_ERROR_OUT_OF_MEMORY, -EAGAIN},
		{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, -EAGAIN},
		{CUDA_ERROR_UNKNOWN, 0}, /* the context is lost */
		{CUDA_ERROR_INVALID_CONTEXT, 0},
		{CUDA_ERROR_ILLEGAL_ADDRESS, 0},
		{CUDA_ERROR_INVALID_VALUE, GLAKE_E_CUDA},
	};
	begin();
	count_events();
	for (size_t i = 0; i < n_elements(errors); i++) {
		int wanted = errors[i].result == CUDA_ERROR_UNKNOWN &&
		                             !cudrv_is_lost(CUDA_ERROR_UNKNOWN)
		                     ? GLAKE_E_CUDA
		                     : errors[i].wanted;
		/* Creating, recording, asking. */
		for (int call = 1; call <= 3; call++) {
			failure = errors[i].result;
			n_to_fail = call;
			int r = close_for(SOON_NS);
			ck_assert_msg(r == wanted, "%d at call %d: %d", (int)failure, call, r);
			ck_assert_int_eq(n_events, 0);
			n_to_fail = 0;
			if (r == 0) {
				drain_gate.open(NULL);
			}
			expect_closes();
		}
	}
	shim_real.real_cuCtxRecordEvent = NULL;
	ck_assert_int_eq(close_for(SOON_NS), -ENOTSUP);
}
END_TEST
