/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/link/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "libclient/link/error.h"

/* Fds to have room for: two pages of blocks (GLAKE_PAGE_FDS) and the program's own. */
#define FD_TABLE 512

struct glake__patience glake__patience = {.hello_ms = 5000, .silence_ms = 10000};

static int connect_error(const char *path, int error)
{
	/* The listener's queue is full, and glaked does not accept. */
	bool is_stopped = error == EAGAIN || error == EINTR;
	int code = is_stopped || error == ENOENT || error == ECONNREFUSED ? GLAKE_E_GONE : -error;
	return glake__fail(code, "cannot connect to glaked at %s: %s", path,
	                   is_stopped ? "it does not answer" : strerrordesc_np(error));
}

/* connect(), which waits while the listener's queue is full. */
static int connect_in_time(int fd, const struct sockaddr_un *address, unsigned timeout_ms)
{
	uint64_t end_ns = clock_now_ns() + timeout_ms * 1000000ull;
	uint64_t now_ns;
	int r = -1;
	errno = EINTR;
	while (r < 0 && errno == EINTR && (now_ns = clock_now_ns()) < end_ns) {
		uint64_t left_us = (end_ns - now_ns) / 1000 + 1;
		struct timeval left = {.tv_sec = (time_t)(left_us / 1000000),
		                       .tv_usec = (suseconds_t)(left_us % 1000000)};
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof(left));
		r = connect(fd, (const struct sockaddr *)address, sizeof(*address));
	}
	return r;
}

static int open_socket(const char *path, unsigned timeout_ms, int *socket_out)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(address.sun_path)) {
		return glake__fail(-ENAMETOOLONG, "the socket path is too long: %s", path);
	}
	strcpy(address.sun_path, path);
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		return connect_error(path, errno);
	}
	if (connect_in_time(fd, &address, timeout_ms) < 0) {
		return connect_error(path, errno);
	}
	*socket_out = fd_steal(&fd);
	return 0;
}

/*
 * Give the socket a high number: programs with an fd bug usually hit low ones.
 *
 * It also makes room for the fds of two pages of blocks. The kernel doubles the table of fds
 * whenever it is full, and in a process with threads each doubling waits some 10 ms for an RCU
 * grace period. Here it costs nothing, because the driver's threads are not there yet.
 */
static void move_up(int *socket)
{
	int fd = fcntl(*socket, F_DUPFD_CLOEXEC, FD_TABLE - 1);
	/* A limit below that is no error. */
	if (fd >= 0) {
		fd_close(socket);
		*socket = fd;
	}
}

int glake__socket_open(const char *path, bool is_high, unsigned timeout_ms, int *socket_out)
{
	int r = open_socket(path, timeout_ms, socket_out);
	if (r == 0 && is_high) {
		move_up(socket_out);
	}
	return r;
}
