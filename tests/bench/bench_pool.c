/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in stream order: the driver's, glake's in ranges of its own, and stitched.
 *
 *   pair      allocate and free 8 MiB in turn
 *   churn     of LIVE allocations of 256 KiB to 32 MiB one is freed and another made, again and again
 *   stitch    1 GiB of free pieces of 2 MiB that do not touch, the first time and the next
 *   calls     what the driver itself takes for each of these pieces, call by call: less is not to be had
 *
 *   bench_pool [RUNS]
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "glake.h"
#include "tests/bench/bench.h"

#define LIVE 200u
#define PIECES 512u
#define WARMUP 2000u
#define STITCHES 5u

static struct cudrv drv;
static CUstream stream;
static struct glake_session *session; /* NULL: the driver */
static __typeof__(cuMemAllocAsync) *alloc_async;
static __typeof__(cuMemFreeAsync) *free_async;

static glake_ptr alloc(uint64_t n_bytes)
{
	glake_ptr ptr = 0;
	if (session) {
		bench_check(glake_alloc_async(session, stream, n_bytes, 0, &ptr),
		            "glake_alloc_async");
	} else {
		CUdeviceptr got;
		bench_check_cuda(&drv, alloc_async(&got, n_bytes, stream), "cuMemAllocAsync");
		ptr = got;
	}
	return ptr;
}

static void release(glake_ptr ptr)
{
	if (session) {
		bench_check(glake_free_async(session, stream, ptr, 0), "glake_free_async");
	} else {
		bench_check_cuda(&drv, free_async(ptr, stream), "cuMemFreeAsync");
	}
}

static void print_pairs(const char *label, struct bench_samples *pairs)
{
	bench_print(label, "p50 %.2f  p99 %.2f us  (%zu)",
	            (double)bench_percentile(pairs, 50) / 1e3,
	            (double)bench_percentile(pairs, 99) / 1e3, pairs->n);
	bench_samples_deinit(pairs);
}

static void run_pairs(unsigned n_runs)
{
	struct bench_samples pairs = {0};
	for (unsigned i = 0; i < n_runs + WARMUP; i++) {
		uint64_t begin_ns = bench_now_ns();
		release(alloc(8 * MIB));
		uint64_t ns = bench_now_ns() - begin_ns;
		if (i >= WARMUP) {
			bench_samples_add(&pairs, ns);
		}
	}
	print_pairs("  pair", &pairs);
}

/* As many of each doubling. */
static uint64_t random_bytes(uint64_t *state)
{
	uint64_t low = (256 * KIB) << bench_random(state) % 7;
	return low + bench_random(state) % low;
}

static void run_churn(unsigned n_runs)
{
	struct bench_samples pairs = {0};
	glake_ptr live[LIVE] = {0};
	uint64_t state = 1;
	for (unsigned i = 0; i < n_runs + WARMUP; i++) {
		glake_ptr *at = &live[bench_random(&state) % LIVE];
		uint64_t n_bytes = random_bytes(&state);
		uint64_t begin_ns = bench_now_ns();
		if (*at) {
			release(*at);
		}
		*at = alloc(n_bytes);
		uint64_t ns = bench_now_ns() - begin_ns;
		if (i >= WARMUP) {
			bench_samples_add(&pairs, ns);
		}
	}
	for (unsigned i = 0; i < LIVE; i++) {
		if (live[i]) {
			release(live[i]);
		}
	}
	print_pairs("  churn", &pairs);
}

/* Prints how long each of @n pieces took since @begin_ns. */
static void print_each(const char *label, uint64_t begin_ns, unsigned n)
{
	bench_print(label, "%.2f us a piece", (double)(bench_now_ns() - begin_ns) / n / 1e3);
}

