/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing what clients have a hand in, away from the loop.
 *
 * close() is not always quick. The file system flushes, and one that is a program (FUSE) answers a
 * flush when it likes, or never. A socket that lingers (SO_LINGER) waits until its data is sent,
 * which its peer decides. And the last close of a Unix socket closes all that lies unread in it,
 * our connections included. Whoever may make such a thing could stop glaked with one fd.
 *
 * So each user's fds are closed in lanes of their own, by a thread that is there as long as the lane
 * has something to close: who hands in what does not close waits for himself. Received sockets are
 * told not to linger; what else waits for a peer is interrupted (see the .c). What is left (FUSE) keeps
 * its lane, and closer_is_full() says not to take more fds from that user.
 *
 * Owner: the process. Lifetime: no end; the process may end while something does not close.
 * Threads: called on the loop thread; the closing is done on threads of its own.
 */
#ifndef GLAKE_DAEMON_CLOSER_H
#define GLAKE_DAEMON_CLOSER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* glaked itself, as the user of fds. */
#define CLOSER_NOBODY ((uid_t)-1)

/* A lane is one user's fds of one kind. */
enum closer_kind {
	CLOSER_RECEIVED,   /* from the user */
	CLOSER_QUEUED,     /* copies of what was to be sent to him */
	CLOSER_CONNECTION, /* his connections, with what is unread in them */
};

/* Before all else; again is fine. */
void closer_init(void);

/* Takes @fds over; entries of -1 are fine. The array itself stays the caller's. */
void closer_close(uid_t uid, enum closer_kind kind, const int *fds, size_t n_fds);

/* So many received fds of @uid still wait to be closed that no more should be taken. */
bool closer_is_full(uid_t uid);

#endif
