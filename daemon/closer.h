/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing fds that a client handed in, away from the loop.
 *
 * close() is not always quick: the file system flushes, and one that is a program (FUSE) answers a
 * flush when it likes, or never. Whoever may mount such a thing could stop glaked with one fd.
 *
 * Threads: called on the loop thread; the closing is done on libuv's pool.
 */
#ifndef GLAKE_DAEMON_CLOSER_H
#define GLAKE_DAEMON_CLOSER_H

#include <stddef.h>
#include <uv.h>

/* Takes @fds over; entries of -1 are fine. The array itself stays the caller's. */
void closer_close(uv_loop_t *loop, const int *fds, size_t n_fds);

/*
 * Calls of closer_close() whose fds may still be open. A child process that is started meanwhile
 * closes them as well, on its way to the program, and its parent waits for it.
 */
unsigned closer_n_pending(void);

#endif
