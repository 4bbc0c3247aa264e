/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sleeps together: a party. Where a gate can sleep, under the shim, that is all sessions of the process, since nobody passes
 * it then, whosever memory he wants. Else each session is alone.
 *
 * One thread at a time puts a party to sleep, wakes it, or ends a session of it: who has its lock. It may wait for minutes
 * for room, and a session must not wait for that to end. So who has the lock looks whether one leaves, wherever it waits for
 * others, and lets it go first.
 *
 * Lock order: the party's lock is outermost. A thread of the program that ends a session may wait for it; whoever has it waits
 * for no thread of the program but for those inside the gate.
 *
 * Owner: the process; a forked child begins anew. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_PARTY_H
#define GLAKE_LIBCLIENT_PARTY_H

#include <stdbool.h>

struct glake_session;

/* A session has begun. */
void glake__party_join(struct glake_session *session);

/* @session may be NULL where all sleep together. Waits until those that leave have left. try: false: another has the lock. */
void glake__party_lock(struct glake_session *session);
bool glake__party_try_lock(struct glake_session *session);
void glake__party_unlock(struct glake_session *session);

/* A session wants to leave that sleeps together with others. */
bool glake__party_is_left(void);

/* @session ends: take the lock, and out of the party. Not in a forked child. */
void glake__party_leave(struct glake_session *session);

/* With the lock: all that sleep together with @session, in the order of connecting; NULL is the end. */
struct glake_session *glake__party_first(struct glake_session *session);
struct glake_session *glake__party_next(const struct glake_session *session);
bool glake__party_is_all(void);

#endif
