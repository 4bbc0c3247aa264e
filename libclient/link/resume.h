/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another connection for a session that has lost its own: the same ids, memory and charges.
 *
 * glaked knows the session by its key, and this process by the kernel. One that does not know the session ends it for
 * good, and so does one that drains. Without an answer, or with nobody who listens, the session stays lost: glaked may
 * be on its way.
 *
 * A call that waits looks for glaked again and again, until hello_ms after the first attempt of any call. From then
 * on, and for those that do not wait, there are short attempts: at least one a second, for a fifth of the time at
 * most.
 *
 * Threads: any; one at a time connects, and the others wait for it.
 */
#ifndef GLAKE_LIBCLIENT_RESUME_H
#define GLAKE_LIBCLIENT_RESUME_H

#include "libclient/link/link.h"

/* Returns 0 when there is a connection, or the error of the one that was lost, with its text. */
int glake__resume(struct glake__link *link, bool waits);

#endif
