/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs: made, changed, destroyed. What they write to is noted (graphs.h). */
#include "shim/graphs.h"
#include "shim/shim.h"

/* The driver has made *exec of @graph: a handle that may have been another's. */
static CUresult made(CUresult result, CUgraphExec *exec, CUgraph graph)
{
	if (result != CUDA_SUCCESS) {
		return result;
	}
	graphs_drop(*exec);
	if (!graphs_note(*exec, graph, NULL)) {
		graphs_drop(*exec);
		real(cuGraphExecDestroy)(*exec);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	graphs_settle(*exec, NULL, true);
	return CUDA_SUCCESS;
}

CUresult shim_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                 char *text, size_t n_text)
{
	CUresult result = real(cuGraphInstantiate)(exec, graph, error_node, text, n_text);
	return made(result, exec, graph);
}

CUresult shim_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                    char *text, size_t n_text)
{
	CUresult result = real(cuGraphInstantiate_v2)(exec, graph, error_node, text, n_text);
	return made(result, exec, graph);
}

CUresult shim_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                          unsigned long long flags)
{
	return made(real(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph);
}

CUresult shim_cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	return made(real(cuGraphInstantiateWithParams)(exec, graph, params), exec, graph);
}

CUresult shim_cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	return made(real(cuGraphInstantiateWithParams_ptsz)(exec, graph, params), exec, graph);
}

CUresult shim_cuGraphExecDestroy(CUgraphExec exec)
{
	/* Before: the driver may give the handle out again at once. */
	graphs_drop(exec);
	return real(cuGraphExecDestroy)(exec);
}

static CUresult changed(CUresult result, CUgraphExec exec, CUgraphNode node)
{
	graphs_settle(exec, node, result == CUDA_SUCCESS);
	return result;
}

CUresult shim_cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node,
                                CUgraphExecUpdateResult *why)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (graphs_note(exec, graph, NULL)) {
		result = real(cuGraphExecUpdate)(exec, graph, node, why);
	}
	return changed(result, exec, NULL);
}

CUresult shim_cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                                   CUgraphExecUpdateResultInfo *why)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (graphs_note(exec, graph, NULL)) {
		result = real(cuGraphExecUpdate_v2)(exec, graph, why);
	}
	return changed(result, exec, NULL);
}

CUresult shim_cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (graphs_note(exec, child, node)) {
		result = real(cuGraphExecChildGraphNodeSetParams)(exec, node, child);
	}
	return changed(result, exec, node);
}

CUresult shim_cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMCPY};
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (copy) {
		params.memcpy.copyParams = *copy;
	}
	if (graphs_note_node(exec, node, &params)) {
		result = real(cuGraphExecMemcpyNodeSetParams)(exec, node, copy, ctx);
	}
	return changed(result, exec, node);
}

CUresult shim_cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                             const CUDA_MEMSET_NODE_PARAMS *set, CUcontext ctx)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEMSET};
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (set) {
		params.memset.dst = set->dst;
		params.memset.pitch = set->pitch;
		params.memset.elementSize = set->elementSize;
		params.memset.width = set->width;
		params.memset.height = set->height;
	}
	if (graphs_note_node(exec, node, &params)) {
		result = real(cuGraphExecMemsetNodeSetParams)(exec, node, set, ctx);
	}
	return changed(result, exec, node);
}

CUresult shim_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                                 const CUDA_BATCH_MEM_OP_NODE_PARAMS *words)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (words) {
		params.memOp.count = words->count;
		params.memOp.paramArray = words->paramArray;
	}
	if (graphs_note_node(exec, node, &params)) {
		result = real(cuGraphExecBatchMemOpNodeSetParams)(exec, node, words);
	}
	return changed(result, exec, node);
}

CUresult shim_cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                       CUgraphNodeParams *params)
{
	CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!params || graphs_note_node(exec, node, params)) {
		result = real(cuGraphExecNodeSetParams)(exec, node, params);
	}
	return changed(result, exec, node);
}
