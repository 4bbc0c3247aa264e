/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that follows a session's notices while the program does something else: others may wait for what it has lent.
 *
 * Owner: the session. Threads: any; nobody starts one while it stops.
 */
#ifndef GLAKE_LIBCLIENT_SERVE_H
#define GLAKE_LIBCLIENT_SERVE_H

#include "libclient/link/session.h"

/* Nothing happens if there is one. 0, -ENOMEM or -EAGAIN, the text set. */
int glake__serve_start(struct glake_session *session);

/* The thread has ended when this returns; a forked child, which lacks it, only forgets it. */
void glake__serve_stop(struct glake_session *session);

#endif
