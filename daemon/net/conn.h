/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A SEQPACKET connection on the loop: packets in by callback, packets out with a bounded queue.
 *
 * While packets wait to be sent, nothing is read. So a peer that does not read its answers is not
 * served, and glaked holds no more for it than the answers to its earlier requests. In-flight fds
 * are bounded for all connections of a user (inflight.h), and so is the loop's time (turn.h): a
 * connection that can be read or written waits for its turn.
 *
 * libuv's pipes carry neither SEQPACKET nor foreign fds, so this is a uv_poll_t over proto/wire.
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
 * A packet. @fds is valid during the call; fds that stay in the list are closed afterwards. The
 * callback may call conn_send() and conn_close().
 */
typedef void (*conn_packet_fn)(struct conn *conn, const uint8_t *bytes, size_t n_bytes,
                               struct fdlist *fds);

enum conn_end {
	CONN_END_EOF,       /* the peer has closed its end */
	CONN_END_MALFORMED, /* a packet that is too long, or empty */
	CONN_END_ERROR,     /* the socket failed; the callback has the -errno */
};

/* The connection has ended; the callback calls conn_close(). */
typedef void (*conn_end_fn)(struct conn *conn, enum conn_end end, int error);

/* All handles are closed; the memory may be freed. */
typedef void (*conn_closed_fn)(struct conn *conn);

struct conn {
	uv_poll_t poll;
	uv_timer_t
		retry; /* while the kernel or the ledger refuses fds, or the connection is full */
	uv_loop_t *loop;
	int fd;             /* owned, until inflight takes it over */
	int events;         /* poll waits for them */
	unsigned n_closing; /* handles whose close callback is awaited */
	unsigned retry_ms;  /* the next delay */
	bool is_closing;
	struct turn turn;
	int ready;         /* events of poll that are not handled yet */
	bool is_parked;    /* the connection waits in line, and is not polled until it is served */
	bool is_full;      /* too many of the user's fds are in flight: nothing is read */
	struct list queue; /* of struct packet */
	size_t n_queued;
	struct inflight inflight; /* of this connection's fds */
	uid_t uid;                /* its user; INFLIGHT_OURS: glaked's own, or no user yet */
	conn_packet_fn on_packet;
	conn_end_fn on_end;
	conn_closed_fn on_closed;
};

/* Takes over @fd on success. Returns 0, or -errno: there is nothing to close. */
int conn_open(struct conn *conn, uv_loop_t *loop, int fd, conn_packet_fn on_packet,
              conn_end_fn on_end);

/*
 * Send now, or later if the socket is full. The caller keeps the fds; queued packets have
 * duplicates. If the peer is gone, on_end comes later, never from here. Returns 0, or -errno: not
 * sent (-ENOMEM, -EMFILE; -ENOBUFS: too many of the user's fds wait already).
 */
int conn_send(struct conn *conn, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds);

/* Send like conn_send(), with fds that came from @uid. */
int conn_send_files(struct conn *conn, uid_t uid, const void *bytes, size_t n_bytes, const int *fds,
                    size_t n_fds);

/* The number of packets that wait because the peer does not read. */
size_t conn_n_queued(const struct conn *conn);

/* Whether nothing is read for now. If the peer has sent its own end here, its end would not be noticed. */
bool conn_is_held_up(const struct conn *conn);

/* Packets lie unread in the socket, so the peer is not silent. */
bool conn_has_unread(const struct conn *conn);

/*
 * Set the user, before anything is sent; see inflight.h and turn.h. Until then the connection counts as
 * glaked's own. Returns 0 or -ENOMEM.
 */
int conn_set_uid(struct conn *conn, uid_t uid);

/* Idempotent. Only on_closed is called afterwards, from the loop. */
void conn_close(struct conn *conn, conn_closed_fn on_closed);

#endif
