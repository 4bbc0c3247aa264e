/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two programs that stitch, under one quota that holds only one of them at its peak: how long it takes until memory
 * that one has freed and kept is the other one's. The first one sleeps meanwhile.
 *
 *   bench_phases [CHANGES] [GIB]
 *
 * GIB is the peak, 16 without it. Sizes are 1 to 700 MiB; between its peaks a program has an eighth of that.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/bench/shimmed.h"

#define MAX_HELD 4096u
#define MAX_MIB 700u
#define REST_PART 8u

enum number { ALLOC, CHANGE, N_NUMBERS };

/* ---- in the child ----------------------------------------------------------------------------- */

struct program {
	struct cu cu;
	CUstream stream;
	uint64_t random;
	uint64_t unit_bytes;
	unsigned n_held;
	CUdeviceptr held[MAX_HELD];
	/* To be sent in the end: until then the parent waits for other lines. */
	struct bench_samples numbers[N_NUMBERS];
};

static void hold(struct program *program, uint64_t n_units)
{
	for (unsigned i = 0; i < program->n_held; i++) {
		shimmed_must(program->cu.free_async(program->held[i], program->stream),
		             "cuMemFreeAsync");
	}
	program->n_held = 0;
	while (n_units > 0 && program->n_held < MAX_HELD) {
		uint64_t n = bench_random(&program->random) % MAX_MIB + 1;
		n = n < n_units ? n : n_units;
		n_units -= n;
		uint64_t begin_ns = bench_now_ns();
		shimmed_must(program->cu.alloc_async(&program->held[program->n_held++],
		                                     n * program->unit_bytes, program->stream),
		             "cuMemAllocAsync");
		bench_samples_add(&program->numbers[ALLOC], bench_now_ns() - begin_ns);
	}
	shimmed_must(program->cu.synchronize(), "cuCtxSynchronize");
}

static void measure(const char *what, int argc, char **argv)
{
	static struct program program = {.unit_bytes = MIB};
	unsigned n_changes = (unsigned)atoi(what);
	uint64_t n_units = 1024 * strtoull(strchr(what, 'x') + 1, NULL, 10);
	if (getenv("BENCH_SMALL")) {
		program.unit_bytes = 64 * KIB;
	}
	shimmed_open(&program.cu, argc, argv);
	shimmed_start_cuda(&program.cu);
	shimmed_must(program.cu.new_stream(&program.stream, CU_STREAM_NON_BLOCKING),
	             "cuStreamCreate");
	hold(&program, n_units / REST_PART);
	program.numbers[ALLOC].n = 0;
	for (unsigned i = 0; i < n_changes; i++) {
		shimmed_wait();
		uint64_t begin_ns = bench_now_ns();
		hold(&program, n_units);
		bench_samples_add(&program.numbers[CHANGE], bench_now_ns() - begin_ns);
		shimmed_wait();
		uint64_t n_allocs = program.numbers[ALLOC].n;
		hold(&program, n_units / REST_PART);
		program.numbers[ALLOC].n = n_allocs;
	}
	shimmed_wait();
	for (size_t number = 0; number < N_NUMBERS; number++) {
		for (size_t i = 0; i < program.numbers[number].n; i++) {
			shimmed_send(number, program.numbers[number].values[i]);
		}
	}
	shimmed_done();
}

/* ---- in the parent ---------------------------------------------------------------------------- */

static void next(struct shimmed *child)
{
	shimmed_let_go(child);
	shimmed_await(child);
}

static void print_changes(const struct bench_samples *changes)
{
	char text[512] = "";
	for (size_t i = 0; i < changes->n; i++) {
		size_t n = strlen(text);
		snprintf(text + n, sizeof(text) - n, " %.0f", (double)changes->values[i] / 1e6);
	}
	bench_print("ms for each change, in order", "%s", text);
}

int main(int argc, char **argv)
{
	struct bench_daemon daemon;
	struct shimmed children[2];
	struct bench_samples samples[N_NUMBERS] = {0};
	char what[32];
	char config[128];
	if (shimmed_what(argc, argv)) {
		measure(shimmed_what(argc, argv), argc, argv);
	}
	unsigned n_changes = (unsigned)bench_number(argc, argv, 1, 5);
	unsigned gib = (unsigned)bench_number(argc, argv, 2, 16);
	bench_begin("phases", "1x4GiB");
	uint64_t quota_bytes = gib * GIB / 2 * 3;
	if (bench_is_simulated()) {
		setenv("BENCH_SMALL", "1", 1);
		quota_bytes /= 16;
	}
	setenv("GLAKE_ALLOC", "stitch", 1);
	snprintf(what, sizeof(what), "%ux%u", n_changes, gib);
	snprintf(config, sizeof(config),
	         "tenants = ( { name = \"default\"; device_bytes = %lluL; } );\n",
	         (unsigned long long)quota_bytes);
	bench_daemon_start(&daemon, config);
	for (int i = 0; i < 2; i++) {
		shimmed_start(&children[i], SHIMMED_ON, what);
		shimmed_await(&children[i]);
	}
	for (unsigned i = 0; i < 2 * n_changes; i++) {
		next(&children[i % 2]);
		next(&children[i % 2]);
	}
	for (int i = 0; i < 2; i++) {
		shimmed_let_go(&children[i]);
		shimmed_collect(&children[i], samples, N_NUMBERS);
		print_changes(&samples[CHANGE]);
		samples[CHANGE].n = 0;
	}
	bench_print_latency("cuMemAllocAsync meanwhile", &samples[ALLOC]);
	for (int i = 0; i < 2; i++) {
		shimmed_end(&children[i]);
	}
	for (int i = 0; i < N_NUMBERS; i++) {
		bench_samples_deinit(&samples[i]);
	}
	bench_daemon_stop(&daemon);
	return 0;
}
