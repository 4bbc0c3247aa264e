/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Are we still in the process that made this? Without a system call.
 *
 * A counter in ordinary memory goes into a child as a copy; a page advised MADV_WIPEONFORK reads
 * zero there, whichever way the child was made (fork, clone, posix_spawn without exec). The first
 * look in a child sees the zero, and counts one generation up. Comparing process ids would cost a
 * system call each time and be wrong where parent and child are each number 1 of their namespace.
 *
 * Owner: the process. Lifetime: for ever. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_FORK_H
#define GLAKE_LIBCLIENT_FORK_H

#include <stdint.h>

/* Differs from every value that an ancestor of this process saw. Never 0. */
uint64_t glake__fork_generation(void);

#endif
