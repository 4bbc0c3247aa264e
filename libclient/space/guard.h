/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guard: one chunk that stands, read-only, at every place of a range that would be a hole. What reads there reads the guard,
 * what writes faults.
 *
 * Memory and guard take each other's place one place after the other, in three calls of the driver each:
 *
 *   step                                             what undoes it
 *   unmap    what is there                           map it by its handle, with its access
 *   map      what comes, by its handle               unmap it
 *   access   of what comes                           the unmapping above
 *
 * and the change is noted when all places have had theirs. If a step fails, all places are undone, the last one first. The
 * driver cannot exchange memory in one call: between unmap and access, tens of microseconds, a read of this one place is a fault.
 *
 * Other than memory of the program a guard is never asleep (asleep.h), and it may have any number of places.
 *
 * Owner: range->guard is borrowed from the range's user, who sets it under the lock, before anybody else works on the range,
 * and has a use of the chunk. Threads: any; no lock is held by the caller.
 */
#ifndef GLAKE_LIBCLIENT_GUARD_H
#define GLAKE_LIBCLIENT_GUARD_H

#include "libclient/space/range.h"

/* @n guards side by side from @offset on, where nothing is: all or none. 0 or a negative error, the text set. */
int glake__guard_fill(struct glake__range *range, uint64_t offset, size_t n);

enum glake__guard_way {
	GLAKE__GUARD_NOW,   /* -EBUSY if others work on it */
	GLAKE__GUARD_WAITS, /* for them */
	GLAKE__GUARD_PINNED, /* the same, and what is pinned goes too: it has another place, where it stays */
};

/*
 * Put parts[i], or without @parts the guard, at offsets[i] of @range: in all @n places, or in none. Each is a place of
 * one chunk, and so is what is there; both have a handle of the library's. Chunks that
 * lost their last use are put onto @dead. 0; -EBUSY (pinned, too), -ENOMEM, GLAKE_E_CUDA, the text set. What the driver neither exchanged
 * nor gave back is a hole then.
 */
int glake__guard_exchange(struct glake__range *range, const uint64_t *offsets,
                          const struct glake__part *parts, size_t n, enum glake__guard_way way,
                          struct glake__chunk **dead);

#endif
