/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of rows. Their ranges are checked when they are submitted, and again, in pieces, as they run.
 */
#include "work.h"

/* The view for the rows of a side. Memory that was mapped must not be taken for host memory once it is unmapped. */
static enum space_view view_of(const struct copy_side *side)
{
	return side->is_pageable ? SPACE_BY_API : SPACE_BY_ENGINE;
}

/* Called with the space locked. Returns how much was copied; 0: the memory is not reachable any more. */
static uint64_t copy_piece(const struct copy *copy, uint64_t dst, uint64_t src, uint64_t bytes,
                           unsigned device)
{
	uint64_t n = bytes < SIM_PIECE_BYTES ? bytes : SIM_PIECE_BYTES;
	uint8_t *to;
	uint8_t *from;

	if (!space_resolve(dst, n, SPACE_WRITE, view_of(&copy->dst), device, &to, &n) ||
	    !space_resolve(src, n, SPACE_READ, view_of(&copy->src), device, &from, &n)) {
		return 0;
	}
	bytes_move(to, from, n);
	return n;
}

static bool copy_row(const struct copy *copy, uint64_t dst, uint64_t src, unsigned device)
{
	uint64_t left = copy->width;

	while (left > 0) {
		space_lock_read();
		uint64_t n = copy_piece(copy, dst, src, left, device);
		space_unlock();
		if (n == 0) {
			return false;
		}
		dst += n;
		src += n;
		left -= n;
	}
	return true;
}

static uint64_t row_of(const struct copy_side *side, uint64_t y, uint64_t z)
{
	return side->addr + y * side->pitch + z * side->slice;
}

CUresult copy_run(struct ctx *ctx, const struct copy *copy)
{
	for (uint64_t z = 0; z < copy->depth; z++) {
		for (uint64_t y = 0; y < copy->height; y++) {
			if (!copy_row(copy, row_of(&copy->dst, y, z), row_of(&copy->src, y, z),
			              ctx->device)) {
				return CUDA_ERROR_ILLEGAL_ADDRESS;
			}
		}
	}
	return CUDA_SUCCESS;
}

static bool is_side_good(const struct copy *copy, const struct copy_side *side,
                         enum space_access want, unsigned device)
{
	if (side->is_device && side->is_pageable) {
		return false;
	}
	for (uint64_t z = 0; z < copy->depth; z++) {
		for (uint64_t y = 0; y < copy->height; y++) {
			if (!space_check(row_of(side, y, z), copy->width, want, SPACE_BY_API,
			                 device) ||
			    (!copy->is_peer &&
			     !space_is_open_to(row_of(side, y, z), device, false))) {
				return false;
			}
		}
	}
	return true;
}

CUresult copy_check(struct copy *copy, unsigned device)
{
	copy->dst.is_pageable = !space_is_known(copy->dst.addr);
	copy->src.is_pageable = !space_is_known(copy->src.addr);
	return is_side_good(copy, &copy->dst, SPACE_WRITE, device) &&
	                       is_side_good(copy, &copy->src, SPACE_READ, device)
	               ? CUDA_SUCCESS
	               : CUDA_ERROR_INVALID_VALUE;
}

static bool is_on_host(uint64_t addr)
{
	space_lock_read();
	struct mapping *m = space_find(addr);
	bool is_on_host = !m || m->kind == SPACE_HOST;
	space_unlock();
	return is_on_host;
}

bool copy_is_kernel(const struct copy *copy)
{
	return !is_on_host(copy->dst.addr) && !is_on_host(copy->src.addr);
}

/* Wait for the default stream, then copy in this thread. copy_sync() submits copies within device memory instead. */
static CUresult copy_here(const struct copy *copy)
{
	struct ctx *ctx = ctx_current();

	CUresult err = stream_wait(stream_from_handle(NULL));
	if (err == CUDA_SUCCESS) {
		err = copy_run(ctx, copy);
		if (err != CUDA_SUCCESS) {
			ctx_poison(ctx, err);
		}
	}
	return err;
}

