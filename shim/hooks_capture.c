/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of streams: their beginning, their end, and the end of their stream. */
#include "glake_order.h"
#include "shim/capture.h"
#include "shim/drain.h"
#include "shim/graphmem.h"
#include "shim/order.h"

/*
 * A graph may have what was freed until now, once it is marked (glake_order.h), and what was freed on this stream can be
 * marked now only.
 */
static bool begins(CUstream stream, unsigned flags)
{
	struct heap_place here;
	if (!shim_is_forked()) {
		order_stream_ends(stream, capture_may_have(stream, flags));
	}
	if (shim_policy()->stitches && !shim_is_forked() && heap_place_here(&here)) {
		order_collect(here.ctx);
	}
	drain_before_capture();
	return capture_begins(stream, flags);
}

CUresult shim_cuStreamBeginCapture(CUstream stream)
{
	bool is_new = begins(stream, 0);
	return capture_begun(stream, 0, is_new, real(cuStreamBeginCapture)(stream));
}

CUresult shim_cuStreamBeginCapture_ptsz(CUstream stream)
{
	bool is_new = begins(stream, GLAKE_PER_THREAD);
	return capture_begun(stream, GLAKE_PER_THREAD, is_new,
	                     real(cuStreamBeginCapture_ptsz)(stream));
}

CUresult shim_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	bool is_new = begins(stream, 0);
	return capture_begun(stream, 0, is_new, real(cuStreamBeginCapture_v2)(stream, mode));
}

CUresult shim_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
	bool is_new = begins(stream, GLAKE_PER_THREAD);
	return capture_begun(stream, GLAKE_PER_THREAD, is_new,
	                     real(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

CUresult shim_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                          const CUgraphEdgeData *edges, size_t n_nodes,
                                          CUstreamCaptureMode mode)
{
	bool is_new = begins(stream, 0);
	return capture_begun_in_graph(
		stream, 0, is_new,
		real(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, n_nodes, mode));
}

CUresult shim_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                               const CUgraphNode *nodes,
                                               const CUgraphEdgeData *edges, size_t n_nodes,
                                               CUstreamCaptureMode mode)
{
	bool is_new = begins(stream, GLAKE_PER_THREAD);
	return capture_begun_in_graph(
		stream, GLAKE_PER_THREAD, is_new,
		real(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, n_nodes, mode));
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

/* Before the driver's call, which may give the handle to another stream at once. */
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
