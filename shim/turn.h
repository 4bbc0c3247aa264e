/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns of the shim's own threads. They make driver calls only in one. After the program has called exit() none begins,
 * because the driver's own teardown comes next; exit() waits at most two seconds for those under way.
 *
 * Several threads can have one at a time: one may wait for memory that another brings back (sleep.h).
 *
 * Ownership: the process. Threads: ours. A forked child has none of them.
 */
#ifndef GLAKE_SHIM_TURN_H
#define GLAKE_SHIM_TURN_H

#include <stdbool.h>

/* Before the first thread is started: from now on exit() is followed. */
void turn_watch_exit(void);

/* False: the program is ending, and there is no turn. Else turn_end() by the same thread, soon. */
bool turn_begin(void);
void turn_end(void);

/* The program is ending: whoever has a turn gives it back as soon as it can. */
bool turn_is_last(void);

/*
 * Start a thread of ours: nobody joins it, and it gets no signal. False: there can be none. Its stack is small, whatever the
 * program has in its thread-local memory, which is of the same piece.
 */
bool turn_start_thread(void *(*run)(void *), void *user);

#endif
