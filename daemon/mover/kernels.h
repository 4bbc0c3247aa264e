/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of digest.cu and how they are launched. Shared by the mover, its benchmark and, for
 * the constants and the item, the kernels themselves.
 *
 * Owner: struct kernels belongs to whoever loaded it, and to the context that was current then.
 * Lifetime: kernels_load() to kernels_unload(); never beyond its context.
 * Threads: read-only once loaded; the launches may come from any thread with that context current.
 */
#ifndef GLAKE_MOVER_KERNELS_H
#define GLAKE_MOVER_KERNELS_H

#include <stdint.h>

#define KERNEL_LEAVES_THREADS 128
#define KERNEL_ROOTS_THREADS 32
#define KERNEL_COMPARE_THREADS 256

/* The argument of glake_digest_roots(), in device memory. All addresses are multiples of 16. */
struct kernel_root_item {
	uint64_t leaves;
	uint64_t n_leaves; /* a multiple of 256 */
	uint64_t content_bytes;
	uint64_t root_out;
};

#ifndef __CUDACC__
#include "proto/cudrv.h"

struct kernels {
	const struct cudrv *drv; /* borrowed */
	unsigned n_processors;
	CUmodule module;
	CUfunction leaves;
	CUfunction roots;
	CUfunction compare;
};

/* Load into the current context, which is @device's. */
CUresult kernels_load(struct kernels *kernels, const struct cudrv *drv, CUdevice device);
/* The context of the loading is current, and none of the kernels runs. */
void kernels_unload(struct kernels *kernels);

/* Queue the hashes of @n_leaves leaves at @base; 16 bytes each to @leaves_out. */
CUresult kernels_leaves(const struct kernels *kernels, CUstream stream, CUdeviceptr base,
                        uint64_t n_leaves, CUdeviceptr leaves_out);
/* Queue the roots of @n_items struct kernel_root_item at @items. */
CUresult kernels_roots(const struct kernels *kernels, CUstream stream, CUdeviceptr items,
                       uint32_t n_items);
/* Queue a comparison of [a, a + n_bytes) and [b, ...), both multiples of 16. The uint32 at
 * @differs_out becomes 1 if they differ, and is left alone else. */
CUresult kernels_compare(const struct kernels *kernels, CUstream stream, CUdeviceptr a,
                         CUdeviceptr b, uint64_t n_bytes, CUdeviceptr differs_out);
#endif
#endif
