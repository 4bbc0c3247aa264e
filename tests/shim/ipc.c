/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes of one program that share memory by legacy IPC, linked against the driver as such
 * programs are.
 *
 *   ipc SCENARIO
 *
 * The child makes memory and names it, the parent opens it; neither has used CUDA before the fork.
 * It ends with 0, or with 1 and a line on stderr.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/shim/device.h"

#define MIB (1ull << 20)

/* ---- two processes ---- */

static int to_child[2];
static int to_parent[2];

static void tell(const int *pipe_, const void *bytes, size_t n_bytes)
{
	must(write(pipe_[1], bytes, n_bytes) == (ssize_t)n_bytes);
}

static void hear(const int *pipe_, void *bytes, size_t n_bytes)
{
	must(read(pipe_[0], bytes, n_bytes) == (ssize_t)n_bytes);
}

static void fill(CUdeviceptr ptr, size_t n_bytes, uint8_t value)
{
	must_ok(cuMemsetD8Async(ptr, value, n_bytes, NULL));
	must_ok(cuStreamSynchronize(NULL));
}

static void check(CUdeviceptr ptr, size_t n_bytes, uint8_t value)
{
	uint8_t ends[2];
	must_ok(cuMemcpyDtoH(&ends[0], ptr, 1));
	must_ok(cuMemcpyDtoH(&ends[1], ptr + n_bytes - 1, 1));
	must(ends[0] == value && ends[1] == value);
}

/* Name memory for the parent. */
static void give(CUdeviceptr ptr)
{
	CUipcMemHandle handle;
	must_ok(cuIpcGetMemHandle(&handle, ptr));
	tell(to_parent, &handle, sizeof(handle));
}

static CUipcMemHandle take(void)
{
	CUipcMemHandle handle;
	hear(to_parent, &handle, sizeof(handle));
	return handle;
}

static CUresult try_open(const CUipcMemHandle *handle, CUdeviceptr *ptr_out)
{
	return cuIpcOpenMemHandle(ptr_out, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static CUdeviceptr open_handle(const CUipcMemHandle *handle)
{
	CUdeviceptr ptr = 0;
	must_ok(try_open(handle, &ptr));
	return ptr;
}

static uint64_t attribute(CUpointer_attribute which, CUdeviceptr ptr)
{
	uint64_t value = 0;
	must_ok(cuPointerGetAttribute(&value, which, ptr));
	return value;
}

/* ---- what the child gives: a small and a large piece, as long as the parent wants them ---- */

#define SMALL_BYTES 1000u
#define LARGE_BYTES (5 * MIB)

static void give_two(void)
{
	char byte;
	use_device(0);
	alloc(3000); /* so that the next one does not begin its piece of 2 MiB */
	CUdeviceptr small = alloc(SMALL_BYTES);
	CUdeviceptr large = alloc(LARGE_BYTES);
	fill(small, SMALL_BYTES, 1);
	fill(large, LARGE_BYTES, 2);
	give(small);
	give(large);
	hear(to_child, &byte, 1);
}

/* ---- scenarios ---- */

/* Fill in what the next function finds on its stack. */
static __attribute__((noinline)) void dirty_stack(void)
{
	volatile uint8_t bytes[16384];
	for (size_t i = 0; i < sizeof(bytes); i++) {
		bytes[i] = 0x41;
	}
}

/* Opened memory is of no pool. */
static void facts(void)
{
	CUcontext ctx = use_device(0);
	CUipcMemHandle small = take();
	/* Once before: the loader has resolved the call then, and leaves the stack alone. */
	must_ok(cuIpcCloseMemHandle(open_handle(&small)));
	dirty_stack();
	CUdeviceptr ptr = open_handle(&small);
	must(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) == 0);
	must(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ptr) == (uintptr_t)ctx);
	must((unsigned)attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr) == 0);
	CUmemGenericAllocationHandle handle;
	must_be(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr),
	        CUDA_ERROR_INVALID_VALUE);
	must_ok(cuIpcCloseMemHandle(ptr));
}

