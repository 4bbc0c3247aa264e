/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver at work: allocations, copies, streams, kernels, faults real and injected. */
#include "tests/cudasim/test_driver.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <xxhash.h>

static const char image[] = ".version 7.0\n.target sm_90\n";

static CUdeviceptr alloc(size_t bytes)
{
	CUdeviceptr ptr = 0;

	ck_ok(cu.MemAlloc_v2(&ptr, bytes));
	return ptr;
}

static CUstream stream_new(unsigned flags)
{
	CUstream stream = NULL;

	ck_ok(cu.StreamCreate(&stream, flags));
	return stream;
}

static CUfunction function(const char *name)
{
	static CUmodule module;
	CUfunction found = NULL;

	if (!module) {
		ck_ok(cu.ModuleLoadData(&module, image));
	}
	ck_ok(cu.ModuleGetFunction(&found, module, name));
	return found;
}

static CUresult launch(CUfunction kernel, CUstream stream, void **params)
{
	return cu.LaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, NULL);
}

static CUresult launch_fill(CUdeviceptr dst, uint64_t n_bytes, uint32_t value, CUstream stream)
{
	void *params[] = {&dst, &n_bytes, &value};

	return launch(function("cudasim_fill"), stream, params);
}

static uint32_t read_u32(CUdeviceptr addr)
{
	uint32_t value = 0;

	ck_ok(cu.MemcpyDtoH_v2(&value, addr, sizeof(value)));
	return value;
}

/* --- allocations --- */

