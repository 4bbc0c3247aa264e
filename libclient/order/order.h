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
#include "libclient/glake_shim.h"

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

#endif
