/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another connection for a session that has lost its own: the same ids, memory and charges.
 *
 * glaked knows the session by its key, and this process by the kernel. If glaked was started anew,
 * it does not know the session, and the session is gone for good. If an attempt gets no answer,
 * later calls try again: at most once a second, and for at most a tenth of the time.
 *
 * Threads: any; one at a time connects, and the others wait for it.
 */
#ifndef GLAKE_LIBCLIENT_RESUME_H
#define GLAKE_LIBCLIENT_RESUME_H

#include "libclient/link/link.h"

/* Returns 0 when there is a connection, or the error of the one that was lost, with its text. */
int glake__resume(struct glake__link *link);

#endif