static bool is_empty(const struct copy *copy)
{
	return copy->width == 0 || copy->height == 0 || copy->depth == 0;
}

static CUresult submit(const struct copy *copy, struct stream *s)
{
	struct work work = {.type = CU_GRAPH_NODE_TYPE_MEMCPY, .of.copy = *copy};

	return work_submit(s, &work);
}

CUresult copy_sync(struct copy *copy)
{
	if (is_empty(copy)) {
		return CUDA_SUCCESS;
	}
	CUresult err = copy_check(copy, ctx_current()->device);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	if (copy_is_kernel(copy)) {
		/* The copy is not synchronous with the host, as with a driver. */
		return submit(copy, stream_from_handle(NULL));
	}
	return copy_here(copy);
}

CUresult copy_async(struct copy *copy, CUstream handle)
{
	struct stream *s = stream_from_handle(handle);

	if (!s) {
		return stream_missing(handle);
	}
	if (is_empty(copy)) {
		return CUDA_SUCCESS;
	}
	CUresult err = copy_check(copy, ctx_current()->device);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	/* Pageable memory may be gone or changed right after the call. */
	bool is_pageable = copy->dst.is_pageable || copy->src.is_pageable;
	err = submit(copy, s);
	return err == CUDA_SUCCESS && is_pageable && !capture_is_of(s) ? stream_wait(s) : err;
}

/* ---- one row ---- */

static struct copy row(struct copy_side dst, struct copy_side src, uint64_t bytes)
{
	return (struct copy){.dst = dst, .src = src, .width = bytes, .height = 1, .depth = 1};
}

static struct copy_side any(uint64_t addr)
{
	return (struct copy_side){.addr = addr};
}

static struct copy_side device(uint64_t addr)
{
	return (struct copy_side){.addr = addr, .is_device = true};
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	ENTER(cuMemcpy);
	struct copy copy = row(any(dst), any(src), bytes);
	return copy_sync(&copy);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyAsync);
	struct copy copy = row(any(dst), any(src), bytes);
	return copy_async(&copy, stream);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
	ENTER(cuMemcpyHtoD_v2);
	struct copy copy = row(device(dst), any((uintptr_t)src), bytes);
	return copy_sync(&copy);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyHtoDAsync_v2);
	struct copy copy = row(device(dst), any((uintptr_t)src), bytes);
	return copy_async(&copy, stream);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
	ENTER(cuMemcpyDtoH_v2);
	struct copy copy = row(any((uintptr_t)dst), device(src), bytes);
	return copy_sync(&copy);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyDtoHAsync_v2);
	struct copy copy = row(any((uintptr_t)dst), device(src), bytes);
	return copy_async(&copy, stream);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	ENTER(cuMemcpyDtoD_v2);
	struct copy copy = row(device(dst), device(src), bytes);
	return copy_sync(&copy);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyDtoDAsync_v2);
	struct copy copy = row(device(dst), device(src), bytes);
	return copy_async(&copy, stream);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx,
                      size_t bytes)
{
	ENTER(cuMemcpyPeer);
	struct ctx *const to = ctx_from_handle(dst_ctx);
	struct ctx *const from = ctx_from_handle(src_ctx);
	if (!to || !from) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	/* The copy comes behind all work of both contexts, as the driver's documentation has it. */
	stream_wait_ctx(from);
	stream_wait_ctx(to);
	struct copy copy = row(device(dst), device(src), bytes);
	copy.is_peer = true;
	return copy_sync(&copy);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx,
                           size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyPeerAsync);
	if (!ctx_from_handle(dst_ctx) || !ctx_from_handle(src_ctx)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	struct copy copy = row(device(dst), device(src), bytes);
	copy.is_peer = true;
	return copy_async(&copy, stream);
}
