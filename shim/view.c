/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/view.h"

static uint64_t at_most(uint64_t value, uint64_t limit)
{
	return value < limit ? value : limit;
}

int view_apply(struct glake_session *session, uint32_t index, uint64_t warm_bytes,
               struct view *view)
{
	struct glake_device_view left = {.size = sizeof(left)};
	int r = glake_device_view(session, index, &left);
	if (r < 0) {
		return r;
	}
	warm_bytes += left.warm_bytes;
	if (left.promise_bytes > 0) {
		view->total_bytes = left.promise_bytes;
		view->free_bytes = at_most(left.left_bytes + warm_bytes, left.promise_bytes);
		return 0;
	}
	uint64_t free_bytes = at_most(view->free_bytes, left.room_bytes) + left.idle_bytes +
	                      warm_bytes;
	if (left.quota_bytes > 0) {
		uint64_t used = left.used_bytes - at_most(warm_bytes, left.used_bytes);
		view->total_bytes = at_most(view->total_bytes, left.quota_bytes);
		free_bytes = at_most(free_bytes,
		                     left.quota_bytes - at_most(used, left.quota_bytes));
	}
	view->free_bytes = at_most(free_bytes, view->total_bytes);
	return 0;
}
