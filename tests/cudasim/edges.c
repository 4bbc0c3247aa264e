/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes and edges of graphs. Edges have no data here. */
#include "graph.h"

#include <string.h>

/* A list for the caller: as many elements as it has room for, and the full length. */
struct list {
	CUgraphNode *room; /* NULL: only the length is wanted */
	size_t n_room;
	size_t n;
};

static void list_add(struct list *list, const struct node *node)
{
	if (list->room && list->n < list->n_room) {
		list->room[list->n] = (CUgraphNode)(uintptr_t)node;
	}
	list->n++;
}

/* End the list; the rest of the room is NULL. */
static CUresult list_end(const struct list *list, size_t *n_out)
{
	for (size_t i = list->n; list->room && i < list->n_room; i++) {
		list->room[i] = NULL;
	}
	*n_out = list->room && list->n > list->n_room ? list->n_room : list->n;
	return CUDA_SUCCESS;
}

static struct list list_begin(CUgraphNode *room, const size_t *n)
{
	return (struct list){.room = room, .n_room = *n};
}

static void clear_data(CUgraphEdgeData *data, size_t n)
{
	if (data) {
		memset(data, 0, n * sizeof(*data));
	}
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type_out)
{
	ENTER(cuGraphNodeGetType);
	const struct node *node = node_from_handle(handle);

	if (!node || !type_out) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	*type_out = node->work.type;
	return CUDA_SUCCESS;
}

static CUresult get_nodes(CUgraph handle, CUgraphNode *nodes, size_t *n, bool is_for_roots)
{
	const struct graph *graph = graph_from_handle(handle);

	if (!graph || !n) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct list list = list_begin(nodes, n);
	for (const struct node *node = graph->first; node; node = node->next) {
		if (!is_for_roots || node->n_deps == 0) {
			list_add(&list, node);
		}
	}
	return list_end(&list, n);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
	ENTER(cuGraphGetNodes);
	return get_nodes(graph, nodes, n, false);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
	ENTER(cuGraphGetRootNodes);
	return get_nodes(graph, nodes, n, true);
}

static CUresult get_edges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, size_t *n)
{
	const struct graph *graph = graph_from_handle(handle);

	if (!graph || !n || !from != !to) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct list froms = list_begin(from, n);
	struct list tos = list_begin(to, n);
	for (const struct node *node = graph->first; node; node = node->next) {
		for (size_t i = 0; i < node->n_deps; i++) {
			list_add(&froms, node->deps[i]);
			list_add(&tos, node);
		}
	}
	list_end(&froms, n);
	return list_end(&tos, n);
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *n)
{
	ENTER(cuGraphGetEdges);
	return get_edges(graph, from, to, n);
}

#if CUDA_VERSION >= 13000
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *data, size_t *n)
{
	ENTER(cuGraphGetEdges_v2);
	if (n && from) {
		clear_data(data, *n);
	}
	return get_edges(graph, from, to, n);
}
#endif

static CUresult get_dependencies(CUgraphNode handle, CUgraphNode *nodes, size_t *n)
{
	const struct node *node = node_from_handle(handle);

	if (!node || !n) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct list list = list_begin(nodes, n);
	for (size_t i = 0; i < node->n_deps; i++) {
		list_add(&list, node->deps[i]);
	}
	return list_end(&list, n);
}

static CUresult get_dependents(CUgraphNode handle, CUgraphNode *nodes, size_t *n)
{
	const struct node *node = node_from_handle(handle);

	if (!node || !n) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	struct list list = list_begin(nodes, n);
	for (const struct node *other = node->graph->first; other; other = other->next) {
		if (node_depends(other, node)) {
			list_add(&list, other);
		}
	}
	return list_end(&list, n);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *n)
{
	ENTER(cuGraphNodeGetDependencies);
	return get_dependencies(node, nodes, n);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *n)
{
	ENTER(cuGraphNodeGetDependentNodes);
	return get_dependents(node, nodes, n);
}

#if CUDA_VERSION >= 13000
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data,
                                       size_t *n)
{
	ENTER(cuGraphNodeGetDependencies_v2);
	if (n && nodes) {
		clear_data(data, *n);
	}
	return get_dependencies(node, nodes, n);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes,
                                         CUgraphEdgeData *data, size_t *n)
{
	ENTER(cuGraphNodeGetDependentNodes_v2);
	if (n && nodes) {
		clear_data(data, *n);
	}
	return get_dependents(node, nodes, n);
}
#endif

/* Are both nodes of the graph, and different? */
static bool is_pair(const struct graph *graph, const struct node *from, const struct node *to)
{
	return from && to && from != to && from->graph == graph && to->graph == graph;
}

static CUresult add_edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
	struct graph *graph = graph_from_handle(handle);

	if (!graph || (n > 0 && (!from || !to)) || capture_is_to(graph)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; i < n; i++) {
		struct node *a = node_from_handle(from[i]);
		struct node *b = node_from_handle(to[i]);
		if (!is_pair(graph, a, b) || node_depends(b, a)) {
			return CUDA_ERROR_INVALID_VALUE;
		}
		/* An edge that would make a circle is refused. */
		graph_color_before(graph, &a, 1);
		CUresult err = b->color == 1 ? CUDA_ERROR_INVALID_VALUE : node_depend(b, a);
		if (err != CUDA_SUCCESS) {
			return err;
		}
	}
	return CUDA_SUCCESS;
}

static CUresult remove_edges(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                             size_t n)
{
	const struct graph *graph = graph_from_handle(handle);

	if (!graph || (n > 0 && (!from || !to)) || capture_is_to(graph)) {
		return CUDA_ERROR_INVALID_VALUE;
	}
	for (size_t i = 0; i < n; i++) {
		const struct node *a = node_from_handle(from[i]);
		struct node *b = node_from_handle(to[i]);
		if (!is_pair(graph, a, b) || !node_depends(b, a)) {
			return CUDA_ERROR_INVALID_VALUE;
		}
		size_t k = 0;
		while (b->deps[k] != a) {
			k++;
		}
		b->deps[k] = b->deps[--b->n_deps];
	}
	return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                size_t n)
{
	ENTER(cuGraphAddDependencies);
	return add_edges(graph, from, to, n);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t n)
{
	ENTER(cuGraphRemoveDependencies);
	return remove_edges(graph, from, to, n);
}

#if CUDA_VERSION >= 13000
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *data, size_t n)
{
	ENTER(cuGraphAddDependencies_v2);
	(void)data;
	return add_edges(graph, from, to, n);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                      const CUgraphEdgeData *data, size_t n)
{
	ENTER(cuGraphRemoveDependencies_v2);
	(void)data;
	return remove_edges(graph, from, to, n);
}
#endif
