/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the programs toolkit_*.c, which use one library of the toolkit each and print all that it
 * computed, to be compared with and without the shim.
 */
#ifndef GLAKE_TESTS_SHIM_TOOLKIT_H
#define GLAKE_TESTS_SHIM_TOOLKIT_H

#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/shim/compared.h"

/* Every library's success is 0. */
#define must_do(call) \
	do { \
		int must_do_status_ = (int)(call); \
		if (must_do_status_ != 0) { \
			fprintf(stderr, "%s:%d: %s: status %d\n", __FILE__, __LINE__, #call, \
			        must_do_status_); \
			_exit(1); \
		} \
	} while (0)

static inline void *device_bytes(size_t n_bytes)
{
	void *ptr = NULL;
	must_do(cudaMalloc(&ptr, n_bytes));
	return ptr;
}

static inline void *device_copy(const void *host, size_t n_bytes)
{
	void *ptr = device_bytes(n_bytes);
	must_do(cudaMemcpy(ptr, host, n_bytes, cudaMemcpyHostToDevice));
	return ptr;
}

/* Numbers in (-1, 1), the same in each run. */
static inline float *numbers(size_t n, uint64_t seed)
{
	float *list = malloc(n * sizeof(*list));
	must(list);
	for (size_t i = 0; i < n; i++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		list[i] = (float)(int32_t)(seed >> 32) / 2147483648.0f;
	}
	return list;
}

/* Prints the digest of what is on the device, and frees it. */
static inline void print_device(const char *what, void *ptr, size_t n_bytes)
{
	must_do(cudaDeviceSynchronize());
	print(what, digest((CUdeviceptr)ptr, n_bytes));
	must_do(cudaFree(ptr));
}

#endif
