/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static int64_t to_ns(struct statx_timestamp time)
{
	return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int file_identify(int fd, struct file_id *id_out)
{
	struct statx stat;
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0) {
		return -errno;
	}
	if ((flags & O_PATH) || (flags & O_ACCMODE) == O_WRONLY) {
		return -EBADF;
	}
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &stat) < 0) {
		return -errno;
	}
	if (S_ISDIR(stat.stx_mode)) {
		return -EISDIR;
	}
	if (!S_ISREG(stat.stx_mode)) {
		return -EINVAL;
	}
	*id_out = (struct file_id){
		.device = makedev(stat.stx_dev_major, stat.stx_dev_minor),
		.inode = stat.stx_ino,
		.size_bytes = stat.stx_size,
		.mtime_ns = to_ns(stat.stx_mtime),
		.ctime_ns = to_ns(stat.stx_ctime),
	};
	return 0;
}
