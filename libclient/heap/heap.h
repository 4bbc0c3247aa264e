/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory: allocations, large and small, in backings that are live or warm.
 *
 * From 2 MiB on an allocation is a backing of its own. A smaller one lies in a slab, a backing of
 * 2 MiB, unless it must be zero. In a session that stitches, memory in stream order of 128 KiB and more lies in a
 * pool (pool.h). Freed backings stay mapped in their device's warm memory, so the
 * usual allocation is a search in a small array under a mutex: no system call, no driver call.
 * supply.h gets the rest.
 *
 * To free memory: claim it, so that no other thread does; make sure that nothing uses it; release
 * it. What works on a single allocation is in claim.h.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_HEAP_H
#define GLAKE_LIBCLIENT_HEAP_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/link/wait.h"
#include "libclient/heap/claim.h"
#include "libclient/link/session.h"
#include "libclient/heap/slab.h"
#include "libclient/heap/warm.h"

/* Private memory of one device that is free, or in slabs. */
struct glake__heap {
	struct glake__warm warm;
	struct glake__slab_bins bins;
	struct glake__backing *empty_slab; /* one of the live ones */
	struct glake__pool *stitching;     /* owned; NULL: the session does not stitch, or cannot */
	uint64_t parked_bytes;             /* of backings that are parked as a whole */
	struct glake_pool_stats pool;      /* of memory in stream order, for programs */
};

/* After Hello. Returns 0 or -ENOMEM. */
int glake__heap_init(struct glake_session *session);
/* Once the driver is open, for a session that stitches. */
void glake__heap_open_pools(struct glake_session *session);
/* Drop everything, live or warm: the session ends. Also without glake__heap_init(). */
void glake__heap_deinit(struct glake_session *session);

/*
 * Give @n_bytes of warm memory back. If less is warm, the rest is a debt, which freed memory pays:
 * otherwise a program that reuses its memory at once would keep it for ever. Blocks; no lock is
 * held.
 */
void glake__heap_reclaim(struct glake__device *device, uint64_t n_bytes);

/*
 * Unmap and return free memory of @device until at most @keep_bytes remain. What other threads give back of stitched
 * memory has gone, too, unless that takes longer than a second. Blocks; no lock is held.
 */
int glake__heap_trim(struct glake__device *device, uint64_t keep_bytes);

/* Free memory that stays mapped. */
uint64_t glake__heap_free_bytes_locked(const struct glake__heap *heap);

/* Is there free memory, which glake__heap_trim() would give back? No lock is held. */
bool glake__heap_is_warm(const struct glake__device *device);

/* Check the size and flags of a request. Returns 0 or -EINVAL. */
int glake__heap_check(uint64_t bytes, unsigned flags, unsigned known_flags);

/* Does an allocation with @tag come from the device's pool? */
bool glake__heap_is_pooled(const struct glake__device *device, uint64_t n_bytes,
                           const struct glake__tag *tag);

/* glake__heap_take() on a device that is known. */
struct glake__allocation *glake__heap_take_on(struct glake__device *device, uint64_t n_bytes,
                                              const struct glake__tag *tag);

/*
 * Ask glaked for memory, once. Small: it becomes a slab, and *allocation_out is NULL if other
 * threads took all of it. Blocks; no lock is held.
 */
int glake__heap_make(struct glake__device *device, uint64_t n_bytes, bool is_small,
                     const struct glake__tag *tag, struct glake__wait *wait,
                     struct glake__allocation **allocation_out);

/* @backing, which is new, is an allocation of @n_bytes from now on. */
struct glake__allocation *glake__heap_add(struct glake__backing *backing, uint64_t n_bytes,
                                          const struct glake__tag *tag);

/* -EINVAL, with the text for @ptr. */
int glake__heap_unknown(glake_ptr ptr);

/*
 * For a call that was given memory, and found @session by holding it. Other threads may free what it lets, and end
 * the session then: so it holds the session before, and ends by leave(), which is glake__leave() and lets the
 * session. glake_disconnect() waits for that.
 */
void glake__heap_hold_session_locked(struct glake_session *session);
int glake__heap_leave(struct glake_session *session, int result);
void glake__heap_wait_left(struct glake_session *session);

/* The allocation of @session at @ptr that is neither claimed nor held; NULL if there is none. */
struct glake__allocation *glake__heap_at_locked(const struct glake_session *session, glake_ptr ptr);

/* The backing of @session at @ptr that is one allocation and not held; NULL if there is none. */
struct glake__backing *glake__heap_backing_locked(const struct glake_session *session,
                                                  glake_ptr ptr);

/* Release the allocation of @session at @ptr. Blocks. -EINVAL, or the driver's error. */
int glake__heap_free(struct glake_session *session, glake_ptr ptr);

/* ---- of a session that sleeps ---- */

/* Release a claimed allocation if it shares its backing with others that stay: only the books know. */
bool glake__heap_release_part(struct glake__allocation *allocation);
/* The range that a claimed allocation has alone, or NULL. */
struct glake__range *glake__heap_range_of(const struct glake__allocation *allocation);
/* Release such a one; its range is a hole already, and had @dead. Blocks. */
void glake__heap_release_gone(struct glake_session *session, struct glake__allocation *allocation,
                              struct glake__chunk *dead);

/*
 * Take a live backing that is one allocation out of the books, to make it a block. NULL with the
 * error set (-EINVAL). put_back undoes it and cannot fail.
 */
struct glake__backing *glake__heap_take_live(struct glake_session *session, glake_ptr ptr);
void glake__heap_put_back(struct glake_session *session, struct glake__backing *backing);

#endif
