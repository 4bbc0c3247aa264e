/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A glaked that has no GPU, because the driver is missing or does not start. It listens, tells every new client why, and ends
 * after a while with SERVER_LEAVES: the service manager starts the next one, which looks again.
 *
 * It cannot look again itself: a driver that has once failed to start fails for ever in a process, and which device nodes a
 * service may open is decided by the manager before it starts. The while doubles from 2 to 60 seconds, counted from the
 * first glaked of a row that had to wait: its time is in a file beside the books.
 *
 * Kept fds and the books are not touched. A client that wants to go on with its session is not answered but closed, since
 * an answer would end the session: it tries again, and may meet a glaked that has a GPU.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_WAITING_H
#define GLAKE_DAEMON_WAITING_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/config/config.h"
#include "daemon/keep/fdstore.h"

/*
 * Wait, with @why for clients. Returns whether it waited until the time was up, or until SIGTERM or SIGHUP: the next glaked
 * is to be started; false: by SIGINT, or it cannot listen.
 */
bool waiting_run(uv_loop_t *loop, struct fdstore *store, const struct config *config,
                 const char *socket_path, const char *why);

/* There is a GPU: the next glaked that has none waits for 2 seconds. @beside: the path of the books. */
void waiting_forget(const char *beside);

#endif
