/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks and identifies the files that a client passes.
 *
 * If a file has an fs-verity digest, the digest identifies it, wherever it lies. Otherwise its file
 * system (superblock.h), inode, size and times do. The mover finds out if the times show every
 * change, because that may mean waiting for a file system.
 *
 * Nothing here blocks on a file system that does not answer: statx() returns the kernel's cached values
 * (AT_STATX_DONT_SYNC), which the client's own open() has just refreshed.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_FILES_H
#define GLAKE_DAEMON_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/store/superblock.h"

#define FILE_MAX_VERITY_BYTES 64u

/* Identifies a file and its state. No padding: it is hashed as bytes. */
struct file_id {
	uint64_t size_bytes;
	uint64_t verity; /* the algorithm of @digest; 0 = the numbers identify it */
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
 * Identify @fd, which must be a regular file opened for reading. @sibling: the id of another file
 * that has been open since it was identified, so its file system need not be looked up again. NULL:
 * none. Returns 0, or -EISDIR, -EINVAL (no regular file), -EBADF (not opened for reading), or
 * -errno.
 */
int file_identify(struct superblocks *superblocks, int fd, const struct file_id *sibling,
                  struct file_id *id_out);

/* Whether two files on different file systems can never have the same id. */
bool file_id_is_unique(const struct file_id *id);

#endif
