/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: kernels that a test brings along, and what becomes of them when access goes. */
#include "tests/cudasim/test_given.h"
#include "tests/spin.h"

#include <pthread.h>
#include <stdatomic.h>

BEGIN_EACH(driver_begin_64m)

START_TEST(kernels_get_their_parameters_both_ways)
{
	CUdeviceptr ptr = alloc(64);
	uint32_t value = 5;
	void *params[] = {&ptr, &value};
	size_t offset = 0;
	size_t bytes = 0;

	ck_ok(launch(given("put"), NULL, params));
	ck_assert_uint_eq(read_u32(ptr), 5);
	ck_ok(launch_put(ptr + 4, 6, NULL));
	ck_assert_uint_eq(read_u32(ptr + 4), 6);
	ck_cu(launch_packed(given("put"), params, 8, NULL), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.FuncGetParamInfo(given("put_late"), 2, &offset, &bytes));
	ck_assert_uint_eq(offset, offsetof(struct put_late_params, value));
	ck_assert_uint_eq(bytes, 4);
	ck_cu(cu.FuncGetParamInfo(given("put_late"), 3, &offset, &bytes), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.ModuleGetFunction(&(CUfunction){0}, given_module(), "no_such"),
	      CUDA_ERROR_NOT_FOUND);
}
END_TEST

START_TEST(other_ways_to_launch_are_launches)
{
	CUdeviceptr ptr = alloc(64);
	uint32_t value = 5;
	void *params[] = {&ptr, &value};
	CUlaunchConfig config = {
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 1,
		.blockDimY = 1,
		.blockDimZ = 1,
	};
	CUlibrary library;
	CUkernel kernel;
	CUfunction found;

	ck_ok(cu.LaunchKernelEx(&config, given("put"), params, NULL));
	ck_assert_uint_eq(read_u32(ptr), 5);
	value = 6;
	ck_ok(cu.LaunchCooperativeKernel(given("put"), 1, 1, 1, 1, 1, 1, 0, NULL, params));
	ck_assert_uint_eq(read_u32(ptr), 6);
	ck_ok(cu.LibraryLoadData(&library, &given_image, NULL, NULL, 0, NULL, NULL, 0));
	ck_ok(cu.LibraryGetKernel(&kernel, library, "put"));
	value = 7;
	ck_ok(launch((CUfunction)kernel, NULL, params)); /* as cuda.h allows */
	ck_assert_uint_eq(read_u32(ptr), 7);
	ck_ok(cu.KernelGetFunction(&found, kernel));
	value = 8;
	ck_ok(launch(found, NULL, params));
	ck_assert_uint_eq(read_u32(ptr), 8);
	ck_ok(cu.LibraryUnload(library));
}
END_TEST

START_TEST(pointers_hide_in_memory_and_in_variables)
{
	CUdeviceptr ptr = alloc(64), place = alloc(8), variable;
	size_t bytes = 0;

	ck_ok(cu.MemcpyHtoD_v2(place, &ptr, sizeof(ptr)));
	ck_ok(launch_put_hidden(place, 9, NULL));
	ck_assert_uint_eq(read_u32(ptr), 9);
	ck_ok(cu.ModuleGetGlobal_v2(&variable, &bytes, given_module(), "pointer"));
	ck_assert_uint_eq(bytes, 8);
	ck_assert_uint_eq(read_u32(variable), 0);
	ck_ok(cu.MemcpyHtoD_v2(variable, &ptr, sizeof(ptr)));
	ck_ok(launch_put_hidden(variable, 10, NULL));
	ck_assert_uint_eq(read_u32(ptr), 10);
	ck_cu(cu.ModuleGetGlobal_v2(&variable, &bytes, given_module(), "no_such"),
	      CUDA_ERROR_NOT_FOUND);
}
END_TEST

/* The address of a store need not be a parameter, nor in memory when the kernel is submitted. */
START_TEST(a_hidden_write_to_read_only_memory_ends_the_context)
{
	CUdeviceptr addr = chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE), place = alloc(8);

	ck_ok(launch_put(addr, 1, NULL));
	ck_ok(cu.MemcpyHtoD_v2(place, &addr, sizeof(addr)));
	ck_ok(cu.CtxSynchronize());
	ck_ok(set_access(addr, GRANULE, READ_ONLY));
	ck_assert_uint_eq(read_u32(addr), 1);
	ck_ok(launch_put_hidden(place, 2, NULL));
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(a_kernel_waits_for_another_stream)
{
	CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr words = zeroed(64);

	ck_ok(launch_put_late(words, words + 4, 7, a));
	ck_cu(cu.StreamQuery(a), CUDA_ERROR_NOT_READY);
	ck_ok(launch_put(words, 1, b));
	ck_ok(cu.StreamSynchronize(a));
	ck_assert_uint_eq(read_u32(words + 4), 7);
}
END_TEST

