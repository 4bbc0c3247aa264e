/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/mover_process.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/net/closer.h"
#include "daemon/net/conn.h"
#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* The fd on which the mover expects us. */
#define MOVER_FD 3
/* How often to look whether it would inherit files of clients, and how long. */
#define START_STEP_MS 2
#define START_MS 2000
/* How often to look whether it is dying, and how many times before it is given up. */
#define LOOK_MS 1000
#define MAX_DYING_LOOKS 3

struct mover_process {
	uv_process_t process;
	uv_timer_t timer; /* while it is to be started; then, to look after it */
	struct conn conn;
	char *path;                          /* owned */
	struct stats *stats;                 /* borrowed */
	const struct mover_process_ops *ops; /* NULL: let go, nobody wants to know */
	void *user;
	int their_fd;      /* owned; -1 once it is started */
	uint64_t since_ms; /* wanted */
	int n_handles;     /* of process, timer and conn still open */
	int n_dying_looks;
	bool was_killed; /* by us, for what it said */
};

/* ---- its end --------------------------------------------------------------------------------- */

static void put(struct mover_process *process)
{
	if (--process->n_handles == 0) {
		free(process->path);
		free(process);
	}
}

static void on_conn_closed(struct conn *conn)
{
	put(container_of(conn, struct mover_process, conn));
}

static void on_timer_closed(uv_handle_t *handle)
{
	put(container_of(handle, struct mover_process, timer));
}

static void on_process_closed(uv_handle_t *handle)
{
	put(container_of(handle, struct mover_process, process));
}

/* No callback of ours follows, but that of the process's exit. */
void mover_process_leave(struct mover_process *process)
{
	process->ops = NULL;
	fd_close(&process->their_fd);
	conn_close(&process->conn, on_conn_closed);
	if (!uv_is_closing((uv_handle_t *)&process->timer)) {
		uv_close((uv_handle_t *)&process->timer, on_timer_closed);
	}
}

static void end(struct mover_process *process, const char *error)
{
	const struct mover_process_ops *ops = process->ops;
	void *user = process->user;
	mover_process_leave(process);
	if (ops) {
		ops->on_end(user, error);
	}
}

static void on_process_exit(uv_process_t *handle, int64_t exit_status, int signal)
{
	struct mover_process *process = container_of(handle, struct mover_process, process);
	char error[128];
	if (process->was_killed) {
		snprintf(error, sizeof(error), "glake-mover was ended, see the log");
	} else if (signal) {
		snprintf(error, sizeof(error), "glake-mover died: signal %d (%s)", signal,
		         strsignal(signal));
	} else {
		snprintf(error, sizeof(error), "glake-mover ended with status %d",
		         (int)exit_status);
	}
	uv_close((uv_handle_t *)handle, on_process_closed);
	process->stats->mover_deaths += process->ops != NULL;
	end(process, error);
}

/* Its first thread has ended. */
static bool is_zombie(int pid)
{
	char path[64];
	char text[128] = "";
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	FILE *file = fopen(path, "re");
	if (!file) {
		return false;
	}
	bool is_read = fgets(text, sizeof(text), file) != NULL;
	fclose(file);
	/* The name in parentheses may be anything. */
	const char *state = is_read ? strrchr(text, ')') : NULL;
	return state && strncmp(state, ") Z", 3) == 0;
}

/*
 * A process ends with the last of its threads, and only then are we told. A file system can keep one of
 * them in close() for ever: a mover that nobody hears of any more.
 */
static void on_look(uv_timer_t *timer)
{
	struct mover_process *process = container_of(timer, struct mover_process, timer);
	bool is_dying = process->conn.is_closing ||
	                is_zombie(uv_process_get_pid(&process->process));
	process->n_dying_looks = is_dying ? process->n_dying_looks + 1 : 0;
	if (process->n_dying_looks == MAX_DYING_LOOKS) {
		/* Whenever it ends, init has to bury it: glaked's own end does not wait. */
		uv_close((uv_handle_t *)&process->process, on_process_closed);
		process->stats->mover_deaths++;
		end(process, "glake-mover died, and does not end");
	}
}

static void kill_started(struct mover_process *process)
{
	if (mover_process_is_started(process)) {
		uv_process_kill(&process->process, SIGKILL);
	}
}

