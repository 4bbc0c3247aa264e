/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end of a socket, as the kernel says it and not as the peer does.
 *
 * Owner: peer_deinit(). Threads: any.
 */
#ifndef GLAKE_DAEMON_PEER_H
#define GLAKE_DAEMON_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct peer {
	pid_t pid; /* in our pid namespace; 0 when it is not visible there */
	uid_t uid;
	uid_t owner; /* whom it counts as: uid, unless the caller knows better (owner.h) */
	gid_t *gids; /* owned: the primary group first, then the supplementary ones */
	size_t n_gids;
	char *cgroup; /* owned; path in the unified hierarchy; NULL: none, or not asked for */
};

/*
 * Returns 0 or -errno, and peer_deinit() is due in any case. A cgroup is that of a living process:
 * with @needs_cgroup a socket whose process has ended since it connected, and may have handed it on,
 * is nobody's (-ESRCH).
 */
int peer_init(struct peer *peer, int socket, bool needs_cgroup);
void peer_deinit(struct peer *peer);

/*
 * A pidfd of the process that connected @socket, the caller's. -ESRCH: it has ended, or is not visible
 * in our pid namespace.
 */
int peer_open_process(const struct peer *peer, int socket);

/* The process that connected @socket has ended, whoever has its end of it now. */
bool peer_has_ended(const struct peer *peer, int socket);

#endif