/* As measured on an H200: sets and copies on the device are kernels, copies from and to the host are not. */
START_TEST(a_kernel_that_fills_the_device_keeps_kernels_out)
{
	CUstream streams[4];
	CUdeviceptr words = zeroed(64), other = alloc(64), begun = words + 4;
	void *params[] = {&words, &begun};
	uint32_t word = 0, one = 1;
	CUmodule module;
	CUfunction hold;

	for (unsigned i = 0; i < 4; i++) {
		streams[i] = stream_new(CU_STREAM_NON_BLOCKING);
	}
	ck_ok(cu.ModuleLoadData(&module, &spin_image));
	ck_ok(cu.ModuleGetFunction(&hold, module, "hold"));
	ck_ok(cu.LaunchKernel(hold, 264, 1, 1, 1024, 1, 1, 0, streams[0], params, NULL));
	while (word == 0) {
		ck_ok(cu.MemcpyDtoHAsync_v2(&word, begun, sizeof(word), streams[3]));
		ck_ok(cu.StreamSynchronize(streams[3]));
	}
	ck_ok(cu.MemsetD8Async(other, 3, 16, streams[1]));
	ck_ok(cu.MemcpyDtoDAsync_v2(other + 32, words, 4, streams[2]));
	ck_ok(cu.MemcpyHtoDAsync_v2(other + 16, &one, sizeof(one), streams[3]));
	ck_ok(cu.StreamSynchronize(streams[3]));
	for (unsigned i = 0; i < 3; i++) {
		ck_cu(cu.StreamQuery(streams[i]), CUDA_ERROR_NOT_READY);
	}
	ck_ok(cu.MemcpyHtoDAsync_v2(words, &one, sizeof(one), streams[3]));
	ck_ok(cu.CtxSynchronize());
	ck_assert_uint_eq(read_u32(other), 0x03030303);
	ck_assert_uint_eq(read_u32(other + 32), 1);
}
END_TEST

/* As measured on an H200: a change of access, or an unmap, waits for nobody, and the late store faults. */
START_TEST_WITH(a_late_store_meets_a_change_or_the_unmap, .n = 2)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING),
		 b = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr flag = zeroed(4);
	CUdeviceptr addr = chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE);

	ck_ok(launch_put_late(flag, addr, 7, stream));
	ck_ok(_i ? cu.MemUnmap(addr, GRANULE) : set_access(addr, GRANULE, READ_ONLY));
	ck_cu(cu.StreamQuery(stream), CUDA_ERROR_NOT_READY);
	ck_ok(launch_put(flag, 1, b));
	ck_cu(cu.StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.StreamSynchronize(b), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

/* Other memory is mapped, opened and unmapped beside a kernel that runs. */
START_TEST(other_ranges_change_beside_a_kernel)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING),
		 b = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr flag = zeroed(8);
	CUdeviceptr at = reserve(2 * GRANULE);
	CUmemGenericAllocationHandle first = chunk_new(GRANULE), second = chunk_new(GRANULE);

	ck_ok(cu.MemMap(at, GRANULE, 0, first, 0));
	ck_ok(set_access(at, GRANULE, READ_WRITE));
	ck_ok(launch_put_late(flag, at, 7, stream));
	ck_ok(cu.MemMap(at + GRANULE, GRANULE, 0, second, 0));
	ck_ok(set_access(at + GRANULE, GRANULE, READ_WRITE));
	ck_ok(set_access(at + GRANULE, GRANULE, READ_ONLY));
	ck_ok(cu.MemUnmap(at + GRANULE, GRANULE));
	ck_cu(cu.StreamQuery(stream), CUDA_ERROR_NOT_READY);
	ck_ok(launch_put(flag, 1, b));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(read_u32(at), 7);
}
END_TEST

struct opener {
	CUcontext ctx;
	CUdeviceptr flag;
	atomic_bool *is_freed;
	bool was_freed_before;
};

static void *open_later(void *argument)
{
	struct opener *opener = argument;
	CUstream stream;
	uint32_t one = 1;

	must_ok(cu.CtxSetCurrent(opener->ctx));
	usleep(50000);
	opener->was_freed_before = atomic_load(opener->is_freed);
	must_ok(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	must_ok(cu.MemcpyHtoDAsync_v2(opener->flag, &one, 4, stream));
	return NULL;
}

START_TEST(a_free_waits_for_kernels)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr flag = zeroed(4), freed = alloc(GRANULE), other = alloc(4);
	atomic_bool is_freed = false;
	struct opener opener = {.ctx = driver_context, .flag = flag, .is_freed = &is_freed};
	pthread_t thread;

	ck_ok(launch_put_late(flag, other, 7, stream));
	ck_assert_int_eq(pthread_create(&thread, NULL, open_later, &opener), 0);
	ck_ok(cu.MemFree_v2(freed));
	atomic_store(&is_freed, true);
	pthread_join(thread, NULL);
	ck_assert(!opener.was_freed_before);
	ck_assert_uint_eq(read_u32(other), 7);
}
END_TEST

/* Nobody has to come for those that wait when the context is lost. */
START_TEST(waiting_kernels_end_with_their_context)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING),
		 b = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr flag = zeroed(8);

	ck_ok(launch_put_late(flag, flag + 4, 7, stream));
	ck_ok(launch_put(reserve(GRANULE), 1, b));
	ck_cu(cu.StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST
