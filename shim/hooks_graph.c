/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs. Destinations of executable graphs are noted (graphs.h) when they are made and changed, and forgotten when they are
 * destroyed. The driver takes no read-only destination, neither for a node nor for an executable, so a call that names
 * sealed memory gets private copies first, as a call that writes there. Destinations are looked at inside the gate, where no
 * memory is sealed meanwhile.
 */
#include "shim/gate.h"
#include "shim/graphs.h"
#include "shim/guard.h"
#include "shim/heap.h"
#include "shim/shim.h"

/* A call that names destinations. */
struct naming {
	struct gate_thread *thread; /* NULL: not inside */
	CUresult result;            /* before the driver's call: CUDA_SUCCESS if it may be made */
};

/* @params: of the nodes, or NULL. False: the call fails. */
static bool begin(struct naming *naming, const CUgraphNodeParams *params)
{
	struct writes_span sealed;
	*naming = (struct naming){.thread = gate_enter(), .result = CUDA_SUCCESS};
	if (!naming->thread) {
		naming->result = CUDA_ERROR_DEINITIALIZED;
		return false;
	}
	while (params && writes_are_watched() && (sealed = graphs_find(params)).n_bytes > 0 &&
	       writes_give_copies_to(&naming->thread, sealed, &naming->result)) {
	}
	return naming->result == CUDA_SUCCESS;
}

static CUresult end(const struct naming *naming)
{
	if (naming->thread) {
		gate_leave(naming->thread);
	}
	return naming->result;
}

/* ---- parameters -------------------------------------------------------------------------------- */

/* If @copy is NULL the node has no destination, and the driver returns the error. */
static CUgraphNodeParams of_copy(const CUDA_MEMCPY3D *copy)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	if (copy) {
		params.memcpy.copyParams = *copy;
	}
	return params;
}

static CUgraphNodeParams of_set(const CUDA_MEMSET_NODE_PARAMS *set)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	if (set) {
		params.memset.dst = set->dst;
		params.memset.pitch = set->pitch;
		params.memset.elementSize = set->elementSize;
		params.memset.width = set->width;
		params.memset.height = set->height;
	}
	return params;
}

static CUgraphNodeParams of_words(const CUDA_BATCH_MEM_OP_NODE_PARAMS *words)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
	if (words) {
		params.memOp.count = words->count;
		params.memOp.paramArray = words->paramArray;
	}
	return params;
}

static CUgraphNodeParams of_graph(CUgraph graph)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
	params.graph.graph = graph;
	return params;
}

/* For a set without a context the driver takes that of the memory, but mapped memory has none, so it is filled in here. */
static CUcontext set_ctx(CUcontext ctx, CUdeviceptr dst)
{
	struct heap_facts facts;
	return ctx || !heap_find(dst, &facts) ? ctx : facts.target.ctx;
}

/* ---- nodes ------------------------------------------------------------------------------------- */

CUresult shim_cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                   size_t n_deps, const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
	const CUgraphNodeParams params = of_copy(copy);
	struct naming naming;
	if (begin(&naming, &params)) {
		naming.result = real(cuGraphAddMemcpyNode)(node, graph, deps, n_deps, copy, ctx);
	}
	return end(&naming);
}

CUresult shim_cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                   size_t n_deps, const CUDA_MEMSET_NODE_PARAMS *set, CUcontext ctx)
{
	const CUgraphNodeParams params = of_set(set);
	struct naming naming;
	ctx = set_ctx(ctx, params.memset.dst);
	if (begin(&naming, &params)) {
		naming.result = real(cuGraphAddMemsetNode)(node, graph, deps, n_deps, set, ctx);
	}
	return end(&naming);
}

CUresult shim_cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                       size_t n_deps, const CUDA_BATCH_MEM_OP_NODE_PARAMS *words)
{
	const CUgraphNodeParams params = of_words(words);
	struct naming naming;
	if (begin(&naming, &params)) {
		naming.result = real(cuGraphAddBatchMemOpNode)(node, graph, deps, n_deps, words);
	}
	return end(&naming);
}

/* The parameters for the driver: @params, or @own with a context filled in. */
static CUgraphNodeParams *with_ctx(CUgraphNodeParams *params, CUgraphNodeParams *own)
{
	if (!params || params->type != CU_GRAPH_NODE_TYPE_MEMSET || params->memset.ctx) {
		return params;
	}
	*own = *params;
	own->memset.ctx = set_ctx(NULL, own->memset.dst);
	return own;
}

CUresult shim_cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                             size_t n_deps, CUgraphNodeParams *params)
{
	CUgraphNodeParams own;
	struct naming naming;
	if (begin(&naming, params)) {
		naming.result = real(cuGraphAddNode)(node, graph, deps, n_deps,
		                                     with_ctx(params, &own));
	}
	return end(&naming);
}

CUresult shim_cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                const CUgraphEdgeData *edges, size_t n_deps,
                                CUgraphNodeParams *params)
{
	CUgraphNodeParams own;
	struct naming naming;
	if (begin(&naming, params)) {
		naming.result = real(cuGraphAddNode_v2)(node, graph, deps, edges, n_deps,
		                                        with_ctx(params, &own));
	}
	return end(&naming);
}

CUresult shim_cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *copy)
{
	const CUgraphNodeParams params = of_copy(copy);
	struct naming naming;
	if (begin(&naming, &params)) {
		naming.result = real(cuGraphMemcpyNodeSetParams)(node, copy);
	}
	return end(&naming);
}

CUresult shim_cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *set)
{
	const CUgraphNodeParams params = of_set(set);
	struct naming naming;
	if (begin(&naming, &params)) {
		naming.result = real(cuGraphMemsetNodeSetParams)(node, set);
	}
	return end(&naming);
}

CUresult shim_cuGraphBatchMemOpNodeSetParams(CUgraphNode node,
                                             const CUDA_BATCH_MEM_OP_NODE_PARAMS *words)
{
	const CUgraphNodeParams params = of_words(words);
	struct naming naming;
	if (begin(&naming, &params)) {
		naming.result = real(cuGraphBatchMemOpNodeSetParams)(node, words);
	}
	return end(&naming);
}

CUresult shim_cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params)
{
	struct naming naming;
	if (begin(&naming, params)) {
		naming.result = real(cuGraphNodeSetParams)(node, params);
	}
	return end(&naming);
}

/* ---- executables: made ------------------------------------------------------------------------- */

/*
 * Make private what kernels of @exec may write to and the guard has marked. Called after the notes are made: auto.c marks
 * first and then looks at the notes, so one of the two sees the other.
 */
static void judge(struct naming *naming, CUgraphExec exec)
{
	struct graphs_use use;
	while (naming->result == CUDA_SUCCESS && guard_is_awake() &&
	       graphs_find_marked(exec, &use)) {
		naming->result = guard_noted(&naming->thread, use.ptr, use.kernel);
	}
}

static bool note_made(CUgraphExec exec, CUgraph graph, unsigned long long flags)
{
	return graphs_note(exec, graph, NULL) &&
	       (!(flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) ||
	        graphs_note_opaque(exec, "it is for the device to launch"));
}

/* The driver has made *exec of @graph. The handle may have been another executable's. */
static CUresult made(struct naming *naming, CUgraphExec *exec, CUgraph graph,
                     unsigned long long flags)
{
	if (naming->result != CUDA_SUCCESS) {
		return end(naming);
	}
	graphs_drop(*exec);
	if (note_made(*exec, graph, flags)) {
		graphs_settle(*exec, NULL, true);
		judge(naming, *exec);
	} else {
		naming->result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (naming->result != CUDA_SUCCESS) {
		graphs_drop(*exec);
		real(cuGraphExecDestroy)(*exec);
	}
	return end(naming);
}

static bool begin_making(struct naming *naming, CUgraph graph)
{
	const CUgraphNodeParams params = of_graph(graph);
	return begin(naming, &params);
}

CUresult shim_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                 char *text, size_t n_text)
{
	struct naming naming;
	if (begin_making(&naming, graph)) {
		naming.result = real(cuGraphInstantiate)(exec, graph, error_node, text, n_text);
	}
	return made(&naming, exec, graph, 0);
}

CUresult shim_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                    char *text, size_t n_text)
{
	struct naming naming;
	if (begin_making(&naming, graph)) {
		naming.result = real(cuGraphInstantiate_v2)(exec, graph, error_node, text, n_text);
	}
	return made(&naming, exec, graph, 0);
}

CUresult shim_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                          unsigned long long flags)
{
	struct naming naming;
	if (begin_making(&naming, graph)) {
		naming.result = real(cuGraphInstantiateWithFlags)(exec, graph, flags);
	}
	return made(&naming, exec, graph, flags);
}

CUresult shim_cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	struct naming naming;
	if (begin_making(&naming, graph)) {
		naming.result = real(cuGraphInstantiateWithParams)(exec, graph, params);
	}
	return made(&naming, exec, graph, params ? params->flags : 0);
}

CUresult shim_cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	struct naming naming;
	if (begin_making(&naming, graph)) {
		naming.result = real(cuGraphInstantiateWithParams_ptsz)(exec, graph, params);
	}
	return made(&naming, exec, graph, params ? params->flags : 0);
}

CUresult shim_cuGraphExecDestroy(CUgraphExec exec)
{
	/* Drop the notes before the call, because the driver may give the handle out again at once. */
	graphs_drop(exec);
	return real(cuGraphExecDestroy)(exec);
}

/* ---- executables: changed ---------------------------------------------------------------------- */

/* Make private, and note, the destinations of @exec by @node, or (NULL) by all of its nodes. */
static bool begin_changing(struct naming *naming, CUgraphExec exec, CUgraphNode node,
                           const CUgraphNodeParams *params)
{
	if (begin(naming, params) && params && !graphs_note_node(exec, node, params)) {
		naming->result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	judge(naming, exec);
	return naming->result == CUDA_SUCCESS;
}

static CUresult end_changing(const struct naming *naming, CUgraphExec exec, CUgraphNode node)
{
	graphs_settle(exec, node, naming->result == CUDA_SUCCESS);
	return end(naming);
}

CUresult shim_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node,
                                CUgraphExecUpdateResult *why)
{
	const CUgraphNodeParams params = of_graph(graph);
	struct naming naming;
	if (begin_changing(&naming, exec, NULL, &params)) {
		naming.result = real(cuGraphExecUpdate)(exec, graph, node, why);
	}
	return end_changing(&naming, exec, NULL);
}

CUresult shim_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                   CUgraphExecUpdateResultInfo *why)
{
	const CUgraphNodeParams params = of_graph(graph);
	struct naming naming;
	if (begin_changing(&naming, exec, NULL, &params)) {
		naming.result = real(cuGraphExecUpdate_v2)(exec, graph, why);
	}
	return end_changing(&naming, exec, NULL);
}

CUresult shim_cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	const CUgraphNodeParams params = of_graph(child);
	struct naming naming;
	if (begin_changing(&naming, exec, node, &params)) {
		naming.result = real(cuGraphExecChildGraphNodeSetParams)(exec, node, child);
	}
	return end_changing(&naming, exec, node);
}

CUresult shim_cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
	const CUgraphNodeParams params = of_copy(copy);
	struct naming naming;
	if (begin_changing(&naming, exec, node, &params)) {
		naming.result = real(cuGraphExecMemcpyNodeSetParams)(exec, node, copy, ctx);
	}
	return end_changing(&naming, exec, node);
}

CUresult shim_cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_MEMSET_NODE_PARAMS *set, CUcontext ctx)
{
	const CUgraphNodeParams params = of_set(set);
	struct naming naming;
	if (begin_changing(&naming, exec, node, &params)) {
		naming.result = real(cuGraphExecMemsetNodeSetParams)(exec, node, set, ctx);
	}
	return end_changing(&naming, exec, node);
}

CUresult shim_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_BATCH_MEM_OP_NODE_PARAMS *words)
{
	const CUgraphNodeParams params = of_words(words);
	struct naming naming;
	if (begin_changing(&naming, exec, node, &params)) {
		naming.result = real(cuGraphExecBatchMemOpNodeSetParams)(exec, node, words);
	}
	return end_changing(&naming, exec, node);
}

CUresult shim_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                       CUgraphNodeParams *params)
{
	struct naming naming;
	if (begin_changing(&naming, exec, node, params)) {
		naming.result = real(cuGraphExecNodeSetParams)(exec, node, params);
	}
	return end_changing(&naming, exec, node);
}

static CUgraphNodeParams of_kernel(CUfunction func, CUkernel kern, void **params, void **extra)
{
	CUgraphNodeParams all = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
	all.kernel.func = func;
	all.kernel.kern = kern;
	all.kernel.kernelParams = params;
	all.kernel.extra = extra;
	return all;
}

CUresult shim_cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_KERNEL_NODE_PARAMS_v1 *kernel)
{
	CUgraphNodeParams params;
	struct naming naming;
	if (kernel) {
		params = of_kernel(kernel->func, NULL, kernel->kernelParams, kernel->extra);
	}
	if (begin_changing(&naming, exec, node, kernel ? &params : NULL)) {
		naming.result = real(cuGraphExecKernelNodeSetParams)(exec, node, kernel);
	}
	return end_changing(&naming, exec, node);
}

CUresult shim_cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS_v2 *kernel)
{
	CUgraphNodeParams params;
	struct naming naming;
	if (kernel) {
		params = of_kernel(kernel->func, kernel->kern, kernel->kernelParams, kernel->extra);
	}
	if (begin_changing(&naming, exec, node, kernel ? &params : NULL)) {
		naming.result = real(cuGraphExecKernelNodeSetParams_v2)(exec, node, kernel);
	}
	return end_changing(&naming, exec, node);
}
