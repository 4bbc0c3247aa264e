/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "daemon/base/log.h"
#include "daemon/keep/fdstore.h"
#include "daemon/keep/lockfile.h"
#include "daemon/net/turn.h"
#include "proto/cleanup.h"

#define BACKLOG 512
/* The pause when fds are used up, or when the caller asks for one. Connections wait in the backlog. */
#define PAUSE_MS 100

struct listener {
	uv_poll_t poll;
	struct turn turn;
	uv_timer_t pause;
	int fd;      /* owned */
	int lock_fd; /* owned; -1: the socket is a socket unit's */
	int n_handles;
	char *path; /* owned, to be removed at the end; NULL: the service manager keeps the socket */
	listener_fn on_connection;
	void *user;
	struct log_limit log_limit;
};

static void on_readable(uv_poll_t *poll, int status, int events);

static void listener_free(struct listener *listener)
{
	fd_close(&listener->fd);
	fd_close(&listener->lock_fd);
	free(listener->path);
	free(listener);
}

/* Returns the locked fd, or -EADDRINUSE, or another -errno. */
static int lock_path(const char *path)
{
	pid_t owner = 0;
	int fd = lockfile_take(path, &owner);
	if (fd == -EADDRINUSE) {
		log_error("another glaked (pid %d) serves %s", (int)owner, path);
	} else if (fd < 0) {
		log_error("cannot lock %s: %s", path, strerror(-fd));
	}
	return fd;
}

/* The owner of the socket file at @address is dead: nobody accepts connections there. */
static bool is_stale(const struct sockaddr_un *address)
{
	cleanup_fd int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0) {
		return false;
	}
	return connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 &&
	       errno == ECONNREFUSED;
}

static int remove_stale(const struct sockaddr_un *address)
{
	struct stat stat;
	if (lstat(address->sun_path, &stat) < 0) {
		return errno == ENOENT ? 0 : -errno;
	}
	if (!S_ISSOCK(stat.st_mode)) {
		log_error("%s is there and is not a socket", address->sun_path);
		return -EEXIST;
	}
	if (!is_stale(address)) {
		log_error("another process serves %s", address->sun_path);
		return -EADDRINUSE;
	}
	log_info("removing the socket that a dead glaked left: %s", address->sun_path);
	return unlink(address->sun_path) < 0 ? -errno : 0;
}

static int bind_path(struct listener *listener, const char *path, mode_t mode)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(address.sun_path)) {
		log_error("the socket path is too long: %s", path);
		return -ENAMETOOLONG;
	}
	strcpy(address.sun_path, path);
	listener->lock_fd = lock_path(path);
	if (listener->lock_fd < 0) {
		return listener->lock_fd;
	}
	int r = remove_stale(&address);
	if (r < 0) {
		return r;
	}
	listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener->fd < 0) {
		return -errno;
	}
	/* Nobody may connect before the mode is right. */
	mode_t old_mask = umask(0777 & ~mode);
	r = bind(listener->fd, (struct sockaddr *)&address, sizeof(address)) < 0 ? -errno : 0;
	umask(old_mask);
	if (r < 0) {
		log_error("cannot bind %s: %s", path, strerror(-r));
		return r;
	}
	listener->path = strdup(path);
	if (!listener->path || listen(listener->fd, BACKLOG) < 0) {
		return -errno;
	}
	return 0;
}

static void get_name(int fd, char path_out[LISTENER_PATH_BYTES])
{
	struct sockaddr_un address = {0};
	socklen_t length = sizeof(address) - 1;
	if (getsockname(fd, (struct sockaddr *)&address, &length) < 0) {
		address.sun_path[0] = '\0';
	}
	snprintf(path_out, LISTENER_PATH_BYTES, "%s", address.sun_path);
}

/* @fd listens at @path, and clients find it there: the folder may have been made anew. */
static bool is_at(int fd, const char *path)
{
	char name[LISTENER_PATH_BYTES];
	struct stat stat;
	get_name(fd, name);
	return strcmp(name, path) == 0 && lstat(path, &stat) == 0 && S_ISSOCK(stat.st_mode);
}

