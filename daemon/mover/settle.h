/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Will every later change of a file show in its attributes? Only then may a model be found again by
 * the attributes its files had.
 *
 * A change shows as a new ctime, if three things hold:
 *
 *   the kernel sets ctime   before each change, on a clock that goes on: so on the local file systems
 *                           of the table in settle.c. It is a server's to say on NFS and FUSE. On tmpfs
 *                           a store through a mapping sets none, nor does it on an overlay of tmpfs.
 *   no change is under way  a page that is mapped writable and dirty, or a write() that is being
 *                           copied, had its ctime set when it began. A read lease is refused while
 *                           anybody has the file open for writing or mapped shared and writable, so
 *                           to get one proves that nobody had. It is given back at once: who opens
 *                           the file later has to set a new ctime before anything changes.
 *   the clock has gone on   ctime is taken from a clock that stands for some milliseconds. Until it
 *                           has left the ctime behind, another change may set the same one.
 *
 * Files that cannot change need none of it: those with fs-verity, and all of a file system that can
 * only be read.
 *
 * Threads: any. Blocks as long as the file system does, and on a freshly written file for the tick of
 * the clock.
 */
#ifndef GLAKE_MOVER_SETTLE_H
#define GLAKE_MOVER_SETTLE_H

#include <sys/stat.h>

/*
 * Examine @fd, an open regular file. *stat_io holds what fstat() says, and is taken anew: what is read
 * afterwards, while the file has these attributes, is its content. Returns NULL, or why a later
 * change could go unseen: a few words, static.
 */
const char *settle(int fd, struct stat *stat_io);

#endif
