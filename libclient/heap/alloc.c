/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls for private memory. */
#include <errno.h>

#include "libclient/link/dispatch.h"
#include "libclient/heap/async.h"
#include "libclient/heap/heap.h"
#include "libclient/space/space.h"
#include "libclient/heap/supply.h"
#include "libclient/heap/usage.h"

int glake_alloc(struct glake_session *session, uint32_t device, uint64_t bytes, unsigned flags,
                glake_ptr *ptr_out)
{
	static const struct glake__tag nobody;
	int r = glake__session_awake(session);
	if (r == 0 && !ptr_out) {
		r = glake__fail(-EINVAL, "ptr_out is NULL");
	}
	if (r == 0) {
		r = glake__heap_check(bytes, flags, GLAKE_ZERO);
	}
	struct glake__device *found = NULL;
	if (r == 0) {
		r = glake__session_mappable(session, device, &found);
	}
	if (r < 0) {
		return r;
	}
	struct glake__allocation *allocation;
	struct glake__wait wait = {0};
	r = glake__supply_get_on(found, bytes, flags & GLAKE_ZERO, &nobody, &wait, &allocation);
	if (r == 0) {
		*ptr_out = allocation->address;
	}
	return r;
}

int glake_alloc_async(struct glake_session *session, void *stream, uint64_t bytes, unsigned flags,
                      glake_ptr *ptr_out)
{
	struct glake__async_target target;
	int r = glake__session_awake(session);
	if (r == 0 && !ptr_out) {
		r = glake__fail(-EINVAL, "ptr_out is NULL");
	}
	if (r == 0) {
		r = glake__heap_check(bytes, flags, GLAKE_PER_THREAD);
	}
	if (r == 0) {
		r = glake__async_target(session, stream, flags, &target);
	}
	if (r < 0) {
		return r;
	}
	const struct glake__tag tag = {.stream = target.stream.id + 1};
	struct glake__allocation *allocation = NULL;
	if (!glake__heap_is_pooled(target.device, bytes, &tag)) {
		allocation = glake_order_take(target.order, &target.stream,
		                              glake__heap_round(bytes));
	}
	if (allocation) {
		glake__heap_reuse(allocation, bytes, &tag);
		*ptr_out = allocation->address;
		return 0;
	}
	allocation = glake__heap_take_on(target.device, bytes, &tag);
	if (!allocation) {
		struct glake__wait wait = {.order = target.order, .stream = stream, .flags = flags};
		glake_order_collect(target.order, target.stream.context, false);
		r = glake__supply_get_on(target.device, bytes, false, &tag, &wait, &allocation);
	}
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

/* True: it was asleep, is free, and nobody was woken. Else the session is awake, or *result_out says why not. */
static bool free_asleep(struct glake_session *session, glake_ptr ptr, int *result_out)
{
	*result_out = 0;
	if (!session->asleep) {
		return false;
	}
	struct glake__allocation *allocation = claim(session, ptr);
	if (!allocation) {
		*result_out = -EINVAL;
		return false;
	}
	if (session->free_asleep(session, allocation)) {
		return true;
	}
	glake__heap_unclaim(allocation);
	*result_out = session->wake(session);
	return false;
}

int glake_free(struct glake_session *session, glake_ptr ptr)
{
	int r = glake__session_check(session);
	if (r < 0 || ptr == 0) {
		return r;
	}
	if (free_asleep(session, ptr, &r)) {
		return glake__leave(session, 0);
	}
	return r < 0 ? r : glake__heap_free(session, ptr);
}

int glake_free_async(struct glake_session *session, void *stream, glake_ptr ptr, unsigned flags)
{
	struct glake__async_target target;
	int r = glake__session_check(session);
	if (r < 0 || ptr == 0) {
		return r;
	}
	if (flags & ~(unsigned)GLAKE_PER_THREAD) {
		return glake__fail(-EINVAL, "cannot free with flags 0x%x", flags);
	}
	r = glake__async_target(session, stream, flags, &target);
	if (r < 0) {
		return r;
	}
	if (free_asleep(session, ptr, &r)) {
		return glake__leave(session, 0);
	}
	if (r < 0) {
		return r;
	}
	if (glake__heap_join(session, ptr, target.stream.id, NULL)) {
		return 0;
	}
	struct glake__allocation *allocation = claim(session, ptr);
	if (!allocation) {
		return -EINVAL;
	}
	struct glake__parking parking;
	if (!glake__heap_park(allocation, target.stream.id, &parking)) {
		glake__heap_unclaim(allocation);
		return glake__fail(-ENOMEM, "out of memory");
	}
	r = glake_order_park(target.order, stream, flags, &target.stream, allocation,
	                     allocation->ordinal, parking.n_reusable);
	if (r == 0) {
		glake__heap_parked(&parking);
	} else {
		glake__heap_unpark(allocation, &parking);
		glake__heap_unclaim(allocation);
	}
	/* Parking may have released memory of other streams. */
	return glake__leave(session, r);
}

int glake_stream_ends(struct glake_session *session, void *stream, unsigned flags)
{
	struct glake__async_target target;
	int r = glake__session_check(session);
	if (r == 0 && (flags & ~(unsigned)GLAKE_PER_THREAD)) {
		r = glake__fail(-EINVAL, "flags 0x%x of a stream", flags);
	}
	if (r == 0) {
		r = glake__async_target(session, stream, flags, &target);
	}
	if (r == 0) {
		glake_order_stream_ends(target.order, &target.stream);
	}
	return r;
}

int glake_trim(struct glake_session *session, uint32_t device, uint64_t keep_bytes)
{
	struct glake__device *found;
	int r = glake__session_check_device(session, device, &found);
	if (r < 0) {
		return r;
	}
	glake__async_collect(session);
	r = glake__heap_trim(found, keep_bytes);
	glake__lock();
	uint64_t n_warm = glake__heap_free_bytes_locked(found->heap) +
	                  glake__supply_lent_bytes_locked(found);
	glake__unlock();
	if (r == 0 && n_warm > keep_bytes) {
		glake__supply_give_lent(found, n_warm - keep_bytes);
	}
	/* glaked takes what goes without a report for memory that was used (heap/usage.h). */
	glake__usage_report_now(session);
	return glake__leave(session, r);
}
