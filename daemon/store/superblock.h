/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A number for a mounted file system. No other file system gets it while the machine runs.
 *
 * A device number is not enough: a loop device can take another image, and an unmounted tmpfs
 * leaves its number to the next one. The kernel never uses a unique mount id again (Linux 6.8), and
 * a mount keeps its file system. But a file in two containers is seen through two mounts. So if
 * glaked's own mount namespace has a mount of the device, that mount's id is the number for all
 * files of the device, however they were opened. While this mount exists, the device number cannot
 * mean another file system.
 *
 * The next glaked may be in another mount namespace, where all mounts have other ids: systemd makes one for each
 * start. For file systems of this kernel an inotify instance is parked under the name "fs<number>", which watches the
 * root of the mount. The watch goes when the file system is unmounted everywhere, and keeps nobody from that. So while
 * it is there, its device number means the same file system, and the next glaked goes on with the number.
 *
 * Owner: the server. Threads: loop thread. The kernel answers from memory.
 */
#ifndef GLAKE_DAEMON_SUPERBLOCK_H
#define GLAKE_DAEMON_SUPERBLOCK_H

#include <stdint.h>

#include "daemon/keep/fdstore.h"

#define SUPERBLOCKS_KNOWN 64u

/* Looking through all mounts takes the loop half a microsecond for each. */
#define SUPERBLOCKS_MAX_MOUNTS 4096u
#define SUPERBLOCKS_LOOKS_PER_S 32u

/* The result for a device. */
struct superblock {
	uint64_t device; /* as makedev() */
	uint64_t anchor; /* glaked's mount of it; 0: there was none */
	uint64_t mount;  /* without an anchor: the mount of the file */
	uint64_t number; /* with an anchor: its id, or that of an earlier glaked's */
};

/* All zero at first. */
struct superblocks {
	struct superblock known[SUPERBLOCKS_KNOWN]; /* a ring */
	unsigned next;
	uint64_t looks_second; /* in which n_looks are counted */
	unsigned n_looks;
	struct fdstore *fdstore; /* NULL: no number outlives glaked */
};

/* Go on with the numbers of an earlier glaked. Before fdstore_settle(). @fdstore outlives @superblocks. */
void superblocks_adopt(struct superblocks *superblocks, struct fdstore *fdstore);

/*
 * The number for the file system of @device. The caller has a file of it open, through the mount
 * with the unique id @mount. Returns the number that glaked's own mount gives it, or @mount if there is none, or if
 * too many were looked up in this second, because clients can make mounts.
 */
uint64_t superblock_number(struct superblocks *superblocks, uint64_t device, uint64_t mount);

#endif
