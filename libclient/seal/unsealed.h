/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The books of memory that was to be sealed and is private: bytes by cause, for listings.
 *
 * Each page of a live backing has at most one cause, and a block has none. So however often memory is sealed,
 * nothing is counted twice. Allocations in slabs are never sealed, and are not counted.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_UNSEALED_H
#define GLAKE_LIBCLIENT_UNSEALED_H

#include "libclient/glake_shim.h"
#include "libclient/heap/backing.h"

/*
 * The pages that [begin, end) of @backing touches, which the caller holds, are private because of @why; those
 * of them that are blocks have no cause any more. Takes the lock, as does the next.
 */
void glake__unsealed_note(struct glake__backing *backing, uint64_t begin, uint64_t end,
                          enum glake__unsealed why);

/* The blocks of @backing will be private because of @why; or, with GLAKE__UNSEALED_NOT, they have stayed blocks. */
void glake__unsealed_blocks(struct glake__backing *backing, enum glake__unsealed why);

/* The cause where @pin is the reason. */
enum glake__unsealed glake__unsealed_by_pin(enum glake__pin pin);

/* @backing is no longer live. */
void glake__unsealed_forget_locked(struct glake__backing *backing);

#endif
