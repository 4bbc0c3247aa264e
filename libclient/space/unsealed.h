/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The books of memory that was to be sealed and is private: bytes by cause, for listings.
 *
 * Each page of a range has at most one cause, and a block has none. So however often memory is sealed,
 * nothing is counted twice. Allocations in slabs are never sealed, and are not counted. The books are those of the session that
 * seals.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_UNSEALED_H
#define GLAKE_LIBCLIENT_UNSEALED_H

#include "libclient/link/why.h"
#include "libclient/space/range.h"

/*
 * The pages that [begin, end), of one range, touches are private because of @why; those of them that are blocks have
 * no cause any more. Takes the lock, as does the next.
 */
void glake__unsealed_note(struct glake_session *session, glake_ptr begin, glake_ptr end,
                          enum glake__unsealed why);

/* The blocks in [begin, end) will be private because of @why; or, with GLAKE__UNSEALED_NOT, they have stayed blocks. */
void glake__unsealed_blocks(struct glake_session *session, glake_ptr begin, glake_ptr end,
                            enum glake__unsealed why);

/* The cause where @pin is the reason. */
enum glake__unsealed glake__unsealed_by_pin(enum glake__pin pin);

/* The memory allocated there is gone. */
void glake__unsealed_forget_locked(struct glake__range *range);
/* Forgets [begin, end) in @range; takes the lock. */
void glake__unsealed_forget(struct glake__range *range, uint64_t begin, uint64_t end);
/* The session ends. Takes the lock. */
void glake__unsealed_end(const struct glake_session *session);
/* Forgets the pages that [offset, offset + n_bytes) touches. */
void glake__unsealed_forget_part_locked(struct glake__range *range, uint64_t offset,
                                        uint64_t n_bytes);

#endif
