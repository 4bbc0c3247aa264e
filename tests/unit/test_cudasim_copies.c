/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: copies and sets of planes, and many copies at once. */
#include "tests/cudasim/test_work.h"

BEGIN_EACH(driver_begin_64m)

static uint8_t byte_at(CUdeviceptr ptr)
{
	uint8_t byte = 0;

	ck_ok(cu.MemcpyDtoH_v2(&byte, ptr, 1));
	return byte;
}

START_TEST(planes_are_copied_row_by_row)
{
	CUdeviceptr ptr = zeroed(4096);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	uint8_t host[6][10];
	uint8_t back[4][8] = {{0}};

	for (unsigned i = 0; i < 60; i++) {
		host[i / 10][i % 10] = (uint8_t)i;
	}
	CUDA_MEMCPY2D in = {
		.srcXInBytes = 1,
		.srcY = 2,
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = host,
		.srcPitch = 10,
		.dstXInBytes = 3,
		.dstY = 1,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = ptr,
		.dstPitch = 512,
		.WidthInBytes = 8,
		.Height = 4,
	};
	ck_ok(cu.Memcpy2D_v2(&in));
	ck_assert_uint_eq(byte_at(ptr + 512 + 3), 21);
	ck_assert_uint_eq(byte_at(ptr + 4 * 512 + 10), 58);
	ck_assert_uint_eq(byte_at(ptr + 512 + 2), 0);
	ck_assert_uint_eq(byte_at(ptr + 512 + 11), 0);
	CUDA_MEMCPY2D out = {
		.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
		.srcDevice = ptr + 512 + 3,
		.srcPitch = 512,
		.dstMemoryType = CU_MEMORYTYPE_HOST,
		.dstHost = back,
		.WidthInBytes = 8,
		.Height = 4,
	};
	ck_ok(cu.Memcpy2DAsync_v2(&out, stream));
	ck_ok(cu.StreamSynchronize(stream));
	for (unsigned y = 0; y < 4; y++) {
		ck_assert_mem_eq(back[y], &host[y + 2][1], 8);
	}
	in.dstPitch = 7; /* narrower than a row */
	ck_cu(cu.Memcpy2DUnaligned_v2(&in), CUDA_ERROR_INVALID_VALUE);
	in.dstPitch = 512;
	in.dstDevice = reserve(GRANULE);
	ck_cu(cu.Memcpy2D_v2(&in), CUDA_ERROR_INVALID_VALUE);
	in.dstMemoryType = CU_MEMORYTYPE_ARRAY;
	ck_cu(cu.Memcpy2D_v2(&in), CUDA_ERROR_NOT_SUPPORTED);
	ck_cu(cu.Memcpy2D_v2(NULL), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(boxes_are_copied_plane_by_plane)
{
	CUdeviceptr ptr = zeroed(4096), other = zeroed(4096);
	CUDA_MEMCPY3D box = {
		.srcZ = 1,
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = ptr,
		.srcPitch = 16,
		.srcHeight = 4,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = other,
		.dstPitch = 32,
		.dstHeight = 8,
		.WidthInBytes = 8,
		.Height = 2,
		.Depth = 3,
	};

	for (unsigned z = 0; z < 3; z++) {
		ck_ok(cu.MemsetD8_v2(ptr + (z + 1) * 64 + 16, (unsigned char)(z + 1), 8));
	}
	ck_ok(cu.Memcpy3D_v2(&box));
	for (unsigned z = 0; z < 3; z++) {
		ck_assert_uint_eq(byte_at(other + z * 256 + 32 + 7), z + 1);
		ck_assert_uint_eq(byte_at(other + z * 256 + 32 + 8), 0);
		ck_assert_uint_eq(byte_at(other + z * 256), 0);
	}
}
END_TEST

START_TEST(a_plane_that_is_not_writable_is_refused)
{
	CUdeviceptr ptr = zeroed(4096), at = reserve(2 * GRANULE);
	CUmemGenericAllocationHandle first = chunk_new(GRANULE), second = chunk_new(GRANULE);
	CUDA_MEMCPY2D plane = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = ptr,
		.srcPitch = 64,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = at,
		.dstPitch = GRANULE,
		.WidthInBytes = 64,
		.Height = 2,
	};

	ck_ok(cu.MemMap(at, GRANULE, 0, first, 0));
	ck_ok(cu.MemMap(at + GRANULE, GRANULE, 0, second, 0));
	ck_ok(set_access(at, 2 * GRANULE, READ_WRITE));
	ck_ok(cu.Memcpy2D_v2(&plane));
	ck_ok(cu.CtxSynchronize());
	ck_ok(set_access(at + GRANULE, GRANULE, READ_ONLY));
	ck_cu(cu.Memcpy2D_v2(&plane), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemsetD2D16_v2(at, GRANULE, 1, 1, 2), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.CtxSynchronize());
}
END_TEST

START_TEST(planes_are_set_by_element)
{
	CUdeviceptr ptr = zeroed(4096);

	ck_ok(cu.MemsetD2D16_v2(ptr, 512, 0x1234, 3, 2));
	ck_assert_uint_eq(read_u32(ptr), 0x12341234);
	ck_assert_uint_eq(read_u32(ptr + 4), 0x1234);
	ck_assert_uint_eq(read_u32(ptr + 512 + 4), 0x1234);
	ck_ok(cu.MemsetD2D32Async(ptr, 512, 0xdeadbeef, 2, 1, NULL));
	ck_assert_uint_eq(read_u32(ptr + 4), 0xdeadbeef);
	ck_assert_uint_eq(read_u32(ptr + 512), 0x12341234);
	ck_cu(cu.MemsetD2D16_v2(ptr + 1, 512, 0, 1, 1), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(batches_copy_in_order)
{
	CUdeviceptr ptr = zeroed(4096);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr dsts[] = {ptr + 4, ptr + 8};
	CUdeviceptr srcs[] = {ptr, ptr};
	size_t sizes[] = {4, 8};
	size_t from[] = {0};
	CUmemcpyAttributes attributes[] = {
		{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM},
	};

	ck_ok(cu.MemsetD8_v2(ptr, 9, 4));
	ck_ok(cu.CtxSynchronize());
	ck_ok(cu.MemcpyBatchAsync_v2(dsts, srcs, sizes, 2, attributes, from, 1, stream));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(read_u32(ptr + 12), 0x09090909);
	ck_cu(cu.MemcpyBatchAsync_v2(dsts, srcs, sizes, 2, attributes, from, 1, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyBatchAsync_v2(dsts, srcs, sizes, 2, attributes, from, 0, stream),
	      CUDA_ERROR_INVALID_VALUE);
}
END_TEST
