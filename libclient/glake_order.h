/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory in stream order, for authors of allocators: memory that was freed on a stream and may
 * still be in use. glake_alloc_async() and the shim's cuMemAllocAsync() are built on it.
 *
 * To free an allocation on a stream, an allocator parks it there: an event is recorded behind it, at once or when
 * somebody wants to know, and then for all that was parked there by then.
 * The same stream may take it again at once, because its work comes later anyway. When the event
 * has completed, the allocation is released for all other uses. An order knows of an allocation
 * only a pointer, a device and a size.
 *
 * Only collecting waits, and only when asked to. No call disturbs a capture of the program, except
 * glake_order_stream() of a captured stream. Streams are known by the driver's ids
 * (cuStreamGetId(), CUDA 12.0): unlike handles they are never used again, and each thread's
 * default stream has its own.
 *
 * Streams and contexts are passed as the driver's own CUstream and CUcontext, which are pointers.
 *
 * Threads: any; nobody uses the order when it is freed. A child of fork() can only free it. Errors: as
 * in glake.h.
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
	 * Nothing uses @allocation any more. Called with no lock held, by a thread that parks, collects,
	 * lets contexts or frees the order. It may call glake_order_collect_all() with -1, and no other
	 * function of the order.
	 */
	void (*release)(void *user, void *allocation);
	void *user;
	/*
	 * Has the legacy default stream @stream, of the current context, come to its end? cuStreamQuery(), unless a
	 * stream is being captured, or could begin to be meanwhile: the call might end the capture. Returns 1 if it
	 * has, else 0. NULL: the order asks, and does not know of captures that begin meanwhile. Called with no
	 * lock held.
	 */
	int (*is_idle)(void *user, void *stream);
	/*
	 * An event is about to be recorded behind @allocation, which is parked or being parked: what the caller
	 * parks together with it from now on, under the same pointer, is not behind the event. May be
	 * called more than once. Must not wait, nor call the order. May be NULL.
	 */
	void (*marking)(void *user, void *allocation);
};

/*
 * Make an order. The driver has been initialised. The caller ends it with glake_order_free().
 * Errors: -EINVAL (@options, or no release); -ENOSYS (the driver is older than CUDA 12.0);
 * GLAKE_E_NO_DRIVER; -ENOMEM.
 */
GLAKE_API int glake_order_new(const struct glake_order_options *options,
                              struct glake_order **order_out);
/*
 * Release all that is parked and end the order. The caller has waited for all use. NULL is
 * allowed.
 */
GLAKE_API void glake_order_free(struct glake_order *order);

struct glake_stream {
	uint64_t id;   /* the driver's */
	void *context; /* its CUcontext */
	int ordinal;   /* of its device */
};

/*
 * Ask the driver about a CUstream. The default stream is that of the current context; @flags says
 * which one, as the driver's _ptsz calls do: GLAKE_PER_THREAD or 0. A stream of a green context
 * counts as one of the primary context. If the stream is being captured, the capture fails.
 * Errors: GLAKE_E_CUDA (no such stream); -ENOSYS (the driver has no default streams by thread);
 * -ENOMEM.
 */
GLAKE_API int glake_order_stream(struct glake_order *order, void *stream, unsigned flags,
                                 struct glake_stream *stream_out);

/*
 * Take an allocation that is parked on @stream, is on its device, has @bytes or more and wastes at
 * most an eighth of them. It is the caller's again, for work on this stream. NULL: there is none.
 */
GLAKE_API void *glake_order_take(struct glake_order *order, const struct glake_stream *stream,
                                 uint64_t bytes);

/*
 * Park @allocation, of @bytes on device @ordinal, until CUstream @handle gets here. @stream is what
 * glake_order_stream() gave for @handle. After an error the allocation is still the caller's.
 * Errors: GLAKE_E_CUDA; -ENOMEM.
 */
GLAKE_API int glake_order_park(struct glake_order *order, void *handle, unsigned flags,
                               const struct glake_stream *stream, void *allocation, int ordinal,
                               uint64_t bytes);

/*
 * The program is about to destroy @stream: the order does not use it after this, until something is parked there. It
 * must be told, because an event may be recorded there long after a free, by any thread. Default streams need it never.
 * If @stream is being captured, what is parked there and has no event stays until its context ends.
 */
GLAKE_API void glake_order_stream_ends(struct glake_order *order,
                                       const struct glake_stream *stream);

/*
 * CUstream @handle waits for all that is parked on the stream with the id @from by now, and perhaps for what that got
 * later: what @handle gets after this may use that memory at once. The GPU waits, not the caller. The allocations stay parked; the caller knows which of their
 * memory it uses, and that stream @from does not get it meanwhile. After an error @handle may wait for a part.
 * Errors: -ENOENT (nothing is parked there any more); -EBUSY (a stream is being captured, or a context may be
 * ending); GLAKE_E_CUDA.
 */
GLAKE_API int glake_order_follow(struct glake_order *order, void *handle, unsigned flags,
                                 uint64_t from);

/*
 * Release allocations that are parked on streams of @context and no longer in use. If @waits is
 * not 0, wait for all that were parked when the call began, until nothing has ended for ten seconds: a stream may wait
 * for what the caller does next. Returns 1 if it released any, else 0.
 */
GLAKE_API int glake_order_collect(struct glake_order *order, void *context, int waits);

/*
 * The same for all contexts. The thread may have any current context or none. Waits for the
 * allocations of device @ordinal; with -1 it waits for none, but gives idle GPUs a millisecond, and
 * does nothing while a context may be ending. Returns 1 if it released any, else 0.
 */
GLAKE_API int glake_order_collect_all(struct glake_order *order, int ordinal);

#ifdef __cplusplus
}
#endif

#endif
