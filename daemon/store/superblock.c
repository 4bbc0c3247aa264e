/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/superblock.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/clock.h"

/* From <linux/mount.h> since Linux 6.8; the same on all architectures. */
#define SYS_STATMOUNT 457
#define SYS_LISTMOUNT 458
#define STATMOUNT_SB_BASIC 1u
#define STATMOUNT_MNT_BASIC 2u
#define STATMOUNT_MNT_POINT 16u
#define LSMT_ROOT UINT64_MAX
#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x4000u
#endif
#define NAME "fs"

struct mount_request {
	uint32_t size;
	uint32_t spare;
	uint64_t mount;
	uint64_t param; /* STATMOUNT_*, or the mount after which a list begins */
};

struct mount_answer {
	uint32_t size;
	uint32_t options;
	uint64_t mask;
	uint32_t device_major;
	uint32_t device_minor;
	uint64_t magic;
	uint64_t flags;
	uint64_t mount;
	uint64_t parent;
	uint64_t more[6];
	uint32_t root;
	uint32_t point; /* in text, from the present root folder */
	uint64_t rest[50];
	char text[PATH_MAX];
};

static bool look_at_mount(uint64_t mount, uint64_t what, struct mount_answer *answer)
{
	struct mount_request request = {.size = sizeof(request), .mount = mount, .param = what};
	return syscall(SYS_STATMOUNT, &request, answer, sizeof(*answer), 0) == 0 &&
	       (answer->mask & what) == what;
}

/* Whether our namespace has the mount @mount, and it is one of @device. */
static bool is_mount_of(uint64_t mount, uint64_t device)
{
	struct mount_answer answer;
	return look_at_mount(mount, STATMOUNT_SB_BASIC, &answer) &&
	       makedev(answer.device_major, answer.device_minor) == device;
}

/* The oldest of our mounts of @device; 0 = none. */
static uint64_t find_anchor(uint64_t device)
{
	uint64_t mounts[256];
	struct mount_request request = {.size = sizeof(request), .mount = LSMT_ROOT};
	size_t n_seen = 0;
	long n;
	do {
		n = syscall(SYS_LISTMOUNT, &request, mounts, sizeof(mounts) / sizeof(mounts[0]), 0);
		for (long i = 0; i < n; i++) {
			if (is_mount_of(mounts[i], device)) {
				return mounts[i];
			}
			request.param = mounts[i];
		}
		n_seen += sizeof(mounts) / sizeof(mounts[0]);
	} while (n == (long)(sizeof(mounts) / sizeof(mounts[0])) &&
	         n_seen < SUPERBLOCKS_MAX_MOUNTS);
	return 0;
}

static bool may_look(struct superblocks *superblocks)
{
	uint64_t second = clock_now_ns() / 1000000000;
	if (superblocks->looks_second != second) {
		superblocks->looks_second = second;
		superblocks->n_looks = 0;
	}
	return superblocks->n_looks++ < SUPERBLOCKS_LOOKS_PER_S;
}

/* ---- for the next glaked --------------------------------------------------------------------- */

/* Nobody else's server or program is asked when we look at a file of it. */
static bool is_of_this_kernel(uint64_t magic)
{
	static const uint64_t magics[] = {EXT4_SUPER_MAGIC,  XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC,
	                                  F2FS_SUPER_MAGIC,  SQUASHFS_MAGIC,  EROFS_SUPER_MAGIC_V1,
	                                  ISOFS_SUPER_MAGIC, TMPFS_MAGIC};
	for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++) {
		if (magics[i] == magic) {
			return true;
		}
	}
	return false;
}

/* All folders on the way to the mount are of file systems of this kernel, and so is its root. */
static bool is_near(uint64_t mount)
{
	struct mount_answer answer = {.parent = mount};
	do {
		if (!look_at_mount(answer.parent,
		                   STATMOUNT_SB_BASIC | STATMOUNT_MNT_BASIC | STATMOUNT_MNT_POINT,
		                   &answer) ||
		    !is_of_this_kernel(answer.magic)) {
			return false;
		}
	} while (strcmp(answer.text + answer.point, "/") != 0);
	return true;
}

