/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts for glake_shim.h which pages copies from the host have filled, and which the driver's API has written otherwise.
 * The forms of calls are those of writes.h. The bodies of gates.c count inside the gate, before the call.
 *
 * A captured call (@is_captured) writes whenever its graph runs, so its pages do not count as filled once.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_FILLS_H
#define GLAKE_SHIM_FILLS_H

#include "shim/graphs.h"
#include "shim/guard.h"
#include "shim/writes.h"

void fills_upload(bool is_captured, CUdeviceptr dst, uint64_t n_bytes);
void fills_copy(bool is_captured, CUdeviceptr dst, uint64_t n_bytes, CUdeviceptr src);
void fills_linear(bool is_captured, CUdeviceptr dst, uint64_t n_bytes);
void fills_rows(bool is_captured, CUdeviceptr dst, uint64_t pitch, unsigned element_bytes,
                uint64_t width, uint64_t height);
void fills_copy_2d(bool is_captured, const CUDA_MEMCPY2D *copy);
void fills_copy_3d(bool is_captured, const CUDA_MEMCPY3D *copy);
void fills_copy_peer(bool is_captured, const CUDA_MEMCPY3D_PEER *copy);
void fills_copies(bool is_captured, const CUdeviceptr *dsts, const size_t *sizes, size_t n,
                  const CUdeviceptr *srcs);
void fills_batch_3d(bool is_captured, const CUDA_MEMCPY3D_BATCH_OP *ops, size_t n);
void fills_batch_decompress(bool is_captured, const CUmemDecompressParams *params, size_t n);
void fills_batch_mem_op(bool is_captured, const CUstreamBatchMemOpParams *ops, unsigned n);
/* Counts no writes: those of a graph are counted when it is made (graphs.c). */
static inline void fills_graph(bool is_captured, CUgraphExec exec)
{
	(void)is_captured;
	(void)exec;
	if (guard_is_awake()) {
		guard_note_launch();
	}
}

#endif
