/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: streams, events, and threads of the application. */
#include "tests/cudasim/test_work.h"

#include <dirent.h>
#include <pthread.h>

BEGIN_EACH(driver_begin_64m)

static int count_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	int n = 0;

	for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
		n += entry->d_name[0] != '.';
	}
	closedir(dir);
	return n;
}

START_TEST_WITH(threads_appear_with_the_first_work, .begin = driver_not_yet)
{
	driver_setup("1x64MiB");
	int n_before = count_threads();
	driver_start();
	CUstream stream = stream_new(0);
	CUevent event;
	CUdeviceptr ptr = alloc(GRANULE);
	int value = 7;

	ck_ok(cu.MemcpyHtoD_v2(ptr, &value, sizeof(value)));
	ck_assert_uint_eq(read_u32(ptr), 7);
	ck_ok(cu.EventCreate(&event, 0));
	ck_ok(cu.EventRecord(event, stream));
	ck_ok(cu.EventSynchronize(event));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_int_eq(count_threads(), n_before);
	ck_ok(cu.MemsetD8Async(ptr, 1, 1, stream));
	ck_assert_int_gt(count_threads(), n_before); /* a sanitizer may add one of its own */
	ck_ok(cu.EventDestroy_v2(event));
	ck_ok(cu.StreamDestroy_v2(stream));
}
END_TEST

START_TEST(streams_run_later_and_in_order)
{
	struct gate gate;
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(64);
	uint32_t *pinned;

	ck_ok(cu.MemHostAlloc((void **)&pinned, 64, 0));
	*pinned = 1;
	gate_close(&gate, stream);
	ck_ok(cu.MemcpyHtoDAsync_v2(ptr, pinned, 4, stream));
	ck_ok(cu.MemcpyDtoDAsync_v2(ptr + 4, ptr, 4, stream));
	ck_ok(cu.MemcpyDtoHAsync_v2(pinned + 1, ptr + 4, 4, stream));
	ck_cu(cu.StreamQuery(stream), CUDA_ERROR_NOT_READY);
	*pinned = 2; /* read when its turn comes, as by a copy engine */
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(stream));
	ck_ok(cu.StreamQuery(stream));
	ck_assert_uint_eq(pinned[1], 2);
	ck_ok(cu.StreamDestroy_v2(stream));
	ck_cu(cu.StreamDestroy_v2(NULL), CUDA_ERROR_INVALID_HANDLE);
	ck_cu(cu.StreamCreate(&stream, 77), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemFreeHost(pinned));
}
END_TEST

START_TEST(pageable_memory_is_copied_before_the_call_returns)
{
	CUstream stream = stream_new(0);
	CUdeviceptr ptr = alloc(4);
	uint32_t value = 11;

	ck_ok(cu.MemcpyHtoDAsync_v2(ptr, &value, 4, stream));
	value = 12;
	ck_ok(cu.MemcpyDtoHAsync_v2(&value, ptr, 4, stream));
	ck_assert_uint_eq(value, 11);
	ck_ok(cu.StreamDestroy_v2(stream));
}
END_TEST

