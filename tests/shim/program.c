/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses the CUDA driver as others do and knows nothing of glake.
 *
 *   program WAY SCENARIO [ARGUMENT]
 *
 * WAY: how it gets at the driver: dlsym, proc1 (cuGetProcAddress of CUDA 11), proc2 (of CUDA 12,
 * itself asked for by name), linked (only in the program built for it). It prints its findings, one
 * line each, and ends with 0, or with 1 and a line on stderr. "wait" in a scenario: it prints
 * "ready" and reads a line.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/churn.h"
#include "tests/shim/must.h"

#define MIB (1ull << 20)

static struct {
#define CALL(symbol, name, version) __typeof__(symbol) *call_##symbol;
#include "tests/shim/calls.def"
} calls;
#define cu(symbol) (calls.call_##symbol)

/* ---- the ways in ---- */

typedef CUresult proc1_fn(const char *, void **, int, cuuint64_t);
typedef CUresult proc2_fn(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void *open_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		_exit(1);
	}
	return library;
}

static void load_dlsym(void)
{
	void *library = open_driver();
#define CALL(symbol, name, version) calls.call_##symbol = dlsym(library, #symbol);
#include "tests/shim/calls.def"
}

static void load_proc1(void)
{
	proc1_fn *resolver = (proc1_fn *)dlsym(open_driver(), "cuGetProcAddress");
	proc1_fn *again = NULL;
	must_ok(resolver("cuGetProcAddress", (void **)&again, 11030, 0));
#define CALL(symbol, name, version) must_ok(again(name, (void **)&calls.call_##symbol, version, 0));
#include "tests/shim/calls.def"
}

/* As cudart does: one dlsym, an empty name, the resolver by itself, no status. */
static void load_proc2(void)
{
	proc2_fn *resolver = (proc2_fn *)dlsym(open_driver(), "cuGetProcAddress_v2");
	void *nothing = NULL;
	proc2_fn *again = NULL;
	proc1_fn *old = NULL;
	resolver("", &nothing, 0, 0, NULL);
	must_ok(resolver("cuGetProcAddress", (void **)&old, 11030, 0, NULL));
	must_ok(resolver("cuGetProcAddress", (void **)&again, 12000, 0, NULL));
	must((void *)old != (void *)again);
	must(resolver("cuInit", NULL, 12000, 0, NULL) != CUDA_SUCCESS);
#define CALL(symbol, name, version) \
	must_ok(again(name, (void **)&calls.call_##symbol, version, 0, NULL));
#include "tests/shim/calls.def"
}

static void load(const char *way)
{
	if (strcmp(way, "dlsym") == 0) {
		load_dlsym();
	} else if (strcmp(way, "proc1") == 0) {
		load_proc1();
	} else if (strcmp(way, "proc2") == 0) {
		load_proc2();
	} else {
#ifdef LINKED
#define CALL(symbol, name, version) calls.call_##symbol = symbol;
#include "tests/shim/calls.def"
#else
		must(!"a way in");
#endif
	}
#define CALL(symbol, name, version) must(calls.call_##symbol);
#include "tests/shim/calls.def"
}

/* ---- help ---- */

/* 0 without the shim. */
static uint64_t shim_count(const char *name)
{
	uint64_t (*count)(const char *) = dlsym(RTLD_DEFAULT, "glake_shim_count");
	return count ? count(name) : 0;
}

/* Each allocation that this program was given: whose it is, the shim has to know. */
static atomic_ullong n_made;

#define COUNTED(symbol, parameters, arguments) \
	static __typeof__(symbol) *real_##symbol; \
	static CUresult counted_##symbol parameters \
	{ \
		CUresult result = real_##symbol arguments; \
		n_made += result == CUDA_SUCCESS; \
		return result; \
	}
COUNTED(cuMemAlloc_v2, (CUdeviceptr * ptr, size_t n_bytes), (ptr, n_bytes))
COUNTED(cuMemAllocPitch_v2,
        (CUdeviceptr * ptr, size_t *pitch, size_t width, size_t height, unsigned word),
        (ptr, pitch, width, height, word))
COUNTED(cuMemCreate,
        (CUmemGenericAllocationHandle * handle, size_t n_bytes,
         const CUmemAllocationProp *properties, unsigned long long flags),
        (handle, n_bytes, properties, flags))
COUNTED(cuMemAllocAsync, (CUdeviceptr * ptr, size_t n_bytes, CUstream stream),
        (ptr, n_bytes, stream))
COUNTED(cuMemAllocFromPoolAsync,
        (CUdeviceptr * ptr, size_t n_bytes, CUmemoryPool pool, CUstream stream),
        (ptr, n_bytes, pool, stream))

static void count_what_is_made(void)
{
#define COUNT(symbol) \
	real_##symbol = calls.call_##symbol; \
	calls.call_##symbol = counted_##symbol
	COUNT(cuMemAlloc_v2);
	COUNT(cuMemAllocPitch_v2);
	COUNT(cuMemCreate);
	COUNT(cuMemAllocAsync);
	COUNT(cuMemAllocFromPoolAsync);
}

static CUcontext use_device(int ordinal)
{
	CUcontext ctx = NULL;
	must_ok(cu(cuDevicePrimaryCtxRetain)(&ctx, ordinal));
	must_ok(cu(cuCtxSetCurrent)(ctx));
	return ctx;
}

static CUcontext start(void)
{
	must_ok(cu(cuInit)(0));
	return use_device(0);
}

/* "all" that was made so far, or a number. */
static void print_share(const char *name, uint64_t n)
{
	if (n > 0 && n == n_made && shim_count("owned") + shim_count("passed") == n) {
		printf("%s all ", name);
	} else {
		printf("%s %llu ", name, (unsigned long long)n);
	}
}

static void print_counts(void)
{
	print_share("owned", shim_count("owned"));
	print_share("passed", shim_count("passed"));
	printf("refused %llu connects %llu live %lld served %llu\n",
	       (unsigned long long)shim_count("refused"),
	       (unsigned long long)shim_count("connects"), (long long)shim_count("live_bytes"),
	       (unsigned long long)shim_count("owned"));
	fflush(stdout);
}

static CUdeviceptr alloc(size_t n_bytes)
{
	CUdeviceptr ptr = 0;
	must_ok(cu(cuMemAlloc_v2)(&ptr, n_bytes));
	must(ptr % 512 == 0);
	return ptr;
}

static CUstream new_stream(void)
{
	CUstream stream;
	must_ok(cu(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

static CUdeviceptr alloc_on(CUstream stream, size_t n_bytes)
{
	CUdeviceptr ptr = 0;
	must_ok(cu(cuMemAllocAsync)(&ptr, n_bytes, stream));
	return ptr;
}

TEST_BYTE_LOOP static void fill(CUdeviceptr ptr, size_t n_bytes, unsigned seed)
{
	uint8_t *bytes = malloc(n_bytes);
	for (size_t i = 0; i < n_bytes; i++) {
		bytes[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8));
	}
	must_ok(cu(cuMemcpyHtoD_v2)(ptr, bytes, n_bytes));
	free(bytes);
}

TEST_BYTE_LOOP static void check(CUdeviceptr ptr, size_t n_bytes, unsigned seed)
{
	uint8_t *bytes = malloc(n_bytes);
	must_ok(cu(cuMemcpyDtoH_v2)(bytes, ptr, n_bytes));
	for (size_t i = 0; i < n_bytes; i++) {
		must(bytes[i] == (uint8_t)(seed * 31 + i * 7 + (i >> 8)));
	}
	free(bytes);
}

static uint64_t attribute(CUpointer_attribute which, CUdeviceptr ptr)
{
	uint64_t value = 0;
	must_ok(cu(cuPointerGetAttribute)(&value, which, ptr));
	return value;
}

/* ---- scenarios ---- */

static const size_t sizes[] = {1,         511,           512,         513,     4096,    100000,
                               MIB - 512, MIB,           2 * MIB - 1, 2 * MIB, 3 * MIB, 5 * MIB + 1,
                               20 * MIB,  2 * MIB - 512, 7,           12345};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void check_facts(CUcontext ctx, CUdeviceptr ptr, size_t n_bytes)
{
	CUdeviceptr base = 0;
	size_t range = 0;
	must_ok(cu(cuMemGetAddressRange_v2)(&base, &range, ptr + n_bytes - 1));
	must(base == ptr && range == n_bytes);
	must_ok(cu(cuMemGetAddressRange_v2)(&base, NULL, ptr));
	must(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ptr) == (uintptr_t)ctx);
	must(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, ptr + n_bytes / 2) == ptr);
	must(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, ptr) == n_bytes);
	must(attribute(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, ptr) == 0);
	must(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) == 0);
	must((unsigned)attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr) == CU_MEMORYTYPE_DEVICE);
	must((unsigned)attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) == 0);
	must(attribute(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ptr) == ptr);
	must((unsigned)attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr) == 0);

	CUpointer_attribute which[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_BUFFER_ID};
	unsigned type = 0;
	uint64_t size = 0;
	CUcontext owner = NULL;
	uint64_t id = 0;
	void *data[] = {&type, &size, &owner, &id};
	must_ok(cu(cuPointerGetAttributes)(4, which, data, ptr));
	must(type == CU_MEMORYTYPE_DEVICE && size == n_bytes && owner == ctx);
	must(id == attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr) && id != 0);
}

