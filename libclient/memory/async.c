/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/async.h"

#include <errno.h>

#include "libclient/memory/heap.h"
#include "libclient/link/notice.h"
#include "libclient/memory/order.h"

static void release(void *user, void *allocation)
{
	struct glake_session *session = user;
	/* What glake_disconnect() has in hand it drops by itself. */
	if (!session->is_closing) {
		glake__heap_release(session, allocation);
	}
}

static int find_order(struct glake_session *session, struct glake_order **order_out)
{
	struct glake_order *order = session->order;
	if (!order) {
		const struct glake_order_options options = {.release = release, .user = session};
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

struct place {
	struct glake_order *order;
	struct glake_stream stream;
	struct glake__device *device; /* of the stream */
};

static int find_place(struct glake_session *session, void *handle, unsigned flags,
                      struct place *place_out)
{
	if (!session->has_driver) {
		return glake__fail(GLAKE_E_NO_DRIVER, "the session was made without the driver");
	}
	int r = find_order(session, &place_out->order);
	if (r < 0) {
		return r;
	}
	/* First of all: to ask for more would end the capture. */
	if (glake__order_is_captured(place_out->order, handle, flags)) {
		return glake__fail(-EBUSY, "the stream is being captured");
	}
	r = glake_order_stream(place_out->order, handle, flags, &place_out->stream);
	if (r < 0) {
		return r;
	}
	r = glake_device_index(session, place_out->stream.ordinal);
	place_out->device = r < 0 ? NULL : glake__session_device(session, (uint32_t)r);
	return r < 0 ? r : 0;
}

int glake_alloc_async(struct glake_session *session, void *stream, uint64_t bytes, unsigned flags,
                      glake_ptr *ptr_out)
{
	static const struct glake__tag nobody;
	struct place place;
	int r = glake__session_check(session);
	if (r == 0 && !ptr_out) {
		r = glake__fail(-EINVAL, "ptr_out is NULL");
	}
	if (r == 0) {
		r = glake__heap_check(bytes, flags, GLAKE_PER_THREAD);
	}
	if (r == 0) {
		r = find_place(session, stream, flags, &place);
	}
	if (r < 0) {
		return r;
	}
	struct glake__allocation *allocation = glake_order_take(place.order, &place.stream,
	                                                        glake__heap_round(bytes));
	if (allocation) {
		glake__heap_reuse(allocation, bytes, &nobody);
		*ptr_out = allocation->address;
		return 0;
	}
	glake_order_collect(place.order, place.stream.context, false);
	struct glake__wait wait = {0};
	r = glake__heap_get_on(place.device, bytes, false, &nobody, &wait, &allocation);
	if (r == 0) {
		*ptr_out = allocation->address;
	}
	return r;
}

/* Out of the program's hands. NULL, with the error set, if it is not there. */
static struct glake__allocation *claim(struct glake_session *session, glake_ptr ptr)
{
	glake__lock();
	struct glake__allocation *allocation = glake__heap_at_locked(session, ptr);
	if (allocation) {
		allocation->is_claimed = true;
	}
	glake__unlock();
	if (!allocation) {
		glake__heap_unknown(ptr);
	}
	return allocation;
}

int glake_free_async(struct glake_session *session, void *stream, glake_ptr ptr, unsigned flags)
{
	struct place place;
	int r = glake__session_check(session);
	if (r < 0 || ptr == 0) {
		return r;
	}
	if (flags & ~(unsigned)GLAKE_PER_THREAD) {
		return glake__fail(-EINVAL, "cannot free with flags 0x%x", flags);
	}
	r = find_place(session, stream, flags, &place);
	if (r < 0) {
		return r;
	}
	struct glake__allocation *allocation = claim(session, ptr);
	if (!allocation) {
		return -EINVAL;
	}
	r = glake_order_park(place.order, stream, flags, &place.stream, allocation,
	                     allocation->ordinal, glake__heap_park(allocation));
	if (r < 0) {
		glake__heap_unpark(allocation);
		glake__heap_unclaim(allocation);
	}
	/* To park may be to release what others are done with. */
	return glake__leave(session, r);
}

bool glake__async_collect(struct glake_session *session, int ordinal)
{
	return session->order && glake_order_collect_all(session->order, ordinal);
}

void glake__async_deinit(struct glake_session *session)
{
	glake_order_free(session->order);
}
