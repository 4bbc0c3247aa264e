/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of streams: how they begin and end, also with their stream. */
#include "glake_order.h"
#include "shim/capture.h"
#include "shim/drain.h"
#include "shim/gate.h"
#include "shim/graphmem.h"
#include "shim/order.h"

/*
 * A capture that is about to begin. It is noted inside the gate: a thread that waits at the gate, perhaps for a whole sleep,
 * has no capture yet, and leaves none behind if it is cancelled.
 */
struct beginning {
	struct gate_thread *thread;
	bool is_new;
};

/*
 * Mark memory that was freed until now (glake_order.h), so that the graph may get it; memory freed on this stream cannot be
 * marked later. False: the program ends.
 */
static bool begin(struct beginning *beginning, CUstream stream, unsigned flags)
{
	struct heap_target here;
	if (!shim_is_forked()) {
		order_stream_ends(stream, capture_may_have(stream, flags));
	}
	if (shim_policy()->stitches && !shim_is_forked() && heap_target_here(&here)) {
		order_collect(here.ctx);
	}
	drain_before_capture();
	beginning->thread = gate_enter();
	if (beginning->thread) {
		beginning->is_new = capture_begins(stream, flags);
	}
	return beginning->thread;
}

static CUresult end(const struct beginning *beginning, CUstream stream, unsigned flags,
                    CUresult result)
{
	result = capture_begun(stream, flags, beginning->is_new, result);
	gate_leave(beginning->thread);
	return result;
}

static CUresult end_in_graph(const struct beginning *beginning, CUstream stream, unsigned flags,
                             CUresult result)
{
	result = capture_begun_in_graph(stream, flags, beginning->is_new, result);
	gate_leave(beginning->thread);
	return result;
}

CUresult shim_cuStreamBeginCapture(CUstream stream)
{
	struct beginning beginning;
	return !begin(&beginning, stream, 0)
	               ? CUDA_ERROR_DEINITIALIZED
	               : end(&beginning, stream, 0, real(cuStreamBeginCapture)(stream));
}

CUresult shim_cuStreamBeginCapture_ptsz(CUstream stream)
{
	struct beginning beginning;
	return !begin(&beginning, stream, GLAKE_PER_THREAD)
	               ? CUDA_ERROR_DEINITIALIZED
	               : end(&beginning, stream, GLAKE_PER_THREAD,
	                     real(cuStreamBeginCapture_ptsz)(stream));
}

CUresult shim_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	struct beginning beginning;
	return !begin(&beginning, stream, 0)
	               ? CUDA_ERROR_DEINITIALIZED
	               : end(&beginning, stream, 0, real(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult shim_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	struct beginning beginning;
	return !begin(&beginning, stream, GLAKE_PER_THREAD)
	               ? CUDA_ERROR_DEINITIALIZED
	               : end(&beginning, stream, GLAKE_PER_THREAD,
	                     real(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

CUresult shim_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                          const CUgraphEdgeData *edges, size_t n_nodes,
                                          CUstreamCaptureMode mode)
{
	struct beginning beginning;
	return !begin(&beginning, stream, 0)
	               ? CUDA_ERROR_DEINITIALIZED
	               : end_in_graph(&beginning, stream, 0,
	                              real(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges,
	                                                                n_nodes, mode));
}

CUresult shim_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                               const CUgraphNode *nodes,
                                               const CUgraphEdgeData *edges, size_t n_nodes,
                                               CUstreamCaptureMode mode)
{
	struct beginning beginning;
	return !begin(&beginning, stream, GLAKE_PER_THREAD)
	               ? CUDA_ERROR_DEINITIALIZED
	               : end_in_graph(&beginning, stream, GLAKE_PER_THREAD,
	                              real(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes,
	                                                                     edges, n_nodes, mode));
}

CUresult shim_cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return capture_ended(stream, 0, real(cuStreamEndCapture)(stream, graph));
}

CUresult shim_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return capture_ended(stream, GLAKE_PER_THREAD,
	                     real(cuStreamEndCapture_ptsz)(stream, graph));
}

/* Called before the driver's call, which may give the handle to another stream at once. */
static void forget(CUstream stream)
{
	if (shim_is_forked()) {
		return;
	}
	if (capture_is_any()) {
		graphmem_forget_stream(stream);
	}
	order_stream_ends(stream, capture_may_have(stream, 0));
}

CUresult shim_cuStreamDestroy(CUstream stream)
{
	forget(stream);
	return capture_stream_destroyed(stream, real(cuStreamDestroy)(stream));
}

CUresult shim_cuStreamDestroy_v2(CUstream stream)
{
	forget(stream);
	return capture_stream_destroyed(stream, real(cuStreamDestroy_v2)(stream));
}
