/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draining: with the shim in this program, its calls are held back while a range changes, and what they
 * submitted before is waited for, in every context that may read the range.
 *
 * Runs on a real driver as well (make check-gpu). What needs two devices is skipped where there is one.
 */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <unistd.h>

#include "libclient/heap/backing.h"
#include "shim/gate.h"
#include "tests/check_glake.h"
#include "tests/reback_one.h"
#include "tests/shim/green.h"
#include "tests/unit/drained.h"

static CUresult launch_add(CUfunction add, CUstream stream, uint64_t ptr, uint64_t n_words)
{
	uint32_t by = 1;
	void *params[] = {&ptr, &n_words, &by};
	return cuLaunchKernel(add, 1, 1, 1, 256, 1, 1, 0, stream, params, NULL);
}

static int close_for(uint64_t devices, uint64_t patience_ns)
{
	return glake__gate_close(devices, patience_ns);
}

/* Closed and opened again: nothing is under way. */
static void expect_idle(uint64_t devices)
{
	ck_assert_int_eq(close_for(devices, LONG_NS), 0);
	glake__gate_open();
}

static void *set_flag_soon(void *argument)
{
	(void)argument;
	usleep(20000);
	words[FLAG] = 1;
	return NULL;
}

/* ---- one by one ------------------------------------------------------------------------------- */

START_TEST(work_under_way_is_waited_for)
{
	pthread_t thread;
	begin();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	for (int i = 0; i < 10; i++) {
		words[FLAG] = words[DONE] = 0;
		ck_ok(launch_spin(spin, stream, FLAG, DONE));
		pthread_create(&thread, NULL, set_flag_soon, NULL);
		ck_assert_int_eq(close_for(1, LONG_NS), 0);
		ck_assert_uint_eq(words[DONE], 1);
		glake__gate_open();
		pthread_join(thread, NULL);
	}
}
END_TEST

START_TEST(what_does_not_end_is_left_alone)
{
	begin();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	CUstream other = new_stream();
	ck_ok(launch_spin(spin, stream, FLAG, DONE));
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(close_for(1, SOON_NS), -EAGAIN);
		ck_assert_uint_eq(words[DONE], 0);
		/* The gate is open, and other streams go on. */
		words[OTHER_FLAG] = 1;
		ck_ok(launch_spin(spin, other, OTHER_FLAG, OTHER_DONE));
		ck_ok(cuStreamSynchronize(other));
	}
	/* As those are told who ask for a seal. */
	ck_assert_int_eq(glake__gate_close_soon(1), -EBUSY);
	words[FLAG] = 1;
	expect_idle(1);
	ck_assert_uint_eq(words[DONE], 1);
}
END_TEST

/* A stream of any device may have a copy of the memory under way, also where the device has no access. */
START_TEST(work_on_other_devices_is_waited_for)
{
	CUcontext other = NULL;
	begin();
	if (!has_two_devices()) {
		return;
	}
	ck_ok(cuDevicePrimaryCtxRetain(&other, 1));
	ck_ok(cuCtxPushCurrent(other));
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	ck_ok(launch_spin(spin, stream, FLAG, DONE));
	ck_assert_int_eq(close_for(1, SOON_NS), -EAGAIN);
	ck_assert_int_eq(close_for(2, SOON_NS), -EAGAIN);
	words[FLAG] = 1;
	expect_idle(1);
	ck_assert_uint_eq(words[DONE], 1);
	ck_ok(cuCtxPopCurrent(&other));
}
END_TEST

static void expect_waited_for(CUfunction spin, CUstream stream)
{
	words[FLAG] = words[DONE] = 0;
	ck_ok(launch_spin(spin, stream, FLAG, DONE));
	ck_assert_int_eq(close_for(1, SOON_NS), -EAGAIN);
	words[FLAG] = 1;
	expect_idle(1);
	ck_assert_uint_eq(words[DONE], 1);
}

