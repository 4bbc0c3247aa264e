/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/quiesce.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "proto/cleanup.h"

#define PROBE_BYTES 512
#define MAX_PROBES 256u
#define MAX_PAIRS 4096u /* of contexts of 64 devices: more than there are */

struct pair {
	CUcontext owner;
	CUcontext reader;
};

static atomic_int n_captures;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pair pairs[MAX_PAIRS];
static size_t n_pairs;
static atomic_bool has_pairs; /* stays set: peers are rare, and this spares all others the lock */

void quiesce_note_capture(int change)
{
	n_captures += change;
}

bool quiesce_is_capturing(void)
{
	return atomic_load_explicit(&n_captures, memory_order_relaxed) > 0;
}

/* ---- asking the driver ------------------------------------------------------------------------ */

/*
 * Freeing waits, and may be forbidden where allocating is not. So what was allocated to ask is kept
 * until no stream is captured any more.
 */
static CUdeviceptr probes[MAX_PROBES];
static size_t n_probes;
static atomic_bool has_probes;

static CUresult free_probes(void)
{
	CUdeviceptr taken[MAX_PROBES];
	pthread_mutex_lock(&lock);
	size_t n_taken = n_probes;
	memcpy(taken, probes, n_taken * sizeof(taken[0]));
	n_probes = 0;
	has_probes = false;
	pthread_mutex_unlock(&lock);
	CUresult result = CUDA_SUCCESS;
	for (size_t i = 0; i < n_taken; i++) {
		CUresult freed = real(cuMemFree_v2)(taken[i]);
		result = result == CUDA_SUCCESS ? freed : result;
	}
	return result;
}

static CUresult keep_probe(CUdeviceptr probe)
{
	pthread_mutex_lock(&lock);
	bool is_kept = n_probes < MAX_PROBES;
	if (is_kept) {
		probes[n_probes++] = probe;
		has_probes = true;
	}
	pthread_mutex_unlock(&lock);
	return is_kept ? CUDA_SUCCESS : real(cuMemFree_v2)(probe);
}

CUresult quiesce_ask_alloc(void)
{
	CUdeviceptr probe = 0;
	if (!quiesce_is_capturing()) {
		if (has_probes) {
			free_probes();
		}
		return CUDA_SUCCESS;
	}
	CUresult result = real(cuMemAlloc_v2)(&probe, PROBE_BYTES);
	return result == CUDA_SUCCESS ? keep_probe(probe) : result;
}

static CUresult ask_free(void)
{
	CUdeviceptr probe = 0;
	CUresult result = real(cuMemAlloc_v2)(&probe, PROBE_BYTES);
	return result == CUDA_SUCCESS ? real(cuMemFree_v2)(probe) : result;
}

/* ---- waiting ---------------------------------------------------------------------------------- */

static CUresult wait_for(CUcontext ctx)
{
	CUcontext current = NULL;
	CUresult result = real(cuCtxGetCurrent)(&current);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	if (current == ctx) {
		return real(cuCtxSynchronize)();
	}
	result = real(cuCtxPushCurrent_v2)(ctx);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	result = real(cuCtxSynchronize)();
	real(cuCtxPopCurrent_v2)(&current);
	return result;
}

static CUresult wait_for_readers(CUcontext ctx)
{
	CUcontext readers[SHIM_MAX_DEVICES];
	size_t n_readers = 0;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n_pairs && n_readers < n_elements(readers); i++) {
		if (pairs[i].owner == ctx) {
			readers[n_readers++] = pairs[i].reader;
		}
	}
	pthread_mutex_unlock(&lock);
	CUresult result = CUDA_SUCCESS;
	for (size_t i = 0; result == CUDA_SUCCESS && i < n_readers; i++) {
		result = wait_for(readers[i]);
	}
	return result;
}

CUresult quiesce_ctx(CUcontext ctx)
{
	if (quiesce_is_capturing()) {
		return ask_free();
	}
	CUresult result = wait_for(ctx);
	return result == CUDA_SUCCESS && has_pairs ? wait_for_readers(ctx) : result;
}

void quiesce_add_reader(CUcontext owner, CUcontext reader)
{
	pthread_mutex_lock(&lock);
	if (n_pairs < MAX_PAIRS) {
		pairs[n_pairs++] = (struct pair){.owner = owner, .reader = reader};
	}
	has_pairs = true;
	pthread_mutex_unlock(&lock);
}

void quiesce_drop_ctx(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	size_t n_kept = 0;
	for (size_t i = 0; i < n_pairs; i++) {
		if (pairs[i].owner != ctx && pairs[i].reader != ctx) {
			pairs[n_kept++] = pairs[i];
		}
	}
	n_pairs = n_kept;
	pthread_mutex_unlock(&lock);
}
