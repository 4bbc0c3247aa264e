/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run of glake-mover, and the connection to it: from being ordered of the keeper to its end.
 *
 *   STARTING -- started --> RUNNING -- ends, or cannot end --> DEAD -- nothing of it is left --> (freed)
 *
 * Packets may be sent at once; they wait in the socket. A process that was killed, or crashed, can be
 * kept from ending by a file system that does not answer one of its threads: it is DEAD then, and what it
 * was given still exists, until it is really gone.
 *
 * Owner: whoever made it, until on_gone or mover_process_leave(); then it frees itself.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_MOVER_PROCESS_H
#define GLAKE_DAEMON_MOVER_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/base/stats.h"
#include "daemon/net/keeper.h"
#include "proto/fdlist.h"

struct mover_process;

struct mover_process_ops {
	/* It says something; not after mover_process_kill(). fds left in the list are closed. */
	void (*on_packet)(void *user, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds);
	/*
	 * It never came to life, or is dead: nothing more will come. @error is one line. @is_gone: nor is
	 * anything of it left, and @process must not be used any more; else on_gone follows.
	 */
	void (*on_end)(void *user, struct mover_process *process, const char *error, bool is_gone);
	void (*on_gone)(void *user, struct mover_process *process);
};

/*
 * Order one: the program @path, of which a copy is kept. @ops and @stats must stay; starts and deaths are
 * counted there. Nothing is called back from in here. Returns 0 or -errno.
 */
int mover_process_new(uv_loop_t *loop, struct keeper *keeper, const char *path, struct stats *stats,
                      const struct mover_process_ops *ops, void *user,
                      struct mover_process **process_out);

/* 0 until it is started. */
int mover_process_pid(const struct mover_process *process);

/*
 * As conn_send(), with files of @uid or (INFLIGHT_OURS) fds of our own. -EAGAIN: for now there are too
 * many under way.
 */
int mover_process_send(struct mover_process *process, uid_t uid, const void *bytes, size_t n_bytes,
                       const int *fds, size_t n_fds);

/* For what it said: on_end follows. */
void mover_process_kill(struct mover_process *process);

/* It reads the end of the stream and exits by itself; nothing is called back any more. */
void mover_process_leave(struct mover_process *process);

#endif
