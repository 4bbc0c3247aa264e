/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing that nobody asks for, under GLAKE_DEDUP=auto or observed: which allocations, and when. guard.h says why no kernel
 * faults by it; this part only decides, and may be wrong without harm.
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
 * program maps itself is none: which part of it is one allocation, only the program's own allocator knows.
 *
 * $GLAKE_DEDUP_QUIET_MS: so long nothing fills more (5000). A refused one is tried again after a minute, and twice as long
 * each time.
 *
 * Threads: the connection's service thread.
 */
#ifndef GLAKE_SHIM_AUTO_H
#define GLAKE_SHIM_AUTO_H

#include "glake_shim.h"
#include "shim/connection.h"
#include "shim/guard.h"

/* A connection's first: the tables of readers that glaked has. What glaked does not give, the process does not have. */
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

/* What there is, by state. Any thread. */
void auto_describe(struct glake__alone *alone_out);

/* Is anything sealed that nobody asked to seal, or is it about to be? Any thread, without a lock. */
bool auto_has_sealed(void);

/* Look, and seal what is to be, in a turn. It stops once the turn is the last. */
void auto_serve(struct connection *connection);

#endif