static void basic(const char *argument)
{
	CUcontext ctx = start();
	CUdeviceptr ptrs[N_SIZES];
	uint64_t last_id = 0;
	for (size_t i = 0; i < N_SIZES; i++) {
		ptrs[i] = alloc(sizes[i]);
		fill(ptrs[i], sizes[i], (unsigned)i);
		check_facts(ctx, ptrs[i], sizes[i]);
		uint64_t id = attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, ptrs[i]);
		must(id != last_id);
		last_id = id;
	}
	for (size_t i = 0; i < N_SIZES; i++) {
		check(ptrs[i], sizes[i], (unsigned)i);
	}
	print_counts();
	for (size_t i = 0; i < N_SIZES; i++) {
		must_ok(cu(cuMemFree_v2)(ptrs[(i * 7) % N_SIZES]));
	}
	CUdeviceptr pitched = 0;
	size_t pitch = 0;
	must_ok(cu(cuMemAllocPitch_v2)(&pitched, &pitch, 1000, 10, 4));
	must(pitch == 1024);
	fill(pitched, pitch * 10, 3);
	check(pitched, pitch * 10, 3);
	must_ok(cu(cuMemFree_v2)(pitched));
	must_ok(cu(cuMemFree_v2)(0));
	print_counts();
}

/* Nobody has it, or had it and freed it. */
static void check_unknown(CUdeviceptr ptr)
{
	CUdeviceptr base = 0;
	size_t range = 0;
	uint64_t value;
	must_be(cu(cuMemGetAddressRange_v2)(&base, &range, ptr), CUDA_ERROR_NOT_FOUND);
	must_be(cu(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, ptr),
	        CUDA_ERROR_INVALID_VALUE);
	CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
	                               CU_POINTER_ATTRIBUTE_RANGE_SIZE,
	                               CU_POINTER_ATTRIBUTE_BUFFER_ID};
	unsigned type = 7;
	uint64_t size = 0;
	uint64_t id = 7;
	void *data[] = {&type, &size, &id};
	must_ok(cu(cuPointerGetAttributes)(3, which, data, ptr));
	must(type == 0 && size == 0 && id == 0);
}

/* Wrong calls get the driver's errors. */
static void errors(const char *argument)
{
	CUdeviceptr ptr = 0;
	size_t n_bytes = 0;
	must(cu(cuMemAlloc_v2)(&ptr, 100) == CUDA_ERROR_NOT_INITIALIZED);
	must_ok(cu(cuInit)(0));
	must(cu(cuMemAlloc_v2)(&ptr, 100) == CUDA_ERROR_INVALID_CONTEXT);
	start();
	must_be(cu(cuMemAlloc_v2)(NULL, 100), CUDA_ERROR_INVALID_VALUE);
	must_be(cu(cuMemAlloc_v2)(&ptr, 0), CUDA_ERROR_INVALID_VALUE);
	must_be(cu(cuMemAlloc_v2)(&ptr, 1ull << 50), CUDA_ERROR_OUT_OF_MEMORY);
	must_be(cu(cuMemAlloc_v2)(&ptr, ~(size_t)0), CUDA_ERROR_OUT_OF_MEMORY);
	must(ptr == 0);
	must_be(cu(cuMemAllocPitch_v2)(&ptr, &n_bytes, 0, 1, 4), CUDA_ERROR_INVALID_VALUE);
	must_be(cu(cuMemAllocPitch_v2)(&ptr, &n_bytes, 8, 1, 5), CUDA_ERROR_INVALID_VALUE);
	must_be(cu(cuMemAllocPitch_v2)(&ptr, &n_bytes, ~(size_t)0, 2, 4), CUDA_ERROR_OUT_OF_MEMORY);

	CUdeviceptr small = alloc(1000);
	CUdeviceptr large = alloc(4 * MIB);
	must_be(cu(cuMemFree_v2)(small + 512), CUDA_ERROR_INVALID_VALUE);
	must_be(cu(cuMemFree_v2)(large + 512), CUDA_ERROR_INVALID_VALUE);
	must_be(cu(cuMemFree_v2)(large + 2 * MIB), CUDA_ERROR_INVALID_VALUE);
	must_be(cu(cuMemFree_v2)(0x1234000), CUDA_ERROR_INVALID_VALUE);
	CUmemGenericAllocationHandle handle;
	must_be(cu(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)small),
	        CUDA_ERROR_INVALID_VALUE);
	must_be(cu(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)large),
	        CUDA_ERROR_INVALID_VALUE);
	fill(small, 1000, 1);
	fill(large, 4 * MIB, 2);
	check(small, 1000, 1);
	check(large, 4 * MIB, 2);
	must_ok(cu(cuMemFree_v2)(small));
	must_ok(cu(cuMemFree_v2)(large));
	must_be(cu(cuMemFree_v2)(small), CUDA_ERROR_INVALID_VALUE);
	must_be(cu(cuMemFree_v2)(large), CUDA_ERROR_INVALID_VALUE);
	check_unknown(small);
	check_unknown(large + 4 * MIB - 1);
	check_unknown(0x1234000);

	/* The program's own cudaMalloc memory, freed in stream order. */
	CUstream stream;
	must_ok(cu(cuStreamCreate)(&stream, 0));
	large = alloc(4 * MIB);
	must_ok(cu(cuMemsetD8Async)(large, 1, 4 * MIB, stream));
	must_ok(cu(cuMemFreeAsync)(large, stream));
	must_ok(cu(cuStreamSynchronize)(stream));
	must_be(cu(cuMemFree_v2)(large), CUDA_ERROR_INVALID_VALUE);
	print_counts();
}

/* A piece of memory of a thread; its first and last byte are looked at before it goes. */
struct piece {
	CUdeviceptr ptr; /* 0: there is none */
	size_t n_bytes;
	uint8_t mark;
};

