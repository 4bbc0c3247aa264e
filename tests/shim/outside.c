/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that knows nothing of glake and is sealed from outside, linked against the driver alone.
 *
 *   outside SCENARIO
 *
 * It ends with 0, or with 1 and a line on stderr. Where it waits, it prints "ready" and reads a line.
 */
#include <cuda.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/shim/device.h"
#include "tests/shim/scenario.h"
#include "tests/spin.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define PAGE (2 * MIB)
#define MAX_BYTES (8 * PAGE)
/* Blocks of threads that fill any GPU. */
#define N_SPINNERS 1024

/* ---- help ---- */

static CUstream stream;
static CUcontext ctx;
static bool is_over;
static uint8_t source[MAX_BYTES];
static uint8_t seen[MAX_BYTES];

TEST_BYTE_LOOP static void fill_source(void)
{
	for (size_t i = 0; i < MAX_BYTES; i++) {
		source[i] = (uint8_t)(i * 31 + i / 977);
	}
}

static void start(void)
{
	ctx = use_device(0);
	stream = new_stream();
	fill_source();
}

/* Memory, and what it must hold. */
struct buffer {
	CUdeviceptr ptr;
	size_t n_bytes;
	uint8_t *want;
};

static struct buffer buffers[32];
static size_t n_buffers;

static struct buffer *make(size_t n_bytes)
{
	struct buffer *buffer = &buffers[n_buffers++];
	must(n_buffers <= sizeof(buffers) / sizeof(buffers[0]));
	buffer->n_bytes = n_bytes;
	buffer->want = calloc(1, n_bytes);
	must(buffer->want);
	buffer->ptr = alloc(n_bytes);
	must_ok(cuMemsetD8(buffer->ptr, 0, n_bytes));
	must_ok(cuCtxSynchronize());
	return buffer;
}

static void upload(struct buffer *buffer, size_t at, size_t n_bytes)
{
	must_ok(cuMemcpyHtoD(buffer->ptr + at, source + at, n_bytes));
	memcpy(buffer->want + at, source + at, n_bytes);
}

static struct buffer *load(size_t n_bytes)
{
	struct buffer *buffer = make(n_bytes);
	upload(buffer, 0, n_bytes);
	return buffer;
}

static void expect_all(void)
{
	must_ok(cuCtxSynchronize());
	for (size_t i = 0; i < n_buffers; i++) {
		const struct buffer *buffer = &buffers[i];
		must_ok(cuMemcpyDtoH(seen, buffer->ptr, buffer->n_bytes));
		if (!same_bytes(seen, buffer->want, buffer->n_bytes)) {
			fprintf(stderr, "buffer %zu has other bytes\n", i);
			_exit(1);
		}
	}
}

static void wait_and_expect(void)
{
	wait_for_line();
	expect_all();
}

/* ---- what looks like weights ---- */

