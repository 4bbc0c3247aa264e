/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sleeps and who wakes, in a program under the shim. The GPU memory of a process that sleeps lies in host memory; its
 * addresses stay, and its gate is asleep (gate.h). The library moves the memory; this part asks it to.
 *
 * The sleeper is a thread of ours. It runs from the moment that somebody wants the process to sleep until the process is awake,
 * so a process that never sleeps has none. If it cannot be started, the process does not sleep. It follows what glaked wants of
 * the process (`glakectl sleep`, `glakectl wake`), and wakes it as soon as a thread of the program waits: at the gate,
 * or in the library for memory that is asleep. All sessions of the process sleep together (libclient/sleep/party.h), also
 * sessions that the program has made itself.
 *
 *               sleep_enter()               sleep_leave()
 *     awake  --------------------> asleep ------------------> awake
 *                                   |  ^
 *            somebody waits, or asks |  | glaked refuses: again after a pause, which grows up to 30 s, or when
 *                                   v  | glaked asks it to, since it fits by now
 *                                  waking
 *
 * The sleeper may wait for minutes until glaked has room. It holds nothing of the shim meanwhile, so the
 * service thread goes on, and exit() ends the process: calls that wait fail (gate.h), and nobody waits for the sleeper.
 * It makes driver calls only in a turn (turn.h), which exit() waits for.
 *
 * Who waits for whom. Each may wait for those below it, and keeps what it holds (shim.h has the order of all locks):
 *   1. a thread of the program, at the gate (gate_enter(), gate_pass()). It is in no call yet, and holds nothing of ours.
 *      It may hold locks of the program and of other libraries; the sleeper takes none of them
 *   2. a thread of the program or of ours in the library, for memory that is asleep. It holds no lock of the library, and
 *      contexts (order_hold_contexts()) only if it began while the process fell asleep, which is then tried again. The service
 *      thread has a turn; other threads can have one beside it
 *   3. the sleeper. In the library it holds contexts and closes the gate, up to a deadline, as any change does; it enters the gate
 *      nowhere. So it never waits for 1 or 2
 *   4. the lock of sleep.c, whose holder waits for nobody. A thread that has closed the gate may take it
 *   5. glaked, for room
 * The sleeper wakes the process under the library's lock of the party. A thread that ends a session waits for that lock, and
 * the sleeper lets it go first wherever it waits for glaked. A thread that frees memory that is asleep (sleep_free()) only
 * tries to take that lock, and has it for one request to glaked, which waits for no room.
 * Nobody waits for a thread that needs it: the sleeper makes no call that passes the gate, and allocates nothing from glake.
 *
 * Limit: there is no end to this wait. If glaked has no room for ever, calls of the program wait for ever; the counter
 * `unwoken` says how often glaked has refused.
 *
 * Lifetime: the process. A forked child is awake, and has no sleeper. Threads: any, unless it says otherwise.
 */
#ifndef GLAKE_SHIM_SLEEP_H
#define GLAKE_SHIM_SLEEP_H

#include <stdbool.h>

#include "proto/cudrv.h"
#include "shim/connection.h"

/* Called before the library's gate is set. */
void sleep_init(void);

/*
 * The gate of the library (glake__gate).
 * enter: the caller has closed the gate. 0: it is asleep from now on, and stays so when it opens. -EAGAIN: no sleeper can be
 *        started; -ESHUTDOWN: the program ends; -ENOMEM.
 * leave: all memory is back, or none has left. Threads at the gate go on. Does nothing if the gate is awake.
 * is_wanted: a thread of the library waits for memory that is asleep. Repeated calls are cheap.
 * is_awaited: does a thread wait, in the library or at the gate?
 */
int sleep_enter(void);
void sleep_leave(void);
void sleep_is_wanted(void);
bool sleep_is_awaited(void);

/*
 * cuMemFree() and similar calls while the process sleeps: all work is done, so the copies are dropped, and the process sleeps
 * on. False: it is awake, or has to be woken for the call; nothing has happened.
 */
bool sleep_free(CUdeviceptr address);

/* ---- wishes of glaked ------------------------------------------------------------------------- */

/* From now on the process follows glaked's wishes to sleep and to wake. Called before other threads use @connection. */
void sleep_follow(struct connection *connection);

/* Called by the connection's service thread: start or kick the sleeper if glaked has a wish. */
void sleep_serve(struct connection *connection);

#endif
