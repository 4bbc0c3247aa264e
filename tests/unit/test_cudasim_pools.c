/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: memory pools. */
#include "tests/cudasim/test_work.h"

static CUmemoryPool pool_new(uint64_t threshold, uint64_t max_bytes)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.maxSize = max_bytes,
	};
	CUmemoryPool pool = NULL;

	ck_ok(cu.MemPoolCreate(&pool, &props));
	ck_ok(cu.MemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
	return pool;
}

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
	uint64_t value = 0;

	ck_ok(cu.MemPoolGetAttribute(pool, which, &value));
	return value;
}

static CUdeviceptr take(CUmemoryPool pool, size_t bytes, CUstream stream)
{
	CUdeviceptr ptr = 0;

	ck_ok(cu.MemAllocFromPoolAsync(&ptr, bytes, pool, stream));
	return ptr;
}

START_TEST(pools_keep_up_to_their_threshold)
{
	driver_begin("1x64MiB");
	CUmemoryPool pool = pool_new(8 * GRANULE, 0);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = take(pool, 4 * GRANULE, stream);

	ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4 * GRANULE);
	ck_ok(cu.MemFreeAsync(ptr, stream));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
	ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 4 * GRANULE);
	ck_assert_uint_eq(used_bytes(), 4 * GRANULE);
	ck_assert_uint_eq(take(pool, 3 * GRANULE, stream), ptr);
	ck_assert_uint_eq(used_bytes(), 4 * GRANULE);
	ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 3 * GRANULE);
	ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 4 * GRANULE);
	ck_ok(cu.MemFreeAsync(ptr, stream));
	ck_ok(cu.StreamSynchronize(stream));
	ck_ok(cu.MemPoolTrimTo(pool, 0));
	ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
	ck_assert_uint_eq(used_bytes(), 0);
	ck_assert_uint_eq(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 4 * GRANULE);
	ck_ok(cu.MemPoolDestroy(pool));
}
END_TEST

START_TEST(pools_give_way_to_who_needs_memory)
{
	driver_begin("1x16MiB");
	CUmemoryPool pool = pool_new(UINT64_MAX, 0);
	CUdeviceptr ptr = take(pool, 6 * GRANULE, NULL);

	ck_ok(cu.MemFreeAsync(ptr, NULL));
	ck_ok(cu.StreamSynchronize(NULL));
	ck_assert_uint_eq(used_bytes(), 6 * GRANULE);
	alloc(7 * GRANULE);
}
END_TEST

/* A driver may let what was just freed be the next one's; so the second one is no failure. */
START_TEST(what_is_freed_on_a_stream_is_there_for_it)
{
	driver_begin("1x16MiB");
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr, next;

	ck_ok(cu.MemAllocAsync(&ptr, 6 * GRANULE, stream));
	for (int i = 0; i < 20; i++) {
		ck_ok(cu.MemsetD8Async(ptr, 1, 6 * GRANULE, stream));
		ck_ok(cu.MemFreeAsync(ptr, stream));
		ck_ok(cu.MemAllocAsync(&next, 6 * GRANULE, stream));
		ptr = next;
	}
	ck_ok(cu.StreamSynchronize(stream));
}
END_TEST

