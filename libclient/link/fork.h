/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Detects a fork without a system call.
 *
 * A child gets a copy of a counter in ordinary memory, but a page with MADV_WIPEONFORK reads zero
 * there, whichever way the child was made (fork, clone, posix_spawn without exec). The first check
 * in a child sees the zero and increments the generation. Comparing process ids would cost a system
 * call each time, and fail where parent and child are both process 1 of their namespaces.
 *
 * Owner: the process. Lifetime: for ever. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_FORK_H
#define GLAKE_LIBCLIENT_FORK_H

#include <stdint.h>

/* Differs from every value that an ancestor of this process saw. Never 0. */
uint64_t glake__fork_generation(void);

#endif
