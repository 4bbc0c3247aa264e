/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight processes that allocate at once: how long cuMemAlloc() and cuMemFree() last, of the driver
 * and under the shim, over all processes.
 *
 *   churn      sizes of 2 to 256 MiB from a set of sixteen, four held at a time, so that some of
 *              what was freed serves again
 *   grow       the same sizes until 4 GiB are held, then all freed, five times. The first time, nothing
 *              was freed that could serve
 *
 *   bench_shim_crowd [--out FILE.json] [RUNS]
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/shimmed.h"

#define N_PROCESSES 8
#define N_SIZES 16u
#define N_HELD 4u
#define N_CHURNS 1000u
#define N_GROWTHS 5u
#define MAX_GROWN 4096u

enum number { ALLOC, FREE, FIRST, N_NUMBERS };

static const char *const loads[] = {"churn", "grow"};
#define N_LOADS (sizeof(loads) / sizeof(loads[0]))

/* ---- in the child ----------------------------------------------------------------------------- */

struct load {
	struct cu cu;
	uint64_t random;
	uint64_t sizes[N_SIZES];
	uint64_t grown_bytes;
};

/* The sizes are the same in all processes, their order is not. */
static void plan(struct load *load)
{
	uint64_t random = 4;
	bool is_small = getenv("BENCH_SMALL") != NULL;
	for (unsigned i = 0; i < N_SIZES; i++) {
		load->sizes[i] = (bench_random(&random) % (is_small ? 4 : 128) + 1) * 2 * MIB;
	}
	load->grown_bytes = is_small ? 64 * MIB : 4 * GIB;
	load->random = (uint64_t)getpid();
}

static CUdeviceptr alloc(struct load *load, uint64_t n_bytes, bool is_first)
{
	CUdeviceptr ptr;
	uint64_t begin_ns = bench_now_ns();
	shimmed_must(load->cu.alloc(&ptr, n_bytes), "cuMemAlloc");
	uint64_t took_ns = bench_now_ns() - begin_ns;
	shimmed_send(ALLOC, took_ns);
	if (is_first) {
		shimmed_send(FIRST, took_ns);
	}
	return ptr;
}

static void give_back(struct load *load, CUdeviceptr ptr)
{
	uint64_t begin_ns = bench_now_ns();
	shimmed_must(load->cu.free(ptr), "cuMemFree");
	shimmed_send(FREE, bench_now_ns() - begin_ns);
}

static uint64_t draw(struct load *load)
{
	return load->sizes[bench_random(&load->random) % N_SIZES];
}

static void churn(struct load *load)
{
	CUdeviceptr held[N_HELD] = {0};
	for (unsigned i = 0; i < N_CHURNS; i++) {
		CUdeviceptr *at = &held[i % N_HELD];
		if (*at) {
			give_back(load, *at);
		}
		*at = alloc(load, draw(load), false);
	}
	for (unsigned i = 0; i < N_HELD; i++) {
		give_back(load, held[i]);
	}
}

static void grow(struct load *load)
{
	static CUdeviceptr held[MAX_GROWN];
	for (unsigned i = 0; i < N_GROWTHS; i++) {
		unsigned n = 0;
		uint64_t n_bytes = draw(load);
		for (uint64_t sum = n_bytes; sum <= load->grown_bytes && n < MAX_GROWN;
		     sum += n_bytes) {
			held[n++] = alloc(load, n_bytes, i == 0);
			n_bytes = draw(load);
		}
		while (n > 0) {
			give_back(load, held[--n]);
		}
	}
}

static void measure(const char *what, int argc, char **argv)
{
	struct load load;
	plan(&load);
	shimmed_open(&load.cu, argc, argv);
	shimmed_start_cuda(&load.cu);
	/* With the session, where there is one. */
	CUdeviceptr ptr;
	shimmed_must(load.cu.alloc(&ptr, 1024), "cuMemAlloc");
	shimmed_wait();
	if (strcmp(what, "churn") == 0) {
		churn(&load);
	} else {
		grow(&load);
	}
	shimmed_done();
}

/* ---- in the parent ---------------------------------------------------------------------------- */

static void run_crowd(enum shimmed_way way, const char *what, struct bench_samples *samples)
{
	struct shimmed children[N_PROCESSES];
	for (int i = 0; i < N_PROCESSES; i++) {
		shimmed_start(&children[i], way, what);
	}
	for (int i = 0; i < N_PROCESSES; i++) {
		shimmed_await(&children[i]);
	}
	for (int i = 0; i < N_PROCESSES; i++) {
		shimmed_let_go(&children[i]);
	}
	for (int i = 0; i < N_PROCESSES; i++) {
		shimmed_collect(&children[i], samples, N_NUMBERS);
	}
	for (int i = 0; i < N_PROCESSES; i++) {
		shimmed_end(&children[i]);
	}
}

static double us(struct bench_samples *samples, double percent)
{
	return (double)bench_percentile(samples, percent) / 1e3;
}

struct results {
	struct bench_samples samples[N_LOADS][SHIMMED_OFF][N_NUMBERS];
};

static void report(struct results *results, FILE *out)
{
	static const char *const names[N_NUMBERS] = {"cuMemAlloc", "cuMemFree",
	                                             "cuMemAlloc, the first time"};
	const char *before = "{\n";
	for (size_t i = 0; i < N_LOADS * N_NUMBERS; i++) {
		for (int way = 0; way < SHIMMED_OFF; way++) {
			struct bench_samples *samples =
				&results->samples[i / N_NUMBERS][way][i % N_NUMBERS];
			char label[64];
			if (samples->n == 0) {
				continue;
			}
			snprintf(label, sizeof(label), "%s, %s, %s", loads[i / N_NUMBERS],
			         names[i % N_NUMBERS], shimmed_ways[way]);
			bench_print_latency(label, samples);
			if (out) {
				fprintf(out,
				        "%s \"%s\": {\"p50_us\": %.2f, \"p90_us\": %.2f, "
				        "\"p99_us\": %.2f, \"max_us\": %.2f, \"n\": %zu}",
				        before, label, us(samples, 50), us(samples, 90),
				        us(samples, 99), us(samples, 100), samples->n);
				before = ",\n";
			}
		}
	}
	bench_print("target", "p99 under the shim: the driver's at most");
}

int main(int argc, char **argv)
{
	struct results results = {0};
	struct bench_daemon daemon;
	FILE *out = NULL;
	if (shimmed_what(argc, argv)) {
		measure(shimmed_what(argc, argv), argc, argv);
	}
	if (argc > 2 && strcmp(argv[1], "--out") == 0) {
		out = fopen(argv[2], "we");
		if (!out) {
			bench_fail("%s cannot be written", argv[2]);
		}
		argc -= 2;
		argv += 2;
	}
	unsigned n_runs = (unsigned)bench_number(argc, argv, 1, 3);
	bench_begin("shim crowd", "1x4GiB");
	if (bench_is_simulated()) {
		setenv("BENCH_SMALL", "1", 1);
	}
	bench_daemon_start(&daemon, "");
	for (unsigned i = 0; i < n_runs * N_LOADS; i++) {
		for (int way = 0; way < SHIMMED_OFF; way++) {
			run_crowd(way, loads[i % N_LOADS], results.samples[i % N_LOADS][way]);
		}
	}
	report(&results, out);
	if (out) {
		fputs("\n}\n", out);
		fclose(out);
	}
	for (size_t i = 0; i < N_LOADS * SHIMMED_OFF * N_NUMBERS; i++) {
		bench_samples_deinit(&results.samples[0][0][0] + i);
	}
	bench_daemon_stop(&daemon);
	return 0;
}
