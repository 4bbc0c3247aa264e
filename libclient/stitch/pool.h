/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: a session's memory in stream order on one device, split, merged and stitched.
 *
 * Its memory lies in one range, home: mostly a hole, that fresh chunks fill. Home is cut into runs (runs.h).
 * A request of GLAKE__POOL_MIN_BYTES or more takes, in this order:
 *   1. the best fit among free runs: no driver call
 *   2. a stitched range that was kept, if its memory is free: no driver call
 *   3. free memory from anywhere, stitched (stitched.h), and what is missing from glaked
 *   4. where hardly anything is free, memory of glaked, next to a free run if there is a hole
 *   5. before it grows, if the pool has clearly more than it needs, or glaked has refused: what another stream has freed
 *      and may still use; the stream of the allocation waits for that one's work, on the device
 * so that what glaked has given is used before more is asked for. Fresh memory whose end wastes little
 * starts on 2 MiB, so that equal weights stay shareable; the rest is packed by 512 bytes.
 *
 * The usual free joins one that waits already: glake__pool_join_locked(). Else it happens in two steps:
 * glake__pool_detach() takes the memory from the allocation before the stream's event is recorded,
 * glake__pool_attach_free() makes it free for the stream behind it. When the event has completed,
 * glake__pool_release() makes it free for others.
 *
 * Memory goes back to glaked when it asks, when the program asks, and when it was not used for two rounds: what
 * stays is the peak of the last rounds. A round takes POOL_ROUND_NS at first, and each time that the program wants
 * back what went by itself, twice as long as before, POOL_ROUND_MAX_NS at most.
 *
 * Owner: the heap. Lifetime: glake__pool_new() .. glake__pool_end().
 * Threads: any; _locked: called with the lock of the space held; the others block, no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_POOL_H
#define GLAKE_LIBCLIENT_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/link/wait.h"
#include "libclient/space/allocation.h"
#include "libclient/stitch/runs.h"
#include "libclient/space/range.h"

/* Home: user is its struct glake__pool. Allocations in it, and in stitched ranges, can be held (held.h). */
extern const struct glake__use glake__use_pool;

struct glake__pool;
struct glake__device;
struct glake__range;
struct glake__stitched;

#define POOL_ROUND_NS (5ull * 1000 * 1000 * 1000)
#define POOL_ROUND_MAX_NS (32 * POOL_ROUND_NS)

/* 0, or an error: then the session goes on without. @stats is the pool's to write, under the lock. */
int glake__pool_new(struct glake__device *device, struct glake_pool_stats *stats,
                    struct glake__pool **pool_out);
/* The session ends: unmap all, or in a forked child free only. NULL is fine. */
void glake__pool_end(struct glake__pool *pool);

/* The pool and the device of an allocation that a pool made. */
struct glake__pool *glake__pool_of(const struct glake__allocation *allocation);
struct glake__device *glake__pool_device_of(const struct glake__allocation *allocation);

/* Ways 1 and 2. NULL: neither, or no memory of the host. */
struct glake__allocation *glake__pool_take_locked(struct glake__pool *pool, uint64_t n_bytes,
                                                  const struct glake__tag *tag);

/* All ways. 0; -ENOMEM; GLAKE_E_CUDA; errors of glake__grant_fill(). After an error all is as it was. */
int glake__pool_make(struct glake__pool *pool, uint64_t n_bytes, const struct glake__tag *tag,
                     struct glake__wait *wait, struct glake__allocation **allocation_out);

/*
 * A free that happens in no steps: another free on @stream, just before, waits for the next mark, and this one with it.
 * The allocation is gone. False: there is none.
 */
bool glake__pool_join_locked(struct glake__allocation *allocation, uint64_t stream);
/* Step one: the memory waits for the work of @stream, and the allocation has none. False: no memory of the host. */
bool glake__pool_detach_locked(struct glake__allocation *allocation, uint64_t stream,
                               struct glake__parking *parking);
/* Step two. */
void glake__pool_attach_free_locked(struct glake__parking *parking);
/* A mark is about to be recorded behind the free: it is for none that joins later. Calls come one at a time. */
void glake__pool_close(struct glake__allocation *allocation);
/* Or back: the free did not happen. */
void glake__pool_undo_locked(struct glake__allocation *allocation, struct glake__parking *parking);

/* Nothing uses it any more. It is gone. */
void glake__pool_release_locked(struct glake__allocation *allocation);

/* Does a thread hold it (held.h)? Then it must not be freed. */
bool glake__pool_is_held_locked(struct glake__allocation *allocation);
/* Any of the pool? */
bool glake__pool_has_held_locked(const struct glake__pool *pool);

/* The allocation that @address, in a range of a pool, lies in; NULL: free memory. */
struct glake__allocation *glake__pool_find_locked(const struct glake__range *range,
                                                  glake_ptr address);

/* Call @visit for each allocation. */
void glake__pool_visit_locked(const struct glake__pool *pool,
                              void (*visit)(struct glake__allocation *allocation, void *user),
                              void *user);

/* Call @visit for each mapped piece, by address. */
void glake__pool_visit_ranges_locked(const struct glake__pool *pool,
                                     void (*visit)(const struct glake_pool_range *range,
                                                   void *user),
                                     void *user);

/* Mapped and free, less what graphs keep. */
uint64_t glake__pool_free_bytes_locked(const struct glake__pool *pool);

/*
 * Give free memory that no work uses back to glaked: @n_bytes, or what there is. Returns its bytes. With
 * @is_owed, memory that work still uses pays the rest as soon as it can.
 */
uint64_t glake__pool_reclaim(struct glake__pool *pool, uint64_t n_bytes, bool is_owed);
/* When this returns, what other threads are giving back has gone. Waits for a second at most. */
void glake__pool_await_reclaims(struct glake__pool *pool);

/*
 * Pay what is owed, and give back what was not used for two rounds: some of it each time. All that is free if
 * glaked's warm_bytes is 0. Cheap if there is nothing. The program, which has freed @n_freed bytes, waits for it.
 */
void glake__pool_settle(struct glake__pool *pool, uint64_t n_freed);
/* glake__pool_settle() by a thread that the program does not wait for, also while it frees nothing: more at a time. */
void glake__pool_settle_idle(struct glake__pool *pool);

/* For tests: runs, stitched ranges and the numbers agree. Takes the lock. */
bool glake__pool_is_valid(struct glake__pool *pool);

#endif
