/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few things here that need a context, made current only for the time of a call. The thread's own current context
 * is put back. Under the shim it is one that the program has, and none of them ends meanwhile: whoever ends one waits.
 * The library alone cannot know them, and has the thread's own, or the primary one.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_CONTEXT_H
#define GLAKE_LIBCLIENT_CONTEXT_H

#include "libclient/link/session.h"

/*
 * Copy device memory, and set it to zero, on a stream of its own; they wait for it, and for nothing of the
 * program. They may run while the program captures. Return 0, or the errors of glake__context_hold(), or GLAKE_E_CUDA.
 */
int glake__context_copy(const struct glake__device *device, glake_ptr to, glake_ptr from,
                        uint64_t n_bytes);
int glake__context_zero(const struct glake__device *device, glake_ptr ptr, uint64_t n_bytes);

/* Wait until the device has done all that was queued in its primary context. None: no wait. */
void glake__context_quiesce(struct glake_session *session, const struct glake__device *device);

#endif