START_TEST(every_context_of_a_device_is_waited_for)
{
	CUcontext created = NULL;
	CUcontext popped;
	begin();
	CUfunction spin = kernel("spin");
	expect_waited_for(spin, NULL);
	expect_waited_for(spin, CU_STREAM_PER_THREAD);
	expect_waited_for(spin, new_stream());
	/* Contexts come and go. */
	for (int i = 0; i < 3; i++) {
		ck_ok(cuCtxCreate_v2(&created, 0, 0));
		CUfunction created_spin = kernel("spin");
		expect_waited_for(created_spin, new_stream());
		expect_waited_for(created_spin, NULL);
		ck_ok(cuCtxPopCurrent(&popped));
		expect_waited_for(spin, NULL);
		ck_ok(cuCtxDestroy(created));
		expect_idle(1);
	}
	if (!green_split()) {
		return;
	}
	for (int i = 0; i < 3; i++) {
		struct green green = green_new(i % 2);
		ck_ok(cuCtxPushCurrent(green.ctx));
		expect_waited_for(spin, green.stream);
		ck_ok(cuCtxPopCurrent(&popped));
		green_end(&green);
		expect_idle(1);
	}
}
END_TEST

/* Work that was submitted in a green context goes on when the context is no more. */
START_TEST(work_of_a_green_context_that_has_ended_is_waited_for)
{
	begin();
	if (!green_split()) {
		return;
	}
	struct green green = green_new(0);
	CUcontext popped;
	CUfunction spin = kernel("spin");
	ck_ok(cuCtxPushCurrent(green.ctx));
	ck_ok(launch_spin(spin, green.stream, FLAG, DONE));
	ck_ok(cuCtxPopCurrent(&popped));
	ck_ok(cuGreenCtxDestroy(green.handle));
	ck_assert_int_eq(close_for(1, SOON_NS), -EAGAIN);
	words[FLAG] = 1;
	expect_idle(1);
	ck_assert_uint_eq(words[DONE], 1);
}
END_TEST

/*
 * A fault ends the work of its context. Others go on, and are waited for, if the driver keeps them: on an
 * H200 (580.159) the fault takes all contexts of the process.
 */
