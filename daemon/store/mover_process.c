/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/mover_process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "daemon/net/inflight.h"
#include "daemon/net/conn.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* At most MAX_PASSED_ON packets with files of users wait until the mover reads. */
#define MAX_PASSED_ON 8

enum process_state {
	PROCESS_ALIVE, /* or about to be started */
	PROCESS_DEAD,  /* and may have not ended: it may have memory still */
	PROCESS_GONE,
};

struct mover_process {
	struct keeper_child child;
	struct keeper *keeper; /* borrowed */
	struct conn conn;
	char *path;                          /* owned */
	struct stats *stats;                 /* borrowed */
	const struct mover_process_ops *ops; /* NULL: nothing is called back any more */
	void *user;
	int their_fd; /* owned; open until it is started, so that the keeper never does the last close */
	int pid;      /* 0 until it is started */
	bool was_killed; /* because of what it sent */
	enum process_state state;
	bool is_closed; /* the connection */
};

/* ---- its end --------------------------------------------------------------------------------- */

static void free_if_over(struct mover_process *process)
{
	if (process->state == PROCESS_GONE && process->is_closed) {
		free(process->path);
		free(process);
	}
}

static void on_conn_closed(struct conn *conn)
{
	struct mover_process *process = container_of(conn, struct mover_process, conn);
	process->is_closed = true;
	free_if_over(process);
}

static void close_their_fd(struct mover_process *process)
{
	inflight_close_files(INFLIGHT_OURS, &process->their_fd, 1);
	process->their_fd = -1;
}

static void close_connection(struct mover_process *process)
{
	close_their_fd(process);
	conn_close(&process->conn, on_conn_closed);
}

void mover_process_leave(struct mover_process *process)
{
	process->ops = NULL;
	close_connection(process);
}

static void die(struct mover_process *process, const char *error, bool is_gone)
{
	if (process->state != PROCESS_ALIVE) {
		return;
	}
	process->state = PROCESS_DEAD;
	close_connection(process);
	if (process->ops) {
		process->stats->mover_deaths += process->pid != 0;
		process->ops->on_end(process->user, process, error, is_gone);
	}
}

/* @process may be freed. */
static void go(struct mover_process *process, const char *error)
{
	bool was_dead = process->state == PROCESS_DEAD;
	die(process, error, true);
	if (was_dead && process->ops) {
		process->ops->on_gone(process->user, process);
	}
	process->state = PROCESS_GONE;
	free_if_over(process);
}

static void describe_end(const struct mover_process *process, int status, char error[128])
{
	if (process->was_killed) {
		snprintf(error, 128, "glake-mover was ended, see the log");
	} else if (WIFSIGNALED(status)) {
		snprintf(error, 128, "glake-mover died: signal %d (%s)", WTERMSIG(status),
		         strsignal(WTERMSIG(status)));
	} else {
		snprintf(error, 128, "glake-mover ended with status %d", WEXITSTATUS(status));
	}
}

/* ---- its beginning --------------------------------------------------------------------------- */

/* The keeper does not know the driver library of the configuration. */
static const char *driver_setting(char text[4200])
{
	const char *libcuda = getenv("GLAKE_LIBCUDA");
	return libcuda && snprintf(text, 4200, "GLAKE_LIBCUDA=%s", libcuda) < 4200 ? text : NULL;
}

static int order(struct mover_process *process)
{
	char setting[4200];
	return keeper_start(process->keeper, &process->child, process->path,
	                    driver_setting(setting), process->their_fd);
}

/* There is a new keeper; the previous one has died. */
static void order_again(struct mover_process *process)
{
	char error[256];
	int r = process->ops ? order(process) : -ECANCELED;
	if (r < 0) {
		snprintf(error, sizeof(error), "cannot start %s: %s", process->path, strerror(-r));
		go(process, error);
	}
}

/* ---- events ---------------------------------------------------------------------------------- */

static void on_event(struct keeper_child *child, enum keeper_event event, int value)
{
	struct mover_process *process = container_of(child, struct mover_process, child);
	char error[256];
	switch (event) {
	case KEEPER_READY:
		order_again(process);
		break;
	case KEEPER_STARTED:
		process->pid = value;
		process->stats->mover_starts++;
		log_info("started glake-mover, pid %d", value);
		close_their_fd(process);
		break;
	case KEEPER_FAILED:
		snprintf(error, sizeof(error), "cannot start %s: %s", process->path,
		         strerror(value));
		go(process, error);
		break;
	case KEEPER_DYING:
		die(process, "glake-mover died, and does not end", false);
		break;
	case KEEPER_ENDED:
		describe_end(process, value, error);
		go(process, error);
		break;
	case KEEPER_ORPHANED:
		die(process, "glake-mover was ended with glake-keeper", false);
		break;
	case KEEPER_LOST:
		go(process, "glake-mover was ended with glake-keeper");
		break;
	}
}

static void on_conn_end(struct conn *conn, enum conn_end how, int error)
{
	struct mover_process *process = container_of(conn, struct mover_process, conn);
	/* The process's end will be reported; make sure that it ends. */
	if (how != CONN_END_EOF) {
		process->was_killed = true;
	}
	keeper_kill(process->keeper, &process->child);
	close_connection(process);
}

void mover_process_kill(struct mover_process *process)
{
	process->was_killed = true;
	keeper_kill(process->keeper, &process->child);
}

static void on_packet(struct conn *conn, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	struct mover_process *process = container_of(conn, struct mover_process, conn);
	/* After it was killed, nothing that it sent counts any more. */
	if (!process->was_killed) {
		process->ops->on_packet(process->user, bytes, n_bytes, fds);
	}
}

int mover_process_new(uv_loop_t *loop, struct keeper *keeper, const char *path, struct stats *stats,
                      const struct mover_process_ops *ops, void *user,
                      struct mover_process **process_out)
{
	int sockets[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0) {
		return -errno;
	}
	cleanup_fd int our_fd = sockets[0];
	cleanup_fd int their_fd = sockets[1];
	struct mover_process *process = calloc(1, sizeof(*process));
	cleanup_free char *own_path = strdup(path);
	if (!process || !own_path) {
		free(process);
		return -ENOMEM;
	}
	process->child.on_event = on_event;
	process->keeper = keeper;
	process->stats = stats;
	process->user = user;
	process->their_fd = -1;
	int r = conn_open(&process->conn, loop, our_fd, on_packet, on_conn_end);
	if (r < 0) {
		free(process);
		return r;
	}
	fd_steal(&our_fd);
	process->path = ptr_steal(own_path);
	process->their_fd = fd_steal(&their_fd);
	r = order(process);
	if (r < 0) {
		process->state = PROCESS_GONE;
		close_connection(process);
		return r;
	}
	process->ops = ops;
	*process_out = process;
	return 0;
}

/* ---- its life -------------------------------------------------------------------------------- */

int mover_process_pid(const struct mover_process *process)
{
	return process->pid;
}

int mover_process_send(struct mover_process *process, uid_t uid, const void *bytes, size_t n_bytes,
                       const int *fds, size_t n_fds)
{
	struct conn *conn = &process->conn;
	if (uid == INFLIGHT_OURS) {
		return conn_send(conn, bytes, n_bytes, fds, n_fds);
	}
	return conn_n_queued(conn) < MAX_PASSED_ON
	               ? conn_send_files(conn, uid, bytes, n_bytes, fds, n_fds)
	               : -EAGAIN;
}
