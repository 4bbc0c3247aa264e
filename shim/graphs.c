/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/graphs.h"

#include <pthread.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "shim/eyes.h"
#include "shim/shim.h"

/* Bytes that a node writes to. */
struct note {
	CUgraphNode node; /* of the graph itself, also for what is in its child graphs */
	struct writes_span span;
	bool is_new; /* until it is settled */
};

struct exec {
	struct note *notes; /* owned */
	size_t n_notes;
	size_t capacity;
	uint64_t seen; /* of eyes_look_at_graph() */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct glake__ptr_table execs; /* by handle; owned */

/* ---- noting ----------------------------------------------------------------------------------- */

/* All with the lock held. */
static struct exec *get_exec_locked(CUgraphExec handle)
{
	uint64_t key = (uint64_t)(uintptr_t)handle;
	struct exec *exec = glake__ptr_table_get(&execs, key);
	if (!exec) {
		exec = calloc(1, sizeof(*exec));
		if (exec && glake__ptr_table_add(&execs, key, exec) < 0) {
			free(exec);
			exec = NULL;
		}
	}
	return exec;
}

static bool add_note_locked(CUgraphExec handle, CUgraphNode node, struct writes_span span)
{
	struct exec *exec = get_exec_locked(handle);
	if (exec && exec->n_notes == exec->capacity) {
		size_t capacity = exec->capacity ? 2 * exec->capacity : 8;
		struct note *more = realloc(exec->notes, capacity * sizeof(*more));
		if (!more) {
			return false;
		}
		exec->notes = more;
		exec->capacity = capacity;
	}
	if (exec) {
		exec->notes[exec->n_notes++] = (struct note){node, span, true};
	}
	return exec != NULL;
}

/* Memory of others is never sealed. */
static bool add_note(CUgraphExec handle, CUgraphNode node, struct writes_span span)
{
	if (span.n_bytes == 0 || glake__space_look(span.ptr).kind == GLAKE__ELSEWHERE) {
		return true;
	}
	glake__fill_written(span.ptr, span.n_bytes);
	pthread_mutex_lock(&lock);
	bool is_noted = add_note_locked(handle, node, span);
	pthread_mutex_unlock(&lock);
	return is_noted;
}

/* ---- what nodes write to ---------------------------------------------------------------------- */

/* False: no more of it. */
struct walk {
	bool (*see)(struct walk *walk, CUgraphNode node, struct writes_span span);
	CUgraphExec exec;
	struct writes_span sealed;
};

static bool see_note(struct walk *walk, CUgraphNode node, struct writes_span span)
{
	return add_note(walk->exec, node, span);
}

static bool see_sealed(struct walk *walk, CUgraphNode node, struct writes_span span)
{
	(void)node;
	walk->sealed = writes_linear(span.ptr, span.n_bytes);
	return walk->sealed.n_bytes == 0;
}

static bool walk_graph(struct walk *walk, CUgraph graph, CUgraphNode node);

static bool walk_words(struct walk *walk, CUgraphNode node,
                       const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
	bool goes_on = true;
	for (unsigned i = 0; params->paramArray && goes_on && i < params->count; i++) {
		goes_on = walk->see(walk, node, writes_of_mem_op(&params->paramArray[i]));
	}
	return goes_on;
}

static bool walk_params(struct walk *walk, CUgraphNode node, const CUgraphNodeParams *params)
{
	const CUDA_MEMSET_NODE_PARAMS_v2 *set = &params->memset;
	const CUDA_BATCH_MEM_OP_NODE_PARAMS words = {
		.count = params->memOp.count,
		.paramArray = params->memOp.paramArray,
	};
	switch (params->type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return walk->see(walk, node, writes_of_copy_3d(&params->memcpy.copyParams));
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return walk->see(walk, node,
		                 writes_of_rows(set->dst, set->pitch, set->elementSize, set->width,
		                                set->height));
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return walk_words(walk, node, &words);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return walk_graph(walk, params->graph.graph, node);
	default:
		return true;
	}
}

/* ---- asking the driver of nodes --------------------------------------------------------------- */

/* What @node does, as far as it writes; other types have no parameters here. */
static CUresult ask_node(CUgraphNode node, CUgraphNodeParams *params_out)
{
	CUDA_MEMSET_NODE_PARAMS set;
	CUDA_BATCH_MEM_OP_NODE_PARAMS words;
	*params_out = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EMPTY};
	CUresult result = real(cuGraphNodeGetType)(node, &params_out->type);
	if (result != CUDA_SUCCESS) {
		return result;
	}
	switch (params_out->type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return real(cuGraphMemcpyNodeGetParams)(node, &params_out->memcpy.copyParams);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		result = real(cuGraphMemsetNodeGetParams)(node, &set);
		if (result == CUDA_SUCCESS) {
			params_out->memset = (CUDA_MEMSET_NODE_PARAMS_v2){
				.dst = set.dst,
				.pitch = set.pitch,
				.elementSize = set.elementSize,
				.width = set.width,
				.height = set.height,
			};
		}
		return result;
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		result = real(cuGraphBatchMemOpNodeGetParams)
		                 ? real(cuGraphBatchMemOpNodeGetParams)(node, &words)
		                 : CUDA_ERROR_NOT_SUPPORTED;
		if (result == CUDA_SUCCESS) {
			params_out->memOp.count = words.count;
			params_out->memOp.paramArray = words.paramArray;
		}
		return result;
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return real(cuGraphChildGraphNodeGetGraph)(node, &params_out->graph.graph);
	default:
		return CUDA_SUCCESS;
	}
}

