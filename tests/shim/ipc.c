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
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)

#define must(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			_exit(1); \
		} \
	} while (0)
#define must_be(call, expected) \
	do { \
		int got_ = (int)(call); \
		if (got_ != (int)(expected)) { \
			fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, got_); \
			_exit(1); \
		} \
	} while (0)
#define must_ok(call) must_be(call, CUDA_SUCCESS)

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

static CUcontext start(int device)
{
	CUcontext ctx = NULL;
	must_ok(cuInit(0));
	must_ok(cuDevicePrimaryCtxRetain(&ctx, device));
	must_ok(cuCtxSetCurrent(ctx));
	return ctx;
}

static CUdeviceptr alloc(size_t n_bytes)
{
	CUdeviceptr ptr = 0;
	must_ok(cuMemAlloc(&ptr, n_bytes));
	return ptr;
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
	start(0);
	alloc(3000);
	CUdeviceptr small = alloc(SMALL_BYTES);
	CUdeviceptr large = alloc(LARGE_BYTES);
	fill(small, SMALL_BYTES, 1);
	fill(large, LARGE_BYTES, 2);
	give(small);
	give(large);
	hear(to_child, &byte, 1);
}

/* ---- scenarios ---- */

/* What the next function finds on its stack. */
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
	CUcontext ctx = start(0);
	CUipcMemHandle small = take();
	/* Once before: the loader has resolved the call then, and leaves the stack alone. */
	must_ok(cuIpcCloseMemHandle(open_handle(&small)));
	dirty_stack();
	CUdeviceptr ptr = open_handle(&small);
	must(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) == 0);
	must(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ptr) == (uintptr_t)ctx);
	must((unsigned)attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr) == 1);
	CUmemGenericAllocationHandle handle;
	must_be(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr),
	        CUDA_ERROR_INVALID_VALUE);
	must_ok(cuIpcCloseMemHandle(ptr));
}

/*
 * Whatever two bytes of a handle are changed, beside one that is open: it opens nothing, or a place in
 * the memory that was given.
 */
static void forged(void)
{
	start(0);
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

static const struct {
	const char *name;
	void (*give)(void);
	void (*take)(void);
} scenarios[] = {
	{"facts", give_two, facts},
	{"forged", give_two, forged},
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