/* 16 pages by every way from the host, and the tail of an allocation. */
static void make_weights(void)
{
	struct buffer *buffer = load(2 * PAGE);
	/* A tail that nobody owns. */
	load(PAGE + 100 * KIB);
	buffer = make(PAGE);
	must_ok(cuMemcpyHtoDAsync(buffer->ptr, source, PAGE, stream));
	memcpy(buffer->want, source, PAGE);
	buffer = make(PAGE);
	must_ok(cuMemcpy(buffer->ptr, (CUdeviceptr)(uintptr_t)source, PAGE));
	memcpy(buffer->want, source, PAGE);
	buffer = make(PAGE);
	must_ok(cuMemcpyAsync(buffer->ptr, (CUdeviceptr)(uintptr_t)source, PAGE, stream));
	memcpy(buffer->want, source, PAGE);
	/* Tensors with gaps between them. */
	buffer = make(2 * PAGE);
	for (size_t at = 0; at < 2 * PAGE; at += 64 * KIB) {
		upload(buffer, at, 64 * KIB - 300);
	}
	/* Rows. */
	buffer = make(PAGE);
	CUDA_MEMCPY2D rows = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = source,
		.srcPitch = 8 * KIB,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = buffer->ptr,
		.dstPitch = 8 * KIB,
		.WidthInBytes = 8 * KIB - 128,
		.Height = PAGE / (8 * KIB),
	};
	must_ok(cuMemcpy2D(&rows));
	for (size_t y = 0; y < rows.Height; y++) {
		memcpy(buffer->want + y * 8 * KIB, source + y * 8 * KIB, rows.WidthInBytes);
	}
	buffer = make(PAGE);
	CUDA_MEMCPY3D box = {
		.srcMemoryType = CU_MEMORYTYPE_HOST,
		.srcHost = source,
		.srcPitch = 4 * KIB,
		.srcHeight = 16,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = buffer->ptr,
		.dstPitch = 4 * KIB,
		.dstHeight = 16,
		.WidthInBytes = 4 * KIB,
		.Height = 16,
		.Depth = PAGE / (64 * KIB),
	};
	must_ok(cuMemcpy3D(&box));
	memcpy(buffer->want, source, PAGE);
	buffer = make(2 * PAGE);
	CUdeviceptr to[] = {buffer->ptr, buffer->ptr + PAGE};
	CUdeviceptr from[] = {(CUdeviceptr)(uintptr_t)source,
	                      (CUdeviceptr)(uintptr_t)source + PAGE};
	size_t sizes[] = {PAGE, PAGE};
	size_t first = 0;
	CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	must_ok(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, stream));
	memcpy(buffer->want, source, 2 * PAGE);
	must_ok(cuStreamSynchronize(stream));
}

static void weights(void)
{
	start();
	make_weights();
	wait_and_expect();
	wait_and_expect();
}

/* Two large tensors in one allocation, in one order or the other. */
static void load_in_order(bool is_backward)
{
	enum { FIRST = 4, SECOND = 4 };
	start();
	struct buffer *buffer = make((FIRST + SECOND) * PAGE);
	size_t first = is_backward ? SECOND * PAGE : 0;
	size_t second = is_backward ? 0 : FIRST * PAGE;
	must_ok(cuMemcpyHtoD(buffer->ptr + first, source, FIRST * PAGE));
	memcpy(buffer->want + first, source, FIRST * PAGE);
	must_ok(cuMemcpyHtoD(buffer->ptr + second, source + 3 * PAGE, SECOND * PAGE));
	memcpy(buffer->want + second, source + 3 * PAGE, SECOND * PAGE);
	wait_and_expect();
}

static void forward(void)
{
	load_in_order(false);
}

static void backward(void)
{
	load_in_order(true);
}

/* ---- what does not ---- */

static void make_others(void)
{
	CUgraph graph;
	/* Written twice, as a cache of keys and values is. */
	struct buffer *buffer = load(2 * PAGE);
	upload(buffer, 0, 2 * PAGE);
	/* A little at the front of the buffer again and again, a page of bytes in all. */
	buffer = make(PAGE);
	for (size_t i = 0; i < PAGE / (4 * KIB); i++) {
		must_ok(cuMemcpyHtoD(buffer->ptr, source, 4 * KIB));
	}
	memcpy(buffer->want, source, 4 * KIB);
	/* Half a page. */
	buffer = make(PAGE);
	upload(buffer, 0, PAGE / 2);
	/* Set after it was filled. */
	buffer = load(PAGE);
	must_ok(cuMemsetD8(buffer->ptr + 8, 1, 8));
	memset(buffer->want + 8, 1, 8);
	/* Copied on the device. */
	buffer = make(PAGE);
	must_ok(cuMemcpyDtoD(buffer->ptr, buffers[0].ptr, PAGE));
	memcpy(buffer->want, source, PAGE);
	buffer = make(PAGE);
	must_ok(cuMemcpy(buffer->ptr, buffers[0].ptr, PAGE));
	memcpy(buffer->want, source, PAGE);
	/* Written by a graph, whenever that runs. */
	buffer = load(PAGE);
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	must_ok(cuMemcpyHtoDAsync(buffer->ptr, source, PAGE, stream));
	must_ok(cuStreamEndCapture(stream, &graph));
	/* Small. */
	load(64 * KIB);
}