static void fill_piece(struct piece *piece, unsigned *seed, bool is_ordered, CUstream stream)
{
	piece->n_bytes = churn_pick(seed, 16) ? 1 + churn_pick(seed, 60000)
	                                      : 2 * MIB + churn_pick(seed, 2 * MIB);
	piece->mark = (uint8_t)churn_pick(seed, 256);
	piece->ptr = is_ordered ? alloc_on(stream, piece->n_bytes) : alloc(piece->n_bytes);
	must_ok(cu(cuMemsetD8Async)(piece->ptr, piece->mark, piece->n_bytes, stream));
	if (is_ordered) {
		/* And what is gone before its work has begun. */
		CUdeviceptr brief = alloc_on(stream, piece->n_bytes);
		must_ok(cu(cuMemsetD8Async)(brief, (uint8_t)~piece->mark, piece->n_bytes, stream));
		must_ok(cu(cuMemFreeAsync)(brief, stream));
	} else {
		must_ok(cu(cuStreamSynchronize)(stream));
	}
}

static void empty_piece(struct piece *piece, bool is_ordered, CUstream stream)
{
	uint8_t ends[2];
	must_ok(cu(cuMemcpyDtoHAsync_v2)(&ends[0], piece->ptr, 1, stream));
	must_ok(cu(cuMemcpyDtoHAsync_v2)(&ends[1], piece->ptr + piece->n_bytes - 1, 1, stream));
	if (is_ordered) {
		must_ok(cu(cuMemFreeAsync)(piece->ptr, stream));
	}
	must_ok(cu(cuStreamSynchronize)(stream));
	must(ends[0] == piece->mark && ends[1] == piece->mark);
	if (!is_ordered) {
		must_ok(cu(cuMemFree_v2)(piece->ptr));
	}
	piece->ptr = 0;
}

static void churn(unsigned seed, bool is_ordered)
{
	struct piece pieces[24] = {{0}};
	use_device(0);
	CUstream stream = new_stream();
	for (int round = 0; round < 300; round++) {
		struct piece *piece = &pieces[churn_pick(&seed, 24)];
		if (piece->ptr) {
			empty_piece(piece, is_ordered, stream);
		} else {
			fill_piece(piece, &seed, is_ordered, stream);
		}
	}
	for (int i = 0; i < 24; i++) {
		must_ok(is_ordered ? cu(cuMemFreeAsync)(pieces[i].ptr, stream)
		                   : cu(cuMemFree_v2)(pieces[i].ptr));
	}
	must_ok(cu(cuStreamDestroy_v2)(stream));
}

static void *churn_thread(void *argument)
{
	churn((unsigned)(uintptr_t)argument, false);
	return NULL;
}

static void *ordered_thread(void *argument)
{
	churn((unsigned)(uintptr_t)argument, true);
	return NULL;
}

static void run_threads(void *(*thread)(void *), unsigned n)
{
	pthread_t ids[12];
	start();
	for (uintptr_t i = 0; i < n; i++) {
		must(pthread_create(&ids[i], NULL, thread, (void *)i) == 0);
	}
	for (unsigned i = 0; i < n; i++) {
		pthread_join(ids[i], NULL);
	}
	print_counts();
}

static void threads(const char *argument)
{
	run_threads(churn_thread, 12);
}

static void async_threads(const char *argument)
{
	run_threads(ordered_thread, 8);
}

/*
 * Takes the device in pieces of so many bytes until it says no, or, for "BYTES/MOST", until it has MOST bytes. Prints what it
 * got and what it was told.
 */
