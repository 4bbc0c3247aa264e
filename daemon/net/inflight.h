/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of in-flight fds: fds of each user that glaked cannot get back by itself.
 *
 *   received   files that the user sent, until they are closed. A file system may never answer a close.
 *   queued     copies of fds in answers that the user's socket does not take, because the user does not read.
 *   unread     fds in answers that lie in the user's socket. They take no place in glaked's table of open
 *              files. But the kernel counts them for glaked, and beyond a limit glaked can send no more fds.
 *   left       connections that glaked has closed and that have unread fds. Nobody could tell from a closed
 *              socket whether they are still there. So it stays open, shut down, until the peer has read them
 *              or is gone.
 *
 * Received, queued and left ones take places in the table, which RLIMIT_NOFILE bounds. The kernel bounds
 * unread ones by the same number. One formula bounds both for each user:
 *
 *   share = (total - what all others have) / 3, and at least the fds of one packet
 *
 * The first user may have a third, the second one a third of the rest, and so on. So each new user
 * gets something, and only about ten hostile users together can use up a total. For unread fds the
 * total is RLIMIT_NOFILE. For the table it is a third of that, because chunks and sessions need
 * most of it. Beyond its share a user waits:
 *
 *   - glaked sends no fds to a user that has its share of unread ones (inflight_may_send()).
 *   - While a user has more than a packet's fds in the table, glaked reads only from those of its connections
 *     that it could answer at once; beyond the share of the table, from none (inflight_is_full()). From a
 *     connection that the peer has ended, glaked still reads up to the first packet with fds.
 *   - Answers to earlier requests may still be queued, 16 packets at most; then the session is closed.
 *
 * So a hanging program does not stop its user's other programs, and no user stops another.
 *
 * No event tells that a peer reads. A socket without bytes to be received (SIOCOUTQ) has been read
 * empty. The ledger looks when a share is used up, and in inflight_tick(). Until then its count may
 * be too high, but never too low.
 *
 * Deferred close: threads close fds, one thread a user's files and one its connections. A close()
 * may last: FUSE answers a flush at any time or never, a socket that lingers waits for its peer,
 * and the last close of a Unix socket closes all fds in it. So a file that does not close delays
 * only its own user's files.
 *
 * Owner: a conn embeds a struct inflight. Lifetime: inflight_init() to inflight_close(). The
 * process may end while something does not close. Threads: called on the loop thread.
 */
#ifndef GLAKE_DAEMON_INFLIGHT_H
#define GLAKE_DAEMON_INFLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/list.h"

/* The user of glaked's own fds. A thread closes them as well; they have no bounds. */
#define INFLIGHT_OURS ((uid_t)-1)

struct user;

/* The fds in flight of one connection. */
struct inflight {
	struct list link;  /* link: user.unread, while there are some */
	struct user *user; /* NULL: glaked's own connection, or one without a user yet */
	int fd;            /* borrowed from the conn */
	size_t n_unread;   /* sent since the socket was last seen read empty */
};

/* Begin with a connection of glaked's own, with no bound but its own, until inflight_enter(). */
void inflight_init(struct inflight *inflight, int fd);

/* The connection belongs to @uid; nothing was sent yet. Returns 0, or -ENOMEM: nothing has changed. */
int inflight_enter(struct inflight *inflight, uid_t uid);

/* Takes over the fd, which is shut down. Nothing may be queued any more. */
void inflight_close(struct inflight *inflight);

/* Whether @n_fds (GLAKE_MAX_PACKET_FDS at most) may be sent now. After sending, call inflight_sent(). */
bool inflight_may_send(struct inflight *inflight, size_t n_fds, uint64_t now_ms);
void inflight_sent(struct inflight *inflight, size_t n_fds);

/* @n_fds duplicates wait to be sent. Returns 0, or -ENOBUFS: the user has too many already. */
int inflight_queue(struct inflight *inflight, size_t n_fds);
void inflight_unqueue(struct inflight *inflight, size_t n_fds);

/* Whether too much is in flight for anything to be read from the connection now. */
bool inflight_is_full(struct inflight *inflight, uint64_t now_ms);

/* The number of connections of its user: this one, the others, and those left. */
size_t inflight_n_of_user(const struct inflight *inflight);

/* The number of connections left, of all users. */
size_t inflight_n_left(void);

/* To be called once a second: look at left connections, forget users that have nothing. */
void inflight_tick(void);

/*
 * Close, on a thread, files that came from @uid, or a connection of @uid that was never entered.
 * Entries of -1 are fine. The caller keeps the array.
 */
void inflight_close_files(uid_t uid, const int *fds, size_t n_fds);
void inflight_close_socket(uid_t uid, int fd);

#endif
