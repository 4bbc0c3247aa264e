/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wakes that were refused. A program whose threads wait asks again by itself, after pauses of up to 30 s. It is asked to wake
 * earlier than that when its tenant's limit has been raised, or the GPU has got room, so that all sessions of the process fit.
 *
 * glaked asks when something that stood in the way is gone, and not because nothing does: else a program that is refused for
 * another reason would be asked for ever. A wake that an operator asked for, and that was refused, is over.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_WAKE_AGAIN_H
#define GLAKE_DAEMON_WAKE_AGAIN_H

#include "daemon/rpc/rpc_context.h"

/* A wake of @holder was refused with @status. It sleeps. */
void wake_again_note(struct rpc_context *rpc, struct holder *holder, enum status status);

/* To be called once a second. */
void wake_again_tick(struct rpc_context *rpc);

#endif
