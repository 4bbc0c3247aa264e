/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/transit.h"
#include "proto/cleanup.h"
#include "proto/wire.h"
#include "tests/check_glake.h"

#define UID 1234
#define PACKET_FDS ((size_t)GLAKE_MAX_PACKET_FDS)
/* Long enough for everything to be looked at again. */
#define LATER_MS 1000

static uint64_t now_ms;

/* With @max_fds 512 a user's share of what may be unread is one packet's fds. */
static void begin(rlim_t max_fds)
{
	struct rlimit limit;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = max_fds;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Returns the peer's end. */
static int open_pair(struct transit *transit, uid_t uid)
{
	int ends[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	transit_init(transit, ends[0]);
	if (uid) {
		ck_assert_int_eq(transit_enter(transit, uid), 0);
	}
	return ends[1];
}

/* That they are fds is what transit is told; the socket has a byte. */
static void send_fds(struct transit *transit, size_t n_fds)
{
	ck_assert(transit_may_send(transit, n_fds, now_ms));
	ck_assert_int_eq(wire_send(transit->fd, "x", 1, NULL, 0, 0), 0);
	transit_sent(transit, n_fds);
}

static void read_one(int peer)
{
	char byte;
	ck_assert_int_eq(recv(peer, &byte, 1, 0), 1);
}

/* The end that writes of a pipe lies unread behind @socket. Returns the other one. */
static int send_pipe_end(int socket)
{
	int ends[2];
	ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
	ck_assert_int_eq(wire_send(socket, "x", 1, &ends[1], 1, 0), 0);
	fd_close(&ends[1]);
	return ends[0];
}

static void expect_other_end_closed(int *end)
{
	char byte;
	ck_assert_int_eq(read(*end, &byte, 1), 0);
	fd_close(end);
}

static void close_pair(struct transit *transit, int *peer)
{
	fd_close(peer);
	transit_close(transit);
}

START_TEST(a_connection_has_a_packets_fds_unread)
{
	struct transit transit;
	begin(512);
	int peer = open_pair(&transit, 0);
	send_fds(&transit, PACKET_FDS - 1);
	send_fds(&transit, 1);
	ck_assert(!transit_may_send(&transit, 1, now_ms));
	read_one(peer);
	ck_assert(!transit_may_send(&transit, 1, now_ms));
	read_one(peer);
	ck_assert(transit_may_send(&transit, PACKET_FDS, now_ms));
	close_pair(&transit, &peer);
}
END_TEST

START_TEST(a_users_connections_share)
{
	struct transit one, two, other;
	begin(512);
	int peer_one = open_pair(&one, UID);
	int peer_two = open_pair(&two, UID);
	int peer_other = open_pair(&other, UID + 1);
	send_fds(&one, 200);
	ck_assert(!transit_may_send(&two, PACKET_FDS - 199, now_ms));
	send_fds(&two, PACKET_FDS - 200);
	send_fds(&other, PACKET_FDS);
	/* Not looked at again so soon. */
	read_one(peer_one);
	ck_assert(!transit_may_send(&two, 1, now_ms));
	now_ms += LATER_MS;
	ck_assert(!transit_may_send(&two, 201, now_ms));
	ck_assert(transit_may_send(&two, 200, now_ms));
	close_pair(&two, &peer_two);
	ck_assert(transit_may_send(&one, PACKET_FDS, now_ms));
	close_pair(&one, &peer_one);
	close_pair(&other, &peer_other);
}
END_TEST

START_TEST(a_user_has_a_third_of_what_others_leave)
{
	struct transit transits[4];
	int peers[4];
	begin(1200);
	for (size_t i = 0; i < n_elements(transits); i++) {
		peers[i] = open_pair(&transits[i], i < 2 ? UID : UID + 1);
	}
	send_fds(&transits[0], PACKET_FDS);
	ck_assert(!transit_may_send(&transits[1], 401 - PACKET_FDS, now_ms));
	send_fds(&transits[1], 400 - PACKET_FDS);
	send_fds(&transits[2], PACKET_FDS);
	ck_assert(!transit_may_send(&transits[3], 267 - PACKET_FDS, now_ms));
	send_fds(&transits[3], 266 - PACKET_FDS);
	for (size_t i = 0; i < n_elements(transits); i++) {
		close_pair(&transits[i], &peers[i]);
	}
}
END_TEST

START_TEST(what_is_queued_is_bounded)
{
	struct transit one, two;
	unsigned n_packets = 0;
	begin(512);
	int peer_one = open_pair(&one, UID);
	int peer_two = open_pair(&two, UID);
	send_fds(&one, 1);
	ck_assert_int_eq(transit_queue(&one, PACKET_FDS), 0);
	ck_assert(!transit_is_full(&one, now_ms));
	ck_assert_int_eq(transit_queue(&one, 1), 0);
	ck_assert(transit_is_full(&one, now_ms));
	/* Whoever can be sent what he asks for may ask. */
	read_one(peer_one);
	now_ms += LATER_MS;
	ck_assert(!transit_is_full(&two, now_ms));
	while (transit_queue(&two, PACKET_FDS) == 0) {
		n_packets++;
	}
	ck_assert_uint_eq(n_packets, 14);
	ck_assert(transit_is_full(&two, now_ms));
	ck_assert_int_eq(transit_queue(&one, PACKET_FDS), -ENOBUFS);
	ck_assert_int_eq(transit_queue(&one, PACKET_FDS - 1), 0);
	transit_unqueue(&one, 2 * PACKET_FDS);
	transit_unqueue(&two, n_packets * PACKET_FDS);
	ck_assert(!transit_is_full(&two, now_ms));
	close_pair(&one, &peer_one);
	close_pair(&two, &peer_two);
}
END_TEST

START_TEST(a_closed_connection_counts_until_it_is_read)
{
	struct transit one, two;
	char byte;
	begin(512);
	int peer_one = open_pair(&one, UID);
	int peer_two = open_pair(&two, UID);
	send_fds(&one, PACKET_FDS);
	shutdown(one.fd, SHUT_RDWR);
	transit_close(&one);
	now_ms += LATER_MS;
	ck_assert(!transit_may_send(&two, 1, now_ms));
	transit_tick();
	ck_assert(!transit_may_send(&two, 1, now_ms));
	read_one(peer_one);
	ck_assert_int_eq(recv(peer_one, &byte, 1, 0), 0);
	transit_tick();
	ck_assert(transit_may_send(&two, PACKET_FDS, now_ms));
	close_pair(&two, &peer_two);
	fd_close(&peer_one);
}
END_TEST

/* Behind a packet that reads like an end. */
START_TEST(what_lies_in_a_closed_connection_is_closed)
{
	struct transit transit;
	begin(512);
	int peer = open_pair(&transit, UID);
	send_fds(&transit, 1);
	ck_assert_int_eq(send(peer, "", 0, 0), 0);
	int other_end = send_pipe_end(peer);
	shutdown(transit.fd, SHUT_RDWR);
	transit_close(&transit);
	expect_other_end_closed(&other_end);
	read_one(peer);
	transit_tick();
	fd_close(&peer);
}
END_TEST

/* With no fd left at that moment: later. */
START_TEST(what_lies_in_it_is_closed_when_that_is_possible)
{
	struct transit transit;
	begin(512);
	int peer = open_pair(&transit, UID);
	send_fds(&transit, 1);
	int other_end = send_pipe_end(peer);
	begin(0);
	transit_close(&transit);
	begin(512);
	transit_tick();
	struct pollfd closed = {.fd = other_end};
	ck_assert_int_eq(poll(&closed, 1, LATER_MS), 1);
	expect_other_end_closed(&other_end);
	read_one(peer);
	transit_tick();
	fd_close(&peer);
}
END_TEST

/* The end of a peer who has left something unread is an error first, and what he sent is there still. */
START_TEST(what_lies_behind_a_reset_is_closed)
{
	int sockets[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
	ck_assert_int_eq(wire_send(sockets[0], "x", 1, NULL, 0, 0), 0);
	int other_end = send_pipe_end(sockets[1]);
	fd_close(&sockets[1]);
	wire_discard(sockets[0]);
	expect_other_end_closed(&other_end);
	fd_close(&sockets[0]);
}
END_TEST

START_TEST(too_many_are_left)
{
	struct transit another;
	int peers[65];
	begin(512);
	int peer = open_pair(&another, UID);
	for (size_t i = 0; i < n_elements(peers); i++) {
		struct transit transit;
		ck_assert(!transit_has_left_too_many(&another, now_ms));
		peers[i] = open_pair(&transit, UID);
		send_fds(&transit, 1);
		transit_close(&transit);
	}
	ck_assert(transit_has_left_too_many(&another, now_ms));
	read_one(peers[0]);
	now_ms += LATER_MS;
	ck_assert(!transit_has_left_too_many(&another, now_ms));
	close_pair(&another, &peer);
	/* With the rest. */
	transit_end();
	for (size_t i = 0; i < n_elements(peers); i++) {
		fd_close(&peers[i]);
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("transit");
	suite_add(suite, a_connection_has_a_packets_fds_unread);
	suite_add(suite, a_users_connections_share);
	suite_add(suite, a_user_has_a_third_of_what_others_leave);
	suite_add(suite, what_is_queued_is_bounded);
	suite_add(suite, a_closed_connection_counts_until_it_is_read);
	suite_add(suite, what_lies_in_a_closed_connection_is_closed);
	suite_add(suite, what_lies_in_it_is_closed_when_that_is_possible);
	suite_add(suite, what_lies_behind_a_reset_is_closed);
	suite_add(suite, too_many_are_left);
	return suite_run(suite);
}
