/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few things here that need a context: the primary one of a device, which a CUDA program has
 * anyway, made current only for the time of a call. The thread's own current context is put back.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_CONTEXT_H
#define GLAKE_LIBCLIENT_CONTEXT_H

#include "libclient/link/session.h"

/* Wait until the device has done all that was queued in its primary context. None: no wait. */
void glake__context_quiesce(struct glake_session *session, const struct glake__device *device);

#endif
