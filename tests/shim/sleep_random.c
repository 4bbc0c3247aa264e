/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that knows nothing of glake and does random things with memory of each kind, linked against the driver
 * alone. Others put it to sleep meanwhile, wake it and seal its memory.
 *
 *   sleep_random SEED SECONDS
 *
 * Each of its threads has a plain model of its own memory and compares all of it, again and again. Where there is no
 * memory, a call fails and nothing has changed. Kernels write only what no copy from the host has filled: an operator
 * may seal the rest.
 *
 * It ends with 0 and a line of numbers, or with 1 and a line on stderr.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/harness/churn.h"
#include "tests/shim/device.h"
#include "tests/spin.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define PAGE (2 * MIB)
#define N_THREADS 3u
#define N_RANGES 5u
/* All words of a tile are the same. */
#define TILE (64 * KIB)
#define MAX_BYTES (6 * MIB)
#define MAX_TILES (MAX_BYTES / TILE)
#define N_CONTENTS 3u

enum kind {
	ALLOCATED, /* cuMemAlloc */
	POOLED,    /* cuMemAllocAsync */
	NAMED,     /* cuMemAlloc, and other processes may open it: it stays */
	MAPPED,    /* the program's own cuMemCreate and cuMemMap */
	TWICE,     /* the same, at two places */
	EXPORTED,  /* the same, and there is an fd of it: it stays */
	N_KINDS,
};

struct range {
	CUdeviceptr ptr; /* 0: there is none */
	CUdeviceptr second;
	enum kind kind;
	size_t n_bytes;
	bool is_for_kernels;
	CUmemGenericAllocationHandle handle;
	int fd;
	CUgraphExec adds; /* one to each word, or NULL */
	uint32_t values[MAX_TILES];
};

struct thread {
	pthread_t thread;
	unsigned number;
	unsigned state; /* of rand_r() */
	CUstream stream;
	unsigned n_steps;
	struct range ranges[N_RANGES];
	uint32_t words[MAX_BYTES / 4];
};

static struct thread threads[N_THREADS];
static CUcontext ctx;
static CUfunction add;
static time_t end;
static atomic_uint n_lacks;
static atomic_uint n_to_rest;

/* True: it has happened. False: there was no memory for it. */
static bool did(const struct thread *thread, CUresult result, const char *what)
{
	n_lacks += result == CUDA_ERROR_OUT_OF_MEMORY;
	if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
		fprintf(stderr, "%s: %d, thread %u, step %u\n", what, (int)result, thread->number,
		        thread->n_steps);
		_exit(1);
	}
	return result == CUDA_SUCCESS;
}

/* ---- tiles ------------------------------------------------------------------------------------ */

static size_t n_tiles(const struct range *range)
{
	return (range->n_bytes + TILE - 1) / TILE;
}

static size_t tile_bytes(const struct range *range, size_t i)
{
	size_t n_left = range->n_bytes - i * TILE;
	return n_left < TILE ? n_left : TILE;
}

/* A run of them; often all. */
struct run {
	size_t first;
	size_t n;
	size_t offset;
	size_t n_bytes;
};

static struct run whole(const struct range *range)
{
	return (struct run){.n = n_tiles(range), .n_bytes = range->n_bytes};
}

static struct run pick_run(struct thread *thread, const struct range *range)
{
	struct run run = whole(range);
	if (churn_pick(&thread->state, 2)) {
		run.first = churn_pick(&thread->state, (unsigned)run.n);
		run.n = 1 + churn_pick(&thread->state, (unsigned)(run.n - run.first));
		run.offset = run.first * TILE;
		run.n_bytes = 0;
		for (size_t i = 0; i < run.n; i++) {
			run.n_bytes += tile_bytes(range, run.first + i);
		}
	}
	return run;
}

/* Either place of what has two. */
static CUdeviceptr pick_place(struct thread *thread, const struct range *range)
{
	return range->second && churn_pick(&thread->state, 2) ? range->second : range->ptr;
}

/* A tile that is filled from the host often has what others have as well: one of N_CONTENTS. */
static uint32_t pick_value(struct thread *thread, unsigned content, size_t tile)
{
	return content < N_CONTENTS ? (uint32_t)(tile * 2654435761u + content)
	                            : (uint32_t)rand_r(&thread->state);
}

