/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory in the order of streams: glake_alloc_async() and glake_free_async().
 *
 * An allocation that is freed on a stream stays in the books, parked: it is not the program's any more,
 * and not warm yet. It becomes warm when its stream has got there.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_ASYNC_H
#define GLAKE_LIBCLIENT_ASYNC_H

#include "libclient/link/session.h"

/*
 * Make warm, or give back, what streams are done with; all that is parked of CUDA device @ordinal is
 * waited for, -1: nothing is. Whether there was any. No lock is held.
 */
bool glake__async_collect(struct glake_session *session, int ordinal);

/* The session ends: what is parked is live once more, to be dropped with the rest. */
void glake__async_deinit(struct glake_session *session);

#endif
