/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: their nodes, their copies, and the order that their edges define. */
#include "graph.h"

#include <string.h>

#define GRAPH_MAGIC 0x687061726771ULL
#define NODE_MAGIC 0x65646f6e6771ULL

static uint64_t new_id(void)
{
	static atomic_uint_fast64_t last_id;

	return atomic_fetch_add(&last_id, 1) + 1;
}

struct graph *graph_new(void)
{
	struct graph *graph = calloc(1, sizeof(*graph));

	if (graph) {
		kept_add(&graph->kept);
		graph->magic = GRAPH_MAGIC;
		graph->id = new_id();
		graph->last = &graph->first;
	}
	return graph;
}

static void node_free(struct node *node)
{
	work_drop(&node->work);
	node->magic = 0;
	free(node->deps);
	free(node);
}

void graph_free(struct graph *graph)
{
	if (!graph) {
		return;
	}
	for (struct node *node = graph->first, *next; node; node = next) {
		next = node->next;
		node_free(node);
	}
	held_drop(graph);
	graph->magic = 0;
	kept_remove(&graph->kept);
	free(graph);
}

struct graph *graph_from_handle(CUgraph handle)
{
	struct graph *graph = (struct graph *)handle;

	return graph && graph->magic == GRAPH_MAGIC ? graph : NULL;
}

struct node *node_from_handle(CUgraphNode handle)
{
	struct node *node = (struct node *)handle;

	return node && node->magic == NODE_MAGIC ? node : NULL;
}

bool node_depends(const struct node *node, const struct node *on)
{
	for (size_t i = 0; i < node->n_deps; i++) {
		if (node->deps[i] == on) {
			return true;
		}
	}
	return false;
}

CUresult node_depend(struct node *node, struct node *on)
{
	struct node **deps = realloc(node->deps, (node->n_deps + 1) * sizeof(*deps));

	if (!deps) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	node->deps = deps;
	node->deps[node->n_deps++] = on;
	return CUDA_SUCCESS;
}

CUresult graph_add(struct graph *graph, struct node *const *deps, size_t n_deps, struct work *work,
                   struct node **node_out)
{
	struct node *node = calloc(1, sizeof(*node));
	CUresult err = node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	for (size_t i = 0; err == CUDA_SUCCESS && i < n_deps; i++) {
		if (!deps[i] || deps[i]->graph != graph || node_depends(node, deps[i])) {
			err = CUDA_ERROR_INVALID_VALUE;
		} else {
			err = node_depend(node, deps[i]);
		}
	}
	if (err != CUDA_SUCCESS) {
		work_drop(work);
		free(node ? node->deps : NULL);
		free(node);
		return err;
	}
	node->magic = NODE_MAGIC;
	node->id = new_id();
	node->graph = graph;
	node->work = *work;
	*graph->last = node;
	graph->last = &node->next;
	graph->n_nodes++;
	*node_out = node;
	return CUDA_SUCCESS;
}

/* ---- copies ---- */

bool graph_has_memory(const struct graph *graph)
{
	for (const struct node *node = graph->first; node; node = node->next) {
		if (node->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
		    node->work.type == CU_GRAPH_NODE_TYPE_MEM_FREE ||
		    (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH &&
		     graph_has_memory(node->work.of.child))) {
			return true;
		}
	}
	return false;
}

struct node *graph_find_clone(struct graph *graph, uint64_t original_id, bool is_deep)
{
	for (struct node *node = graph->first; node; node = node->next) {
		if (node->original_id == original_id) {
			return node;
		}
		if (is_deep && node->work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
			struct node *found = graph_find_clone(node->work.of.child, original_id,
			                                      true);
			if (found) {
				return found;
			}
		}
	}
	return NULL;
}

static CUresult copy_work(const struct work *work, bool is_for_exec, struct work *copy_out)
{
	*copy_out = *work;
	if (work->type != CU_GRAPH_NODE_TYPE_GRAPH) {
		*copy_out = work_copy(work);
		return CUDA_SUCCESS;
	}
	CUresult err = graph_clone(work->of.child, is_for_exec, &copy_out->of.child);
	if (err == CUDA_SUCCESS) {
		copy_out->of.child->is_child = true;
	}
	return err;
}

/* @made: the copies of the nodes before it, by their color. */
static CUresult copy_node(const struct node *node, bool is_for_exec, struct graph *clone,
                          struct node *const *made)
{
	struct node *copy;
	struct work work;
	CUresult err = copy_work(&node->work, is_for_exec, &work);

	if (err == CUDA_SUCCESS) {
		err = graph_add(clone, NULL, 0, &work, &copy);
	}
	if (err == CUDA_SUCCESS) {
		copy->original_id = node->id;
		copy->is_disabled = node->is_disabled;
	}
	for (size_t i = 0; err == CUDA_SUCCESS && i < node->n_deps; i++) {
		err = node_depend(copy, made[node->deps[i]->color]);
	}
	return err;
}

/* Copy the nodes in an order in which each follows those that it depends on. */
static CUresult copy_nodes(const struct graph *graph, bool is_for_exec, struct graph *clone)
{
	struct node **order = graph_order(graph);
	struct node **made = calloc(graph->n_nodes + 1, sizeof(struct node *));
	CUresult err = order && made ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (size_t i = 0; err == CUDA_SUCCESS && i < graph->n_nodes; i++) {
		order[i]->color = (unsigned)i;
		struct node **at = clone->last;
		err = copy_node(order[i], is_for_exec, clone, made);
		made[i] = err == CUDA_SUCCESS ? *at : NULL;
	}
	free(order);
	free(made);
	return err;
}

