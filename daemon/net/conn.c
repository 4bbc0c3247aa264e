/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/cleanup.h"
#include "proto/wire.h"

/*
 * No event tells that a peer reads, so that it may be sent fds again, or that enough fds of its
 * user were closed. So the connection tries again. The longer it waits, the less often it tries.
 */
#define MIN_RETRY_MS 5
#define MAX_RETRY_MS 500

struct packet {
	struct list link; /* link: conn.queue */
	size_t n_bytes;
	size_t n_fds;
	int *fds;  /* owned, behind the bytes */
	uid_t uid; /* of their user */
	uint8_t bytes[];
};

static void packet_free(struct packet *packet)
{
	inflight_close_files(packet->uid, packet->fds, packet->n_fds);
	free(packet);
}

static struct packet *packet_new(uid_t uid, const void *bytes, size_t n_bytes, const int *fds,
                                 size_t n_fds)
{
	size_t fds_at = (n_bytes + sizeof(int) - 1) / sizeof(int) * sizeof(int);
	struct packet *packet = malloc(sizeof(*packet) + fds_at + n_fds * sizeof(int));
	if (!packet) {
		errno = ENOMEM;
		return NULL;
	}
	packet->uid = uid;
	packet->n_bytes = n_bytes;
	packet->n_fds = 0;
	packet->fds = (int *)(void *)(packet->bytes + fds_at);
	memcpy(packet->bytes, bytes, n_bytes);
	for (size_t i = 0; i < n_fds; i++) {
		int copy = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
		if (copy < 0) {
			int saved = errno;
			packet_free(packet);
			errno = saved;
			return NULL;
		}
		packet->fds[packet->n_fds++] = copy;
	}
	return packet;
}

static void on_poll(uv_poll_t *poll, int status, int events);

static void update_poll(struct conn *conn)
{
	if (conn->is_closing || conn->is_parked) {
		return;
	}
	int events = 0;
	if (conn->n_queued > 0) {
		events = uv_is_active((uv_handle_t *)&conn->retry) ? 0 : UV_WRITABLE;
	} else if (!conn->is_full) {
		events = UV_READABLE;
	}
	/* A peer that is gone must be noticed even while nothing is read from it. */
	events |= UV_DISCONNECT;
	if (events != conn->events) {
		conn->events = events;
		uv_poll_start(&conn->poll, events, on_poll);
	}
}

static void end(struct conn *conn, enum conn_end how, int error)
{
	if (!conn->is_closing) {
		conn->on_end(conn, how, error);
	}
}

static void on_retry(uv_timer_t *timer);

static void start_retry(struct conn *conn)
{
	uv_timer_start(&conn->retry, on_retry, conn->retry_ms, 0);
	conn->retry_ms = conn->retry_ms * 2 < MAX_RETRY_MS ? conn->retry_ms * 2 : MAX_RETRY_MS;
}

/* A user whose files do not close, or who does not read answers, is not read from. */
static void check_full(struct conn *conn)
{
	conn->is_full = inflight_is_full(&conn->inflight, uv_now(conn->loop));
	if (!conn->is_full) {
		conn->retry_ms = MIN_RETRY_MS;
	} else if (!uv_is_active((uv_handle_t *)&conn->retry)) {
		start_retry(conn);
	}
}

static void on_retry(uv_timer_t *timer)
{
	struct conn *conn = container_of(timer, struct conn, retry);
	conn->is_full = false;
	if (conn->n_queued == 0) {
		check_full(conn);
	}
	update_poll(conn);
}

/* Returns 0: sent; 1: try later; < 0: the socket cannot be used any more. */
static int try_send(struct conn *conn, const void *bytes, size_t n_bytes, const int *fds,
                    size_t n_fds)
{
	int r = -ETOOMANYREFS;
	if (n_fds == 0 || inflight_may_send(&conn->inflight, n_fds, uv_now(conn->loop))) {
		r = wire_send(conn->fd, bytes, n_bytes, fds, n_fds, MSG_DONTWAIT);
	}
	if (r == 0) {
		inflight_sent(&conn->inflight, n_fds);
		conn->retry_ms = MIN_RETRY_MS;
		return 0;
	}
	if (r == -EAGAIN || r == -ENOBUFS) {
		return 1;
	}
	if (r == -ETOOMANYREFS) {
		start_retry(conn);
		return 1;
	}
	return r == WIRE_E_EOF ? -EPIPE : r;
}