START_TEST(pools_have_limits_and_attributes)
{
	driver_begin("1x64MiB");
	CUmemoryPool pool = pool_new(0, 4 * GRANULE), standard, now;
	CUdeviceptr ptr;
	int reuse = 7;
	uint64_t zero = 0;

	ck_cu(cu.MemAllocFromPoolAsync(&ptr, 5 * GRANULE, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	ck_ok(cu.MemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
	ck_assert_int_eq(reuse, 1);
	reuse = 0;
	ck_ok(cu.MemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
	reuse = 7;
	ck_ok(cu.MemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &reuse));
	ck_assert_int_eq(reuse, 0);
	ck_cu(cu.MemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &zero),
	      CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.DeviceGetDefaultMemPool(&standard, 0));
	ck_cu(cu.MemPoolDestroy(standard), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.DeviceSetMemPool(0, pool));
	ck_ok(cu.DeviceGetMemPool(&now, 0));
	ck_assert_ptr_eq(now, pool);
	ck_cu(cu.MemAllocAsync(&ptr, 5 * GRANULE, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	ck_ok(cu.MemPoolDestroy(pool));
	ck_ok(cu.DeviceGetMemPool(&now, 0));
	ck_assert_ptr_eq(now, standard);
	ck_cu(cu.MemPoolTrimTo(pool, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(a_destroyed_pool_lasts_as_long_as_its_memory)
{
	driver_begin("1x64MiB");
	CUmemoryPool pool = pool_new(UINT64_MAX, 0);
	CUdeviceptr ptr = take(pool, GRANULE, NULL), more;

	ck_ok(cu.MemPoolDestroy(pool));
	ck_ok(cu.MemsetD8_v2(ptr, 1, GRANULE));
	ck_cu(cu.MemAllocFromPoolAsync(&more, GRANULE, pool, NULL), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemFreeAsync(ptr, NULL));
	ck_ok(cu.StreamSynchronize(NULL));
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

START_TEST(pools_say_who_may_reach_them)
{
	driver_begin("2x64MiB");
	CUmemoryPool pool = pool_new(0, 0);
	CUmemLocation other = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}, own = other;
	CUmemAccessDesc desc = {.location = other, .flags = READ_WRITE};
	CUmemAccess_flags flags = 7;

	own.id = 0;
	ck_ok(cu.MemPoolGetAccess(&flags, pool, &own));
	ck_assert_int_eq(flags, READ_WRITE);
	ck_ok(cu.MemPoolGetAccess(&flags, pool, &other));
	ck_assert_int_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
	ck_ok(cu.MemPoolSetAccess(pool, &desc, 1));
	ck_ok(cu.MemPoolGetAccess(&flags, pool, &other));
	ck_assert_int_eq(flags, READ_WRITE);
}
END_TEST

/* A pool is of its device, wherever the stream is. */
START_TEST(pools_are_of_their_device)
{
	CUcontext second;
	driver_begin("2x64MiB");
	CUmemoryPool pool = pool_new(0, 0);
	int ordinal = -1;

	ck_ok(cu.DevicePrimaryCtxRetain(&second, 1));
	ck_ok(cu.CtxSetCurrent(second));
	CUdeviceptr ptr = take(pool, GRANULE, NULL);
	ck_ok(cu.PointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr));
	ck_assert_int_eq(ordinal, 0);
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

static void import_pool(int sock)
{
	CUmemPoolPtrExportData data;
	CUmemoryPool pool;
	CUdeviceptr ptr, more;

	driver_start();
	int fd = recv_fd(sock);
	must_ok(cu.MemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd,
	                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	close(fd);
	must(read(sock, &data, sizeof(data)) == sizeof(data));
	must_ok(cu.MemPoolImportPointer(&ptr, pool, &data));
	must(cu.MemAllocFromPoolAsync(&more, 64, pool, NULL) == CUDA_ERROR_INVALID_VALUE);
	must(cu.MemPoolExportPointer(&data, ptr) == CUDA_ERROR_INVALID_VALUE);
	must_ok(cu.MemsetD8_v2(ptr, 9, 100));
	must_ok(cu.CtxSynchronize());
	must_ok(cu.MemFreeAsync(ptr, NULL));
	must_ok(cu.StreamSynchronize(NULL));
	send_byte(sock);
}

START_TEST(pools_can_be_opened_elsewhere)
{
	driver_setup("1x64MiB");
	struct child child = child_start(import_pool);
	driver_start();
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	CUmemPoolPtrExportData data;
	CUmemoryPool pool, plain = pool_new(0, 0);
	int fd = -1;

	ck_ok(cu.MemPoolCreate(&pool, &props));
	ck_ok(cu.MemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                        0));
	ck_cu(cu.MemPoolExportToShareableHandle(&fd, plain,
	                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	      CUDA_ERROR_INVALID_VALUE);
	CUdeviceptr ptr = take(pool, 100, NULL);
	ck_ok(cu.StreamSynchronize(NULL));
	ck_cu(cu.MemPoolExportPointer(&data, take(plain, 100, NULL)), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemPoolExportPointer(&data, ptr));
	send_fd(child.sock, fd);
	close(fd);
	ck_assert_int_eq(write(child.sock, &data, sizeof(data)), sizeof(data));
	recv_byte(child.sock);
	ck_assert_uint_eq(read_u32(ptr + 96), 0x09090909);
	ck_assert_int_eq(child_join(&child), 0);
}
END_TEST
