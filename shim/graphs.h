/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes of where executable graphs write. Destinations of nodes that copy, set or write words are noted when an executable is
 * made or changed, and looked at when it is launched (writes.h). The driver takes no read-only destination, so destinations
 * are made private before the driver makes the nodes.
 *
 * Kernels are looked at only under GLAKE_DEDUP=auto, observed or learn: guard.h says where they may write, and that is
 * noted. A part that the driver does not tell, such as the body of a conditional node, is noted as one that may write anywhere.
 *
 * A note may outlive its node. Then memory counts as written that nothing writes to.
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
 * Before a call of the driver that makes or changes @exec, note where it will write, by all nodes
 * of @graph, or by @node, which gets @params; after the call settle, with the same @node. False: there is no memory, and
 * the call must not be made. If the call @is_done, settling drops older notes of @node, or (NULL) of all nodes; else it
 * drops the new notes.
 */
bool graphs_note(CUgraphExec exec, CUgraph graph, CUgraphNode node);
bool graphs_note_node(CUgraphExec exec, CUgraphNode node, const CUgraphNodeParams *params);
void graphs_settle(CUgraphExec exec, CUgraphNode node, bool is_done);

void graphs_drop(CUgraphExec exec);

/* Note that @exec may write anywhere; settle this, too. False: there is no memory. */
bool graphs_note_opaque(CUgraphExec exec, const char *why);

/* A note of a kernel. */
struct graphs_use {
	CUdeviceptr ptr; /* 0: anywhere, and @kernel says why */
	char kernel[320];
};

/* Find a note of @exec, settled or not, for which guard_is_marked(). Inside the gate. */
bool graphs_find_marked(CUgraphExec exec, struct graphs_use *use_out);

/* Find a note of any executable in [ptr, ptr + n_bytes). */
bool graphs_find_use(CUdeviceptr ptr, uint64_t n_bytes, struct graphs_use *use_out);

/*
 * Under GLAKE_DEDUP=learn: call @fn with each word of @exec's kernels that points to glake's memory, and with each destination
 * of other nodes, with @function NULL. False: @exec may write elsewhere as well.
 */
typedef void graphs_fn(void *user, struct writes_span span, struct learn_function *function,
                       size_t at);
bool graphs_each(CUgraphExec exec, graphs_fn *fn, void *user);

/*
 * The first sealed memory that a node with @params writes to; all nodes of a child graph count. Inside the gate.
 */
struct writes_span graphs_find(const CUgraphNodeParams *params);

/* The first note of @exec that has sealed memory. Inside the gate. */
struct writes_span writes_graph(CUgraphExec exec);

#endif
