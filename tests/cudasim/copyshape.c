/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of planes and of many rows at once. Arrays cannot be copied, as they hold nothing. */
#include "work.h"

/* One side of a CUDA_MEMCPY3D, of which the others are special cases. */
struct side {
	CUmemorytype type;
	const void *host;
	CUdeviceptr device;
	size_t x;
	size_t y;
	size_t z;
	size_t pitch;
	size_t height;
};

static CUresult side_read(const struct side *side, const CUDA_MEMCPY3D *shape,
                          struct copy_side *side_out)
{
	uint64_t pitch = side->pitch ? side->pitch : shape->WidthInBytes + side->x;
	uint64_t height = side->height ? side->height : shape->Height + side->y;

	if (side->type == CU_MEMORYTYPE_ARRAY) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	if (side->type != CU_MEMORYTYPE_HOST && side->type != CU_MEMORYTYPE_DEVICE &&
	    side->type != CU_MEMORYTYPE_UNIFIED) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if ((shape->Height > 1 && pitch < shape->WidthInBytes + side->x) ||
	    (shape->Depth > 1 && height < shape->Height + side->y)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	uint64_t base = side->type == CU_MEMORYTYPE_HOST ? (uintptr_t)side->host : side->device;
	*side_out = (struct copy_side){
		.addr = base + side->x + side->y * pitch + side->z * pitch * height,
		.pitch = pitch,
		.slice = pitch * height,
		.is_device = side->type == CU_MEMORYTYPE_DEVICE,
	};
	return CUDA_SUCCESS;
}

CUresult copy_from_shape(const CUDA_MEMCPY3D *shape, struct copy *copy_out)
{
	if (!shape) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	const struct side dst = {
		.type = shape->dstMemoryType,
		.host = shape->dstHost,
		.device = shape->dstDevice,
		.x = shape->dstXInBytes,
		.y = shape->dstY,
		.z = shape->dstZ,
		.pitch = shape->dstPitch,
		.height = shape->dstHeight,
	};
	const struct side src = {
		.type = shape->srcMemoryType,
		.host = shape->srcHost,
		.device = shape->srcDevice,
		.x = shape->srcXInBytes,
		.y = shape->srcY,
		.z = shape->srcZ,
		.pitch = shape->srcPitch,
		.height = shape->srcHeight,
	};
	*copy_out = (struct copy){
		.width = shape->WidthInBytes,
		.height = shape->Height,
		.depth = shape->Depth,
	};
	CUresult err = side_read(&dst, shape, &copy_out->dst);
	return err == CUDA_SUCCESS ? side_read(&src, shape, &copy_out->src) : err;
}

CUDA_MEMCPY3D copy_to_shape(const struct copy *copy)
{
	return (CUDA_MEMCPY3D){
		.srcMemoryType = copy->src.is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED,
		.srcDevice = copy->src.addr,
		.srcPitch = copy->src.pitch,
		.srcHeight = copy->src.pitch ? copy->src.slice / copy->src.pitch : 0,
		.dstMemoryType = copy->dst.is_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_UNIFIED,
		.dstDevice = copy->dst.addr,
		.dstPitch = copy->dst.pitch,
		.dstHeight = copy->dst.pitch ? copy->dst.slice / copy->dst.pitch : 0,
		.WidthInBytes = copy->width,
		.Height = copy->height,
		.Depth = copy->depth,
	};
}

static CUDA_MEMCPY3D from_plane(const CUDA_MEMCPY2D *plane)
{
	return (CUDA_MEMCPY3D){
		.srcXInBytes = plane->srcXInBytes,
		.srcY = plane->srcY,
		.srcMemoryType = plane->srcMemoryType,
		.srcHost = plane->srcHost,
		.srcDevice = plane->srcDevice,
		.srcPitch = plane->srcPitch,
		.dstXInBytes = plane->dstXInBytes,
		.dstY = plane->dstY,
		.dstMemoryType = plane->dstMemoryType,
		.dstHost = plane->dstHost,
		.dstDevice = plane->dstDevice,
		.dstPitch = plane->dstPitch,
		.WidthInBytes = plane->WidthInBytes,
		.Height = plane->Height,
		.Depth = 1,
	};
}

static CUDA_MEMCPY3D from_peers(const CUDA_MEMCPY3D_PEER *peers)
{
	return (CUDA_MEMCPY3D){
		.srcXInBytes = peers->srcXInBytes,
		.srcY = peers->srcY,
		.srcZ = peers->srcZ,
		.srcMemoryType = peers->srcMemoryType,
		.srcHost = peers->srcHost,
		.srcDevice = peers->srcDevice,
		.srcPitch = peers->srcPitch,
		.srcHeight = peers->srcHeight,
		.dstXInBytes = peers->dstXInBytes,
		.dstY = peers->dstY,
		.dstZ = peers->dstZ,
		.dstMemoryType = peers->dstMemoryType,
		.dstHost = peers->dstHost,
		.dstDevice = peers->dstDevice,
		.dstPitch = peers->dstPitch,
		.dstHeight = peers->dstHeight,
		.WidthInBytes = peers->WidthInBytes,
		.Height = peers->Height,
		.Depth = peers->Depth,
	};
}

static CUresult shape_sync(const CUDA_MEMCPY3D *shape, bool is_peer)
{
	struct copy copy;
	CUresult err = copy_from_shape(shape, &copy);

	copy.is_peer = is_peer;
	return err == CUDA_SUCCESS ? copy_sync(&copy) : err;
}

static CUresult shape_async(const CUDA_MEMCPY3D *shape, CUstream stream, bool is_peer)
{
	struct copy copy;
	CUresult err = copy_from_shape(shape, &copy);

	copy.is_peer = is_peer;
	return err == CUDA_SUCCESS ? copy_async(&copy, stream) : err;
}

static CUresult plane_sync(const CUDA_MEMCPY2D *plane)
{
	if (!plane) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUDA_MEMCPY3D shape = from_plane(plane);
	return shape_sync(&shape, false);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *plane)
{
	ENTER(cuMemcpy2D_v2);
	return plane_sync(plane);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *plane)
{
	ENTER(cuMemcpy2DUnaligned_v2);
	return plane_sync(plane);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *plane, CUstream stream)
{
	ENTER(cuMemcpy2DAsync_v2);
	if (!plane) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUDA_MEMCPY3D shape = from_plane(plane);
	return shape_async(&shape, stream, false);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *shape)
{
	ENTER(cuMemcpy3D_v2);
	return shape_sync(shape, false);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *shape, CUstream stream)
{
	ENTER(cuMemcpy3DAsync_v2);
	return shape_async(shape, stream, false);
}

static bool has_contexts(const CUDA_MEMCPY3D_PEER *peers)
{
	return ctx_from_handle(peers->srcContext) && ctx_from_handle(peers->dstContext);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *peers)
{
	ENTER(cuMemcpy3DPeer);
	if (!peers || !has_contexts(peers)) {
		return peers ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
	}
	CUDA_MEMCPY3D shape = from_peers(peers);
	return shape_sync(&shape, true);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *peers, CUstream stream)
{
	ENTER(cuMemcpy3DPeerAsync);
	if (!peers || !has_contexts(peers)) {
		return peers ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE;
	}
	CUDA_MEMCPY3D shape = from_peers(peers);
	return shape_async(&shape, stream, true);
}

/* A batch may not be on the legacy default stream, and each copy must have attributes, which count from an index on. */
static bool is_good_batch(const CUmemcpyAttributes *attributes, const size_t *from,
                          size_t n_attributes, size_t n, CUstream stream)
{
	if (n == 0 || !attributes || !from || n_attributes == 0 || n_attributes > n ||
	    from[0] != 0 || stream == CU_STREAM_LEGACY || (!stream && !stream_zero_is_own)) {
		return false;
	}
	for (size_t i = 0; i < n_attributes; i++) {
		if ((i > 0 && (from[i] <= from[i - 1] || from[i] >= n)) ||
		    attributes[i].srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_INVALID ||
		    attributes[i].srcAccessOrder > CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
			return false;
		}
	}
	return true;
}

static CUresult batch(const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes,
                      size_t n, CUstream stream)
{
	CUresult err = CUDA_SUCCESS;

	if (!dsts || !srcs || !sizes) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; err == CUDA_SUCCESS && i < n; i++) {
		struct copy copy = {
			.dst = {.addr = dsts[i]},
			.src = {.addr = srcs[i]},
			.width = sizes[i],
			.height = 1,
			.depth = 1,
		};
		err = sizes[i] > 0 ? copy_async(&copy, stream) : CUDA_ERROR_INVALID_VALUE;
	}
	return err;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n,
                            CUmemcpyAttributes *attributes, size_t *from, size_t n_attributes,
                            size_t *failed_out, CUstream stream)
{
	ENTER(cuMemcpyBatchAsync);
	if (failed_out) {
		*failed_out = SIZE_MAX; /* no particular copy has failed */
	}
	return is_good_batch(attributes, from, n_attributes, n, stream)
	               ? batch(dsts, srcs, sizes, n, stream)
	               : CUDA_ERROR_INVALID_VALUE;
}

#if CUDA_VERSION >= 13000
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n,
                               CUmemcpyAttributes *attributes, size_t *from, size_t n_attributes,
                               CUstream stream)
{
	ENTER(cuMemcpyBatchAsync_v2);
	return is_good_batch(attributes, from, n_attributes, n, stream)
	               ? batch(dsts, srcs, sizes, n, stream)
	               : CUDA_ERROR_INVALID_VALUE;
}
#endif
