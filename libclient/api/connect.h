/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake_connect(), for the shim.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_CONNECT_H
#define GLAKE_LIBCLIENT_CONNECT_H

#include "glake.h"

/* glake_connect(), which waits up to @timeout_ms to be accepted, and as long for an answer. */
int glake__connect(const struct glake_connect_options *options, unsigned timeout_ms,
                   struct glake_session **session_out);

/* What the process is to be promised of the device is asked for now, if it was not yet. As glake__promise_ensure(). */
int glake__promise_device(struct glake_session *session, uint32_t index);

#endif
