/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/settle.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/vfs.h>
#include <time.h>

#include "proto/cleanup.h"

/* The clock of ctime stands for 10 ms at most (CONFIG_HZ=100). */
#define STEP_NS (2 * 1000 * 1000)
#define MAX_STEPS 15
#define NS_PER_S (1000ll * 1000 * 1000)

enum keeping {
	KEEPS_NOTHING, /* nothing is certain */
	KEEPS_CTIME,   /* the kernel sets it before each change */
	KEEPS_CONTENT, /* nothing ever changes */
};

static const struct file_system {
	uint32_t magic; /* of statfs() */
	enum keeping keeping;
	const char *reason;
} file_systems[] = {
	{EXT4_SUPER_MAGIC, KEEPS_CTIME, NULL}, /* ext2 and ext3 too */
	{XFS_SUPER_MAGIC, KEEPS_CTIME, NULL},
	{BTRFS_SUPER_MAGIC, KEEPS_CTIME, NULL},
	{F2FS_SUPER_MAGIC, KEEPS_CTIME, NULL},
	{SQUASHFS_MAGIC, KEEPS_CONTENT, NULL},
	{EROFS_SUPER_MAGIC_V1, KEEPS_CONTENT, NULL},
	{ISOFS_SUPER_MAGIC, KEEPS_CONTENT, NULL},
	{CRAMFS_MAGIC, KEEPS_CONTENT, NULL},
	{TMPFS_MAGIC, KEEPS_NOTHING, "on tmpfs"},
	{OVERLAYFS_SUPER_MAGIC, KEEPS_NOTHING, "on an overlay"},
	{NFS_SUPER_MAGIC, KEEPS_NOTHING, "on NFS"},
	{FUSE_SUPER_MAGIC, KEEPS_NOTHING, "on FUSE"},
};

static const struct file_system *file_system_of(int fd)
{
	static const struct file_system other = {
		.reason = "on a file system that may hide changes"};
	struct statfs statfs;
	if (fstatfs(fd, &statfs) == 0) {
		for (size_t i = 0; i < sizeof(file_systems) / sizeof(file_systems[0]); i++) {
			if (file_systems[i].magic == (uint32_t)statfs.f_type) {
				return &file_systems[i];
			}
		}
	}
	return &other;
}

static bool has_verity(int fd)
{
	struct statx attributes;
	return statx(fd, "", AT_EMPTY_PATH, 0, &attributes) == 0 &&
	       attributes.stx_attributes & STATX_ATTR_VERITY;
}

/*
 * Open the file anew. When a lease is broken, the kernel sends the signal that is set on its open file
 * description, and the client may have set SIGKILL on its own.
 */
static int open_anew(int fd)
{
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

/* Returns NULL if no process has the file open for writing now, or the reason why that is unknown. */
static const char *find_writers(int fd)
{
	/* Opening the file would break the lease. */
	if (fcntl(fd, F_GETLEASE) == F_WRLCK) {
		return "no lease: the program has one for writing";
	}
	cleanup_fd int own = open_anew(fd);
	if (own < 0) {
		return "no lease: glake-mover may not open it itself";
	}
	/* Closing it gives the lease back. */
	if (fcntl(own, F_SETLEASE, F_RDLCK) == 0) {
		return NULL;
	}
	switch (errno) {
	case EAGAIN:
		return "open for writing";
	case EACCES:
		return "no lease: somebody else's, and glake-mover has no CAP_LEASE";
	default:
		return "no lease: the kernel or its policy refuses it";
	}
}

/* The least time by which its clock has passed @ctime, which may have been rounded down. */
static int64_t age_ns(const struct timespec *ctime, const struct timespec *now)
{
	/* Old file systems keep whole seconds. */
	int64_t rounded_ns = ctime->tv_nsec == 0 ? NS_PER_S - 1 : 0;
	return (now->tv_sec - ctime->tv_sec) * NS_PER_S + now->tv_nsec - ctime->tv_nsec -
	       rounded_ns;
}

const char *settle(int fd, struct stat *stat_io)
{
	const struct file_system *file_system = file_system_of(fd);
	if (file_system->keeping == KEEPS_NOTHING) {
		return file_system->reason;
	}
	if (file_system->keeping == KEEPS_CONTENT || has_verity(fd)) {
		return NULL;
	}
	for (unsigned i = 0; i < MAX_STEPS; i++) {
		struct timespec now;
		/* The clock is read first: a change after find_writers() has a ctime of now, or later. */
		clock_gettime(CLOCK_REALTIME_COARSE, &now);
		const char *reason = find_writers(fd);
		if (reason) {
			return reason;
		}
		if (fstat(fd, stat_io) < 0) {
			return "not to be examined";
		}
		int64_t age = age_ns(&stat_io->st_ctim, &now);
		if (age > 0) {
			return NULL;
		}
		if (age < -MAX_STEPS * STEP_NS) {
			break;
		}
		nanosleep(&(struct timespec){.tv_nsec = STEP_NS}, NULL);
	}
	return "written a moment ago";
}
