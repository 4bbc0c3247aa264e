/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that allocates on captured streams, linked against the driver.
 *
 *   graphmem SCENARIO
 *
 * It ends with 0, or with 1 and a line on stderr. $PLAIN: without a session that stitches; what both do the same
 * is checked all the same.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/shim/device.h"
#include "tests/shim/scenario.h"

#define MIB (1ull << 20)
#define QUOTA (64 * MIB)

static CUcontext ctx;
static CUstream stream; /* that is captured */
static CUstream eager;
static bool is_plain;

static void start(void)
{
	is_plain = getenv("PLAIN") != NULL;
	ctx = use_device(0);
	stream = new_stream();
	eager = new_stream();
}

static void set(CUdeviceptr ptr, size_t n_bytes, unsigned char value, CUstream on)
{
	must_ok(cuMemsetD8Async(ptr, value, n_bytes, on));
}

/* How many of the bytes are not @value. */
TEST_BYTE_LOOP static size_t n_wrong(CUdeviceptr ptr, size_t n_bytes, unsigned char value)
{
	unsigned char *bytes = malloc(n_bytes);
	size_t n = 0;
	must_ok(cuMemcpyDtoH(bytes, ptr, n_bytes));
	for (size_t i = 0; i < n_bytes; i++) {
		n += bytes[i] != value;
	}
	free(bytes);
	return n;
}

