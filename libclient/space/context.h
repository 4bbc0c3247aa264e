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

/* Work that is still under way, to be asked about. The context is the primary one, retained, or was current. */
struct glake__left {
	CUcontext context;
	CUstream stream; /* owned; NULL: nothing */
	CUdevice device;
	bool is_primary;
};

/*
 * Copy device memory, or write zeroes (@from is 0), on a stream of its own; wait for that, and for nothing of the
 * program. It may run while the program captures. Returns 0; GLAKE_E_CUDA, or the errors of glake__context_hold();
 * -EBUSY: after @patience_ns it goes on. *left_out (may be NULL) is set then.
 */
int glake__context_work(const struct glake__device *device, glake_ptr to, glake_ptr from,
                        uint64_t n_bytes, uint64_t patience_ns, struct glake__left *left_out);

/* Is it over, as far as can be told? Then *left is empty. */
bool glake__context_is_over(const struct cudrv *drv, struct glake__left *left);

/* Copies, and waits for as long as that takes. */
int glake__context_copy(const struct glake__device *device, glake_ptr to, glake_ptr from,
                        uint64_t n_bytes);

/* Wait until the device has done all that was queued in its primary context. None: no wait. */
void glake__context_quiesce(struct glake_session *session, const struct glake__device *device);

#endif