/* 2 MiB that held weights, and hold something else: the allocator gives the same memory again. */
static void make_again(void)
{
	struct buffer *buffer = load(3 * PAGE);
	must_ok(cuCtxSynchronize());
	CUdeviceptr was = buffer->ptr;
	must_ok(cuMemFree(buffer->ptr));
	buffer->ptr = alloc(3 * PAGE);
	must(buffer->ptr == was);
	upload(buffer, 0, PAGE);
}

static void others(void)
{
	start();
	make_others();
	make_again();
	wait_and_expect();
}

/* ---- a caching allocator ---- */

static CUmodule kernels;

static CUfunction kernel_of(const char *name)
{
	CUfunction function = NULL;
	if (!kernels) {
		must_ok(cuModuleLoadData(&kernels, spin_image_of(cuDeviceGetName)));
	}
	must_ok(cuModuleGetFunction(&function, kernels, name));
	return function;
}

/* By a kernel, to each word. */
static void add(struct buffer *buffer, size_t at, size_t n_bytes, uint32_t by)
{
	CUdeviceptr ptr = buffer->ptr + at;
	uint64_t n_words = n_bytes / 4;
	void *params[] = {&ptr, &n_words, &by};
	must_ok(cuLaunchKernel(kernel_of("add"), 1, 1, 1, 256, 1, 1, 0, stream, params, NULL));
	must_ok(cuStreamSynchronize(stream));
	for (size_t i = 0; i < n_bytes; i += 4) {
		uint32_t word;
		memcpy(&word, buffer->want + at + i, 4);
		word += by;
		memcpy(buffer->want + at + i, &word, 4);
	}
}

/*
 * One large piece of memory, that is given out as tensors. Those of a model fill the first page, 15/16 of the
 * second, and all but 32 KiB of the third, of which as much is loaded twice. What is free is for kernels.
 */
static void carved(void)
{
	const size_t free_2 = 2 * PAGE - PAGE / 16;
	const size_t free_3 = 3 * PAGE - 32 * KIB;
	start();
	struct buffer *buffer = make(4 * PAGE);
	for (size_t at = 0; at < free_2; at += 32 * KIB) {
		upload(buffer, at, 32 * KIB - 300);
	}
	upload(buffer, 2 * PAGE, free_3 - 2 * PAGE);
	upload(buffer, free_3 - 32 * KIB, 32 * KIB);
	wait_for_line();
	add(buffer, free_2, 2 * PAGE - free_2, 3);
	add(buffer, free_3, 4 * PAGE - free_3, 4);
	expect_all();
}

/* ---- what comes afterwards ---- */

/* Each write gets its copy, and its page is not sealed again. */
static void writes(void)
{
	start();
	struct buffer *buffer = load(4 * PAGE);
	wait_and_expect();
	must_ok(cuMemsetD8(buffer->ptr + 10, 9, 100));
	memset(buffer->want + 10, 9, 100);
	upload(buffer, 2 * PAGE, 100);
	wait_and_expect();
	must_ok(cuMemFree(buffer->ptr));
	buffer->ptr = alloc(4 * PAGE);
	upload(buffer, 0, 4 * PAGE);
	wait_and_expect();
}

/* A stream is captured while somebody asks. */
static void captures(void)
{
	CUgraph graph;
	start();
	load(PAGE);
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	wait_for_line();
	must_ok(cuStreamEndCapture(stream, &graph));
	wait_and_expect();
}

static void CUDA_CB work_long(void *user)
{
	(void)user;
	usleep(1500000);
}

/* Work that is longer than one sealing waits for it. */
static void long_work(void)
{
	start();
	load(PAGE);
	must_ok(cuLaunchHostFunc(stream, work_long, NULL));
	wait_and_expect();
}

