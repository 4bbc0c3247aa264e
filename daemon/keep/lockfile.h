/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lock beside a file: flock() on PATH.lock, until the fd is closed or its process has ended. The lock file stays,
 * because removing it would open a race. It has the pid of the last owner.
 *
 * Threads: any.
 */
#ifndef GLAKE_DAEMON_LOCKFILE_H
#define GLAKE_DAEMON_LOCKFILE_H

#include <sys/types.h>

/*
 * Lock @path. Returns the fd, which is the caller's; -EADDRINUSE: another process has it, the pid of which is in
 * @owner_out, 0 if unknown; or another -errno.
 */
int lockfile_take(const char *path, pid_t *owner_out);

#endif
