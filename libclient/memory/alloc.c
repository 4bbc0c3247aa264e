/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls for private memory. */
#include <errno.h>

#include "libclient/link/notice.h"
#include "libclient/memory/async.h"
#include "libclient/memory/heap.h"

int glake_alloc(struct glake_session *session, uint32_t device, uint64_t bytes, unsigned flags,
                glake_ptr *ptr_out)
{
	static const struct glake__tag nobody;
	int r = glake__session_check(session);
	if (r == 0 && !ptr_out) {
		r = glake__fail(-EINVAL, "ptr_out is NULL");
	}
	if (r == 0) {
		r = glake__heap_check(bytes, flags, GLAKE_ZERO);
	}
	if (r < 0) {
		return r;
	}
	struct glake__device *found = glake__session_mappable(session, device, &r);
	if (!found) {
		return r;
	}
	struct glake__allocation *allocation;
	struct glake__wait wait = {0};
	r = glake__heap_get_on(found, bytes, flags & GLAKE_ZERO, &nobody, &wait, &allocation);
	if (r == 0) {
		*ptr_out = allocation->address;
	}
	return r;
}

int glake_free(struct glake_session *session, glake_ptr ptr)
{
	int r = glake__session_check(session);
	return r < 0 || ptr == 0 ? r : glake__heap_free(session, ptr);
}

int glake_trim(struct glake_session *session, uint32_t device, uint64_t keep_bytes)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__device *found = glake__session_mappable(session, device, &r);
	if (!found) {
		return r;
	}
	glake__async_collect(session, -1);
	return glake__leave(session, glake__heap_trim(session, found, keep_bytes));
}
