/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of graphs: what is allocated on captured streams, if the session stitches.
 *
 * It is the pool's, as other memory in stream order, but it comes from what no work uses, and no node is
 * added to the graph. What is freed on a captured stream may serve that stream again, later in the same
 * capture, since the graph orders the two. For all others it stays the graph's until the graph, all that was
 * made of it, and their launches are over. The driver says when, by a user object that the graph holds:
 * copies, executables and the graphs that it is a child of hold it as well. What the program frees outside of
 * captures stays the graph's too, because the next launch writes there; and may be freed again behind that.
 *
 * A capture that begins in a graph of the program stays the driver's: the graph may be the body of a conditional
 * node, of which the driver does not say how long it holds its objects.
 *
 * Ownership: the process. Threads: any. Blocking: collect and drop_ctx may, as heap_release() does.
 */
#ifndef GLAKE_SHIM_GRAPHMEM_H
#define GLAKE_SHIM_GRAPHMEM_H

#include "shim/heap.h"

/*
 * Describe a captured stream as order_find_stream() does others, with an id that only its capture has. False: it
 * is not captured, or its memory stays the driver's. @flags, here and below: GLAKE_PER_THREAD or 0.
 */
bool graphmem_find_stream(CUstream handle, unsigned flags, struct glake_stream *stream_out);

/*
 * The claimed @allocation, of a graph, is freed on a captured stream. It is no longer the caller's. False: it still
 * is, and the driver answers.
 */
bool graphmem_free(CUstream handle, unsigned flags, struct glake__allocation *allocation);

/* Is the claimed @allocation of a graph that may be launched again? */
bool graphmem_has(const struct glake__allocation *allocation);
/* Free it elsewhere: no work that was submitted uses it. False: it is not such, and still the caller's. */
bool graphmem_keep(struct glake__allocation *allocation);
/* Was @address freed so? It belongs to *ctx_out. */
bool graphmem_has_freed(CUdeviceptr address, CUcontext *ctx_out);
/* It is the caller's again, claimed. NULL: it was not. */
struct glake__allocation *graphmem_take(CUdeviceptr address);

/* Give back what graphs had that are over. A load if there are none. */
void graphmem_collect(void);

/* @stream is destroyed: another may get its handle. */
void graphmem_forget_stream(CUstream stream);

/* Context @ctx has ended: release what graphs keep of it from before @generation (context.h). */
void graphmem_drop_ctx(CUcontext ctx, uint64_t generation);

#endif
