/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waking: the memory of a session, or of all of a process (party.h), comes back to its addresses.
 *
 *   fetch   glaked brings each session's memory to the GPUs: a reservation for all of it
 *   map     all of it, at the addresses that it had
 *   forget  glaked gives up the copies that were kept until then
 *   let     the gate wakes, and nothing is held any more
 *
 * If glaked has no room, all sleep on. If it has, and the driver fails to map the memory, all sleep on as well, and the next wake
 * goes on there.
 *
 * Lock order: the party's lock is outermost (party.h). glaked is waited for under it.
 *
 * Threads: any that is not a thread of the program that waits at the gate.
 */
#ifndef GLAKE_LIBCLIENT_WAKE_H
#define GLAKE_LIBCLIENT_WAKE_H

#include "glake.h"

struct glake__sleeping;

/*
 * Wake it, and all that sleep together with it; NULL: all of the process, where all sleep together. Each is a reservation of its
 * own: if one of them has no room, the others give theirs back, and all sleep on. Blocks until glaked has room for all of it, or
 * has waited for long enough (GLAKE_E_NO_DEVICE_MEMORY), or the connection is lost. 0 too if it is awake.
 */
int glake__wake(struct glake_session *session, struct glake_slept *slept_out);

/* Wakes, for a caller that does not want the result's details. */
int glake__wake_plainly(struct glake_session *session);

/* The first half of waking all, which makes no driver call: wait until they are on the GPU. */
int glake__wake_wait(void);

/*
 * With the party's lock, of a party that is unmapped, as far as that went: all of it is mapped again, and still held. Or why not.
 * Then some of it may be mapped (is_begun), and the next call goes on there.
 */
int glake__wake_all(struct glake__sleeping *first);

#endif
