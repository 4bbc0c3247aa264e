/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in the order of a stream: what was freed on it and may still be in use.
 *
 * An allocation freed on a stream is parked there, with an event recorded behind it. The same stream
 * may have it again at once, since its work comes later anyway. For everybody else it goes back to
 * the heap, when the event has completed.
 *
 * Nothing here waits, but for order_collect() when asked to. Streams are known by the driver's ids,
 * which unlike handles are never used again, and which tell the threads' default streams apart.
 *
 * Owner: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_ORDER_H
#define GLAKE_SHIM_ORDER_H

#include "shim/heap.h"

/* The calls that there are two of, for the two meanings of the default stream. Some may be NULL. */
struct order_calls {
	__typeof__(cuMemAllocAsync) *alloc;
	__typeof__(cuMemAllocFromPoolAsync) *alloc_from_pool;
	__typeof__(cuMemFreeAsync) *free;
	__typeof__(cuStreamIsCapturing) *is_capturing;
	__typeof__(cuStreamSynchronize) *synchronize;
	__typeof__(cuStreamGetId) *get_id;
	shim_stream_ctx_fn *get_ctx;
	__typeof__(cuEventRecord) *record;
};

struct order_stream {
	uint64_t id;
	struct heap_place place;
};

/* False if the driver does not tell; then the call is its business. */
bool order_find_stream(const struct order_calls *calls, CUstream stream,
                       struct order_stream *stream_out);

/* As heap_alloc(), but what is parked on the stream comes first. */
int order_alloc(const struct order_stream *stream, struct pool *pool, uint64_t n_bytes,
                CUdeviceptr *address_out);

/*
 * Free a claimed allocation when the stream gets here. The driver's error if it cannot be ordered;
 * then it is still the caller's.
 */
CUresult order_free(const struct order_calls *calls, CUstream handle,
                    const struct order_stream *stream, struct allocation *allocation);

/*
 * Give what is parked in @ctx, the current context, and done with back to the heap; with @waits, all
 * that is parked. Whether there was any.
 */
bool order_collect(CUcontext ctx, bool waits);

/* The same for all contexts, without waiting, in a thread that has any context or none. */
void order_collect_all(void);

/* Around calls that may end a context: nobody else makes use of it meanwhile. */
void order_hold_contexts(void);
void order_let_contexts(void);

/* @ctx is gone: no work uses its memory any more, and its events went with it. */
void order_release_ctx(CUcontext ctx);

#endif
