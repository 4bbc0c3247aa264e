/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work of the library's own on the GPU, for sealing and unsealing: memory is copied, or set to zero.
 *
 * The GPU may be full for ever, with work of this program or of another client of MPS. So an errand has a deadline,
 * and what is under way cannot be called back: it may read and write later. Therefore it works at addresses that
 * nobody else has: fresh memory, and a mirror of what is read or set to zero. When its time is over they stay as they
 * are, with the memory, until it has ended; whatever becomes of the allocation meanwhile, nobody else gets that memory.
 *
 * With a gate, errands have ended when all work has: the next closing tells. So there is never more than one under way
 * on a device. Without one, the stream is asked.
 *
 * Owner: the process (space.h). Threads: any; no lock is held. Blocks, up to the deadline. All that return int
 * return 0 or a negative error, the text set.
 */
#ifndef GLAKE_LIBCLIENT_ERRAND_H
#define GLAKE_LIBCLIENT_ERRAND_H

#include "libclient/space/grant.h"
#include "libclient/space/range.h"

/* The pieces that fill [offset, offset + n_bytes) of @range, memory of @device, at other addresses. End it by glake__errand_end(). */
int glake__errand_mirror(const struct glake__device *device, struct glake__range *range,
                         uint64_t offset, uint64_t n_bytes, enum glake__access access,
                         struct glake__range **mirror_out);

/*
 * Copy all of *from, a mirror, to *to, of the same size. -EBUSY: it goes on; then both are the errand's, and NULL here.
 */
int glake__errand_copy(const struct glake__device *device, struct glake__range **to,
                       struct glake__range **from);

/*
 * Zeroes to the pieces that fill [ptr, ptr + n_bytes), of a range that stays, but for the first @n_kept bytes. -EBUSY:
 * they may come later, and the memory is pinned until then.
 */
int glake__errand_zero(const struct glake__device *device, glake_ptr ptr, uint64_t n_bytes,
                       uint64_t n_kept);

/* Unmap what is in *range (NULL is fine), and give it back. It is NULL then. */
void glake__errand_end(struct glake_session *session, struct glake__range **range);

/*
 * All work of @readers has ended that was under way when last() was asked: the gate was closed then, or waited for.
 * Nothing is known without a gate.
 */
uint64_t glake__errands_last(void);
void glake__errands_drained(uint64_t last, uint64_t readers);

/* Whether one has met its deadline and goes on: what it was for may be had later. */
bool glake__errands_go_on(void);

/* glake__gate_wait_soon(), for errands as well. */
int glake__errands_wait(uint64_t readers);

/* Give back what errands had that have ended. The gate is open. */
void glake__errands_collect(void);

#endif
