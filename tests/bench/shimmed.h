/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring processes: the benchmark's own program again, as a program of others that knows the
 * driver alone. Each runs in one of three ways, and sends what it measured to its parent.
 *
 * What goes wrong ends the benchmark. Threads: the main thread.
 */
#ifndef GLAKE_BENCH_SHIMMED_H
#define GLAKE_BENCH_SHIMMED_H

#include <stdio.h>

#include "tests/bench/bench.h"

enum shimmed_way {
	SHIMMED_NOT, /* without the shim */
	SHIMMED_ON,  /* under it */
	SHIMMED_OFF, /* under it, switched off */
	SHIMMED_N_WAYS
};

extern const char *const shimmed_ways[SHIMMED_N_WAYS];

/* The driver's calls that the measuring processes make. */
struct cu {
	void *library;
#define CALL(name, symbol) __typeof__(symbol) *name;
#include "tests/bench/shimmed.def"
};

/* ---- in the parent ---------------------------------------------------------------------------- */

struct shimmed {
	pid_t pid;
	FILE *output;
	int go; /* the child's standard input */
};

/* Start ourselves with the arguments "--measure WHAT WAY". */
void shimmed_start(struct shimmed *child, enum shimmed_way way, const char *what);

/* Until the child is at its shimmed_wait(). */
void shimmed_await(struct shimmed *child);
void shimmed_let_go(struct shimmed *child);

/* Add all that the child sends, by number. It stays: the end of a process disturbs the others. */
void shimmed_collect(struct shimmed *child, struct bench_samples *samples, size_t n_numbers);

void shimmed_end(struct shimmed *child);

/* ---- in the child ----------------------------------------------------------------------------- */

/* Returns WHAT of "--measure WHAT WAY"; NULL in the parent. */
const char *shimmed_what(int argc, char **argv);

/* The driver, as a program finds it: the shim where there is one. Nothing is called yet. */
void shimmed_open(struct cu *cu, int argc, char **argv);

/* The real driver behind the shim of this process, after cuInit(). */
void shimmed_open_real(struct cu *cu);

/* cuInit() and the primary context of device 0. */
void shimmed_start_cuda(const struct cu *cu);

void shimmed_must(CUresult result, const char *what);
void shimmed_wait(void);
void shimmed_send(size_t number, uint64_t value);

/* All is sent. Ends with shimmed_end(), without the driver's own farewell. */
void __attribute__((noreturn)) shimmed_done(void);

#endif