/* The root folder of a mount, with O_PATH. A unit with RestrictSUIDSGID= has no openat2(). */
static int open_mount(uint64_t mount)
{
	struct mount_answer answer;
	struct statx stat;
	if (!is_near(mount) || !look_at_mount(mount, STATMOUNT_MNT_POINT, &answer)) {
		return -1;
	}
	cleanup_fd int fd = open(answer.text + answer.point, O_PATH | O_CLOEXEC);
	/* Something else may be mounted over it. */
	if (fd < 0 || statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID_UNIQUE, &stat) < 0 ||
	    !(stat.stx_mask & STATX_MNT_ID_UNIQUE) || stat.stx_mnt_id != mount) {
		return -1;
	}
	return fd_steal(&fd);
}

static void name_of(uint64_t number, char *name)
{
	snprintf(name, FDSTORE_NAME_BYTES, NAME "%" PRIu64, number);
}

static void park(const struct superblocks *superblocks, const struct superblock *known)
{
	char path[64];
	char name[FDSTORE_NAME_BYTES];
	if (!superblocks->fdstore || !known->anchor) {
		return;
	}
	cleanup_fd int mount = open_mount(known->anchor);
	cleanup_fd int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", mount);
	if (mount >= 0 && watch >= 0 && inotify_add_watch(watch, path, IN_DELETE_SELF) >= 0) {
		name_of(known->number, name);
		fdstore_put(superblocks->fdstore, name, watch);
	}
}

static void unpark(const struct superblocks *superblocks, const struct superblock *known)
{
	char name[FDSTORE_NAME_BYTES];
	if (superblocks->fdstore && known->anchor) {
		name_of(known->number, name);
		fdstore_remove(superblocks->fdstore, name);
	}
}

/* The device of the file that is watched; 0: none is any more. */
static uint64_t watched_device(int watch)
{
	char path[64];
	char line[256];
	unsigned device = 0;
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", watch);
	FILE *info = fopen(path, "re");
	while (info && fgets(line, sizeof(line), info)) {
		const char *at = strstr(line, " sdev:");
		if (strncmp(line, "inotify ", 8) == 0 && at) {
			/* sdev is in the kernel's format: 20 bits are the minor number's. */
			sscanf(at, " sdev:%x", &device);
		}
	}
	if (info) {
		fclose(info);
	}
	return makedev(device >> 20, device & 0xfffffu);
}

/* The watch is looked at once more when we have a mount that keeps the file system. */
static bool adopt(struct superblocks *superblocks, const char *name, int watch)
{
	uint64_t device = watched_device(watch);
	uint64_t anchor = device ? find_anchor(device) : 0;
	if (!anchor || watched_device(watch) != device || superblocks->next == SUPERBLOCKS_KNOWN) {
		return false;
	}
	superblocks->known[superblocks->next++] = (struct superblock){
		.device = device,
		.anchor = anchor,
		.number = strtoull(name + strlen(NAME), NULL, 10)};
	return true;
}

void superblocks_adopt(struct superblocks *superblocks, struct fdstore *fdstore)
{
	const char *name;
	if (!fdstore_is_kept(fdstore)) {
		return;
	}
	superblocks->fdstore = fdstore;
	for (size_t i = 0; (name = fdstore_passed(fdstore, i)); i++) {
		if (strncmp(name, NAME, strlen(NAME)) != 0) {
			continue;
		}
		cleanup_fd int watch = fdstore_take(fdstore, name);
		if (watch >= 0 && !adopt(superblocks, name, watch)) {
			fdstore_remove(fdstore, name);
		}
	}
}

/* ---- asking ---------------------------------------------------------------------------------- */

uint64_t superblock_number(struct superblocks *superblocks, uint64_t device, uint64_t mount)
{
	struct superblock *place = NULL;
	for (size_t i = 0; i < SUPERBLOCKS_KNOWN; i++) {
		struct superblock *known = &superblocks->known[i];
		if (known->device != device) {
			continue;
		}
		if (known->anchor ? is_mount_of(known->anchor, device) : known->mount == mount) {
			return known->anchor ? known->number : mount;
		}
		if (known->anchor) {
			place = known;
		}
	}
	if (!may_look(superblocks)) {
		return mount;
	}
	if (!place) {
		place = &superblocks->known[superblocks->next++ % SUPERBLOCKS_KNOWN];
	}
	unpark(superblocks, place);
	*place = (struct superblock){
		.device = device, .anchor = find_anchor(device), .mount = mount};
	place->number = place->anchor;
	park(superblocks, place);
	return place->anchor ? place->number : mount;
}
