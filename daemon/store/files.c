/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fsverity.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* Linux 6.8: stx_mnt_id is an id that is never used again. */
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000u
#endif

static int64_t to_ns(struct statx_timestamp time)
{
	return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/*
 * Only called if the kernel reports a digest, which only local file systems have. Asking FUSE would
 * mean waiting for it.
 */
static bool get_verity(int fd, struct file_id *id)
{
	union {
		struct fsverity_digest head;
		uint8_t bytes[sizeof(struct fsverity_digest) + FILE_MAX_VERITY_BYTES];
	} answer = {.head.digest_size = FILE_MAX_VERITY_BYTES};
	if (ioctl(fd, FS_IOC_MEASURE_VERITY, &answer) < 0) {
		return false;
	}
	id->verity = answer.head.digest_algorithm;
	memcpy(id->digest, answer.head.digest, answer.head.digest_size);
	return true;
}

int file_identify(struct superblocks *superblocks, int fd, const struct file_id *sibling,
                  struct file_id *id_out)
{
	struct statx stat;
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0) {
		return -errno;
	}
	if ((flags & O_PATH) || (flags & O_ACCMODE) == O_WRONLY) {
		return -EBADF;
	}
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC,
	          STATX_BASIC_STATS | STATX_MNT_ID_UNIQUE, &stat) < 0) {
		return -errno;
	}
	if (S_ISDIR(stat.stx_mode)) {
		return -EISDIR;
	}
	if (!S_ISREG(stat.stx_mode)) {
		return -EINVAL;
	}
	memset(id_out, 0, sizeof(*id_out));
	id_out->size_bytes = stat.stx_size;
	if (stat.stx_attributes & STATX_ATTR_VERITY && get_verity(fd, id_out)) {
		return 0;
	}
	id_out->device = makedev(stat.stx_dev_major, stat.stx_dev_minor);
	id_out->inode = stat.stx_ino;
	id_out->mtime_ns = to_ns(stat.stx_mtime);
	id_out->ctime_ns = to_ns(stat.stx_ctime);
	if (stat.stx_mask & STATX_MNT_ID_UNIQUE) {
		bool is_same = sibling && !sibling->verity && sibling->device == id_out->device;
		id_out->superblock = is_same ? sibling->superblock
		                             : superblock_number(superblocks, id_out->device,
		                                                 stat.stx_mnt_id);
	}
	return 0;
}

bool file_id_is_unique(const struct file_id *id)
{
	return id->verity != 0 || id->superblock != 0;
}
