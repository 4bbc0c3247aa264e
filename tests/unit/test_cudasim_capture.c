/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: what streams capture, and which streams come along. */
#include "tests/cudasim/test_given.h"

BEGIN_EACH(driver_begin_64m)

#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED

static CUgraph end(CUstream stream)
{
	CUgraph graph = NULL;

	ck_ok(cu.StreamEndCapture(stream, &graph));
	ck_assert_ptr_nonnull(graph);
	return graph;
}

static void launch_once(CUgraph graph)
{
	CUgraphExec exec;

	ck_ok(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	ck_ok(cu.GraphLaunch(exec, NULL));
	ck_ok(cu.StreamSynchronize(NULL));
	ck_ok(cu.GraphExecDestroy(exec));
}

static size_t n_nodes(CUgraph graph)
{
	size_t n = 0;

	ck_ok(cu.GraphGetNodes(graph, NULL, &n));
	return n;
}

static CUevent event_new(void)
{
	CUevent event = NULL;

	ck_ok(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING));
	return event;
}

static void CUDA_CB count_up(void *data)
{
	++*(int *)data;
}

START_TEST(nothing_runs_while_it_is_captured)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = zeroed(64);
	uint32_t pageable = 9;
	int n_called = 0;

	ck_ok(cu.StreamBeginCapture_v2(stream, RELAXED));
	ck_ok(cu.MemsetD32Async(ptr, 4, 1, stream));
	ck_ok(launch_put(ptr + 4, 5, stream));
	ck_ok(cu.MemcpyDtoDAsync_v2(ptr + 8, ptr + 4, 4, stream));
	ck_ok(cu.MemcpyHtoDAsync_v2(ptr + 12, &pageable, 4, stream));
	ck_ok(cu.LaunchHostFunc(stream, count_up, &n_called));
	ck_ok(cu.StreamWriteValue32_v2(stream, ptr + 16, 6, 0));
	CUgraph graph = end(stream);
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(read_u32(ptr), 0);
	ck_assert_int_eq(n_called, 0);
	ck_assert_uint_eq(n_nodes(graph), 6);
	pageable = 10; /* read when it is launched */
	launch_once(graph);
	ck_assert_uint_eq(read_u32(ptr), 4);
	ck_assert_uint_eq(read_u32(ptr + 8), 5);
	ck_assert_uint_eq(read_u32(ptr + 12), 10);
	ck_assert_uint_eq(read_u32(ptr + 16), 6);
	ck_assert_int_eq(n_called, 1);
	launch_once(graph);
	ck_assert_int_eq(n_called, 2);
	ck_ok(cu.GraphDestroy(graph));
}
END_TEST

START_TEST(events_bring_other_streams_along)
{
	CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(64);
	CUevent fork = event_new(), join = event_new();
	CUstreamCaptureStatus status;
	CUgraphNode from[8], to[8];
	size_t n = 8;

	ck_ok(cu.StreamBeginCapture_v2(a, RELAXED));
	ck_ok(launch_put(ptr, 1, a));
	ck_ok(cu.EventRecord(fork, a));
	ck_ok(cu.StreamIsCapturing(b, &status));
	ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
	ck_ok(cu.StreamWaitEvent(b, fork, 0));
	ck_ok(cu.StreamIsCapturing(b, &status));
	ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	ck_ok(launch_put(ptr + 4, 2, b));
	ck_ok(launch_put(ptr + 8, 3, a));
	ck_ok(cu.EventRecord(join, b));
	ck_ok(cu.StreamWaitEvent(a, join, 0));
	ck_ok(launch_put(ptr + 12, 4, a));
	CUgraph graph = end(a);
	ck_ok(cu.StreamIsCapturing(b, &status));
	ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
	ck_assert_uint_eq(n_nodes(graph), 4);
	ck_ok(cu.GraphGetEdges_v2(graph, from, to, NULL, &n));
	ck_assert_uint_eq(n, 4); /* a diamond */
	launch_once(graph);
	ck_assert_uint_eq(read_u32(ptr + 12), 4);
	ck_cu(cu.EventQuery(join), CUDA_ERROR_CAPTURED_EVENT);
}
END_TEST

