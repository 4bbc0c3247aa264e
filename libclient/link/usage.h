/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Telling the daemon what only this process knows: bytes in use, warm and at most in use, and what
 * the program says of itself. For listings.
 *
 * Lazy: after some other request, or at glake_dispatch(), when the numbers have changed and the
 * last report is USAGE_PERIOD_NS old. The warm path never comes here. At once as the answer to a
 * Reclaim: the daemon lets somebody wait for it.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_USAGE_H
#define GLAKE_LIBCLIENT_USAGE_H

#include "libclient/link/session.h"

#define USAGE_PERIOD_NS (100ull * 1000 * 1000)

/* Never blocks for an answer; failures are the next request's news. No lock is held. */
void glake__usage_report(struct glake_session *session);

/* The same, at once: the daemon's Reclaim of that @id (0 = it has none) has been followed. */
void glake__usage_answer(struct glake_session *session, uint64_t id);

#endif
