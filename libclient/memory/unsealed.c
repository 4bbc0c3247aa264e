/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/unsealed.h"

#include "libclient/link/session.h"
#include "libclient/memory/space.h"

_Static_assert(GLAKE_N_UNSEALED == GLAKE__UNSEALED_NAMED + GLAKE__N_PINS, "all causes");

void glake__unsealed_add(struct glake__backing *backing, enum glake__unsealed why, uint64_t n_bytes)
{
	glake__lock();
	backing->unsealed_bytes[why] += n_bytes;
	backing->device->session->books.unsealed_bytes[why] += n_bytes;
	glake__unlock();
}

/* What is pinned for no reason is no memory that could be sealed. */
void glake__unsealed_pinned(struct glake__backing *backing, enum glake__pin pin, uint64_t n_bytes)
{
	unsigned why = pin == GLAKE__PIN_NONE ? GLAKE__UNSEALED_FAILED
	                                      : GLAKE__UNSEALED_NAMED + (unsigned)pin;
	glake__unsealed_add(backing, (enum glake__unsealed)why, n_bytes);
}

void glake__unsealed_forget_locked(struct glake__backing *backing)
{
	struct glake__books *books = &backing->device->session->books;
	for (unsigned why = 0; why < GLAKE_N_UNSEALED; why++) {
		books->unsealed_bytes[why] -= backing->unsealed_bytes[why];
		backing->unsealed_bytes[why] = 0;
	}
}
