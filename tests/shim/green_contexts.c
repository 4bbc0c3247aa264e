/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program with green contexts (CUDA 12.5), linked against the driver as such programs are.
 *
 *   green_contexts [PART...]   memory, async, mixed, lives, ends; without a PART, all of these
 *
 * It prints what it computed, and what the driver answered: the same with the shim and without. What
 * the shim counted, if it is there, is added to the file that $SHIM_COUNTS names. More parts, to
 * be asked for by name:
 *
 *   rounds   memory in stream order, of contexts that end, comes back: a quarter of what is free, often
 *   facts    what a driver does that cuda.h does not say, to be asked of each new one: an H200 with driver
 *            580.159 answered as cudasim does
 */
#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/shim/compared.h"
#include "tests/shim/device.h"
#include "tests/shim/green.h"

static CUcontext primary;

/* ---- help ---- */

static void enter(CUcontext ctx)
{
	must_ok(cuCtxSetCurrent(ctx));
}

static void start(void)
{
	must_ok(cuDevicePrimaryCtxRetain(&primary, 0));
	enter(primary);
}

/* After all that was asked for in the current context. */
static uint64_t settled_digest(CUdeviceptr ptr, size_t n_bytes)
{
	must_ok(cuCtxSynchronize());
	return digest(ptr, n_bytes);
}

/* Whose the driver says it is: 1 the primary context's, 2 the green one's, 0 nobody's. */
static uint64_t owner_of(CUdeviceptr ptr, const struct green *green)
{
	CUcontext ctx = NULL;
	must_ok(cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, ptr));
	return ctx == primary ? 1 : ctx == green->ctx ? 2 : ctx ? 3 : 0;
}

static uint64_t is_active(void)
{
	unsigned flags;
	int active;
	must_ok(cuDevicePrimaryCtxGetState(0, &flags, &active));
	return (uint64_t)active;
}

static uint64_t is_known(CUdeviceptr ptr)
{
	CUmemorytype type;
	return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr) == CUDA_SUCCESS;
}

/* ---- parts ---- */

/* Allocations of every kind of size, in one green context. */
static void use_memory(void)
{
	static const size_t sizes[] = {4, 1000, 100000, 2 * MIB - 1, 2 * MIB, 5 * MIB + 3};
	enum { N = sizeof(sizes) / sizeof(sizes[0]) };
	struct green green = green_new(0);
	CUdeviceptr ptrs[N];
	CUdevice device;
	enter(green.ctx);
	must_ok(cuCtxGetDevice(&device));
	print("device", (uint64_t)device);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < N; i++) {
			ptrs[i] = alloc(sizes[i]);
			write_pattern(ptrs[i], sizes[i], (uint64_t)(round * N + i));
		}
		for (int i = 0; i < N; i++) {
			CUdeviceptr base;
			size_t n_bytes;
			must_ok(cuMemGetAddressRange(&base, &n_bytes, ptrs[i] + sizes[i] / 2));
			must(base == ptrs[i] && n_bytes == sizes[i]);
			print("memory", settled_digest(ptrs[i], sizes[i]));
			print("owner", owner_of(ptrs[i], &green));
		}
		for (int i = 0; i < N; i++) {
			must_ok(cuMemFree(ptrs[(i * 5 + round) % N]));
		}
	}
	print("twice", (uint64_t)cuMemFree(ptrs[0]));
	print("too much", (uint64_t)cuMemAlloc(ptrs, 1ull << 50));
	enter(primary);
	green_end(&green);
}