START_TEST(captures_end_as_they_began)
{
	CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(64);
	CUevent fork = event_new(), outside = event_new();
	CUgraph graph;

	/* Work on another stream has to be waited for. */
	ck_ok(cu.StreamBeginCapture_v2(a, RELAXED));
	ck_ok(cu.EventRecord(fork, a));
	ck_ok(cu.StreamWaitEvent(b, fork, 0));
	ck_ok(launch_put(ptr, 2, b));
	ck_cu(cu.StreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	ck_cu(cu.StreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	ck_assert_ptr_null(graph);
	/* Work outside of the capture cannot be waited for. */
	ck_ok(cu.EventRecord(outside, b));
	ck_ok(cu.StreamBeginCapture_v2(a, RELAXED));
	ck_cu(cu.StreamWaitEvent(a, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	ck_cu(launch_put(ptr, 1, a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	ck_cu(cu.StreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	/* Two captures stay two. */
	ck_ok(cu.StreamBeginCapture_v2(a, RELAXED));
	ck_ok(cu.StreamBeginCapture_v2(b, RELAXED));
	ck_ok(cu.EventRecord(fork, a));
	ck_cu(cu.StreamWaitEvent(b, fork, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
	ck_cu(cu.StreamEndCapture(b, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	ck_cu(cu.StreamEndCapture(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	ck_cu(cu.StreamEndCapture(a, &graph), CUDA_ERROR_ILLEGAL_STATE);
}
END_TEST

START_TEST(the_default_stream_stays_out_of_captures)
{
	CUstream blocking = stream_new(0), other = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(64);
	CUstreamCaptureStatus status;
	CUgraph graph;

	ck_cu(cu.StreamBeginCapture_v2(NULL, RELAXED), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	ck_ok(cu.StreamBeginCapture_v2(other, RELAXED));
	ck_ok(cu.MemsetD8_v2(ptr, 1, 4)); /* that stream does not wait for it */
	end(other);
	ck_ok(cu.StreamBeginCapture_v2(blocking, RELAXED));
	ck_cu(cu.StreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	ck_cu(cu.MemsetD8_v2(ptr, 1, 4), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	ck_cu(cu.StreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}
END_TEST

START_TEST(captures_can_be_steered)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(64);
	CUgraph graph, now;
	CUgraphNode first, second;
	const CUgraphNode *deps;
	CUstreamCaptureStatus status;
	cuuint64_t id = 0;
	size_t n = 9;

	ck_ok(cu.GraphCreate(&graph, 0));
	ck_ok(cu.GraphAddEmptyNode(&first, graph, NULL, 0));
	ck_ok(cu.StreamBeginCaptureToGraph(stream, graph, &first, NULL, 1, RELAXED));
	ck_ok(cu.StreamGetCaptureInfo_v3(stream, &status, &id, &now, &deps, NULL, &n));
	ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	ck_assert_ptr_eq(now, graph);
	ck_assert_uint_eq(n, 1);
	ck_assert_ptr_eq(deps[0], first);
	ck_ok(launch_put(ptr, 1, stream));
	ck_ok(cu.StreamGetCaptureInfo_v3(stream, &status, NULL, NULL, &deps, NULL, &n));
	second = deps[0];
	ck_ok(cu.StreamUpdateCaptureDependencies_v2(stream, &first, NULL, 1,
	                                            CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	ck_ok(launch_put(ptr + 4, 2, stream)); /* beside the other */
	ck_ok(cu.StreamUpdateCaptureDependencies_v2(stream, &second, NULL, 1,
	                                            CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
	ck_ok(cu.StreamGetCaptureInfo_v3(stream, &status, NULL, NULL, &deps, NULL, &n));
	ck_assert_uint_eq(n, 2);
	ck_cu(cu.GraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
	ck_assert_ptr_eq(end(stream), graph);
	ck_assert_uint_eq(n_nodes(graph), 3);
	launch_once(graph);
	ck_assert_uint_eq(read_u32(ptr + 4), 2);
}
END_TEST

/* Outside of the capture, but inside of the graph. */
START_TEST(external_events_are_nodes)
{
	CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING);
	struct gate gate;
	CUdeviceptr ptr = alloc(64);
	CUevent before = event_new(), after = event_new();
	CUgraphExec exec;

	ck_ok(cu.StreamBeginCapture_v2(a, RELAXED));
	ck_ok(cu.StreamWaitEvent(a, before, CU_EVENT_WAIT_EXTERNAL));
	ck_ok(launch_put(ptr, 1, a));
	ck_ok(cu.EventRecordWithFlags(after, a, CU_EVENT_RECORD_EXTERNAL));
	CUgraph graph = end(a);
	ck_assert_uint_eq(n_nodes(graph), 3);
	ck_ok(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	gate_close(&gate, b);
	ck_ok(cu.EventRecord(before, b));
	ck_ok(cu.GraphLaunch(exec, a));
	ck_cu(cu.EventQuery(after), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	ck_ok(cu.EventSynchronize(after));
	ck_assert_uint_eq(read_u32(ptr), 1);
}
END_TEST

START_TEST(a_graph_that_is_launched_in_a_capture_is_a_child)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(64);
	CUgraphExec exec;
	CUgraphNode node;
	CUgraphNodeType type;
	size_t n = 1;

	ck_ok(cu.StreamBeginCapture_v2(stream, RELAXED));
	ck_ok(launch_put(ptr, 3, stream));
	ck_ok(cu.GraphInstantiateWithFlags(&exec, end(stream), 0));
	ck_ok(cu.StreamBeginCapture_v2(stream, RELAXED));
	ck_ok(cu.GraphLaunch(exec, stream));
	CUgraph graph = end(stream);
	ck_ok(cu.GraphGetNodes(graph, &node, &n));
	ck_ok(cu.GraphNodeGetType(node, &type));
	ck_assert_int_eq(type, CU_GRAPH_NODE_TYPE_GRAPH);
	launch_once(graph);
	ck_assert_uint_eq(read_u32(ptr), 3);
}
END_TEST
