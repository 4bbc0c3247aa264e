/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls as programs built with CUDA_API_PER_THREAD_DEFAULT_STREAM make them: stream 0 is the
 * calling thread's own default stream (_ptsz), and calls without a stream happen on it (_ptds).
 */
#include "sim.h"

static CUstream own(CUstream handle)
{
	return handle ? handle : CU_STREAM_PER_THREAD;
}

static CUresult wait_for(CUresult err)
{
	return err == CUDA_SUCCESS ? cuStreamSynchronize(CU_STREAM_PER_THREAD) : err;
}

/* --- with a stream --- */

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr_out, size_t n_bytes, CUstream handle)
{
	return cuMemAllocAsync(ptr_out, n_bytes, own(handle));
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr_out, size_t n_bytes, CUmemoryPool pool,
                                      CUstream handle)
{
	return cuMemAllocFromPoolAsync(ptr_out, n_bytes, pool, own(handle));
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream handle)
{
	return cuMemFreeAsync(ptr, own(handle));
}

CUresult cuStreamSynchronize_ptsz(CUstream handle)
{
	return cuStreamSynchronize(own(handle));
}

CUresult cuStreamQuery_ptsz(CUstream handle)
{
	return cuStreamQuery(own(handle));
}

CUresult cuStreamWaitEvent_ptsz(CUstream handle, CUevent event, unsigned flags)
{
	return cuStreamWaitEvent(own(handle), event, flags);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream handle, CUstreamCaptureMode mode)
{
	return cuStreamBeginCapture_v2(own(handle), mode);
}

CUresult cuStreamEndCapture_ptsz(CUstream handle, CUgraph *graph_out)
{
	return cuStreamEndCapture(own(handle), graph_out);
}

CUresult cuStreamIsCapturing_ptsz(CUstream handle, CUstreamCaptureStatus *status_out)
{
	return cuStreamIsCapturing(own(handle), status_out);
}

CUresult cuStreamGetId_ptsz(CUstream handle, unsigned long long *id_out)
{
	return cuStreamGetId(own(handle), id_out);
}

CUresult cuStreamGetCtx_ptsz(CUstream handle, CUcontext *ctx_out)
{
	return cuStreamGetCtx(own(handle), ctx_out);
}

CUresult cuStreamGetCtx_v2_ptsz(CUstream handle, CUcontext *ctx_out, CUgreenCtx *green_out)
{
	return cuStreamGetCtx_v2(own(handle), ctx_out, green_out);
}

CUresult cuLaunchHostFunc_ptsz(CUstream handle, CUhostFn fn, void *data)
{
	return cuLaunchHostFunc(own(handle), fn, data);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream handle)
{
	return cuEventRecord(event, own(handle));
}

CUresult cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t n_bytes, CUstream handle)
{
	return cuMemcpyAsync(dst, src, n_bytes, own(handle));
}

CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dst, const void *src, size_t n_bytes,
                                   CUstream handle)
{
	return cuMemcpyHtoDAsync_v2(dst, src, n_bytes, own(handle));
}

CUresult cuMemcpyDtoHAsync_v2_ptsz(void *dst, CUdeviceptr src, size_t n_bytes, CUstream handle)
{
	return cuMemcpyDtoHAsync_v2(dst, src, n_bytes, own(handle));
}

CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t n_bytes,
                                   CUstream handle)
{
	return cuMemcpyDtoDAsync_v2(dst, src, n_bytes, own(handle));
}

CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
                                CUcontext src_ctx, size_t n_bytes, CUstream handle)
{
	return cuMemcpyPeerAsync(dst, dst_ctx, src, src_ctx, n_bytes, own(handle));
}

CUresult cuMemsetD8Async_ptsz(CUdeviceptr dst, unsigned char value, size_t n, CUstream handle)
{
	return cuMemsetD8Async(dst, value, n, own(handle));
}

CUresult cuMemsetD16Async_ptsz(CUdeviceptr dst, unsigned short value, size_t n, CUstream handle)
{
	return cuMemsetD16Async(dst, value, n, own(handle));
}

CUresult cuMemsetD32Async_ptsz(CUdeviceptr dst, unsigned int value, size_t n, CUstream handle)
{
	return cuMemsetD32Async(dst, value, n, own(handle));
}

CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
                                size_t height, CUstream handle)
{
	return cuMemsetD2D8Async(dst, pitch, value, width, height, own(handle));
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream handle, void **arguments, void **extra)
{
	return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
	                      shared_bytes, own(handle), arguments, extra);
}

/* --- without: copies wait, sets do not --- */

CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t n_bytes)
{
	return wait_for(cuMemcpyAsync(dst, src, n_bytes, CU_STREAM_PER_THREAD));
}

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dst, const void *src, size_t n_bytes)
{
	return wait_for(cuMemcpyHtoDAsync_v2(dst, src, n_bytes, CU_STREAM_PER_THREAD));
}

CUresult cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src, size_t n_bytes)
{
	return wait_for(cuMemcpyDtoHAsync_v2(dst, src, n_bytes, CU_STREAM_PER_THREAD));
}

CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dst, CUdeviceptr src, size_t n_bytes)
{
	return wait_for(cuMemcpyDtoDAsync_v2(dst, src, n_bytes, CU_STREAM_PER_THREAD));
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx,
                           size_t n_bytes)
{
	return wait_for(
		cuMemcpyPeerAsync(dst, dst_ctx, src, src_ctx, n_bytes, CU_STREAM_PER_THREAD));
}

CUresult cuMemsetD8_v2_ptds(CUdeviceptr dst, unsigned char value, size_t n)
{
	return cuMemsetD8Async(dst, value, n, CU_STREAM_PER_THREAD);
}

CUresult cuMemsetD16_v2_ptds(CUdeviceptr dst, unsigned short value, size_t n)
{
	return cuMemsetD16Async(dst, value, n, CU_STREAM_PER_THREAD);
}

CUresult cuMemsetD32_v2_ptds(CUdeviceptr dst, unsigned int value, size_t n)
{
	return cuMemsetD32Async(dst, value, n, CU_STREAM_PER_THREAD);
}

CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
                              size_t height)
{
	return cuMemsetD2D8Async(dst, pitch, value, width, height, CU_STREAM_PER_THREAD);
}