/* @node: the one that all nodes of @graph are part of; NULL: none. */
static bool walk_graph(struct walk *walk, CUgraph graph, CUgraphNode node)
{
	size_t n_nodes = 0;
	if (real(cuGraphGetNodes)(graph, NULL, &n_nodes) != CUDA_SUCCESS || n_nodes == 0) {
		return true;
	}
	cleanup_free CUgraphNode *nodes = calloc(n_nodes, sizeof(*nodes));
	bool goes_on = nodes != NULL;
	if (!goes_on || real(cuGraphGetNodes)(graph, nodes, &n_nodes) != CUDA_SUCCESS) {
		return goes_on;
	}
	for (size_t i = 0; goes_on && i < n_nodes; i++) {
		CUgraphNodeParams params;
		if (ask_node(nodes[i], &params) == CUDA_SUCCESS) {
			goes_on = walk_params(walk, node ? node : nodes[i], &params);
		}
	}
	return goes_on;
}

/* ---- from outside ----------------------------------------------------------------------------- */

static bool can_walk(void)
{
	return !shim_is_forked() && real(cuGraphGetNodes);
}

bool graphs_note(CUgraphExec exec, CUgraph graph, CUgraphNode node)
{
	struct walk walk = {.see = see_note, .exec = exec};
	return !can_walk() || walk_graph(&walk, graph, node);
}

bool graphs_note_node(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params)
{
	struct walk walk = {.see = see_note, .exec = exec};
	return !can_walk() || walk_params(&walk, node, params);
}

struct writes_span graphs_find(const CUgraphNodeParams *params)
{
	struct walk walk = {.see = see_sealed};
	if (can_walk()) {
		walk_params(&walk, NULL, params);
	}
	return walk.sealed;
}

void graphs_settle(CUgraphExec handle, CUgraphNode node, bool is_done)
{
	if (shim_is_forked()) {
		return;
	}
	pthread_mutex_lock(&lock);
	struct exec *exec = glake__ptr_table_get(&execs, (uint64_t)(uintptr_t)handle);
	size_t n_kept = 0;
	for (size_t i = 0; exec && i < exec->n_notes; i++) {
		struct note note = exec->notes[i];
		if ((!node || note.node == node) && note.is_new != is_done) {
			continue;
		}
		note.is_new = false;
		exec->notes[n_kept++] = note;
	}
	if (exec) {
		exec->n_notes = n_kept;
	}
	pthread_mutex_unlock(&lock);
}

void graphs_drop(CUgraphExec handle)
{
	if (shim_is_forked()) {
		return;
	}
	pthread_mutex_lock(&lock);
	struct exec *exec = glake__ptr_table_remove(&execs, (uint64_t)(uintptr_t)handle);
	pthread_mutex_unlock(&lock);
	if (exec) {
		free(exec->notes);
		free(exec);
	}
}

struct writes_span writes_graph(CUgraphExec handle)
{
	struct writes_span span = {.n_bytes = 0};
	pthread_mutex_lock(&lock);
	struct exec *exec = get_exec_locked(handle);
	if (exec) {
		eyes_look_at_graph(&exec->seen);
	}
	for (size_t i = 0; exec && span.n_bytes == 0 && i < exec->n_notes; i++) {
		span = writes_linear(exec->notes[i].span.ptr, exec->notes[i].span.n_bytes);
	}
	pthread_mutex_unlock(&lock);
	return span;
}
