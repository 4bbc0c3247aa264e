/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The multiprocessors of a device, which kernels share. As on a GPU, a kernel whose threads fill them all keeps others out
 * until it ends. Sets, and copies within a device, are kernels of the driver.
 *
 * Each process has all multiprocessors for itself, because a GPU gives processes turns.
 */
#include "work.h"

#include <pthread.h>
#include <time.h>

#define N_THREADS (132u * 2048u)
#define PAUSE_NS 1000000

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t n_taken[SIM_MAX_DEVICES];

static uint64_t try_to_take(unsigned device, uint64_t n_threads)
{
	pthread_mutex_lock(&lock);
	uint64_t n_free = N_THREADS - n_taken[device];
	uint64_t n = n_threads < n_free ? n_threads : n_free;
	n_taken[device] += n;
	pthread_mutex_unlock(&lock);
	return n;
}

uint64_t sms_take(struct ctx *ctx, uint64_t n_threads)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint64_t n;

	while ((n = try_to_take(ctx->device, n_threads)) == 0 &&
	       atomic_load(&ctx->poison) == CUDA_SUCCESS) {
		nanosleep(&pause, NULL);
	}
	return n;
}

void sms_give(const struct ctx *ctx, uint64_t n_threads)
{
	pthread_mutex_lock(&lock);
	n_taken[ctx->device] -= n_threads;
	pthread_mutex_unlock(&lock);
}
