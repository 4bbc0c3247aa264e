/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executables of graphs: a copy of the graph, of which each launch takes a copy in turn, so that changes
 * are for later launches. The nodes of a launch run one after the other, in an order that their edges
 * allow, and a launch begins behind the one before of the same executable, whatever their streams.
 */
#include "graph.h"

#include <string.h>

#define EXEC_MAGIC 0x636578656771ULL
#define FLAGS \
	(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | \
	 CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

struct exec {
	struct kept kept;
	uint64_t magic;
	struct graph *graph; /* owned */
	unsigned long long flags;
	struct mark *last; /* one reference: the end of the launch before, or NULL */
};

/* A launch of an executable. */
struct batch {
	struct mark *before; /* one reference each; before may be NULL */
	struct mark *end;
	size_t n;
	struct work *works; /* owned */
};

static struct exec *exec_from_handle(CUgraphExec handle)
{
	struct exec *exec = (struct exec *)handle;

	return exec && exec->magic == EXEC_MAGIC ? exec : NULL;
}

struct node *exec_node(CUgraphExec handle, CUgraphNode node_handle)
{
	struct exec *exec = exec_from_handle(handle);
	const struct node *node = node_from_handle(node_handle);

	return exec && node ? graph_find_clone(exec->graph, node->id, true) : NULL;
}

/* ---- making ---- */

/* Destinations of nodes may be read-only by now. */
static CUresult check_writes(const struct graph *graph)
{
	CUresult err = CUDA_SUCCESS;

	for (const struct node *node = graph->first; err == CUDA_SUCCESS && node;
	     node = node->next) {
		const struct work *work = &node->work;
		struct copy copy = work->of.copy;
		if (work->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
			err = copy_check(&copy, work->ctx->device);
		} else if (work->type == CU_GRAPH_NODE_TYPE_MEMSET) {
			err = set_check(&work->of.set, work->ctx->device);
		} else if (work->type == CU_GRAPH_NODE_TYPE_GRAPH) {
			err = check_writes(work->of.child);
		}
	}
	return err;
}

static CUresult instantiate(CUgraphExec *exec_out, CUgraph handle, unsigned long long flags)
{
	const struct graph *graph = graph_from_handle(handle);

	if (!exec_out || !graph || flags & ~(unsigned long long)FLAGS) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct exec *exec = calloc(1, sizeof(*exec));
	if (!exec) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult err = check_writes(graph);
	if (err == CUDA_SUCCESS) {
		err = graph_clone(graph, true, &exec->graph);
	}
	if (err != CUDA_SUCCESS) {
		free(exec);
		return err;
	}
	kept_add(&exec->kept);
	exec->magic = EXEC_MAGIC;
	exec->flags = flags;
	*exec_out = (CUgraphExec)exec;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec_out, CUgraph graph, unsigned long long flags)
{
	ENTER(cuGraphInstantiateWithFlags);
	return flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD ? CUDA_ERROR_INVALID_VALUE
	                                                  : instantiate(exec_out, graph, flags);
}

CUresult cuGraphInstantiate(CUgraphExec *exec_out, CUgraph graph, CUgraphNode *failed_out,
                            char *log, size_t log_bytes)
{
	ENTER(cuGraphInstantiate);
	if (failed_out) {
		*failed_out = NULL;
	}
	if (log && log_bytes > 0) {
		*log = '\0';
	}
	return instantiate(exec_out, graph, 0);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec_out, CUgraph graph, CUgraphNode *failed_out,
                               char *log, size_t log_bytes)
{
	ENTER(cuGraphInstantiate_v2);
	if (failed_out) {
		*failed_out = NULL;
	}
	if (log && log_bytes > 0) {
		*log = '\0';
	}
	return instantiate(exec_out, graph, 0);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec_out, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	ENTER(cuGraphInstantiateWithParams);
	if (!params) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = instantiate(exec_out, graph, params->flags);
	params->hErrNode_out = NULL;
	params->result_out = err == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
	                                         : CUDA_GRAPH_INSTANTIATE_ERROR;
	return err;
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags_out)
{
	ENTER(cuGraphExecGetFlags);
	const struct exec *exec = exec_from_handle(handle);

	if (!exec || !flags_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*flags_out = exec->flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	return CUDA_SUCCESS;
}

/* Launches under way still run. */
CUresult cuGraphExecDestroy(CUgraphExec handle)
{
	ENTER(cuGraphExecDestroy);
	struct exec *exec = exec_from_handle(handle);

	if (!exec) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (exec->graph->held && exec->last) {
		mark_wait(exec->last); /* the launch uses objects that may be destroyed now */
	}
	exec->magic = 0;
	kept_remove(&exec->kept);
	mark_unref(exec->last);
	graph_free(exec->graph);
	free(exec);
	return CUDA_SUCCESS;
}

/* ---- launching ---- */

/* Called also when the context was lost meanwhile, so that nobody waits for ever. */
static void drop_batch(void *arg)
{
	struct batch *batch = *(struct batch **)arg;

	for (size_t i = 0; i < batch->n; i++) {
		struct work *work = &batch->works[i];
		if (work->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD && work->of.event.mark) {
			mark_reach(work->of.event.mark);
		}
		work_drop(work);
	}
	if (batch->end) {
		mark_reach(batch->end);
	}
	mark_unref(batch->before);
	mark_unref(batch->end);
	free(batch->works);
	free(batch);
}

static CUresult run_batch(struct ctx *ctx, void *arg)
{
	struct batch *batch = *(struct batch **)arg;
	CUresult err = CUDA_SUCCESS;

	if (batch->before) {
		mark_wait(batch->before);
	}
	for (size_t i = 0; err == CUDA_SUCCESS && i < batch->n; i++) {
		err = work_run(&batch->works[i]);
		if (err == CUDA_SUCCESS) {
			err = atomic_load(&ctx->poison);
		}
	}
	return err;
}

static size_t count_works(const struct graph *graph)
{
	size_t n = 0;

	for (const struct node *node = graph->first; node; node = node->next) {
		n += node->work.type == CU_GRAPH_NODE_TYPE_GRAPH ? count_works(node->work.of.child)
		                                                 : 1;
	}
	return n;
}

/* The batch has room for all works. The nodes of an executable are in order. */
static void add_works(struct batch *batch, const struct graph *graph)
{
	for (const struct node *node = graph->first; node; node = node->next) {
		if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
			add_works(batch, node->work.of.child);
		} else if (!node->is_disabled && node->work.type != CU_GRAPH_NODE_TYPE_EMPTY) {
			batch->works[batch->n++] = work_copy(&node->work);
		}
	}
}

/* An event that the graph records counts as recorded from now on; one that it waits for is taken as it is now. */
static CUresult set_events(struct batch *batch)
{
	for (size_t i = 0; i < batch->n; i++) {
		struct event_work *event = &batch->works[i].of.event;
		if (batch->works[i].type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
			event->mark = event_last_mark(event->event);
		} else if (batch->works[i].type == CU_GRAPH_NODE_TYPE_EVENT_RECORD) {
			event->mark = mark_new();
			if (!event->mark) {
				return CUDA_ERROR_OUT_OF_MEMORY;
			}
			mark_ref(event->mark);
			event_record_mark(event->event, event->mark);
		}
	}
	return CUDA_SUCCESS;
}

static bool frees(const struct batch *batch, CUdeviceptr ptr)
{
	for (size_t i = 0; i < batch->n; i++) {
		if (batch->works[i].type == CU_GRAPH_NODE_TYPE_MEM_FREE &&
		    batch->works[i].of.freed == ptr) {
			return true;
		}
	}
	return false;
}

/* Give back the memory of the first @n works. */
static void give_memory_back(const struct batch *batch, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (batch->works[i].type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
			alloc_free(graphmem_address(batch->works[i].of.memory));
		}
	}
}

