/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of graphs: memory that is allocated on captured streams, if the session stitches.
 *
 * Such memory is the pool's, as other memory in stream order, but the pool takes it only from memory that no work uses, and no
 * node is added to the graph. Memory that is freed on a captured stream may serve that stream again, later in the same
 * capture, since the graph orders the two. For all others it stays the graph's until the graph, all that was
 * made of it, and their launches are over. The driver says when, by a user object that the graph holds:
 * copies, executables and parent graphs hold it as well. Memory that the program frees outside of
 * captures stays the graph's too, because the next launch writes there; the program may free it again after that launch.
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
 * Describe a captured stream, as order_find_stream() does for others, with an id that only its capture has. False: it
 * is not captured, or its memory stays the driver's. @flags, here and below: GLAKE_PER_THREAD or 0.
 */
bool graphmem_find_stream(CUstream handle, unsigned flags, struct glake_stream *stream_out);

/*
 * Free a claimed @allocation of a graph on a captured stream. False: it is still the caller's, and the driver answers.
 */
bool graphmem_free(CUstream handle, unsigned flags, struct glake__allocation *allocation);

/* Is the claimed @allocation of a graph that may be launched again? */
bool graphmem_has(const struct glake__allocation *allocation);
/* Give such an allocation, which no submitted work uses, back to its graph. False: it has none, and is still the caller's. */
bool graphmem_keep(struct glake__allocation *allocation);
/* Is an allocation at @address kept by a graph? It belongs to *ctx_out. */
bool graphmem_has_freed(CUdeviceptr address, CUcontext *ctx_out);
/* Take an allocation that a graph keeps; it is the caller's, claimed. NULL: there is none at @address. */
struct glake__allocation *graphmem_take(CUdeviceptr address);

/* Give back the memory of graphs that are over. Costs a load if there are none. */
void graphmem_collect(void);

/* @stream is destroyed: another may get its handle. */
void graphmem_forget_stream(CUstream stream);

/* Context @ctx has ended: release memory of it that graphs keep from before @generation (context.h). */
void graphmem_drop_ctx(CUcontext ctx, uint64_t generation);

#endif
