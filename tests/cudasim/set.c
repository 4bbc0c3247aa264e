/* SPDX-License-Identifier: Apache-2.0 */
/* cuMemset*(). As on a GPU, none of them waits for the device, not even those without Async. */
#include "work.h"

static void fill(uint8_t *host, uint64_t bytes, const struct set *set)
{
	if (set->element_bytes == 1) {
		bytes_set(host, (uint8_t)set->value, bytes);
	} else {
		bytes_repeat(host, &set->value, set->element_bytes, bytes / set->element_bytes);
	}
}

static bool set_row(struct ctx *ctx, const struct set *set, uint64_t dst)
{
	uint64_t left = set->row_bytes;

	while (left > 0) {
		uint64_t n = left < SIM_PIECE_BYTES ? left : SIM_PIECE_BYTES;
		uint8_t *host;

		space_lock_read();
		bool ok = space_resolve(dst, n, SPACE_WRITE, SPACE_BY_ENGINE, ctx->device, &host,
		                        &n);
		if (ok) {
			fill(host, n, set);
		}
		space_unlock();
		if (!ok) {
			return false;
		}
		dst += n;
		left -= n;
	}
	return true;
}

CUresult set_run(struct ctx *ctx, const struct set *set)
{
	for (uint64_t row = 0; row < set->n_rows; row++) {
		if (!set_row(ctx, set, set->dst + row * set->pitch)) {
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult check(const struct set *set, enum space_access access, unsigned device)
{
	if (set->dst % set->element_bytes != 0 ||
	    (set->n_rows > 1 &&
	     (set->pitch < set->row_bytes || set->pitch % set->element_bytes != 0))) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (uint64_t row = 0; row < set->n_rows; row++) {
		uint64_t dst = set->dst + row * set->pitch;
		if (!space_is_known(dst) ||
		    !space_check(dst, set->row_bytes, access, SPACE_BY_API, device) ||
		    !space_is_open_to(dst, device, true)) {
			return CUDA_ERROR_INVALID_VALUE;
		}
	}
	return CUDA_SUCCESS;
}

CUresult set_check(const struct set *set, unsigned device)
{
	return check(set, SPACE_WRITE, device);
}

static CUresult submit(struct set set, CUstream handle)
{
	struct stream *s = stream_from_handle(handle);

	if (!s) {
		return stream_missing(handle);
	}
	if (set.n_rows == 0 || set.row_bytes == 0) {
		return CUDA_SUCCESS;
	}
	/* Write access of a captured set is checked when it runs, or becomes part of an executable. */
	enum space_access access = capture_is_of(s) ? SPACE_READ : SPACE_WRITE;
	CUresult err = check(&set, access, ctx_current()->device);
	if (err != CUDA_SUCCESS) {
		return err;
	}
	struct work work = {.type = CU_GRAPH_NODE_TYPE_MEMSET, .of.set = set};
	return work_submit(s, &work);
}

static CUresult set_rows(CUdeviceptr dst, size_t pitch, uint32_t value, uint32_t element_bytes,
                         size_t width, size_t height, CUstream stream)
{
	struct set set = {
		.dst = dst,
		.pitch = pitch,
		.n_rows = height,
		.value = value,
		.element_bytes = element_bytes,
	};

	if (__builtin_mul_overflow(width, element_bytes, &set.row_bytes)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return submit(set, stream);
}

/* The calls on the default stream, and on any stream. */
#define SET(BITS, ELEMENT) \
	CUresult cuMemsetD##BITS##_v2(CUdeviceptr dst, ELEMENT value, size_t n) \
	{ \
		ENTER(cuMemsetD##BITS##_v2); \
		return set_rows(dst, 0, value, sizeof(ELEMENT), n, 1, NULL); \
	} \
	CUresult cuMemsetD##BITS##Async(CUdeviceptr dst, ELEMENT value, size_t n, CUstream stream) \
	{ \
		ENTER(cuMemsetD##BITS##Async); \
		return set_rows(dst, 0, value, sizeof(ELEMENT), n, 1, stream); \
	} \
	CUresult cuMemsetD2D##BITS##_v2(CUdeviceptr dst, size_t pitch, ELEMENT value, \
	                                size_t width, size_t height) \
	{ \
		ENTER(cuMemsetD2D##BITS##_v2); \
		return set_rows(dst, pitch, value, sizeof(ELEMENT), width, height, NULL); \
	} \
	CUresult cuMemsetD2D##BITS##Async(CUdeviceptr dst, size_t pitch, ELEMENT value, \
	                                  size_t width, size_t height, CUstream stream) \
	{ \
		ENTER(cuMemsetD2D##BITS##Async); \
		return set_rows(dst, pitch, value, sizeof(ELEMENT), width, height, stream); \
	}

SET(8, unsigned char)
SET(16, unsigned short)
SET(32, unsigned int)
