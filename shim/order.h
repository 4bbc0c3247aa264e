/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap in the order of streams: what was freed on a stream is parked there (glake_order.h) until
 * it goes back to the heap.
 *
 * Owner: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_ORDER_H
#define GLAKE_SHIM_ORDER_H

#include "shim/heap.h"

/*
 * False if the driver does not tell; then the call is its business. @flags: GLAKE_PER_THREAD or 0, here
 * and below.
 */
bool order_find_stream(CUstream handle, unsigned flags, struct glake_stream *stream_out);

/* As heap_alloc(), but what is parked on the stream comes first. */
int order_alloc(const struct glake_stream *stream, struct pool *pool, uint64_t n_bytes,
                CUdeviceptr *address_out);

/* Free a claimed allocation when the stream gets here. False: it is still the caller's. */
bool order_free(CUstream handle, unsigned flags, const struct glake_stream *stream,
                struct glake__allocation *allocation);

/*
 * Give what is parked in @ctx, the current context, and done with back to the heap; with @waits, all
 * that is parked. Whether there was any.
 */
bool order_collect(CUcontext ctx, bool waits);

/* The same for all contexts, without waiting, in a thread that has any context or none. */
void order_collect_all(void);

/*
 * Around calls that may end a context: nobody else makes use of it meanwhile. What is parked in @ctx is
 * hidden before, since its handle may be another's at once; and dropped if it is gone, as no work uses
 * it any more and its events went with it, or shown again.
 */
void order_hold_contexts(void);
void order_let_contexts(void);
void order_hide_ctx(CUcontext ctx);
void order_show_ctx(CUcontext ctx);
void order_drop_ctx(void);

#endif
