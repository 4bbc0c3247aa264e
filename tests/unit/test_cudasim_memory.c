/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: allocations, what pointers say, copies and sets. */
#include "tests/cudasim/test_work.h"

BEGIN_EACH(driver_begin_64m)

START_TEST(small_allocations_share_a_granule)
{
	CUdeviceptr a = alloc(100), b = alloc(100), c = alloc(MIB + 1);

	ck_assert_uint_eq(a % 512, 0);
	ck_assert_uint_eq(b, a + 512);
	ck_assert_uint_eq(c, b + 512);
	ck_assert_uint_eq(used_bytes(), GRANULE);
	CUdeviceptr d = alloc(MIB);
	ck_assert_uint_eq(used_bytes(), 2 * GRANULE);
	ck_ok(cu.MemFree_v2(a));
	a = alloc(512);
	ck_assert_uint_eq(used_bytes(), 2 * GRANULE);
	ck_ok(cu.MemFree_v2(a));
	ck_cu(cu.MemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemFree_v2(b + 1), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemFree_v2(b));
	ck_ok(cu.MemFree_v2(c));
	ck_ok(cu.MemFree_v2(d));
	ck_assert_uint_eq(used_bytes(), 0);
	ck_ok(cu.MemFree_v2(0));
	ck_cu(cu.MemAlloc_v2(&a, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAlloc_v2(&a, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
}
END_TEST

START_TEST(slabs_fill_up_and_empty)
{
	enum { N = 10000 };
	CUdeviceptr *ptrs = calloc(N, sizeof(*ptrs));

	for (int i = 0; i < N; i++) {
		ptrs[i] = alloc(512);
	}
	ck_assert_uint_eq(used_bytes(), 3 * GRANULE);
	for (int i = 0; i < N; i += 2) {
		ck_ok(cu.MemFree_v2(ptrs[i]));
	}
	for (int i = 0; i < N; i += 2) {
		ptrs[i] = alloc(1);
	}
	ck_assert_uint_eq(used_bytes(), 3 * GRANULE);
	for (int i = 0; i < N; i++) {
		ck_ok(cu.MemFree_v2(ptrs[i]));
	}
	ck_assert_uint_eq(used_bytes(), 0);
	free(ptrs);
}
END_TEST

START_TEST(arrays_take_whole_granules)
{
	CUarray small, large;
	CUmipmappedArray levels;
	const CUDA_ARRAY_DESCRIPTOR hundred = {100, 100, CU_AD_FORMAT_FLOAT, 4};
	const CUDA_ARRAY_DESCRIPTOR thousand = {1024, 1024, CU_AD_FORMAT_FLOAT, 4};
	const CUDA_ARRAY3D_DESCRIPTOR cube = {128, 128, 128, CU_AD_FORMAT_HALF, 1, 0};
	const CUDA_ARRAY_DESCRIPTOR none = {0, 1, CU_AD_FORMAT_FLOAT, 4};

	ck_ok(cu.ArrayCreate_v2(&small, &hundred));
	ck_assert_uint_eq(used_bytes(), GRANULE);
	ck_ok(cu.ArrayCreate_v2(&large, &thousand));
	ck_assert_uint_eq(used_bytes(), 9 * GRANULE);
	/* 4 MiB, and an eighth of that. */
	ck_ok(cu.MipmappedArrayCreate(&levels, &cube, 2));
	ck_assert_uint_eq(used_bytes(), 12 * GRANULE);
	ck_cu(cu.ArrayCreate_v2(&small, &none), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.ArrayDestroy((CUarray)levels), CUDA_ERROR_INVALID_HANDLE);
	ck_ok(cu.ArrayDestroy(large));
	ck_ok(cu.MipmappedArrayDestroy(levels));
	ck_assert_uint_eq(used_bytes(), GRANULE);
	/* The rest goes with the context. */
	ck_ok(cu.DevicePrimaryCtxReset_v2(0));
	driver_start();
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

START_TEST(managed_memory_is_on_the_host)
{
	CUdeviceptr ptr;
	unsigned is_managed = 0;
	cuuint64_t kept = 1;

	/* More than the device has. */
	ck_ok(cu.MemAllocManaged(&ptr, 128 * MIB, CU_MEM_ATTACH_GLOBAL));
	*(volatile char *)ptr = 1;
	ck_assert_uint_eq(used_bytes(), 0);
	ck_ok(cu.PointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr));
	ck_assert_uint_eq(is_managed, 1);
	ck_ok(cu.MemFree_v2(ptr));
	ck_cu(cu.MemFree_v2(ptr), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAllocManaged(&ptr, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAllocManaged(&ptr, 1, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.DeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &kept));
	ck_assert_uint_eq(kept, 0);
}
END_TEST

/* Half of the granule is free, and no place in it is large enough. */
START_TEST(torn_slabs_are_left_alone)
{
	enum { N = 8 };
	CUdeviceptr ptrs[N];

	for (int i = 0; i < N; i++) {
		ptrs[i] = alloc(GRANULE / N);
	}
	for (int i = 0; i < N; i += 2) {
		ck_ok(cu.MemFree_v2(ptrs[i]));
	}
	CUdeviceptr large = alloc(GRANULE / 4);
	ck_assert_uint_eq(large % GRANULE, 0);
	ck_assert_uint_eq(used_bytes(), 2 * GRANULE);
	ck_ok(cu.MemsetD8_v2(large, 1, GRANULE / 4));
	ck_ok(cu.CtxSynchronize());
	ck_ok(cu.MemFree_v2(large));
	for (int i = 1; i < N; i += 2) {
		ck_ok(cu.MemFree_v2(ptrs[i]));
	}
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

START_TEST(allocations_are_not_chunks)
{
	CUdeviceptr ptr = alloc(2 * GRANULE);
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	CUipcMemHandle ipc;
	CUdeviceptr chunk = chunk_map(handle, GRANULE, READ_WRITE);

	ck_assert_uint_eq(ptr % GRANULE, 0);
	ck_cu(cu.MemRetainAllocationHandle(&handle, (void *)ptr), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemUnmap(ptr, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAddressFree(ptr, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_cu(set_access(ptr, 2 * GRANULE, READ_ONLY), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemMap(ptr, GRANULE, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemFree_v2(chunk), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.IpcGetMemHandle(&ipc, ptr));
	ck_cu(cu.IpcGetMemHandle(&ipc, chunk), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(pitches_are_multiples_of_512)
{
	CUdeviceptr ptr;
	size_t pitch;

	ck_ok(cu.MemAllocPitch_v2(&ptr, &pitch, 7, 3, 4));
	ck_assert_uint_eq(pitch, 512);
	ck_ok(cu.MemAllocPitch_v2(&ptr, &pitch, 2401, 3, 16));
	ck_assert_uint_eq(pitch, 2560);
	ck_ok(cu.MemsetD2D8_v2(ptr, pitch, 5, 2401, 3));
	ck_cu(cu.MemsetD2D8_v2(ptr, pitch, 5, 2401, 4), CUDA_ERROR_INVALID_VALUE);
	ck_assert_uint_eq(read_u32(ptr + 2 * pitch), 0x05050505);
	ck_assert_uint_eq(read_u32(ptr + 2 * pitch - 4), 0);
	ck_cu(cu.MemAllocPitch_v2(&ptr, &pitch, 7, 3, 3), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

static uint64_t pointer_word(CUpointer_attribute attribute, CUdeviceptr ptr)
{
	uint64_t word = 0;

	ck_ok(cu.PointerGetAttribute(&word, attribute, ptr));
	return word;
}

START_TEST(pointers_are_known_by_what_they_point_to)
{
	CUdeviceptr ptr = alloc(1000), base;
	CUdeviceptr chunks = reserve(4 * GRANULE);
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	size_t bytes;
	uint32_t half;

	ck_ok(cu.MemMap(chunks, GRANULE, 0, handle, 0));
	ck_ok(cu.MemMap(chunks + GRANULE, GRANULE, 0, handle, 0));
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_CONTEXT, ptr + 9),
	                  (uintptr_t)driver_context);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr),
	                  CU_MEMORYTYPE_DEVICE);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr + 9), ptr);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr), 1000);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, ptr), GRANULE);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr), 1);
	ck_cu(cu.PointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr),
	      CUDA_ERROR_INVALID_VALUE);
	/* A chunk answers with its reservation, and has no context. */
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_CONTEXT, chunks), 0);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_RANGE_SIZE, chunks), 4 * GRANULE);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, chunks), GRANULE);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, chunks),
	                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, chunks), 0);
	ck_assert_uint_ne(pointer_word(CU_POINTER_ATTRIBUTE_BUFFER_ID, chunks),
	                  pointer_word(CU_POINTER_ATTRIBUTE_BUFFER_ID, chunks + GRANULE));
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, chunks),
	                  pointer_word(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, chunks + GRANULE));
	ck_cu(cu.MemGetAddressRange_v2(&base, &bytes, chunks), CUDA_ERROR_NOT_FOUND);
	ck_cu(cu.PointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, chunks),
	      CUDA_ERROR_INVALID_VALUE);
	ck_ok(set_access(chunks, 2 * GRANULE, READ_ONLY));
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, chunks), chunks);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, chunks), 1);
	ck_ok(cu.MemGetAddressRange_v2(&base, &bytes, chunks + GRANULE + 7));
	ck_assert_uint_eq(base, chunks + GRANULE);
	ck_assert_uint_eq(bytes, GRANULE);
	ck_ok(cu.MemGetAddressRange_v2(&base, &bytes, ptr + 7));
	ck_assert_uint_eq(base, ptr);
	ck_assert_uint_eq(bytes, 1000);
	ck_cu(cu.PointerGetAttribute(&half, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (uintptr_t)&half),
	      CUDA_ERROR_INVALID_VALUE);
	CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
	                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	int ordinal = 0;
	void *answers[] = {&half, &ordinal};
	ck_ok(cu.PointerGetAttributes(2, attributes, answers, (uintptr_t)&half));
	ck_assert_uint_eq(half, 0);
	ck_assert_int_eq(ordinal, -2);
}
END_TEST