/* On the streams of two: their own, that of a program, and the default one. */
static void use_async(void)
{
	struct green greens[2] = {green_new(0), green_new(1)};
	CUstream own;
	CUevent event;
	must_ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	enter(greens[0].ctx);
	own = new_stream();
	for (unsigned i = 0; i < 12; i++) {
		const struct green *green = &greens[i % 2];
		const struct green *other = &greens[!(i % 2)];
		CUstream stream = i % 3 == 0 ? 0 : i % 2 == 0 && i % 4 == 0 ? own : green->stream;
		size_t n_bytes = (i * 7919 + 1) % 100 * 65536 + 1 + i;
		enter(green->ctx);
		CUdeviceptr ptr = alloc_on(stream, n_bytes);
		must_ok(cuMemsetD8Async(ptr, (unsigned char)(i + 1), n_bytes, stream));
		/* Gone before its work has begun; the next one may have its place. */
		CUdeviceptr brief = alloc_on(stream, n_bytes);
		must_ok(cuMemsetD8Async(brief, 0xff, n_bytes, stream));
		must_ok(cuMemFreeAsync(brief, stream));
		brief = alloc_on(stream, n_bytes);
		must_ok(cuMemsetD8Async(brief, 0x55, n_bytes, stream));
		must_ok(cuMemcpyDtoDAsync(ptr + n_bytes / 2, brief, n_bytes - n_bytes / 2, stream));
		must_ok(cuMemFreeAsync(brief, stream));
		must_ok(cuEventRecord(event, stream));
		must_ok(cuStreamWaitEvent(other->stream, event, 0));
		must_ok(cuMemsetD8Async(ptr, 0x33, n_bytes / 4, other->stream));
		enter(other->ctx);
		print("async", settled_digest(ptr, n_bytes));
		print("owner", owner_of(ptr, green));
		must_ok(cuMemFreeAsync(ptr, other->stream));
	}
	must_ok(cuStreamDestroy(own));
	enter(primary);
	must_ok(cuCtxSynchronize());
	must_ok(cuEventDestroy(event));
	green_end(&greens[1]);
	green_end(&greens[0]);
}

/* Memory of one context used in the others, and freed there. */
static void use_mixed(void)
{
	struct green greens[2] = {green_new(0), green_new(1)};
	CUcontext places[3] = {primary, greens[0].ctx, greens[1].ctx};
	for (int from = 0; from < 3; from++) {
		for (int to = 0; to < 3; to++) {
			size_t n_bytes = (size_t)(from * 3 + to + 1) * 700001;
			enter(places[from]);
			CUdeviceptr ptr = alloc(n_bytes);
			write_pattern(ptr, n_bytes, (uint64_t)(from * 3 + to));
			must_ok(cuCtxSynchronize());
			enter(places[to]);
			CUdeviceptr copy = alloc(n_bytes);
			must_ok(cuMemcpyDtoD(copy, ptr, n_bytes));
			must_ok(cuMemsetD8(copy, 0x77, n_bytes / 3));
			must_ok(cuCtxSynchronize());
			must_ok(cuMemFree(ptr));
			enter(places[from]);
			print("mixed", settled_digest(copy, n_bytes));
			if (to % 2 == 0) {
				must_ok(cuMemFree(copy));
			} else {
				must_ok(cuMemFreeAsync(copy, greens[1].stream));
			}
		}
	}
	enter(primary);
	must_ok(cuCtxSynchronize());
	green_end(&greens[0]);
	green_end(&greens[1]);
}

static void print_stream(const struct green *green)
{
	CUcontext ctx;
	CUgreenCtx found;
	must_ok(cuStreamGetCtx_v2(green->stream, &ctx, &found));
	print("stream", (uint64_t)(ctx == primary) << 4 | (found == green->handle));
	must_ok(cuStreamGetCtx(green->stream, &ctx));
	must_ok(cuStreamGetGreenCtx(green->stream, &found));
	print("stream", (uint64_t)(ctx == green->ctx) << 4 | (found == green->handle));
}