/* Memory that an earlier launch left allocated is an error, unless the launch frees it. */
static CUresult take_memory(const struct exec *exec, const struct batch *batch)
{
	bool is_free_again = exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
	CUresult err = CUDA_SUCCESS;

	for (size_t i = 0; err == CUDA_SUCCESS && i < batch->n; i++) {
		struct graphmem *memory = batch->works[i].of.memory;
		if (batch->works[i].type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
			continue;
		}
		bool is_left = !frees(batch, graphmem_address(memory));
		if (is_left && !is_free_again && graphmem_is_live(memory)) {
			give_memory_back(batch, i);
			return CUDA_ERROR_INVALID_VALUE;
		}
		err = graphmem_take(memory, is_left && is_free_again);
		if (err != CUDA_SUCCESS) {
			give_memory_back(batch, i);
		}
	}
	return err;
}

static struct batch *batch_new(const struct exec *exec)
{
	struct batch *batch = calloc(1, sizeof(*batch));

	if (!batch) {
		return NULL;
	}
	batch->works = calloc(count_works(exec->graph) + 1, sizeof(struct work));
	batch->end = mark_new();
	if (!batch->works || !batch->end) {
		drop_batch(&batch);
		return NULL;
	}
	add_works(batch, exec->graph);
	return batch;
}

