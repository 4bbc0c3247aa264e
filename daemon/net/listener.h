/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The listening socket: passed by the service manager, or bound here under a lock file.
 *
 * The lock (PATH.lock, flock) says who owns PATH: a second glaked is refused while the first lives,
 * and the socket file of a dead one is removed only under the lock and only when nobody answers on
 * it. The lock file stays: removing it would open a race.
 *
 * Owner: the server. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_LISTENER_H
#define GLAKE_DAEMON_LISTENER_H

#include <sys/types.h>
#include <uv.h>

struct listener;

/* A connection has come; the fd is the callee's. */
typedef void (*listener_fn)(void *user, int fd);

/*
 * Listen on what the service manager passed, else on @path. Logs what is wrong.
 * Returns 0 or -errno: -EADDRINUSE when another glaked has the path.
 */
int listener_open(uv_loop_t *loop, const char *path, mode_t mode, listener_fn on_connection,
                  void *user, struct listener **listener_out);

/* Take no more for 100 ms; the backlog holds them. */
void listener_pause(struct listener *listener);

/* Stop listening; removes the socket file if we made it. Freed by the loop. NULL is fine. */
void listener_close(struct listener *listener);

#endif