/* Memory outlives the green contexts that it was allocated in, and they are made anew. */
static void use_lives(void)
{
	enum { N = 6 };
	CUdeviceptr plain[N];
	CUdeviceptr ordered[N];
	struct green stays = green_new(1);
	for (unsigned i = 0; i < N; i++) {
		struct green green = green_new(0);
		print_stream(&green);
		enter(green.ctx);
		plain[i] = alloc((i + 1) * 500000);
		write_pattern(plain[i], (i + 1) * 500000, i);
		ordered[i] = alloc_on(green.stream, (i + 1) * 300000);
		must_ok(cuMemsetD8Async(ordered[i], (unsigned char)(i + 7), (i + 1) * 300000,
		                        green.stream));
		must_ok(cuCtxSynchronize());
		enter(i % 2 ? primary : stays.ctx);
		green_end(&green);
	}
	for (unsigned i = 0; i < N; i++) {
		enter(i % 2 ? primary : stays.ctx);
		print("outlived", settled_digest(plain[i], (i + 1) * 500000));
		print("outlived", settled_digest(ordered[i], (i + 1) * 300000));
		print("owner", owner_of(plain[i], &stays));
		must_ok(cuMemsetD8Async(ordered[i], 1, 300000, stays.stream));
		must_ok(cuMemFreeAsync(ordered[i], stays.stream));
		must_ok(cuMemFree(plain[i]));
	}
	enter(primary);
	must_ok(cuCtxSynchronize());
	green_end(&stays);
}

/* The last green context ends the primary one and its memory. Then a reset does. */
static void use_ends(void)
{
	struct green green = green_new(0);
	must_ok(cuDevicePrimaryCtxRelease(0));
	print("active", is_active());
	enter(green.ctx);
	CUdeviceptr ptr = alloc(3 * MIB);
	CUdeviceptr small = alloc(1000);
	write_pattern(ptr, 3 * MIB, 5);
	print("held", settled_digest(ptr, 3 * MIB));
	enter(NULL);
	green_end(&green);
	print("active", is_active());
	start();
	print("gone", is_known(ptr) << 4 | is_known(small));
	green = green_new(1);
	enter(green.ctx);
	ptr = alloc(3 * MIB);
	small = alloc(1000);
	write_pattern(ptr, 3 * MIB, 6);
	print("held", settled_digest(ptr, 3 * MIB));
	enter(primary);
	green_end(&green);
	print("active", is_active());
	must_ok(cuDevicePrimaryCtxReset(0));
	print("active", is_active());
	print("released", (uint64_t)cuDevicePrimaryCtxRelease(0));
	start();
	print("gone", is_known(ptr) << 4 | is_known(small));
	print("free", (uint64_t)cuMemFree(ptr));
}

/* ---- parts by name only ---- */

static void use_rounds(void)
{
	size_t free_bytes;
	size_t total_bytes;
	must_ok(cuMemGetInfo(&free_bytes, &total_bytes));
	size_t n_bytes = free_bytes / 4 / (2 * MIB) * (2 * MIB);
	for (int i = 0; i < 12; i++) {
		struct green green = green_new(i % 2);
		enter(i % 3 ? green.ctx : primary);
		CUdeviceptr ptr = alloc_on(green.stream, n_bytes);
		must_ok(cuMemsetD8Async(ptr, 3, 4 * MIB, green.stream));
		print("round", (uint64_t)i);
		must_ok(cuMemFreeAsync(ptr, green.stream));
		enter(primary);
		green_end(&green);
	}
}

static void fact(const char *what, long long value)
{
	printf("%-60s %lld\n", what, value);
	fflush(stdout);
}

static int slow_ran;

static void CUDA_CB run_slowly(void *user)
{
	usleep(200000);
	__atomic_store_n(&slow_ran, 1, __ATOMIC_SEQ_CST);
}

static void be_slow(CUstream stream)
{
	__atomic_store_n(&slow_ran, 0, __ATOMIC_SEQ_CST);
	must_ok(cuLaunchHostFunc(stream, run_slowly, NULL));
}

/* Did what was called since be_slow() wait for it? */
static void fact_waited(const char *what)
{
	fact(what, __atomic_load_n(&slow_ran, __ATOMIC_SEQ_CST));
	enter(primary);
	must_ok(cuCtxSynchronize());
}

static unsigned long long default_id(CUcontext ctx)
{
	unsigned long long id = 0;
	enter(ctx);
	must_ok(cuStreamGetId(NULL, &id));
	enter(primary);
	return id;
}