static CUresult launch(struct exec *exec, struct stream *s)
{
	struct batch *batch = batch_new(exec);

	if (!batch) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult err = take_memory(exec, batch);
	if (err == CUDA_SUCCESS) {
		err = set_events(batch);
	}
	if (err != CUDA_SUCCESS) {
		drop_batch(&batch);
		return err;
	}
	struct mark *end = batch->end;
	mark_ref(end);
	batch->before = exec->last;
	exec->last = NULL;
	err = stream_submit(s, run_batch, drop_batch, &batch, sizeof(struct batch *));
	if (err != CUDA_SUCCESS) {
		drop_batch(&batch);
	}
	exec->last = end;
	return err;
}

/* A launch on a captured stream becomes a node with the graph. */
static CUresult capture(const struct exec *exec, struct stream *s)
{
	struct work work = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
	CUresult err = graph_clone(exec->graph, false, &work.of.child);

	if (err != CUDA_SUCCESS) {
		return err;
	}
	work.of.child->is_child = true;
	return work_submit(s, &work);
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream)
{
	ENTER(cuGraphLaunch);
	struct exec *exec = exec_from_handle(handle);
	struct stream *s = stream_from_handle(stream);

	if (!exec || !s) {
		return exec ? stream_missing(stream) : CUDA_ERROR_INVALID_VALUE;
	}
	return capture_is_of(s) ? capture(exec, s) : launch(exec, s);
}

