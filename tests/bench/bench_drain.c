/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a range that changes holds back the launches of a program under the shim.
 *
 *   bench_drain [ROUNDS]
 *
 * The shim is linked in. Works on the simulated driver (GLAKE_LIBCUDA) and on a real one.
 *
 *   idle      closing the gate, an event for each context, opening
 *   busy      the same while four threads launch kernels, and each waits after so many; late: given up after
 *             20 ms
 *   access    128 MiB, one chunk, to read-only and back, each with a closing of its own
 *   reback    the same chunk replaced by another one
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "libclient/heap/backing.h"
#include "tests/bench/bench.h"
#include "tests/reback_one.h"
#include "tests/spin.h"

#define CHUNK_BYTES (128ull << 20)
#define N_WORDS (64 * 1024) /* of a kernel */
#define N_THREADS 4
#define N_CONTEXTS 4

/* Newer toolkits have it in the library only. */
CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice device);

static struct cudrv drv; /* past the shim */
static atomic_bool is_over;
static atomic_uint n_ahead; /* launches between two waits of a thread */

static void must(CUresult result, const char *what)
{
	bench_check_cuda(&drv, result, what);
}

/* Returns how long it was closed; 0: it was not. */
static uint64_t close_once(unsigned *n_again)
{
	uint64_t begin_ns = bench_now_ns();
	int r = glake__gate_close(1, GLAKE__GATE_PATIENCE_NS);
	if (r == -EAGAIN) {
		++*n_again;
		return 0;
	}
	if (r < 0) {
		bench_fail("the gate does not close");
	}
	glake__gate_open();
	return bench_now_ns() - begin_ns;
}

static void measure_closing(const char *label, unsigned n_rounds)
{
	struct bench_samples samples = {0};
	unsigned n_again = 0;
	char text[96];
	for (unsigned i = 0; i < n_rounds; i++) {
		uint64_t ns = close_once(&n_again);
		if (ns > 0) {
			bench_samples_add(&samples, ns);
		}
		usleep(500);
	}
	snprintf(text, sizeof(text), "%s (%u late)", label, n_again);
	bench_print_latency(text, &samples);
	bench_samples_deinit(&samples);
}

static void *launch_on_and_on(void *argument)
{
	CUcontext ctx = argument;
	CUmodule module;
	CUfunction add;
	CUstream stream;
	CUdeviceptr ptr;
	uint64_t n_words = N_WORDS;
	uint32_t by = 1;
	must(cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
	must(cuModuleLoadData(&module, spin_image_of(cuDeviceGetName)), "cuModuleLoadData");
	must(cuModuleGetFunction(&add, module, "add"), "cuModuleGetFunction");
	must(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	must(cuMemAlloc(&ptr, N_WORDS * 4), "cuMemAlloc");
	void *params[] = {&ptr, &n_words, &by};
	while (!is_over) {
		for (unsigned i = 0; i < n_ahead; i++) {
			must(cuLaunchKernel(add, 1, 1, 1, 256, 1, 1, 0, stream, params, NULL),
			     "cuLaunchKernel");
		}
		must(cuStreamSynchronize(stream), "cuStreamSynchronize");
	}
	return NULL;
}

static void measure_busy(CUcontext ctx, unsigned ahead, unsigned n_rounds)
{
	pthread_t threads[N_THREADS];
	char label[64];
	is_over = false;
	n_ahead = ahead;
	for (int i = 0; i < N_THREADS; i++) {
		pthread_create(&threads[i], NULL, launch_on_and_on, ctx);
	}
	usleep(200000);
	snprintf(label, sizeof(label), "busy, %u ahead", ahead);
	measure_closing(label, n_rounds);
	is_over = true;
	for (int i = 0; i < N_THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
}

static struct glake__part make_part(void)
{
	const CUmemAllocationProp properties = cudrv_chunk_properties(
		0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	struct glake__part part = {
		.chunk = glake__chunk_new(0, CHUNK_BYTES, 0, GLAKE__PAGE_CHUNK),
		.n_bytes = CHUNK_BYTES,
		.access = GLAKE__ACCESS_WRITE,
		.fd = -1,
	};
	must(drv.cuMemCreate(&part.handle, CHUNK_BYTES, &properties, 0), "cuMemCreate");
	return part;
}

static void end_part(const struct glake__part *part)
{
	glake__chunk_put(part->chunk);
	drv.cuMemRelease(part->handle);
}

static void check(int r)
{
	if (r < 0) {
		bench_fail("a change failed");
	}
}

static void measure_changes(unsigned n_rounds)
{
	struct bench_samples access = {0};
	struct bench_samples reback = {0};
	struct glake__range *range;
	struct glake__part part = make_part();
	check(glake__range_reserve(&glake__use_private, NULL, 0, CHUNK_BYTES, 0, 0, &range));
	check(glake__range_fill(range, 0, &part, 1));
	end_part(&part);
	for (unsigned i = 0; i < n_rounds; i++) {
		uint64_t begin_ns = bench_now_ns();
		check(glake__range_access(range, 0, CHUNK_BYTES, GLAKE__ACCESS_READ));
		bench_samples_add(&access, bench_now_ns() - begin_ns);
		check(glake__range_access(range, 0, CHUNK_BYTES, GLAKE__ACCESS_WRITE));
		part = make_part();
		begin_ns = bench_now_ns();
		check(range_reback(range, 0, &part, 1, NULL));
		bench_samples_add(&reback, bench_now_ns() - begin_ns);
		end_part(&part);
	}
	bench_print_latency("access, 128 MiB", &access);
	bench_print_latency("reback, 128 MiB", &reback);
	bench_samples_deinit(&access);
	bench_samples_deinit(&reback);
	check(glake__range_end(range, NULL));
}

int main(int argc, char **argv)
{
	const unsigned n_rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 200;
	CUcontext ctx = NULL;
	CUcontext more;
	setenv("CUDASIM_DEVICES", "1x4GiB", 0);
	setenv("GLAKE_SOCKET", "/nonexistent/glake.sock", 1);
	if (n_rounds == 0) {
		fprintf(stderr, "usage: bench_drain [ROUNDS]\n");
		return EXIT_FAILURE;
	}
	if (cudrv_open(&drv, NULL, NULL, 0) < 0 || cuInit(0) != CUDA_SUCCESS) {
		bench_fail("no driver");
	}
	must(cuDevicePrimaryCtxRetain(&ctx, 0), "cuDevicePrimaryCtxRetain");
	must(cuCtxSetCurrent(ctx), "cuCtxSetCurrent");
	measure_closing("idle, 1 context", n_rounds);
	measure_changes(n_rounds);
	measure_busy(ctx, 1, n_rounds);
	measure_busy(ctx, 8, n_rounds);
	measure_busy(ctx, 1000, n_rounds);
	for (int i = 1; i < N_CONTEXTS; i++) {
		must(cuCtxCreate_v2(&more, 0, 0), "cuCtxCreate_v2");
	}
	measure_closing("idle, 4 contexts", n_rounds);
	return EXIT_SUCCESS;
}
