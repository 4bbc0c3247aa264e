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

/* Asks for the process's promise of the device now, if nobody has. Errors as glake__promise_ensure(). */
int glake__promise_device(struct glake_session *session, uint32_t index);

#endif
