/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>

#include "proto/cleanup.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif
/* Linux 6.5 */
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static int read_groups(struct peer *peer, int socket, gid_t primary)
{
	socklen_t bytes = 0;
	if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, NULL, &bytes) < 0 && errno != ERANGE) {
		bytes = 0;
	}
	peer->gids = malloc(sizeof(gid_t) + bytes);
	if (!peer->gids) {
		return -ENOMEM;
	}
	peer->gids[0] = primary;
	if (bytes > 0 &&
	    getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, peer->gids + 1, &bytes) < 0) {
		bytes = 0;
	}
	peer->n_gids = 1 + bytes / sizeof(gid_t);
	return 0;
}

/* The line "0::/path" of /proc/PID/cgroup. Absent on hosts without the unified hierarchy. */
static char *read_cgroup(pid_t pid)
{
	char path[64];
	char line[4096];
	char *cgroup = NULL;
	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file) {
		return NULL;
	}
	while (!cgroup && fgets(line, sizeof(line), file)) {
		if (strncmp(line, "0::", 3) == 0) {
			line[strcspn(line, "\n")] = '\0';
			cgroup = strdup(line + 3);
		}
	}
	fclose(file);
	return cgroup;
}

/* A pid names a process only while the process lives. Returns a pidfd or -errno. */
static int open_process(int socket, pid_t pid)
{
	int fd = -1;
	socklen_t bytes = sizeof(fd);
	if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &bytes) < 0) {
		if (errno == EINVAL) {
			/* Older kernels report a reaped process like this. */
			return -ESRCH;
		}
		fd = errno == ENOPROTOOPT ? pidfd_open(pid, 0) : -1;
	}
	return fd < 0 ? -errno : fd;
}

static bool is_over(int pidfd)
{
	struct pollfd process = {.fd = pidfd, .events = POLLIN};
	return poll(&process, 1, 0) != 0;
}

static int find_cgroup(struct peer *peer, int socket)
{
	cleanup_fd int pidfd = open_process(socket, peer->pid);
	if (pidfd < 0) {
		return pidfd;
	}
	peer->cgroup = read_cgroup(peer->pid);
	if (is_over(pidfd)) {
		/* The cgroup may be that of another process with the same pid. */
		free(peer->cgroup);
		peer->cgroup = NULL;
		return -ESRCH;
	}
	return 0;
}

int peer_init(struct peer *peer, int socket, bool needs_cgroup)
{
	struct ucred credentials;
	socklen_t bytes = sizeof(credentials);
	*peer = (struct peer){0};
	if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) < 0) {
		return -errno;
	}
	peer->pid = credentials.pid;
	peer->uid = credentials.uid;
	peer->owner = peer->uid;
	int r = read_groups(peer, socket, credentials.gid);
	if (r < 0) {
		return r;
	}
	/* A process without a visible pid is not in our cgroup hierarchy either. */
	if (peer->pid > 0) {
		r = find_cgroup(peer, socket);
	}
	return needs_cgroup ? r : 0;
}

int peer_open_process(const struct peer *peer, int socket)
{
	cleanup_fd int pidfd = peer->pid > 0 ? open_process(socket, peer->pid) : -ESRCH;
	if (pidfd >= 0 && is_over(pidfd)) {
		return -ESRCH;
	}
	int r = pidfd;
	pidfd = -1;
	return r;
}

/* Field 22 of /proc/PID/stat. The program's name, in parentheses, may be anything. */
static uint64_t read_start_time(pid_t pid)
{
	char path[64];
	char text[1024];
	unsigned long long started;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n <= 0) {
		return 0;
	}
	text[n] = '\0';
	const char *rest = strrchr(text, ')');
	int n_read =
		rest ? sscanf(rest + 1,
	                      " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
	                      "%*d %*d %*d %llu",
	                      &started)
		     : 0;
	return n_read == 1 ? started : 0;
}

uint64_t peer_start_time(const struct peer *peer, int socket)
{
	cleanup_fd int pidfd = peer_open_process(peer, socket);
	uint64_t started = pidfd < 0 ? 0 : read_start_time(peer->pid);
	return pidfd < 0 || is_over(pidfd) ? 0 : started;
}

int peer_open_started(pid_t pid, uint64_t started)
{
	cleanup_fd int pidfd = pidfd_open(pid, 0);
	if (pidfd < 0) {
		return errno == EINVAL ? -ESRCH : -errno;
	}
	if (read_start_time(pid) != started || is_over(pidfd)) {
		return -ESRCH;
	}
	int r = pidfd;
	pidfd = -1;
	return r;
}

bool peer_has_ended(const struct peer *peer, int socket)
{
	cleanup_fd int pidfd = open_process(socket, peer->pid);
	return pidfd == -ESRCH || (pidfd >= 0 && is_over(pidfd));
}

void peer_deinit(struct peer *peer)
{
	free(peer->gids);
	free(peer->cgroup);
	*peer = (struct peer){0};
}
