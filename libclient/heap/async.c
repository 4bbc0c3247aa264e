/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/heap/async.h"

#include <errno.h>

#include "libclient/heap/heap.h"
#include "libclient/order/order.h"

static void release(void *user, void *allocation)
{
	struct glake_session *session = user;
	struct glake__allocation *released = allocation;
	/* glake_disconnect() drops it with the rest; what a pool has parked is no memory any more. */
	if (!session->is_closing || (released->is_pooled && !session->is_forked)) {
		glake__heap_release(session, released);
	}
}

static void marking(void *user, void *allocation)
{
	(void)user;
	glake__heap_marking(allocation);
}

static int find_order(struct glake_session *session, struct glake_order **order_out)
{
	struct glake_order *order = session->order;
	if (!order) {
		const struct glake_order_options options = {
			.release = release, .user = session, .marking = marking};
		struct glake_order *first = NULL;
		int r = glake__order_over(&session->drv, &options, &order);
		if (r < 0) {
			return r;
		}
		if (!atomic_compare_exchange_strong(&session->order, &first, order)) {
			glake_order_free(order);
			order = first;
		}
	}
	*order_out = order;
	return 0;
}

int glake__async_target(struct glake_session *session, void *handle, unsigned flags,
                        struct glake__async_target *target_out)
{
	if (!session->has_driver) {
		return glake__fail(GLAKE_E_NO_DRIVER, "the session was made without the driver");
	}
	int r = find_order(session, &target_out->order);
	if (r < 0) {
		return r;
	}
	/* First, because glake_order_stream() would end the capture. */
	if (glake__order_is_captured(target_out->order, handle, flags)) {
		return glake__fail(-EBUSY, "the stream is being captured");
	}
	r = glake_order_stream(target_out->order, handle, flags, &target_out->stream);
	if (r < 0) {
		return r;
	}
	target_out->device = glake__session_at_ordinal(session, target_out->stream.ordinal);
	return target_out->device ? 0
	                          : glake__fail(-ENOENT, "the daemon does not own CUDA device %d",
	                                        target_out->stream.ordinal);
}

bool glake__async_collect(struct glake_session *session)
{
	return session->order && glake_order_collect_all(session->order, -1);
}

bool glake__async_await(struct glake_session *session, int ordinal, struct glake__order_wait *wait)
{
	return session->order && glake__order_await(session->order, NULL, ordinal, wait);
}

void glake__async_deinit(struct glake_session *session)
{
	glake_order_free(session->order);
}