/* A kernel that the program ends itself; a tail is to be zeroed beside it. */
static void endless(void)
{
	uint32_t *words;
	uint64_t at[2];
	void *params[] = {&at[0], &at[1]};
	start();
	must_ok(cuMemHostAlloc((void **)&words, 2 * sizeof(*words), CU_MEMHOSTALLOC_PORTABLE));
	words[0] = words[1] = 0;
	at[0] = (uint64_t)(uintptr_t)&words[0];
	at[1] = (uint64_t)(uintptr_t)&words[1];
	load(PAGE + 100 * KIB);
	must_ok(cuLaunchKernel(kernel_of("spin"), N_SPINNERS, 1, 1, 1024, 1, 1, 0, stream, params,
	                       NULL));
	wait_for_line();
	__atomic_store_n(&words[0], 1, __ATOMIC_SEQ_CST);
	must_ok(cuStreamSynchronize(stream));
	must(words[1] == 1);
	wait_and_expect();
}

/* Large, and written to all the time. */
static void *write_on(void *user)
{
	struct buffer *buffer = user;
	must_ok(cuCtxSetCurrent(ctx));
	for (size_t i = 0; !__atomic_load_n(&is_over, __ATOMIC_SEQ_CST); i++) {
		size_t at = i * 4099 % (buffer->n_bytes - 16);
		memset(buffer->want + at, (int)i, 16);
		must_ok(cuMemcpyHtoD(buffer->ptr + at, buffer->want + at, 16));
	}
	return NULL;
}

static void busy(void)
{
	pthread_t thread;
	start();
	for (unsigned i = 0; i < 4; i++) {
		load(MAX_BYTES);
	}
	pthread_create(&thread, NULL, write_on, &buffers[1]);
	wait_for_line();
	__atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
	expect_all();
	wait_and_expect();
}

/* ---- contexts ---- */

