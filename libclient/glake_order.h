/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in the order of streams, for whoever writes an allocator: what was freed on a stream and
 * may still be in use. glake_alloc_async() is made of it, and so is the shim's cuMemAllocAsync().
 *
 * An allocation that is freed on a stream is parked there, with an event recorded behind it. The same
 * stream may have it again at once, since its work comes later anyway. To everybody else it is
 * released when the event has completed. What an allocation is, its allocator knows: here it is a
 * pointer, a device and a size.
 *
 * Nothing here waits, but for collecting when asked to. Nor does anything here disturb the captures of
 * the program, whenever one begins, but for glake_order_stream() of a stream that is captured. Streams
 * are known by the driver's ids, which unlike handles are never used again, and which tell the threads'
 * default streams apart (cuStreamGetId(), CUDA 12.0).
 *
 * Streams and contexts are passed as the driver's own CUstream and CUcontext, which are pointers.
 *
 * Threads: any. Errors: as in glake.h.
 */
#ifndef GLAKE_ORDER_H
#define GLAKE_ORDER_H

#include "glake.h"

#ifdef __cplusplus
extern "C" {
#endif

struct glake_order;

struct glake_order_options {
	size_t size;         /* sizeof(struct glake_order_options) */
	const char *libcuda; /* NULL: $GLAKE_LIBCUDA, then libcuda.so.1 */
	/*
	 * Nothing uses @allocation any more. Called with no lock held, in a thread that parks, collects,
	 * lets contexts or frees the order. Of the order it may call glake_order_collect_all() with -1
	 * and nothing else.
	 */
	void (*release)(void *user, void *allocation);
	void *user;
};

/*
 * The order is the caller's: glake_order_free(). The driver has been initialised.
 * Errors: -ENOSYS (a driver before CUDA 12.0), GLAKE_E_NO_DRIVER, -ENOMEM.
 */
GLAKE_API int glake_order_new(const struct glake_order_options *options,
                              struct glake_order **order_out);
/* All that is parked is released at once: the caller has quiesced its use. NULL is fine. */
GLAKE_API void glake_order_free(struct glake_order *order);

struct glake_stream {
	uint64_t id;   /* the driver's */
	void *context; /* CUcontext, that it is of */
	int ordinal;   /* of its device */
};

/*
 * What the driver knows of a CUstream; for the default stream, of the current context's. @flags:
 * GLAKE_PER_THREAD or 0, which is the meaning of the default stream, as the _ptsz calls have it. A
 * stream of a green context is one of the primary context. A capture of the stream would fail.
 * GLAKE_E_CUDA if there is no such stream; -ENOSYS: no default streams by thread; -ENOMEM.
 */
GLAKE_API int glake_order_stream(struct glake_order *order, void *stream, unsigned flags,
                                 struct glake_stream *stream_out);

/*
 * Some allocation that is parked on @stream, of its device, takes @bytes or more, and wastes no more
 * than an eighth of them. It is the caller's again, for work on this stream. NULL: there is none.
 */
GLAKE_API void *glake_order_take(struct glake_order *order, const struct glake_stream *stream,
                                 uint64_t bytes);

/*
 * Park @allocation, of @bytes on device @ordinal, until CUstream @handle, which is @stream, gets here.
 * On failure it is still the caller's: GLAKE_E_CUDA, -ENOMEM.
 */
GLAKE_API int glake_order_park(struct glake_order *order, void *handle, unsigned flags,
                               const struct glake_stream *stream, void *allocation, int ordinal,
                               uint64_t bytes);

/*
 * Release what is parked on streams of @context and done with; if @waits is not 0, wait for all that
 * was parked when the call began: not between hold and let. Returns whether there was any.
 */
GLAKE_API int glake_order_collect(struct glake_order *order, void *context, int waits);

/*
 * The same for all contexts, in a thread that has any current context or none. What is parked of
 * device @ordinal is waited for; -1: nothing is, and while a context may be ending nothing is done.
 */
GLAKE_API int glake_order_collect_all(struct glake_order *order, int ordinal);

#ifdef __cplusplus
}
#endif

#endif
