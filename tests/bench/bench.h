/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks share: the driver to run on, a glaked of their own, and printing.
 *
 * A benchmark is a program that ends on the first thing that goes wrong (bench_fail), so these
 * functions return nothing to check. Numbers are printed and never judged; targets are printed
 * beside them.
 *
 *   GLAKED         the daemon's program; without it ../../bin/glaked beside the benchmark
 *   GLAKE_LIBCUDA  the driver; empty: the system's; unset: the system's if it has a device, else
 *                  the simulator beside the benchmark
 *
 * Threads: the main thread, which is also the one whose end takes the daemon along.
 */
#ifndef GLAKE_BENCH_BENCH_H
#define GLAKE_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/cudrv.h"

#define KIB 1024ull
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

/*
 * First of all: makes the folder, chooses the driver, raises the limit on fds, prints a headline.
 * @sim_devices: CUDASIM_DEVICES, for when it is the simulator and the caller of us set none.
 */
void bench_begin(const char *name, const char *sim_devices);

/* Whether the driver is the simulator. */
bool bench_is_simulated(void);

/* The benchmark's own folder, removed at its end. */
const char *bench_folder(void);

void __attribute__((noreturn, format(printf, 1, 2))) bench_fail(const char *format, ...);

/* Argument @i, a number greater than 0, or @fallback if there is none. Anything else ends us. */
double bench_number(int argc, char **argv, int i, double fallback);

/* Ends with glake_error() when @err is an error of the client library. */
void bench_check(int err, const char *what);

/* Monotonic. */
uint64_t bench_now_ns(void);

/* A reproducible random number, the next of *state. */
uint64_t bench_random(uint64_t *state);

/* ---- a daemon -------------------------------------------------------------------------------- */

struct bench_daemon {
	pid_t pid;
	char socket_path[108];
	uint64_t start_ns; /* from fork() to READY=1 */
};

/*
 * Start glaked with @config (the text of a config file, "" = defaults) and wait until it says that
 * it is ready. One at a time. It dies with us.
 */
void bench_daemon_start(struct bench_daemon *daemon, const char *config);

/*
 * SIGTERM, and wait. All sessions of ours must be gone. glaked checks on its way out that every
 * charge is paid back: a status that is not 0 ends the benchmark with the daemon's log.
 */
void bench_daemon_stop(struct bench_daemon *daemon);

/* Memory and fds of a process, as the kernel tells. */
struct bench_process {
	uint64_t rss_bytes;
	uint64_t pss_bytes;
	/* Dirty ones only: a clean page of a file is private or not as other processes have it. */
	uint64_t private_bytes;
	uint64_t n_fds;
};

struct bench_process bench_process_now(pid_t pid);

/* As bench_process_now(), once fds and pages have stopped moving: after its start glaked fills its pool. */
struct bench_process bench_process_calm(pid_t pid);

/* ---- numbers --------------------------------------------------------------------------------- */

/* Times, or anything else to be counted in parts of a whole. {0} is empty. */
struct bench_samples {
	uint64_t *values; /* owned */
	size_t n;
	size_t capacity;
};

void bench_samples_add(struct bench_samples *samples, uint64_t value);
void bench_samples_deinit(struct bench_samples *samples);

/* The value below which @percent of the samples lie. Sorts them. */
uint64_t bench_percentile(struct bench_samples *samples, double percent);

/* "label   p50 .. p90 .. p99 .. max .. us (n)": of many small times in ns. */
void bench_print_latency(const char *label, struct bench_samples *samples);

/* "label   median (min .. max) unit, n runs", each value divided by @divisor. */
void bench_print_runs(const char *label, struct bench_samples *samples, double divisor,
                      const char *unit);

/* One line: the label in its column, then the text. */
void __attribute__((format(printf, 2, 3))) bench_print(const char *label, const char *format, ...);

/* ---- the driver ------------------------------------------------------------------------------ */

/* Open the driver in this process and make the primary context of device 0 current. */
void bench_open_cuda(struct cudrv *drv);

/* Ends when a driver call failed. */
void bench_check_cuda(const struct cudrv *drv, CUresult result, const char *what);

#endif
