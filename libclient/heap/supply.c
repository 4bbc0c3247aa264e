/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/heap/supply.h"

#include <errno.h>

#include "proto/size.h"
#include "libclient/link/dispatch.h"
#include "libclient/heap/async.h"
#include "libclient/heap/elastic_calls.h"
#include "libclient/heap/heap.h"
#include "libclient/stitch/pool.h"

uint64_t glake__supply_give_lent(struct glake__device *device, uint64_t n_bytes)
{
	const struct glake__elastic_calls *calls = device->session->elastic_calls;
	return calls && n_bytes > 0 ? calls->give(device, n_bytes) : 0;
}

uint64_t glake__supply_lent_bytes_locked(const struct glake__device *device)
{
	const struct glake__elastic_calls *calls = device->session->elastic_calls;
	return calls ? calls->lent_bytes_locked(device) : 0;
}

/* Lent memory pays the rest of the memory that glaked wants. */
static void pay_by_lent(struct glake__device *device)
{
	glake__lock();
	uint64_t n_missing = device->reclaim_debt;
	glake__unlock();
	uint64_t n_given = glake__supply_give_lent(device, n_missing);
	glake__lock();
	device->reclaim_debt -= n_given < device->reclaim_debt ? n_given : device->reclaim_debt;
	glake__unlock();
}

void glake__supply_reclaim(struct glake_session *session, uint32_t device, uint64_t n_bytes)
{
	struct glake__device *found = glake__session_device(session, device);
	if (found) {
		glake__heap_reclaim(found, n_bytes);
		pay_by_lent(found);
		/* Memory that becomes free by this pays the debt. */
		glake__async_collect(session);
	}
}

void glake__supply_settle(struct glake_session *session)
{
	glake__async_collect(session);
	for (uint32_t i = 0; i < session->n_devices; i++) {
		if (session->heaps[i].stitching) {
			glake__pool_settle_idle(session->heaps[i].stitching);
		}
	}
}

/* Nobody waits for the GPU as long as there is something else. */
static bool find_room(struct glake__device *device, struct glake__wait *wait)
{
	struct glake_session *session = device->session;
	bool is_first = !wait->is_room_made;
	wait->is_room_made = true;
	if (is_first) {
		bool has_any = glake__async_collect(session);
		if (glake__supply_give_lent(device, UINT64_MAX) > 0 || has_any ||
		    glake__heap_is_warm(device)) {
			return true;
		}
	}
	return glake__async_await(session, device->public.ordinal, &wait->parked);
}

bool glake__supply_make_room(struct glake__device *device, int error, struct glake__wait *wait)
{
	if (error != GLAKE_E_OVER_QUOTA && error != GLAKE_E_NO_DEVICE_MEMORY &&
	    error != GLAKE_E_NO_FDS) {
		return false;
	}
	return find_room(device, wait) && glake__heap_trim(device, 0) == 0 &&
	       !device->session->link.error;
}

static int too_large(const struct glake__device *device, uint64_t n_bytes)
{
	char wanted[SIZE_TEXT_BYTES];
	char total[SIZE_TEXT_BYTES];
	return glake__fail(GLAKE_E_NO_DEVICE_MEMORY, "%s more on device %u, which has %s in all",
	                   size_text(n_bytes, wanted), device->public.index,
	                   size_text(device->public.total_bytes, total));
}

int glake__supply_get_on(struct glake__device *device, uint64_t n_bytes, bool is_zeroed,
                         const struct glake__tag *tag, struct glake__wait *wait,
                         struct glake__allocation **allocation_out)
{
	struct glake__allocation *taken = is_zeroed ? NULL
	                                            : glake__heap_take_on(device, n_bytes, tag);
	bool is_small = !is_zeroed && n_bytes < SLAB_BYTES;
	int r = 0;
	if (taken) {
		*allocation_out = taken;
		return 0;
	}
	while (r == 0 && !taken) {
		r = glake__heap_make(device, n_bytes, is_small, tag, wait, &taken);
		while (r < 0 && glake__supply_make_room(device, r, wait)) {
			r = glake__heap_make(device, n_bytes, is_small, tag, wait, &taken);
		}
	}
	if (r == 0) {
		*allocation_out = taken;
	} else if (r == GLAKE_E_CUDA && n_bytes > device->public.total_bytes) {
		/* glaked was not asked: the driver has no address range of this size. */
		r = too_large(device, n_bytes);
	}
	return glake__leave(device->session, r);
}

int glake__supply_get(struct glake_session *session, int ordinal, uint64_t n_bytes,
                      const struct glake__tag *tag, struct glake__wait *wait,
                      struct glake__allocation **allocation_out)
{
	struct glake__device *device = glake__session_at_ordinal(session, ordinal);
	if (!device) {
		return glake__fail(-ENODEV, "the daemon does not own CUDA device %d", ordinal);
	}
	int r = glake__heap_check(n_bytes, 0, 0);
	if (r == 0 && n_bytes > device->public.total_bytes) {
		/* There may not even be an address range of this size to be reserved. */
		r = too_large(device, n_bytes);
	}
	return r < 0 ? r : glake__supply_get_on(device, n_bytes, false, tag, wait, allocation_out);
}
