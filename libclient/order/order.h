/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake_order.h, for the library itself.
 *
 * Owner, lifetime and threads: as there.
 */
#ifndef GLAKE_LIBCLIENT_ORDER_H
#define GLAKE_LIBCLIENT_ORDER_H

#include <stdbool.h>

#include "proto/cudrv.h"
#include "glake_order.h"
#include "libclient/link/wait.h"

/* glake_order_new(), over a driver that is open. @options are complete. */
int glake__order_over(const struct cudrv *drv, const struct glake_order_options *options,
                      struct glake_order **order_out);

/*
 * glake_order_follow(), up to the oldest of those parked there for which @is_enough() says so; not at all if there is
 * none. It is called with the order's lock held, and must not call the order. Nothing is waited for that the stream got
 * behind that free: also -EBUSY if there is no event from before that. Then the next frees of the stream have some.
 */
int glake__order_follow(struct glake_order *order, CUstream handle, unsigned flags, uint64_t from,
                        bool (*is_enough)(const void *allocation, void *user), void *user);

bool glake__order_is_captured(const struct glake_order *order, CUstream handle, unsigned flags);

struct glake__order_wait glake__order_watch(const struct glake_order *order);

/*
 * Wait until some of what was parked at the first call is released, and a little longer, each time twice as long: more
 * may follow. What is parked in @ctx, the current context; or, if that is NULL, for device @ordinal. True: something
 * has been released since @wait began or was used last, by any thread. False: there is nothing left, or nothing has
 * ended for ten seconds. Then what is left may wait for the caller.
 */
bool glake__order_await(struct glake_order *order, void *ctx, int ordinal,
                        struct glake__order_wait *wait);

/*
 * Release all that streams are done with, of all contexts; when this returns, what another thread was about to release is
 * released, too. Does not wait for streams, but a second at most for that thread, or one that holds the contexts.
 */
void glake__order_settle(struct glake_order *order);

/* ---- contexts that end ------------------------------------------------------------------------- */

/*
 * Around a driver call that may end a context: hold, hide, the call, then drop or show, then let.
 * No other thread uses the context meanwhile. It is hidden first, because a new context may get
 * its handle before the call returns. If the context has ended, its work is over and its events
 * are gone: drop the hidden state; let releases all that was parked there. If it has not ended,
 * show it again.
 */
void glake__order_hold_contexts(struct glake_order *order);
/* A thread that holds them may hold them again, and lets them as often. False: another thread holds them. */
bool glake__order_try_hold_contexts(struct glake_order *order);
void glake__order_let_contexts(struct glake_order *order);
void glake__order_hide_context(struct glake_order *order, void *context);
void glake__order_show_context(struct glake_order *order, void *context);
void glake__order_drop_context(struct glake_order *order);

/* glake_order_stream_ends() for a stream that is being captured: whoever asks for its id ends the capture. */
void glake__order_handle_ends(struct glake_order *order, const void *handle);

/* @stream may wait for what other streams do later: none waits for it, for memory that it frees. */
void glake__order_stream_waits(struct glake_order *order, const struct glake_stream *stream);

#endif