START_TEST(events_order_streams)
{
	struct gate gate;
	CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(4);
	CUevent event, end, plain;
	float ms = -1;

	ck_ok(cu.EventCreate(&event, 0));
	ck_ok(cu.EventCreate(&end, 0));
	ck_ok(cu.EventCreate(&plain, CU_EVENT_DISABLE_TIMING));
	ck_cu(cu.EventCreate(&plain, 64), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.EventQuery(event));
	ck_ok(cu.StreamWaitEvent(b, event, 0)); /* never recorded: nothing to wait for */
	ck_cu(cu.EventElapsedTime_v2(&ms, event, end), CUDA_ERROR_INVALID_HANDLE);
	ck_ok(cu.MemsetD32_v2(ptr, 0, 1));
	ck_ok(cu.CtxSynchronize());
	gate_close(&gate, a);
	ck_ok(cu.MemsetD8Async(ptr, 1, 4, a));
	ck_ok(cu.EventRecord(event, a));
	ck_ok(cu.StreamWaitEvent(b, event, 0));
	ck_ok(cu.MemsetD8Async(ptr, 2, 4, b));
	ck_ok(cu.EventRecord(end, b));
	ck_cu(cu.EventQuery(event), CUDA_ERROR_NOT_READY);
	ck_cu(cu.StreamQuery(b), CUDA_ERROR_NOT_READY);
	ck_cu(cu.EventElapsedTime_v2(&ms, event, end), CUDA_ERROR_NOT_READY);
	usleep(20000);
	gate_open(&gate);
	ck_ok(cu.EventSynchronize(end));
	ck_ok(cu.EventQuery(event));
	ck_ok(cu.EventElapsedTime_v2(&ms, event, end));
	ck_assert(ms >= 0 && ms < 10000);
	ck_assert_uint_eq(read_u32(ptr), 0x02020202);
	ck_cu(cu.EventElapsedTime_v2(&ms, plain, end), CUDA_ERROR_INVALID_HANDLE);
	ck_ok(cu.EventDestroy_v2(event));
	ck_ok(cu.EventDestroy_v2(end));
	ck_ok(cu.EventDestroy_v2(plain));
	ck_ok(cu.StreamDestroy_v2(a));
	ck_ok(cu.StreamDestroy_v2(b));
}
END_TEST

START_TEST(the_default_stream_orders_blocking_streams_only)
{
	struct gate gate;
	CUstream blocking = stream_new(0), other = stream_new(0);
	CUstream free_one = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(4), elsewhere = alloc(4);

	gate_close(&gate, blocking);
	ck_ok(cu.MemsetD8Async(ptr, 1, 4, blocking));
	ck_ok(cu.MemsetD8_v2(ptr, 2, 4));          /* after the work on `blocking` */
	ck_ok(cu.MemsetD8Async(ptr, 3, 4, other)); /* after the default stream */
	ck_ok(cu.MemsetD8Async(elsewhere, 4, 4, free_one));
	ck_ok(cu.StreamSynchronize(free_one));
	ck_cu(cu.StreamQuery(other), CUDA_ERROR_NOT_READY);
	ck_cu(cu.StreamQuery(NULL), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(NULL));
	ck_ok(cu.StreamQuery(blocking));
	ck_ok(cu.StreamSynchronize(other));
	ck_assert_uint_eq(read_u32(ptr), 0x03030303);
	/* A copy of the caller's waits for blocking streams as well. */
	ck_ok(cu.MemsetD8Async(ptr, 9, 4, blocking));
	ck_assert_uint_eq(read_u32(ptr), 0x09090909);
	ck_ok(cu.StreamDestroy_v2(blocking));
	ck_ok(cu.StreamDestroy_v2(other));
	ck_ok(cu.StreamDestroy_v2(free_one));
}
END_TEST

START_TEST(destroyed_streams_finish_their_work)
{
	struct gate gate;
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(4);

	gate_close(&gate, stream);
	ck_ok(cu.MemsetD8Async(ptr, 6, 4, stream));
	ck_ok(cu.StreamDestroy_v2(stream));
	gate_open(&gate);
	ck_ok(cu.CtxSynchronize());
	ck_assert_uint_eq(read_u32(ptr), 0x06060606);
}
END_TEST

START_TEST(stream_ordered_memory_is_freed_in_order)
{
	struct gate gate;
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr;

	ck_ok(cu.MemAllocAsync(&ptr, 2 * GRANULE, stream));
	gate_close(&gate, stream);
	ck_ok(cu.MemsetD8Async(ptr, 6, 4, stream));
	ck_ok(cu.MemFreeAsync(ptr, stream));
	ck_assert_uint_eq(used_bytes(), 2 * GRANULE);
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(used_bytes(), 0);
	ck_cu(cu.MemFreeAsync(ptr, stream), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.StreamDestroy_v2(stream));
}
END_TEST

/* --- many threads --- */

