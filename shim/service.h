/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The service thread of a connection. It returns warm memory when glaked asks for it, even while the program
 * computes or sleeps, and reports the program's memory.
 *
 * It starts and ends with a session. At the end it gives up the warm memory, which glaked can no
 * longer ask for. All signals are blocked in it. It does not disturb the program's stream captures,
 * because its own capture mode is relaxed.
 *
 * It makes driver calls only in turns (turn.h).
 *
 * Threads: the thread that makes a session calls it.
 */
#ifndef GLAKE_SHIM_SERVICE_H
#define GLAKE_SHIM_SERVICE_H

#include "shim/connection.h"

/* Start the thread, with a reference of its own. If it cannot start, glaked's wishes wait for the program's next allocation. */
void service_start(struct connection *connection);

#endif
