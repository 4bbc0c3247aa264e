/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answer to a client that is turned away before there are sessions: a glaked without a GPU has nothing of the rest.
 *
 * Threads: any.
 */
#ifndef GLAKE_DAEMON_RPC_TURNED_AWAY_H
#define GLAKE_DAEMON_RPC_TURNED_AWAY_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/status.h"

/* Room for an answer whose text has 600 bytes. */
#define TURNED_AWAY_BYTES 640u

/*
 * If @bytes are a Hello for a new session, write its refusal with @text to @answer_out. Returns the size of that; 0: they are not, and
 * the caller closes the connection. A Hello that goes on with a session gets no answer, since a refusal would end that session.
 */
size_t turned_away_answer(const uint8_t *bytes, size_t n_bytes, enum status status,
                          const char *text, uint8_t answer_out[TURNED_AWAY_BYTES]);

#endif
