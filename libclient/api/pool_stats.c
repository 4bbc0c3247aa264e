/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in stream order for the eyes of programs: the numbers that the allocator counts, and a snapshot. */
#include <errno.h>
#include <stdlib.h>

#include "libclient/glake.h"
#include "glake.h"
#include "libclient/link/sized.h"
#include "libclient/heap/heap.h"
#include "libclient/stitch/pool.h"

static int find_heap(struct glake_session *session, uint32_t index, struct glake__heap **heap_out)
{
	int r = glake__session_check(session);
	if (r < 0) {
		return r;
	}
	struct glake__device *device = glake__session_device(session, index);
	if (!device) {
		return -ENODEV;
	}
	*heap_out = device->heap;
	return 0;
}

int glake_pool_stats(struct glake_session *session, uint32_t device, struct glake_pool_stats *stats)
{
	struct glake__heap *heap;
	int r = find_heap(session, device, &heap);
	if (r < 0) {
		return r;
	}
	glake__lock();
	struct glake_pool_stats full = heap->pool;
	glake__unlock();
	return glake__sized_out(stats, &full, sizeof(full));
}

int glake_pool_reset_peaks(struct glake_session *session, uint32_t device)
{
	struct glake__heap *heap;
	int r = find_heap(session, device, &heap);
	if (r < 0) {
		return r;
	}
	glake__lock();
	heap->pool.peak_live_bytes = heap->pool.live_bytes;
	heap->pool.peak_reserved_bytes = heap->pool.reserved_bytes;
	glake__unlock();
	return 0;
}

/* ---- snapshots -------------------------------------------------------------------------------- */

struct snapshot {
	struct glake_pool_range *list; /* owned */
	size_t n;                      /* that there are */
	size_t capacity;
};

static void add_range(const struct glake_pool_range *range, void *user)
{
	struct snapshot *snapshot = user;
	if (snapshot->n < snapshot->capacity) {
		snapshot->list[snapshot->n] = *range;
	}
	snapshot->n++;
}

int glake_pool_snapshot(struct glake_session *session, uint32_t device,
                        struct glake_pool_range **ranges_out, size_t *n_out)
{
	struct glake__heap *heap;
	int r = find_heap(session, device, &heap);
	if (r < 0) {
		return r;
	}
	if (!ranges_out || !n_out) {
		return glake__fail(-EINVAL, "an output parameter is NULL");
	}
	struct snapshot snapshot = {.n = 0};
	/* Until there is room for all: it is made without the lock. */
	do {
		free(snapshot.list);
		snapshot.capacity = snapshot.n + snapshot.n / 8;
		snapshot.list = calloc(snapshot.capacity, sizeof(*snapshot.list));
		if (!snapshot.list && snapshot.capacity > 0) {
			return glake__fail(-ENOMEM, "out of memory");
		}
		snapshot.n = 0;
		glake__lock();
		if (heap->stitching) {
			glake__pool_visit_ranges_locked(heap->stitching, add_range, &snapshot);
		}
		glake__unlock();
	} while (snapshot.n > snapshot.capacity);
	if (snapshot.n == 0) {
		free(snapshot.list);
		snapshot.list = NULL;
	}
	*ranges_out = snapshot.list;
	*n_out = snapshot.n;
	return 0;
}
