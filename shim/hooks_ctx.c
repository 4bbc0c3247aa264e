/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts that end, peers, and captures. */
#include "shim/account.h"
#include "shim/heap.h"
#include "shim/ipc.h"
#include "shim/order.h"
#include "shim/quiesce.h"

static void forget_ctx(CUcontext ctx)
{
	quiesce_drop_ctx(ctx);
	ipc_release_ctx(ctx);
	order_release_ctx(ctx);
	heap_release_ctx(ctx);
	account_release_ctx(ctx);
}

static CUresult destroy_ctx(CUcontext ctx, shim_ctx_fn *destroy)
{
	if (shim_is_forked()) {
		return destroy(ctx);
	}
	order_hold_contexts();
	CUresult result = destroy(ctx);
	if (result == CUDA_SUCCESS) {
		forget_ctx(ctx);
	}
	order_let_contexts();
	return result;
}

CUresult shim_cuCtxDestroy(CUcontext ctx)
{
	return destroy_ctx(ctx, real(cuCtxDestroy));
}

CUresult shim_cuCtxDestroy_v2(CUcontext ctx)
{
	return destroy_ctx(ctx, real(cuCtxDestroy_v2));
}

static bool is_active(CUdevice device)
{
	unsigned flags;
	int active = 0;
	return real(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* The primary context, if there is one. cudart retains it behind our back, so we have to ask. */
static CUcontext primary_ctx(CUdevice device)
{
	CUcontext ctx = NULL;
	if (!is_active(device) || real(cuDevicePrimaryCtxRetain)(&ctx, device) != CUDA_SUCCESS) {
		return NULL;
	}
	real(cuDevicePrimaryCtxRelease_v2)(device);
	return ctx;
}

static CUresult end_primary(CUdevice device, shim_device_fn *end, bool is_reset)
{
	if (shim_is_forked() || !real(cuDevicePrimaryCtxRelease_v2)) {
		return end(device);
	}
	order_hold_contexts();
	CUcontext ctx = primary_ctx(device);
	CUresult result = end(device);
	if (result == CUDA_SUCCESS && ctx && (is_reset || !is_active(device))) {
		forget_ctx(ctx);
	}
	order_let_contexts();
	return result;
}

CUresult shim_cuDevicePrimaryCtxRelease(CUdevice device)
{
	return end_primary(device, real(cuDevicePrimaryCtxRelease), false);
}

CUresult shim_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return end_primary(device, real(cuDevicePrimaryCtxRelease_v2), false);
}

CUresult shim_cuDevicePrimaryCtxReset(CUdevice device)
{
	return end_primary(device, real(cuDevicePrimaryCtxReset), true);
}

CUresult shim_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return end_primary(device, real(cuDevicePrimaryCtxReset_v2), true);
}

/* ---- peers ------------------------------------------------------------------------------------ */

static CUresult device_of(CUcontext ctx, CUdevice *device_out)
{
	CUcontext popped;
	CUresult result = real(cuCtxPushCurrent_v2)(ctx);
	if (result == CUDA_SUCCESS) {
		result = real(cuCtxGetDevice)(device_out);
		real(cuCtxPopCurrent_v2)(&popped);
	}
	return result;
}

/* The driver opens its own memory of @peer to the current context; ours has to be opened by us. */
CUresult shim_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	CUresult result = real(cuCtxEnablePeerAccess)(peer, flags);
	CUcontext current = NULL;
	CUdevice reader;
	CUdevice device;
	if (result != CUDA_SUCCESS || shim_is_forked() ||
	    real(cuCtxGetCurrent)(&current) != CUDA_SUCCESS ||
	    real(cuCtxGetDevice)(&reader) != CUDA_SUCCESS ||
	    device_of(peer, &device) != CUDA_SUCCESS || device == reader) {
		return result;
	}
	quiesce_add_reader(peer, current);
	return heap_add_peer(device, reader);
}

/* ---- captures --------------------------------------------------------------------------------- */

static CUresult note_begin(CUresult result)
{
	if (result == CUDA_SUCCESS) {
		quiesce_note_capture(1);
	}
	return result;
}

CUresult shim_cuStreamBeginCapture(CUstream stream)
{
	return note_begin(real(cuStreamBeginCapture)(stream));
}

CUresult shim_cuStreamBeginCapture_ptsz(CUstream stream)
{
	return note_begin(real(cuStreamBeginCapture_ptsz)(stream));
}

CUresult shim_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	return note_begin(real(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult shim_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	return note_begin(real(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

CUresult shim_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                          const CUgraphEdgeData *edges, size_t n_nodes,
                                          CUstreamCaptureMode mode)
{
	return note_begin(
		real(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, n_nodes, mode));
}

CUresult shim_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                               const CUgraphNode *nodes,
                                               const CUgraphEdgeData *edges, size_t n_nodes,
                                               CUstreamCaptureMode mode)
{
	return note_begin(
		real(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, n_nodes, mode));
}

/*
 * A capture that was invalidated has to be ended as well, which reports that. Only where there was
 * none to end does the count stay.
 */
static CUresult note_end(CUresult result)
{
	if (result != CUDA_ERROR_ILLEGAL_STATE && result != CUDA_ERROR_INVALID_VALUE &&
	    result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD &&
	    result != CUDA_ERROR_NOT_INITIALIZED && result != CUDA_ERROR_INVALID_HANDLE &&
	    result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) {
		quiesce_note_capture(-1);
	}
	return result;
}

CUresult shim_cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return note_end(real(cuStreamEndCapture)(stream, graph));
}

CUresult shim_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return note_end(real(cuStreamEndCapture_ptsz)(stream, graph));
}
