/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which memory work on other streams uses than the one that it was allocated for.
 *
 * Owner: the process. Lifetime: for ever. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_TORCH_USES_H
#define GLAKE_LIBCLIENT_TORCH_USES_H

#include "libclient/link/session.h"

/* Work on @stream uses the memory at @ptr from now on, until it is freed. -ENOMEM: nothing is noted. */
int glake__torch_uses_add(glake_ptr ptr, CUstream stream);

/*
 * The memory at @ptr is about to be freed: all later work on @stream comes after what its other streams
 * have queued so far. The current context is theirs. Returns 0; -EBUSY if one of the streams is being
 * captured: then call it again later; or the errors of glake_free_async(): then the use is forgotten.
 */
int glake__torch_uses_join(struct glake_session *session, glake_ptr ptr, CUstream stream);

#endif
