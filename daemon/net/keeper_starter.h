/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts glake-keeper, and another one when it dies.
 *
 * A thread does this. It has its own table of open files, created before there are clients. So its
 * children inherit no file of a client, and it waits only for the keeper.
 *
 * Owner: the process. Lifetime: until glaked and the keeper have closed their sockets.
 */
#ifndef GLAKE_DAEMON_KEEPER_STARTER_H
#define GLAKE_DAEMON_KEEPER_STARTER_H

/*
 * Call it first in main(): before other threads, and before anything is opened for a client. Waits
 * until a keeper was started. Returns a SEQPACKET socket, which the caller owns, or -errno. One
 * packet comes on it for each keeper: an int. It is 0, and a socket to the keeper (proto/keeper.h)
 * comes with it; or it is the errno of the failed start.
 */
int keeper_starter_begin(void);

#endif
