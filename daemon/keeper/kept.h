/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fds that are kept for the next glaked, under names, in the order in which they came.
 *
 * Owner: the process. Threads: one.
 */
#ifndef GLAKE_DAEMON_KEPT_H
#define GLAKE_DAEMON_KEPT_H

#include <stddef.h>

/* No more than @max from now on. */
void kept_set_max(size_t max);

size_t kept_n(void);

/* Keep the fds that the own service manager passed ($LISTEN_FDS), such as a socket unit's. */
void kept_take_passed(void);

/* Takes @fd over. What is too much is closed, with a report. */
void kept_put(const char *name, int fd);

/* Closes what has this name. */
void kept_remove(const char *name);

/*
 * Between fork() and exec(): put the fds at 3 and on, and into the environment what sd_listen_fds(3)
 * wants. It allocates memory, so no other thread of the process may do that. Returns 0 or -errno.
 */
int kept_pass(void);

#endif
