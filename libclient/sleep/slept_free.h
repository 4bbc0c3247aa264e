/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Freeing memory that is asleep: one allocation, or all of a session that ends. Its copies go, and nothing comes back for it.
 *
 * Lock order: the party's lock is outermost (party.h).
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_SLEPT_FREE_H
#define GLAKE_LIBCLIENT_SLEPT_FREE_H

#include <stdbool.h>

#include "glake.h"
#include "libclient/heap/claim.h"

/*
 * Release a claimed allocation (heap/claim.h) of a session that sleeps: its copies go, and it sleeps on. False: it is awake, or
 * on its way, or that takes the memory; nothing has happened. Waits for glaked, but never for room.
 */
bool glake__sleep_free(struct glake_session *session, struct glake__allocation *allocation);

/*
 * The session ends, and leaves its party, which sleeps on: what was asleep is nowhere. Waits for who puts the party to sleep or
 * wakes it, but not until he has room. No lock is held.
 */
void glake__sleep_end(struct glake_session *session);

#endif