CUresult graph_clone(const struct graph *graph, bool is_for_exec, struct graph **clone_out)
{
	if (!is_for_exec && graph_has_memory(graph)) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	struct graph *clone = graph_new();
	if (!clone) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	clone->original_id = graph->id;
	CUresult err = copy_nodes(graph, is_for_exec, clone);
	if (err == CUDA_SUCCESS) {
		err = held_copy(graph, clone);
	}
	if (err != CUDA_SUCCESS) {
		graph_free(clone);
		return err;
	}
	*clone_out = clone;
	return CUDA_SUCCESS;
}

void graph_adopt(struct graph *graph, const struct graph *before)
{
	const struct node *was = before->first;

	graph->original_id = before->original_id;
	for (struct node *node = graph->first; node && was; node = node->next, was = was->next) {
		node->original_id = was->original_id;
		node->is_disabled = was->is_disabled;
		if (node->work.type == CU_GRAPH_NODE_TYPE_GRAPH) {
			graph_adopt(node->work.of.child, was->work.of.child);
		}
	}
}

/* ---- order ---- */

enum { NEW, OPEN, DONE };

/* False: the graph has a circle. Recursion is as deep as the longest path. */
static bool visit(struct node *node, struct node **order, size_t *n)
{
	if (node->color == DONE) {
		return true;
	}
	if (node->color == OPEN) {
		return false;
	}
	node->color = OPEN;
	for (size_t i = 0; i < node->n_deps; i++) {
		if (!visit(node->deps[i], order, n)) {
			return false;
		}
	}
	node->color = DONE;
	order[(*n)++] = node;
	return true;
}

/* Nodes that may go in any order go in the order of their making. */
struct node **graph_order(const struct graph *graph)
{
	struct node **order = calloc(graph->n_nodes + 1, sizeof(struct node *));
	size_t n = 0;
	bool is_good = order != NULL;

	for (struct node *node = graph->first; node; node = node->next) {
		node->color = NEW;
	}
	for (struct node *node = graph->first; is_good && node; node = node->next) {
		is_good = visit(node, order, &n);
	}
	if (!is_good) {
		free(order);
		return NULL;
	}
	return order;
}

static void color_before(struct node *node)
{
	if (node->color == 1) {
		return;
	}
	node->color = 1;
	for (size_t i = 0; i < node->n_deps; i++) {
		color_before(node->deps[i]);
	}
}

void graph_color_before(struct graph *graph, struct node *const *nodes, size_t n)
{
	for (struct node *node = graph->first; node; node = node->next) {
		node->color = 0;
	}
	for (size_t i = 0; i < n; i++) {
		color_before(nodes[i]);
	}
}

/* ---- the program's ---- */

CUresult cuGraphCreate(CUgraph *graph_out, unsigned int flags)
{
	ENTER(cuGraphCreate);
	if (!graph_out || flags != 0) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct graph *graph = graph_new();
	if (!graph) {
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*graph_out = (CUgraph)graph;
	return CUDA_SUCCESS;
}

/* A child graph of a node, or a graph that is captured to, cannot be destroyed. */
CUresult cuGraphDestroy(CUgraph handle)
{
	ENTER(cuGraphDestroy);
	struct graph *graph = graph_from_handle(handle);

	if (!graph || graph->is_child || capture_is_to(graph)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	graph_free(graph);
	return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *clone_out, CUgraph handle)
{
	ENTER(cuGraphClone);
	const struct graph *graph = graph_from_handle(handle);
	struct graph *clone;

	if (!graph || !clone_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	CUresult err = graph_clone(graph, false, &clone);
	if (err == CUDA_SUCCESS) {
		*clone_out = (CUgraph)clone;
	}
	return err;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *node_out, CUgraphNode handle, CUgraph clone_handle)
{
	ENTER(cuGraphNodeFindInClone);
	const struct node *node = node_from_handle(handle);
	struct graph *clone = graph_from_handle(clone_handle);

	if (!node_out || !node || !clone || clone->original_id != node->graph->id) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*node_out = (CUgraphNode)graph_find_clone(clone, node->id, false);
	return *node_out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Nodes that depended on the node lose that dependency. */
CUresult cuGraphDestroyNode(CUgraphNode handle)
{
	ENTER(cuGraphDestroyNode);
	struct node *node = node_from_handle(handle);

	if (!node || capture_is_to(node->graph)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (node->work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ||
	    node->work.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	struct graph *graph = node->graph;
	for (struct node **at = &graph->first; *at;) {
		struct node *other = *at;
		if (other == node) {
			*at = node->next;
			continue;
		}
		for (size_t i = 0; i < other->n_deps; i++) {
			if (other->deps[i] == node) {
				other->deps[i] = other->deps[--other->n_deps];
				break;
			}
		}
		at = &other->next;
	}
	graph->last = &graph->first;
	while (*graph->last) {
		graph->last = &(*graph->last)->next;
	}
	graph->n_nodes--;
	node_free(node);
	return CUDA_SUCCESS;
}
