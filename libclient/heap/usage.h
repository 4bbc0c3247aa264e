/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports to the daemon, for listings: live, warm and peak bytes, sealing, memory in stream order, and the
 * program's own numbers.
 *
 * A report is sent after another request, or at glake_dispatch(), if the numbers have changed and
 * the last report is USAGE_PERIOD_NS old; after sealing at once, since no request may follow. The warm path
 * never reports. The answer to a Reclaim is sent at once, because another session's request waits for it.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_USAGE_H
#define GLAKE_LIBCLIENT_USAGE_H

#include "libclient/link/session.h"

#define USAGE_PERIOD_NS (100ull * 1000 * 1000)

/* Never blocks for an answer; failures are the next request's news. No lock is held. */
void glake__usage_report(struct glake_session *session);

/* The same, now, if the numbers have changed: the program has sealed or unsealed. */
void glake__usage_report_now(struct glake_session *session);

/* The same, at once: the daemon's Reclaim of that @id (0 = it has none) has been followed. */
void glake__usage_answer(struct glake_session *session, uint64_t id);

#endif
