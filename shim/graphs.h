/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What executable graphs write to by nodes that copy, set or write words: noted when they are made and changed,
 * looked at when they are launched (writes.h). The driver takes no read-only destination, so what nodes are to write
 * to is private before they are made.
 *
 * Kernels are looked at under GLAKE_DEDUP=auto or observed only: what they may write to is noted, as guard.h says. What the
 * driver does not tell, such as the bodies of conditional nodes, is noted then as what may write anywhere.
 *
 * A note may outlive what it is about: then more is taken for written than is.
 *
 * Ownership: the process. Threads: any; one at a time changes an executable, as with the driver.
 */
#ifndef GLAKE_SHIM_GRAPHS_H
#define GLAKE_SHIM_GRAPHS_H

#include <stdbool.h>

#include "proto/cudrv.h"
#include "shim/writes.h"

struct learn_function; /* learn.h */

/*
 * Around a call of the driver that makes or changes @exec: note what it is to write to from then on, by all nodes
 * of @graph, or by @node, which gets @params; then settle, with the same @node. False: there is no memory, and
 * the call must not be made. What the executable wrote to before, by @node or (NULL) by all nodes, is
 * forgotten if the call @is_done, else what was noted.
 */
bool graphs_note(CUgraphExec exec, CUgraph graph, CUgraphNode node);
bool graphs_note_node(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params);
void graphs_settle(CUgraphExec exec, CUgraphNode node, bool is_done);

void graphs_drop(CUgraphExec exec);

/* Also to be settled: it may write anywhere. False: there is no memory. */
bool graphs_note_opaque(CUgraphExec exec, const char *why);

/* A kernel of a graph, and where it may write. */
struct graphs_use {
	CUdeviceptr ptr; /* 0: anywhere, and @kernel says why */
	char kernel[320];
};

/* Is there one of @exec, settled or not, that guard_is_marked() says is marked? Inside the gate. */
bool graphs_find_marked(CUgraphExec exec, struct graphs_use *use_out);

/* Is there one of any executable in [ptr, ptr + n_bytes)? */
bool graphs_find_use(CUdeviceptr ptr, uint64_t n_bytes, struct graphs_use *use_out);

/*
 * Under GLAKE_DEDUP=learn: each word of its kernels that points to glake's memory, and what other nodes write to, which are
 * no function's. False: it may write elsewhere as well.
 */
typedef void graphs_fn(void *user, struct writes_span span, struct learn_function *function,
                       size_t at);
bool graphs_each(CUgraphExec exec, graphs_fn *fn, void *user);

/*
 * The first of what nodes with @params write to that is sealed: of a child graph, all of its nodes. Inside the gate.
 */
struct writes_span graphs_find(const CUgraphNodeParams *params);

/* The first note of @exec that has sealed memory. Inside the gate. */
struct writes_span writes_graph(CUgraphExec exec);

#endif