START_TEST(a_context_that_is_lost_has_no_work)
{
	CUcontext created = NULL;
	CUdeviceptr nowhere = 0;
	begin();
	CUfunction spin = kernel("spin");
	ck_ok(cuMemAddressReserve(&nowhere, 2 * MIB, 0, 0, 0));
	ck_ok(cuCtxCreate_v2(&created, 0, 0));
	CUstream stream = new_stream();
	ck_ok(launch_add(kernel("add"), stream, nowhere, 1));
	ck_assert_int_eq((int)cuStreamSynchronize(stream), (int)CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_ok(cuCtxPopCurrent(&created));
	expect_idle(1);
	if (cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS) {
		expect_waited_for(spin, stream);
	}
}
END_TEST

START_TEST(the_context_of_the_thread_stays_current)
{
	CUcontext before = NULL;
	CUcontext after = NULL;
	CUcontext created = NULL;
	begin();
	ck_ok(cuCtxCreate_v2(&created, 0, 0));
	ck_ok(cuCtxGetCurrent(&before));
	expect_idle(3);
	ck_ok(cuCtxGetCurrent(&after));
	ck_assert_ptr_eq(before, after);
	ck_ok(cuCtxPopCurrent(&after));
	ck_ok(cuCtxPopCurrent(&after));
	expect_idle(3);
	ck_ok(cuCtxGetCurrent(&after));
	ck_assert_ptr_null(after);
}
END_TEST

/* ---- captures --------------------------------------------------------------------------------- */

static void *close_in_vain(void *argument)
{
	(void)argument;
	ck_assert_int_eq(close_for(1, SOON_NS), -EAGAIN);
	return NULL;
}

/* In all modes, from the thread that captures and from another. */
START_TEST(a_capture_is_left_alone)
{
	pthread_t thread;
	begin();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	words[FLAG] = 1;
	for (int mode = 0; mode < 3; mode++) {
		ck_ok(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
		ck_ok(launch_spin(spin, stream, FLAG, DONE));
		ck_assert_int_eq(close_for(1, SOON_NS), -EAGAIN);
		pthread_create(&thread, NULL, close_in_vain, NULL);
		pthread_join(thread, NULL);
		ck_ok(launch_spin(spin, stream, FLAG, DONE));
		end_capture(stream, 2);
		expect_idle(1);
	}
}
END_TEST

static void *end_context(void *argument)
{
	ck_ok(cuCtxDestroy(argument));
	return NULL;
}

static void *close_with_patience(void *argument)
{
	int r = close_for(1, LONG_NS);
	ck_assert(r == 0 || r == -EAGAIN);
	if (r == 0) {
		glake__gate_open();
	}
	return argument;
}

/* The closer waits for a context to end, while nothing is captured. Then a capture begins. */
START_TEST(a_capture_that_begins_before_the_gate_closes_is_left_alone)
{
	pthread_t threads[2];
	CUcontext created = NULL;
	CUcontext ctx = begin();
	ck_ok(cuCtxCreate_v2(&created, 0, 0));
	ck_ok(launch_spin(kernel("spin"), new_stream(), FLAG, DONE));
	ck_ok(cuCtxPopCurrent(&created));
	ck_ok(cuCtxSetCurrent(ctx));
	CUstream stream = new_stream();
	pthread_create(&threads[0], NULL, end_context, created);
	usleep(20000);
	pthread_create(&threads[1], NULL, close_with_patience, NULL);
	usleep(20000);
	ck_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	words[FLAG] = 1;
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	end_capture(stream, 0);
	expect_idle(1);
}
END_TEST

static atomic_bool is_over;
static atomic_uint n_captured;

static void *capture_on_and_on(void *argument)
{
	/* Each may wait while the other captures. */
	CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	ck_ok(cuThreadExchangeStreamCaptureMode(&relaxed));
	ck_ok(cuCtxSetCurrent(argument));
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	for (unsigned i = 0; !is_over; i++) {
		ck_ok(cuStreamBeginCapture(stream, (CUstreamCaptureMode)(i % 3)));
		ck_ok(launch_spin(spin, stream, FLAG, DONE));
		end_capture(stream, 1);
		ck_ok(launch_spin(spin, stream, FLAG, DONE));
		usleep(i % 8 * 50);
		n_captured++;
	}
	return NULL;
}

START_TEST(captures_begin_and_end_while_the_gate_closes)
{
	pthread_t threads[2];
	CUcontext ctx = begin();
	unsigned n_closed = 0;
	words[FLAG] = 1;
	for (int i = 0; i < 2; i++) {
		pthread_create(&threads[i], NULL, capture_on_and_on, ctx);
	}
	while (n_captured < 200 || n_closed < 20) {
		int r = close_for(1, SOON_NS);
		ck_assert(r == 0 || r == -EAGAIN);
		if (r == 0) {
			n_closed++;
			glake__gate_open();
		}
		usleep(100);
	}
	is_over = true;
	for (int i = 0; i < 2; i++) {
		pthread_join(threads[i], NULL);
	}
}
END_TEST

struct capturer {
	CUstream stream;
	CUcontext ctx;
	atomic_bool has_begun;
	CUresult result;
};

static void *capture_at_the_gate(void *argument)
{
	struct capturer *capturer = argument;
	ck_ok(cuCtxSetCurrent(capturer->ctx));
	capturer->result = cuStreamBeginCapture(capturer->stream, CU_STREAM_CAPTURE_MODE_RELAXED);
	capturer->has_begun = true;
	return NULL;
}

/* A call that waits at the gate, for however long, has begun no capture: ranges change meanwhile. */
START_TEST_WITH(no_capture_begins_at_a_gate_that_is_asleep, .n = 2)
{
	struct capturer capturer = {.ctx = begin()};
	pthread_t thread;
	CUgraph graph;
	bool is_cancelled = _i == 1;
	capturer.stream = new_stream();
	ck_assert_int_eq(gate_sleep(LONG_NS), 0);
	pthread_create(&thread, NULL, capture_at_the_gate, &capturer);
	for (int i = 0; i < 20; i++) {
		usleep(1000);
		expect_idle(1);
	}
	ck_assert(!capturer.has_begun);
	if (is_cancelled) {
		pthread_cancel(thread);
		pthread_join(thread, NULL);
		gate_wake();
	} else {
		gate_wake();
		pthread_join(thread, NULL);
		ck_ok(capturer.result);
		ck_assert_int_eq(close_for(1, SOON_NS), -EAGAIN);
		ck_ok(cuStreamEndCapture(capturer.stream, &graph));
	}
	expect_idle(1);
}
END_TEST

/* ---- calls that wait -------------------------------------------------------------------------- */

static sem_t is_copying;

static void *copy_back(void *argument)
{
	uint32_t value = 0;
	CUdeviceptr ptr = *(CUdeviceptr *)argument;
	CUcontext ctx = NULL;
	ck_ok(cuDevicePrimaryCtxRetain(&ctx, 0));
	ck_ok(cuCtxSetCurrent(ctx));
	sem_post(&is_copying);
	/* Inside the gate, until the default stream's spinning ends. */
	ck_ok(cuMemcpyDtoH(&value, ptr, sizeof(value)));
	return NULL;
}

/*
 * A copy waits for a kernel that waits for a call of another thread, as ranks of NCCL in one process do:
 * it is inside, so the gate is not to close before it is out, and the other one must not wait for ever.
 */
START_TEST(a_copy_that_waits_for_a_thread_at_the_gate_ends)
{
	pthread_t thread;
	CUdeviceptr ptr;
	begin();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	CUdeviceptr flag = word(FLAG);
	ck_ok(cuMemAlloc(&ptr, 4096));
	sem_init(&is_copying, 0, 0);
	ck_ok(launch_spin(spin, NULL, FLAG, DONE));
	pthread_create(&thread, NULL, copy_back, &ptr);
	sem_wait(&is_copying);
	usleep(10000);
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(close_for(1, SOON_NS), -EAGAIN);
	}
	ck_ok(cuStreamWriteValue32(stream, flag, 1, 0));
	pthread_join(thread, NULL);
	expect_idle(1);
}
END_TEST

static void *close_and_open(void *argument)
{
	ck_assert_int_eq(close_for(1, LONG_NS), 0);
	glake__gate_open();
	return argument;
}

/* Programs may cancel threads of theirs, and one of them may be changing a range. */
START_TEST(a_thread_that_is_cancelled_does_not_leave_the_gate_closed)
{
	pthread_t thread;
	begin();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	ck_ok(launch_spin(spin, stream, FLAG, DONE));
	pthread_create(&thread, NULL, close_and_open, NULL);
	usleep(20000);
	pthread_cancel(thread);
	usleep(20000);
	words[FLAG] = 1;
	pthread_join(thread, NULL);
	ck_ok(launch_spin(spin, stream, FLAG, DONE));
	expect_idle(1);
}
END_TEST

static void *write_flag(void *argument)
{
	CUstream stream = argument;
	CUcontext ctx = NULL;
	ck_ok(cuDevicePrimaryCtxRetain(&ctx, 0));
	ck_ok(cuCtxSetCurrent(ctx));
	while (words[OTHER_FLAG] == 0) {
		usleep(100);
	}
	ck_ok(cuStreamWriteValue32(stream, word(FLAG), 1, 0));
	return NULL;
}

/* A copy waits for a thread at the gate, while somebody closes, again and again: that thread gets through. */
START_TEST(a_thread_at_the_gate_gets_through_between_tries)
{
	pthread_t threads[2];
	CUdeviceptr ptr;
	int n_tries = 0;
	begin();
	CUfunction spin = kernel("spin");
	CUstream stream = new_stream();
	ck_ok(cuMemAlloc(&ptr, 4096));
	sem_init(&is_copying, 0, 0);
	ck_ok(launch_spin(spin, NULL, FLAG, DONE));
	pthread_create(&threads[0], NULL, copy_back, &ptr);
	pthread_create(&threads[1], NULL, write_flag, stream);
	sem_wait(&is_copying);
	words[OTHER_FLAG] = 1;
	while (close_for(1, SOON_NS) != 0) {
		n_tries++;
		ck_assert_int_lt(n_tries, 1000);
		usleep(1000);
	}
	ck_assert_uint_eq(words[DONE], 1);
	glake__gate_open();
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
}
END_TEST

/* ---- a range changes under work ---------------------------------------------------------------- */

#define N_BYTES (4 * MIB)
#define N_MOVES (TEST_SANITIZED ? 5 : 30)

/* A fresh chunk of the driver's own, all words @value. */
static struct glake__part make_part(void)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	struct glake__part part = {
		.chunk = glake__chunk_new(0, N_BYTES, 0, GLAKE__PAGE_CHUNK),
		.n_bytes = N_BYTES,
		.access = GLAKE__ACCESS_WRITE,
		.fd = -1,
	};
	ck_ok(drv.cuMemCreate(&part.handle, N_BYTES, &properties, 0));
	return part;
}

