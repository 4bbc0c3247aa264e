/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run of glake-mover, and the connection to it: from being wanted to its end.
 *
 * It is started when it would inherit no file of a client, since a new process closes its copies of
 * those before it is the mover, and a file system can make that last (closer.h). Until then, packets
 * wait in the socket. It is looked after: one that dies and cannot end, because a file system holds
 * one of its threads, is given up.
 *
 * Owner: whoever made it, until on_end or mover_process_leave(); it frees itself when process,
 * connection and timer are gone. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_MOVER_PROCESS_H
#define GLAKE_DAEMON_MOVER_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/base/stats.h"
#include "proto/fdlist.h"

struct mover_process;

struct mover_process_ops {
	/* It says something; not after mover_process_kill(). fds left in the list are closed. */
	void (*on_packet)(void *user, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds);
	/* It never came to life, or has died: nothing more will come. @error is one line. */
	void (*on_end)(void *user, const char *error);
};

/*
 * Want one: the program @path, of which a copy is kept. @ops and @stats must stay; starts and deaths
 * are counted there. Nothing is called back from in here. Returns 0 or -errno.
 */
int mover_process_new(uv_loop_t *loop, const char *path, struct stats *stats,
                      const struct mover_process_ops *ops, void *user,
                      struct mover_process **process_out);

/* False while it is to be started. */
bool mover_process_is_started(const struct mover_process *process);

/* 0 until it is started. */
int mover_process_pid(const struct mover_process *process);

/*
 * As conn_send(), with files of @uid or (CLOSER_NOBODY) fds of our own. -EAGAIN: for now there are too
 * many under way.
 */
int mover_process_send(struct mover_process *process, uid_t uid, const void *bytes, size_t n_bytes,
                       const int *fds, size_t n_fds);

/* For what it said: on_end follows. */
void mover_process_kill(struct mover_process *process);

/* It reads the end of the stream and exits by itself; nothing is called back any more. */
void mover_process_leave(struct mover_process *process);

#endif
