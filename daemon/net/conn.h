/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A SEQPACKET connection on the loop: packets in by callback, packets out with a bounded queue.
 *
 * While packets wait to go out nothing is read, so a peer that does not read its answers stops
 * being served and cannot make glaked hold more than what it had asked for before. Fds on their way
 * are bounded for all connections of a user (inflight.h), and so is the loop's time (turn.h): a
 * connection that can be read or written waits for its turn.
 *
 * libuv's pipes carry neither SEQPACKET nor foreign fds; this is a uv_poll_t over proto/wire.
 *
 * Owner: embedded in a session or in the mover link.
 * Lifetime: conn_open() to the on_closed callback that follows conn_close().
 * Threads: loop thread only.
 */
#ifndef GLAKE_DAEMON_CONN_H
#define GLAKE_DAEMON_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/base/list.h"
#include "daemon/net/inflight.h"
#include "daemon/net/turn.h"
#include "proto/fdlist.h"

struct conn;

/*
 * One packet has come. fds left in the list are closed afterwards. The callback may call
 * conn_send() and conn_close(). @fds is valid during the call.
 */
typedef void (*conn_packet_fn)(struct conn *conn, const uint8_t *bytes, size_t n_bytes,
                               struct fdlist *fds);

enum conn_end {
	CONN_END_EOF,       /* the peer went away */
	CONN_END_MALFORMED, /* a packet that cannot be one */
	CONN_END_ERROR,     /* the socket failed; errno-like value in the callback */
};

/* The connection is of no more use; the callback calls conn_close(). */
typedef void (*conn_end_fn)(struct conn *conn, enum conn_end end, int error);

/* The handle is closed and the memory may go. */
typedef void (*conn_closed_fn)(struct conn *conn);

struct conn {
	uv_poll_t poll;
	uv_timer_t retry; /* while the kernel refuses fds in flight, or we do, or it is full */
	uv_loop_t *loop;
	int fd;             /* owned, until inflight has it */
	int events;         /* what poll waits for now */
	unsigned n_closing; /* handles whose close callback is awaited */
	unsigned retry_ms;  /* how long to wait next time */
	bool is_closing;
	struct turn turn;  /* while there is something to do */
	int ready;         /* what poll has found and is not done yet */
	bool is_parked;    /* left in line, and not polled until it is served */
	bool is_full;      /* too many of the user's fds wait, so nothing is taken from him */
	struct list queue; /* of struct packet */
	size_t n_queued;
	struct inflight inflight; /* fds that come and go here */
	uid_t uid;                /* whose it is; INFLIGHT_OURS: our own, or nobody's yet */
	conn_packet_fn on_packet;
	conn_end_fn on_end;
	conn_closed_fn on_closed;
};

/* Takes @fd over on success. Returns 0 or -errno, after which @conn needs no close. */
int conn_open(struct conn *conn, uv_loop_t *loop, int fd, conn_packet_fn on_packet,
              conn_end_fn on_end);

/*
 * Send now or, when the socket is full, later. The fds stay the caller's; queued packets hold
 * duplicates. That the peer is gone is reported later through on_end, so that the caller need not
 * expect to be closed under its hands. Returns 0, or -errno: not sent (-ENOMEM, -EMFILE; -ENOBUFS:
 * too many of the user's fds wait already).
 */
int conn_send(struct conn *conn, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds);

/* The same as conn_send(), with fds that were received from @uid. */
int conn_send_files(struct conn *conn, uid_t uid, const void *bytes, size_t n_bytes, const int *fds,
                    size_t n_fds);

/* Packets that wait because the peer does not read. */
size_t conn_n_queued(const struct conn *conn);

/* Nothing is read from it for now, so that its end would not be noticed if it has both ends. */
bool conn_is_held_up(const struct conn *conn);

/* Something of the peer's lies unread in the socket: that it is silent cannot be said. */
bool conn_has_unread(const struct conn *conn);

/*
 * Whose connection it is, once that is known and before anything is sent; see inflight.h
 * and turn.h. Until then it counts as our own. Returns 0 or -ENOMEM.
 */
int conn_set_uid(struct conn *conn, uid_t uid);

/* Idempotent. No packet or end callback follows; on_closed does, from the loop. */
void conn_close(struct conn *conn, conn_closed_fn on_closed);

#endif