/* Does nothing, because there is nothing to upload. */
CUresult cuGraphUpload(CUgraphExec handle, CUstream stream)
{
	ENTER(cuGraphUpload);
	if (!exec_from_handle(handle) || !stream_from_handle(stream)) {
		return exec_from_handle(handle) ? stream_missing(stream) : CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

/* ---- changing ---- */

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int is_enabled)
{
	ENTER(cuGraphNodeSetEnabled);
	struct node *node = exec_node(exec, handle);

	if (!node || (node->work.type != CU_GRAPH_NODE_TYPE_KERNEL &&
	              node->work.type != CU_GRAPH_NODE_TYPE_MEMSET &&
	              node->work.type != CU_GRAPH_NODE_TYPE_MEMCPY)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	node->is_disabled = !is_enabled;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int *is_enabled_out)
{
	ENTER(cuGraphNodeGetEnabled);
	const struct node *node = exec_node(exec, handle);

	if (!node || !is_enabled_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*is_enabled_out = !node->is_disabled;
	return CUDA_SUCCESS;
}

/* The nodes of both graphs, in order, are pairs; the color of a node of @now is its index. */
static bool has_same_deps(const struct node *was, const struct node *now, struct node *const *wases)
{
	bool is_same = was->n_deps == now->n_deps;

	for (size_t i = 0; is_same && i < now->n_deps; i++) {
		is_same = node_depends(was, wases[now->deps[i]->color]);
	}
	return is_same;
}

static CUgraphExecUpdateResult compare(struct graph *was, const struct graph *now,
                                       struct node **wases, struct node **nows,
                                       CUgraphNode *failed_out);

static CUgraphExecUpdateResult compare_graphs(struct graph *was, const struct graph *now,
                                              CUgraphNode *failed_out)
{
	struct node **wases = graph_order(was);
	struct node **nows = graph_order(now);
	CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_ERROR;

	if (wases && nows) {
		result = compare(was, now, wases, nows, failed_out);
	}
	free(wases);
	free(nows);
	return result;
}

static CUgraphExecUpdateResult compare(struct graph *was, const struct graph *now,
                                       struct node **wases, struct node **nows,
                                       CUgraphNode *failed_out)
{
	if (was->n_nodes != now->n_nodes) {
		return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
	}
	for (size_t i = 0; i < now->n_nodes; i++) {
		CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
		nows[i]->color = (unsigned)i;
		*failed_out = (CUgraphNode)nows[i];
		if (wases[i]->work.type != nows[i]->work.type) {
			return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
		}
		if (!has_same_deps(wases[i], nows[i], wases)) {
			return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
		}
		if (nows[i]->work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
			result = compare_graphs(wases[i]->work.of.child, nows[i]->work.of.child,
			                        failed_out);
		} else if (nows[i]->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
		           nows[i]->work.of.memory != wases[i]->work.of.memory) {
			result = CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
		}
		if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
			return result;
		}
	}
	*failed_out = NULL;
	return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUresult update(CUgraphExec handle, CUgraph graph_handle, CUgraphNode *failed_out,
                       CUgraphExecUpdateResult *result_out)
{
	struct exec *exec = exec_from_handle(handle);
	const struct graph *graph = graph_from_handle(graph_handle);
	struct graph *clone;

	*failed_out = NULL;
	*result_out = CU_GRAPH_EXEC_UPDATE_ERROR;
	if (!exec || !graph) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*result_out = compare_graphs(exec->graph, graph, failed_out);
	if (*result_out != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	CUresult err = check_writes(graph);
	if (err == CUDA_SUCCESS) {
		err = graph_clone(graph, true, &clone);
	}
	if (err != CUDA_SUCCESS) {
		*result_out = CU_GRAPH_EXEC_UPDATE_ERROR;
		return err;
	}
	graph_adopt(clone, exec->graph);
	graph_free(exec->graph);
	exec->graph = clone;
	return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *failed_out,
                           CUgraphExecUpdateResult *result_out)
{
	ENTER(cuGraphExecUpdate);
	CUgraphNode failed;
	CUgraphExecUpdateResult result;

	return update(exec, graph, failed_out ? failed_out : &failed,
	              result_out ? result_out : &result);
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph,
                              CUgraphExecUpdateResultInfo *info_out)
{
	ENTER(cuGraphExecUpdate_v2);
	CUgraphExecUpdateResultInfo info = {0};
	CUresult err = update(exec, graph, &info.errorNode, &info.result);

	if (info_out) {
		*info_out = info;
	}
	return err;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode handle, CUgraph child)
{
	ENTER(cuGraphExecChildGraphNodeSetParams);
	struct node *node = exec_node(exec, handle);
	const struct graph *graph = graph_from_handle(child);
	struct graph *clone;
	CUgraphNode failed;

	if (!node || !graph || node->work.type != CU_GRAPH_NODE_TYPE_GRAPH ||
	    compare_graphs(node->work.of.child, graph, &failed) != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = graph_clone(graph, true, &clone);
	if (err == CUDA_SUCCESS) {
		graph_adopt(clone, node->work.of.child);
		clone->is_child = true;
		graph_free(node->work.of.child);
		node->work.of.child = clone;
	}
	return err;
}
