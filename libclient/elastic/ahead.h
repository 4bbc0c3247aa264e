/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that makes steps before they are needed: not the one that serves, which must hear glaked while a driver call takes its
 * time here.
 *
 * Owner: the session. Threads: any; nobody starts one while it stops.
 */
#ifndef GLAKE_LIBCLIENT_AHEAD_H
#define GLAKE_LIBCLIENT_AHEAD_H

#include <stdbool.h>

#include "libclient/link/session.h"

/* Make one step, waiting for nobody. False: none is wanted. */
typedef bool glake__ahead_fn(struct glake_session *session);

/* Have it call @make_one until there is nothing to make; it is started if there is none. 0, -ENOMEM or -EAGAIN, the text set. */
int glake__ahead_ask(struct glake_session *session, glake__ahead_fn *make_one);

/* The thread has ended when this returns; a forked child, which lacks it, only forgets it. */
void glake__ahead_stop(struct glake_session *session);

#endif