static void compare(struct thread *thread, const struct range *range, const char *what)
{
	CUdeviceptr ptr = pick_place(thread, range);
	must_ok(cuMemcpyDtoHAsync(thread->words, ptr, range->n_bytes, thread->stream));
	must_ok(cuStreamSynchronize(thread->stream));
	for (size_t i = 0; i < n_tiles(range); i++) {
		const uint32_t *words = thread->words + i * TILE / 4;
		size_t wrong = churn_wrong_at(words, tile_bytes(range, i), range->values[i]);
		if (wrong < tile_bytes(range, i)) {
			fprintf(stderr,
			        "after %s, thread %u, step %u: tile %zu of %zu bytes at 0x%llx "
			        "(kind %d) has 0x%x, not 0x%x\n",
			        what, thread->number, thread->n_steps, i, range->n_bytes,
			        (unsigned long long)ptr, (int)range->kind, words[wrong / 4],
			        range->values[i]);
			_exit(1);
		}
	}
}

static void compare_all(struct thread *thread, const char *what)
{
	for (unsigned i = 0; i < N_RANGES; i++) {
		if (thread->ranges[i].ptr) {
			compare(thread, &thread->ranges[i], what);
		}
	}
}

/* ---- writing ---------------------------------------------------------------------------------- */

/* These return false without memory for it. */
static bool set_run(struct thread *thread, struct range *range, struct run run)
{
	/* Memory that reads zero is not copied. */
	uint32_t value = churn_pick(&thread->state, 3) ? (uint32_t)rand_r(&thread->state) : 0;
	CUdeviceptr to = pick_place(thread, range) + run.offset;
	if (!did(thread, cuMemsetD32Async(to, value, run.n_bytes / 4, thread->stream), "set")) {
		return false;
	}
	for (size_t i = 0; i < run.n; i++) {
		range->values[run.first + i] = value;
	}
	return true;
}

static bool copy_run(struct thread *thread, struct range *range, struct run run)
{
	uint32_t values[MAX_TILES];
	unsigned content = churn_pick(&thread->state, N_CONTENTS + 1);
	for (size_t i = 0; i < run.n; i++) {
		values[i] = pick_value(thread, content, run.first + i);
		churn_fill(thread->words + i * TILE / 4, tile_bytes(range, run.first + i),
		           values[i]);
	}
	CUdeviceptr to = pick_place(thread, range) + run.offset;
	CUresult result = churn_pick(&thread->state, 2)
	                          ? cuMemcpyHtoD(to, thread->words, run.n_bytes)
	                          : cuMemcpyHtoDAsync(to, thread->words, run.n_bytes,
	                                              thread->stream);
	must_ok(cuStreamSynchronize(thread->stream));
	if (!did(thread, result, "copy")) {
		return false;
	}
	memcpy(range->values + run.first, values, run.n * sizeof(values[0]));
	return true;
}

static void set(struct thread *thread, struct range *range)
{
	set_run(thread, range, pick_run(thread, range));
}

static void copy_in(struct thread *thread, struct range *range)
{
	if (!range->is_for_kernels) {
		copy_run(thread, range, pick_run(thread, range));
	}
}

/* From the same place of another range. */
static void copy_across(struct thread *thread, struct range *range)
{
	struct range *from = &thread->ranges[churn_pick(&thread->state, N_RANGES)];
	struct run run = pick_run(thread, range);
	if (!from->ptr || from == range || from->n_bytes < run.offset + run.n_bytes) {
		return;
	}
	CUdeviceptr to = pick_place(thread, range) + run.offset;
	if (did(thread,
	        cuMemcpyDtoDAsync(to, pick_place(thread, from) + run.offset, run.n_bytes,
	                          thread->stream),
	        "copy across")) {
		memcpy(range->values + run.first, from->values + run.first,
		       run.n * sizeof(range->values[0]));
	}
}

static CUresult launch(struct thread *thread, uint64_t ptr, uint64_t n_bytes)
{
	uint64_t n_words = n_bytes / 4;
	uint32_t by = 1;
	void *params[] = {&ptr, &n_words, &by};
	return cuLaunchKernel(add, 1, 1, 1, 256, 1, 1, 0, thread->stream, params, NULL);
}

static void run_kernel(struct thread *thread, struct range *range)
{
	struct run run = pick_run(thread, range);
	if (range->is_for_kernels &&
	    did(thread, launch(thread, pick_place(thread, range) + run.offset, run.n_bytes),
	        "launch")) {
		for (size_t i = 0; i < run.n; i++) {
			range->values[run.first + i]++;
		}
	}
}

