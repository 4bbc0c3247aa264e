/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sleeps and who wakes. A process that sleeps has its memory in the host's; its addresses stay, and its gate is asleep
 * (gate.h). The library does that. This is who asks it to, in a program under the shim.
 *
 * The sleeper is a thread of ours that is there from the moment that somebody wants the process to sleep until it is awake:
 * a process that never sleeps has none. If it cannot be started, the process does not sleep. It follows what glaked wants of
 * the process (`glakectl sleep`, `glakectl wake`), and wakes it as soon as a thread of the program waits: at the gate,
 * or in the library for memory that is asleep. All sessions of the process sleep together (libclient/sleep/party.h), those that the
 * program has made too.
 *
 *               sleep_enter()               sleep_leave()
 *     awake  --------------------> asleep ------------------> awake
 *                                   |  ^
 *            somebody waits, or asks |  | glaked refuses: again after a pause, which grows up to 30 s, or when
 *                                   v  | glaked asks it to, since it fits by now
 *                                  waking
 *
 * While it is waking, the sleeper waits for glaked to have room, for minutes perhaps. It holds nothing meanwhile, so the
 * service thread goes on, and exit() ends the process: those who wait get an error (gate.h), and the sleeper is not waited for.
 * It makes driver calls only in a turn (turn.h), which exit() waits for.
 *
 * Who waits for whom. Each may wait for those below it, holding what it has:
 *   1. a thread of the program, at the gate (gate_enter(), gate_pass()): it is in no call yet, and holds nothing of ours.
 *      Other libraries' locks and the program's it may hold: the sleeper takes none of them
 *   2. a thread of the program or of ours in the library, for memory that is asleep. It holds no lock of the library's, and
 *      contexts (order_hold_contexts()) only if it began while the process fell asleep, which is then tried again. The service thread has a
 *      turn: others can have one beside it
 *   3. the sleeper. In the library it closes the gate and holds contexts, one after the other, each up to a deadline, as any
 *      change does; it enters the gate nowhere. So it may wait for none of 1 and 2
 *   4. this file's lock, of which the holder waits for nobody but the connection's lock. Who has closed the gate may take it
 *   5. glaked, for room
 * The sleeper wakes the process under the library's lock of its party. A thread that ends a session waits for it, and the sleeper lets
 * that go first wherever it waits for glaked. A thread that frees what is asleep (sleep_free()) only tries to take
 * it, and has it for one request to glaked, which waits for no room.
 * Nobody who waits is needed by the one that it waits for: the sleeper makes no call that passes the gate, and no allocation
 * by ours.
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

/* Before the library's gate is set. */
void sleep_init(void);

/*
 * The gate of the library (glake__gate).
 * enter: the caller has closed the gate. 0: it is asleep from now on, and stays so when it opens. -EAGAIN: there can be no
 *        sleeper; -ESHUTDOWN: the program ends; -ENOMEM.
 * leave: all memory is back, or nothing has left. Those at the gate go on. Nothing, if it is awake.
 * is_wanted: a thread of the library waits for memory that is asleep. Cheap, once it was said.
 * is_awaited: a thread waits, there or at the gate.
 */
int sleep_enter(void);
void sleep_leave(void);
void sleep_is_wanted(void);
bool sleep_is_awaited(void);

/*
 * cuMemFree() and its like of a process that sleeps: all work is done, so the copies go, and it sleeps on. False: it is awake, or
 * to be woken for that; nothing has happened.
 */
bool sleep_free(CUdeviceptr address);

/* ---- wishes of glaked ------------------------------------------------------------------------- */

/* The connection's program follows glaked's wishes to sleep and to wake from now on. Before other threads use it. */
void sleep_follow(struct connection *connection);

/* Called by the connection's service thread: see to it that wishes are followed. */
void sleep_serve(struct connection *connection);

#endif
