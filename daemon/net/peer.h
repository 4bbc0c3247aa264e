/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process at the other end of a socket, as the kernel reports it. Nothing here comes from the
 * peer itself.
 *
 * Owner: peer_deinit(). Threads: any.
 */
#ifndef GLAKE_DAEMON_PEER_H
#define GLAKE_DAEMON_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct peer {
	pid_t pid; /* in our pid namespace; 0 when it is not visible there */
	uid_t uid;
	uid_t owner; /* the user that it counts as: uid, until the caller sets it (owner.h) */
	gid_t *gids; /* owned: the primary group first, then the supplementary ones */
	size_t n_gids;
	char *cgroup; /* owned; path in the unified hierarchy; NULL: none, or not to be found out */
};

/*
 * Returns 0 or -errno; call peer_deinit() in any case. Only a living process has a cgroup. So with
 * @needs_cgroup the answer is -ESRCH if the connecting process has ended: it may have passed the
 * socket on. Without, such a process has none, and that is no error.
 */
int peer_init(struct peer *peer, int socket, bool needs_cgroup);
void peer_deinit(struct peer *peer);

/*
 * Returns a pidfd of the process that connected @socket; the caller owns it. Or -errno; -ESRCH: the
 * process has ended, or is not visible in our pid namespace.
 */
int peer_open_process(const struct peer *peer, int socket);

/* When the process that connected @socket was started, in the kernel's ticks since the boot; 0: not to be found out. */
uint64_t peer_start_time(const struct peer *peer, int socket);
/*
 * A pidfd of the process @pid, if it lives and was started then; the caller owns it. Or -ESRCH: it has
 * ended; or another -errno.
 */
int peer_open_started(pid_t pid, uint64_t started);

/* The process that connected @socket has ended. Another process may have its end of the socket. */
bool peer_has_ended(const struct peer *peer, int socket);

#endif
