/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests and answers. Only the files named rpc*.c know the messages of proto/glake.proto.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_RPC_H
#define GLAKE_DAEMON_RPC_H

#include "daemon/rpc/rpc_context.h"

/*
 * Handle one packet of a session. Malformed bytes close the session; a wrong request is answered.
 * The caller closes fds that stay in @fds.
 */
void rpc_handle(struct session *session, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds);

#endif