static bool has_primary(void)
{
	unsigned flags;
	int is_active;
	must_ok(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
	return is_active;
}

/* The one context is the program's own. Its memory has a tail to zero, and is to be cut. */
static void own_context(void)
{
	must_ok(cuInit(0));
	must_ok(cuCtxCreate_v2(&ctx, 0, 0));
	stream = new_stream();
	fill_source();
	load(PAGE + 100 * KIB);
	load(4 * PAGE);
	struct buffer *buffer = make(4 * PAGE);
	upload(buffer, 0, 2 * PAGE);
	must(!has_primary());
	wait_and_expect();
	must(!has_primary());
	/* A write gets a copy. */
	upload(buffer, PAGE + 8, 100);
	wait_and_expect();
	must(!has_primary());
	must_ok(cuCtxDestroy(ctx));
}

/* A part of the program opens the driver itself, and makes the context there. */
static void past_the_shim(void)
{
	must_ok(cuInit(0));
	__typeof__(cuCtxCreate_v2) *make_ctx = driver_function("cuCtxCreate_v2");
	must_ok(make_ctx(&ctx, 0, 0));
	fill_source();
	load(PAGE);
	wait_and_expect();
}

/* Contexts end while memory in them is sealed. */
static void *end_on_line(void *user)
{
	(void)user;
	wait_for_line();
	__atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
	return NULL;
}

static void forget_buffers(void)
{
	while (n_buffers > 0) {
		free(buffers[--n_buffers].want);
	}
}

/* Loads, frees in the order of a stream, and ends the context, which takes the rest with it. */
static void live_once(CUresult (*begin)(void), CUresult (*end)(void), useconds_t pause_us)
{
	CUdeviceptr freed[2];
	CUdeviceptr large;
	must_ok(begin());
	stream = new_stream();
	load(2 * PAGE + 100 * KIB);
	/* To cut a page off it takes a while. */
	large = alloc(64 * PAGE);
	must_ok(cuMemcpyHtoD(large, source, PAGE));
	for (unsigned i = 0; i < 2; i++) {
		freed[i] = alloc_on(stream, PAGE);
		must_ok(cuMemsetD8Async(freed[i], 1, PAGE, stream));
	}
	usleep(2000);
	must_ok(cuMemFreeAsync(freed[0], stream));
	expect_all();
	must_ok(cuMemFreeAsync(freed[1], stream));
	usleep(pause_us);
	must_ok(end());
	forget_buffers();
}

static void live_on(CUresult (*begin)(void), CUresult (*end)(void))
{
	pthread_t thread;
	must_ok(cuInit(0));
	fill_source();
	live_once(begin, end, 0);
	pthread_create(&thread, NULL, end_on_line, NULL);
	for (unsigned i = 0; !__atomic_load_n(&is_over, __ATOMIC_SEQ_CST); i++) {
		live_once(begin, end, i % 3 * 20000);
	}
	pthread_join(thread, NULL);
}

static CUresult retain(void)
{
	must_ok(cuDevicePrimaryCtxRetain(&ctx, 0));
	return cuCtxSetCurrent(ctx);
}

static CUresult release(void)
{
	must_ok(cuCtxSetCurrent(NULL));
	must_ok(cuDevicePrimaryCtxRelease(0));
	must(!has_primary());
	return CUDA_SUCCESS;
}

static void releases(void)
{
	live_on(retain, release);
}

static CUresult reset(void)
{
	must_ok(cuDevicePrimaryCtxReset(0));
	must_ok(cuCtxSetCurrent(NULL));
	return CUDA_SUCCESS;
}

static void resets(void)
{
	live_on(retain, reset);
}

static CUresult create(void)
{
	return cuCtxCreate_v2(&ctx, 0, 0);
}

static CUresult destroy(void)
{
	return cuCtxDestroy(ctx);
}

static void destroys(void)
{
	live_on(create, destroy);
}

/* ---- all of it at once ---- */

/* Only what hangs takes so long. */
#define ALARM_SECONDS 300

static bool goes_on(void)
{
	return !__atomic_load_n(&is_over, __ATOMIC_SEQ_CST);
}

/* In the current context, which ends next. */
static void load_here(void)
{
	CUdeviceptr ptr = alloc(PAGE + 100 * KIB);
	must_ok(cuMemcpyHtoD(ptr, source, PAGE + 100 * KIB));
}

static void *destroy_on(void *user)
{
	CUcontext own;
	while (goes_on()) {
		must_ok(cuCtxCreate_v2(&own, 0, 0));
		load_here();
		must_ok(cuCtxDestroy(own));
	}
	return user;
}

static void *reset_on(void *user)
{
	while (goes_on()) {
		use_device(0);
		load_here();
		must_ok(cuDevicePrimaryCtxReset(0));
		must_ok(cuCtxSetCurrent(NULL));
	}
	return user;
}

static void *capture_on(void *user)
{
	CUcontext own;
	CUstream captured;
	CUgraph graph;
	CUdeviceptr ptr;
	must_ok(cuCtxCreate_v2(&own, 0, 0));
	ptr = alloc(KIB);
	captured = new_stream();
	while (goes_on()) {
		must_ok(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
		must_ok(cuMemsetD8Async(ptr, 1, KIB, captured));
		must_ok(cuStreamEndCapture(captured, &graph));
		must_ok(cuGraphDestroy(graph));
		usleep(5000);
	}
	must_ok(cuCtxDestroy(own));
	return user;
}

/* Kernels that wait for the host fill the GPU, most of the time. */
static void *fill_on(void *user)
{
	CUcontext own;
	CUmodule module;
	CUfunction spin;
	uint32_t *words;
	uint64_t at[2];
	void *params[] = {&at[0], &at[1]};
	must_ok(cuCtxCreate_v2(&own, 0, 0));
	must_ok(cuModuleLoadData(&module, spin_image_of(cuDeviceGetName)));
	must_ok(cuModuleGetFunction(&spin, module, "spin"));
	must_ok(cuMemHostAlloc((void **)&words, 2 * sizeof(*words), CU_MEMHOSTALLOC_PORTABLE));
	at[0] = (uint64_t)(uintptr_t)&words[0];
	at[1] = (uint64_t)(uintptr_t)&words[1];
	while (goes_on()) {
		__atomic_store_n(&words[0], 0, __ATOMIC_SEQ_CST);
		must_ok(cuLaunchKernel(spin, N_SPINNERS, 1, 1, 1024, 1, 1, 0, NULL, params, NULL));
		usleep(300000);
		__atomic_store_n(&words[0], 1, __ATOMIC_SEQ_CST);
		must_ok(cuStreamSynchronize(NULL));
		usleep(50000);
	}
	must_ok(cuCtxDestroy(own));
	return user;
}

static void adversary(void)
{
	static void *(*const acts[])(void *) = {destroy_on, reset_on, capture_on, fill_on};
	pthread_t threads[sizeof(acts) / sizeof(acts[0])];
	alarm(ALARM_SECONDS);
	must_ok(cuInit(0));
	must_ok(cuCtxCreate_v2(&ctx, 0, 0));
	stream = new_stream();
	fill_source();
	load(4 * PAGE);
	load(PAGE + 100 * KIB);
	for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
		must(pthread_create(&threads[i], NULL, acts[i], NULL) == 0);
	}
	wait_for_line();
	__atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
	for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
		pthread_join(threads[i], NULL);
	}
	expect_all();
	wait_and_expect();
}

