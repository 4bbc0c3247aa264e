/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for the end of a process through a pidfd: the kernel reports it when the last thread has
 * left, so nothing of the process's memory and files is left either.
 *
 * Owner: the caller. Lifetime: process_watch_new() to process_watch_free().
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_PROCESS_WATCH_H
#define GLAKE_DAEMON_PROCESS_WATCH_H

#include <uv.h>

struct process_watch;

/* The process has ended. The callee may free the watch. */
typedef void (*process_end_fn)(void *user);

/* Takes @pidfd over on success. Returns 0 or -errno. */
int process_watch_new(uv_loop_t *loop, int pidfd, process_end_fn on_end, void *user,
                      struct process_watch **watch_out);

/* Free the watch: nothing is called back any more; the loop closes the fd in its next turn. NULL is fine. */
void process_watch_free(struct process_watch *watch);

#endif