static void drop_first(struct conn *conn)
{
	struct packet *packet = list_first(&conn->queue, struct packet, link);
	list_remove(&packet->link);
	conn->n_queued--;
	inflight_unqueue(&conn->inflight, packet->n_fds);
	packet_free(packet);
}

static void drop_all(struct conn *conn)
{
	while (conn->n_queued > 0) {
		drop_first(conn);
	}
}

static void flush(struct conn *conn)
{
	while (conn->n_queued > 0) {
		struct packet *packet = list_first(&conn->queue, struct packet, link);
		int r = try_send(conn, packet->bytes, packet->n_bytes, packet->fds, packet->n_fds);
		if (r > 0) {
			return;
		}
		if (r == -EPIPE) {
			/* Nobody reads that, but the peer's last packets may still be there. */
			drop_all(conn);
			conn->ready |= UV_READABLE;
			return;
		}
		if (r < 0) {
			end(conn, CONN_END_ERROR, r);
			return;
		}
		drop_first(conn);
	}
}

/*
 * A full connection is not read, because fds may come. But if the peer has left, its packets
 * without fds are read: the last one may be its Goodbye.
 */
static bool may_receive(struct conn *conn)
{
	check_full(conn);
	return !conn->is_full || (conn->ready & UV_DISCONNECT && !wire_has_fds(conn->fd));
}

/* Returns whether there may be more to read. */
static bool receive(struct conn *conn)
{
	/* One buffer for all connections: the loop has one thread, and a packet is handled at once. */
	static uint8_t buffer[GLAKE_MAX_PACKET_BYTES + 1];
	static struct fdlist fds;
	size_t n_bytes;

	if (!may_receive(conn)) {
		if (conn->ready & UV_DISCONNECT) {
			end(conn, CONN_END_EOF, 0);
		}
		return false;
	}
	fdlist_init(&fds);
	int r = wire_recv(conn->fd, buffer, sizeof(buffer), &n_bytes, &fds, MSG_DONTWAIT);
	if (r == -EAGAIN) {
		return false;
	}
	if (r != 0) {
		inflight_close_files(conn->uid, fds.fds, fds.n_fds);
		enum conn_end how = r == WIRE_E_EOF         ? CONN_END_EOF
		                    : r == WIRE_E_MALFORMED ? CONN_END_MALFORMED
		                                            : CONN_END_ERROR;
		end(conn, how, r);
		return false;
	}
	conn->on_packet(conn, buffer, n_bytes, &fds);
	inflight_close_files(conn->uid, fds.fds, fds.n_fds);
	return !conn->is_closing && conn->n_queued == 0;
}

/* Receive one packet, or send all that waits. */
static bool serve(struct turn *turn)
{
	struct conn *conn = container_of(turn, struct conn, turn);
	if (conn->ready & UV_WRITABLE) {
		flush(conn);
	}
	if (conn->is_closing) {
		return false;
	}
	bool goes_on = false;
	if (conn->ready & UV_DISCONNECT) {
		drop_all(conn);
		conn->ready |= UV_READABLE;
	}
	if (conn->ready & UV_READABLE && conn->n_queued == 0) {
		goes_on = receive(conn);
	}
	conn->ready = goes_on ? conn->ready : 0;
	if (!goes_on) {
		conn->is_parked = false;
		update_poll(conn);
	}
	return goes_on;
}

/* Poll would report a connection again and again while it waits in line. */
static void park(struct conn *conn)
{
	conn->is_parked = true;
	conn->events = 0;
	uv_poll_stop(&conn->poll);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
	struct conn *conn = container_of(poll, struct conn, poll);
	if (status < 0) {
		/* libuv reports POLLERR so. It has stopped polling; reading tells the error. */
		conn->events = 0;
		events = UV_READABLE | UV_DISCONNECT;
	}
	if (turn_is_waiting(&conn->turn)) {
		park(conn);
	}
	conn->ready |= events;
	turn_wait(&conn->turn);
}