/* ---- devices that write past page tables ---- */

/* A /dev of our own, as far as the machine lets us. The file is open, or mapped only. */
static void open_device(const char *folder, const char *path, bool is_mapped)
{
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("none", "/dev", "tmpfs", 0, NULL) < 0) {
		puts("no namespaces");
		exit(0);
	}
	must(!folder || mkdir(folder, 0700) == 0);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	must(fd >= 0 && ftruncate(fd, 4096) == 0);
	if (is_mapped) {
		must(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
		close(fd);
	}
}

static void serve(void)
{
	start();
	load(PAGE);
	wait_and_expect();
}

/* Both devices, in turn. */
static void two_devices(void)
{
	start();
	load(PAGE);
	use_device(1);
	load(2 * PAGE);
	must_ok(cuCtxSynchronize());
	must_ok(cuCtxSetCurrent(ctx));
	load(PAGE);
	wait_and_expect();
}

/* A stream of the second device has a copy to the first one's memory, which that device has no access to. */
static void other_device(void)
{
	CUcontext other;
	CUstream copies;
	void *pinned;
	start();
	struct buffer *buffer = make(PAGE);
	must_ok(cuMemHostAlloc(&pinned, PAGE, CU_MEMHOSTALLOC_PORTABLE));
	memcpy(pinned, source, PAGE);
	memcpy(buffer->want, source, PAGE);
	must_ok(cuDevicePrimaryCtxRetain(&other, 1));
	must_ok(cuCtxPushCurrent(other));
	copies = new_stream();
	close_gate(copies);
	must_ok(cuMemcpyHtoDAsync(buffer->ptr, pinned, PAGE, copies));
	wait_for_line();
	open_gate();
	must_ok(cuStreamSynchronize(copies));
	must_ok(cuCtxPopCurrent(&other));
	wait_and_expect();
}

static void has_verbs(void)
{
	open_device("/dev/infiniband", "/dev/infiniband/uverbs0", false);
	serve();
}

static void has_gdrcopy(void)
{
	open_device(NULL, "/dev/gdrdrv", true);
	serve();
}

/* ---- anything ---- */

static unsigned seed;
static bool is_done;

static void *read_line(void *user)
{
	(void)user;
	wait_for_line();
	__atomic_store_n(&is_done, true, __ATOMIC_SEQ_CST);
	return NULL;
}

static unsigned pick(unsigned n)
{
	return (unsigned)rand_r(&seed) % n;
}

