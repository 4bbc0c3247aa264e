/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs: nodes that hold works, and their dependencies.
 *
 * Owner:    the program owns its graphs and executables; a graph owns its nodes, a node its child graph.
 * Lifetime: until destroyed by its owner.
 * Threads:  as the driver's: the program lets one thread at a time use a graph. A graph that is being
 *           captured to is used under the captures' lock.
 */
#ifndef CUDASIM_GRAPH_H
#define CUDASIM_GRAPH_H

#include "work.h"

struct node {
	uint64_t magic;
	uint64_t id;          /* unique in this process */
	uint64_t original_id; /* id of the node that it was cloned from, or 0 */
	struct graph *graph;
	struct node *next; /* link: graph.first, in the order of their making */
	struct work work;
	struct node **deps; /* owned; borrowed nodes of the same graph */
	size_t n_deps;
	bool is_disabled;
	unsigned color; /* for the function that walks the graph */
};

struct graph {
	struct kept kept;
	uint64_t magic;
	uint64_t id;
	uint64_t original_id;
	struct node *first;
	struct node **last;
	size_t n_nodes;
	bool is_child;     /* a node owns it */
	struct held *held; /* owned: references to objects of the program */
};

struct graph *graph_new(void);
/* NULL may be given. */
void graph_free(struct graph *graph);
struct graph *graph_from_handle(CUgraph handle);
struct node *node_from_handle(CUgraphNode handle);
/*
 * Takes the work over, also when it fails. The dependencies are nodes of the graph.
 * CUDA_ERROR_INVALID_VALUE: one of them is not.
 */
CUresult graph_add(struct graph *graph, struct node *const *deps, size_t n_deps, struct work *work,
                   struct node **node_out);
/* CUDA_ERROR_NOT_SUPPORTED: a graph that allocates memory cannot be cloned, except for an executable. */
CUresult graph_clone(const struct graph *graph, bool is_for_exec, struct graph **clone_out);
/* The node that was cloned from the one with this id; with its child graphs, too. */
struct node *graph_find_clone(struct graph *graph, uint64_t original_id, bool is_deep);
bool graph_has_memory(const struct graph *graph);
/* All nodes, each behind those that it depends on, for the caller to free; NULL: a circle. */
struct node **graph_order(const struct graph *graph);
/* Color these nodes and all that they depend on 1; all others 0. */
void graph_color_before(struct graph *graph, struct node *const *nodes, size_t n);
CUresult node_depend(struct node *node, struct node *on);
bool node_depends(const struct node *node, const struct node *on);

/* Give each node the original_id and is_disabled of its counterpart in @before, a graph of the same shape. */
void graph_adopt(struct graph *graph, const struct graph *before);

/* --- userobject.c --- */

CUresult held_copy(const struct graph *graph, struct graph *clone);
void held_drop(struct graph *graph);

/* --- exec.c --- */

/* The node of an executable that was made from this one; NULL: there is none. */
struct node *exec_node(CUgraphExec exec, CUgraphNode node);

/* --- nodes.c --- */

/* The work that parameters describe; it is in the current context unless they say otherwise. */
CUresult work_from_params(const CUgraphNodeParams *params, struct work *work_out);
/* Set parameters of the same type as before; NULL may be given. */
CUresult node_set_params(struct node *node, const CUgraphNodeParams *params);

/* --- graphmem.c --- */

/* Memory of a graph: an address from the making of its node on, memory from the first launch on. */
struct graphmem;

CUresult graphmem_new(unsigned device, uint64_t bytes, struct graphmem **memory_out);
void graphmem_ref(struct graphmem *memory);
void graphmem_unref(struct graphmem *memory);
CUdeviceptr graphmem_address(const struct graphmem *memory);
uint64_t graphmem_bytes(const struct graphmem *memory);
unsigned graphmem_device(const struct graphmem *memory);
/* Is there graph memory at @ptr, allocated or to be, that a node can free? */
bool graphmem_is_at(CUdeviceptr ptr);
bool graphmem_is_live(const struct graphmem *memory);
/* Allocate the memory for a launch. */
CUresult graphmem_take(struct graphmem *memory, bool is_free_again);

#endif
