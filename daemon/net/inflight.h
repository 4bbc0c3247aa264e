/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of in-flight fds: those of each user that glaked cannot get back by itself.
 *
 *   received   files that a user sent, until they are closed. A file system may never answer a close.
 *   queued     copies of fds in answers that the user's socket does not take, since he does not read.
 *   unread     fds in answers that lie in the user's socket. They take no place in glaked's table of open
 *              files, but the kernel counts them for glaked, and beyond a limit sends no more to anybody.
 *   left       connections that glaked has closed and that have fds unread. A closed socket cannot be asked
 *              any more if they are still there; so it stays open, shut down, until the peer has read them
 *              or is gone.
 *
 * Received, queued and left ones take places in the table, which RLIMIT_NOFILE bounds. The kernel bounds
 * unread ones by the same number. One formula bounds both for each user:
 *
 *   share = (total - what all others have) / 3, and at least the fds of one packet
 *
 * A user who is alone gets a third, the second one a third of the rest, and so on: each newcomer gets
 * something, and about ten hostile users have to work together to use up a total. For unread fds the total
 * is RLIMIT_NOFILE. For the table it is a third of that, since chunks and sessions need most of it. Beyond
 * his share a user waits:
 *
 *   - glaked sends him no fds while he has his share of unread ones (inflight_may_send()).
 *   - While he has more than a packet's fds in the table, glaked reads only from those of his connections
 *     that it could answer at once; beyond his share of the table, from none (inflight_is_full()). A
 *     connection that he has ended is read up to the first packet with fds.
 *   - Answers to earlier requests may still be queued, 16 packets at most; then the session is closed.
 *
 * So one hanging program of a user does not stop his others, and no user stops another.
 *
 * No event tells that a peer reads. A socket that has no bytes left to be received (SIOCOUTQ) has been read
 * empty; the ledger looks when a share is in the way, and in inflight_tick(). Until then its count may be
 * too high, never too low.
 *
 * Deferred close: threads close a user's fds, one thread his files and one his connections. A close() may
 * last: FUSE answers a flush when it likes, a socket that lingers waits for its peer, and the last close of
 * a Unix socket closes all that lies in it. So a file that does not close delays its own user's files only.
 *
 * Owner: a conn embeds a struct inflight; the users belong to the process. Lifetime: inflight_init() to
 * inflight_close(). The process may end while something does not close.
 * Threads: called on the loop thread.
 */
#ifndef GLAKE_DAEMON_INFLIGHT_H
#define GLAKE_DAEMON_INFLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/list.h"

/* glaked itself, as the user of fds: closed by a thread as well, and without bounds. */
#define INFLIGHT_OURS ((uid_t)-1)

struct user;

/* Of one connection. */
struct inflight {
	struct list link;  /* link: user.unread, while there are some */
	struct user *user; /* NULL: our own connection, or nobody's yet */
	int fd;            /* borrowed from the conn */
	size_t n_unread;   /* sent since it was last seen to be read empty */
};

/* Of a connection of our own, which is bounded by itself alone, until inflight_enter(). */
void inflight_init(struct inflight *inflight, int fd);

/* The connection is @uid's; before anything is sent. Returns 0 or -ENOMEM: still nobody's. */
int inflight_enter(struct inflight *inflight, uid_t uid);

/* Takes the fd, which is shut down, over. Nothing is queued any more. */
void inflight_close(struct inflight *inflight);

/* May so many (GLAKE_MAX_PACKET_FDS at most) be sent now? If so, and it is done: inflight_sent(). */
bool inflight_may_send(struct inflight *inflight, size_t n_fds, uint64_t now_ms);
void inflight_sent(struct inflight *inflight, size_t n_fds);

/* Duplicates that wait. Returns 0, or -ENOBUFS: the user has too many already. */
int inflight_queue(struct inflight *inflight, size_t n_fds);
void inflight_unqueue(struct inflight *inflight, size_t n_fds);

/* So much is under way that nothing should be read from it now. */
bool inflight_is_full(struct inflight *inflight, uint64_t now_ms);

/* Connections of its user: this one, the others, and those left. */
size_t inflight_n_of_user(const struct inflight *inflight);

/* Connections left, of all users. */
size_t inflight_n_left(void);

/* Once a second: left connections are looked at, users without anything are forgotten. */
void inflight_tick(void);

/*
 * Close, later, files that came from @uid, or a connection of his that never was entered; entries of -1
 * are fine. The array stays the caller's.
 */
void inflight_close_files(uid_t uid, const int *fds, size_t n_fds);
void inflight_close_socket(uid_t uid, int fd);

#endif