START_TEST(host_memory_can_be_pinned_and_registered)
{
	CUdeviceptr ptr;
	void *host;
	char *plain = malloc(64 * 1024);

	ck_ok(cu.MemHostAlloc(&host, 5000, 0));
	ck_ok(cu.MemHostGetDevicePointer_v2(&ptr, host, 0));
	ck_assert_uint_eq(ptr, (uintptr_t)host);
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr), CU_MEMORYTYPE_HOST);
	ck_ok(launch_fill(ptr, 5000, 3, NULL));
	ck_ok(cu.CtxSynchronize());
	ck_assert_int_eq(((char *)host)[4999], 3);
	ck_cu(cu.MemHostGetDevicePointer_v2(&ptr, plain, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemHostRegister_v2(plain, 8192, 0));
	ck_cu(cu.MemHostRegister_v2(plain + 4096, 100, 0),
	      CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	ck_ok(launch_fill((uintptr_t)plain, 8192, 4, NULL));
	ck_ok(cu.CtxSynchronize());
	ck_assert_int_eq(plain[8191], 4);
	ck_cu(cu.MemFreeHost(plain), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemHostUnregister(plain));
	ck_cu(cu.MemHostUnregister(plain), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	ck_ok(cu.MemFreeHost(host));
	ck_cu(cu.MemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemHostAlloc(&host, 100, 0x80), CUDA_ERROR_INVALID_VALUE);
	free(plain);
}
END_TEST

/* --- copies and sets --- */

START_TEST(copies_cross_mappings_and_reservations)
{
	CUdeviceptr first, second;
	CUmemGenericAllocationHandle a = chunk_new(GRANULE), b = chunk_new(2 * GRANULE);
	uint8_t *in = malloc(3 * GRANULE), *out = malloc(3 * GRANULE);

	/* The second chunk lies across the border of two reservations: halves of a free place. */
	CUdeviceptr place = reserve(4 * GRANULE);
	ck_ok(cu.MemAddressFree(place, 4 * GRANULE));
	ck_ok(cu.MemAddressReserve(&first, 2 * GRANULE, 0, place, 0));
	ck_ok(cu.MemAddressReserve(&second, 2 * GRANULE, 0, place + 2 * GRANULE, 0));
	ck_assert_uint_eq(second, first + 2 * GRANULE);
	ck_ok(cu.MemMap(first, GRANULE, 0, a, 0));
	ck_ok(cu.MemMap(first + GRANULE, 2 * GRANULE, 0, b, 0));
	ck_ok(set_access(first, 3 * GRANULE, READ_WRITE));
	for (size_t i = 0; i < 3 * GRANULE; i++) {
		in[i] = (uint8_t)(i * 7 + i / 4096);
	}
	ck_ok(cu.MemcpyHtoD_v2(first, in, 3 * GRANULE));
	ck_ok(cu.MemcpyDtoH_v2(out, first, 3 * GRANULE));
	ck_assert_mem_eq(in, out, 3 * GRANULE);
	ck_ok(cu.MemcpyDtoD_v2(first, first + 2 * GRANULE - 1000, GRANULE));
	ck_ok(cu.MemcpyDtoH_v2(out, first, GRANULE));
	ck_assert_mem_eq(out, in + 2 * GRANULE - 1000, GRANULE);
	ck_cu(cu.MemcpyDtoH_v2(out, first, 3 * GRANULE + 1), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemAddressFree(second, 2 * GRANULE), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemUnmap(first, 4 * GRANULE));
	ck_ok(cu.MemAddressFree(second, 2 * GRANULE));
	free(in);
	free(out);
}
END_TEST

START_TEST(forbidden_copies_are_refused_and_nothing_else)
{
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	CUdeviceptr writable = chunk_map(handle, GRANULE, READ_WRITE);
	CUdeviceptr readable = chunk_map(handle, GRANULE, READ_ONLY);
	CUdeviceptr ptr = alloc(1000), nowhere = reserve(GRANULE);
	char host[2048] = {0}, other[8];

	ck_ok(cu.MemsetD32_v2(writable, 5, GRANULE / 4));
	ck_cu(cu.MemsetD8_v2(readable, 1, 8), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemsetD8Async(readable, 1, 8, NULL), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyHtoD_v2(readable, host, 8), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyDtoD_v2(readable, writable, 8), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyHtoDAsync_v2(readable, host, 8, NULL), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemcpyDtoD_v2(writable, readable, 8));
	ck_ok(cu.CtxSynchronize());
	ck_ok(set_access(readable, GRANULE, CU_MEM_ACCESS_FLAGS_PROT_NONE));
	ck_cu(cu.MemcpyDtoH_v2(host, readable, 8), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyDtoH_v2(host, nowhere, 8), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyHtoD_v2(nowhere, host, 8), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyDtoH_v2(host, ptr, 1001), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemsetD8_v2(ptr, 0, 1001), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemsetD32_v2(ptr + 2, 0, 1), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyHtoD_v2(ptr, NULL, 8), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyHtoD_v2((uintptr_t)host, other, 8), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyDtoH_v2(host, (uintptr_t)other, 8), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemcpyDtoD_v2(ptr, (uintptr_t)host, 8), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.Memcpy(ptr, (uintptr_t)host, 8));
	ck_ok(cu.Memcpy((uintptr_t)other, (uintptr_t)host, 8));
	ck_ok(cu.MemcpyHtoD_v2(ptr, (void *)(ptr + 500), 8));
	ck_ok(cu.MemcpyHtoD_v2(0, NULL, 0));
	ck_ok(cu.MemsetD8_v2(0x1000, 1, 0));
	ck_ok(cu.CtxSynchronize());
	ck_assert_uint_eq(read_u32(writable + 4096), 5);
}
END_TEST

START_TEST(sets_write_their_elements)
{
	CUdeviceptr ptr = alloc(64);

	ck_ok(cu.MemsetD8_v2(ptr, 0x11, 64));
	ck_ok(cu.MemsetD16_v2(ptr + 4, 0x2233, 3));
	ck_ok(cu.MemsetD32_v2(ptr + 16, 0x44556677, 2));
	ck_assert_uint_eq(read_u32(ptr), 0x11111111);
	ck_assert_uint_eq(read_u32(ptr + 4), 0x22332233);
	ck_assert_uint_eq(read_u32(ptr + 8), 0x11112233);
	ck_assert_uint_eq(read_u32(ptr + 20), 0x44556677);
	ck_assert_uint_eq(read_u32(ptr + 24), 0x11111111);
}
END_TEST

START_TEST(managed_memory_can_be_asked_anywhere)
{
	CUdeviceptr managed, ptr;
	CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
	unsigned value = 1;

	ck_ok(cu.MemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
	ck_ok(cu.MemAlloc_v2(&ptr, 4096));
	ck_ok(cu.MemAdvise_v2(managed, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
	ck_ok(cu.MemPrefetchAsync_v2(managed, 4096, device, 0, NULL));
	ck_cu(cu.MemPrefetchAsync_v2(managed, 8192, device, 0, NULL), CUDA_ERROR_INVALID_VALUE);
	ck_cu(cu.MemPrefetchAsync_v2(ptr, 4096, device, 0, NULL), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.PointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, ptr));
	ck_cu(cu.PointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr),
	      CUDA_ERROR_INVALID_VALUE);
}
END_TEST
