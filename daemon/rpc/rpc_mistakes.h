/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of mistakes, as sessions meet it (holders/mistakes.h).
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_RPC_MISTAKES_H
#define GLAKE_DAEMON_RPC_MISTAKES_H

#include "daemon/rpc/rpc_answer.h"

#define RPC_DOUBT_BYTES 160u

/* Why the holder's program is not to be sealed by itself; "": it may be. Returns @text_out. */
char *rpc_doubt_of(const struct holder *holder, char text_out[RPC_DOUBT_BYTES]);

/*
 * The holder's program has lost its context while memory was sealed that nobody had asked for. Other sessions of the same
 * program are told. Returns the mistake's id; 0: no memory.
 */
uint64_t rpc_note_mistake(struct rpc_context *rpc, struct holder *holder,
                          const Glake__Wire__FaultReport *report, const char *kernels);

#endif
