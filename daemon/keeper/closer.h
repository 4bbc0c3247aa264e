/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that closes fds, in order: the close of the last fd of a chunk frees GPU memory and may take
 * long. A barrier's fd is closed behind those that were given before, so it is the news of their end.
 *
 * Owner: the process. Threads: closer_close() is for one thread. The closer allocates nothing, so the
 * process may fork.
 */
#ifndef GLAKE_DAEMON_CLOSER_H
#define GLAKE_DAEMON_CLOSER_H

#include <stddef.h>

/* Returns 0 or -errno. */
int closer_start(void);

/* Takes @fd over. */
void closer_close(int fd);

/* The number of fds that are not closed yet. */
size_t closer_n_waiting(void);

#endif
