/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream order of a session: what glake_free_async() has parked.
 *
 * An allocation that is freed on a stream stays in the books, parked: it is not the program's any more,
 * and not warm yet. It becomes warm when its stream has got there.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_ASYNC_H
#define GLAKE_LIBCLIENT_ASYNC_H

#include <stdbool.h>

#include "libclient/glake_order.h"
#include "libclient/link/session.h"

struct glake__async_place {
	struct glake_order *order;
	struct glake_stream stream;
	struct glake__device *device; /* of the stream */
};

/* What CUstream @handle is; -EBUSY: it is being captured. Errors as of glake_alloc_async(). */
int glake__async_place(struct glake_session *session, void *handle, unsigned flags,
                       struct glake__async_place *place_out);

/*
 * Make warm, or give back, what streams are done with; all that is parked of CUDA device @ordinal is
 * waited for, -1: nothing is. Whether there was any. No lock is held.
 */
bool glake__async_collect(struct glake_session *session, int ordinal);

/* The session ends: what is parked is live once more, to be dropped with the rest. */
void glake__async_deinit(struct glake_session *session);

#endif
