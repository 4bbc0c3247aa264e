/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated driver: memory that graphs allocate. */
#include "tests/cudasim/test_given.h"

BEGIN_EACH(driver_begin_64m)

#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED

static uint64_t attribute(CUgraphMem_attribute which)
{
	uint64_t value = 0;

	ck_ok(cu.DeviceGetGraphMemAttribute(0, which, &value));
	return value;
}

static uint64_t reserved(void)
{
	return attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
}

static uint64_t in_use(void)
{
	return attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
}

/* Allocates, fills, copies the first word to @out, and frees if told so. */
static CUgraph capture(CUstream stream, CUdeviceptr out, bool is_freed, CUdeviceptr *ptr_out)
{
	CUgraph graph;

	ck_ok(cu.StreamBeginCapture_v2(stream, RELAXED));
	ck_ok(cu.MemAllocAsync(ptr_out, 2 * GRANULE, stream));
	ck_ok(cu.MemsetD8Async(*ptr_out, 7, 2 * GRANULE, stream));
	ck_ok(cu.MemcpyDtoDAsync_v2(out, *ptr_out, 4, stream));
	if (is_freed) {
		ck_ok(cu.MemFreeAsync(*ptr_out, stream));
	}
	ck_ok(cu.StreamEndCapture(stream, &graph));
	return graph;
}

START_TEST(memory_is_there_when_it_is_launched)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr out = alloc(GRANULE), ptr;
	CUgraph graph = capture(stream, out, true, &ptr);
	CUgraphExec exec;

	ck_assert_uint_eq(used_bytes(), GRANULE);
	ck_ok(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	ck_assert_uint_eq(in_use(), 0);
	for (int i = 0; i < 3; i++) {
		ck_ok(cu.GraphLaunch(exec, stream));
	}
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(read_u32(out), 0x07070707);
	ck_assert_uint_eq(in_use(), 0);
	ck_assert_uint_eq(reserved(), 2 * GRANULE); /* for the next launch */
	ck_assert_uint_ge(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 2 * GRANULE);
	ck_assert_uint_eq(used_bytes(), 3 * GRANULE);
	ck_ok(cu.DeviceGraphMemTrim(0));
	ck_assert_uint_eq(reserved(), 0);
	ck_assert_uint_eq(used_bytes(), GRANULE);
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_ok(cu.StreamSynchronize(stream));
	ck_ok(cu.GraphExecDestroy(exec));
	ck_ok(cu.GraphDestroy(graph));
	ck_assert_uint_eq(used_bytes(), GRANULE);
}
END_TEST

START_TEST(what_a_graph_leaves_is_freed_by_the_program)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr out = alloc(GRANULE), ptr;
	CUgraph graph = capture(stream, out, false, &ptr);
	CUgraphExec exec;

	ck_ok(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_cu(cu.GraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE); /* it is still allocated */
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(read_u32(ptr), 0x07070707);
	ck_assert_uint_eq(in_use(), 2 * GRANULE);
	ck_ok(cu.DeviceGraphMemTrim(0));
	ck_assert_uint_eq(read_u32(ptr), 0x07070707);
	ck_ok(cu.MemFreeAsync(ptr, stream));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(in_use(), 0);
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_ok(cu.StreamSynchronize(stream));
	ck_ok(cu.MemFree_v2(ptr));
	ck_cu(cu.MemFree_v2(ptr), CUDA_ERROR_INVALID_VALUE);
	ck_ok(cu.GraphExecDestroy(exec));
	/* Launching again frees it, if that was asked for. */
	ck_ok(cu.GraphInstantiateWithFlags(&exec, graph,
	                                   CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(in_use(), 2 * GRANULE);
	/* The memory outlives the graph that made it. */
	ck_ok(cu.GraphExecDestroy(exec));
	ck_ok(cu.GraphDestroy(graph));
	ck_assert_uint_eq(read_u32(ptr), 0x07070707);
	ck_ok(cu.MemFree_v2(ptr));
	ck_assert_uint_eq(used_bytes(), GRANULE);
}
END_TEST

START_TEST(nodes_allocate_and_free)
{
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUgraph graph, clone;
	CUgraphNode take, give, set;
	CUgraphExec exec;
	CUDA_MEM_ALLOC_NODE_PARAMS params = {
		.poolProps =
			{
				.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
			},
		.bytesize = 100 * GRANULE,
	};

	ck_ok(cu.GraphCreate(&graph, 0));
	ck_cu(cu.GraphAddMemAllocNode(&take, graph, NULL, 0, &params), CUDA_ERROR_OUT_OF_MEMORY);
	params.bytesize = GRANULE;
	ck_ok(cu.GraphAddMemAllocNode(&take, graph, NULL, 0, &params));
	ck_assert_uint_ne(params.dptr, 0);
	CUDA_MEMSET_NODE_PARAMS s = {
		.dst = params.dptr, .value = 1, .elementSize = 1, .width = 64, .height = 1};
	ck_ok(cu.GraphAddMemsetNode(&set, graph, &take, 1, &s, NULL));
	ck_ok(cu.GraphAddMemFreeNode(&give, graph, &set, 1, params.dptr));
	ck_cu(cu.GraphClone(&clone, graph), CUDA_ERROR_NOT_SUPPORTED);
	ck_ok(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(in_use(), 0);
	ck_assert_uint_eq(reserved(), GRANULE);
}
END_TEST

START_TEST_WITH(a_launch_that_finds_no_memory_is_refused, .begin = driver_not_yet)
{
	driver_begin("1x16MiB");
	CUstream stream = stream_new(CU_STREAM_NON_BLOCKING);
	CUdeviceptr out = alloc(GRANULE), ptr;
	CUgraph graph = capture(stream, out, true, &ptr);
	CUdeviceptr rest = alloc(6 * GRANULE);
	CUgraphExec exec;

	ck_ok(cu.GraphInstantiateWithFlags(&exec, graph, 0));
	ck_cu(cu.GraphLaunch(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(in_use(), 0);
	ck_ok(cu.MemFree_v2(rest));
	ck_ok(cu.GraphLaunch(exec, stream));
	ck_ok(cu.StreamSynchronize(stream));
	ck_assert_uint_eq(read_u32(out), 0x07070707);
}
END_TEST
