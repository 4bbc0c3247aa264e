/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this process wants to be promised, as glake_connect_options.promise or GLAKE_PROMISE say: a size for each device, or
 * a list of NUMBER=SIZE. A promise is asked for before the session first gets memory of the device, so a process that uses no GPU
 * takes nothing: glake__promise_ensure() of rpc.h.
 *
 * Threads: any. Local.
 */
#ifndef GLAKE_LIBCLIENT_PROMISE_H
#define GLAKE_LIBCLIENT_PROMISE_H

#include "libclient/link/session.h"

/* For a session that has said Hello. @text NULL: of the environment. -EINVAL. */
int glake__promise_init(struct glake_session *session, const char *text);

#endif