START_TEST(small_allocations_share_a_granule)
{
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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

START_TEST(allocations_are_not_chunks)
{
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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
	CUcontext ctx = driver_begin("1x64MiB");
	CUdeviceptr ptr = alloc(1000), base;
	CUdeviceptr chunks = reserve(4 * GRANULE);
	CUmemGenericAllocationHandle handle = chunk_new(GRANULE);
	size_t bytes;
	uint32_t half;

	ck_ok(cu.MemMap(chunks, GRANULE, 0, handle, 0));
	ck_ok(cu.MemMap(chunks + GRANULE, GRANULE, 0, handle, 0));
	ck_assert_uint_eq(pointer_word(CU_POINTER_ATTRIBUTE_CONTEXT, ptr + 9), (uintptr_t)ctx);
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
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
	CUdeviceptr first = reserve(2 * GRANULE), second;
	CUmemGenericAllocationHandle a = chunk_new(GRANULE), b = chunk_new(2 * GRANULE);
	uint8_t *in = malloc(3 * GRANULE), *out = malloc(3 * GRANULE);

	/* The second chunk lies across the border of two reservations, where there is one. */
	ck_ok(cu.MemAddressReserve(&second, 2 * GRANULE, 0, first + 2 * GRANULE, 0));
	if (second != first + 2 * GRANULE) {
		ck_ok(cu.MemAddressFree(first, 2 * GRANULE));
		ck_ok(cu.MemAddressReserve(&first, 2 * GRANULE, 0, second - 2 * GRANULE, 0));
	}
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
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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

/* --- streams and events --- */

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

START_TEST(threads_appear_with_the_first_work)
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

/* A stream stands still from gate_close to gate_open. */
struct gate {
	sem_t entered;
	sem_t open;
};

static void CUDA_CB stand_at_gate(void *arg)
{
	struct gate *gate = arg;

	sem_post(&gate->entered);
	sem_wait(&gate->open);
}

static void gate_close(struct gate *gate, CUstream stream)
{
	sem_init(&gate->entered, 0, 0);
	sem_init(&gate->open, 0, 0);
	ck_ok(cu.LaunchHostFunc(stream, stand_at_gate, gate));
	sem_wait(&gate->entered);
}

static void gate_open(struct gate *gate)
{
	sem_post(&gate->open);
}

START_TEST(streams_run_later_and_in_order)
{
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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
	gate_close(&gate, a);
	ck_ok(cu.MemsetD32_v2(ptr, 0, 1));
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
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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

/* --- kernels --- */

START_TEST(modules_and_functions_are_looked_at)
{
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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
	driver_begin("1x64MiB");
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

START_TEST(an_illegal_write_ends_the_context_for_good)
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
	/* What needs no context goes on, so that memory can be handed over. */
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
	driver_begin("1x64MiB");
	uint64_t n = 4;
	CUdeviceptr nowhere = reserve(GRANULE), out = alloc(8);
	void *params[] = {&nowhere, &n, &out};

	ck_ok(launch(function("cudasim_sum"), NULL, params));
	ck_cu(cu.StreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(kernels_fault_on_pageable_memory)
{
	driver_begin("1x64MiB");
	static int pageable;

	ck_ok(launch_fill((uintptr_t)&pageable, 4, 1, NULL));
	ck_cu(cu.StreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_assert_int_eq(pageable, 0);
}
END_TEST

START_TEST(taking_access_away_does_not_wait_for_writers)
{
	driver_begin("1x64MiB");
	struct gate gate;
	CUdeviceptr addr = chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);

	gate_close(&gate, stream);
	ck_ok(cu.MemsetD8Async(addr, 1, GRANULE, stream));
	ck_ok(set_access(addr, GRANULE, READ_ONLY));
	gate_open(&gate);
	ck_cu(cu.StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(unmapping_does_not_wait_for_readers)
{
	driver_begin("1x64MiB");
	struct gate gate;
	CUdeviceptr addr = chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE), ptr = alloc(GRANULE);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);

	gate_close(&gate, stream);
	ck_ok(cu.MemcpyDtoDAsync_v2(ptr, addr, GRANULE, stream));
	ck_ok(cu.MemUnmap(addr, GRANULE));
	gate_open(&gate);
	ck_cu(cu.StreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(devices_reach_what_they_may)
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

/* --- injected faults --- */

START_TEST(faults_hit_the_calls_they_name)
{
	driver_setup("1x64MiB");
	setenv("CUDASIM_FAULT",
	       "cuMemCreate:2:fail=2,cuMemAlloc:3+:fail=304,cuMemRelease:%2:fail=1,"
	       "someone-else/cuMemcpyHtoD:*:fail=999,cuMemcpyDtoH_v2:*:fail=999",
	       1);
	driver_start();
	CUmemGenericAllocationHandle handles[4];
	CUdeviceptr ptr;
	uint32_t value = 1;

	ck_ok(chunk_try(0, GRANULE, &handles[0]));
	ck_cu(chunk_try(0, GRANULE, &handles[1]), CUDA_ERROR_OUT_OF_MEMORY);
	ck_ok(chunk_try(0, GRANULE, &handles[1]));
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_OPERATING_SYSTEM);
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_OPERATING_SYSTEM);
	ck_ok(cu.MemRelease(handles[0]));
	ck_cu(cu.MemRelease(handles[1]), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemRelease(handles[1]));
	ck_ok(cu.MemcpyHtoD_v2(ptr, &value, 4));
	ck_cu(cu.MemcpyDtoH_v2(&value, ptr, 4), CUDA_ERROR_UNKNOWN);
}
END_TEST

static void run_with_faults(int sock)
{
	CUdeviceptr ptr;

	driver_start();
	send_byte(sock);
	must_ok(cu.MemAlloc_v2(&ptr, 1));
	must_ok(cu.MemFree_v2(ptr));
}

START_TEST(faults_can_kill_a_process_by_name)
{
	char fault[128];

	driver_setup("1x64MiB");
	snprintf(fault, sizeof(fault), "%s/cuMemFree:1:die", program_invocation_short_name);
	setenv("CUDASIM_FAULT", fault, 1);
	struct child child = child_start(run_with_faults);
	recv_byte(child.sock);
	int status = child_join(&child);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	unsetenv("CUDASIM_FAULT");
	driver_start();
	ck_assert_uint_eq(used_bytes(), 0);
}
END_TEST

START_TEST(faults_can_delay_and_kill_a_context)
{
	driver_setup("1x64MiB");
	setenv("CUDASIM_FAULT", "cuMemAlloc:2:slow=60,cuMemAlloc:3:killctx", 1);
	driver_start();
	struct timespec before, after;
	CUdeviceptr ptr;

	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	clock_gettime(CLOCK_MONOTONIC, &before);
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	clock_gettime(CLOCK_MONOTONIC, &after);
	long ms = (after.tv_sec - before.tv_sec) * 1000 +
	          (after.tv_nsec - before.tv_nsec) / 1000000;
	ck_assert_int_ge(ms, 59);
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

static void init_with_fault(int sock)
{
	(void)sock;
	_exit(cu.Init(0) == CUDA_ERROR_INVALID_VALUE ? 0 : 1);
}

START_TEST(malformed_faults_fail_init)
{
	static const char *const faults[] = {"cuMemCreate",           "cuMemCreate:1",
	                                     "cuNoSuch:1:fail=2",     "cuMemCreate:0:fail=2",
	                                     "cuMemCreate:x:fail=2",  "cuMemCreate:1:fail=",
	                                     "cuMemCreate:1:explode", "cuMemCreate:1:fail=2,:"};

	driver_setup("1x64MiB");
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		setenv("CUDASIM_FAULT", faults[i], 1);
		struct child child = child_start(init_with_fault);
		ck_assert_msg(child_join(&child) == 0, "%s was accepted", faults[i]);
	}
}
END_TEST

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	ck_assert_ptr_nonnull(file);
	fputs(text, file);
	fclose(file);
	/* The clock of file times ticks every few milliseconds. */
	usleep(20000);
}

START_TEST(faults_can_come_and_go_by_file)
{
	const char *tmp = getenv("TMPDIR");
	char path[256];
	CUdeviceptr ptr;

	driver_setup("1x64MiB");
	snprintf(path, sizeof(path), "%s/cudasim-fault-%d", tmp ? tmp : "/tmp", (int)getpid());
	unlink(path);
	setenv("CUDASIM_FAULT_FILE", path, 1);
	driver_start();
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	write_file(path, "cuMemAlloc:2+:fail=2\n");
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_OUT_OF_MEMORY);
	write_file(path, "nonsense");
	ck_cu(cu.MemAlloc_v2(&ptr, 4), CUDA_ERROR_OUT_OF_MEMORY);
	write_file(path, "");
	ck_ok(cu.MemAlloc_v2(&ptr, 4));
	write_file(path, "*:1:fail=304");
	ck_cu(cu.CtxSynchronize(), CUDA_ERROR_OPERATING_SYSTEM);
	unlink(path);
	ck_ok(cu.CtxSynchronize());
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

START_TEST(threads_do_not_disturb_each_other)
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

int main(void)
{
	Suite *suite = suite_create("cudasim_work");

	suite_add(suite, small_allocations_share_a_granule);
	suite_add(suite, slabs_fill_up_and_empty);
	suite_add(suite, allocations_are_not_chunks);
	suite_add(suite, pitches_are_multiples_of_512);
	suite_add(suite, pointers_are_known_by_what_they_point_to);
	suite_add(suite, host_memory_can_be_pinned_and_registered);
	suite_add(suite, copies_cross_mappings_and_reservations);
	suite_add(suite, forbidden_copies_are_refused_and_nothing_else);
	suite_add(suite, sets_write_their_elements);
	suite_add(suite, threads_appear_with_the_first_work);
	suite_add(suite, streams_run_later_and_in_order);
	suite_add(suite, pageable_memory_is_copied_before_the_call_returns);
	suite_add(suite, events_order_streams);
	suite_add(suite, the_default_stream_orders_blocking_streams_only);
	suite_add(suite, destroyed_streams_finish_their_work);
	suite_add(suite, stream_ordered_memory_is_freed_in_order);
	suite_add(suite, modules_and_functions_are_looked_at);
	suite_add(suite, launches_are_checked);
	suite_add(suite, fill_and_sum_agree);
	suite_add(suite, digests_are_those_of_the_host);
	suite_add(suite, compare_finds_one_byte_and_forgets_nothing);
	suite_add(suite, an_illegal_write_ends_the_context_for_good);
	suite_add(suite, kernels_fault_where_nothing_is_mapped);
	suite_add(suite, kernels_fault_on_pageable_memory);
	suite_add(suite, taking_access_away_does_not_wait_for_writers);
	suite_add(suite, unmapping_does_not_wait_for_readers);
	suite_add(suite, devices_reach_what_they_may);
	suite_add(suite, faults_hit_the_calls_they_name);
	suite_add(suite, faults_can_kill_a_process_by_name);
	suite_add(suite, faults_can_delay_and_kill_a_context);
	suite_add(suite, malformed_faults_fail_init);
	suite_add(suite, faults_can_come_and_go_by_file);
	suite_add(suite, threads_do_not_disturb_each_other);
	return suite_run(suite);
}