static void *work(void *arg)
{
	CUcontext ctx = arg;
	CUstream stream;
	CUevent event;
	CUdeviceptr small;

	must_ok(cu.CtxSetCurrent(ctx));
	must_ok(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	must_ok(cu.EventCreate(&event, 0));
	for (int i = 0; i < 50; i++) {
		CUmemGenericAllocationHandle handle = chunk_new(GRANULE), imported;
		CUdeviceptr addr = chunk_map(handle, GRANULE, READ_WRITE);
		int fd = chunk_export(handle);
		uint32_t value = 0;
		must_ok(chunk_import(fd, &imported));
		close(fd);
		must_ok(cu.MemAlloc_v2(&small, 100));
		must_ok(cu.MemsetD8Async(addr, (unsigned char)i, 4096, stream));
		must_ok(cu.MemcpyDtoDAsync_v2(small, addr, 4, stream));
		must_ok(cu.EventRecord(event, stream));
		must_ok(cu.EventSynchronize(event));
		must_ok(cu.MemcpyDtoH_v2(&value, small, 4));
		must(value == (uint32_t)i * 0x01010101);
		must_ok(cu.MemFree_v2(small));
		must_ok(cu.MemUnmap(addr, GRANULE));
		must_ok(cu.MemAddressFree(addr, GRANULE));
		must_ok(cu.MemRelease(imported));
		must_ok(cu.MemRelease(handle));
	}
	must_ok(cu.EventDestroy_v2(event));
	must_ok(cu.StreamDestroy_v2(stream));
	return NULL;
}

static unsigned long long id_of(CUstream stream)
{
	unsigned long long id = 0;

	ck_ok(cu.StreamGetId(stream, &id));
	return id;
}

static void *own_id(void *ctx)
{
	static unsigned long long id;

	ck_ok(cu.CtxSetCurrent(ctx));
	id = id_of(CU_STREAM_PER_THREAD);
	return &id;
}

START_TEST(threads_have_default_streams)
{
	CUdeviceptr ptr = alloc(64);
	unsigned long long own = id_of(CU_STREAM_PER_THREAD);
	unsigned long long id = 0;
	struct gate gate;
	pthread_t thread;
	void *other;
	__typeof__(cuStreamGetId) *get_id = per_thread("cuStreamGetId");
	__typeof__(cuMemsetD8) *memset_d8 = per_thread("cuMemsetD8");

	ck_assert_uint_ne(own, id_of(NULL));
	ck_assert_uint_eq(own, id_of(CU_STREAM_PER_THREAD));
	ck_ok(get_id(NULL, &id));
	ck_assert_uint_eq(id, own);
	pthread_create(&thread, NULL, own_id, driver_context);
	pthread_join(thread, &other);
	ck_assert_uint_ne(*(unsigned long long *)other, own);
	/* Work on it is on nobody else's stream. */
	gate_close(&gate, CU_STREAM_PER_THREAD);
	ck_ok(memset_d8(ptr, 1, 4));
	ck_cu(cu.StreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	ck_ok(cu.MemsetD8Async(ptr + 4, 1, 4, stream));
	ck_ok(cu.StreamSynchronize(stream));
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(CU_STREAM_PER_THREAD));
}
END_TEST

START_TEST_WITH(threads_do_not_disturb_each_other, .begin = driver_not_yet)
{
	CUcontext ctx = driver_begin("1x256MiB");
	pthread_t threads[4];

	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(pthread_create(&threads[i], NULL, work, ctx), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
	}
	ck_assert_uint_eq(used_bytes(), 0);
	ck_ok(cu.DevicePrimaryCtxRelease_v2(0));
}
END_TEST

/* ---- captures: as seen on an H200 with driver 580 ---- */

struct asking {
	CUcontext ctx;
	CUstreamCaptureMode mode; /* of the thread */
	CUevent event;
	CUresult result;
};

static void *ask_event(void *argument)
{
	struct asking *asking = argument;

	ck_ok(cu.CtxSetCurrent(asking->ctx));
	ck_ok(cu.ThreadExchangeStreamCaptureMode(&asking->mode));
	asking->result = cu.EventQuery(asking->event);
	return NULL;
}

static CUresult ask_elsewhere(CUcontext ctx, CUstreamCaptureMode mode, CUevent event)
{
	struct asking asking = {.ctx = ctx, .mode = mode, .event = event};
	pthread_t thread;

	ck_assert_int_eq(pthread_create(&thread, NULL, ask_event, &asking), 0);
	pthread_join(thread, NULL);
	ck_assert_int_eq((int)asking.mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
	return asking.result;
}

#define FORBIDDEN CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
#define BROKEN CUDA_ERROR_STREAM_CAPTURE_INVALIDATED

START_TEST(captures_forbid_by_modes)
{
	const CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL;
	const CUstreamCaptureMode local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
	const CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	const struct {
		CUstreamCaptureMode capture;
		CUstreamCaptureMode thread;
		bool is_own;
		CUresult result;
	} cases[] = {
		{global, global, true, FORBIDDEN},      {global, relaxed, true, CUDA_SUCCESS},
		{local, global, true, FORBIDDEN},       {relaxed, global, true, CUDA_SUCCESS},
		{global, global, false, FORBIDDEN},     {global, local, false, CUDA_SUCCESS},
		{global, relaxed, false, CUDA_SUCCESS}, {local, global, false, CUDA_SUCCESS},
		{relaxed, global, false, CUDA_SUCCESS},
	};
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUevent event;
	CUgraph graph;

	ck_ok(cu.EventCreate(&event, 0));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		CUstreamCaptureMode mode = cases[i].thread;
		CUresult result;
		ck_ok(cu.StreamBeginCapture_v2(stream, cases[i].capture));
		if (cases[i].is_own) {
			ck_ok(cu.ThreadExchangeStreamCaptureMode(&mode));
			result = cu.EventQuery(event);
			ck_ok(cu.ThreadExchangeStreamCaptureMode(&mode));
		} else {
			result = ask_elsewhere(driver_context, mode, event);
		}
		ck_assert_msg(result == cases[i].result, "case %zu gave %d", i, result);
		ck_cu(cu.StreamEndCapture(stream, &graph),
		      result == CUDA_SUCCESS ? CUDA_SUCCESS : BROKEN);
	}
}
END_TEST

START_TEST_WITH(captures_forbid_in_any_mode, .begin = driver_not_yet)
{
	CUcontext ctx = driver_begin("2x64MiB");
	CUcontext second;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUstream other = stream_new(CU_STREAM_NON_BLOCKING);
	CUgraph graph;
	unsigned long long id;

	ck_ok(cu.ThreadExchangeStreamCaptureMode(&mode));
	ck_ok(cu.StreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	ck_cu(cu.CtxSynchronize(), FORBIDDEN);
	ck_cu(cu.StreamEndCapture(stream, &graph), BROKEN);
	ck_ok(cu.StreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	ck_cu(cu.StreamGetId(stream, &id), FORBIDDEN);
	ck_cu(cu.StreamEndCapture(stream, &graph), BROKEN);
	/* But not for others than these. */
	ck_ok(cu.DevicePrimaryCtxRetain(&second, 1));
	ck_ok(cu.StreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	ck_ok(cu.StreamGetId(other, &id));
	ck_ok(cu.StreamSynchronize(other));
	ck_ok(cu.CtxSetCurrent(second));
	ck_ok(cu.CtxSynchronize());
	ck_ok(cu.CtxSetCurrent(ctx));
	ck_ok(cu.StreamEndCapture(stream, &graph));
}
END_TEST

START_TEST(captures_end_with_their_stream_and_context)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUcontext again;
	unsigned long long first = 0;
	unsigned long long next = 0;

	ck_ok(cu.StreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	ck_ok(cu.StreamDestroy_v2(stream));
	alloc(GRANULE);
	stream = stream_new(CU_STREAM_NON_BLOCKING);
	ck_ok(cu.StreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	ck_ok(cu.CtxGetId(driver_context, &first));
	ck_ok(cu.DevicePrimaryCtxReset_v2(0));
	ck_ok(cu.DevicePrimaryCtxRetain(&again, 0));
	ck_ok(cu.CtxGetId(again, &next));
	ck_assert_ptr_eq(again, driver_context);
	ck_assert_uint_ne(next, first);
	ck_ok(cu.CtxSetCurrent(again));
	alloc(GRANULE);
}
END_TEST
