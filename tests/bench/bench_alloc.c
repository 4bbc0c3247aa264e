/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory of 64 MiB by way of libglake-client, beside the driver's own cuMemAlloc().
 *
 *   warm       glake_alloc() and glake_free() of a piece that stays mapped, as a pair
 *   cold       glake_alloc() with GLAKE_ZERO and no warm memory: a chunk from glaked, mapped here;
 *              with the default pool, which makes chunks ahead, and without one
 *   trim       the way back: unmapped, returned, answered
 *   driver     cuMemAlloc() and cuMemFree(), each, in the primary context
 *
 * All but the warm ones are measured back to back, and PAUSE_US apart: an idle processor that must
 * wake up makes every driver call several times slower, the driver's own too.
 *
 *   bench_alloc [RUNS] [MiB]
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "glake.h"
#include "tests/bench/bench.h"

#define WARM_ROUNDS 20u /* as many warm runs as cold ones, times this */
#define WARMUP 10u
#define PAUSE_US 2000

struct run {
	struct glake_session *session;
	struct cudrv *drv;
	uint64_t n_bytes;
	unsigned n_runs;
	unsigned pause_us;
};

static void rest(const struct run *run)
{
	if (run->pause_us > 0) {
		usleep(run->pause_us);
	}
}

static glake_ptr alloc(const struct run *run, unsigned flags)
{
	glake_ptr ptr;
	bench_check(glake_alloc(run->session, 0, run->n_bytes, flags, &ptr), "glake_alloc");
	return ptr;
}

static void run_warm(const struct run *run)
{
	struct bench_samples pairs = {0};
	bench_check(glake_free(run->session, alloc(run, 0)), "glake_free");
	for (unsigned i = 0; i < WARM_ROUNDS * run->n_runs; i++) {
		uint64_t begin_ns = bench_now_ns();
		glake_ptr ptr = alloc(run, 0);
		int err = glake_free(run->session, ptr);
		uint64_t ns = bench_now_ns() - begin_ns;
		bench_check(err, "glake_free");
		bench_samples_add(&pairs, ns);
	}
	bench_print("warm alloc + free (target p50 3 us)", "p50 %.2f  p99 %.2f us  (%zu)",
	            (double)bench_percentile(&pairs, 50) / 1e3,
	            (double)bench_percentile(&pairs, 99) / 1e3, pairs.n);
	bench_samples_deinit(&pairs);
	bench_check(glake_trim(run->session, 0, 0), "glake_trim");
}

static void run_cold(const struct run *run, const char *label)
{
	struct bench_samples allocs = {0};
	struct bench_samples trims = {0};
	for (unsigned i = 0; i < run->n_runs + WARMUP; i++) {
		rest(run);
		uint64_t begin_ns = bench_now_ns();
		glake_ptr ptr = alloc(run, GLAKE_ZERO);
		uint64_t alloc_ns = bench_now_ns() - begin_ns;
		bench_check(glake_free(run->session, ptr), "glake_free");
		begin_ns = bench_now_ns();
		bench_check(glake_trim(run->session, 0, 0), "glake_trim");
		if (i >= WARMUP) {
			bench_samples_add(&allocs, alloc_ns);
			bench_samples_add(&trims, bench_now_ns() - begin_ns);
		}
	}
	bench_print_latency(label, &allocs);
	bench_print_latency("  glake_trim of it", &trims);
	bench_samples_deinit(&allocs);
	bench_samples_deinit(&trims);
}

static void run_driver(const struct run *run)
{
	struct bench_samples allocs = {0};
	struct bench_samples frees = {0};
	const struct cudrv *drv = run->drv;
	for (unsigned i = 0; i < run->n_runs + WARMUP; i++) {
		CUdeviceptr ptr;
		rest(run);
		uint64_t begin_ns = bench_now_ns();
		CUresult result = drv->cuMemAlloc(&ptr, run->n_bytes);
		uint64_t alloc_ns = bench_now_ns() - begin_ns;
		bench_check_cuda(drv, result, "cuMemAlloc");
		begin_ns = bench_now_ns();
		result = drv->cuMemFree(ptr);
		uint64_t free_ns = bench_now_ns() - begin_ns;
		bench_check_cuda(drv, result, "cuMemFree");
		if (i >= WARMUP) {
			bench_samples_add(&allocs, alloc_ns);
			bench_samples_add(&frees, free_ns);
		}
	}
	bench_print_latency("cuMemAlloc", &allocs);
	bench_print_latency("cuMemFree", &frees);
	bench_samples_deinit(&allocs);
	bench_samples_deinit(&frees);
}

static void run_paced(struct run *run, unsigned pause_us, const char *pool, bool with_driver)
{
	char label[64];
	const char *pace = pause_us ? "paced" : "back to back";
	run->pause_us = pause_us;
	if (with_driver) {
		bench_print(pace, "%u us apart", pause_us);
		run_driver(run);
	}
	snprintf(label, sizeof(label), "cold, %s, %s", pool, pace);
	run_cold(run, label);
}

static void run_with(struct run *run, const char *config, const char *pool, bool is_first)
{
	struct bench_daemon daemon;
	bench_daemon_start(&daemon, config);
	bench_check(glake_connect(NULL, &run->session), "glake_connect");
	if (is_first) {
		run_warm(run);
	}
	run_paced(run, 0, pool, is_first);
	run_paced(run, PAUSE_US, pool, is_first);
	glake_disconnect(run->session);
	bench_daemon_stop(&daemon);
}

int main(int argc, char **argv)
{
	static struct cudrv drv;
	struct run run = {
		.drv = &drv,
		.n_runs = (unsigned)bench_number(argc, argv, 1, 500),
		.n_bytes = (uint64_t)bench_number(argc, argv, 2, 64) * MIB,
	};
	bench_begin("bench_alloc", NULL);
	bench_print("size", "%llu MiB", (unsigned long long)(run.n_bytes / MIB));
	bench_open_cuda(&drv);
	run_with(&run, "", "default pool", true);
	run_with(&run, "pool = ();\n", "no pool", false);
	return 0;
}
