/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to us in a fork: see fork.c, and shim.h for the questions that hooks ask.
 *
 * Threads: any; one connection at a time is watched.
 */
#ifndef GLAKE_SHIM_FORK_H
#define GLAKE_SHIM_FORK_H

/* A forked child closes @fd, if it is still the same file by then. -1 = none. */
void shim_fork_watch(int fd);

#endif
