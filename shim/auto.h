/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing that nobody asks for, under GLAKE_DEDUP=auto or observed: which allocations, and when. guard.h says why no kernel
 * faults by it. This part only decides, and a wrong decision does no harm.
 *
 *              filled more                   another mark was taken away, or sealing has failed
 *      .----.                        .----------------------------------------------------.
 *      v    |                        v                                                    |
 *     FILLING ---- quiet for half ---> QUIET ---- quiet for all of it, launched ---> SEALED
 *      ^                               |                                                  |
 *      |         back-off              v              something may write to it           |
 *      '----------------------------- REFUSED <-------------------------------------------'
 *                                     (for good, when it was unsealed twice)
 *
 * A candidate is an allocation of cuMemAlloc() or cuMemAllocAsync() with pages that copies from the host have filled
 * (fill.h). While it is QUIET it is marked, so that the guard sees who would write to it before it is sealed. Memory that the
 * program maps itself is no candidate: only the program's own allocator knows which part of it is one allocation.
 *
 * $GLAKE_DEDUP_QUIET_MS: the time in which nothing fills more (5000). A refused candidate is tried again after a minute, and
 * after twice as long each time.
 *
 * Threads: the connection's service thread, unless a function says otherwise.
 */
#ifndef GLAKE_SHIM_AUTO_H
#define GLAKE_SHIM_AUTO_H

#include "glake_shim.h"
#include "shim/connection.h"
#include "shim/guard.h"

/* Called for a new connection: get glaked's tables of readers. Without them the process has none. */
void auto_begin(struct connection *connection);

/* How often auto_serve() wants to be called, in ms; 0: never. */
unsigned auto_turn_ms(void);

/* The largest candidates, each with its reason; one piece, the caller's to free. NULL: no memory. Any thread. */
struct auto_list {
	struct glake__candidate_list list;
	struct glake__candidate rows[GLAKE_MAX_CANDIDATES];
	char whys[GLAKE_MAX_CANDIDATES][GUARD_WHY_BYTES];
};
struct auto_list *auto_list(void);

/* Bytes of candidates by state. Any thread. */
void auto_describe(struct glake__alone *alone_out);

/* Is anything sealed by itself, or about to be? Any thread, without a lock. */
bool auto_has_sealed(void);

/* Look for candidates, and seal those that are due, in a turn. Stops once the turn is the last. */
void auto_serve(struct connection *connection);

#endif