static void end_part(const struct glake__part *part)
{
	glake__chunk_put(part->chunk);
	ck_ok(drv.cuMemRelease(part->handle));
}

static struct glake__range *filled_range(void)
{
	struct glake__range *range = NULL;
	struct glake__part part = make_part();
	ck_assert_int_eq(glake__range_reserve(&glake__use_private, NULL, 0, N_BYTES, 0, 0, &range),
	                 0);
	ck_assert_int_eq(glake__range_fill(range, 0, &part, 1), 0);
	end_part(&part);
	ck_ok(cuMemsetD32(range->ptr, 0, N_BYTES / 4));
	ck_ok(cuCtxSynchronize());
	return range;
}

struct adder {
	pthread_t thread;
	CUcontext ctx;
	uint64_t ptr; /* its own part of the range */
	uint64_t n_words;
	uint32_t n_launched;
};

static void *add_on_and_on(void *argument)
{
	struct adder *adder = argument;
	ck_ok(cuCtxSetCurrent(adder->ctx));
	CUfunction add = kernel("add");
	CUstream stream = new_stream();
	while (!is_over) {
		for (int i = 0; i < 8; i++) {
			ck_ok(launch_add(add, stream, adder->ptr, adder->n_words));
			adder->n_launched++;
		}
		ck_ok(cuStreamSynchronize(stream));
	}
	return NULL;
}

