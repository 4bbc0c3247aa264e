/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: graphs made node by node, their executables, and how those change. */
#include "tests/cudasim/test_given.h"

BEGIN_EACH(driver_begin_64m)

static CUgraph graph_new(void)
{
	CUgraph graph = NULL;

	ck_ok(cu.GraphCreate(&graph, 0));
	return graph;
}

static CUgraphExec instantiate(CUgraph graph)
{
	CUgraphExec exec = NULL;

	ck_ok(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static void run(CUgraphExec exec)
{
	ck_ok(cu.GraphLaunch(exec, NULL));
	ck_ok(cu.StreamSynchronize(NULL));
}

static CUDA_KERNEL_NODE_PARAMS put_params(void **params)
{
	return (CUDA_KERNEL_NODE_PARAMS){
		.func = given("put"),
		.gridDimX = 1,
		.gridDimY = 1,
		.gridDimZ = 1,
		.blockDimX = 1,
		.blockDimY = 1,
		.blockDimZ = 1,
		.kernelParams = params,
	};
}

static CUgraphNode add_put(CUgraph graph, CUgraphNode after, CUdeviceptr addr, uint32_t value)
{
	void *params[] = {&addr, &value};
	CUDA_KERNEL_NODE_PARAMS p = put_params(params);
	CUgraphNode node = NULL;

	ck_ok(cu.GraphAddKernelNode_v2(&node, graph, after ? &after : NULL, after ? 1 : 0, &p));
	return node;
}

static CUgraphNode add_set(CUgraph graph, CUgraphNode after, CUdeviceptr dst, uint32_t value)
{
	CUcontext ctx = NULL;
	CUDA_MEMSET_NODE_PARAMS p = {
		.dst = dst, .value = value, .elementSize = 4, .width = 1, .height = 1};
	CUgraphNode node = NULL;

	ck_ok(cu.CtxGetCurrent(&ctx));
	ck_ok(cu.GraphAddMemsetNode(&node, graph, after ? &after : NULL, after ? 1 : 0, &p, ctx));
	return node;
}

static CUgraphNode add_copy(CUgraph graph, CUgraphNode after, CUdeviceptr dst, CUdeviceptr src)
{
	CUDA_MEMCPY3D p = {
		.srcMemoryType = CU_MEMORYTYPE_DEVICE,
		.srcDevice = src,
		.dstMemoryType = CU_MEMORYTYPE_DEVICE,
		.dstDevice = dst,
		.WidthInBytes = 4,
		.Height = 1,
		.Depth = 1,
	};
	CUgraphNode node = NULL;

	ck_ok(cu.GraphAddMemcpyNode(&node, graph, after ? &after : NULL, after ? 1 : 0, &p, NULL));
	return node;
}

static void CUDA_CB count_up(void *data)
{
	++*(int *)data;
}

START_TEST(nodes_run_in_the_order_of_their_edges)
{
	CUdeviceptr ptr = alloc(64);
	CUgraph graph = graph_new();
	int n_called = 0;
	CUDA_HOST_NODE_PARAMS host = {.fn = count_up, .userData = &n_called};
	CUgraphNode called;

	/* The copy is made first and comes last. */
	CUgraphNode copy = add_copy(graph, NULL, ptr + 8, ptr);
	CUgraphNode set = add_set(graph, NULL, ptr, 5);
	CUgraphNode put = add_put(graph, set, ptr, 6);
	ck_ok(cu.GraphAddDependencies_v2(graph, &put, &copy, NULL, 1));
	ck_ok(cu.GraphAddHostNode(&called, graph, &copy, 1, &host));
	ck_cu(cu.GraphAddDependencies_v2(graph, &called, &set, NULL, 1), CUDA_ERROR_INVALID_VALUE);
	CUgraphExec exec = instantiate(graph);
	ck_ok(cu.GraphDestroy(graph));
	ck_assert_int_eq(n_called, 0);
	run(exec);
	ck_assert_uint_eq(read_u32(ptr + 8), 6);
	run(exec);
	ck_assert_int_eq(n_called, 2);
	ck_ok(cu.GraphExecDestroy(exec));
}
END_TEST

START_TEST(launches_wait_for_their_stream)
{
	struct gate gate;
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(64);
	CUgraph graph = graph_new();

	add_set(graph, NULL, ptr, 5);
	ck_ok(cu.MemsetD32_v2(ptr, 1, 1));
	ck_ok(cu.CtxSynchronize());
	CUgraphExec exec = instantiate(graph);
	gate_close(&gate, stream);
	ck_ok(cu.GraphUpload(exec, stream));
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_cu(cu.StreamQuery(stream), CUDA_ERROR_NOT_READY);
	ck_assert_uint_eq(read_u32(ptr), 1);
	ck_ok(cu.GraphExecDestroy(exec)); /* what was launched runs */
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(read_u32(ptr), 5);
}
END_TEST

START_TEST(launches_of_one_executable_are_in_order)
{
	struct gate gate;
	CUstream a = stream_new(CU_STREAM_NON_BLOCKING), b = stream_new(CU_STREAM_NON_BLOCKING);
	CUgraph graph = graph_new();
	int n_called = 0;
	CUDA_HOST_NODE_PARAMS host = {.fn = count_up, .userData = &n_called};
	CUgraphNode called;

	ck_ok(cu.GraphAddHostNode(&called, graph, NULL, 0, &host));
	CUgraphExec exec = instantiate(graph);
	gate_close(&gate, a);
	ck_ok(cu.GraphLaunch(exec, a));
	ck_ok(cu.GraphLaunch(exec, b));
	ck_cu(cu.StreamQuery(b), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(b));
	ck_assert_int_eq(n_called, 2);
}
END_TEST

START_TEST(graphs_can_be_looked_at)
{
	CUdeviceptr ptr = alloc(64);
	CUgraph graph = graph_new(), clone;
	CUgraphNode set = add_set(graph, NULL, ptr, 5), put = add_put(graph, set, ptr, 6);
	CUgraphNode copy = add_copy(graph, set, ptr + 8, ptr);
	CUgraphNode nodes[4], from[4], to[4], found;
	CUgraphNodeType type;
	CUDA_KERNEL_NODE_PARAMS p;
	CUDA_MEMSET_NODE_PARAMS s;
	CUDA_MEMCPY3D c;
	size_t n = 0;

	ck_ok(cu.GraphGetNodes(graph, NULL, &n));
	ck_assert_uint_eq(n, 3);
	n = 4;
	ck_ok(cu.GraphGetNodes(graph, nodes, &n));
	ck_assert_uint_eq(n, 3);
	ck_assert_ptr_null(nodes[3]);
	n = 4;
	ck_ok(cu.GraphGetRootNodes(graph, nodes, &n));
	ck_assert_uint_eq(n, 1);
	ck_assert_ptr_eq(nodes[0], set);
	n = 4;
	ck_ok(cu.GraphGetEdges_v2(graph, from, to, NULL, &n));
	ck_assert_uint_eq(n, 2);
	ck_assert(from[0] == set && to[0] == put && from[1] == set && to[1] == copy);
	n = 4;
	ck_ok(cu.GraphNodeGetDependencies_v2(copy, nodes, NULL, &n));
	ck_assert_uint_eq(n, 1);
	n = 4;
	ck_ok(cu.GraphNodeGetDependentNodes_v2(set, nodes, NULL, &n));
	ck_assert_uint_eq(n, 2);
	ck_ok(cu.GraphNodeGetType(put, &type));
	ck_assert_int_eq(type, CU_GRAPH_NODE_TYPE_KERNEL);
	ck_ok(cu.GraphKernelNodeGetParams_v2(put, &p));
	ck_assert_ptr_eq(p.func, given("put"));
	ck_assert_uint_eq(*(CUdeviceptr *)p.kernelParams[0], ptr);
	ck_assert_uint_eq(*(uint32_t *)p.kernelParams[1], 6);
	ck_ok(cu.GraphMemsetNodeGetParams(set, &s));
	ck_assert(s.dst == ptr && s.value == 5 && s.elementSize == 4 && s.width == 1);
	ck_ok(cu.GraphMemcpyNodeGetParams(copy, &c));
	ck_assert(c.srcDevice == ptr && c.dstDevice == ptr + 8 && c.WidthInBytes == 4);
	ck_cu(cu.GraphMemsetNodeGetParams(put, &s), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.GraphClone(&clone, graph));
	ck_ok(cu.GraphNodeFindInClone(&found, put, clone));
	ck_assert_ptr_ne(found, put);
	ck_ok(cu.GraphDestroyNode(set));
	n = 4;
	ck_ok(cu.GraphGetRootNodes(graph, nodes, &n));
	ck_assert_uint_eq(n, 2);
	ck_ok(cu.GraphDestroy(clone));
	ck_ok(cu.GraphDestroy(graph));
}
END_TEST

START_TEST(executables_change_for_later_launches)
{
	struct gate gate;
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr ptr = alloc(64), other = ptr + 16;
	CUgraph graph = graph_new();
	CUgraphNode put = add_put(graph, NULL, ptr, 6), set = add_set(graph, put, ptr + 4, 1);
	CUgraphExec exec = instantiate(graph);
	uint32_t value = 7;
	void *params[] = {&other, &value};
	CUDA_KERNEL_NODE_PARAMS p = put_params(params);
	CUDA_MEMSET_NODE_PARAMS s = {
		.dst = ptr + 4, .value = 9, .elementSize = 4, .width = 1, .height = 1};

	gate_close(&gate, stream);
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_ok(cu.GraphExecKernelNodeSetParams_v2(exec, put, &p));
	ck_ok(cu.GraphExecMemsetNodeSetParams(exec, set, &s, NULL));
	ck_cu(cu.GraphExecMemsetNodeSetParams(exec, put, &s, NULL), CUDA_ERROR_INVALID_VALUE);
	gate_open(&gate);
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(read_u32(ptr), 6);
	ck_assert_uint_eq(read_u32(ptr + 4), 1);
	run(exec);
	ck_assert_uint_eq(read_u32(other), 7);
	ck_assert_uint_eq(read_u32(ptr + 4), 9);
	ck_ok(cu.MemsetD32_v2(ptr + 4, 0, 1));
	ck_ok(cu.GraphNodeSetEnabled(exec, set, 0));
	run(exec);
	ck_assert_uint_eq(read_u32(ptr + 4), 0);
}
END_TEST

START_TEST(an_update_needs_the_same_shape)
{
	CUdeviceptr ptr = alloc(64);
	CUgraph graph = graph_new(), same = graph_new(), more = graph_new(), type = graph_new();
	CUgraphNode first = add_set(graph, NULL, ptr, 1);
	CUgraphExecUpdateResultInfo info;
	uint32_t value = 7;
	void *params[] = {&ptr, &value};
	CUDA_KERNEL_NODE_PARAMS p = put_params(params);

	CUgraphNode put = add_put(graph, first, ptr, 2);
	add_put(same, add_set(same, NULL, ptr, 1), ptr, 3);
	add_set(more, add_put(more, add_set(more, NULL, ptr, 1), ptr, 3), ptr, 4);
	add_set(type, add_set(type, NULL, ptr, 1), ptr, 3);
	CUgraphExec exec = instantiate(graph);
	ck_ok(cu.GraphExecUpdate_v2(exec, same, &info));
	ck_assert_int_eq(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
	run(exec);
	ck_assert_uint_eq(read_u32(ptr), 3);
	ck_cu(cu.GraphExecUpdate_v2(exec, more, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	ck_assert_int_eq(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
	ck_cu(cu.GraphExecUpdate_v2(exec, type, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	ck_assert_int_eq(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
	run(exec);
	ck_assert_uint_eq(read_u32(ptr), 3);
	/* Its nodes are still those of the graph that it was made from. */
	ck_ok(cu.GraphExecKernelNodeSetParams_v2(exec, put, &p));
	run(exec);
	ck_assert_uint_eq(read_u32(ptr), 7);
}
END_TEST

START_TEST(children_events_and_words_are_nodes)
{
	struct gate gate;
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING), other = stream_new(1);
	CUdeviceptr ptr = alloc(64);
	CUgraph child = graph_new(), graph = graph_new(), inner;
	CUgraphNode put = add_put(child, NULL, ptr, 2), nodes[5], found;
	CUevent before, after;
	CUstreamBatchMemOpParams op = {0};
	size_t n = 1;

	ck_ok(cu.EventCreate(&before, 0));
	ck_ok(cu.EventCreate(&after, 0));
	op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
	op.writeValue.address = ptr + 4;
	op.writeValue.value = 8;
	CUgraphNodeParams words = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
	words.memOp.count = 1;
	words.memOp.paramArray = &op;
	ck_ok(cu.GraphAddEventWaitNode(&nodes[0], graph, NULL, 0, before));
	ck_ok(cu.GraphAddChildGraphNode(&nodes[1], graph, &nodes[0], 1, child));
	ck_ok(cu.GraphAddNode_v2(&nodes[2], graph, &nodes[1], NULL, 1, &words));
	ck_ok(cu.GraphAddEmptyNode(&nodes[3], graph, &nodes[2], 1));
	ck_ok(cu.GraphAddEventRecordNode(&nodes[4], graph, &nodes[3], 1, after));
	ck_ok(cu.GraphChildGraphNodeGetGraph(nodes[1], &inner));
	ck_assert_ptr_ne(inner, child);
	ck_ok(cu.GraphNodeFindInClone(&found, put, inner));
	ck_ok(cu.GraphGetNodes(inner, &put, &n));
	ck_assert_ptr_eq(found, put);
	ck_cu(cu.GraphDestroy(inner), CUDA_ERROR_INVALID_VALUE);
	CUgraphExec exec = instantiate(graph);
	ck_ok(cu.MemsetD8_v2(ptr, 0, 64));
	ck_ok(cu.CtxSynchronize());
	gate_close(&gate, other);
	ck_ok(cu.EventRecord(before, other));
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_cu(cu.EventQuery(after), CUDA_ERROR_NOT_READY);
	gate_open(&gate);
	ck_ok(cu.EventSynchronize(after));
	ck_assert_uint_eq(read_u32(ptr), 2);
	ck_assert_uint_eq(read_u32(ptr + 4), 8);
	/* A node of the child can be changed in the executable. */
	uint32_t value = 11;
	void *params[] = {&ptr, &value};
	CUDA_KERNEL_NODE_PARAMS p = put_params(params);
	ck_ok(cu.GraphExecKernelNodeSetParams_v2(exec, put, &p));
	run(exec);
	ck_assert_uint_eq(read_u32(ptr), 11);
}
END_TEST

/* As measured on an H200: without a context it is that of the memory, and what is mapped has none. */
START_TEST(a_set_of_mapped_memory_wants_a_context)
{
	CUdeviceptr addr = chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE), ptr = alloc(64);
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	CUgraph graph = graph_new();
	CUgraphNode node;

	params.memset.dst = addr;
	params.memset.elementSize = 4;
	params.memset.width = 1;
	params.memset.height = 1;
	ck_cu(cu.GraphAddNode_v2(&node, graph, NULL, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE);
	params.memset.ctx = driver_context;
	ck_ok(cu.GraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
	params.memset.ctx = NULL;
	params.memset.dst = ptr;
	ck_ok(cu.GraphAddNode_v2(&node, graph, NULL, NULL, 0, &params));
}
END_TEST

/* As measured on an H200. */
START_TEST(read_only_memory_is_no_destination)
{
	CUdeviceptr addr = chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE), ptr = alloc(64);
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUgraph graph = graph_new(), captured;
	CUgraphExec exec = NULL;

	add_set(graph, NULL, addr, 5);
	ck_ok(set_access(addr, GRANULE, READ_ONLY));
	ck_cu(cu.GraphInstantiateWithFlags(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.StreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	ck_cu(cu.MemcpyDtoDAsync_v2(addr, ptr, 64, stream), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.MemsetD8Async(addr, 1, 64, stream));
	ck_ok(cu.StreamWriteValue32_v2(stream, addr, 1, 0));
	ck_ok(cu.StreamEndCapture(stream, &captured));
	ck_cu(cu.GraphInstantiateWithFlags(&exec, captured, 0), CUDA_ERROR_INVALID_VALUE);
	ck_ok(set_access(addr, GRANULE, READ_WRITE));
	run(instantiate(captured));
}
END_TEST

/* Nobody looks at the addresses of a graph when it is launched. */
START_TEST(a_graph_that_writes_to_read_only_memory_ends_the_context)
{
	CUdeviceptr addr = chunk_map(chunk_new(GRANULE), GRANULE, READ_WRITE);
	CUgraph graph = graph_new();

	add_set(graph, NULL, addr, 5);
	CUgraphExec exec = instantiate(graph);
	run(exec);
	ck_ok(set_access(addr, GRANULE, READ_ONLY));
	ck_ok(cu.GraphLaunch(exec, NULL));
	ck_cu(cu.StreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(objects_live_as_long_as_their_graphs)
{
	CUgraph graph = graph_new();
	CUuserObject object;
	int n_ended = 0;

	ck_ok(cu.UserObjectCreate(&object, &n_ended, count_up, 1,
	                          CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	ck_ok(cu.GraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
	CUgraphExec exec = instantiate(graph);
	ck_ok(cu.GraphDestroy(graph));
	run(exec);
	ck_assert_int_eq(n_ended, 0);
	ck_ok(cu.GraphExecDestroy(exec));
	ck_assert_int_eq(n_ended, 1);
}
END_TEST
