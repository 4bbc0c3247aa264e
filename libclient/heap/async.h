/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream order of a session: what glake_free_async() has parked.
 *
 * An allocation that is freed on a stream is parked: it is in the books, but the program does not
 * have it any more. It becomes warm when its stream has passed the free.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_ASYNC_H
#define GLAKE_LIBCLIENT_ASYNC_H

#include <stdbool.h>

#include "libclient/link/wait.h"
#include "libclient/link/session.h"

struct glake__async_target {
	struct glake_order *order;
	struct glake_stream stream;
	struct glake__device *device; /* of the stream */
};

/* Find the stream and device of CUstream @handle. Errors: as glake_alloc_async(). */
int glake__async_target(struct glake_session *session, void *handle, unsigned flags,
                        struct glake__async_target *target_out);

/*
 * Make memory warm, or give it back, that streams no longer use. Returns whether there was any. No lock is held.
 * await: glake__order_await(), for CUDA device @ordinal.
 */
bool glake__async_collect(struct glake_session *session);
bool glake__async_await(struct glake_session *session, int ordinal, struct glake__order_wait *wait);

/* The session ends. Parked memory stays in the books and is dropped with the rest. */
void glake__async_deinit(struct glake_session *session);

#endif
