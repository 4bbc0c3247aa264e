/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory: allocations, large and small, in backings that are live or warm.
 *
 * From 2 MiB on an allocation is a backing of its own. What is smaller lies in a slab, a backing of 2 MiB,
 * unless it is to be zero. Freed backings stay mapped in their device's warm memory, so the usual
 * allocation is a search in a small array under a mutex: no system call, no driver call. The rest goes to
 * the daemon; when that has no memory for us, our own warm memory goes first.
 *
 * To free memory: claim it, so that nobody else does; see to it that nothing uses it; release it.
 * The shim's half of the functions is in glake_shim.h.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_HEAP_H
#define GLAKE_LIBCLIENT_HEAP_H

#include <stdint.h>

#include "libclient/glake_shim.h"
#include "libclient/link/session.h"

/*
 * The daemon wants @n_bytes of warm memory of a device back. What is not there is owed: a program that
 * takes again at once what it has freed would keep it from others for ever. Blocks; no lock is held.
 */
void glake__heap_reclaim(struct glake_session *session, uint32_t device, uint64_t n_bytes);

/* Unmap and return free memory of @device until at most @keep_bytes remain. Blocks; no lock is held. */
int glake__heap_trim(struct glake_session *session, struct glake__device *device,
                     uint64_t keep_bytes);

/*
 * Return warm memory of @device because a request failed with @error. True if that was a lack of
 * memory and something was returned: the request is then worth another try.
 */
bool glake__heap_make_room(struct glake_session *session, struct glake__device *device, int error);

/* What was wanted, checked. Returns 0 or -EINVAL. */
int glake__heap_check(uint64_t bytes, unsigned flags, unsigned known_flags);

/* glake__heap_get() on a device that is known; @is_zeroed: fresh chunks, of no slab. */
int glake__heap_get_on(struct glake__device *device, uint64_t n_bytes, bool is_zeroed,
                       const struct glake__tag *tag, struct glake__wait *wait,
                       struct glake__allocation **allocation_out);

/* -EINVAL, with the text for @ptr. */
int glake__heap_unknown(glake_ptr ptr);

/* The allocation of @session that starts at @ptr, claimed by nobody; NULL if there is none. */
struct glake__allocation *glake__heap_at_locked(const struct glake_session *session, glake_ptr ptr);

/* The backing of @session that starts at @ptr and is one allocation. NULL if there is none. */
struct glake__backing *glake__heap_backing_locked(const struct glake_session *session,
                                                  glake_ptr ptr);

/* Release what starts at @ptr, of @session. Blocks. -EINVAL, or the driver's error. */
int glake__heap_free(struct glake_session *session, glake_ptr ptr);

/*
 * Take a live backing that is one allocation out of the books, to make something else of it, and put it
 * back. take: NULL with the error set (-EINVAL). put back cannot fail.
 */
struct glake__backing *glake__heap_take_live(struct glake_session *session, glake_ptr ptr);
void glake__heap_put_back(struct glake_session *session, struct glake__backing *backing);

/* Drop everything, live or warm: the session ends. */
void glake__heap_deinit(struct glake_session *session);

#endif