static void on_conn_end(struct conn *conn, enum conn_end how, int error)
{
	struct mover_process *process = container_of(conn, struct mover_process, conn);
	/* Its exit brings the news; make sure that there is one. */
	if (how != CONN_END_EOF) {
		process->was_killed = true;
	}
	kill_started(process);
	conn_close(conn, on_conn_closed);
}

void mover_process_kill(struct mover_process *process)
{
	process->was_killed = true;
	kill_started(process);
}

/* ---- its beginning --------------------------------------------------------------------------- */

static int spawn(struct mover_process *process)
{
	char *arguments[] = {(char *)"glake-mover", NULL};
	uv_stdio_container_t stdio[] = {
		{.flags = UV_IGNORE},
		{.flags = UV_INHERIT_FD, .data.fd = 2},
		{.flags = UV_INHERIT_FD, .data.fd = 2},
		{.flags = UV_INHERIT_FD, .data.fd = process->their_fd},
	};
	uv_process_options_t options = {
		.exit_cb = on_process_exit,
		.file = process->path,
		.args = arguments,
		.stdio = stdio,
		.stdio_count = MOVER_FD + 1,
		/* Signals of the terminal are for glaked, which drains while its mover works. */
		.flags = UV_PROCESS_DETACHED,
	};
	process->n_handles++;
	return uv_spawn(process->timer.loop, &process->process, &options);
}

static void on_start(uv_timer_t *timer)
{
	struct mover_process *process = container_of(timer, struct mover_process, timer);
	char error[256];
	if (process->was_killed) {
		end(process, "glake-mover was ended before it was started, see the log");
		return;
	}
	if (closer_hurry() > 0) {
		if (uv_now(timer->loop) - process->since_ms < START_MS) {
			uv_timer_start(timer, on_start, START_STEP_MS, 0);
			return;
		}
		end(process, "cannot start glake-mover: a client's file does not close");
		return;
	}
	int r = spawn(process);
	if (r < 0) {
		uv_close((uv_handle_t *)&process->process, on_process_closed);
		snprintf(error, sizeof(error), "cannot start %s: %s", process->path,
		         uv_strerror(r));
		end(process, error);
		return;
	}
	fd_close(&process->their_fd);
	uv_timer_start(timer, on_look, LOOK_MS, LOOK_MS);
	process->stats->mover_starts++;
	log_info("started glake-mover, pid %d", uv_process_get_pid(&process->process));
}

static void on_packet(struct conn *conn, const uint8_t *bytes, size_t n_bytes, struct fdlist *fds)
{
	struct mover_process *process = container_of(conn, struct mover_process, conn);
	/* Once it is killed, nothing more of what it says is believed. */
	if (!process->was_killed) {
		process->ops->on_packet(process->user, bytes, n_bytes, fds);
	}
}

int mover_process_new(uv_loop_t *loop, const char *path, struct stats *stats,
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
	int r = conn_open(&process->conn, loop, our_fd, on_packet, on_conn_end);
	if (r < 0) {
		free(process);
		return r;
	}
	fd_steal(&our_fd);
	process->path = own_path;
	own_path = NULL;
	process->stats = stats;
	process->ops = ops;
	process->user = user;
	process->their_fd = fd_steal(&their_fd);
	process->n_handles = 2;
	process->since_ms = uv_now(loop);
	uv_timer_init(loop, &process->timer);
	uv_timer_start(&process->timer, on_start, 0, 0);
	*process_out = process;
	return 0;
}

/* ---- its life -------------------------------------------------------------------------------- */

bool mover_process_is_started(const struct mover_process *process)
{
	return process->their_fd < 0;
}

int mover_process_pid(const struct mover_process *process)
{
	return mover_process_is_started(process) ? uv_process_get_pid(&process->process) : 0;
}

int mover_process_send(struct mover_process *process, uid_t uid, const void *bytes, size_t n_bytes,
                       const int *fds, size_t n_fds)
{
	struct conn *conn = &process->conn;
	/* Fds that waited in our own queue would be open here when it is started. */
	if (n_fds > 0 && !mover_process_is_started(process)) {
		return conn_send_now(conn, bytes, n_bytes, fds, n_fds);
	}
	if (uid == CLOSER_NOBODY) {
		return conn_send(conn, bytes, n_bytes, fds, n_fds);
	}
	return conn_n_queued(conn) < CLOSER_MAX_PASSED_ON
	               ? conn_send_files(conn, uid, bytes, n_bytes, fds, n_fds)
	               : -EAGAIN;
}
