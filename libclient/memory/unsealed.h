/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The books of memory that was to be sealed and is private: bytes by cause, for listings.
 *
 * They are of live memory. A backing begins anew with each glake_seal() that has to do with it, so sealing
 * again counts nothing twice. Allocations in slabs are never sealed, and are not counted.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_UNSEALED_H
#define GLAKE_LIBCLIENT_UNSEALED_H

#include "libclient/glake_shim.h"
#include "libclient/memory/backing.h"

/* Pages of @backing, which the caller holds, are private. Takes the lock. */
void glake__unsealed_add(struct glake__backing *backing, enum glake__unsealed why,
                         uint64_t n_bytes);
/* The same where @pin is the reason. */
void glake__unsealed_pinned(struct glake__backing *backing, enum glake__pin pin, uint64_t n_bytes);

/* @backing is no longer live, or begins anew. */
void glake__unsealed_forget_locked(struct glake__backing *backing);

#endif
