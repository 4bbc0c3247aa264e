/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fds under way to clients: unread in a socket, or queued until they can be sent.
 *
 * Both can run out for everybody. The kernel counts the unread ones for glaked's user and, beyond
 * RLIMIT_NOFILE, refuses to send any more to anybody (unless glaked is privileged); the queued ones
 * take places in glaked's own table. So they are counted, and bounded: unread ones for each
 * connection, both for each user over all of his connections.
 *
 * Nothing tells when a peer reads. A connection is seen to have been read empty, or to have no peer
 * any more, when its socket has no bytes left to be received (SIOCOUTQ); that is looked at when a
 * bound is in the way, and by transit_tick(). Until then the count may be too high, never too low.
 *
 * A socket that is closed can no longer be asked, while the peer may keep his end, with the fds in
 * it. So a connection that is closed with fds unread is left open, shut down, until they are gone;
 * a user with too many of those gets no new one.
 *
 * Owner: a conn embeds a struct transit; what is known of users, and what they left, is the
 * process's. Lifetime: transit_init() to transit_close(); what is left until transit_end().
 * Threads: loop thread only.
 */
#ifndef GLAKE_DAEMON_TRANSIT_H
#define GLAKE_DAEMON_TRANSIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/list.h"

struct transit_user;

/* Of one connection. */
struct transit {
	struct list link;          /* link: transit_user.unread, while there are some */
	struct transit_user *user; /* NULL: our own connection, or nobody's yet */
	uid_t uid;                 /* CLOSER_NOBODY without a user */
	int fd;                    /* borrowed from the conn; owned once it is left */
	size_t n_unread;           /* sent since it was last seen to be read empty */
	bool is_left;              /* closed, and on the heap */
	bool has_packets;          /* left, with what the peer has sent */
};

/* Of a connection of our own, which is bounded by itself alone, until transit_enter(). */
void transit_init(struct transit *transit, int fd);

/* The connection is @uid's; before anything is sent. Returns 0 or -ENOMEM: still nobody's. */
int transit_enter(struct transit *transit, uid_t uid);

/* Takes the fd, which is shut down, over. Nothing is queued any more. */
void transit_close(struct transit *transit);

/* May so many (GLAKE_MAX_PACKET_FDS at most) be sent now? If so, and it is done: transit_sent(). */
bool transit_may_send(struct transit *transit, size_t n_fds, uint64_t now_ms);
void transit_sent(struct transit *transit, size_t n_fds);

/* Duplicates that wait. Returns 0, or -ENOBUFS: the user has too many already. */
int transit_queue(struct transit *transit, size_t n_fds);
void transit_unqueue(struct transit *transit, size_t n_fds);

/* So many wait that no request should be taken whose answer might have to wait as well. */
bool transit_is_full(struct transit *transit, uint64_t now_ms);

/* Whoever it is has left so many connections unread that he should have no more. */
bool transit_has_left_too_many(struct transit *transit, uint64_t now_ms);

/* Connections of its user: this one, the others, and those that he has left. */
size_t transit_n_of_user(const struct transit *transit);

/* Connections that all users together have left. */
size_t transit_n_left(void);

/* Once in a while: close what was left and is read, or nobody's any more. */
void transit_tick(void);

/* Close all that was left; there are no connections of users any more. */
void transit_end(void);

#endif