/* The socket of an earlier glaked, in whose backlog clients wait. Returns -ENOENT if there is none. */
static int take_kept(struct listener *listener, struct fdstore *store, const char *path)
{
	cleanup_fd int fd = fdstore_take(store, FDSTORE_LISTEN);
	if (fd >= 0 && !is_at(fd, path)) {
		fdstore_remove(store, FDSTORE_LISTEN);
		fd_close(&fd);
	}
	if (fd < 0) {
		return -ENOENT;
	}
	listener->lock_fd = lock_path(path);
	if (listener->lock_fd < 0) {
		return listener->lock_fd;
	}
	listener->fd = fd_steal(&fd);
	return 0;
}

static int get_socket(struct listener *listener, struct fdstore *store, const char *path,
                      mode_t mode)
{
	int fd = fdstore_take_listener(store);
	if (fd < 0) {
		int r = take_kept(listener, store, path);
		if (r == -ENOENT) {
			r = bind_path(listener, path, mode);
			if (r == 0 && fdstore_put(store, FDSTORE_LISTEN, listener->fd) == 0) {
				/* The socket's file stays, too. */
				free(ptr_steal(listener->path));
			}
		}
		return r;
	}
	listener->fd = fd;
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

static void on_pause_over(uv_timer_t *timer)
{
	struct listener *listener = container_of(timer, struct listener, pause);
	uv_poll_start(&listener->poll, UV_READABLE, on_readable);
}

void listener_pause(struct listener *listener)
{
	uv_poll_stop(&listener->poll);
	uv_timer_start(&listener->pause, on_pause_over, PAUSE_MS, 0);
}

void listener_resume(struct listener *listener)
{
	if (uv_is_active((uv_handle_t *)&listener->pause)) {
		uv_timer_stop(&listener->pause);
		on_pause_over(&listener->pause);
	}
}

/*
 * Accept one connection. It waits in line with the sessions, because a session may have to end
 * first to make room for it.
 */
static bool accept_one(struct turn *turn)
{
	struct listener *listener = container_of(turn, struct listener, turn);
	int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0) {
		listener->on_connection(listener->user, fd);
		return uv_is_active((uv_handle_t *)&listener->poll);
	}
	if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
		log_limited(&listener->log_limit, LOG_LEVEL_WARNING,
		            "cannot accept connections: %s", strerror(errno));
		listener_pause(listener);
	}
	return false;
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
	turn_wait(&container_of(poll, struct listener, poll)->turn);
}

int listener_open(uv_loop_t *loop, struct fdstore *store, const char *path, mode_t mode,
                  listener_fn on_connection, void *user, struct listener **listener_out)
{
	struct listener *listener = calloc(1, sizeof(*listener));
	if (!listener) {
		return -ENOMEM;
	}
	listener->fd = -1;
	listener->lock_fd = -1;
	listener->on_connection = on_connection;
	listener->user = user;
	int r = get_socket(listener, store, path, mode);
	if (r == 0) {
		r = uv_poll_init(loop, &listener->poll, listener->fd);
	}
	if (r < 0) {
		listener_free(listener);
		return r;
	}
	uv_timer_init(loop, &listener->pause);
	turn_init(&listener->turn, accept_one);
	uv_poll_start(&listener->poll, UV_READABLE, on_readable);
	*listener_out = listener;
	return 0;
}

static void on_poll_closed(uv_handle_t *handle)
{
	struct listener *listener = container_of(handle, struct listener, poll);
	if (--listener->n_handles == 0) {
		listener_free(listener);
	}
}

static void on_pause_closed(uv_handle_t *handle)
{
	struct listener *listener = container_of(handle, struct listener, pause);
	if (--listener->n_handles == 0) {
		listener_free(listener);
	}
}

void listener_get_path(const struct listener *listener, char path_out[LISTENER_PATH_BYTES])
{
	get_name(listener->fd, path_out);
}

void listener_close(struct listener *listener)
{
	if (!listener) {
		return;
	}
	turn_leave(&listener->turn);
	listener->n_handles = 2;
	uv_close((uv_handle_t *)&listener->poll, on_poll_closed);
	uv_close((uv_handle_t *)&listener->pause, on_pause_closed);
	if (listener->path) {
		unlink(listener->path);
	}
	fd_close(&listener->fd);
}
