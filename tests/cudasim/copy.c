/* SPDX-License-Identifier: Apache-2.0 */
/* Copies. Their ranges are checked when they are submitted, and again, in pieces, as they run. */
#include "sim.h"

#include <string.h>

struct copy {
	uint64_t dst;
	uint64_t src;
	uint64_t bytes;
};

/* What an address of a copy may be. */
enum copy_side {
	SIDE_ANY,    /* pageable host memory, too */
	SIDE_DEVICE, /* must be known to the driver: device, pinned or registered */
};

/* The space is locked. Returns how much was copied; 0: not reachable any more. */
static uint64_t copy_piece(const struct copy *c, unsigned device)
{
	uint64_t n = c->bytes < SIM_PIECE_BYTES ? c->bytes : SIM_PIECE_BYTES;
	uint8_t *dst;
	uint8_t *src;

	if (!space_resolve(c->dst, n, SPACE_WRITE, SPACE_BY_API, device, &dst, &n) ||
	    !space_resolve(c->src, n, SPACE_READ, SPACE_BY_API, device, &src, &n)) {
		return 0;
	}
	memmove(dst, src, n);
	return n;
}

static CUresult run_copy(struct ctx *ctx, void *arg)
{
	struct copy c = *(struct copy *)arg;

	while (c.bytes > 0) {
		space_lock_read();
		uint64_t n = copy_piece(&c, ctx->device);
		space_unlock();
		if (n == 0) {
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		}
		c.dst += n;
		c.src += n;
		c.bytes -= n;
	}
	return CUDA_SUCCESS;
}

static CUresult check_copy(const struct copy *c, enum copy_side dst, enum copy_side src)
{
	unsigned device = ctx_current()->device;

	if ((dst == SIDE_DEVICE && !space_is_known(c->dst)) ||
	    (src == SIDE_DEVICE && !space_is_known(c->src)) ||
	    !space_check(c->dst, c->bytes, SPACE_WRITE, SPACE_BY_API, device) ||
	    !space_check(c->src, c->bytes, SPACE_READ, SPACE_BY_API, device)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static bool is_on_host(uint64_t addr)
{
	space_lock_read();
	struct mapping *m = space_find(addr);
	bool is_on_host = !m || m->kind == SPACE_HOST;
	space_unlock();
	return is_on_host;
}

/* Returns when the copy is done. Between two places on devices it need not be, see copy_sync. */
static CUresult copy_here(const struct copy *c)
{
	struct ctx *ctx = ctx_current();

	CUresult err = stream_wait(stream_from_handle(NULL));
	if (err == CUDA_SUCCESS) {
		err = run_copy(ctx, (void *)c);
		if (err != CUDA_SUCCESS) {
			ctx_poison(ctx, err);
		}
	}
	return err;
}

static CUresult copy_sync(struct copy c, enum copy_side dst, enum copy_side src)
{
	if (c.bytes == 0) {
		return CUDA_SUCCESS;
	}
	CUresult err = check_copy(&c, dst, src);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	if (!is_on_host(c.dst) && !is_on_host(c.src)) {
		/* Not synchronous with the host: neither is a driver's. */
		return stream_submit(stream_from_handle(NULL), run_copy, NULL, &c, sizeof(c));
	}
	return copy_here(&c);
}

static CUresult copy_async(struct copy c, enum copy_side dst, enum copy_side src, CUstream handle)
{
	struct stream *s = stream_from_handle(handle);

	if (!s) {
		return stream_missing(handle);
	}
	if (c.bytes == 0) {
		return CUDA_SUCCESS;
	}
	CUresult err = check_copy(&c, dst, src);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	/* Pageable memory may be gone or changed right after the call. */
	bool is_pageable = !space_is_known(c.dst) || !space_is_known(c.src);
	err = stream_submit(s, run_copy, NULL, &c, sizeof(c));
	return err == CUDA_SUCCESS && is_pageable ? stream_wait(s) : err;
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	ENTER(cuMemcpy);
	return copy_sync((struct copy){dst, src, bytes}, SIDE_ANY, SIDE_ANY);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyAsync);
	return copy_async((struct copy){dst, src, bytes}, SIDE_ANY, SIDE_ANY, stream);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
	ENTER(cuMemcpyHtoD_v2);
	return copy_sync((struct copy){dst, (uintptr_t)src, bytes}, SIDE_DEVICE, SIDE_ANY);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyHtoDAsync_v2);
	return copy_async((struct copy){dst, (uintptr_t)src, bytes}, SIDE_DEVICE, SIDE_ANY, stream);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
	ENTER(cuMemcpyDtoH_v2);
	return copy_sync((struct copy){(uintptr_t)dst, src, bytes}, SIDE_ANY, SIDE_DEVICE);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyDtoHAsync_v2);
	return copy_async((struct copy){(uintptr_t)dst, src, bytes}, SIDE_ANY, SIDE_DEVICE, stream);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	ENTER(cuMemcpyDtoD_v2);
	return copy_sync((struct copy){dst, src, bytes}, SIDE_DEVICE, SIDE_DEVICE);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyDtoDAsync_v2);
	return copy_async((struct copy){dst, src, bytes}, SIDE_DEVICE, SIDE_DEVICE, stream);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx,
                      size_t bytes)
{
	ENTER(cuMemcpyPeer);
	if (!ctx_from_handle(dst_ctx) || !ctx_from_handle(src_ctx)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	return copy_sync((struct copy){dst, src, bytes}, SIDE_DEVICE, SIDE_DEVICE);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx,
                           size_t bytes, CUstream stream)
{
	ENTER(cuMemcpyPeerAsync);
	if (!ctx_from_handle(dst_ctx) || !ctx_from_handle(src_ctx)) {
		return CUDA_ERROR_INVALID_CONTEXT;
	}
	return copy_async((struct copy){dst, src, bytes}, SIDE_DEVICE, SIDE_DEVICE, stream);
}
