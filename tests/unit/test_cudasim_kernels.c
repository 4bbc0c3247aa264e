/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: kernels, and what a GPU does not forgive. */
#include "tests/cudasim/test_work.h"

#include <xxhash.h>

#include "proto/cleanup.h"

BEGIN_EACH(driver_begin_64m)

START_TEST(modules_and_functions_are_looked_at)
{
	static const uint32_t fatbin[4] = {0xba55ed50};
	CUmodule module;
	CUfunction found;
	int value = 0;

	ck_cu(cu.ModuleLoadData(&module, NULL), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.ModuleLoadData(&module, "neither nor"), CUDA_ERROR_INVALID_IMAGE);
	ck_ok(cu.ModuleLoadData(&module, fatbin));
	ck_ok(cu.ModuleUnload(module));
	ck_ok(cu.ModuleLoadData(&module, image));
	ck_cu(cu.ModuleGetFunction(&found, module, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
	ck_ok(cu.ModuleGetFunction(&found, module, "glake_compare"));
	ck_ok(cu.FuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, found));
	ck_assert_int_eq(value, 1024);
	ck_ok(cu.OccupancyMaxActiveBlocksPerMultiprocessor(&value, found, 256, 0));
	ck_assert_int_eq(value, 8);
	ck_ok(cu.ModuleUnload(module));
}
END_TEST

START_TEST(launches_are_checked)
{
	CUfunction kernel = function("cudasim_fill");
	CUdeviceptr ptr = alloc(64);
	uint64_t n = 64;
	uint32_t value = 0x1ff;
	void *params[] = {&ptr, &n, &value};
	struct {
		uint64_t dst;
		uint64_t n;
		uint32_t value;
	} packed = {ptr, 32, 0x22};
	size_t packed_bytes = 20;
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
	                 &packed_bytes, CU_LAUNCH_PARAM_END};

	ck_cu(cu.LaunchKernel(kernel, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.LaunchKernel(kernel, 1, 1, 1, 2048, 1, 1, 0, NULL, params, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.LaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL),
	      CUDA_ERROR_INVALID_HANDLE);
	ck_cu(launch(kernel, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
	ck_ok(launch(kernel, NULL, params));
	ck_assert_uint_eq(read_u32(ptr + 60), 0xffffffff);
	ck_ok(cu.LaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
	ck_assert_uint_eq(read_u32(ptr + 28), 0x22222222);
	ck_assert_uint_eq(read_u32(ptr + 32), 0xffffffff);
	packed_bytes = 16;
	ck_cu(cu.LaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra),
	      CUDA_ERROR_INVALID_VALUE);
}
END_TEST

static uint64_t sum_of(CUdeviceptr src, uint64_t n)
{
	CUdeviceptr out = alloc(8);
	void *params[] = {&src, &n, &out};
	uint64_t sum = 0;

	ck_ok(launch(function("cudasim_sum"), NULL, params));
	ck_ok(cu.MemcpyDtoH_v2(&sum, out, sizeof(sum)));
	return sum;
}

START_TEST(fill_and_sum_agree)
{
	CUdeviceptr ptr = alloc(3 * GRANULE);

	ck_ok(launch_fill(ptr, 3 * GRANULE, 3, NULL));
	ck_assert_uint_eq(sum_of(ptr, 3 * GRANULE), 9 * GRANULE);
}
END_TEST

struct root_item {
	uint64_t leaves;
	uint64_t n_leaves;
	uint64_t content_bytes;
	uint64_t root_out;
};

START_TEST(digests_are_those_of_the_host)
{
	enum { LEAF = 8192, N_LEAVES = 300 };
	uint8_t *content = malloc(N_LEAVES * LEAF);
	uint64_t *expected = calloc(N_LEAVES, 16), *got = calloc(N_LEAVES, 16);
	uint64_t n_leaves = N_LEAVES, root[2], got_root[2];
	/* Two chunks side by side, so that the content crosses a mapping. */
	CUdeviceptr base = reserve(2 * GRANULE), leaves = alloc(N_LEAVES * 16), items = alloc(64);
	CUdeviceptr root_out = alloc(16);

	ck_ok(cu.MemMap(base, GRANULE, 0, chunk_new(GRANULE), 0));
	ck_ok(cu.MemMap(base + GRANULE, GRANULE, 0, chunk_new(GRANULE), 0));
	ck_ok(set_access(base, 2 * GRANULE, READ_WRITE));
	for (size_t i = 0; i < N_LEAVES * LEAF; i++) {
		content[i] = (uint8_t)(i * 31 + i / 977);
	}
	for (size_t i = 0; i < N_LEAVES; i++) {
		XXH128_hash_t hash = XXH3_128bits(content + i * LEAF, LEAF);
		expected[2 * i] = hash.low64;
		expected[2 * i + 1] = hash.high64;
	}
	ck_ok(cu.MemcpyHtoD_v2(base, content, N_LEAVES * LEAF));
	ck_ok(set_access(base, 2 * GRANULE, READ_ONLY));
	void *params[] = {&base, &n_leaves, &leaves};
	ck_ok(launch(function("glake_digest_leaves"), NULL, params));
	ck_ok(cu.MemcpyDtoH_v2(got, leaves, N_LEAVES * 16));
	ck_assert_mem_eq(got, expected, N_LEAVES * 16);

	struct root_item item = {leaves, N_LEAVES, 12345, root_out};
	uint32_t n_items = 1;
	void *root_params[] = {&items, &n_items};
	uint8_t *both = malloc(N_LEAVES * 16 + 8);
	memcpy(both, expected, N_LEAVES * 16);
	memcpy(both + N_LEAVES * 16, &item.content_bytes, 8);
	XXH128_hash_t hash = XXH3_128bits(both, N_LEAVES * 16 + 8);
	root[0] = hash.low64;
	root[1] = hash.high64;
	ck_ok(cu.MemcpyHtoD_v2(items, &item, sizeof(item)));
	ck_ok(launch(function("glake_digest_roots"), NULL, root_params));
	ck_ok(cu.MemcpyDtoH_v2(got_root, root_out, 16));
	ck_assert_mem_eq(got_root, root, 16);
	free(both);
	free(content);
	free(expected);
	free(got);
}
END_TEST

static uint32_t compare(CUdeviceptr a, CUdeviceptr b, uint64_t n, CUdeviceptr out)
{
	void *params[] = {&a, &b, &n, &out};

	ck_ok(launch(function("glake_compare"), NULL, params));
	return read_u32(out);
}

START_TEST(compare_finds_one_byte_and_forgets_nothing)
{
	CUdeviceptr a = alloc(2 * GRANULE), b = alloc(2 * GRANULE), out = alloc(4);

	ck_ok(cu.MemsetD32_v2(out, 0, 1));
	ck_assert_uint_eq(compare(a, b, 2 * GRANULE, out), 0);
	ck_ok(cu.MemsetD8_v2(b + 2 * GRANULE - 1, 1, 1));
	ck_assert_uint_eq(compare(a, b, 2 * GRANULE - 1, out), 0);
	ck_assert_uint_eq(compare(a, b, 2 * GRANULE, out), 1);
	ck_assert_uint_eq(compare(a, a, GRANULE, out), 1);
}
END_TEST

/* --- what a GPU does not forgive --- */

static void survive_next_door(int sock)
{
	CUmemGenericAllocationHandle handle;
	uint8_t byte = 0;

	driver_start();
	must_ok(chunk_import(recv_fd(sock), &handle));
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_ONLY);
	send_byte(sock);
	recv_byte(sock);
	must_ok(cu.MemcpyDtoH_v2(&byte, addr, 1));
	must(byte == 0x33);
	must_ok(cu.CtxSynchronize());
}

START_TEST_WITH(an_illegal_write_ends_the_context_for_good, .begin = driver_not_yet)
{
	driver_setup("1x64MiB");
	struct child child = child_start(survive_next_door);
	driver_start();
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE), other;
	CUdeviceptr addr = chunk_map(handle, GRANULE, READ_WRITE), ptr = alloc(100);
	CUdeviceptr more;
	CUcontext ctx;
	CUevent event;
	CUstream stream = stream_new(0);
	size_t a, b;
	uint8_t byte = 0;

	ck_ok(cu.EventCreate(&event, 0));
	ck_ok(cu.MemsetD8_v2(addr, 0x33, GRANULE));
	ck_ok(cu.CtxSynchronize());
	ck_ok(set_access(addr, GRANULE, READ_ONLY));
	int fd = chunk_export(handle);
	send_fd(child.sock, fd);
	recv_byte(child.sock);
	ck_assert_uint_eq(sum_of(addr, 4), 4 * 0x33);
	ck_ok(launch_fill(addr, 4, 1, NULL));
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.StreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.EventQuery(event), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.MemGetInfo_v2(&a, &b), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.MemAlloc_v2(&more, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.MemFree_v2(ptr), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.MemcpyDtoH_v2(&byte, addr, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
	/* Calls that need no context go on, so that memory can be handed over. */
	ck_ok(chunk_try(0, GRANULE, &other));
	more = reserve(GRANULE);
	ck_ok(cu.MemMap(more, GRANULE, 0, other, 0));
	ck_ok(set_access(more, GRANULE, READ_WRITE));
	ck_ok(cu.MemUnmap(more, GRANULE));
	close(chunk_export(other));
	ck_ok(cu.MemRelease(other));
	ck_ok(cu.CtxGetCurrent(&ctx));
	/* A sanitizer sees that these free what they are given all the same. */
	ck_cu(cu.EventDestroy_v2(event), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.StreamDestroy_v2(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_ok(cu.DevicePrimaryCtxReset_v2(0));
	ck_cu(cu.MemGetInfo_v2(&a, &b), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	ck_cu(cu.DevicePrimaryCtxRetain(&ctx, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
	send_byte(child.sock);
	ck_assert_int_eq(child_join(&child), 0);
}
END_TEST

START_TEST(kernels_fault_where_nothing_is_mapped)
{
	uint64_t n = 4;
	CUdeviceptr nowhere = reserve(GRANULE), out = alloc(8);
	void *params[] = {&nowhere, &n, &out};

	ck_ok(launch(function("cudasim_sum"), NULL, params));
	ck_cu(cu.StreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(kernels_fault_on_pageable_memory)
{
	static int pageable;

	ck_ok(launch_fill((uintptr_t)&pageable, 4, 1, NULL));
	ck_cu(cu.StreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_assert_int_eq(pageable, 0);
}
END_TEST

static const struct {
	bool is_read;     /* by a copy, or else written to by a set */
	bool is_unmapped; /* or else it may only be read from now on */
	bool is_freed;    /* the addresses are not host memory all of a sudden */
} takings[] = {{false, false, false}, {true, true, false}, {true, true, true}, {false, true, true}};

START_TEST_WITH(taking_memory_away_does_not_wait_for_work, .n = n_elements(takings))
{
	struct gate gate;
	CUdeviceptr addr = chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE), ptr = alloc(GRANULE);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);

	gate_close(&gate, stream);
	if (takings[_i].is_read) {
		ck_ok(cu.MemcpyDtoDAsync_v2(ptr, addr, GRANULE, stream));
	} else {
		ck_ok(cu.MemsetD8Async(addr, 1, GRANULE, stream));
	}
	if (takings[_i].is_unmapped) {
		ck_ok(cu.MemUnmap(addr, GRANULE));
	} else {
		ck_ok(set_access(addr, GRANULE, READ_ONLY));
	}
	if (takings[_i].is_freed) {
		ck_ok(cu.MemAddressFree(addr, GRANULE));
	}
	gate_open(&gate);
	ck_cu(cu.StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

/* As the driver 580.159 does on two H200s. */
START_TEST_WITH(copies_reach_what_other_devices_allocate_but_not_what_they_map,
                .begin = driver_not_yet)
{
	CUcontext first = driver_begin("2x64MiB"), second;
	CUmemGenericAllocationHandle handle;
	CUdeviceptr mapped;
	CUmemAccessDesc desc = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
		.flags = READ_WRITE,
	};
	uint32_t word = 7;

	ck_ok(cu.DevicePrimaryCtxRetain(&second, 1));
	ck_ok(chunk_try(1, GRANULE, &handle));
	ck_ok(cu.MemAddressReserve(&mapped, GRANULE, 0, 0, 0));
	ck_ok(cu.MemMap(mapped, GRANULE, 0, handle, 0));
	ck_ok(cu.MemSetAccess(mapped, GRANULE, &desc, 1));
	ck_ok(cu.CtxSetCurrent(second));
	CUdeviceptr there = alloc(64);
	ck_ok(cu.MemsetD8_v2(mapped, 3, 64));
	ck_ok(cu.CtxSetCurrent(first));
	CUdeviceptr here = alloc(64);
	ck_ok(cu.MemcpyHtoD_v2(there, &word, 4));
	ck_ok(cu.MemcpyDtoH_v2(&word, there, 4));
	ck_cu(cu.MemsetD8_v2(there, 1, 4), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyHtoD_v2(mapped, &word, 4), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyDtoH_v2(&word, mapped, 4), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyDtoD_v2(here, mapped, 4), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemsetD8_v2(mapped, 1, 4), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemcpyPeer(here, first, mapped, second, 64));
	ck_assert_uint_eq(read_u32(here), 0x03030303);
	desc.location.id = 0;
	ck_ok(cu.MemSetAccess(mapped, GRANULE, &desc, 1));
	ck_ok(cu.MemsetD8_v2(mapped, 1, 4));
	ck_assert_uint_eq(read_u32(mapped), 0x01010101);
}
END_TEST

START_TEST_WITH(devices_reach_what_they_may, .begin = driver_not_yet)
{
	CUcontext first = driver_begin("2x64MiB"), second;
	CUmemGenericAllocationHandle handle;
	CUmemAccessDesc desc = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
		.flags = READ_WRITE,
	};

	ck_ok(cu.DevicePrimaryCtxRetain(&second, 1));
	ck_ok(chunk_try(1, GRANULE, &handle));
	CUdeviceptr here = alloc(64), there = chunk_map(handle, GRANULE, READ_ONLY);
	ck_ok(cu.MemSetAccess(there, GRANULE, &desc, 1));
	ck_ok(cu.MemsetD8_v2(here, 7, 64));
	/* A copy goes by the device that may write; a kernel of the other one may only read. */
	ck_ok(cu.MemcpyPeer(there, second, here, first, 64));
	ck_ok(cu.CtxSynchronize());
	ck_assert_uint_eq(sum_of(there, 64), 7 * 64);
	ck_ok(cu.CtxSetCurrent(second));
	ck_ok(launch_fill(there, 64, 8, NULL));
	ck_ok(cu.CtxSynchronize());
	ck_ok(cu.CtxEnablePeerAccess(first, 0));
	ck_cu(cu.CtxEnablePeerAccess(first, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	ck_ok(launch_fill(here, 64, 9, NULL));
	ck_ok(cu.CtxSynchronize());
	ck_ok(cu.CtxSetCurrent(first));
	ck_assert_uint_eq(read_u32(here), 0x09090909);
	ck_ok(launch_fill(there, 64, 8, NULL));
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_ok(cu.CtxSetCurrent(second));
	ck_ok(cu.CtxSynchronize());
}
END_TEST
