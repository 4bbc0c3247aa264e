/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes of graphs are made, queried and changed here, all by the parameters of cuGraphAddNode(). */
#include "graph.h"

#include <string.h>

/* ---- parameters and works ---- */

static struct ctx *ctx_or_current(CUcontext handle)
{
	struct ctx *ctx = handle ? ctx_from_handle(handle) : ctx_current();

	return ctx && ctx_check(ctx) == CUDA_SUCCESS ? ctx : NULL;
}

static CUresult kernel_work(const CUgraphNodeParams *params, struct work *work)
{
	const CUDA_KERNEL_NODE_PARAMS_v3 *p = &params->kernel;

	work->of.launch = (struct launch){
		.grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
		.block = {p->blockDimX, p->blockDimY, p->blockDimZ},
		.shared_bytes = p->sharedMemBytes,
	};
	return launch_fill(&work->of.launch, p->func ? p->func : (CUfunction)p->kern,
	                   p->kernelParams, p->extra);
}

static CUresult set_work(const CUgraphNodeParams *params, struct work *work)
{
	const CUDA_MEMSET_NODE_PARAMS_v2 *p = &params->memset;

	if ((p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || p->width == 0 ||
	    p->height == 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	work->of.set = (struct set){
		.dst = p->dst,
		.pitch = p->pitch,
		.n_rows = p->height,
		.row_bytes = p->width * p->elementSize,
		.value = p->value,
		.element_bytes = p->elementSize,
	};
	return set_check(&work->of.set, work->ctx->device);
}

static CUresult copy_work(const CUgraphNodeParams *params, struct work *work)
{
	CUresult err = copy_from_shape(&params->memcpy.copyParams, &work->of.copy);

	return err == CUDA_SUCCESS ? copy_check(&work->of.copy, work->ctx->device) : err;
}

static CUresult child_work(const CUgraphNodeParams *params, struct work *work)
{
	const struct graph *graph = graph_from_handle(params->graph.graph);

	if (!graph) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = graph_clone(graph, false, &work->of.child);
	if (err == CUDA_SUCCESS) {
		work->of.child->is_child = true;
	}
	return err;
}

static CUresult event_work(CUevent event, struct work *work)
{
	if (!event_is_known(event)) {
		return CUDA_ERROR_INVALID_HANDLE;
	}
	work->of.event.event = event;
	return CUDA_SUCCESS;
}

static CUresult alloc_work(const CUgraphNodeParams *params, struct work *work)
{
	const CUmemPoolProps *props = &params->alloc.poolProps;

	if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    props->handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
	    props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    !device_is_valid(props->location.id)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	return graphmem_new((unsigned)props->location.id, params->alloc.bytesize, &work->of.memory);
}

static CUresult fill_work(const CUgraphNodeParams *params, struct work *work)
{
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return kernel_work(params, work);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return copy_work(params, work);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return set_work(params, work);
	case CU_GRAPH_NODE_TYPE_HOST:
		work->of.call = (struct host_call){params->host.fn, params->host.userData};
		return params->host.fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return child_work(params, work);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return event_work(params->eventWait.event, work);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return event_work(params->eventRecord.event, work);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return alloc_work(params, work);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		work->of.freed = params->free.dptr;
		return graphmem_is_at(params->free.dptr) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return memops_fill(&work->of.memops, params->memOp.paramArray, params->memOp.count);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

static CUcontext ctx_of_params(const CUgraphNodeParams *params)
{
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return params->kernel.func ? NULL : params->kernel.ctx;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return params->memcpy.copyCtx;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return params->memset.ctx;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return params->memOp.ctx;
	default:
		return NULL;
	}
}

CUresult work_from_params(const CUgraphNodeParams *params, struct work *work_out)
{
	*work_out = (struct work){
		.type = params->type,
		.ctx = ctx_or_current(ctx_of_params(params)),
	};
	return work_out->ctx ? fill_work(params, work_out) : CUDA_ERROR_INVALID_CONTEXT;
}

static void kernel_params(const struct work *work, CUDA_KERNEL_NODE_PARAMS_v3 *out)
{
	const struct launch *launch = &work->of.launch;

	*out = (CUDA_KERNEL_NODE_PARAMS_v3){
		.func = (CUfunction)(uintptr_t)launch->kernel,
		.gridDimX = launch->grid[0],
		.gridDimY = launch->grid[1],
		.gridDimZ = launch->grid[2],
		.blockDimX = launch->block[0],
		.blockDimY = launch->block[1],
		.blockDimZ = launch->block[2],
		.sharedMemBytes = launch->shared_bytes,
		.kernelParams = launch_pointers(launch),
	};
}

static void set_params(const struct work *work, CUDA_MEMSET_NODE_PARAMS_v2 *out)
{
	const struct set *set = &work->of.set;

	*out = (CUDA_MEMSET_NODE_PARAMS_v2){
		.dst = set->dst,
		.pitch = set->pitch,
		.value = set->value,
		.elementSize = set->element_bytes,
		.width = set->row_bytes / set->element_bytes,
		.height = set->n_rows,
	};
}

static void alloc_params(const struct work *work, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *out)
{
	const struct graphmem *memory = work->of.memory;

	*out = (CUDA_MEM_ALLOC_NODE_PARAMS_v2){
		.poolProps =
			{
				.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
	                                     .id = (int)graphmem_device(memory)},
			},
		.bytesize = graphmem_bytes(memory),
		.dptr = graphmem_address(memory),
	};
}

/* The parameters point to data of the work. */
static void params_from_work(const struct work *work, CUgraphNodeParams *out)
{
	memset(out, 0, sizeof(*out));
	out->type = work->type;
	switch (work->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		kernel_params(work, &out->kernel);
		break;
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		out->memcpy.copyParams = copy_to_shape(&work->of.copy);
		break;
	case CU_GRAPH_NODE_TYPE_MEMSET:
		set_params(work, &out->memset);
		break;
	case CU_GRAPH_NODE_TYPE_HOST:
		out->host.fn = work->of.call.fn;
		out->host.userData = work->of.call.data;
		break;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		out->graph.graph = (CUgraph)work->of.child;
		break;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		out->eventWait.event = work->of.event.event;
		break;
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		out->eventRecord.event = work->of.event.event;
		break;
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		alloc_params(work, &out->alloc);
		break;
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		out->free.dptr = work->of.freed;
		break;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		out->memOp.ctx = (CUcontext)work->ctx;
		out->memOp.count = (unsigned)(work->of.memops.ops->bytes /
		                              sizeof(CUstreamBatchMemOpParams));
		out->memOp.paramArray = (CUstreamBatchMemOpParams *)work->of.memops.ops->data;
		break;
	default:
		break;
	}
}

/* ---- making ---- */

/* A node without a context gets that of the memory, but mapped memory has none; measured on an H200. */
static bool lacks_context(const CUgraphNodeParams *params)
{
	if (params->type != CU_GRAPH_NODE_TYPE_MEMSET || params->memset.ctx) {
		return false;
	}
	space_lock_read();
	const struct mapping *m = space_find(params->memset.dst);
	bool is_mapped = m && m->kind == SPACE_VMM;
	space_unlock();
	return is_mapped;
}

static CUresult add(CUgraphNode *node_out, CUgraph handle, const CUgraphNode *deps, size_t n_deps,
                    const CUgraphNodeParams *params)
{
	struct graph *graph = graph_from_handle(handle);
	struct node *node;
	struct work work;

	if (!node_out || !graph || (n_deps > 0 && !deps) || capture_is_to(graph) ||
	    lacks_context(params)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (graph->is_child && (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
	                        params->type == CU_GRAPH_NODE_TYPE_MEM_FREE)) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	CUresult err = work_from_params(params, &work);
	if (err == CUDA_SUCCESS) {
		err = graph_add(graph, (struct node *const *)deps, n_deps, &work, &node);
	}
	if (err == CUDA_SUCCESS) {
		*node_out = (CUgraphNode)node;
	}
	return err;
}

/* A node that allocates returns its address in the parameters. */
static CUresult add_generic(CUgraphNode *node_out, CUgraph graph, const CUgraphNode *deps,
                            size_t n_deps, CUgraphNodeParams *params)
{
	if (!params) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = add(node_out, graph, deps, n_deps, params);
	if (err == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
		params->alloc.dptr = graphmem_address(node_from_handle(*node_out)->work.of.memory);
	}
	return err;
}

CUresult cuGraphAddNode(CUgraphNode *node_out, CUgraph graph, const CUgraphNode *deps,
                        size_t n_deps, CUgraphNodeParams *params)
{
	ENTER(cuGraphAddNode);
	return add_generic(node_out, graph, deps, n_deps, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node_out, CUgraph graph, const CUgraphNode *deps,
                           const CUgraphEdgeData *edges, size_t n_deps, CUgraphNodeParams *params)
{
	ENTER(cuGraphAddNode_v2);
	(void)edges;
	return add_generic(node_out, graph, deps, n_deps, params);
}

static void fill_memset(CUgraphNodeParams *params, const CUDA_MEMSET_NODE_PARAMS *own,
                        CUcontext ctx)
{
	memcpy(&params->memset, own, sizeof(*own));
	params->memset.ctx = ctx;
}

static void fill_memcpy(CUgraphNodeParams *params, const CUDA_MEMCPY3D *own, CUcontext ctx)
{
	params->memcpy.copyParams = *own;
	params->memcpy.copyCtx = ctx;
}

/*
 * The call that adds nodes of one type. The last parameter of the macro has the call's own parameters @own, which must not be
 * NULL. @FILL makes the generic ones from them.
 */
#define ADD(SYMBOL, TYPE, FILL, ...) \
	CUresult SYMBOL(CUgraphNode *node_out, CUgraph graph, const CUgraphNode *deps, \
	                size_t n_deps, __VA_ARGS__) \
	{ \
		ENTER(SYMBOL); \
		CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_##TYPE}; \
		if (!own) { \
			return CUDA_ERROR_INVALID_VALUE; \
		} \
		FILL; \
		return add_generic(node_out, graph, deps, n_deps, &params); \
	}

ADD(cuGraphAddKernelNode, KERNEL, memcpy(&params.kernel, own, sizeof(*own)),
    const CUDA_KERNEL_NODE_PARAMS_v1 *own)
ADD(cuGraphAddKernelNode_v2, KERNEL, memcpy(&params.kernel, own, sizeof(*own)),
    const CUDA_KERNEL_NODE_PARAMS_v2 *own)
ADD(cuGraphAddHostNode, HOST, memcpy(&params.host, own, sizeof(*own)),
    const CUDA_HOST_NODE_PARAMS *own)
ADD(cuGraphAddBatchMemOpNode, BATCH_MEM_OP, memcpy(&params.memOp, own, sizeof(*own)),
    const CUDA_BATCH_MEM_OP_NODE_PARAMS *own)
ADD(cuGraphAddMemcpyNode, MEMCPY, fill_memcpy(&params, own, ctx), const CUDA_MEMCPY3D *own,
    CUcontext ctx)
ADD(cuGraphAddMemsetNode, MEMSET, fill_memset(&params, own, ctx),
    const CUDA_MEMSET_NODE_PARAMS *own, CUcontext ctx)
ADD(cuGraphAddChildGraphNode, GRAPH, params.graph.graph = own, CUgraph own)
ADD(cuGraphAddEventRecordNode, EVENT_RECORD, params.eventRecord.event = own, CUevent own)
ADD(cuGraphAddEventWaitNode, WAIT_EVENT, params.eventWait.event = own, CUevent own)
ADD(cuGraphAddMemFreeNode, MEM_FREE, params.free.dptr = own, CUdeviceptr own)

CUresult cuGraphAddEmptyNode(CUgraphNode *node_out, CUgraph graph, const CUgraphNode *deps,
                             size_t n_deps)
{
	ENTER(cuGraphAddEmptyNode);
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_EMPTY};

	return add_generic(node_out, graph, deps, n_deps, &params);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node_out, CUgraph graph, const CUgraphNode *deps,
                                size_t n_deps, CUDA_MEM_ALLOC_NODE_PARAMS *own)
{
	ENTER(cuGraphAddMemAllocNode);
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC};

	if (!own) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	memcpy(&params.alloc, own, sizeof(*own));
	CUresult err = add_generic(node_out, graph, deps, n_deps, &params);
	own->dptr = params.alloc.dptr;
	return err;
}

/* ---- asking ---- */

static CUresult get(CUgraphNode handle, CUgraphNodeType type, CUgraphNodeParams *params_out)
{
	const struct node *node = node_from_handle(handle);

	if (!node || node->work.type != type) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	params_from_work(&node->work, params_out);
	return CUDA_SUCCESS;
}

#define GET(SYMBOL, TYPE, OWN, MEMBER) \
	CUresult SYMBOL(CUgraphNode node, OWN *own_out) \
	{ \
		ENTER(SYMBOL); \
		CUgraphNodeParams params; \
		CUresult err = own_out ? get(node, CU_GRAPH_NODE_TYPE_##TYPE, &params) \
		                       : CUDA_ERROR_INVALID_VALUE; \
		if (err == CUDA_SUCCESS) { \
			memcpy(own_out, &params.MEMBER, sizeof(*own_out)); \
		} \
		return err; \
	}

GET(cuGraphKernelNodeGetParams, KERNEL, CUDA_KERNEL_NODE_PARAMS_v1, kernel)
GET(cuGraphKernelNodeGetParams_v2, KERNEL, CUDA_KERNEL_NODE_PARAMS_v2, kernel)
GET(cuGraphMemcpyNodeGetParams, MEMCPY, CUDA_MEMCPY3D, memcpy.copyParams)
GET(cuGraphMemsetNodeGetParams, MEMSET, CUDA_MEMSET_NODE_PARAMS, memset)
GET(cuGraphHostNodeGetParams, HOST, CUDA_HOST_NODE_PARAMS, host)
GET(cuGraphBatchMemOpNodeGetParams, BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS, memOp)
GET(cuGraphChildGraphNodeGetGraph, GRAPH, CUgraph, graph.graph)
GET(cuGraphEventRecordNodeGetEvent, EVENT_RECORD, CUevent, eventRecord.event)
GET(cuGraphEventWaitNodeGetEvent, WAIT_EVENT, CUevent, eventWait.event)
GET(cuGraphMemAllocNodeGetParams, MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, alloc)
GET(cuGraphMemFreeNodeGetParams, MEM_FREE, CUdeviceptr, free.dptr)

/* ---- changing ---- */

CUresult node_set_params(struct node *node, const CUgraphNodeParams *params)
{
	struct work work;

	if (!node || node->work.type != params->type) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
	    params->type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
	    params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	CUresult err = work_from_params(params, &work);
	if (err == CUDA_SUCCESS) {
		work_drop(&node->work);
		node->work = work;
	}
	return err;
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params)
{
	ENTER(cuGraphNodeSetParams);
	return params ? node_set_params(node_from_handle(node), params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
	ENTER(cuGraphExecNodeSetParams);
	return params ? node_set_params(exec_node(exec, node), params) : CUDA_ERROR_INVALID_VALUE;
}

/* Set the parameters of @NODE to those that @FILL makes of @own, which is in the last parameters of the macro. */
#define SET_ONE(SYMBOL, TYPE, NODE, FILL, ...) \
	CUresult SYMBOL(__VA_ARGS__) \
	{ \
		ENTER(SYMBOL); \
		CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_##TYPE}; \
		if (!own) { \
			return CUDA_ERROR_INVALID_VALUE; \
		} \
		FILL; \
		return node_set_params(NODE, &params); \
	}

/* The calls that set a node, and the same node in an executable. */
#define SET(SYMBOL, EXEC_SYMBOL, TYPE, FILL, OWN_PARAM) \
	SET_ONE(SYMBOL, TYPE, node_from_handle(node), FILL, CUgraphNode node, OWN_PARAM) \
	SET_ONE(EXEC_SYMBOL, TYPE, exec_node(exec, node), FILL, CUgraphExec exec, \
	        CUgraphNode node, OWN_PARAM)

SET(cuGraphKernelNodeSetParams, cuGraphExecKernelNodeSetParams, KERNEL,
    memcpy(&params.kernel, own, sizeof(*own)), const CUDA_KERNEL_NODE_PARAMS_v1 *own)
SET(cuGraphKernelNodeSetParams_v2, cuGraphExecKernelNodeSetParams_v2, KERNEL,
    memcpy(&params.kernel, own, sizeof(*own)), const CUDA_KERNEL_NODE_PARAMS_v2 *own)
SET(cuGraphHostNodeSetParams, cuGraphExecHostNodeSetParams, HOST,
    memcpy(&params.host, own, sizeof(*own)), const CUDA_HOST_NODE_PARAMS *own)
SET(cuGraphBatchMemOpNodeSetParams, cuGraphExecBatchMemOpNodeSetParams, BATCH_MEM_OP,
    memcpy(&params.memOp, own, sizeof(*own)), const CUDA_BATCH_MEM_OP_NODE_PARAMS *own)
SET(cuGraphEventRecordNodeSetEvent, cuGraphExecEventRecordNodeSetEvent, EVENT_RECORD,
    params.eventRecord.event = own, CUevent own)
SET(cuGraphEventWaitNodeSetEvent, cuGraphExecEventWaitNodeSetEvent, WAIT_EVENT,
    params.eventWait.event = own, CUevent own)
/* Only the call for executables has a context. */
SET_ONE(cuGraphMemcpyNodeSetParams, MEMCPY, node_from_handle(node), fill_memcpy(&params, own, NULL),
        CUgraphNode node, const CUDA_MEMCPY3D *own)
SET_ONE(cuGraphExecMemcpyNodeSetParams, MEMCPY, exec_node(exec, node),
        fill_memcpy(&params, own, ctx), CUgraphExec exec, CUgraphNode node,
        const CUDA_MEMCPY3D *own, CUcontext ctx)
SET_ONE(cuGraphMemsetNodeSetParams, MEMSET, node_from_handle(node), fill_memset(&params, own, NULL),
        CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *own)
SET_ONE(cuGraphExecMemsetNodeSetParams, MEMSET, exec_node(exec, node),
        fill_memset(&params, own, ctx), CUgraphExec exec, CUgraphNode node,
        const CUDA_MEMSET_NODE_PARAMS *own, CUcontext ctx)

/* ---- attributes of kernels: accepted, as those of launches are ---- */

static bool is_kernel(CUgraphNode handle)
{
	const struct node *node = node_from_handle(handle);

	return node && node->work.type == CU_GRAPH_NODE_TYPE_KERNEL;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
	ENTER(cuGraphKernelNodeCopyAttributes);
	return is_kernel(dst) && is_kernel(src) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                       const CUkernelNodeAttrValue *value)
{
	ENTER(cuGraphKernelNodeSetAttribute);
	(void)attribute;
	return value && is_kernel(node) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                       CUkernelNodeAttrValue *value_out)
{
	ENTER(cuGraphKernelNodeGetAttribute);
	(void)attribute;
	if (!value_out || !is_kernel(node)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	memset(value_out, 0, sizeof(*value_out));
	return CUDA_SUCCESS;
}