/* A graph that was made before some sleeps. */
static void run_graph(struct thread *thread, struct range *range)
{
	CUgraph graph;
	if (!range->is_for_kernels) {
		return;
	}
	if (!range->adds) {
		must_ok(cuStreamBeginCapture(thread->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		must_ok(launch(thread, range->ptr, range->n_bytes));
		must_ok(cuStreamEndCapture(thread->stream, &graph));
		must_ok(cuGraphInstantiate(&range->adds, graph, 0));
		must_ok(cuGraphDestroy(graph));
	}
	if (did(thread, cuGraphLaunch(range->adds, thread->stream), "graph")) {
		for (size_t i = 0; i < n_tiles(range); i++) {
			range->values[i]++;
		}
	}
}

/* ---- memory ----------------------------------------------------------------------------------- */

static bool create(struct thread *thread, struct range *range)
{
	const CUmemAllocationProp properties = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
	};
	return did(thread, cuMemCreate(&range->handle, range->n_bytes, &properties, 0), "create");
}

static bool map(struct range *range)
{
	const CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	size_t n = range->n_bytes;
	unsigned n_places = range->kind == TWICE ? 2 : 1;
	must_ok(cuMemAddressReserve(&range->ptr, n * n_places, 0, 0, 0));
	for (unsigned i = 0; i < n_places; i++) {
		must_ok(cuMemMap(range->ptr + i * n, n, 0, range->handle, 0));
	}
	must_ok(cuMemSetAccess(range->ptr, n * n_places, &access, 1));
	range->second = n_places > 1 ? range->ptr + n : 0;
	/* Refused, if it is older than this glaked. */
	if (range->kind == EXPORTED &&
	    cuMemExportToShareableHandle(&range->fd, range->handle,
	                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                 0) != CUDA_SUCCESS) {
		range->kind = MAPPED;
	}
	return true;
}

static void unmap(struct range *range)
{
	size_t n_places = range->second ? 2 : 1;
	must_ok(cuMemUnmap(range->ptr, range->n_bytes * n_places));
	must_ok(cuMemAddressFree(range->ptr, range->n_bytes * n_places));
	must_ok(cuMemRelease(range->handle));
	if (range->kind == EXPORTED) {
		close(range->fd);
	}
}

static bool allocate(struct thread *thread, struct range *range)
{
	CUipcMemHandle name;
	CUdeviceptr ptr = 0;
	CUresult result = range->kind == POOLED
	                          ? cuMemAllocAsync(&ptr, range->n_bytes, thread->stream)
	                          : cuMemAlloc(&ptr, range->n_bytes);
	if (!did(thread, result, "allocate")) {
		return false;
	}
	range->ptr = ptr;
	if (range->kind == NAMED) {
		/* Refused, if it is older than this glaked. */
		cuIpcGetMemHandle(&name, ptr);
	}
	return true;
}

static size_t pick_bytes(struct thread *thread, enum kind kind)
{
	if (kind >= MAPPED) {
		return (1 + churn_pick(&thread->state, 2)) * PAGE;
	}
	switch (churn_pick(&thread->state, 3)) {
	case 0:
		return 16 * (1 + churn_pick(&thread->state, 64 * KIB / 16));
	case 1:
		return 4 * KIB * (1 + churn_pick(&thread->state, MIB / (4 * KIB)));
	default:
		return 4 * KIB * (1 + churn_pick(&thread->state, MAX_BYTES / (4 * KIB)));
	}
}

static void drop(struct thread *thread, struct range *range)
{
	if (range->adds) {
		must_ok(cuGraphExecDestroy(range->adds));
	}
	if (range->kind >= MAPPED) {
		must_ok(cuStreamSynchronize(thread->stream));
		unmap(range);
	} else if (range->kind == POOLED && churn_pick(&thread->state, 2)) {
		must_ok(cuMemFreeAsync(range->ptr, thread->stream));
	} else {
		must_ok(cuStreamSynchronize(thread->stream));
		must_ok(cuMemFree(range->ptr));
	}
	range->ptr = 0;
}

/* All of it has a known value from now on. */
static void make(struct thread *thread, struct range *range)
{
	*range = (struct range){.kind = (enum kind)churn_pick(&thread->state, N_KINDS), .fd = -1};
	range->n_bytes = pick_bytes(thread, range->kind);
	/* Small ones are in a page with others. */
	range->is_for_kernels = range->n_bytes >= PAGE && churn_pick(&thread->state, 2);
	bool is_made = range->kind < MAPPED ? allocate(thread, range)
	                                    : create(thread, range) && map(range);
	if (is_made) {
		is_made = range->is_for_kernels || churn_pick(&thread->state, 2)
		                  ? set_run(thread, range, whole(range))
		                  : copy_run(thread, range, whole(range));
	}
	if (!is_made && range->ptr) {
		drop(thread, range);
	}
}

static void drop_all(struct thread *thread)
{
	for (unsigned i = 0; i < N_RANGES; i++) {
		if (thread->ranges[i].ptr) {
			drop(thread, &thread->ranges[i]);
		}
	}
}

/* ---- questions, which wake nobody ------------------------------------------------------------- */

static void ask(struct thread *thread, struct range *range)
{
	size_t n_free;
	size_t n_bytes;
	unsigned type = 0;
	int ordinal = -1;
	CUresult result = cuStreamQuery(thread->stream);
	must(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
	must_ok(cuMemGetInfo(&n_free, &n_bytes));
	must(n_free <= n_bytes);
	must_ok(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range->ptr));
	must(type == CU_MEMORYTYPE_DEVICE);
	must_ok(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, range->ptr));
	must(ordinal == 0);
}