static void find_making(void)
{
	CUdevResource all;
	unsigned n_groups = 0;
	CUgreenCtx handle;
	CUcontext again;
	CUstream stream;
	struct green a = green_new(0);
	struct green b = green_new(1);
	must_ok(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
	fact("multiprocessors", all.sm.smCount);
	fact("least of a group", all.sm.minSmPartitionSize);
	fact("alignment", all.sm.smCoscheduledAlignment);
	must_ok(cuDevSmResourceSplitByCount(NULL, &n_groups, &all, NULL, 0,
	                                    all.sm.minSmPartitionSize));
	fact("groups", n_groups);
	fact("made without a default stream",
	     cuGreenCtxCreate(&handle, green_groups[0], 0, 0) == CUDA_SUCCESS
	             ? (int)cuGreenCtxDestroy(handle)
	             : -1);
	fact("a blocking stream", cuGreenCtxStreamCreate(&stream, a.handle, CU_STREAM_DEFAULT, 0));
	must_ok(cuCtxFromGreenCtx(&again, a.handle));
	fact("its context has a handle of its own", a.ctx != primary && a.ctx != b.ctx);
	fact("the same each time", again == a.ctx);
	fact("which is that of the green context", (void *)a.ctx == (void *)a.handle);
	fact("default streams: ids of a and b differ", default_id(a.ctx) != default_id(b.ctx));
	fact("of a and the primary", default_id(a.ctx) != default_id(primary));
	green_end(&a);
	struct green next = green_new(0);
	fact("the next has the handle of the last", next.ctx == a.ctx);
	green_end(&next);
	green_end(&b);
}

static void find_streams(void)
{
	struct green a = green_new(0);
	CUcontext ctx;
	CUgreenCtx handle;
	CUdeviceptr ptr = 0;
	enter(a.ctx);
	fact("cuStreamGetCtx_v2 of CU_STREAM_PER_THREAD in it",
	     cuStreamGetCtx_v2(CU_STREAM_PER_THREAD, &ctx, &handle));
	fact("cuMemAllocAsync on it", cuMemAllocAsync(&ptr, 1000, CU_STREAM_PER_THREAD));
	if (ptr) {
		must_ok(cuMemFree(ptr));
	}
	must_ok(cuStreamGetCtx_v2(NULL, &ctx, &handle));
	fact("cuStreamGetCtx_v2 of the default stream: the primary", ctx == primary);
	fact("and the green one", handle == a.handle);
	enter(primary);
	green_end(&a);
}

static void find_events(void)
{
	struct green a = green_new(0);
	struct green b = green_new(1);
	CUevent of_primary;
	CUevent of_a;
	must_ok(cuEventCreate(&of_primary, CU_EVENT_DISABLE_TIMING));
	fact("the primary's event on a stream of a", cuEventRecord(of_primary, a.stream));
	enter(a.ctx);
	fact("on the default stream of a", cuEventRecord(of_primary, NULL));
	must_ok(cuEventCreate(&of_a, CU_EVENT_DISABLE_TIMING));
	fact("an event of a on a stream of b", cuEventRecord(of_a, b.stream));
	enter(primary);
	fact("on the default stream of the primary", cuEventRecord(of_a, NULL));
	be_slow(a.stream);
	must_ok(cuEventRecord(of_primary, a.stream));
	must_ok(cuStreamDestroy(a.stream));
	fact("cuEventQuery, its stream destroyed", cuEventQuery(of_primary));
	must_ok(cuGreenCtxDestroy(a.handle));
	fact("the end waits for work of its streams", slow_ran);
	fact("cuEventQuery, its green context ended", cuEventQuery(of_primary));
	fact("cuEventSynchronize", cuEventSynchronize(of_primary));
	fact("cuEventRecord, again", cuEventRecord(of_primary, b.stream));
	fact("cuEventQuery of an event made in the ended one", cuEventQuery(of_a));
	fact("cuEventDestroy of it", cuEventDestroy(of_a));
	must_ok(cuEventDestroy(of_primary));
	green_end(&b);
}

static void find_waits(void)
{
	struct green a = green_new(0);
	struct green b = green_new(1);
	enter(a.ctx);
	CUdeviceptr ptr = alloc(4 * MIB);
	be_slow(b.stream);
	must_ok(cuMemFree(ptr));
	fact_waited("cuMemFree in a, of memory of a, waits for b");
	enter(a.ctx);
	be_slow(b.stream);
	must_ok(cuCtxSynchronize());
	fact_waited("cuCtxSynchronize in a waits for b");
	be_slow(b.stream);
	must_ok(cuCtxSynchronize());
	fact_waited("cuCtxSynchronize in the primary waits for b");
	CUstream plain = new_stream();
	enter(a.ctx);
	be_slow(plain);
	must_ok(cuCtxSynchronize());
	fact_waited("cuCtxSynchronize in a waits for the primary");
	ptr = alloc(4 * MIB);
	enter(a.ctx);
	be_slow(NULL);
	enter(primary);
	must_ok(cuMemsetD8Async(ptr, 1, 4 * MIB, NULL));
	must_ok(cuStreamSynchronize(NULL));
	fact_waited("the primary's default stream waits for that of a");
	must_ok(cuMemFree(ptr));
	must_ok(cuStreamDestroy(plain));
	green_end(&a);
	green_end(&b);
}

/* A green context has ended: print what is left of it. */
static void find_ends(void)
{
	struct green a = green_new(0);
	CUcontext now = NULL;
	CUdevice device;
	CUdeviceptr ptr;
	unsigned long long id;
	enter(a.ctx);
	fact("ended while current", cuGreenCtxDestroy(a.handle));
	fact("cuCtxGetCurrent", cuCtxGetCurrent(&now));
	fact("its handle is still current", now == a.ctx);
	fact("cuCtxGetDevice", cuCtxGetDevice(&device));
	fact("cuCtxSynchronize", cuCtxSynchronize());
	fact("cuMemAlloc", cuMemAlloc(&ptr, 1000));
	enter(primary);
	fact("its stream: cuStreamSynchronize", cuStreamSynchronize(a.stream));
	fact("cuStreamGetId", cuStreamGetId(a.stream, &id));
	fact("cuStreamDestroy", cuStreamDestroy(a.stream));
}

/* The primary context under a green one. Ends both. */
static void find_reset(void)
{
	struct green a = green_new(0);
	CUcontext ctx;
	CUdeviceptr ptr;
	fact("reset under a green context", cuDevicePrimaryCtxReset(0));
	fact("active", (long long)is_active());
	fact("cuMemAlloc in the primary", cuMemAlloc(&ptr, 1000));
	fact("cuCtxFromGreenCtx", cuCtxFromGreenCtx(&ctx, a.handle));
	fact("cuCtxSetCurrent", cuCtxSetCurrent(a.ctx));
	fact("cuMemAlloc in it", cuMemAlloc(&ptr, 1000));
	start();
	ptr = alloc(3 * MIB);
	fact("cuGreenCtxDestroy", cuGreenCtxDestroy(a.handle));
	for (int i = 0; i < 3; i++) {
		fact("active", (long long)is_active());
		fact("released", cuDevicePrimaryCtxRelease(0));
	}
	start();
	fact("memory is still there", (long long)is_known(ptr));
}

static void find_facts(void)
{
	find_making();
	find_streams();
	find_events();
	find_waits();
	find_ends();
	find_reset();
}

static const struct {
	const char *name;
	void (*run)(void);
	int by_name_only;
} parts[] = {
	{"memory", use_memory, 0}, {"async", use_async, 0}, {"mixed", use_mixed, 0},
	{"lives", use_lives, 0},   {"ends", use_ends, 0},   {"rounds", use_rounds, 1},
	{"facts", find_facts, 1},
};

static int is_asked(int argc, char **argv, size_t part)
{
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], parts[part].name) == 0) {
			return 1;
		}
	}
	return argc == 1 && !parts[part].by_name_only;
}

int main(int argc, char **argv)
{
	must_ok(cuInit(0));
	start();
	if (!green_split()) {
		puts("no green contexts");
		return 0;
	}
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (is_asked(argc, argv, i)) {
			parts[i].run();
		}
	}
	must_ok(cuDevicePrimaryCtxRelease(0));
	note_counts();
	return 0;
}
