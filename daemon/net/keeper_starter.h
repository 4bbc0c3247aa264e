/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts glake-keeper, and another one whenever it dies.
 *
 * A thread does it that has a table of open files of its own, from before there are clients: what it
 * starts later inherits nothing of theirs either, and it waits for nobody but the keeper.
 *
 * Owner: the process. Lifetime: until glaked has closed the socket, and the keeper its own.
 */
#ifndef GLAKE_DAEMON_KEEPER_STARTER_H
#define GLAKE_DAEMON_KEEPER_STARTER_H

/*
 * First of all in main(): before other threads, and before anything is opened for a client. Waits until
 * a keeper was started. Returns a SEQPACKET socket, the caller's, on which one packet comes for each
 * keeper: an int, 0 and a socket to the keeper (proto/keeper.h) with it, or the errno for which there is
 * none. Or returns -errno.
 */
int keeper_starter_begin(void);

#endif
