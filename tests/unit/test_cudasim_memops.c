/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: streams that wait for memory, callbacks, and events of contexts. */
#include "tests/cudasim/test_work.h"

#include <sched.h>
#include <stdatomic.h>

BEGIN_EACH(driver_begin_64m)

START_TEST(streams_wait_for_words)
{
	CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr words = zeroed(64);

	ck_ok(cu.StreamWaitValue32_v2(a, words, 3, CU_STREAM_WAIT_VALUE_GEQ));
	ck_ok(cu.MemsetD32Async(words + 16, 7, 1, a));
	ck_cu(cu.StreamQuery(a), CUDA_ERROR_NOT_READY);
	ck_ok(cu.StreamWriteValue32_v2(b, words, 2, 0));
	ck_ok(cu.StreamSynchronize(b));
	ck_cu(cu.StreamQuery(a), CUDA_ERROR_NOT_READY);
	ck_ok(cu.StreamWriteValue32_v2(b, words, 4, 0));
	ck_ok(cu.StreamSynchronize(a));
	ck_assert_uint_eq(read_u32(words + 16), 7);
	/* Also with words of the host, that the host writes. */
	uint64_t *pinned;
	ck_ok(cu.MemHostAlloc((void **)&pinned, 64, 0));
	*pinned = 0;
	ck_ok(cu.StreamWaitValue64_v2(a, (uintptr_t)pinned, 5, CU_STREAM_WAIT_VALUE_EQ));
	ck_cu(cu.StreamQuery(a), CUDA_ERROR_NOT_READY);
	__atomic_store_n(pinned, 5, __ATOMIC_RELEASE);
	ck_ok(cu.StreamSynchronize(a));
	ck_ok(cu.StreamWriteValue64_v2(a, (uintptr_t)(pinned + 1), 1ULL << 40, 0));
	ck_ok(cu.StreamSynchronize(a));
	ck_assert_uint_eq(pinned[1], 1ULL << 40);
}
END_TEST

