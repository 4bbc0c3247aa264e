/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns of the shim's own threads: these make driver calls only in a turn. After the program has called exit() no turn begins,
 * because the driver's own teardown comes next; exit() waits at most two seconds for turns under way.
 *
 * Several threads can have a turn at once: one may wait for memory that another brings back (sleep.h).
 *
 * Ownership: the process. Threads: ours. A forked child has no such threads.
 */
#ifndef GLAKE_SHIM_TURN_H
#define GLAKE_SHIM_TURN_H

#include <stdbool.h>

/* Called before the first thread is started: from now on exit() ends turns. */
void turn_watch_exit(void);

/* False: the program is ending, and there is no turn. Else the same thread calls turn_end(), soon. */
bool turn_begin(void);
void turn_end(void);

/* The program is ending: whoever has a turn gives it back as soon as it can. */
bool turn_is_last(void);

/*
 * Start a thread of ours. Nobody joins it, and it gets no signal. False: no thread can be started. Its stack is small, but has
 * room for all thread-local memory of the program, which lies in it.
 */
bool turn_start_thread(void *(*run)(void *), void *user);

#endif
