/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/kernels.h"

/* Several times what can be resident, so that the last blocks even out; a loop takes the rest. */
#define BLOCKS_PER_PROCESSOR 64

/* The fatbin, embedded by the Makefile. */
extern const unsigned char digest_image[];

CUresult kernels_load(struct kernels *kernels, const struct cudrv *drv, CUdevice device)
{
	struct kernels loaded = {.drv = drv};
	int n_processors;
	CUresult result = drv->cuDeviceGetAttribute(
		&n_processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	loaded.n_processors = n_processors > 0 ? (unsigned)n_processors : 1;
	result = drv->cuModuleLoadData(&loaded.module, digest_image);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	const struct {
		CUfunction *function;
		const char *name;
	} names[] = {
		{&loaded.leaves, "glake_digest_leaves"},
		{&loaded.roots, "glake_digest_roots"},
		{&loaded.compare, "glake_compare"},
	};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		result = drv->cuModuleGetFunction(names[i].function, loaded.module, names[i].name);
		if (result != CUDA_SUCCESS) {
			drv->cuModuleUnload(loaded.module);
			return result;
		}
	}
	*kernels = loaded;
	return CUDA_SUCCESS;
}

void kernels_unload(struct kernels *kernels)
{
	if (kernels->module) {
		kernels->drv->cuModuleUnload(kernels->module);
		kernels->module = NULL;
	}
}

static CUresult launch(const struct kernels *kernels, CUfunction function, uint64_t n_threads,
                       unsigned block_threads, CUstream stream, void **parameters)
{
	uint64_t n_blocks = (n_threads + block_threads - 1) / block_threads;
	uint64_t most = (uint64_t)kernels->n_processors * BLOCKS_PER_PROCESSOR;
	if (n_blocks > most) {
		n_blocks = most;
	}
	if (n_blocks == 0) {
		n_blocks = 1;
	}
	return kernels->drv->cuLaunchKernel(function, (unsigned)n_blocks, 1, 1, block_threads, 1, 1,
	                                    0, stream, parameters, NULL);
}

CUresult kernels_leaves(const struct kernels *kernels, CUstream stream, CUdeviceptr base,
                        uint64_t n_leaves, CUdeviceptr leaves_out)
{
	void *parameters[] = {&base, &n_leaves, &leaves_out};
	return launch(kernels, kernels->leaves, n_leaves * 4, KERNEL_LEAVES_THREADS, stream,
	              parameters);
}

CUresult kernels_roots(const struct kernels *kernels, CUstream stream, CUdeviceptr items,
                       uint32_t n_items)
{
	void *parameters[] = {&items, &n_items};
	return launch(kernels, kernels->roots, (uint64_t)n_items * 4, KERNEL_ROOTS_THREADS, stream,
	              parameters);
}

CUresult kernels_compare(const struct kernels *kernels, CUstream stream, CUdeviceptr a,
                         CUdeviceptr b, uint64_t n_bytes, CUdeviceptr differs_out)
{
	void *parameters[] = {&a, &b, &n_bytes, &differs_out};
	return launch(kernels, kernels->compare, n_bytes / 16, KERNEL_COMPARE_THREADS, stream,
	              parameters);
}