/* Driver calls for pieces in use, which lie in pages of their own; those that are stitched get a third mapping. */
static void run_calls(const glake_ptr *pieces, unsigned n, unsigned step)
{
	static CUmemGenericAllocationHandle handles[PIECES];
	const CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUdeviceptr ptr;
	bench_check_cuda(&drv, drv.cuMemAddressReserve(&ptr, n * 2 * MIB, 0, 0, 0), "addresses");
	uint64_t begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		CUresult r = drv.cuMemRetainAllocationHandle(&handles[i],
		                                             (void *)(uintptr_t)pieces[i * step]);
		bench_check_cuda(&drv, r, "cuMemRetainAllocationHandle");
	}
	print_each("  cuMemRetainAllocationHandle", begin_ns, n);
	begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		bench_check_cuda(&drv, drv.cuMemMap(ptr + i * 2 * MIB, 2 * MIB, 0, handles[i], 0),
		                 "cuMemMap");
	}
	print_each("  cuMemMap", begin_ns, n);
	begin_ns = bench_now_ns();
	bench_check_cuda(&drv, drv.cuMemSetAccess(ptr, n * 2 * MIB, &access, 1), "cuMemSetAccess");
	print_each("  cuMemSetAccess, one call", begin_ns, n);
	begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		bench_check_cuda(&drv, drv.cuMemRelease(handles[i]), "cuMemRelease");
	}
	print_each("  cuMemRelease", begin_ns, n);
	begin_ns = bench_now_ns();
	for (unsigned i = 0; i < n; i++) {
		bench_check_cuda(&drv, drv.cuMemUnmap(ptr + i * 2 * MIB, 2 * MIB), "cuMemUnmap");
	}
	print_each("  cuMemUnmap", begin_ns, n);
	bench_check_cuda(&drv, drv.cuMemAddressFree(ptr, n * 2 * MIB), "cuMemAddressFree");
}

static void run_stitch(void)
{
	static glake_ptr pieces[2 * PIECES];
	for (unsigned i = 0; i < 2 * PIECES; i++) {
		pieces[i] = alloc(2 * MIB);
	}
	for (unsigned i = 0; i < 2 * PIECES; i += 2) {
		release(pieces[i]);
	}
	for (unsigned i = 0; i < STITCHES; i++) {
		uint64_t begin_ns = bench_now_ns();
		glake_ptr ptr = alloc(PIECES * 2 * MIB);
		uint64_t ns = bench_now_ns() - begin_ns;
		release(ptr);
		bench_print(i ? "  1 GiB again" : "  1 GiB of 2 MiB pieces (target 12 ms)",
		            "%.3f ms", (double)ns / 1e6);
	}
	run_calls(pieces + 1, PIECES, 2);
	for (unsigned i = 1; i < 2 * PIECES; i += 2) {
		release(pieces[i]);
	}
}

static void run_with(const char *label, int stitches, unsigned n_runs)
{
	const struct glake_connect_options options = {.size = sizeof(options), .stitch = stitches};
	bench_print(label, "%s", "");
	bench_check(glake_connect(&options, &session), "glake_connect");
	run_pairs(n_runs);
	run_churn(n_runs);
	if (stitches) {
		struct glake_pool_stats stats = {.size = sizeof(stats)};
		bench_check(glake_trim(session, 0, 0), "glake_trim");
		run_stitch();
		bench_check(glake_pool_stats(session, 0, &stats), "glake_pool_stats");
		bench_print("  handles mapped, unmapped", "%llu, %llu",
		            (unsigned long long)stats.n_mapped,
		            (unsigned long long)stats.n_unmapped);
	}
	glake_disconnect(session);
	session = NULL;
}

int main(int argc, char **argv)
{
	unsigned n_runs = (unsigned)bench_number(argc, argv, 1, 20000);
	struct bench_daemon daemon;
	CUcontext context;
	bench_begin("bench_pool", "1x16GiB");
	bench_open_cuda(&drv);
	bench_check_cuda(&drv, drv.cuDevicePrimaryCtxRetain(&context, 0), "a context");
	bench_check_cuda(&drv, drv.cuCtxSetCurrent(context), "cuCtxSetCurrent");
	bench_check_cuda(&drv, drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a stream");
	*(void **)&alloc_async = dlsym(drv.library, "cuMemAllocAsync");
	*(void **)&free_async = dlsym(drv.library, "cuMemFreeAsync");
	bench_print("the driver", "%s", "");
	run_pairs(n_runs);
	run_churn(n_runs);
	bench_daemon_start(&daemon, "");
	run_with("glake", 0, n_runs);
	run_with("glake, stitched", 1, n_runs);
	bench_daemon_stop(&daemon);
	return 0;
}
