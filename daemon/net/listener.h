/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening socket: passed by the service manager, or bound here under a lock file. A manager that
 * keeps fds keeps it for the next glaked; clients that connect meanwhile wait in its backlog.
 *
 * PATH belongs to the process that holds the lock (flock on PATH.lock). While one glaked lives, a
 * second one is refused. The socket file of a dead glaked is removed only under the lock, and only
 * if nobody answers on it. The lock file stays, because removing it would open a race.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_LISTENER_H
#define GLAKE_DAEMON_LISTENER_H

#include <sys/types.h>
#include <uv.h>

struct fdstore;
struct listener;

/* A new connection; the callee owns the fd. */
typedef void (*listener_fn)(void *user, int fd);

/*
 * Listen on the socket of a socket unit, else on @path: on the socket that @store has kept, or on a new
 * one, which it keeps from then on. Logs errors.
 * Returns 0 or -errno; -EADDRINUSE: another glaked has the path.
 */
int listener_open(uv_loop_t *loop, struct fdstore *store, const char *path, mode_t mode,
                  listener_fn on_connection, void *user, struct listener **listener_out);

#define LISTENER_PATH_BYTES 128u

/* Where it listens; "" if that is no path. */
void listener_get_path(const struct listener *listener, char path_out[LISTENER_PATH_BYTES]);

/* Accept nothing for 100 ms, or until listener_resume(); connections wait in the backlog. */
void listener_pause(struct listener *listener);
void listener_resume(struct listener *listener);

/*
 * Stop listening, and remove the socket file if nobody keeps the socket. The loop frees the listener.
 * NULL is fine.
 */
void listener_close(struct listener *listener);

#endif
