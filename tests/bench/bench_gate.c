/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the shim's gate costs: passing it, alone and behind fences (without membarrier), and closing it
 * while threads pass it without a pause. Launches of a kernel with ten pointers, without sealed memory in the
 * process and with some, in turns.
 *
 *   bench_gate [ROUNDS]
 *
 * Needs no GPU. More busy threads than cores say more of the scheduler than of the gate.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "glake_shim.h"
#include "shim/gate.h"
#include "shim/gates.h"
#include "shim/shim.h"
#include "tests/bench/bench.h"

#define N_PASSES 1000000u /* a batch */
#define N_BATCHES 25u
#define CLOSE_TIMEOUT_NS 10000000000u
#define MAX_BUSY 12

static atomic_bool is_over;

static int compare(const void *left, const void *right)
{
	double a = *(const double *)left;
	double b = *(const double *)right;
	return (a > b) - (a < b);
}

static void print_spread(const char *what, const char *unit, double *values, size_t n)
{
	qsort(values, n, sizeof(*values), compare);
	printf("%-34s %8.2f %s  (%.2f .. %.2f, p99 %.2f)\n", what, values[n / 2], unit, values[0],
	       values[n - 1], values[n * 99 / 100]);
}

static void pass(unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		gate_leave(gate_enter());
	}
}

static void measure_passing(const char *what)
{
	double ns[N_BATCHES];
	pass(N_PASSES);
	for (unsigned i = 0; i < N_BATCHES; i++) {
		uint64_t begin = bench_now_ns();
		pass(N_PASSES);
		ns[i] = (double)(bench_now_ns() - begin) / N_PASSES;
	}
	print_spread(what, "ns", ns, N_BATCHES);
}

static int do_nothing(void)
{
	return 0;
}

/* More arguments than any takes. */
typedef int any_call_fn(void *, void *, void *, void *, void *, void *, void *, void *, void *,
                        void *, void *, void *);

static any_call_fn *body_of(const char *symbol)
{
	size_t i = 0;
	while (strcmp(gated_calls[i].symbol, symbol) != 0) {
		i++;
	}
	*gated_calls[i].real = (void *)do_nothing;
	return (any_call_fn *)gated_calls[i].body;
}

