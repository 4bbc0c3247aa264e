/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Getting private memory from glaked, and giving free memory back.
 *
 * When glaked has no memory for a request, the session gives its own free memory back and asks once
 * more. glake__supply_get() is in claim.h.
 *
 * Threads: any. All block; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_SUPPLY_H
#define GLAKE_LIBCLIENT_SUPPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/link/wait.h"
#include "libclient/heap/claim.h"
#include "libclient/link/session.h"

/* glaked wants @n_bytes of warm memory of a device back. */
void glake__supply_reclaim(struct glake_session *session, uint32_t device, uint64_t n_bytes);

/*
 * Return free memory of @device because a request failed with @error, the first time what there is, then what streams
 * still use, as they end: glake__order_await(). True if that was a lack of memory and something was returned: the
 * request is then worth another try.
 */
bool glake__supply_make_room(struct glake__device *device, int error, struct glake__wait *wait);

/* Give back up to @n_bytes that elastic ranges of the program have lent, in whole steps. Returns how many went. */
uint64_t glake__supply_give_lent(struct glake__device *device, uint64_t n_bytes);
/* How many they have. Called with the lock held. */
uint64_t glake__supply_lent_bytes_locked(const struct glake__device *device);

/* Give back what streams are done with and the program has not needed for a while (pool.h). */
void glake__supply_settle(struct glake_session *session);

/* glake__supply_get() on a device that is known; @is_zeroed: fresh chunks, of no slab. */
int glake__supply_get_on(struct glake__device *device, uint64_t n_bytes, bool is_zeroed,
                         const struct glake__tag *tag, struct glake__wait *wait,
                         struct glake__allocation **allocation_out);

#endif
