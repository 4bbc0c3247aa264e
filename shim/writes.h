/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes by the driver's API to sealed memory (glake_seal()), which is read-only: the writer first gets
 * private copies, at the same addresses.
 *
 * The bodies of gates.c look, inside the gate, for sealed memory among the destinations of a call. While nothing is
 * sealed, that is one load. If they find some, the thread leaves the gate, has it
 * replaced, enters and looks again.
 *
 * A call that is captured writes nothing yet. It gets copies if that is possible during the capture (drain.h); if not,
 * the driver takes a set or a word, and refuses a copy. If the GPU has no room, the
 * private copy is in host memory (refuge.h). If that has no room either, or earlier work does not end, the write fails as an
 * allocation does, with CUDA_ERROR_OUT_OF_MEMORY: the old bytes stay.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_WRITES_H
#define GLAKE_SHIM_WRITES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "glake_shim.h"
#include "proto/cudrv.h"
#include "shim/gate.h"

static inline bool writes_are_watched(void)
{
	return __builtin_expect(atomic_load_explicit(&glake__sealed.n, memory_order_relaxed) > 0,
	                        0);
}

/* The bytes that a call writes to, from the first sealed one on; no bytes: nothing sealed. */
struct writes_span {
	CUdeviceptr ptr;
	uint64_t n_bytes;
};

/*
 * Find the span for each form of a call. Bytes between rows count as written; elements of an array count with their
 * largest size.
 */
struct writes_span writes_linear(CUdeviceptr dst, uint64_t n_bytes);
struct writes_span writes_rows(CUdeviceptr dst, uint64_t pitch, unsigned element_bytes,
                               uint64_t width, uint64_t height);
struct writes_span writes_copy_2d(const CUDA_MEMCPY2D *copy);
struct writes_span writes_copy_3d(const CUDA_MEMCPY3D *copy);
struct writes_span writes_copy_peer(const CUDA_MEMCPY3D_PEER *copy);
struct writes_span writes_batch(const CUdeviceptr *dsts, const size_t *sizes, size_t n);
struct writes_span writes_batch_3d(const CUDA_MEMCPY3D_BATCH_OP *ops, size_t n);
struct writes_span writes_batch_decompress(const CUmemDecompressParams *params, size_t n);
struct writes_span writes_batch_mem_op(const CUstreamBatchMemOpParams *ops, unsigned n);

/* The forms of calls that also tell their source. */
static inline struct writes_span writes_upload(CUdeviceptr dst, uint64_t n_bytes)
{
	return writes_linear(dst, n_bytes);
}
static inline struct writes_span writes_copy(CUdeviceptr dst, uint64_t n_bytes, CUdeviceptr src)
{
	(void)src;
	return writes_linear(dst, n_bytes);
}
static inline struct writes_span writes_copies(const CUdeviceptr *dsts, const size_t *sizes,
                                               size_t n, const CUdeviceptr *srcs)
{
	(void)srcs;
	return writes_batch(dsts, sizes, n);
}

/* Rows of @width bytes; a depth of 0: nothing is written. */
struct writes_rows {
	CUdeviceptr ptr;
	uint64_t pitch, layer; /* bytes from one row, or layer, to the next */
	uint64_t width, height, depth;
};

/* All bytes that are written to, sealed or not. */
struct writes_rows writes_rows_of_2d(const CUDA_MEMCPY2D *copy);
struct writes_rows writes_rows_of_3d(const CUDA_MEMCPY3D *copy);
struct writes_rows writes_rows_of_op(const CUDA_MEMCPY3D_BATCH_OP *op);
struct writes_span writes_all_rows(const struct writes_rows *rows);
struct writes_span writes_of_copy_peer(const CUDA_MEMCPY3D_PEER *copy);
struct writes_span writes_of_rows(CUdeviceptr dst, uint64_t pitch, unsigned element_bytes,
                                  uint64_t width, uint64_t height);
struct writes_span writes_of_copy_3d(const CUDA_MEMCPY3D *copy);
struct writes_span writes_of_mem_op(const CUstreamBatchMemOpParams *op);

/* @n_bytes, or if that is 0, all bytes of the allocation from @dst on. */
uint64_t writes_most_at(CUdeviceptr dst, uint64_t n_bytes);

/*
 * The thread leaves the gate, @span becomes private as far as it is one allocation's, and the thread is back
 * inside. True: look again. False: *result_out says whether the driver gets the call; with CUDA_SUCCESS it does.
 * *thread is NULL with an error if the program ends (gate_enter()).
 * @stream: the call's; NULL if it has none; @is_per_thread: its default stream is the thread's.
 */
bool writes_give_copies(struct gate_thread **thread, struct writes_span span, CUstream stream,
                        bool is_per_thread, CUresult *result_out);

/* Like writes_give_copies(), for a call without a stream that writes nothing yet. */
bool writes_give_copies_to(struct gate_thread **thread, struct writes_span span,
                           CUresult *result_out);

/*
 * The driver has refused a call with @result that was to write to @span, which is still sealed. A captured copy is told
 * that there is no memory for its private copy.
 */
CUresult writes_refused(CUresult result, struct writes_span span, CUstream stream,
                        bool is_per_thread);

/*
 * Outside the gate: make the part of one allocation in [ptr, ptr + n_bytes) private, so that it can be handed out.
 * CUDA_SUCCESS also if it is no memory of ours; CUDA_ERROR_OUT_OF_MEMORY.
 */
CUresult writes_unseal_to_name(CUdeviceptr ptr, uint64_t n_bytes);

/*
 * Outside the gate: make all of an allocation private. Waits for threads that are sealing it. 0; -EINVAL: it is gone; -EBUSY:
 * work on the GPU does not end; or another error of the library.
 */
int writes_make_private(CUdeviceptr ptr, uint64_t n_bytes);

/* Has [ptr, ptr + n_bytes) sealed memory that these two would make private? */
bool writes_have_sealed(CUdeviceptr ptr, uint64_t n_bytes);

#endif
