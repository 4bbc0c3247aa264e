/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes the shim's sockets in a forked child. Otherwise a child would keep its parent's connection
 * to glaked open after the parent's end. shim.h has the questions that hooks ask about a fork.
 *
 * Ownership: the process; a socket stays the caller's. Blocking: no. Threads: any.
 */
#ifndef GLAKE_SHIM_FORK_H
#define GLAKE_SHIM_FORK_H

struct glake_session;

/* Called once, by shim_resolve(). */
void shim_fork_init(void);

/* cuInit() has succeeded in this process. */
void shim_note_init(void);

/*
 * From now on a forked child closes the session's socket, if its number is still the same file then. Returns a number for
 * the calls below; -1: the session has no socket, or too many are watched, and a child does not close this one.
 */
int shim_fork_watch(struct glake_session *session);
/* The session may have another socket now. Nothing changes if it has the same, or none. */
void shim_fork_watch_again(int watch, struct glake_session *session);
/* Stop watching. -1 is allowed. */
void shim_fork_forget(int watch);

#endif