/* Opened is what was given, not the piece that it lies in, and it is closed as it was opened. */
static void pieces(void)
{
	static const size_t given[] = {SMALL_BYTES, LARGE_BYTES};
	use_device(0);
	for (int i = 0; i < 2; i++) {
		CUipcMemHandle handle = take();
		CUdeviceptr ptr = 0;
		CUdeviceptr base = 0;
		size_t n_bytes = 0;
		must_be(cuIpcOpenMemHandle(&ptr, handle, 0), CUDA_ERROR_INVALID_VALUE);
		must_be(cuIpcOpenMemHandle(&ptr, handle, 2), CUDA_ERROR_INVALID_VALUE);
		ptr = open_handle(&handle);
		must(open_handle(&handle) == ptr);
		must_ok(cuMemGetAddressRange(&base, &n_bytes, ptr + given[i] - 1));
		must(base == ptr && n_bytes == given[i]);
		must(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr) == given[i]);
		must_be(cuIpcGetMemHandle(&handle, ptr), CUDA_ERROR_INVALID_VALUE);
		must_be(cuMemFree(ptr), CUDA_ERROR_INVALID_VALUE);
		must_be(cuIpcCloseMemHandle(ptr + 512), CUDA_ERROR_INVALID_VALUE);
		must_ok(cuIpcCloseMemHandle(ptr));
		check(ptr, given[i], (uint8_t)(i + 1));
		must_ok(cuIpcCloseMemHandle(ptr));
		must_be(cuIpcCloseMemHandle(ptr), CUDA_ERROR_INVALID_VALUE);
		must_be(cuMemGetAddressRange(&base, &n_bytes, ptr), CUDA_ERROR_NOT_FOUND);
	}
}

/* Two small pieces of one region: each has its own number, and one holds what the other needs. */
static void give_neighbours(void)
{
	char byte;
	use_device(0);
	for (int i = 0; i < 2; i++) {
		CUdeviceptr ptr = alloc(SMALL_BYTES);
		fill(ptr, SMALL_BYTES, (uint8_t)(i + 1));
		give(ptr);
	}
	hear(to_child, &byte, 1);
}

static void neighbours(void)
{
	use_device(0);
	CUipcMemHandle first = take();
	CUipcMemHandle second = take();
	CUdeviceptr one = open_handle(&first);
	CUdeviceptr two = open_handle(&second);
	must(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, one) !=
	     attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, two));
	must(attribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, one) ==
	     attribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, two));
	must_ok(cuIpcCloseMemHandle(one));
	uint64_t value;
	must_be(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_BUFFER_ID, one),
	        CUDA_ERROR_INVALID_VALUE);
	check(two, SMALL_BYTES, 2);
	must_ok(cuIpcCloseMemHandle(two));
}

/*
 * What the parent has open stays what it was: the child does not have it again. The first is freed in
 * stream order, the second is not.
 */
static void give_and_free(void)
{
	char byte;
	CUdeviceptr ptrs[2];
	use_device(0);
	for (int i = 0; i < 2; i++) {
		ptrs[i] = alloc(LARGE_BYTES);
		fill(ptrs[i], LARGE_BYTES, (uint8_t)(i + 1));
		give(ptrs[i]);
	}
	hear(to_child, &byte, 1);
	must_ok(cuMemFreeAsync(ptrs[0], NULL));
	must_ok(cuMemFree(ptrs[1]));
	for (int i = 0; i < 4; i++) {
		CUdeviceptr ptr = 0;
		must_ok(i % 2 ? cuMemAlloc(&ptr, LARGE_BYTES)
		              : cuMemAllocAsync(&ptr, LARGE_BYTES, NULL));
		fill(ptr, LARGE_BYTES, 9);
	}
	tell(to_parent, "", 1);
	hear(to_child, &byte, 1);
}

static void freed(void)
{
	char byte;
	CUipcMemHandle handles[2];
	CUdeviceptr ptrs[2];
	CUdeviceptr again;
	use_device(0);
	for (int i = 0; i < 2; i++) {
		handles[i] = take();
		ptrs[i] = open_handle(&handles[i]);
	}
	tell(to_child, "", 1);
	hear(to_parent, &byte, 1);
	for (int i = 0; i < 2; i++) {
		check(ptrs[i], LARGE_BYTES, (uint8_t)(i + 1));
		must_ok(cuIpcCloseMemHandle(ptrs[i]));
		must_be(try_open(&handles[i], &again), CUDA_ERROR_INVALID_HANDLE);
	}
}

/* On two devices, each has access; what one closes, or loses with its context, the other has. */
static void devices(void)
{
	take();
	CUcontext zero = use_device(0);
	CUcontext one = use_device(1);
	CUipcMemHandle large = take();
	CUdeviceptr ptrs[2];
	for (int round = 0; round < 2; round++) {
		must_ok(cuCtxSetCurrent(zero));
		ptrs[0] = open_handle(&large);
		must_ok(cuCtxSetCurrent(one));
		ptrs[1] = open_handle(&large);
		unsigned flags = 0;
		must_ok(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, ptrs[1]));
		must(flags == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
		fill(ptrs[1], LARGE_BYTES, (uint8_t)(round + 5));
		must(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ptrs[1]) == (uintptr_t)one);
		if (round == 0) {
			must_ok(cuIpcCloseMemHandle(ptrs[0]));
		} else {
			must_ok(cuDevicePrimaryCtxReset(0));
		}
		check(ptrs[1], LARGE_BYTES, (uint8_t)(round + 5));
		must_ok(cuIpcCloseMemHandle(ptrs[1]));
	}
}

