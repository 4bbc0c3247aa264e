/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private memory: glake_alloc() and glake_free() over backings, live by address or warm.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_ALLOC_H
#define GLAKE_LIBCLIENT_ALLOC_H

#include <stdint.h>

#include "libclient/link/session.h"

/*
 * The daemon wants @n_bytes of warm memory of a device back. What is not there is owed: a program that
 * takes again at once what it has freed would keep it from others for ever. Blocks; no lock is held.
 */
void glake__alloc_reclaim(struct glake_session *session, uint32_t device, uint64_t n_bytes);

/*
 * Return warm memory of @device because a request failed with @error. True if that was a lack of
 * memory and something was returned: the request is then worth another try.
 */
bool glake__alloc_make_room(struct glake_session *session, struct glake__device *device, int error);

/* The live backing at @ptr, which stays; NULL if there is none of @session. */
struct glake__backing *glake__alloc_find_locked(struct glake_session *session, glake_ptr ptr);

/* -EINVAL, with the text for @ptr. */
int glake__alloc_unknown(glake_ptr ptr);

/* What was wanted of glaked, checked, and rounded to whole chunks. Returns 0 or -EINVAL. */
int glake__alloc_round(uint64_t bytes, unsigned flags, unsigned known_flags, uint64_t *n_bytes_out);

/* Get live memory of @n_bytes, warm unless @is_zeroed. Blocks; no lock is held. */
int glake__alloc_get(struct glake_session *session, struct glake__device *device, uint64_t n_bytes,
                     bool is_zeroed, glake_ptr *ptr_out);
/*
 * Make @backing, which is in the books, parked or not, warm, or give it back. Blocks; no lock is held.
 * Notices that come meanwhile stay for the next call.
 */
void glake__alloc_end(struct glake_session *session, struct glake__backing *backing);

/*
 * Take live memory out of the books, to make something else of it, and put it back.
 * take: NULL with the error set (-EINVAL) if @ptr is not of glake_alloc(). put back cannot fail.
 */
struct glake__backing *glake__alloc_take_live(struct glake_session *session, glake_ptr ptr);
void glake__alloc_put_back(struct glake_session *session, struct glake__backing *backing);

/* Drop everything, live or warm: the session ends. */
void glake__alloc_deinit(struct glake_session *session);

#endif
