/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that a test brings along: a struct cudasim_image is an image for cuModuleLoadData() and
 * cuLibraryLoadData(), so it passes through everything that stands between a program and the driver.
 *
 * A kernel is a C function. It runs once for each launch, on the thread of its stream, and touches
 * memory only by the functions of its struct cudasim_run. Those look at the mappings as the device
 * does: a forbidden access is CUDA_ERROR_ILLEGAL_ADDRESS, and the context is lost.
 * A kernel may wait for anything, and no other stream waits for it.
 *
 * Owner:    the test; the image and what it points to stay as they are until the process ends.
 * Lifetime: a struct cudasim_run lives as long as its launch runs.
 * Threads:  launches on different streams run at the same time.
 */
#ifndef CUDASIM_KERNEL_IMAGE_H
#define CUDASIM_KERNEL_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define CUDASIM_IMAGE_MAGIC "cudasim kernels" /* with its NUL, 16 bytes */
#define CUDASIM_MAX_PARAMS 16

struct cudasim_run {
	/*
	 * Any alignment and length. False: the access is forbidden, or the context is lost already; the kernel has
	 * to return. Words of 4 or 8 bytes at their natural alignment are read and written at once,
	 * and order accesses before and after, as with __threadfence_system().
	 */
	bool (*load)(const struct cudasim_run *run, uint64_t addr, void *value_out, size_t bytes);
	bool (*store)(const struct cudasim_run *run, uint64_t addr, const void *value,
	              size_t bytes);
	unsigned grid[3];
	unsigned block[3];
	unsigned shared_bytes;
};

struct cudasim_kernel {
	const char *name;
	/* @params: each at its natural alignment (16 at most), so a struct with these members. */
	void (*run)(const struct cudasim_run *run, const void *params);
	unsigned n_params;
	uint16_t param_bytes[CUDASIM_MAX_PARAMS];
};

/* A __device__ variable: zeroed memory of the module, for cuModuleGetGlobal(). */
struct cudasim_global {
	const char *name;
	size_t bytes;
};

struct cudasim_image {
	char magic[16];
	unsigned n_kernels;
	unsigned n_globals;
	const struct cudasim_kernel *kernels;
	const struct cudasim_global *globals;
};

/* Polls until the word is @value; false: the kernel has to return. */
static inline bool cudasim_await(const struct cudasim_run *run, uint64_t addr, uint32_t value)
{
	const struct timespec pause = {.tv_nsec = 50000};
	uint32_t now;

	while (run->load(run, addr, &now, sizeof(now))) {
		if (now == value) {
			return true;
		}
		nanosleep(&pause, NULL);
	}
	return false;
}

#endif
