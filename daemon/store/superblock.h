/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A number for a mounted file system that is never given to another while the machine runs.
 *
 * A device number is not one: a loop device takes the next image, an unmounted tmpfs leaves its number
 * to the next mount. The kernel's unique mount ids are never given again (Linux 6.8), and a mount
 * keeps its file system. But a file that is seen through the mounts of two containers has two of
 * them. So where our own mount namespace has a mount of that device, its id is the number, for all files
 * of the device, however they were opened: as long as this mount stands, the device number means its
 * file system and no other.
 *
 * Owner: the server. Threads: loop thread. Asks the kernel only for what it has in memory.
 */
#ifndef GLAKE_DAEMON_SUPERBLOCK_H
#define GLAKE_DAEMON_SUPERBLOCK_H

#include <stdint.h>

#define SUPERBLOCKS_KNOWN 64u

/* Looking through all our mounts takes the loop half a microsecond each. */
#define SUPERBLOCKS_MAX_MOUNTS 4096u
#define SUPERBLOCKS_LOOKS_PER_S 32u

/* What was found for a device. */
struct superblock {
	uint64_t device; /* as makedev() */
	uint64_t anchor; /* our mount of it; 0: there was none */
	uint64_t mount;  /* without an anchor: through which a file of it was seen */
};

/* All zero at first. */
struct superblocks {
	struct superblock known[SUPERBLOCKS_KNOWN]; /* a ring */
	unsigned next;
	uint64_t looks_second; /* in which n_looks are counted */
	unsigned n_looks;
};

/*
 * For the file system of @device, of which the caller has a file open that it sees through the unique
 * mount id @mount. Returns an id of ours, or @mount: also when too many were looked for in this
 * second, since clients can make mounts.
 */
uint64_t superblock_number(struct superblocks *superblocks, uint64_t device, uint64_t mount);

#endif
