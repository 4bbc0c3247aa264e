/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run of glake-mover and the connection to it, from the order to the keeper until its end.
 *
 *   STARTING -- started --> RUNNING -- ends, or cannot end --> DEAD -- nothing of it is left --> (freed)
 *
 * Packets may be sent at once; they wait in the socket. A file system that does not answer can keep
 * a killed or crashed process from ending. Then it is DEAD, and its chunks still exist until it is
 * really gone.
 *
 * Owner: the caller, until on_gone or mover_process_leave(); then it frees itself.
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
	/* A packet; not after mover_process_kill(). fds that stay in the list are closed. */
	void (*on_packet)(void *user, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds);
	/*
	 * The mover could not be started, or is dead: no packet will come. @error is one line. With @is_gone nothing of it is
	 * left, and @process must not be used any more; otherwise on_gone follows.
	 */
	void (*on_end)(void *user, struct mover_process *process, const char *error, bool is_gone);
	void (*on_gone)(void *user, struct mover_process *process);
};

/*
 * Order a process of the program @path, which is copied. @ops and @stats must stay; starts and
 * deaths are counted there. Nothing is called back from here. Returns 0 or -errno.
 */
int mover_process_new(uv_loop_t *loop, struct keeper *keeper, const char *path, struct stats *stats,
                      const struct mover_process_ops *ops, void *user,
                      struct mover_process **process_out);

/* The mover's pid; 0 until it is started. */
int mover_process_pid(const struct mover_process *process);

/* Send like conn_send(), with files of @uid or (INFLIGHT_OURS) glaked's own fds. -EAGAIN: too many packets wait for now. */
int mover_process_send(struct mover_process *process, uid_t uid, const void *bytes, size_t n_bytes,
                       const int *fds, size_t n_fds);

/* Kill the mover because of a packet that it sent. on_end follows. */
void mover_process_kill(struct mover_process *process);

/* Close the connection: the process exits by itself. Nothing is called back any more. */
void mover_process_leave(struct mover_process *process);

#endif
