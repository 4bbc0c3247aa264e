/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: default streams, and streams that wait for threads of the program. */
#include "tests/cudasim/test_given.h"

#include <pthread.h>
#include <stdatomic.h>

BEGIN_EACH(driver_begin_64m)

/* The legacy one waits for those of threads, and they for it, as for any blocking stream. */
START_TEST(default_streams_of_threads_are_blocking)
{
	struct gate gate;
	CUdeviceptr ptr = alloc(64);
	unsigned flags = 9;

	ck_ok(cu.StreamGetFlags(CU_STREAM_PER_THREAD, &flags));
	ck_assert_uint_eq(flags, 0);
	gate_close(&gate, CU_STREAM_PER_THREAD);
	ck_ok(cu.MemsetD8_v2(ptr, 1, 4));
	ck_cu(cu.StreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(CU_STREAM_LEGACY));
	gate_close(&gate, CU_STREAM_LEGACY);
	ck_ok(cu.MemsetD8Async(ptr, 2, 4, CU_STREAM_PER_THREAD));
	ck_cu(cu.StreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(CU_STREAM_PER_THREAD));
	ck_assert_uint_eq(read_u32(ptr), 0x02020202);
}
END_TEST

/* Calls of programs that are built for them. */
START_TEST(stream_zero_is_the_thread_s_where_asked_for)
{
	struct gate gate;
	CUdeviceptr ptr = alloc(64);
	CUstream other = stream_new(CU_STREAM_NON_BLOCKING);
	CUgraph graph;
	CUgraphExec exec;
	__typeof__(cuGraphLaunch) *launch_graph = per_thread("cuGraphLaunch");
	__typeof__(cuMemcpy2DAsync_v2) *copy_plane = per_thread("cuMemcpy2DAsync");
	__typeof__(cuStreamBeginCapture_v2) *begin = per_thread("cuStreamBeginCapture");
	__typeof__(cuStreamEndCapture) *end = per_thread("cuStreamEndCapture");
	__typeof__(cuMemsetD32Async) *set = per_thread("cuMemsetD32Async");
	CUDA_MEMCPY2D plane = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = ptr,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = ptr + 8,
		.WidthInBytes = 4,
		.Height = 1,
	};

	ck_ok(begin(NULL, CU_STREAM_CAPTURE_MODE_RELAXED)); /* the legacy one cannot be captured */
	ck_ok(set(ptr, 3, 1, NULL));
	ck_ok(copy_plane(&plane, NULL));
	ck_ok(end(NULL, &graph));
	ck_ok(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	gate_close(&gate, CU_STREAM_PER_THREAD);
	ck_ok(launch_graph(exec, NULL));
	ck_cu(cu.StreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
	ck_ok(cu.MemsetD8Async(ptr + 32, 1, 4, other));
	ck_ok(cu.StreamSynchronize(other));
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(CU_STREAM_PER_THREAD));
	ck_assert_uint_eq(read_u32(ptr + 8), 3);
}
END_TEST

struct partner {
	CUcontext ctx;
	CUdeviceptr words;
	atomic_bool has_begun;
};

/* Answers what a kernel of the other thread asks, as collectives with a thread for each GPU do. */
static void *answer(void *argument)
{
	struct partner *partner = argument;
	CUstream stream;

	must_ok(cu.CtxSetCurrent(partner->ctx));
	must_ok(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	must_ok(cu.StreamWaitValue32_v2(stream, partner->words, 1, CU_STREAM_WAIT_VALUE_EQ));
	must_ok(cu.StreamWriteValue32_v2(stream, partner->words + 4, 1, 0));
	atomic_store(&partner->has_begun, true);
	must_ok(cu.StreamSynchronize(stream));
	return NULL;
}

START_TEST(streams_wait_for_what_another_thread_submits)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	struct partner partner = {.ctx = driver_context, .words = zeroed(64)};
	pthread_t thread;

	ck_ok(launch_put(partner.words, 1, stream));
	ck_ok(launch_put_late(partner.words + 4, partner.words + 8, 7, stream));
	ck_cu(cu.StreamQuery(stream), CUDA_ERROR_NOT_READY);
	ck_assert_int_eq(pthread_create(&thread, NULL, answer, &partner), 0);
	ck_ok(cu.StreamSynchronize(stream));
	pthread_join(thread, NULL);
	ck_assert(atomic_load(&partner.has_begun));
	ck_assert_uint_eq(read_u32(partner.words + 8), 7);
}
END_TEST

static void CUDA_CB write_word(void *word)
{
	__atomic_store_n((uint32_t *)word, 1, __ATOMIC_RELEASE);
}

START_TEST(host_functions_release_kernels)
{
	CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(64);
	uint32_t *pinned;

	ck_ok(cu.MemHostAlloc((void **)&pinned, 64, 0));
	memset(pinned, 0, 64);
	ck_ok(launch_put_late((uintptr_t)pinned, ptr, 5, a));
	ck_cu(cu.StreamQuery(a), CUDA_ERROR_NOT_READY);
	ck_ok(cu.LaunchHostFunc(b, write_word, pinned));
	ck_ok(cu.StreamSynchronize(a));
	ck_assert_uint_eq(read_u32(ptr), 5);
}
END_TEST

struct opener {
	uint32_t *flag;
	atomic_bool *is_done;
	bool was_done_before;
};

static void *open_later(void *argument)
{
	struct opener *opener = argument;

	usleep(50000);
	opener->was_done_before = atomic_load(opener->is_done);
	write_word(opener->flag);
	return NULL;
}

/* Or its caller would free what a copy still reads. */
START_TEST(unregistering_waits_for_copies)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(MIB);
	void *memory = NULL;
	uint32_t *flag;
	atomic_bool is_done = false;
	pthread_t thread;

	ck_ok(cu.MemHostAlloc((void **)&flag, 64, 0));
	*flag = 0;
	ck_assert_int_eq(posix_memalign(&memory, 4096, MIB), 0);
	memset(memory, 8, MIB);
	ck_ok(cu.MemHostRegister_v2(memory, MIB, 0));
	struct opener opener = {.flag = flag, .is_done = &is_done};
	ck_ok(cu.StreamWaitValue32_v2(stream, (uintptr_t)flag, 1, CU_STREAM_WAIT_VALUE_EQ));
	ck_ok(cu.MemcpyHtoDAsync_v2(ptr, memory, MIB, stream));
	ck_assert_int_eq(pthread_create(&thread, NULL, open_later, &opener), 0);
	ck_ok(cu.MemHostUnregister(memory));
	atomic_store(&is_done, true);
	free(memory);
	pthread_join(thread, NULL);
	ck_assert(!opener.was_done_before);
	ck_assert_uint_eq(read_u32(ptr + MIB - 4), 0x08080808);
}
END_TEST
