/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of in-flight fds: what each user has of what glaked cannot get back by itself.
 *
 *   received   files that a user sent, until they are closed. A file system may never answer a close.
 *   queued     copies of fds for a user who does not read.
 *   unread     fds that lie in sockets of a user who does not read. In glaked's table they take no
 *              place, but the kernel counts them for glaked, and refuses to send more to anybody.
 *   left       connections that glaked has closed and that have fds unread. The kernel closes the peer's
 *              end of a socket with what is in it, not ours; so a socket that is closed could not be
 *              asked any more. It stays open, shut down, until it is read or the peer is gone.
 *
 * Received, queued and left ones take places in glaked's table of open files (RLIMIT_NOFILE), unread ones
 * count up to the same limit in the kernel. All of it is bounded by one formula, what a user may have of
 * what others do not have:
 *
 *   share = (total - what all others have) / 3, and at least the fds of one packet
 *
 * A user who is alone gets a third; a second one a third of the rest, and so on: whoever comes gets
 * something, and as long as fewer than some ten users mean it, nothing runs out. The total is
 * RLIMIT_NOFILE for what is unread, and a third of it for what takes places in the table, most of which
 * is for chunks and sessions. What a user wants beyond his share waits, in his own sockets:
 *
 *   - Fds are sent to him while his unread ones are below his share (inflight_may_send()).
 *   - Nothing is read from him while more than a packet's fds of his are in the table, unless this very
 *     connection could be answered at once and he is below his share (inflight_is_full()).
 *   - What was asked before may still be queued, 16 packets at most; then the session is closed.
 *
 * So one of a user's programs that hangs does not stop the others, and nothing stops other users.
 *
 * Nothing tells when a peer reads. A connection is known to be read empty when its socket has no bytes
 * left to be received (SIOCOUTQ); that is looked at when a share is in the way, and by inflight_tick().
 * Until then the count may be too high, never too low.
 *
 * Files and connections of a user are closed on threads, one for his files and one for his connections:
 * a close() may last (FUSE answers a flush when it likes; a socket that lingers waits for its peer; the
 * last close of a Unix socket closes what lies in it). Whoever hands in what does not close waits for
 * himself.
 *
 * Owner: a conn embeds a struct inflight; what is known of users is the process's. Lifetime:
 * inflight_init() to inflight_close(). The process may end while something does not close.
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

struct inflight_user;

/* Of one connection. */
struct inflight {
	struct list link;           /* link: inflight_user.unread, while there are some */
	struct inflight_user *user; /* NULL: our own connection, or nobody's yet */
	int fd;                     /* borrowed from the conn */
	size_t n_unread;            /* sent since it was last seen to be read empty */
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
