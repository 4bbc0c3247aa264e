/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim's only thread: it answers glaked's wish for warm memory while the program computes, or
 * sleeps, and reports what the program holds.
 *
 * It starts with a session and ends with it, after giving up the warm memory that glaked can no longer
 * ask for. All signals are blocked in it. Stream captures of the program do not mind it: its own mode
 * is relaxed.
 *
 * Once the program has begun to exit() it makes no driver call: the driver's own teardown comes next.
 * exit() waits for one that is under way, for two seconds at most.
 *
 * Threads: called by whoever makes a session.
 */
#ifndef GLAKE_SHIM_SERVICE_H
#define GLAKE_SHIM_SERVICE_H

#include "shim/owner.h"

/* Takes a reference of its own. Without a thread, wishes wait for the program's next allocation. */
void service_start(struct owner *owner);

#endif