/* All that is there, in another chunk, at the same address. What is submitted here is part of it. */
static void move(struct glake__range *range, CUdeviceptr staging)
{
	struct glake__part part = make_part();
	ck_assert_int_eq(close_for(1, LONG_NS), 0);
	ck_ok(cuMemcpyDtoD(staging, range->ptr, N_BYTES));
	ck_ok(cuCtxSynchronize());
	ck_assert_int_eq(range_reback(range, 0, &part, 1, NULL), 0);
	ck_ok(cuMemcpyDtoD(range->ptr, staging, N_BYTES));
	ck_ok(cuCtxSynchronize());
	glake__gate_open();
	end_part(&part);
}

/* No launch is lost, and none faults: as if nothing had happened. */
START_TEST(a_range_changes_its_backing_under_a_program_that_works)
{
	struct adder adders[3] = {0};
	CUdeviceptr staging;
	CUcontext ctx = begin();
	struct glake__range *range = filled_range();
	ck_ok(cuMemAlloc(&staging, N_BYTES));
	for (int i = 0; i < 3; i++) {
		adders[i].ctx = ctx;
		adders[i].ptr = range->ptr + (uint64_t)i * MIB;
		adders[i].n_words = MIB / 4;
		if (i == 2) {
			ck_ok(cuCtxCreate_v2(&adders[i].ctx, 0, 0));
			ck_ok(cuCtxSetCurrent(ctx));
		}
		pthread_create(&adders[i].thread, NULL, add_on_and_on, &adders[i]);
	}
	for (int i = 0; i < N_MOVES; i++) {
		move(range, staging);
		usleep(1000);
	}
	is_over = true;
	for (int i = 0; i < 3; i++) {
		uint32_t found[2];
		pthread_join(adders[i].thread, NULL);
		ck_ok(cuMemcpyDtoH(&found[0], adders[i].ptr, 4));
		ck_ok(cuMemcpyDtoH(&found[1], adders[i].ptr + MIB - 4, 4));
		ck_assert_uint_eq(found[0], adders[i].n_launched);
		ck_assert_uint_eq(found[1], adders[i].n_launched);
		ck_assert_uint_gt(found[0], 0);
	}
	ck_assert(glake__space_is_valid());
	ck_assert_int_eq(glake__range_end(range, NULL), 0);
}
END_TEST