/* One of the calls, on some bytes or all of them. */
static void write_some(struct buffer *buffer)
{
	bool is_whole = pick(2) == 0;
	size_t at = is_whole ? 0 : pick((unsigned)buffer->n_bytes / 16) * 16ull;
	size_t n_left = buffer->n_bytes - at;
	size_t n = is_whole ? n_left : 16 + pick((unsigned)n_left - 15);
	CUdeviceptr to = buffer->ptr + at;
	switch (pick(4)) {
	case 0:
		must_ok(cuMemcpyHtoD(to, source + at, n));
		memcpy(buffer->want + at, source + at, n);
		break;
	case 1:
		must_ok(cuMemcpyHtoDAsync(to, source + at, n, stream));
		must_ok(cuStreamSynchronize(stream));
		memcpy(buffer->want + at, source + at, n);
		break;
	case 2:
		must_ok(cuMemsetD8Async(to, (unsigned char)at, n, stream));
		must_ok(cuStreamSynchronize(stream));
		memset(buffer->want + at, (unsigned char)at, n);
		break;
	default:
		must_ok(cuMemcpyDtoD(to, buffers[0].ptr, n));
		must_ok(cuCtxSynchronize());
		memcpy(buffer->want + at, buffers[0].want, n);
	}
}

/* Load the buffer anew: what programs have equal comes by loads. */
static void begin_again(struct buffer *buffer)
{
	must_ok(cuMemFree(buffer->ptr));
	buffer->ptr = alloc(buffer->n_bytes);
	upload(buffer, 0, buffer->n_bytes);
}

/* The buffer's addresses become memory that kernels write to. */
static CUfunction fill_kernel;

static void use_for_kernels(struct buffer *buffer)
{
	must_ok(cuMemFree(buffer->ptr));
	buffer->ptr = alloc(buffer->n_bytes);
	uint64_t n_bytes = buffer->n_bytes;
	for (uint32_t value = 1; value < 4; value++) {
		void *params[] = {&buffer->ptr, &n_bytes, &value};
		must_ok(cuLaunchKernel(fill_kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
		must_ok(cuStreamSynchronize(stream));
		memset(buffer->want, (int)value, n_bytes);
	}
}

static void anything(void)
{
	static const uint32_t image[4] = {0xba55ed50}; /* the simulator knows kernels by name */
	CUmodule module;
	pthread_t thread;
	start();
	must_ok(cuModuleLoadData(&module, image));
	must_ok(cuModuleGetFunction(&fill_kernel, module, "cudasim_fill"));
	seed = (unsigned)getpid();
	fprintf(stderr, "seed %u\n", seed);
	for (unsigned i = 0; i < 4; i++) {
		load((4 - i) * PAGE);
	}
	pthread_create(&thread, NULL, read_line, NULL);
	while (!__atomic_load_n(&is_done, __ATOMIC_SEQ_CST)) {
		/* The first is what others are copied from. */
		struct buffer *buffer = &buffers[1 + pick(3)];
		unsigned what = pick(6);
		(what < 2 ? begin_again : what == 2 ? use_for_kernels : write_some)(buffer);
		if (pick(8) == 0) {
			expect_all();
		}
	}
	pthread_join(thread, NULL);
	expect_all();
}

static const struct scenario scenarios[] = {
	{"weights", weights},
	{"forward", forward},
	{"backward", backward},
	{"others", others},
	{"writes", writes},
	{"captures", captures},
	{"busy", busy},
	{"verbs", has_verbs},
	{"gdrcopy", has_gdrcopy},
	{"serve", serve},
	{"long_work", long_work},
	{"two_devices", two_devices},
	{"anything", anything},
	{"carved", carved},
	{"adversary", adversary},
	{"endless", endless},
	{"other_device", other_device},
	{"own_context", own_context},
	{"past_the_shim", past_the_shim},
	{"releases", releases},
	{"resets", resets},
	{"destroys", destroys},
};

int main(int argc, char **argv)
{
	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
