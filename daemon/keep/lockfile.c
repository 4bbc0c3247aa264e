/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keep/lockfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

int lockfile_take(const char *path, pid_t *owner_out)
{
	char lock_path[PATH_MAX];
	char owner[32] = "";
	if (snprintf(lock_path, sizeof(lock_path), "%s.lock", path) >= (int)sizeof(lock_path)) {
		return -ENAMETOOLONG;
	}
	cleanup_fd int fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		return -errno;
	}
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		ssize_t n = pread(fd, owner, sizeof(owner) - 1, 0);
		owner[n > 0 ? n : 0] = '\0';
		*owner_out = atoi(owner);
		return -EADDRINUSE;
	}
	int n = snprintf(owner, sizeof(owner), "%d\n", (int)getpid());
	if (ftruncate(fd, 0) < 0 || pwrite(fd, owner, (size_t)n, 0) < 0) {
		log_warning("cannot write %s: %s", lock_path, strerror(errno));
	}
	return fd_steal(&fd);
}