static void greedy(const char *argument)
{
	const char *most_text = strchr(argument, '/');
	size_t step = (size_t)atoll(argument);
	size_t most = most_text ? (size_t)atoll(most_text + 1) : SIZE_MAX;
	size_t free_bytes, total_bytes;
	size_t got = 0;
	CUdeviceptr ptr;
	start();
	must_ok(cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
	size_t told = 0;
	must_ok(cu(cuDeviceTotalMem_v2)(&told, 0));
	printf("free %zu total %zu device %zu\n", free_bytes, total_bytes, told);
	CUresult result = CUDA_SUCCESS;
	while (got < most && (result = cu(cuMemAlloc_v2)(&ptr, step)) == CUDA_SUCCESS) {
		got += step;
	}
	must_be(result, got < most ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
	must_ok(cu(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
	printf("got %zu free %zu\n", got, free_bytes);
	print_counts();
}

/* The child of a process without CUDA may use it; that of one with CUDA may not, but lives. */
static void forks(const char *argument)
{
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		basic(NULL);
		fflush(stdout);
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid && status == 0);
	start();
	CUdeviceptr mine = alloc(3 * MIB);
	fill(mine, 3 * MIB, 5);
	pid = fork();
	if (pid == 0) {
		CUdeviceptr ptr = 0;
		must(cu(cuMemAlloc_v2)(&ptr, 100) != CUDA_SUCCESS);
		must(cu(cuMemFree_v2)(mine) != CUDA_SUCCESS);
		_exit(0);
	}
	must(waitpid(pid, &status, 0) == pid && status == 0);
	check(mine, 3 * MIB, 5);
	must_ok(cu(cuMemFree_v2)(mine));
	print_counts();
}

/* A thread forks while others allocate. */
static void storm(const char *argument)
{
	pthread_t ids[6];
	start();
	for (uintptr_t i = 0; i < 6; i++) {
		must(pthread_create(&ids[i], NULL, churn_thread, (void *)i) == 0);
	}
	for (int i = 0; i < 20; i++) {
		int status;
		pid_t pid = fork();
		if (pid == 0) {
			CUdeviceptr ptr = 0;
			must(cu(cuMemAlloc_v2)(&ptr, 100) != CUDA_SUCCESS);
			_exit(0);
		}
		must(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	}
	for (int i = 0; i < 6; i++) {
		pthread_join(ids[i], NULL);
	}
	print_counts();
}

/* Allocates at each line; the test does things to glaked meanwhile. */
static void steps(const char *argument)
{
	CUdeviceptr ptrs[40];
	int n = atoi(argument);
	start();
	for (int i = 0; i < n; i++) {
		CUresult result = cu(cuMemAlloc_v2)(&ptrs[i], 6 * MIB);
		printf("result %d ", (int)result);
		if (result == CUDA_SUCCESS) {
			fill(ptrs[i], 6 * MIB, (unsigned)i);
		} else {
			ptrs[i] = 0;
		}
		print_counts();
		wait_for_line();
	}
	for (int i = 0; i < n; i++) {
		if (ptrs[i]) {
			check(ptrs[i], 6 * MIB, (unsigned)i);
			must_ok(cu(cuMemFree_v2)(ptrs[i]));
		}
	}
	print_counts();
}

static int slow_ran;

static void CUDA_CB run_slowly(void *user)
{
	usleep(100000);
	__atomic_store_n(&slow_ran, 1, __ATOMIC_SEQ_CST);
}

/* cuMemFree() waits for what runs. */
static void waits(const char *argument)
{
	start();
	CUstream stream = new_stream();
	for (int i = 0; i < 2; i++) {
		CUdeviceptr ptr = alloc(i ? 1000 : 4 * MIB);
		__atomic_store_n(&slow_ran, 0, __ATOMIC_SEQ_CST);
		must_ok(cu(cuLaunchHostFunc)(stream, run_slowly, NULL));
		must_ok(cu(cuMemsetD8Async)(ptr, 1, 1000, stream));
		must_ok(cu(cuMemFree_v2)(ptr));
		must(__atomic_load_n(&slow_ran, __ATOMIC_SEQ_CST));
	}
}

/* Memory of a context goes with it. */
static void resets(const char *argument)
{
	start();
	for (int i = 0; i < 3; i++) {
		CUdeviceptr large = alloc(30 * MIB);
		CUdeviceptr small = alloc(1000);
		must_ok(cu(cuDevicePrimaryCtxReset_v2)(0));
		start();
		must(cu(cuMemFree_v2)(large) != CUDA_SUCCESS);
		must(cu(cuMemFree_v2)(small) != CUDA_SUCCESS);
	}
	print_counts();
}

static unsigned access_of(CUdeviceptr ptr)
{
	unsigned flags = 0;
	must_ok(cu(cuPointerGetAttribute)(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, ptr));
	return flags;
}

/* Device 1 reads and writes what device 0 has and will have. */
static void peers(const char *argument)
{
	CUcontext zero = start();
	CUdeviceptr before = alloc(4 * MIB);
	CUcontext one = use_device(1);
	must_ok(cu(cuCtxEnablePeerAccess)(zero, 0));
	must_be(cu(cuCtxEnablePeerAccess)(zero, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	must_ok(cu(cuCtxSetCurrent)(zero));
	CUdeviceptr after = alloc(4 * MIB);
	fill(after, 4 * MIB, 1);
	must_ok(cu(cuCtxSetCurrent)(one));
	CUstream stream;
	must_ok(cu(cuStreamCreate)(&stream, 0));
	must_ok(cu(cuMemcpyDtoDAsync_v2)(before, after, 4 * MIB, stream));
	must_ok(cu(cuStreamSynchronize)(stream));
	must(access_of(after) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
	must(access_of(before) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
	must_ok(cu(cuCtxSetCurrent)(zero));
	check(before, 4 * MIB, 1);
	must_ok(cu(cuMemFree_v2)(before));
	must_ok(cu(cuMemFree_v2)(after));
}

/* The first attempt fails, for our memory alone: then the driver has not enabled it either. */
static void peers_again(const char *argument)
{
	CUcontext zero = start();
	CUdeviceptr before = alloc(4 * MIB);
	CUcontext one = use_device(1);
	must_be(cu(cuCtxEnablePeerAccess)(zero, 0), CUDA_ERROR_OUT_OF_MEMORY);
	must_ok(cu(cuCtxSetCurrent)(zero));
	CUdeviceptr after = alloc(4 * MIB);
	must_ok(cu(cuCtxSetCurrent)(one));
	must(access_of(after) == 0);
	must_ok(cu(cuCtxEnablePeerAccess)(zero, 0));
	must(access_of(before) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
	must(access_of(after) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
}

static void print_handle(const CUipcMemHandle *handle)
{
	for (size_t i = 0; i < sizeof(handle->reserved); i++) {
		printf("%02x", (unsigned char)handle->reserved[i]);
	}
	putchar('\n');
}

/* Names a small and a large allocation, and waits; what the other one wrote has to be there. */
static void ipc_give(const char *argument)
{
	static const size_t given[] = {1000, 5 * MIB};
	CUdeviceptr ptrs[2];
	start();
	alloc(3000);
	for (int i = 0; i < 2; i++) {
		CUipcMemHandle handle;
		CUdeviceptr opened;
		ptrs[i] = alloc(given[i]);
		fill(ptrs[i], given[i], (unsigned)i);
		must(attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptrs[i]) & 1);
		must_ok(cu(cuIpcGetMemHandle)(&handle, ptrs[i]));
		must(cu(cuIpcOpenMemHandle_v2)(&opened, handle,
		                               CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
		print_handle(&handle);
	}
	wait_for_line();
	for (int i = 0; i < 2; i++) {
		if (*argument) {
			check(ptrs[i], given[i], 7);
		}
		must_ok(cu(cuMemFree_v2)(ptrs[i]));
	}
	wait_for_line();
}

static CUipcMemHandle parse_handle(const char *text)
{
	CUipcMemHandle handle;
	for (size_t i = 0; i < sizeof(handle.reserved); i++) {
		unsigned byte = 0;
		must(sscanf(text + 2 * i, "%2x", &byte) == 1);
		handle.reserved[i] = (char)byte;
	}
	return handle;
}

static CUresult open_handle(const CUipcMemHandle *handle, CUdeviceptr *ptr_out)
{
	return cu(cuIpcOpenMemHandle_v2)(ptr_out, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

/* Two handles in one argument, side by side. */
static void ipc_take(const char *argument)
{
	static const size_t given[] = {1000, 5 * MIB};
	CUdeviceptr ptrs[2];
	CUdeviceptr again;
	start();
	for (int i = 0; i < 2; i++) {
		CUipcMemHandle handle = parse_handle(argument + i * 128);
		must_ok(open_handle(&handle, &ptrs[i]));
		must_ok(open_handle(&handle, &again));
		must(again == ptrs[i]);
		check(ptrs[i], given[i], (unsigned)i);
		fill(ptrs[i], given[i], 7);
	}
	for (int i = 0; i < 2; i++) {
		must_ok(cu(cuIpcCloseMemHandle)(ptrs[i]));
		check(ptrs[i], given[i], 7);
		must_ok(cu(cuIpcCloseMemHandle)(ptrs[i]));
		must(cu(cuIpcCloseMemHandle)(ptrs[i]) != CUDA_SUCCESS);
	}
	must(cu(cuMemFree_v2)(ptrs[0]) != CUDA_SUCCESS);
}

/* A handle that nothing is behind any more, and one that never was ours. */
static void ipc_dead(const char *argument)
{
	CUdeviceptr ptr = 0;
	CUipcMemHandle handle = parse_handle(argument);
	start();
	must_be(open_handle(&handle, &ptr), CUDA_ERROR_INVALID_HANDLE);
	handle.reserved[0] = 'x';
	must_be(open_handle(&handle, &ptr), CUDA_ERROR_INVALID_HANDLE);
	must(ptr == 0);
}

static CUmemAllocationProp chunk_properties(unsigned handle_types)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = (CUmemAllocationHandleType)handle_types,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
}

static void open_to_device(CUdeviceptr ptr, size_t n_bytes)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	must_ok(cu(cuMemSetAccess)(ptr, n_bytes, &access, 1));
}

/* As PyTorch's expandable segments: grow, shrink, export, import, retain. */
static void vmm(const char *argument)
{
	enum { N = 5 };
	const size_t each = 4 * MIB;
	CUmemAllocationProp shared = chunk_properties(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	CUmemAllocationProp plain = chunk_properties(0);
	CUmemAllocationProp got;
	CUmemGenericAllocationHandle handles[N];
	CUmemGenericAllocationHandle handle;
	CUdeviceptr base = 0;
	int fd = -1;
	start();
	must_ok(cu(cuMemAddressReserve)(&base, 16 * each, 0, 0, 0));
	for (int i = 0; i < N; i++) {
		must_ok(cu(cuMemCreate)(&handles[i], each, i ? &shared : &plain, 0));
		must_ok(cu(cuMemMap)(base + i * each, each, 0, handles[i], 0));
	}
	open_to_device(base, N * each);
	fill(base, N * each, 9);
	check(base, N * each, 9);
	print_counts();

	must(cu(cuMemExportToShareableHandle)(
		     &fd, handles[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS);
	must_ok(cu(cuMemGetAllocationPropertiesFromHandle)(&got, handles[0]));
	must(got.requestedHandleTypes == 0 && got.location.id == 0);
	must_ok(cu(cuMemExportToShareableHandle)(&fd, handles[1],
	                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	must_ok(cu(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd,
	                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	close(fd);
	/* The imported memory is mapped at a second address. */
	must_ok(cu(cuMemMap)(base + 8 * each, each, 0, handle, 0));
	open_to_device(base + 8 * each, each);
	fill(base + 8 * each, each, 4);
	check(base + each, each, 4);
	must_ok(cu(cuMemUnmap)(base + 8 * each, each));
	must_ok(cu(cuMemRelease)(handle));

	/* The mapping holds it; a handle can be had again from the address. */
	for (int i = 0; i < N; i++) {
		must_ok(cu(cuMemRelease)(handles[i]));
	}
	check(base + each, each, 4);
	must_ok(cu(cuMemRetainAllocationHandle)(&handle, (void *)(uintptr_t)(base + each)));
	must_ok(cu(cuMemGetAllocationPropertiesFromHandle)(&got, handle));
	must(got.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	must_ok(cu(cuMemUnmap)(base, N * each));
	must_ok(cu(cuMemMap)(base, each, 0, handle, 0));
	open_to_device(base, each);
	check(base, each, 4);
	must_ok(cu(cuMemRelease)(handle));
	must(cu(cuMemRelease)(handle) != CUDA_SUCCESS);
	wait_for_line();
	must_ok(cu(cuMemUnmap)(base, each));
	must_ok(cu(cuMemAddressFree)(base, 16 * each));

	/* Memory that cannot be a chunk is the driver's, errors included. */
	must(cu(cuMemCreate)(&handle, 12345, &plain, 0) != CUDA_SUCCESS);
	must_be(cu(cuMemCreate)(&handle, 1ull << 35, &plain, 0), CUDA_ERROR_OUT_OF_MEMORY);
	plain.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0};
	must_ok(cu(cuMemCreate)(&handle, 2 * MIB, &plain, 0));
	must_ok(cu(cuMemRelease)(handle));
	print_counts();
	wait_for_line();
}

/* Most of the memory of a GPU of today at once. */
static void vmm_large(const char *argument)
{
	CUmemAllocationProp plain = chunk_properties(0);
	CUmemGenericAllocationHandle handle;
	start();
	must_ok(cu(cuMemCreate)(&handle, 84ull << 30, &plain, 0));
	print_counts();
	must_ok(cu(cuMemRelease)(handle));
}

/*
 * In a relaxed capture memory may be had and given back; in another it may not, and the attempt ends
 * the capture, as it does without the shim.
 */
static void captures(const char *argument)
{
	CUgraph graph;
	CUdeviceptr ptr = 0;
	start();
	CUstream stream = new_stream();
	CUdeviceptr before = alloc(4 * MIB);
	for (int round = 0; round < 3; round++) {
		must_ok(cu(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
		ptr = alloc(4 * MIB);
		CUdeviceptr small = alloc(1000);
		must_ok(cu(cuMemFree_v2)(small));
		must_ok(cu(cuStreamEndCapture)(stream, &graph));
		must_ok(cu(cuMemFree_v2)(ptr));
	}
	must_ok(cu(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	must_be(cu(cuMemAlloc_v2)(&ptr, 4 * MIB), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	must_be(cu(cuStreamEndCapture)(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	must_ok(cu(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	must_be(cu(cuMemFree_v2)(before), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	must_be(cu(cuStreamEndCapture)(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	must(cu(cuStreamEndCapture)(stream, &graph) != CUDA_SUCCESS);
	must_ok(cu(cuMemFree_v2)(before));
	must_ok(cu(cuMemFree_v2)(alloc(100)));
	print_counts();
}

/* ---- in stream order ---- */

static int gate_is_open;

static void CUDA_CB wait_at_gate(void *user)
{
	while (!__atomic_load_n(&gate_is_open, __ATOMIC_SEQ_CST)) {
		usleep(1000);
	}
}

/* The stream's work stops here. */
static void close_gate(CUstream stream)
{
	__atomic_store_n(&gate_is_open, 0, __ATOMIC_SEQ_CST);
	must_ok(cu(cuLaunchHostFunc)(stream, wait_at_gate, NULL));
}

static void open_gate(void)
{
	__atomic_store_n(&gate_is_open, 1, __ATOMIC_SEQ_CST);
}

/* Freed memory is the same stream's at once, and another's when the work before it is done. */
static void async_reuse(size_t n_bytes)
{
	CUstream one = new_stream();
	CUstream two = new_stream();
	CUdeviceptr ptr = alloc_on(one, n_bytes);
	close_gate(one);
	must_ok(cu(cuMemsetD8Async)(ptr, 1, n_bytes, one));
	must_ok(cu(cuMemFreeAsync)(ptr, one));
	must_be(cu(cuMemFreeAsync)(ptr, one), CUDA_ERROR_INVALID_VALUE);
	must(alloc_on(one, n_bytes) == ptr);
	must_ok(cu(cuMemsetD8Async)(ptr, 2, n_bytes, one));
	must_ok(cu(cuMemFreeAsync)(ptr, one));
	CUdeviceptr other = alloc_on(two, n_bytes);
	must(other + n_bytes <= ptr || ptr + n_bytes <= other);
	must_ok(cu(cuMemsetD8Async)(other, 3, n_bytes, two));
	must_ok(cu(cuStreamSynchronize)(two));
	open_gate();
	must_ok(cu(cuStreamSynchronize)(one));
	CUdeviceptr again = alloc_on(two, n_bytes);
	must(again == ptr);
	must_ok(cu(cuMemsetD8Async)(again, 4, n_bytes, two));
	must_ok(cu(cuStreamSynchronize)(two));
	uint8_t last = 0;
	must_ok(cu(cuMemcpyDtoH_v2)(&last, other + n_bytes - 1, 1));
	must(last == 3);
	must_ok(cu(cuMemFreeAsync)(again, one));
	must_ok(cu(cuMemFree_v2)(other));
	must_ok(cu(cuStreamDestroy_v2)(one));
	must_ok(cu(cuStreamDestroy_v2)(two));
}

/* Memory that is freed on a stream of another device stays memory of its own. */
static void async_devices(CUcontext zero)
{
	CUstream here = new_stream();
	use_device(1);
	CUstream there = new_stream();
	must_ok(cu(cuCtxSetCurrent)(zero));
	/* The stream decides, not the current context. */
	CUdeviceptr ptr = alloc_on(there, 4 * MIB);
	must((unsigned)attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) == 1);
	must_ok(cu(cuMemFreeAsync)(ptr, here));
	CUdeviceptr mine = alloc_on(here, 4 * MIB);
	must((unsigned)attribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, mine) == 0);
	must_ok(cu(cuMemFreeAsync)(mine, here));
}

static void async(const char *argument)
{
	async_devices(start());
	async_reuse(4 * MIB);
	async_reuse(1000);
	async_reuse(2 * MIB - 512);
	print_counts();
}

/* A stream may go before the memory is freed, or before its work is done. */
static void async_streams(const char *argument)
{
	start();
	for (int i = 0; i < 100; i++) {
		CUstream stream;
		/* Ordered with the default stream. */
		must_ok(cu(cuStreamCreate)(&stream, 0));
		CUdeviceptr before = alloc_on(stream, i % 2 ? 1000 : 3 * MIB);
		CUdeviceptr after = alloc_on(stream, i % 2 ? 3 * MIB : 1000);
		close_gate(stream);
		must_ok(cu(cuMemsetD8Async)(before, 1, 1000, stream));
		must_ok(cu(cuMemsetD8Async)(after, 1, 1000, stream));
		must_ok(cu(cuMemFreeAsync)(before, stream));
		must_ok(cu(cuStreamDestroy_v2)(stream));
		open_gate();
		must_ok(cu(cuMemFreeAsync)(after, 0));
	}
	must_ok(cu(cuCtxSynchronize)());
	print_counts();
	wait_for_line();
}

/* The codes are the same with the shim and without. */
static void async_errors(const char *argument)
{
	CUdeviceptr ptr = 0;
	start();
	CUstream stream = new_stream();
	must_be(cu(cuMemAllocAsync)(NULL, 100, stream), CUDA_ERROR_INVALID_VALUE);
	must_ok(cu(cuMemAllocAsync)(&ptr, 0, stream));
	must(ptr == 0);
	must_be(cu(cuMemAllocAsync)(&ptr, 1ull << 50, stream), CUDA_ERROR_OUT_OF_MEMORY);
	must_be(cu(cuMemAllocAsync)(&ptr, ~(size_t)0, stream), CUDA_ERROR_OUT_OF_MEMORY);
	must_be(cu(cuMemAllocFromPoolAsync)(&ptr, 100, NULL, stream), CUDA_ERROR_INVALID_VALUE);
	must(ptr == 0);
	must_ok(cu(cuMemFreeAsync)(0, stream));
	for (int i = 0; i < 2; i++) {
		size_t n_bytes = i ? 4 * MIB : 1500;
		ptr = alloc_on(stream, n_bytes);
		must_be(cu(cuMemFreeAsync)(ptr + 512, stream), CUDA_ERROR_INVALID_VALUE);
		must_be(cu(cuMemFree_v2)(ptr + 512), CUDA_ERROR_INVALID_VALUE);
		must_be(cu(cuMemFreeAsync)(0x1234000, stream), CUDA_ERROR_INVALID_VALUE);
		must(attribute(CU_POINTER_ATTRIBUTE_CONTEXT, ptr) == 0);
		must((unsigned)attribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, ptr) ==
		     0);
		CUmemoryPool pool = NULL;
		must_ok(cu(cuDeviceGetDefaultMemPool)(&pool, 0));
		must(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) == (uintptr_t)pool);
		CUipcMemHandle handle;
		must_be(cu(cuIpcGetMemHandle)(&handle, ptr), CUDA_ERROR_INVALID_VALUE);
		fill(ptr, n_bytes, 1);
		check(ptr, n_bytes, 1);
		must_ok(cu(cuMemFree_v2)(ptr));
		must_be(cu(cuMemFreeAsync)(ptr, stream), CUDA_ERROR_INVALID_VALUE);
		must_be(cu(cuMemFree_v2)(ptr), CUDA_ERROR_INVALID_VALUE);
		/* And the other way round. */
		ptr = alloc(n_bytes);
		must_ok(cu(cuMemFreeAsync)(ptr, stream));
		must_ok(cu(cuStreamSynchronize)(stream));
		must(cu(cuMemFree_v2)(ptr) != CUDA_SUCCESS);
	}
	print_counts();
}

/* On a captured stream the driver makes nodes; on others it may, too. */
static void async_captures(const char *argument)
{
	CUgraph graph;
	start();
	CUstream captured = new_stream();
	CUstream other = new_stream();
	CUdeviceptr before = alloc_on(other, 4 * MIB);
	for (int round = 0; round < 3; round++) {
		must_ok(cu(cuStreamBeginCapture_v2)(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
		CUdeviceptr node = alloc_on(captured, 4 * MIB);
		must_ok(cu(cuMemFreeAsync)(node, captured));
		/* Our memory is no node of this graph. */
		must_be(cu(cuMemFreeAsync)(before, captured),
		        argument[0] ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
		must_ok(cu(cuStreamEndCapture)(captured, &graph));
		if (argument[0]) {
			before = alloc_on(other, 4 * MIB);
		}
	}
	must_ok(cu(cuStreamBeginCapture_v2)(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	must_ok(cu(cuMemFreeAsync)(before, other));
	must_ok(cu(cuStreamEndCapture)(captured, &graph));
	before = alloc_on(other, 4 * MIB);
	must_ok(cu(cuMemFreeAsync)(before, other));
	print_counts();
}

static uint64_t pool_attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
	cuuint64_t value = 0;
	must_ok(cu(cuMemPoolGetAttribute)(pool, which, &value));
	return value;
}

/*
 * Nothing is left at once, of what was freed on this thread's default stream. On others a free may be without a mark, which
 * the shim's thread may add behind the stream's end.
 */
static void trim(CUmemoryPool pool)
{
	must_ok(cu(cuMemPoolTrimTo)(pool, 0));
	must(pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
}

static bool is_trimmed;

/* Who asks for the free memory has freed memory given back, as the shim's thread has now and then; and who trims, too. */
static void *trim_on(void *ctx)
{
	size_t n_free, n_total;
	CUmemoryPool pool = NULL;
	must_ok(cu(cuCtxSetCurrent)(ctx));
	must_ok(cu(cuDeviceGetDefaultMemPool)(&pool, 0));
	while (!__atomic_load_n(&is_trimmed, __ATOMIC_SEQ_CST)) {
		must_ok(cu(cuMemGetInfo_v2)(&n_free, &n_total));
		must_ok(cu(cuMemPoolTrimTo)(pool, 0));
	}
	return NULL;
}

/* Nothing that was freed is left, whoever gives it back. */
static void async_trimmed(const char *argument)
{
	CUmemoryPool pool = NULL;
	CUdeviceptr ptrs[8];
	pthread_t other;
	CUcontext ctx = start();
	CUstream stream = CU_STREAM_PER_THREAD;
	must_ok(cu(cuDeviceGetDefaultMemPool)(&pool, 0));
	must(pthread_create(&other, NULL, trim_on, ctx) == 0);
	for (unsigned round = 0; round < 300; round++) {
		for (unsigned i = 0; i < 8; i++) {
			ptrs[i] = alloc_on(stream, MIB);
		}
		for (unsigned i = 0; i < 8; i++) {
			must_ok(cu(cuMemFreeAsync)(ptrs[i], stream));
		}
		must_ok(cu(cuStreamSynchronize)(stream));
		trim(pool);
	}
	__atomic_store_n(&is_trimmed, true, __ATOMIC_SEQ_CST);
	pthread_join(other, NULL);
	print_counts();
}

/* With GLAKE_ALLOC=stitch: what PyTorch shows as allocated and reserved. */
static void async_stitched(const char *argument)
{
	CUmemoryPool standard = NULL;
	cuuint64_t zero = 0;
	start();
	CUstream stream = CU_STREAM_PER_THREAD;
	must_ok(cu(cuDeviceGetDefaultMemPool)(&standard, 0));
	CUdeviceptr one = alloc_on(stream, 8 * MIB);
	CUdeviceptr two = alloc_on(stream, 4 * MIB);
	must_ok(cu(cuMemFreeAsync)(one, stream));
	must_ok(cu(cuStreamSynchronize)(stream));
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 4 * MIB);
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 12 * MIB);
	/* Free memory stays for the next request. */
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 12 * MIB);
	must_ok(cu(cuMemFreeAsync)(two, stream));
	must_ok(cu(cuStreamSynchronize)(stream));
	trim(standard);
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 12 * MIB);
	must_ok(cu(cuMemPoolSetAttribute)(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &zero));
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 0);
	print_counts();
}

/* A pool's memory does not grow with each small allocation, as CuPy's tests expect. */
static void async_small(const char *argument)
{
	CUmemoryPool pool = NULL;
	start();
	CUstream stream = CU_STREAM_PER_THREAD;
	must_ok(cu(cuDeviceGetDefaultMemPool)(&pool, 0));
	CUdeviceptr first = alloc_on(stream, 1024);
	cuuint64_t reserved = pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	must(reserved >= 1024);
	CUdeviceptr second = alloc_on(stream, 2048);
	must(pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 3072);
	must(pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == reserved);
	/* Else it may be given back before anybody looks. */
	close_gate(stream);
	must_ok(cu(cuMemFreeAsync)(second, stream));
	must_ok(cu(cuMemFreeAsync)(first, stream));
	must(pool_attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
	must(pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == reserved);
	must(pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == reserved);
	open_gate();
	must_ok(cu(cuStreamSynchronize)(stream));
	trim(pool);
	CUdeviceptr third = alloc_on(new_stream(), 2048);
	must(pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == reserved);
	must_ok(cu(cuMemFreeAsync)(third, stream));
	print_counts();
}

static void async_pools(const char *argument)
{
	CUmemoryPool standard = NULL;
	CUmemoryPool plain = NULL;
	CUmemoryPool shared = NULL;
	cuuint64_t zero = 0;
	start();
	CUstream stream = CU_STREAM_PER_THREAD;
	CUmemPoolProps properties = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	must_ok(cu(cuDeviceGetDefaultMemPool)(&standard, 0));
	must_ok(cu(cuMemPoolCreate)(&plain, &properties));
	properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	must_ok(cu(cuMemPoolCreate)(&shared, &properties));

	CUdeviceptr ptr = alloc_on(stream, 4 * MIB);
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 4 * MIB);
	must_ok(cu(cuMemFreeAsync)(ptr, stream));
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 4 * MIB);
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 4 * MIB);
	must_ok(cu(cuMemPoolSetAttribute)(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero));
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
	must_ok(cu(cuStreamSynchronize)(stream));
	trim(standard);
	print_counts();
	wait_for_line();

	/* By name; as the current pool; of a kind that only the driver has. */
	must_ok(cu(cuMemAllocFromPoolAsync)(&ptr, 3 * MIB, plain, stream));
	must(pool_attribute(plain, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= 3 * MIB);
	must(pool_attribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
	must_ok(cu(cuMemFreeAsync)(ptr, stream));
	must_ok(cu(cuDeviceSetMemPool)(0, plain));
	ptr = alloc_on(stream, 3 * MIB);
	must(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr) == (uintptr_t)plain);
	must_ok(cu(cuMemFreeAsync)(ptr, stream));
	print_counts();
	must_ok(cu(cuMemAllocFromPoolAsync)(&ptr, 3 * MIB, shared, stream));
	must_ok(cu(cuMemFreeAsync)(ptr, stream));
	must_ok(cu(cuDeviceSetMemPool)(0, shared));
	must_ok(cu(cuMemFreeAsync)(alloc_on(stream, 3 * MIB), stream));
	print_counts();
	must_ok(cu(cuStreamSynchronize)(stream));
	must_ok(cu(cuMemPoolDestroy)(shared));
	must_ok(cu(cuMemPoolDestroy)(plain));
	must_ok(cu(cuMemFreeAsync)(alloc_on(stream, 3 * MIB), stream));
	print_counts();
}

/* Until it says no; then all that is parked behind work that ends serves. */
static void async_greedy(const char *argument)
{
	enum { MAX = 64 };
	CUdeviceptr ptrs[MAX];
	size_t step = (size_t)atoll(argument);
	unsigned n = 0;
	start();
	CUstream one = new_stream();
	CUstream two = new_stream();
	CUdeviceptr ptr;
	CUresult result;
	while ((result = cu(cuMemAllocAsync)(&ptr, step, one)) == CUDA_SUCCESS) {
		must(n < MAX);
		ptrs[n++] = ptr;
	}
	must_be(result, CUDA_ERROR_OUT_OF_MEMORY);
	printf("got %zu\n", n * step);
	must_ok(cu(cuLaunchHostFunc)(one, run_slowly, NULL));
	while (n > 0) {
		must_ok(cu(cuMemFreeAsync)(ptrs[--n], one));
	}
	ptr = alloc_on(two, 2 * step);
	must(__atomic_load_n(&slow_ran, __ATOMIC_SEQ_CST));
	must_ok(cu(cuMemFreeAsync)(ptr, two));
	print_counts();
}

/* glaked comes and goes between the lines. */
static void async_steps(const char *argument)
{
	start();
	CUstream stream = new_stream();
	CUdeviceptr kept = alloc_on(stream, 6 * MIB);
	CUdeviceptr parked = alloc_on(stream, 4 * MIB);
	must_ok(cu(cuMemFreeAsync)(parked, stream));
	fill(kept, 6 * MIB, 1);
	print_counts();
	wait_for_line();
	check(kept, 6 * MIB, 1);
	CUdeviceptr passed = alloc_on(stream, 8 * MIB);
	must_ok(cu(cuMemFreeAsync)(passed, stream));
	must_ok(cu(cuMemFreeAsync)(kept, stream));
	print_counts();
	wait_for_line();
	for (int i = atoi(argument); i > 0; i--) {
		must_ok(cu(cuMemFreeAsync)(alloc_on(stream, 8 * MIB), stream));
		print_counts();
		wait_for_line();
	}
	print_counts();
}

/* A context takes with it what is parked in it. */
static void async_resets(const char *argument)
{
	for (int i = 0; i < 3; i++) {
		start();
		CUstream stream = new_stream();
		CUdeviceptr ptr = alloc_on(stream, 30 * MIB);
		must_ok(cu(cuMemFreeAsync)(alloc_on(stream, 1000), stream));
		must_ok(cu(cuMemFreeAsync)(alloc_on(stream, 6 * MIB), stream));
		must_ok(cu(cuDevicePrimaryCtxReset_v2)(0));
		start();
		must(cu(cuMemFree_v2)(ptr) != CUDA_SUCCESS);
	}
	print_counts();
	wait_for_line();
}

/* Memory of every kind, and work on it that never ends. */
static void busy(const char *argument)
{
	CUmemAllocationProp plain = chunk_properties(0);
	CUmemGenericAllocationHandle handle;
	CUdeviceptr mapped = 0;
	start();
	CUstream stream = new_stream();
	alloc(1000);
	CUdeviceptr large = alloc(6 * MIB);
	CUdeviceptr ordered = alloc_on(stream, 4 * MIB);
	must_ok(cu(cuMemAddressReserve)(&mapped, 2 * MIB, 0, 0, 0));
	must_ok(cu(cuMemCreate)(&handle, 2 * MIB, &plain, 0));
	must_ok(cu(cuMemMap)(mapped, 2 * MIB, 0, handle, 0));
	open_to_device(mapped, 2 * MIB);
	close_gate(stream);
	must_ok(cu(cuMemsetD8Async)(large, 1, 6 * MIB, stream));
	must_ok(cu(cuMemcpyDtoDAsync_v2)(mapped, ordered, 2 * MIB, stream));
	must_ok(cu(cuMemFreeAsync)(alloc_on(stream, 8 * MIB), stream));
	print_counts();
	wait_for_line();
}

/* Has memory once, gives it back, and does nothing more. */
static void idle(const char *argument)
{
	start();
	must_ok(cu(cuMemFree_v2)(alloc((size_t)atoll(argument))));
	wait_for_line();
}

/* The number of a socket that the program has not opened. */
static int find_socket(void)
{
	struct stat status;
	int fd = 3;
	while (fstat(fd, &status) < 0 || !S_ISSOCK(status.st_mode)) {
		must(++fd < 1024);
	}
	return fd;
}

/* Puts a file of its own there. */
static void usurp(const char *argument)
{
	int ends[2];
	char bytes[8];
	start();
	CUdeviceptr first = alloc(6 * MIB);
	int fd = find_socket();
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	must(dup2(ends[0], fd) == fd);
	must(write(ends[1], "mine", 4) == 4);
	CUdeviceptr second = alloc(6 * MIB);
	must_ok(cu(cuMemFree_v2)(first));
	must_ok(cu(cuMemFree_v2)(second));
	print_counts();
	wait_for_line();
	/* Nobody has read it, written to it, shut it down or closed it. */
	must(recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) == 4 && memcmp(bytes, "mine", 4) == 0);
	must(recv(ends[1], bytes, sizeof(bytes), MSG_DONTWAIT) < 0 && errno == EAGAIN);
	must(write(fd, "mine", 4) == 4);
}

/* Allocates while it can open no more files. */
static void alloc_without_files(void)
{
	struct rlimit before;
	struct rlimit none;
	CUdeviceptr ptr = 0;
	must(getrlimit(RLIMIT_NOFILE, &before) == 0);
	none = before;
	int lowest = dup(0);
	close(lowest);
	none.rlim_cur = (rlim_t)lowest;
	must(setrlimit(RLIMIT_NOFILE, &none) == 0);
	cu(cuMemAlloc_v2)(&ptr, 8 * MIB);
	must(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

/* And then again. */
static void no_fds(const char *argument)
{
	start();
	alloc(6 * MIB);
	wait_for_line();
	alloc_without_files();
	print_counts();
	wait_for_line();
	alloc(10 * MIB);
	print_counts();
}

/* Loses the connection, cannot open another one, and then can. */
static void loses(const char *argument)
{
	CUdeviceptr ptr = 0;
	start();
	alloc(6 * MIB);
	/* By a bare system call: it is a race with who uses it, and meant to be one. */
	must(syscall(SYS_close, find_socket()) == 0);
	alloc_without_files();
	print_counts();
	while (shim_count("owned") < 2) {
		usleep(20000);
		cu(cuMemAlloc_v2)(&ptr, 8 * MIB);
	}
	must(shim_count("connects") == 1);
	wait_for_line();
}

static int is_cancelled;

/* To be cancelled at the first call that can be. */
static void *cancelled_thread(void *argument)
{
	CUdeviceptr ptr = 0;
	while (!__atomic_load_n(&is_cancelled, __ATOMIC_SEQ_CST)) {
	}
	must_ok(cu(cuCtxSetCurrent)(argument));
	must_ok(cu(cuMemAlloc_v2)(&ptr, 6 * MIB));
	return NULL;
}

static void cancels(const char *argument)
{
	CUcontext ctx = start();
	for (int i = 0; i < 10; i++) {
		pthread_t id;
		__atomic_store_n(&is_cancelled, 0, __ATOMIC_SEQ_CST);
		must(pthread_create(&id, NULL, cancelled_thread, ctx) == 0);
		must(pthread_cancel(id) == 0);
		__atomic_store_n(&is_cancelled, 1, __ATOMIC_SEQ_CST);
		pthread_join(id, NULL);
	}
	alloc(6 * MIB);
	print_counts();
}

static void linger(void)
{
	usleep(1500000);
}

/* Ends by exit(), whose last handler takes its time, with warm memory that goes meanwhile. */
static void exits(const char *argument)
{
	must(atexit(linger) == 0);
	idle(argument);
}

static void *alloc_thread(void *argument)
{
	must_ok(cu(cuCtxSetCurrent)(argument));
	alloc(6 * MIB);
	return NULL;
}

/* One thread connects to glaked, another one loads a library that allocates meanwhile. */
static void loads(const char *argument)
{
	pthread_t id;
	CUcontext ctx = start();
	must(pthread_create(&id, NULL, alloc_thread, ctx) == 0);
	wait_for_line();
	puts("loading");
	fflush(stdout);
	must(dlopen(argument, RTLD_NOW));
	pthread_join(id, NULL);
	print_counts();
}

/* glaked, as it is when it is stopped: it listens and does not answer. */
static int listen_at(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	must(listener >= 0 && strlen(path) < sizeof(address.sun_path));
	strcpy(address.sun_path, path);
	must(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0);
	must(listen(listener, 1) == 0);
	return listener;
}

/* One thread waits for glaked to let it in; another one asks about the driver's memory meanwhile. */
static void asks(const char *argument)
{
	pthread_t id;
	CUdeviceptr ptr;
	unsigned type;
	CUcontext ctx = start();
	must_ok(cu(cuMemAllocAsync)(&ptr, MIB, NULL));
	int listener = listen_at(argument);
	setenv("GLAKE_SOCKET", argument, 1);
	must(pthread_create(&id, NULL, alloc_thread, ctx) == 0);
	struct pollfd waiting = {.fd = accept(listener, NULL, NULL), .events = POLLRDHUP};
	must(waiting.fd >= 0);
	must_ok(cu(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr));
	must(type == CU_MEMORYTYPE_DEVICE);
	/* Had we waited for it, it would have given up. */
	must(poll(&waiting, 1, 0) == 0);
	close(listener);
	close(waiting.fd);
	pthread_join(id, NULL);
	print_counts();
}

/* A program that has memory of a glaked that ends, and has found another one, leaves a child behind. */
static void moves(const char *argument)
{
	start();
	alloc(6 * MIB);
	wait_for_line();
	setenv("GLAKE_SOCKET", argument, 1);
	while (shim_count("connects") < 2) {
		alloc(512);
		usleep(1000);
	}
	pid_t pid = fork();
	must(pid >= 0);
	if (pid == 0) {
		close(STDOUT_FILENO);
		close(STDERR_FILENO);
		pause();
	}
	printf("child %d\n", (int)pid);
}

/* No GPU, no driver: what a program without CUDA's driver expects. */
static void nothing(const char *argument)
{
	printf("init %d\n", (int)cu(cuInit)(0));
}

/* Which library the address lies in. */
static const char *library_of(const void *address)
{
	Dl_info info;
	must(address && dladdr(address, &info));
	const char *slash = strrchr(info.dli_fname, '/');
	return slash ? slash + 1 : info.dli_fname;
}

/* Addresses of calls, which others look up as well: by dlsym(), and of the driver's own resolver. */
static void look_ups(const char *argument)
{
	static const char *const names[] = {"cuLaunchKernel", "cuMemcpyHtoD_v2", "cuMemAlloc_v2",
	                                    "cuGLGetDevices_v2", "cuGraphicsGLRegisterImage"};
	static const char *const asked[] = {"cuLaunchKernel", "cuMemcpyHtoD", "cuCtxGetCurrent"};
	void *library = open_driver();
	proc1_fn *resolver = (proc1_fn *)dlsym(library, "cuGetProcAddress");
	must_ok(cu(cuInit)(0));
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		printf("%s %s\n", names[i], library_of(dlsym(library, names[i])));
	}
	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		void *address = NULL;
		must_ok(resolver(asked[i], &address, 12000, 0));
		printf("asked %s %s\n", asked[i], library_of(address));
	}
}

static const struct {
	const char *name;
	void (*run)(const char *argument);
} scenarios[] = {
	{"basic", basic},
	{"errors", errors},
	{"threads", threads},
	{"greedy", greedy},
	{"forks", forks},
	{"storm", storm},
	{"steps", steps},
	{"waits", waits},
	{"resets", resets},
	{"peers", peers},
	{"peers_again", peers_again},
	{"ipc_give", ipc_give},
	{"ipc_take", ipc_take},
	{"ipc_dead", ipc_dead},
	{"vmm", vmm},
	{"vmm_large", vmm_large},
	{"idle", idle},
	{"usurp", usurp},
	{"no_fds", no_fds},
	{"loses", loses},
	{"cancels", cancels},
	{"exits", exits},
	{"loads", loads},
	{"asks", asks},
	{"moves", moves},
	{"busy", busy},
	{"captures", captures},
	{"nothing", nothing},
	{"look_ups", look_ups},
	{"async", async},
	{"async_streams", async_streams},
	{"async_errors", async_errors},
	{"async_captures", async_captures},
	{"async_pools", async_pools},
	{"async_small", async_small},
	{"async_stitched", async_stitched},
	{"async_trimmed", async_trimmed},
	{"async_greedy", async_greedy},
	{"async_threads", async_threads},
	{"async_steps", async_steps},
	{"async_resets", async_resets},
};

int main(int argc, char **argv)
{
	must(argc >= 3);
	load(argv[1]);
	count_what_is_made();
	for (size_t i = 0; i < sizeof(scenarios) / sizeof(scenarios[0]); i++) {
		if (strcmp(scenarios[i].name, argv[2]) == 0) {
			scenarios[i].run(argc > 3 ? argv[3] : "");
			return 0;
		}
	}
	fprintf(stderr, "no scenario %s\n", argv[2]);
	return 1;
}