static void begin_capture(void)
{
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static CUgraph end_capture(void)
{
	CUgraph graph;
	must_ok(cuStreamEndCapture(stream, &graph));
	return graph;
}

static CUgraphExec instantiate(CUgraph graph)
{
	CUgraphExec exec;
	must_ok(cuGraphInstantiateWithFlags(&exec, graph,
	                                    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
	return exec;
}

static void launch(CUgraphExec exec, CUstream on)
{
	must_ok(cuGraphLaunch(exec, on));
	must_ok(cuStreamSynchronize(on));
}

/* Stream @to goes on behind @from. */
static void join(CUstream from, CUstream to)
{
	CUevent event;
	must_ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	must_ok(cuEventRecord(event, from));
	must_ok(cuStreamWaitEvent(to, event, 0));
	must_ok(cuEventDestroy(event));
}

static uint64_t count(const char *name)
{
	uint64_t (*ask)(const char *) = dlsym(RTLD_DEFAULT, "glake_shim_count");
	return ask(name);
}

/* Is there room for @n_bytes in the quota? Always without the session. */
static bool has_room(size_t n_bytes)
{
	CUdeviceptr ptr;
	CUresult result = cuMemAllocAsync(&ptr, n_bytes, eager);
	if (result == CUDA_SUCCESS) {
		must_ok(cuMemFreeAsync(ptr, eager));
		must_ok(cuStreamSynchronize(eager));
	}
	return result == CUDA_SUCCESS;
}

/* A chunk that is used in part is not stitched from. */
static bool has_room_twice(size_t n_bytes)
{
	CUdeviceptr ptr;
	bool has = cuMemAllocAsync(&ptr, n_bytes, eager) == CUDA_SUCCESS;
	if (has) {
		has = has_room(n_bytes);
		must_ok(cuMemFreeAsync(ptr, eager));
		must_ok(cuStreamSynchronize(eager));
	}
	return has;
}

static size_t n_nodes_of(CUgraph graph, CUgraphNodeType type)
{
	CUgraphNode nodes[64];
	size_t n = 64;
	size_t n_of = 0;
	must_ok(cuGraphGetNodes(graph, nodes, &n));
	for (size_t i = 0; i < n; i++) {
		CUgraphNodeType found;
		must_ok(cuGraphNodeGetType(nodes[i], &found));
		n_of += found == type;
	}
	return n_of;
}

/* ---- scenarios ---- */

static void memory_is_ours(void)
{
	CUdeviceptr out;
	cuuint64_t reserved;
	start();
	out = alloc(4096);
	begin_capture();
	CUdeviceptr a = alloc_on(stream, 4 * MIB);
	set(a, 4 * MIB, 7, stream);
	must_ok(cuMemcpyDtoDAsync(out, a, 1024, stream));
	must_ok(cuMemFreeAsync(a, stream));
	/* Behind the free: small or large, it may have the same bytes. */
	CUdeviceptr b = alloc_on(stream, 4 * MIB);
	must(b == a);
	set(b, 4 * MIB, 8, stream);
	must_ok(cuMemcpyDtoDAsync(out + 1024, b, 1024, stream));
	must_ok(cuMemFreeAsync(b, stream));
	CUdeviceptr small[2] = {alloc_on(stream, 1000), 0};
	set(small[0], 1000, 9, stream);
	must_ok(cuMemcpyDtoDAsync(out + 2048, small[0], 1000, stream));
	must_ok(cuMemFreeAsync(small[0], stream));
	small[1] = alloc_on(stream, 700);
	must(small[1] == small[0]);
	must_ok(cuMemFreeAsync(small[1], stream));
	must(cuMemFreeAsync(small[1] + 1, stream) != CUDA_SUCCESS);
	CUgraph graph = end_capture();
	must(n_nodes_of(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC) == 0);
	must(n_nodes_of(graph, CU_GRAPH_NODE_TYPE_MEM_FREE) == 0);
	CUgraphExec exec = instantiate(graph);
	for (int i = 0; i < 3; i++) {
		set(out, 4096, 0, eager);
		launch(exec, eager);
		must(n_wrong(out, 1024, 7) == 0);
		must(n_wrong(out + 1024, 1024, 8) == 0);
		must(n_wrong(out + 2048, 1000, 9) == 0);
	}
	must_ok(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
	must(reserved == 0);
	must(count("passed") == 0);
}

/* Streams of one capture, which only what the program joins puts in order. */
static void streams_of_a_capture_share_nothing(void)
{
	start();
	CUstream side = new_stream();
	begin_capture();
	CUdeviceptr out = alloc_on(stream, 4 * MIB);
	CUdeviceptr a = alloc_on(stream, 4 * MIB);
	set(a, 4 * MIB, 1, stream);
	must_ok(cuMemFreeAsync(a, stream));
	join(stream, side);
	CUdeviceptr b = alloc_on(side, 4 * MIB);
	must(is_plain || b != a);
	set(b, 4 * MIB, 2, side);
	must_ok(cuMemcpyDtoDAsync(out, b, 4 * MIB, side));
	/* Another stream than that it was allocated on may free it, and have it then. */
	join(side, stream);
	must_ok(cuMemFreeAsync(b, stream));
	CUdeviceptr c = alloc_on(stream, 4 * MIB);
	CUdeviceptr d = alloc_on(stream, 4 * MIB);
	must(is_plain || (c != d && (c == a || c == b) && (d == a || d == b)));
	must_ok(cuMemFreeAsync(c, stream));
	must_ok(cuMemFreeAsync(d, stream));
	CUgraph graph = end_capture();
	CUgraphExec exec = instantiate(graph);
	launch(exec, eager);
	must(n_wrong(out, 4 * MIB, 2) == 0);
	must_ok(cuMemFreeAsync(out, eager));
	must_ok(cuGraphExecDestroy(exec));
	must_ok(cuGraphDestroy(graph));
	must(has_room(QUOTA - 4 * MIB));
}

/* Memory that the stream frees is still in use when the graph is launched on another one. */
static void work_that_runs_keeps_its_memory(void)
{
	start();
	CUdeviceptr a = alloc_on(stream, 4 * MIB);
	close_gate(stream);
	must_ok(cuMemFreeAsync(a, stream));
	begin_capture();
	CUdeviceptr b = alloc_on(stream, 4 * MIB);
	must(b != a);
	set(b, 4 * MIB, 1, stream);
	CUgraph graph = end_capture();
	must_ok(cuGraphDestroy(graph));
	open_gate();
}

/* The graph's own sizes among them. */
static size_t size_beside(unsigned i)
{
	return i < 3 ? (3 + i) * MIB : 128 * 1024;
}

/* Beside all kinds of other memory, the graph's is its own for as long as it may be launched. */
static void replay_beside_others(bool frees_in_capture)
{
	CUdeviceptr beside[6];
	begin_capture();
	CUdeviceptr inner = alloc_on(stream, 5 * MIB);
	set(inner, 5 * MIB, 1, stream);
	CUdeviceptr out = alloc_on(stream, 3 * MIB);
	must_ok(cuMemcpyDtoDAsync(out, inner, 3 * MIB, stream));
	if (frees_in_capture) {
		must_ok(cuMemFreeAsync(inner, stream));
	}
	CUdeviceptr tiny = alloc_on(stream, 100);
	set(tiny, 100, 3, stream);
	CUgraph graph = end_capture();
	CUgraphExec exec = instantiate(graph);
	must_ok(cuGraphDestroy(graph));
	launch(exec, stream);
	must(n_wrong(out, 3 * MIB, 1) == 0);
	/* The tensor that outlives the capture ends; the next launch writes there all the same. */
	must_ok(cuMemFreeAsync(out, stream));
	must_ok(cuMemFree(tiny));
	if (!frees_in_capture) {
		must_ok(cuMemFreeAsync(inner, eager));
	}
	must_ok(cuCtxSynchronize());
	for (unsigned i = 0; i < 6; i++) {
		size_t n_bytes = size_beside(i);
		CUstream on = i % 2 ? stream : eager;
		beside[i] = alloc_on(on, n_bytes);
		set(beside[i], n_bytes, (unsigned char)(10 + i), on);
		must_ok(cuStreamSynchronize(on));
	}
	launch(exec, eager);
	launch(exec, stream);
	for (unsigned i = 0; i < 6; i++) {
		must(n_wrong(beside[i], size_beside(i), (unsigned char)(10 + i)) == 0);
	}
	for (unsigned i = 0; i < 6; i++) {
		must_ok(cuMemFreeAsync(beside[i], eager));
	}
	must_ok(cuStreamSynchronize(eager));
	/* The quota has room for all once the graph is over. */
	must(is_plain || !has_room(QUOTA - 4 * MIB));
	must_ok(cuGraphExecDestroy(exec));
	must(has_room(QUOTA - 4 * MIB));
}

static void others_keep_their_bytes(void)
{
	start();
	replay_beside_others(true);
	replay_beside_others(false);
}

/* As the documentation of graph memory shows it: each launch allocates, the program frees behind it. */
static void it_is_freed_behind_each_launch(void)
{
	CUgraphExec exec;
	start();
	begin_capture();
	CUdeviceptr a = alloc_on(stream, 4 * MIB);
	set(a, 4 * MIB, 5, stream);
	CUgraph graph = end_capture();
	must_ok(cuGraphInstantiateWithFlags(&exec, graph, 0));
	for (int i = 0; i < 4; i++) {
		must_ok(is_plain ? cuStreamSynchronize(eager) : CUDA_SUCCESS);
		must_ok(cuGraphLaunch(exec, eager));
		must_ok(i < 3 ? cuMemFreeAsync(a, eager) : cuMemFree(a));
	}
	must_ok(cuGraphExecDestroy(exec));
	must_ok(cuGraphDestroy(graph));
	must(has_room(QUOTA - 4 * MIB));
	/* A driver tells some time later that the graph has ended. */
	while (cuMemFreeAsync(a, eager) == CUDA_SUCCESS) {
		usleep(1000);
	}
}

/* Memory that the graph left belongs to the program, also when the graph is gone. */
static void it_outlives_its_graph(void)
{
	start();
	begin_capture();
	CUdeviceptr a = alloc_on(stream, 4 * MIB);
	set(a, 4 * MIB, 5, stream);
	CUgraph graph = end_capture();
	CUgraphExec exec = instantiate(graph);
	launch(exec, eager);
	must_ok(cuGraphExecDestroy(exec));
	must_ok(cuGraphDestroy(graph));
	CUdeviceptr b = alloc_on(eager, 4 * MIB);
	set(b, 4 * MIB, 6, eager);
	must_ok(cuStreamSynchronize(eager));
	must(n_wrong(a, 4 * MIB, 5) == 0);
	must(is_plain || !has_room(QUOTA - 4 * MIB));
	must_ok(cuMemFreeAsync(a, eager));
	must_ok(cuMemFreeAsync(b, eager));
	must_ok(cuStreamSynchronize(eager));
	must(has_room(QUOTA - 4 * MIB));
}

static CUgraph capture_fill(CUdeviceptr *out)
{
	begin_capture();
	CUdeviceptr a = alloc_on(stream, 40 * MIB);
	set(a, 40 * MIB, 4, stream);
	must_ok(cuMemcpyDtoDAsync(*out, a, 1 * MIB, stream));
	must_ok(cuMemFreeAsync(a, stream));
	return end_capture();
}

/* Copies, children and executables that were updated. */
static void all_that_is_made_of_it_holds_it(void)
{
	CUdeviceptr out;
	CUgraph clone, parent, other;
	CUgraphNode child;
	CUgraphExecUpdateResultInfo info;
	start();
	out = alloc(2 * MIB);

	CUgraph graph = capture_fill(&out);
	must_ok(cuGraphClone(&clone, graph));
	must_ok(cuGraphDestroy(graph));
	must(!has_room(40 * MIB));
	must_ok(cuGraphCreate(&parent, 0));
	must_ok(cuGraphAddChildGraphNode(&child, parent, NULL, 0, clone));
	must_ok(cuGraphDestroy(clone));
	must(!has_room(40 * MIB));
	CUgraphExec exec = instantiate(parent);
	must_ok(cuGraphDestroy(parent));
	must(!has_room(40 * MIB));
	launch(exec, eager);
	must(n_wrong(out, 1 * MIB, 4) == 0);
	must_ok(cuGraphExecDestroy(exec));
	must(has_room(40 * MIB));

	/* An update takes the other graph's memory for its own. */
	begin_capture();
	CUdeviceptr small = alloc_on(stream, 1 * MIB);
	set(small, 1 * MIB, 1, stream);
	must_ok(cuMemcpyDtoDAsync(out, small, 1 * MIB, stream));
	must_ok(cuMemFreeAsync(small, stream));
	other = end_capture();
	exec = instantiate(other);
	graph = capture_fill(&out);
	must_ok(cuGraphExecUpdate(exec, graph, &info));
	must_ok(cuGraphDestroy(graph));
	must_ok(cuGraphDestroy(other));
	must(!has_room(40 * MIB));
	launch(exec, eager);
	must(n_wrong(out, 1 * MIB, 4) == 0);
	must_ok(cuGraphExecDestroy(exec));
	must(has_room(40 * MIB));
}

/* A capture that is lost gives back what it had freed, and the rest when the program frees it. */
static void captures_fail(void)
{
	CUgraph graph = NULL;
	start();
	CUstream side = new_stream();
	for (int round = 0; round < 3; round++) {
		begin_capture();
		CUdeviceptr a = alloc_on(stream, 20 * MIB);
		CUdeviceptr b = alloc_on(stream, 20 * MIB);
		must_ok(cuMemFreeAsync(a, stream));
		if (round < 2) {
			must(cuStreamSynchronize(stream) != CUDA_SUCCESS);
		} else {
			join(stream, side); /* and never back */
			set(b, MIB, 1, side);
		}
		must(cuStreamEndCapture(stream, &graph) != CUDA_SUCCESS);
		must(has_room_twice(20 * MIB));
		must(!has_room(60 * MIB));
		must_ok(round % 2 ? cuMemFree(b) : cuMemFreeAsync(b, eager));
		must_ok(cuStreamSynchronize(eager));
		must(has_room(60 * MIB));
	}
	/* With its stream. */
	CUstream doomed = new_stream();
	must_ok(cuStreamBeginCapture(doomed, CU_STREAM_CAPTURE_MODE_RELAXED));
	CUdeviceptr a = alloc_on(doomed, 40 * MIB);
	must_ok(cuMemFreeAsync(a, doomed));
	must_ok(cuStreamDestroy(doomed));
	must(has_room(60 * MIB));
}

/* A graph may free what another one has left. */
static void another_graph_frees_it(void)
{
	CUdeviceptr out;
	start();
	out = alloc(2 * MIB);
	begin_capture();
	CUdeviceptr a = alloc_on(stream, 20 * MIB);
	set(a, 20 * MIB, 5, stream);
	CUgraph first = end_capture();
	CUgraphExec writes = instantiate(first);
	must_ok(cuGraphDestroy(first));
	begin_capture();
	must_ok(cuMemcpyDtoDAsync(out, a, 1 * MIB, stream));
	must_ok(cuMemFreeAsync(a, stream));
	CUdeviceptr b = alloc_on(stream, 20 * MIB);
	must(b != a);
	set(b, 20 * MIB, 6, stream);
	must_ok(cuMemFreeAsync(b, stream));
	CUgraph second = end_capture();
	CUgraphExec reads = instantiate(second);
	must_ok(cuGraphDestroy(second));
	for (int i = 0; i < 2; i++) {
		must_ok(cuGraphLaunch(writes, eager));
		launch(reads, eager);
		must(n_wrong(out, 1 * MIB, 5) == 0);
	}
	if (is_plain) {
		return;
	}
	must_ok(cuGraphExecDestroy(writes));
	must(!has_room(40 * MIB));
	must_ok(cuGraphExecDestroy(reads));
	must(has_room(58 * MIB));
}

/* Memory of no graph is the driver's to refuse, and on other streams it serves. */
static void other_memory_is_as_before(void)
{
	start();
	CUdeviceptr before = alloc_on(eager, 4 * MIB);
	set(before, 4 * MIB, 1, eager);
	must_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	CUdeviceptr meanwhile = alloc_on(eager, 4 * MIB);
	set(meanwhile, 4 * MIB, 2, eager);
	CUdeviceptr a = alloc_on(stream, 4 * MIB);
	set(a, 4 * MIB, 3, stream);
	must_ok(cuMemFreeAsync(a, stream));
	must_be(cuMemFreeAsync(before, stream), CUDA_ERROR_INVALID_VALUE);
	CUdeviceptr gone = alloc_on(eager, 1 * MIB);
	must_ok(cuMemFreeAsync(gone, eager));
	CUgraph graph = end_capture();
	CUgraphExec exec = instantiate(graph);
	launch(exec, eager);
	must(n_wrong(before, 4 * MIB, 1) == 0);
	must(n_wrong(meanwhile, 4 * MIB, 2) == 0);
	must_ok(cuMemFreeAsync(before, eager));
	must_ok(cuMemFreeAsync(meanwhile, eager));
	/* The program's own graph stays the driver's. */
	must_ok(cuGraphExecDestroy(exec));
	must_ok(cuGraphDestroy(graph));
	must_ok(cuGraphCreate(&graph, 0));
	must_ok(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0,
	                                    CU_STREAM_CAPTURE_MODE_GLOBAL));
	a = alloc_on(stream, 4 * MIB);
	must_ok(cuMemFreeAsync(a, stream));
	must_ok(cuStreamEndCapture(stream, &graph));
	must(n_nodes_of(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC) == 1);
}

static void contexts_end(void)
{
	start();
	for (int round = 0; round < 2; round++) {
		begin_capture();
		CUdeviceptr a = alloc_on(stream, 20 * MIB);
		CUdeviceptr b = alloc_on(stream, 10 * MIB);
		must_ok(cuMemFreeAsync(b, stream));
		alloc_on(stream, 1000);
		CUgraph graph = end_capture();
		CUgraphExec exec = instantiate(graph);
		launch(exec, eager);
		must_ok(cuMemFreeAsync(a, eager));
		must_ok(cuDevicePrimaryCtxReset(0));
		start();
		must(has_room(60 * MIB));
	}
}

int main(int argc, char **argv)
{
	static const struct scenario scenarios[] = {
#define SCENARIO(name) {#name, name},
		SCENARIO(memory_is_ours) SCENARIO(streams_of_a_capture_share_nothing) SCENARIO(
			work_that_runs_keeps_its_memory) SCENARIO(others_keep_their_bytes)
			SCENARIO(it_is_freed_behind_each_launch) SCENARIO(it_outlives_its_graph)
				SCENARIO(all_that_is_made_of_it_holds_it) SCENARIO(captures_fail)
					SCENARIO(another_graph_frees_it)
						SCENARIO(other_memory_is_as_before)
							SCENARIO(contexts_end)};
	return run_scenario(argc, argv, scenarios, sizeof(scenarios) / sizeof(scenarios[0]));
}
