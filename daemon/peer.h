/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is at the other end of a socket, as the kernel says it and not as the peer does.
 *
 * Owner: peer_deinit(). Threads: any.
 */
#ifndef GLAKE_DAEMON_PEER_H
#define GLAKE_DAEMON_PEER_H

#include <stddef.h>
#include <sys/types.h>

struct peer {
	pid_t pid; /* in our pid namespace; 0 when it is not visible there */
	uid_t uid;
	gid_t *gids; /* owned: the primary group first, then the supplementary ones */
	size_t n_gids;
	char *cgroup; /* owned; path in the unified hierarchy, NULL when it cannot be told */
};

/* Returns 0 or -errno, with nothing to undo. */
int peer_init(struct peer *peer, int socket);
void peer_deinit(struct peer *peer);

#endif
