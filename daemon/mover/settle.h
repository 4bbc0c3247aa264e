/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds out whether every later change of a file will show in its attributes. Only then may a model be
 * found again by the attributes of its files.
 *
 * A change shows as a new ctime if three conditions hold:
 *
 *   the kernel sets ctime   before each change: so on the local file systems of the table in settle.c.
 *                           On NFS and FUSE a server decides. On tmpfs, and on an overlay of tmpfs, a
 *                           store through a mapping sets no time.
 *   no change has begun     A dirty page of a writable mapping, or a running write(), had its ctime set
 *                           when it began. The kernel refuses a read lease while a process has the
 *                           file open for writing, or mapped shared and writable. So a granted lease
 *                           proves that there was none. It is given back at once: a later writer sets
 *                           a new ctime before it changes anything.
 *   the clock has advanced  The clock of ctime stands still for some milliseconds. Until it has passed
 *                           the file's ctime, another change may set the same one.
 *
 * Files that cannot change need none of this: those with fs-verity, and those of a read-only file
 * system.
 *
 * Threads: any. Blocks as long as the file system does, and after a fresh change for a tick of the
 * clock.
 */
#ifndef GLAKE_MOVER_SETTLE_H
#define GLAKE_MOVER_SETTLE_H

#include <sys/stat.h>

/*
 * Examine @fd, an open regular file. *stat_io has its attributes, and gets them anew: everything
 * that is read later, while the file has these attributes, is its content. Returns NULL, or a few
 * words (static): the reason why a later change might not show.
 */
const char *settle(int fd, struct stat *stat_io);

#endif