int conn_open(struct conn *conn, uv_loop_t *loop, int fd, conn_packet_fn on_packet,
              conn_end_fn on_end)
{
	*conn = (struct conn){.loop = loop,
	                      .fd = fd,
	                      .uid = INFLIGHT_OURS,
	                      .retry_ms = MIN_RETRY_MS,
	                      .on_packet = on_packet,
	                      .on_end = on_end};
	list_init(&conn->queue);
	inflight_init(&conn->inflight, fd);
	/* The timer comes second: it cannot fail, and closing it would need a callback. */
	int r = uv_poll_init(loop, &conn->poll, fd);
	if (r < 0) {
		return r;
	}
	uv_timer_init(loop, &conn->retry);
	turn_init(&conn->turn, serve);
	update_poll(conn);
	return 0;
}

int conn_send_files(struct conn *conn, uid_t uid, const void *bytes, size_t n_bytes, const int *fds,
                    size_t n_fds)
{
	if (conn->is_closing) {
		return 0;
	}
	int sent = conn->n_queued == 0 ? try_send(conn, bytes, n_bytes, fds, n_fds) : 1;
	if (sent <= 0) {
		/* The poll notices a dead peer, but no other error. */
		return sent == -EPIPE ? 0 : sent;
	}
	int r = inflight_queue(&conn->inflight, n_fds);
	if (r < 0) {
		return r;
	}
	struct packet *packet = packet_new(uid, bytes, n_bytes, fds, n_fds);
	if (!packet) {
		inflight_unqueue(&conn->inflight, n_fds);
		return -errno;
	}
	list_insert(&conn->queue, &packet->link);
	conn->n_queued++;
	update_poll(conn);
	return 0;
}

int conn_send(struct conn *conn, const void *bytes, size_t n_bytes, const int *fds, size_t n_fds)
{
	return conn_send_files(conn, INFLIGHT_OURS, bytes, n_bytes, fds, n_fds);
}

size_t conn_n_queued(const struct conn *conn)
{
	return conn->n_queued;
}

bool conn_is_held_up(const struct conn *conn)
{
	return conn->n_queued > 0 || conn->is_full;
}

bool conn_has_unread(const struct conn *conn)
{
	struct pollfd readable = {.fd = conn->fd, .events = POLLIN};
	return poll(&readable, 1, 0) == 1 && readable.revents & POLLIN;
}

int conn_set_uid(struct conn *conn, uid_t uid)
{
	int r = inflight_enter(&conn->inflight, uid);
	conn->uid = r < 0 ? INFLIGHT_OURS : uid;
	return r < 0 ? r : turn_enter(&conn->turn, uid);
}

static void closed(struct conn *conn)
{
	if (--conn->n_closing == 0 && conn->on_closed) {
		conn->on_closed(conn);
	}
}

static void on_poll_closed(uv_handle_t *handle)
{
	closed(container_of(handle, struct conn, poll));
}

static void on_retry_closed(uv_handle_t *handle)
{
	closed(container_of(handle, struct conn, retry));
}

void conn_close(struct conn *conn, conn_closed_fn on_closed)
{
	if (conn->is_closing) {
		return;
	}
	conn->is_closing = true;
	conn->on_closed = on_closed;
	conn->n_closing = 2;
	turn_leave(&conn->turn);
	uv_close((uv_handle_t *)&conn->poll, on_poll_closed);
	uv_close((uv_handle_t *)&conn->retry, on_retry_closed);
	/*
	 * Nothing more may get into the socket while it waits to be closed, and the peer learns of
	 * it at once.
	 */
	shutdown(conn->fd, SHUT_RDWR);
	drop_all(conn);
	/* The fd is closed after uv_close(), which takes it out of epoll. */
	inflight_close(&conn->inflight);
	conn->fd = -1;
}
