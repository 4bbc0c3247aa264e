/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sessions whose memory one call seals or unseals. Others may free that memory as soon as it is let, and end
 * the session: so the call enters it while it looks at the memory, under the lock, and glake_disconnect() waits until
 * it has left.
 *
 * Owner: the call. {0} has none. Threads: one.
 */
#ifndef GLAKE_LIBCLIENT_SESSIONS_H
#define GLAKE_LIBCLIENT_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>

struct glake_session;

/* A program has one, and now and then another: memory of more in one call is left alone. */
#define GLAKE__MAX_ENTERED 16

struct glake__sessions {
	struct glake_session *list[GLAKE__MAX_ENTERED];
	size_t n;
};

/* Enter @session, unless the call has already. False: there is no room. Called with the lock held. */
bool glake__sessions_enter_locked(struct glake__sessions *sessions, struct glake_session *session);

/* Report the usage of all, and leave them. No lock and no memory is held. Returns @result. */
int glake__sessions_leave(struct glake__sessions *sessions, int result);

#endif
