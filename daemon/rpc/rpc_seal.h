/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing from outside: a client asks that the program of another session seals what looks like weights.
 * That program gets a notice, does it, and reports. glaked passes on what it reports, and waits for it no
 * longer than it goes on reporting.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_RPC_SEAL_H
#define GLAKE_DAEMON_RPC_SEAL_H

#include "daemon/rpc/rpc_context.h"

/* Once in a while, and when a session has ended: refuse what no program will answer any more. */
void rpc_seals_tick(struct rpc_context *rpc);

#endif
