/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parent of glake-movers. Only glaked starts it, before it has anything of a client, with a
 * SOCK_SEQPACKET socket as fd 3 (proto/keeper.h). It ends with glaked.
 *
 * A new process has a copy of its parent's table of open files, and closes those on its way to the
 * program. In glaked's table are files of clients, and a file system that is hostile (FUSE) makes a
 * close() last for ever. So glaked starts nothing. This process has an empty table, one thread and no
 * library but libc: starting a child from here takes a millisecond, whatever glaked has open.
 *
 * It also knows when a child has really ended. A process that is killed keeps its memory and files
 * until the last of its threads has left the kernel. Waiting for it says nothing until then.
 */
#ifndef GLAKE_DAEMON_MOVERS_H
#define GLAKE_DAEMON_MOVERS_H

/* Serve until glaked has closed its end. Returns the exit status of the program. */
int movers_keep(void);

#endif
