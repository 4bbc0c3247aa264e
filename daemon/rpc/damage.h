/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event of a damaged block, which names those who use it.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_DAMAGE_H
#define GLAKE_DAEMON_DAMAGE_H

#include "daemon/rpc/rpc_context.h"

void rpc_note_damage(struct rpc_context *rpc, const struct block *block);

#endif
