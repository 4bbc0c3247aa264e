/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to us in a fork: see fork.c, and shim.h for the questions that hooks ask.
 *
 * Threads: any.
 */
#ifndef GLAKE_SHIM_FORK_H
#define GLAKE_SHIM_FORK_H

/*
 * A forked child closes @fd, if it is still the same file by then, until the number that this returns
 * is forgotten. -1: not watched, because too many are; to be forgotten all the same.
 */
int shim_fork_watch(int fd);
/* It is @fd by now; below 0: it is still the same. */
void shim_fork_watch_again(int watch, int fd);
void shim_fork_forget(int watch);

#endif
