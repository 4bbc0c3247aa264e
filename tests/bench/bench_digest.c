/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the digest kernels read device memory: bench_digest [GiB, or MiB with an M behind].
 * One launch over all leaves and one over the roots of its blocks, as the mover does it; the
 * median of ten rounds. Without an argument 16 GiB, 64 MiB on the simulator.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/mover/kernels.h"
#include "proto/cudrv.h"
#include "proto/digest.h"
#include "proto/limits.h"

#define N_ROUNDS 10
#define N_WARM_UPS 3
#define N_CHECKED 4
#define MIB (1024ull * 1024)

static struct cudrv drv;

static void must(CUresult result, const char *what)
{
	if (result != CUDA_SUCCESS) {
		fprintf(stderr, "%s: %s\n", what, cudrv_error(&drv, result));
		exit(EXIT_FAILURE);
	}
}

struct bench {
	struct kernels kernels;
	CUstream stream;
	CUdeviceptr data;
	CUdeviceptr leaves;
	CUdeviceptr items;
	CUdeviceptr roots;
	CUdeviceptr differs;
	uint64_t bytes;
	uint32_t n_blocks;
};

static uint64_t block_bytes(const struct bench *bench, uint32_t block)
{
	uint64_t rest = bench->bytes - block * GLAKE_MAX_BLOCK_BYTES;
	return rest < GLAKE_MAX_BLOCK_BYTES ? rest : GLAKE_MAX_BLOCK_BYTES;
}

/* Bytes that differ everywhere, made quickly: random once, then doubled up and disturbed. */
static void fill(struct bench *bench)
{
	uint64_t n_bytes = bench->bytes < 64 * MIB ? bench->bytes : 64 * MIB;
	uint64_t *words = malloc(n_bytes);
	uint64_t state = 88172645463325252ull;
	if (!words) {
		exit(EXIT_FAILURE);
	}
	for (uint64_t at = 0; at < bench->bytes; at += n_bytes) {
		uint64_t n = bench->bytes - at < n_bytes ? bench->bytes - at : n_bytes;
		for (uint64_t i = 0; i < n / 8; i += at ? 997 : 1) {
			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			words[i] = state;
		}
		must(drv.cuMemcpyHtoD(bench->data + at, words, n), "cuMemcpyHtoD");
	}
	free(words);
}

static void make_items(struct bench *bench)
{
	struct kernel_root_item *items = calloc(bench->n_blocks, sizeof(*items));
	if (!items) {
		exit(EXIT_FAILURE);
	}
	for (uint32_t i = 0; i < bench->n_blocks; i++) {
		items[i] = (struct kernel_root_item){
			.leaves = bench->leaves +
		                  i * (GLAKE_MAX_BLOCK_BYTES / DIGEST_LEAF_BYTES) * DIGEST_BYTES,
			.n_leaves = digest_n_leaves(block_bytes(bench, i)),
			.content_bytes = block_bytes(bench, i),
			.root_out = bench->roots + i * DIGEST_BYTES,
		};
	}
	must(drv.cuMemcpyHtoD(bench->items, items, bench->n_blocks * sizeof(*items)),
	     "cuMemcpyHtoD");
	free(items);
}

static void launch_leaves(struct bench *bench)
{
	must(kernels_leaves(&bench->kernels, bench->stream, bench->data,
	                    bench->bytes / DIGEST_LEAF_BYTES, bench->leaves),
	     "glake_digest_leaves");
}

static void launch_roots(struct bench *bench)
{
	must(kernels_roots(&bench->kernels, bench->stream, bench->items, bench->n_blocks),
	     "glake_digest_roots");
}

static void launch_digest(struct bench *bench)
{
	launch_leaves(bench);
	launch_roots(bench);
}

