/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/fills.h"

#include "shim/shim.h"

/* At most this many rows are counted one by one. */
#define MAX_ROWS (1u << 20)

/* The driver takes device addresses for host addresses as well. It does not know pageable memory. */
static bool is_host(CUdeviceptr src)
{
	CUmemorytype type = CU_MEMORYTYPE_HOST;
	CUresult result = real(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, src);
	return result != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST;
}

static bool is_of_host(CUmemorytype type, CUdeviceptr src)
{
	return type == CU_MEMORYTYPE_HOST || (type == CU_MEMORYTYPE_UNIFIED && is_host(src));
}

void fills_linear(bool is_captured, CUdeviceptr dst, uint64_t n_bytes)
{
	(void)is_captured;
	glake__fill_written(dst, n_bytes);
}

void fills_upload(bool is_captured, CUdeviceptr dst, uint64_t n_bytes)
{
	(is_captured ? glake__fill_written : glake__fill_copied)(dst, n_bytes);
}

/* The driver is asked only where the answer matters. */
void fills_copy(bool is_captured, CUdeviceptr dst, uint64_t n_bytes, CUdeviceptr src)
{
	fills_upload(is_captured || !glake__fill_is_open(dst, n_bytes) || !is_host(src), dst,
	             n_bytes);
}

void fills_rows(bool is_captured, CUdeviceptr dst, uint64_t pitch, unsigned element_bytes,
                uint64_t width, uint64_t height)
{
	struct writes_span all = writes_of_rows(dst, pitch, element_bytes, width, height);
	(is_captured ? glake__fill_written : glake__fill_set)(all.ptr, all.n_bytes);
}

static void fill_rows(const struct writes_rows *rows, bool is_upload)
{
	if (rows->depth == 0) {
		return;
	}
	if (!is_upload || rows->height > MAX_ROWS || rows->depth > MAX_ROWS / rows->height) {
		struct writes_span all = writes_all_rows(rows);
		glake__fill_written(all.ptr, all.n_bytes);
		return;
	}
	for (uint64_t z = 0; z < rows->depth; z++) {
		for (uint64_t y = 0; y < rows->height; y++) {
			glake__fill_copied(rows->ptr + z * rows->layer + y * rows->pitch,
			                   rows->width);
		}
	}
}

void fills_copy_2d(bool is_captured, const CUDA_MEMCPY2D *copy)
{
	if (copy) {
		struct writes_rows rows = writes_rows_of_2d(copy);
		fill_rows(&rows, !is_captured && is_of_host(copy->srcMemoryType, copy->srcDevice));
	}
}

void fills_copy_3d(bool is_captured, const CUDA_MEMCPY3D *copy)
{
	if (copy) {
		struct writes_rows rows = writes_rows_of_3d(copy);
		fill_rows(&rows, !is_captured && is_of_host(copy->srcMemoryType, copy->srcDevice));
	}
}

void fills_copy_peer(bool is_captured, const CUDA_MEMCPY3D_PEER *copy)
{
	if (copy) {
		struct writes_span all = writes_of_copy_peer(copy);
		fills_linear(is_captured, all.ptr, all.n_bytes);
	}
}

void fills_copies(bool is_captured, const CUdeviceptr *dsts, const size_t *sizes, size_t n,
                  const CUdeviceptr *srcs)
{
	for (size_t i = 0; dsts && sizes && srcs && i < n; i++) {
		fills_copy(is_captured, dsts[i], sizes[i], srcs[i]);
	}
}

void fills_batch_3d(bool is_captured, const CUDA_MEMCPY3D_BATCH_OP *ops, size_t n)
{
	for (size_t i = 0; ops && i < n; i++) {
		struct writes_rows rows = writes_rows_of_op(&ops[i]);
		fill_rows(&rows, !is_captured &&
		                         ops[i].src.type == CU_MEMCPY_OPERAND_TYPE_POINTER &&
		                         is_host(ops[i].src.op.ptr.ptr));
	}
}

void fills_batch_decompress(bool is_captured, const CUmemDecompressParams *params, size_t n)
{
	for (size_t i = 0; params && i < n; i++) {
		CUdeviceptr dst = (CUdeviceptr)(uintptr_t)params[i].dst;
		fills_linear(is_captured, dst, writes_most_at(dst, params[i].dstNumBytes));
		fills_linear(is_captured, (CUdeviceptr)(uintptr_t)params[i].dstActBytes,
		             sizeof(*params[i].dstActBytes));
	}
}

void fills_batch_mem_op(bool is_captured, const CUstreamBatchMemOpParams *ops, unsigned n)
{
	for (unsigned i = 0; ops && i < n; i++) {
		struct writes_span all = writes_of_mem_op(&ops[i]);
		fills_linear(is_captured, all.ptr, all.n_bytes);
	}
}
