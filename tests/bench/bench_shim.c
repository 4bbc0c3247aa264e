/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the shim costs: the same calls in a process without it, with it, and with it switched off.
 *
 *   start      cuInit(), a context and the first cuMemAlloc(), from the first call on
 *   alloc      cuMemAlloc() and cuMemFree() as a pair, nothing running, by size
 *   async      cuMemAllocAsync() and cuMemFreeAsync() as a pair, on a stream of its own, nothing
 *              running, from a pool that keeps what is freed
 *   cold       cuMemAlloc() of 1 GiB, while all that came before is held
 *   info       cuMemGetInfo()
 *
 * And what an entry adds to a call that is not hooked. These are differences of a few ns, so the
 * same process calls the shim's entry and the driver's own by turns, in batches; each pair of
 * batches is one difference.
 *
 *   launch     an empty kernel
 *   current    cuCtxGetCurrent()
 *   version    cuDriverGetVersion()
 *
 *   bench_shim [--out FILE.json] [RUNS]
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/shimmed.h"

#define N_WARM 1000u
#define N_COLD 5u
#define N_INFOS 50u
#define N_BATCHES 1000u /* pairs of them */
#define N_LAUNCHES 500u /* a batch; fewer than the driver queues before it waits */
#define N_CALLS 20000u
#define N_RESAMPLES 2000u