/* Measures what the body of a gated call costs, the driver's part left out. */
static void measure_call(const char *symbol)
{
	double ns[N_BATCHES];
	any_call_fn *body = body_of(symbol);
	for (unsigned batch = 0; batch < N_BATCHES; batch++) {
		uint64_t begin = bench_now_ns();
		for (unsigned n = 0; n < N_PASSES; n++) {
			body(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
		}
		ns[batch] = (double)(bench_now_ns() - begin) / N_PASSES;
	}
	print_spread(symbol, "ns", ns, N_BATCHES);
}

#define PAGE GLAKE__PAGE_BYTES
#define BASE (1000 * PAGE)
#define N_PAGES 16u
#define N_POINTERS 10u

/* With one parameter, as large as they were before CUDA 12.1. */
#define LARGE_BYTES 4096u
static const CUfunction large = (CUfunction)32;
static const CUfunction small = (CUfunction)16;

static CUresult tell_name(const char **name, CUfunction function)
{
	*name = "kernel";
	return CUDA_SUCCESS;
}

static CUresult tell_param(CUfunction function, size_t i, size_t *offset, size_t *n_bytes)
{
	*offset = 8 * i;
	*n_bytes = function == large ? LARGE_BYTES : 8;
	return i < (function == large ? 1 : N_POINTERS) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static double time_launches(any_call_fn *body, CUfunction function, void **params)
{
	uint64_t begin = bench_now_ns();
	for (unsigned n = 0; n < N_PASSES; n++) {
		body(function, 0, 0, 0, 0, 0, 0, 0, 0, params, 0, 0);
	}
	return (double)(bench_now_ns() - begin) / N_PASSES;
}

/* Between two launches a program does so much else, in Python for instance, that little stays in the caches. */
#define OTHER_BYTES (2u << 20)
#define N_KERNELS 64u
#define N_COLD 2000u

static double time_cold_launches(any_call_fn *body, void **params, uint64_t *pointers)
{
	static unsigned char other[OTHER_BYTES];
	static double ns[N_COLD];
	for (unsigned n = 0; n < N_COLD; n++) {
		CUfunction function = (CUfunction)(uintptr_t)(16 * (100 + n % N_KERNELS));
		for (size_t at = 0; at < OTHER_BYTES; at += 64) {
			other[at]++;
		}
		/* They were just written. */
		for (unsigned i = 0; i < N_POINTERS; i++) {
			((void *volatile *)params)[i] = &pointers[i];
			((volatile uint64_t *)pointers)[i] = BASE + i * PAGE;
		}
		uint64_t begin = bench_now_ns();
		body(function, 0, 0, 0, 0, 0, 0, 0, 0, params, 0, 0);
		ns[n] = (double)(bench_now_ns() - begin);
	}
	qsort(ns, N_COLD, sizeof(*ns), compare);
	return ns[N_COLD / 2];
}

static void measure_cold_launches(any_call_fn *body, void **params, uint64_t *pointers)
{
	double plain_ns[N_BATCHES];
	double sealed_ns[N_BATCHES];
	for (unsigned i = 0; i < N_BATCHES; i++) {
		glake__sealed.n = 0;
		plain_ns[i] = time_cold_launches(body, params, pointers);
		glake__sealed.n = N_PAGES / 2;
		sealed_ns[i] = time_cold_launches(body, params, pointers);
	}
	glake__sealed.n = 0;
	print_spread("a launch behind other work", "ns", plain_ns, N_BATCHES);
	print_spread("the same, memory sealed", "ns", sealed_ns, N_BATCHES);
}

/* Every other pointer is to sealed memory. */
static void measure_launches(void)
{
	static _Atomic uint64_t entries[N_PAGES];
	uint64_t pointers[N_POINTERS];
	void *params[N_POINTERS];
	double plain_ns[N_BATCHES];
	double sealed_ns[N_BATCHES];
	double large_ns[N_BATCHES];
	static uint64_t words[LARGE_BYTES / 8];
	void *large_params[] = {words};
	any_call_fn *body = body_of("cuLaunchKernel");
	for (unsigned i = 0; i < N_PAGES; i++) {
		entries[i] = glake__page_entry(i % 2 ? GLAKE__PAGE_BLOCK : GLAKE__PAGE_CHUNK, NULL);
	}
	for (unsigned i = 0; i < N_POINTERS; i++) {
		pointers[i] = BASE + i * PAGE;
		params[i] = &pointers[i];
	}
	glake__pages.base = BASE;
	glake__pages.entries = entries;
	glake__pages.n_bytes = N_PAGES * PAGE;
	glake__sealed.base = BASE;
	glake__sealed.n_bytes = N_PAGES * PAGE;
	shim_real.real_cuFuncGetName = tell_name;
	shim_real.real_cuFuncGetParamInfo = tell_param;
	glake__sealed.n_sealings = 1;
	for (unsigned i = 0; i < N_BATCHES; i++) {
		glake__sealed.n = 0;
		plain_ns[i] = time_launches(body, small, params);
		glake__sealed.n = N_PAGES / 2;
		sealed_ns[i] = time_launches(body, small, params);
		large_ns[i] = time_launches(body, large, large_params);
	}
	glake__sealed.n = 0;
	print_spread("a launch, nothing sealed", "ns", plain_ns, N_BATCHES);
	print_spread("a launch, memory sealed", "ns", sealed_ns, N_BATCHES);
	print_spread("the same, of 4 KiB of parameters", "ns", large_ns, N_BATCHES);
	measure_cold_launches(body, params, pointers);
}

static void *be_busy(void *argument)
{
	while (!atomic_load_explicit(&is_over, memory_order_relaxed)) {
		pass(100);
	}
	return NULL;
}

static void measure_closing(int n_busy, unsigned n_rounds)
{
	pthread_t threads[MAX_BUSY];
	char what[64];
	double *us = calloc(n_rounds, sizeof(*us));
	atomic_store(&is_over, false);
	for (int i = 0; i < n_busy; i++) {
		if (pthread_create(&threads[i], NULL, be_busy, NULL) != 0) {
			bench_fail("no thread");
		}
	}
	usleep(10000);
	for (unsigned i = 0; us && i < n_rounds; i++) {
		uint64_t begin = bench_now_ns();
		if (gate_close(CLOSE_TIMEOUT_NS) < 0) {
			bench_fail("the gate does not close");
		}
		us[i] = (double)(bench_now_ns() - begin) / 1000;
		gate_open();
		usleep(200);
	}
	atomic_store(&is_over, true);
	for (int i = 0; i < n_busy; i++) {
		pthread_join(threads[i], NULL);
	}
	snprintf(what, sizeof(what), "close, %d busy threads", n_busy);
	print_spread(what, "us", us, n_rounds);
	free(us);
}

int main(int argc, char **argv)
{
	const unsigned n_rounds = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1000;
	if (n_rounds == 0) {
		fprintf(stderr, "usage: bench_gate [ROUNDS]\n");
		return EXIT_FAILURE;
	}
	if (gate_init() < 0) {
		bench_fail("the gate does not begin");
	}
	printf("gate, %ld cores%s\n", sysconf(_SC_NPROCESSORS_ONLN),
	       gate.state & GATE_FENCED ? ", no membarrier" : "");
	measure_passing("enter and leave");
	measure_call("cuMemcpyDtoD_v2");
	measure_call("cuLaunchKernel");
	measure_launches();
	measure_call("cuGraphLaunch");
	measure_closing(0, n_rounds);
	measure_closing(1, n_rounds);
	measure_closing(4, n_rounds);
	measure_closing(MAX_BUSY, n_rounds);
	atomic_store(&gate.state, GATE_FENCED);
	measure_passing("enter and leave, with fences");
	return EXIT_SUCCESS;
}
