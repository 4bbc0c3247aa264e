/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and answers: the messages of proto/glake.proto meet the daemon's own types here, and
 * only in the files named rpc*.c.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_RPC_H
#define GLAKE_DAEMON_RPC_H

#include "daemon/holders/session.h"

/*
 * One packet of a session. Bytes that are no Request close the session; a request that makes no
 * sense is answered. fds that are left in @fds are the caller's to close.
 */
void rpc_handle(struct session *session, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds);

/* Notices. One that would have to wait behind an unread answer is dropped, counted, and false. */
bool rpc_notify_reclaim(struct session *session, const struct device *device, uint64_t bytes,
                        uint64_t id);
void rpc_notify_shutting_down(struct session *session, uint64_t grace_ms);
void rpc_notify_evicted(struct session *session, const char *name);

#endif