static const char empty_kernel[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
				   ".visible .entry empty()\n{\n\tret;\n}\n";

/* All in ns. */
enum number {
	START,
	ALLOC_64_KIB,
	ALLOC_2_MIB,
	ALLOC_64_MIB,
	ASYNC_64_KIB,
	ASYNC_64_MIB,
	COLD_1_GIB,
	INFO,
	N_NUMBERS
};

static const struct {
	const char *name;
	const char *target;
} numbers[N_NUMBERS] = {
	[START] = {"start", "30 ms more than the driver"},
	[ALLOC_64_KIB] = {"alloc + free 64 KiB", ""},
	[ALLOC_2_MIB] = {"alloc + free 2 MiB", "2 us"},
	[ALLOC_64_MIB] = {"alloc + free 64 MiB", "2 us"},
	[ASYNC_64_KIB] = {"async alloc + free 64 KiB", "the driver"},
	[ASYNC_64_MIB] = {"async alloc + free 64 MiB", "the driver"},
	[COLD_1_GIB] = {"cold alloc 1 GiB", "150 us"},
	[INFO] = {"info", ""},
};

/* In batches, by turns: through the shim, and past it. In ns a batch. */
enum turn { LAUNCH, CURRENT, VERSION, N_TURNS };

static const struct {
	const char *name;
	unsigned n_calls;
} turns[N_TURNS] = {
	[LAUNCH] = {"launch", N_LAUNCHES},
	[CURRENT] = {"cuCtxGetCurrent", N_CALLS},
	[VERSION] = {"cuDriverGetVersion", N_CALLS},
};

/* ---- in the child: by itself ------------------------------------------------------------------ */

static void measure_start(const struct cu *cu)
{
	CUdeviceptr ptr;
	uint64_t begin_ns = bench_now_ns();
	shimmed_start_cuda(cu);
	shimmed_must(cu->alloc(&ptr, 1024), "cuMemAlloc");
	shimmed_send(START, bench_now_ns() - begin_ns);
}

static void measure_pairs(const struct cu *cu, enum number number, uint64_t n_bytes)
{
	for (unsigned i = 0; i < N_WARM; i++) {
		CUdeviceptr ptr;
		uint64_t begin_ns = bench_now_ns();
		shimmed_must(cu->alloc(&ptr, n_bytes), "cuMemAlloc");
		shimmed_must(cu->free(ptr), "cuMemFree");
		shimmed_send(number, bench_now_ns() - begin_ns);
	}
}

static void measure_async(const struct cu *cu, enum number number, uint64_t n_bytes)
{
	CUstream stream;
	CUmemoryPool pool;
	cuuint64_t keep_bytes = UINT64_MAX;
	shimmed_must(cu->new_stream(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	shimmed_must(cu->default_pool(&pool, 0), "cuDeviceGetDefaultMemPool");
	shimmed_must(cu->set_pool(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep_bytes),
	             "cuMemPoolSetAttribute");
	for (unsigned i = 0; i < N_WARM; i++) {
		CUdeviceptr ptr;
		uint64_t begin_ns = bench_now_ns();
		shimmed_must(cu->alloc_async(&ptr, n_bytes, stream), "cuMemAllocAsync");
		shimmed_must(cu->free_async(ptr, stream), "cuMemFreeAsync");
		shimmed_send(number, bench_now_ns() - begin_ns);
		if (i % 16 == 15) {
			shimmed_must(cu->synchronize(), "cuCtxSynchronize");
		}
	}
}

static void measure_cold(const struct cu *cu)
{
	CUdeviceptr ptrs[N_COLD];
	for (unsigned i = 0; i < N_COLD; i++) {
		uint64_t begin_ns = bench_now_ns();
		shimmed_must(cu->alloc(&ptrs[i], GIB), "cuMemAlloc of 1 GiB");
		shimmed_send(COLD_1_GIB, bench_now_ns() - begin_ns);
	}
	for (unsigned i = 0; i < N_COLD; i++) {
		shimmed_must(cu->free(ptrs[i]), "cuMemFree");
	}
}

static void measure_info(const struct cu *cu)
{
	for (unsigned i = 0; i < N_INFOS; i++) {
		size_t free_bytes;
		size_t total_bytes;
		uint64_t begin_ns = bench_now_ns();
		shimmed_must(cu->info(&free_bytes, &total_bytes), "cuMemGetInfo");
		shimmed_send(INFO, bench_now_ns() - begin_ns);
	}
}

static void measure_numbers(const struct cu *cu)
{
	measure_start(cu);
	measure_pairs(cu, ALLOC_64_KIB, 64 * KIB);
	measure_pairs(cu, ALLOC_2_MIB, 2 * MIB);
	measure_pairs(cu, ALLOC_64_MIB, 64 * MIB);
	measure_async(cu, ASYNC_64_KIB, 64 * KIB);
	measure_async(cu, ASYNC_64_MIB, 64 * MIB);
	measure_cold(cu);
	measure_info(cu);
}

/* ---- in the child: by turns ------------------------------------------------------------------- */

static uint64_t run_batch(const struct cu *cu, enum turn turn, CUfunction function)
{
	CUcontext ctx;
	int version;
	uint64_t begin_ns = bench_now_ns();
	for (unsigned i = 0; i < turns[turn].n_calls; i++) {
		if (turn == LAUNCH) {
			cu->launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
		} else if (turn == CURRENT) {
			cu->get_current(&ctx);
		} else {
			cu->get_version(&version);
		}
	}
	uint64_t spent_ns = bench_now_ns() - begin_ns;
	/* Also where a launch that failed is told. */
	shimmed_must(cu->synchronize(), "cuCtxSynchronize");
	return spent_ns;
}

/* Sends two batches a pair: the shim's at 2 * turn, the driver's at 2 * turn + 1. */
static void measure_turn(const struct cu *shim, const struct cu *driver, enum turn turn,
                         CUfunction function)
{
	run_batch(shim, turn, function);
	run_batch(driver, turn, function);
	for (unsigned i = 0; i < N_BATCHES; i++) {
		/* Who begins changes: a drift of the clock rate is nobody's. */
		bool is_shim_first = i % 2 == 0;
		uint64_t first_ns = run_batch(is_shim_first ? shim : driver, turn, function);
		uint64_t second_ns = run_batch(is_shim_first ? driver : shim, turn, function);
		shimmed_send(2 * turn, is_shim_first ? first_ns : second_ns);
		shimmed_send(2 * turn + 1, is_shim_first ? second_ns : first_ns);
	}
}

static void measure_turns(const struct cu *shim)
{
	struct cu driver;
	CUmodule module;
	CUfunction function = NULL;
	shimmed_start_cuda(shim);
	shimmed_open_real(&driver);
	if (shim->launch == driver.launch) {
		bench_fail("the entry of the shim is the driver's");
	}
	/* The simulator has no such kernel. */
	if (shim->load(&module, empty_kernel) == CUDA_SUCCESS &&
	    shim->get_function(&function, module, "empty") == CUDA_SUCCESS) {
		shimmed_must(shim->launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
		             "cuLaunchKernel");
		measure_turn(shim, &driver, LAUNCH, function);
	}
	measure_turn(shim, &driver, CURRENT, NULL);
	measure_turn(shim, &driver, VERSION, NULL);
}

/* ---- in the parent ---------------------------------------------------------------------------- */

struct results {
	struct bench_samples numbers[SHIMMED_N_WAYS][N_NUMBERS];
	struct bench_samples batches[2 * N_TURNS];
};

/* The time that the shim adds to a call, in ns. */
struct added {
	double median_ns;
	double low_ns; /* of the interval that has the median with 95 % */
	double high_ns;
	double driver_ns; /* a call of the driver's */
	size_t n;
};

static int compare_doubles(const void *a, const void *b)
{
	double left = *(const double *)a;
	double right = *(const double *)b;
	return (left > right) - (left < right);
}

static double median_of(double *values, size_t n)
{
	qsort(values, n, sizeof(values[0]), compare_doubles);
	return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/* The medians of samples of the differences, drawn with replacement. */
static void bootstrap(const double *differences, size_t n, struct added *added)
{
	uint64_t random = 1;
	double *drawn = calloc(n, sizeof(drawn[0]));
	double medians[N_RESAMPLES];
	for (unsigned i = 0; drawn && i < N_RESAMPLES; i++) {
		for (size_t j = 0; j < n; j++) {
			drawn[j] = differences[bench_random(&random) % n];
		}
		medians[i] = median_of(drawn, n);
	}
	if (!drawn) {
		bench_fail("no memory");
	}
	qsort(medians, N_RESAMPLES, sizeof(medians[0]), compare_doubles);
	added->low_ns = medians[N_RESAMPLES / 40];
	added->high_ns = medians[N_RESAMPLES - 1 - N_RESAMPLES / 40];
	free(drawn);
}

/* False if there is nothing of it. */
static bool add_up(struct bench_samples *batches, enum turn turn, struct added *added_out)
{
	struct bench_samples *shim = &batches[2 * turn];
	struct bench_samples *driver = &batches[2 * turn + 1];
	size_t n = shim->n;
	double *differences = calloc(n ? n : 1, sizeof(differences[0]));
	if (!differences || n == 0) {
		free(differences);
		return false;
	}
	for (size_t i = 0; i < n; i++) {
		differences[i] = ((double)shim->values[i] - (double)driver->values[i]) /
		                 turns[turn].n_calls;
	}
	*added_out = (struct added){.n = n};
	bootstrap(differences, n, added_out);
	added_out->median_ns = median_of(differences, n);
	added_out->driver_ns = (double)bench_percentile(driver, 50) / turns[turn].n_calls;
	free(differences);
	return true;
}

static double us(struct bench_samples *samples, double percent)
{
	return (double)bench_percentile(samples, percent) / 1e3;
}

static void write_samples(FILE *out, const char *name, struct bench_samples *samples,
                          const char *after)
{
	fprintf(out, "\"%s\": {\"p50_us\": %.3f, \"p90_us\": %.3f, \"p99_us\": %.3f, \"n\": %zu}%s",
	        name, us(samples, 50), us(samples, 90), us(samples, 99), samples->n, after);
}

static void write_json(const char *path, struct results *results, const struct added *added)
{
	FILE *out = fopen(path, "we");
	if (!out) {
		bench_fail("%s cannot be written", path);
	}
	fputs("{\n", out);
	for (size_t i = 0; i < N_NUMBERS; i++) {
		fprintf(out, " \"%s\": {", numbers[i].name);
		for (int way = 0; way < SHIMMED_N_WAYS; way++) {
			write_samples(out, shimmed_ways[way], &results->numbers[way][i],
			              way + 1 < SHIMMED_N_WAYS ? ", " : "},\n");
		}
	}
	for (size_t i = 0; i < N_TURNS; i++) {
		fprintf(out,
		        " \"%s added\": {\"median_ns\": %.2f, \"low_ns\": %.2f, \"high_ns\": %.2f, "
		        "\"driver_ns\": %.2f, \"n\": %zu}%s\n",
		        turns[i].name, added[i].median_ns, added[i].low_ns, added[i].high_ns,
		        added[i].driver_ns, added[i].n, i + 1 < N_TURNS ? "," : "");
	}
	fputs("}\n", out);
	fclose(out);
}

static void print_results(struct results *results, const struct added *added)
{
	for (size_t i = 0; i < N_NUMBERS; i++) {
		struct bench_samples *driver = &results->numbers[SHIMMED_NOT][i];
		struct bench_samples *shim = &results->numbers[SHIMMED_ON][i];
		struct bench_samples *off = &results->numbers[SHIMMED_OFF][i];
		bench_print(numbers[i].name,
		            "p50, p90: driver %.2f, %.2f  shim %.2f, %.2f  off %.2f, %.2f us%s%s%s",
		            us(driver, 50), us(driver, 90), us(shim, 50), us(shim, 90), us(off, 50),
		            us(off, 90), *numbers[i].target ? "  (target " : "", numbers[i].target,
		            *numbers[i].target ? ")" : "");
	}
	for (size_t i = 0; i < N_TURNS; i++) {
		if (added[i].n > 0) {
			bench_print(turns[i].name,
			            "driver %.1f ns, the shim adds %.2f (%.2f .. %.2f with 95 %%, "
			            "%zu pairs)  (target 10)",
			            added[i].driver_ns, added[i].median_ns, added[i].low_ns,
			            added[i].high_ns, added[i].n);
		}
	}
}

static void free_results(struct results *results)
{
	for (int way = 0; way < SHIMMED_N_WAYS; way++) {
		for (size_t i = 0; i < N_NUMBERS; i++) {
			bench_samples_deinit(&results->numbers[way][i]);
		}
	}
	for (size_t i = 0; i < 2 * N_TURNS; i++) {
		bench_samples_deinit(&results->batches[i]);
	}
}

static void measure(const char *what, int argc, char **argv)
{
	struct cu cu;
	shimmed_open(&cu, argc, argv);
	if (strcmp(what, "numbers") == 0) {
		measure_numbers(&cu);
	} else {
		measure_turns(&cu);
	}
	shimmed_done();
}

int main(int argc, char **argv)
{
	struct results results = {0};
	struct added added[N_TURNS] = {0};
	struct bench_daemon daemon;
	struct shimmed child;
	const char *out = NULL;
	if (shimmed_what(argc, argv)) {
		measure(shimmed_what(argc, argv), argc, argv);
	}
	if (argc > 2 && strcmp(argv[1], "--out") == 0) {
		out = argv[2];
		argc -= 2;
		argv += 2;
	}
	unsigned n_runs = (unsigned)bench_number(argc, argv, 1, 7);
	bench_begin("shim", "1x8GiB");
	bench_daemon_start(&daemon, "");
	for (unsigned i = 0; i < n_runs; i++) {
		for (int way = 0; way < SHIMMED_N_WAYS; way++) {
			shimmed_start(&child, way, "numbers");
			shimmed_collect(&child, results.numbers[way], N_NUMBERS);
			shimmed_end(&child);
		}
	}
	shimmed_start(&child, SHIMMED_ON, "turns");
	shimmed_collect(&child, results.batches, 2 * N_TURNS);
	shimmed_end(&child);
	for (size_t i = 0; i < N_TURNS; i++) {
		add_up(results.batches, i, &added[i]);
	}
	print_results(&results, added);
	if (out) {
		write_json(out, &results, added);
	}
	free_results(&results);
	bench_daemon_stop(&daemon);
	return 0;
}
