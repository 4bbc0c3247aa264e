/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The states of a link, and its moves between them.
 *
 *     GREETING --1--> OPEN --2--> DRAINING        1  Hello is answered
 *         |           |  ^  \         |           2  glaked says that it ends
 *         |           3  5   \        |           3  the connection has ended; glaked may know the session still
 *         |           v  |    6       6           4  somebody connects anew
 *         6      LOST -4> RESUMING    |           5  there is a connection
 *         |           <7-  |   |      |           6  nothing can be had of it any more
 *         |                6   |      |           7  not now
 *         v                v   v      v
 *       GONE             GONE GONE  GONE
 *
 * LOST and RESUMING: calls fail, or wait for another connection (resume.h); a call that only gives something back is
 * owed to it. DRAINING: as open, but glaked ends the session with the connection. GONE: for good. What is read of a
 * connection after its end changes nothing, so nothing but OPEN becomes DRAINING.
 *
 * The socket and the buffers belong to who reads (link.is_reading), whatever the state. RESUMING includes that.
 *
 * Threads: moves under link.lock; anybody reads.
 */
#ifndef GLAKE_LIBCLIENT_STATE_H
#define GLAKE_LIBCLIENT_STATE_H

#include <stdatomic.h>
#include <stdbool.h>

enum glake__link_state {
	GLAKE__LINK_GREETING, /* until it ends, one thread */
	GLAKE__LINK_OPEN,
	GLAKE__LINK_DRAINING,
	GLAKE__LINK_LOST,
	GLAKE__LINK_RESUMING,
	GLAKE__LINK_GONE,
	GLAKE__N_LINK_STATES,
};

/* Has it a connection? */
static inline bool glake__state_is_up(enum glake__link_state state)
{
	return state <= GLAKE__LINK_DRAINING;
}

/* False: there is no such move, and it stays as it is. */
bool glake__state_move(_Atomic(enum glake__link_state) *state, enum glake__link_state to);

#endif
