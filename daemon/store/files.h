/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fds of files that a client hands in: are they what they must be, and which files are they.
 *
 * A file is told from others and from its own past by its fs-verity digest, where it has one: then it
 * is the same wherever it lies. Else by its file system (superblock.h), inode, size and times. Whether
 * the times tell every change is the mover's to find out, which may wait for a file system.
 *
 * Nothing here can block on a file system that does not answer: statx() is asked for what the
 * kernel has cached (AT_STATX_DONT_SYNC), which the client's own open() has just refreshed.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_FILES_H
#define GLAKE_DAEMON_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/superblock.h"

#define FILE_MAX_VERITY_BYTES 64u

/* What tells a file from another and from its own past. No padding: it is hashed as bytes. */
struct file_id {
	uint64_t size_bytes;
	uint64_t verity; /* algorithm of @digest; 0 = known by the numbers */
	union {
		struct {
			uint64_t superblock; /* 0: the kernel has no unique mount ids */
			uint64_t device;     /* btrfs has one for each subvolume */
			uint64_t inode;
			int64_t mtime_ns;
			int64_t ctime_ns;
		};
		uint8_t digest[FILE_MAX_VERITY_BYTES];
	};
};

/*
 * Identify @fd, which must be a regular file opened for reading. @sibling: the id of another file, open
 * ever since it was taken: its file system need not be looked up again. NULL: none.
 * Returns 0, or -EISDIR, -EINVAL (no regular file), -EBADF (not opened for reading), or -errno.
 */
int file_identify(struct superblocks *superblocks, int fd, const struct file_id *sibling,
                  struct file_id *id_out);

/* Can two files on different file systems not have this id? */
bool file_id_is_unique(const struct file_id *id);

#endif