/*
 * Whatever two bytes of a handle are changed, beside one that is open: it opens nothing, or a place in
 * the memory that was given.
 */
static void forged(void)
{
	use_device(0);
	take();
	CUipcMemHandle large = take();
	CUdeviceptr ptr = open_handle(&large);
	check(ptr, LARGE_BYTES, 2);
	CUdeviceptr first = attribute(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, ptr);
	uint64_t n_bytes = attribute(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, ptr);
	for (size_t i = 0; i < sizeof(large.reserved); i++) {
		for (size_t j = 0; j <= i; j++) {
			CUipcMemHandle changed = large;
			CUdeviceptr got = 0;
			changed.reserved[i] = (char)(changed.reserved[i] ^ 0x10);
			if (j < i) {
				changed.reserved[j] = (char)(changed.reserved[j] ^ 0x10);
			}
			if (try_open(&changed, &got) == CUDA_SUCCESS) {
				must(got >= first && got - first < n_bytes);
				must_ok(cuIpcCloseMemHandle(got));
			}
		}
	}
	check(ptr, LARGE_BYTES, 2);
	must_ok(cuIpcCloseMemHandle(ptr));
}

static CUcontext cancelled_ctx;
static CUipcMemHandle cancelled_handle;
static int is_cancelled;

/* To be cancelled at the first call that can be. */
static void *open_cancelled(void *argument)
{
	while (!__atomic_load_n(&is_cancelled, __ATOMIC_SEQ_CST)) {
	}
	must_ok(cuCtxSetCurrent(cancelled_ctx));
	open_handle(&cancelled_handle);
	return NULL;
}

/* Who is cancelled while opening holds up nobody. */
static void cancelled(void)
{
	pthread_t id;
	cancelled_ctx = use_device(0);
	cancelled_handle = take();
	must(pthread_create(&id, NULL, open_cancelled, NULL) == 0);
	must(pthread_cancel(id) == 0);
	__atomic_store_n(&is_cancelled, 1, __ATOMIC_SEQ_CST);
	pthread_join(id, NULL);
	CUdeviceptr ptr = open_handle(&cancelled_handle);
	check(ptr, SMALL_BYTES, 1);
	must_ok(cuIpcCloseMemHandle(ptr));
	must_ok(cuIpcCloseMemHandle(ptr));
}

/* Opened by a context of device 1, which is put to sleep before the line comes. */
static void asleep(void)
{
	unsigned type;
	unsigned ordinal;
	CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
	                               CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	void *to[] = {&type, &ordinal};
	take();
	use_device(1);
	CUipcMemHandle handle = take();
	CUdeviceptr ptr = open_handle(&handle);
	for (int i = 0; i < 2; i++) {
		if (i == 1) {
			wait_for_line();
		}
		type = ordinal = 9;
		must_ok(cuPointerGetAttributes(2, which, to, ptr));
		must(type == CU_MEMORYTYPE_DEVICE && ordinal == 0);
		must((unsigned)attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) == 0);
	}
	wait_for_line();
	check(ptr, LARGE_BYTES, 2);
	must_ok(cuIpcCloseMemHandle(ptr));
}

static const struct {
	const char *name;
	void (*give)(void);
	void (*take)(void);
} scenarios[] = {
	{"facts", give_two, facts},
	{"pieces", give_two, pieces},
	{"neighbours", give_neighbours, neighbours},
	{"devices", give_two, devices},
	{"freed", give_and_free, freed},
	{"forged", give_two, forged},
	{"cancelled", give_two, cancelled},
	{"asleep", give_two, asleep},
};

static int run(void (*child)(void), void (*parent)(void))
{
	int status;
	must(pipe(to_child) == 0 && pipe(to_parent) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		close(to_child[1]);
		child();
		_exit(0);
	}
	/* A side that ends is the other's end of file. */
	close(to_parent[1]);
	parent();
	tell(to_child, "", 1);
	must(waitpid(pid, &status, 0) == pid && status == 0);
	return 0;
}

int main(int argc, char **argv)
{
	must(argc == 2);
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		if (strcmp(scenarios[i].name, argv[1]) == 0) {
			return run(scenarios[i].give, scenarios[i].take);
		}
	}
	fprintf(stderr, "no scenario %s\n", argv[1]);
	return 1;
}
