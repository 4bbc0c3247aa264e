/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fds of files that a client hands in: are they what they must be, and which files are they.
 *
 * Nothing here can block on a file system that does not answer: statx() is asked for what the
 * kernel has cached (AT_STATX_DONT_SYNC), which the client's own open() has just refreshed.
 *
 * Threads: any.
 */
#ifndef GLAKE_DAEMON_FILES_H
#define GLAKE_DAEMON_FILES_H

#include <stdint.h>

/* What tells a file from another and from its own past. No padding: it is hashed as bytes. */
struct file_id {
	uint64_t device;
	uint64_t inode;
	uint64_t size_bytes;
	int64_t mtime_ns;
	int64_t ctime_ns;
};

/*
 * Identify @fd, which must be a regular file opened for reading.
 * Returns 0, or -EISDIR, -EINVAL (no regular file), -EBADF (not opened for reading), or -errno.
 */
int file_identify(int fd, struct file_id *id_out);

#endif
