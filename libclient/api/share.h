/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glake_share(), for the shim.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_SHARE_H
#define GLAKE_LIBCLIENT_SHARE_H

#include "glake.h"

/* glake_share() of the region that @ptr lies in, which may hold many allocations. */
int glake__share_region(struct glake_session *session, glake_ptr ptr,
                        struct glake_share *share_out);

#endif