static void rest(struct thread *thread, struct range *range)
{
	(void)range;
	usleep(churn_pick(&thread->state, 20000));
}

/* All threads: for policy to find the program idle. */
static void rest_all(struct thread *thread, struct range *range)
{
	(void)range;
	if (churn_pick(&thread->state, 16) == 0) {
		n_to_rest = N_THREADS;
	}
}

static void rest_with_others(void)
{
	unsigned n = n_to_rest;
	while (n > 0 && !atomic_compare_exchange_weak(&n_to_rest, &n, n - 1)) {
	}
	if (n > 0) {
		usleep(1500000);
	}
}

/* ---- all of it -------------------------------------------------------------------------------- */

static const struct {
	const char *name;
	void (*act)(struct thread *thread, struct range *range);
} acts[] = {
	{"copy", copy_in},      {"copy", copy_in},    {"set", set}, {"copy across", copy_across},
	{"kernel", run_kernel}, {"graph", run_graph}, {"ask", ask}, {"drop", drop},
	{"rest", rest},         {"rest", rest_all},
};
#define N_ACTS (sizeof(acts) / sizeof(acts[0]))

static void step(struct thread *thread)
{
	struct range *range = &thread->ranges[churn_pick(&thread->state, N_RANGES)];
	const char *what = "make";
	thread->n_steps++;
	if (!range->ptr) {
		make(thread, range);
	} else {
		unsigned i = churn_pick(&thread->state, N_ACTS);
		what = acts[i].name;
		acts[i].act(thread, range);
	}
	if (churn_pick(&thread->state, 8) == 0) {
		compare_all(thread, what);
	} else if (range->ptr) {
		compare(thread, range, what);
	}
}

static void *work(void *user)
{
	struct thread *thread = user;
	must_ok(cuCtxSetCurrent(ctx));
	must_ok(cuStreamCreate(&thread->stream, CU_STREAM_NON_BLOCKING));
	while (time(NULL) < end) {
		rest_with_others();
		step(thread);
	}
	compare_all(thread, "all");
	drop_all(thread);
	must_ok(cuStreamSynchronize(thread->stream));
	return NULL;
}

int main(int argc, char **argv)
{
	CUmodule module;
	unsigned n_steps = 0;
	must(argc == 3);
	end = time(NULL) + atoi(argv[2]);
	ctx = use_device(0);
	must_ok(cuModuleLoadData(&module, spin_image_of(cuDeviceGetName)));
	must_ok(cuModuleGetFunction(&add, module, "add"));
	for (unsigned i = 0; i < N_THREADS; i++) {
		threads[i].number = i;
		threads[i].state = (unsigned)strtoul(argv[1], NULL, 10) * N_THREADS + i;
		must(pthread_create(&threads[i].thread, NULL, work, &threads[i]) == 0);
	}
	for (unsigned i = 0; i < N_THREADS; i++) {
		pthread_join(threads[i].thread, NULL);
		n_steps += threads[i].n_steps;
	}
	printf("%u steps, %u without memory\n", n_steps, n_lacks);
	return 0;
}