START_TEST(conditions_are_those_of_the_header)
{
	static const struct {
		uint32_t now;
		uint32_t value;
		unsigned flags;
	} met[] = {
		{0, 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ}, /* cyclic */
		{6, 6, CU_STREAM_WAIT_VALUE_GEQ},          {6, 6, CU_STREAM_WAIT_VALUE_EQ},
		{6, 2, CU_STREAM_WAIT_VALUE_AND},          {6, 1, CU_STREAM_WAIT_VALUE_NOR},
	};
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr word = zeroed(8);

	for (size_t i = 0; i < sizeof(met) / sizeof(met[0]); i++) {
		ck_ok(cu.StreamWriteValue32_v2(stream, word, met[i].now, 0));
		ck_ok(cu.StreamWaitValue32_v2(stream, word, met[i].value, met[i].flags));
		ck_ok(cu.StreamSynchronize(stream));
	}
	ck_cu(cu.StreamWaitValue32_v2(stream, word + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.StreamWaitValue32_v2(stream, reserve(GRANULE), 1, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(batches_go_in_order)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr word = zeroed(8);
	CUstreamBatchMemOpParams ops[3] = {0};

	ops[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	ops[0].writeValue.address = word;
	ops[0].writeValue.value = 8;
	ops[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
	ops[1].waitValue.address = word;
	ops[1].waitValue.value = 8;
	ops[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
	ops[2] = ops[0];
	ops[2].writeValue.address = word + 4;
	ck_ok(cu.StreamBatchMemOp_v2(stream, 3, ops, 0));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(read_u32(word + 4), 8);
	ck_cu(cu.StreamBatchMemOp_v2(stream, 0, ops, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* A word in memory that only kernels may write is no place for a stream to write to. */
START_TEST(writing_a_word_needs_access)
{
	struct gate gate;
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr addr = chunk_map(chunk_new(GRANULE), GRANULE, READ_ONLY);

	ck_cu(cu.StreamWriteValue32_v2(stream, addr, 1, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(set_access(addr, GRANULE, READ_WRITE));
	gate_close(&gate, stream);
	ck_ok(cu.StreamWriteValue32_v2(stream, addr, 1, 0));
	ck_ok(set_access(addr, GRANULE, READ_ONLY));
	gate_open(&gate);
	ck_cu(cu.StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

static atomic_int seen_status = -1;

static void CUDA_CB note_status(CUstream stream, CUresult status, void *data)
{
	*(CUstream *)data = stream;
	atomic_store(&seen_status, (int)status);
}

START_TEST(callbacks_hear_of_lost_contexts)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUstream seen = NULL;
	uint64_t n = 4;
	CUdeviceptr nowhere = reserve(GRANULE), out = alloc(8);
	void *params[] = {&nowhere, &n, &out};

	ck_ok(cu.StreamAddCallback(stream, note_status, &seen, 0));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_ptr_eq(seen, stream);
	ck_assert_int_eq(atomic_load(&seen_status), CUDA_SUCCESS);
	ck_cu(cu.StreamAddCallback(stream, note_status, &seen, 1), CUDA_ERROR_INVALID_VALUE);
	ck_ok(launch(function("cudasim_sum"), stream, params));
	/* Unless the fault is seen first, which forbids the call. */
	CUresult err = cu.StreamAddCallback(stream, note_status, &seen, 0);
	ck_cu(cu.StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_assert(err == CUDA_SUCCESS || err == CUDA_ERROR_ILLEGAL_ADDRESS);
	/* In a lost context a wait ends at once, maybe before the callback. */
	while (err == CUDA_SUCCESS && atomic_load(&seen_status) == CUDA_SUCCESS) {
		sched_yield();
	}
	ck_assert(err != CUDA_SUCCESS || atomic_load(&seen_status) == CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(an_event_of_a_context_is_behind_all_its_streams)
{
	struct gate first, second;
	CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING);
	CUstream c = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(4);
	CUevent event;

	ck_ok(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
	ck_ok(cu.CtxRecordEvent(driver_context, event));
	ck_ok(cu.EventQuery(event));
	gate_close(&first, a);
	gate_close(&second, b);
	ck_ok(cu.CtxRecordEvent(driver_context, event));
	ck_ok(cu.MemsetD8Async(ptr, 1, 4, c)); /* later, and not waited for */
	ck_ok(cu.StreamSynchronize(c));
	ck_cu(cu.EventQuery(event), CUDA_ERROR_NOT_READY);
	gate_open(&first);
	ck_ok(cu.StreamSynchronize(a));
	ck_cu(cu.EventQuery(event), CUDA_ERROR_NOT_READY);
	gate_open(&second);
	ck_ok(cu.EventSynchronize(event));
	ck_ok(cu.EventQuery(event));
}
END_TEST

/* The default stream waits for blocking ones, and they for it; but not for the sake of the event. */
START_TEST(an_event_of_a_context_holds_no_stream_back)
{
	struct gate first;
	struct gate second;
	CUstream a = stream_new(CU_STREAM_DEFAULT);
	CUstream b = stream_new(CU_STREAM_DEFAULT);
	CUdeviceptr ptr = alloc(4);
	CUevent event;

	ck_ok(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
	gate_close(&first, NULL);
	sem_init(&second.entered, 0, 0);
	sem_init(&second.open, 0, 0);
	ck_ok(cu.LaunchHostFunc(a, stand_at_gate, &second));
	ck_ok(cu.CtxRecordEvent(driver_context, event));
	ck_ok(cu.MemsetD8Async(ptr, 1, 4, b));
	gate_open(&first);
	ck_ok(cu.StreamSynchronize(b));
	ck_cu(cu.EventQuery(event), CUDA_ERROR_NOT_READY);
	gate_open(&second);
	ck_ok(cu.EventSynchronize(event));
}
END_TEST

START_TEST(streams_know_what_they_are)
{
	CUstream stream;
	unsigned flags = 9;
	int priority = 9;

	ck_ok(cu.StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -2));
	ck_ok(cu.StreamGetFlags(stream, &flags));
	ck_assert_uint_eq(flags, CU_STREAM_NON_BLOCKING);
	ck_ok(cu.StreamGetPriority(stream, &priority));
	ck_assert_int_eq(priority, -2);
	ck_ok(cu.StreamGetFlags(NULL, &flags));
	ck_assert_uint_eq(flags, 0);
}
END_TEST