/* One half with the other: reads everything once, too. */
static void launch_compare(struct bench *bench)
{
	must(kernels_compare(&bench->kernels, bench->stream, bench->data,
	                     bench->data + bench->bytes / 2, bench->bytes / 2, bench->differs),
	     "glake_compare");
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int compare_times(const void *left, const void *right)
{
	double a = *(const double *)left;
	double b = *(const double *)right;
	return a < b ? -1 : a > b;
}

static void measure(struct bench *bench, const char *name, void (*body)(struct bench *bench))
{
	double times[N_ROUNDS];
	for (int round = -N_WARM_UPS; round < N_ROUNDS; round++) {
		must(drv.cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
		double begin = now();
		body(bench);
		must(drv.cuStreamSynchronize(bench->stream), "cuStreamSynchronize");
		if (round >= 0) {
			times[round] = now() - begin;
		}
	}
	qsort(times, N_ROUNDS, sizeof(times[0]), compare_times);
	double gb = (double)bench->bytes / 1e9;
	printf("%-8s %7.1f GB/s median, %7.1f min, %7.1f max, %9.3f ms median\n", name,
	       gb / ((times[N_ROUNDS / 2 - 1] + times[N_ROUNDS / 2]) / 2), gb / times[N_ROUNDS - 1],
	       gb / times[0], (times[N_ROUNDS / 2 - 1] + times[N_ROUNDS / 2]) / 2 * 1e3);
}

/* Some roots, the last one's included, against the definition. */
static int verify(struct bench *bench)
{
	uint8_t *content = malloc(GLAKE_MAX_BLOCK_BYTES);
	int n_wrong = 0;
	if (!content) {
		exit(EXIT_FAILURE);
	}
	for (uint32_t i = 0; i < N_CHECKED; i++) {
		uint32_t block = (uint32_t)((uint64_t)(bench->n_blocks - 1) * i / (N_CHECKED - 1));
		uint64_t n_bytes = block_bytes(bench, block);
		struct digest have;
		must(drv.cuMemcpyDtoH(content, bench->data + block * GLAKE_MAX_BLOCK_BYTES,
		                      n_bytes),
		     "cuMemcpyDtoH");
		must(drv.cuMemcpyDtoH(&have, bench->roots + block * DIGEST_BYTES, sizeof(have)),
		     "cuMemcpyDtoH");
		struct digest want = digest_of(content, n_bytes);
		n_wrong += !digest_equal(&have, &want);
	}
	free(content);
	printf("%d of %d roots are wrong\n", n_wrong, N_CHECKED);
	return n_wrong;
}

/* Whole chunks; 0 for what is no size. */
static uint64_t parse_size(const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 10);
	n *= *end == 'M' ? MIB : 1024 * MIB;
	return n / DIGEST_CHUNK_BYTES * DIGEST_CHUNK_BYTES;
}

static void set_up(struct bench *bench)
{
	CUcontext context;
	must(drv.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
	must(drv.cuCtxSetCurrent(context), "cuCtxSetCurrent");
	must(drv.cuStreamCreate(&bench->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	must(kernels_load(&bench->kernels, &drv, 0), "loading the kernels");
	bench->n_blocks = (uint32_t)((bench->bytes + GLAKE_MAX_BLOCK_BYTES - 1) /
	                             GLAKE_MAX_BLOCK_BYTES);
	must(drv.cuMemAlloc(&bench->data, bench->bytes), "cuMemAlloc");
	must(drv.cuMemAlloc(&bench->leaves, bench->bytes / DIGEST_LEAF_BYTES * DIGEST_BYTES),
	     "cuMemAlloc");
	must(drv.cuMemAlloc(&bench->items, bench->n_blocks * sizeof(struct kernel_root_item)),
	     "cuMemAlloc");
	must(drv.cuMemAlloc(&bench->roots, bench->n_blocks * DIGEST_BYTES), "cuMemAlloc");
	must(drv.cuMemAlloc(&bench->differs, sizeof(uint32_t)), "cuMemAlloc");
	must(drv.cuMemsetD8(bench->differs, 0, sizeof(uint32_t)), "cuMemsetD8");
	fill(bench);
	make_items(bench);
}

int main(int argc, char **argv)
{
	struct bench bench = {0};
	char error[256];
	char name[128] = "";
	if (cudrv_open(&drv, NULL, error, sizeof(error)) < 0) {
		printf("SKIP: %s\n", error);
		return EXIT_SUCCESS;
	}
	must(drv.cuInit(0), "cuInit");
	must(drv.cuDeviceGetName(name, sizeof(name), 0), "cuDeviceGetName");
	const char *library = getenv("GLAKE_LIBCUDA");
	bool is_simulated = library && strstr(library, "cudasim");
	bench.bytes = argc > 1 ? parse_size(argv[1]) : is_simulated ? 64 * MIB : 16 * 1024 * MIB;
	if (bench.bytes == 0) {
		fprintf(stderr, "usage: bench_digest [GiB, or MiB with an M behind]\n");
		return EXIT_FAILURE;
	}
	set_up(&bench);
	printf("%s, %.3f GiB\n", name, (double)bench.bytes / (1024.0 * (double)MIB));
	measure(&bench, "leaves", launch_leaves);
	measure(&bench, "roots*", launch_roots);
	measure(&bench, "digest", launch_digest);
	measure(&bench, "compare", launch_compare);
	printf("* as if it had read the content\n");
	return verify(&bench) ? EXIT_FAILURE : EXIT_SUCCESS;
}
