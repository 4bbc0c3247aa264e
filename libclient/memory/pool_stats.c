/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of the memory in stream order, for programs. The allocator counts them (heap.h). */
#include <errno.h>

#include "libclient/glake.h"
#include "libclient/glake_shim.h"
#include "libclient/link/sized.h"
#include "libclient/memory/heap.h"

static int find_pool(struct glake_session *session, uint32_t index,
                     struct glake_pool_stats **pool_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__device *device = glake__session_device(session, index);
	if (!device) {
		return -ENODEV;
	}
	*pool_out = &device->heap->pool;
	return 0;
}

int glake_pool_stats(struct glake_session *session, uint32_t device, struct glake_pool_stats *stats)
{
	struct glake_pool_stats *pool;
	int r = find_pool(session, device, &pool);
	if (r < 0) {
		return r;
	}
	glake__lock();
	struct glake_pool_stats full = *pool;
	glake__unlock();
	return glake__sized_out(stats, &full, sizeof(full));
}

int glake_pool_reset_peaks(struct glake_session *session, uint32_t device)
{
	struct glake_pool_stats *pool;
	int r = find_pool(session, device, &pool);
	if (r < 0) {
		return r;
	}
	glake__lock();
	pool->peak_live_bytes = pool->live_bytes;
	pool->peak_reserved_bytes = pool->reserved_bytes;
	glake__unlock();
	return 0;
}
