/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream order: memory that the program frees in the order of a stream is parked (glake_order.h),
 * and goes back to the heap when the stream has got there.
 *
 * Ownership: the process. Threads: any.
 */
#ifndef GLAKE_SHIM_ORDER_H
#define GLAKE_SHIM_ORDER_H

#include "shim/heap.h"

/* Is all work of a legacy default stream done (glake_order.h)? Until order_set_calls(): no. */
typedef bool order_idle_fn(CUstream stream);
/* Does a graph keep the claimed allocation, which streams are done with (graphmem.h)? Until order_set_calls(): no. */
typedef bool order_keep_fn(struct glake__allocation *allocation);
void order_set_calls(order_idle_fn *ask, order_keep_fn *keep);

/*
 * Describe a stream. False: the driver does not tell, so the call is the driver's. @flags, here and
 * below: GLAKE_PER_THREAD or 0.
 */
bool order_find_stream(CUstream handle, unsigned flags, struct glake_stream *stream_out);

/*
 * Like heap_alloc(). Parked memory that is no longer in use goes back to the heap first. If glaked
 * refuses, the call waits for parked memory of the context, and asks again, until nothing ends for ten seconds.
 */
int order_alloc(const struct heap_target *target, uint64_t n_bytes, CUdeviceptr *address_out);

/* For an allocation on @handle, which is not captured: if glaked refuses, it may wait for another stream. */
struct glake__wait order_wait_on(CUstream handle, unsigned flags);

/* Like order_alloc(), in stream order and from @pool: memory that is parked on @stream is used at once. */
int order_alloc_async(const struct glake_stream *stream, struct cuda_pool *pool, uint64_t n_bytes,
                      struct glake__wait *wait, CUdeviceptr *address_out);

/* Free a claimed allocation in stream order. False: it is still the caller's. */
bool order_free(CUstream handle, unsigned flags, const struct glake_stream *stream,
                struct glake__allocation *allocation);

/*
 * Like order_free(), for an allocation that a graph keeps: no part of it serves others before the stream gets here.
 */
bool order_free_whole(CUstream handle, unsigned flags, const struct glake_stream *stream,
                      struct glake__allocation *allocation);

/* @handle, which is not captured, gets a wait for a word that somebody writes later. From now on the stream lends no memory. */
void order_stream_waits(CUstream handle, unsigned flags);

/* @handle is about to be destroyed or captured: no event is recorded on it any more, until memory is freed there again. */
void order_stream_ends(CUstream handle, bool is_captured);

/* Give parked memory of @ctx, which does not end meanwhile, back to the heap if it is no longer in use. */
void order_collect(CUcontext ctx);

/* Like order_collect(), for all contexts. The thread may have any current context, or none. */
void order_collect_all(void);

/* The same, and what another thread is just giving back is given back, too: glake__order_settle(). */
void order_settle(void);

/*
 * Around a call that may end contexts. Between hold and let, no other thread uses or ends one; the same one may hold them again.
 * hide: before the call, set the parked memory of @ctx aside, because the handle may be another
 * context's at once. show: @ctx has not ended, the memory is parked again. drop: @ctx has ended,
 * and no work uses the memory any more.
 */
void order_hold_contexts(void);
/* Like order_hold_contexts(), up to @deadline_ns. False: another thread held them, or the driver is too old. */
bool order_try_hold_contexts(uint64_t deadline_ns);
void order_let_contexts(void);
void order_hide_ctx(CUcontext ctx);
void order_show_ctx(CUcontext ctx);
void order_drop_ctx(void);

#endif
