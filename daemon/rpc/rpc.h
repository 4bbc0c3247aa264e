/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and answers: the messages of proto/glake.proto meet the daemon's own types here, and
 * only in the files named rpc*.c.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_RPC_H
#define GLAKE_DAEMON_RPC_H

#include "daemon/rpc/rpc_context.h"

/*
 * One packet of a session. Bytes that are no Request close the session; a request that makes no
 * sense is answered. fds that are left in @fds are the caller's to close.
 */
void rpc_handle(struct session *session, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds);

#endif
