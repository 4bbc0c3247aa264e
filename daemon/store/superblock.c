/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/superblock.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "proto/clock.h"

/* From <linux/mount.h> since Linux 6.8; the same on all architectures. */
#define SYS_STATMOUNT 457
#define SYS_LISTMOUNT 458
#define STATMOUNT_SB_BASIC 1u
#define LSMT_ROOT UINT64_MAX

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
	uint64_t rest[62];
};

/* Whether our namespace has the mount @mount, and it is one of @device. */
static bool is_mount_of(uint64_t mount, uint64_t device)
{
	struct mount_request request = {
		.size = sizeof(request), .mount = mount, .param = STATMOUNT_SB_BASIC};
	struct mount_answer answer;
	return syscall(SYS_STATMOUNT, &request, &answer, sizeof(answer), 0) == 0 &&
	       answer.mask & STATMOUNT_SB_BASIC &&
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

uint64_t superblock_number(struct superblocks *superblocks, uint64_t device, uint64_t mount)
{
	struct superblock *place = NULL;
	for (size_t i = 0; i < SUPERBLOCKS_KNOWN; i++) {
		struct superblock *known = &superblocks->known[i];
		if (known->device != device) {
			continue;
		}
		if (known->anchor ? is_mount_of(known->anchor, device) : known->mount == mount) {
			return known->anchor ? known->anchor : mount;
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
	*place = (struct superblock){
		.device = device, .anchor = find_anchor(device), .mount = mount};
	return place->anchor ? place->anchor : mount;
}
