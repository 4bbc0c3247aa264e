/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/inflight.h"
#include "proto/cleanup.h"
#include "proto/wire.h"
#include "tests/check_glake.h"
#include "tests/harness/fuse_file.h"
#include "tests/harness/harness.h"

#define UID 1234
#define PACKET_FDS ((size_t)GLAKE_MAX_PACKET_FDS)
/* Long enough for everything to be looked at again. */
#define LATER_MS 1000

static uint64_t now_ms;

/* A user who is alone may have @max_fds / 3 unread, and @max_fds / 9 places; a packet's at least. */
static void begin(rlim_t max_fds)
{
	struct rlimit limit;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = max_fds;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Returns the peer's end. */
static int open_pair(struct inflight *inflight, uid_t uid)
{
	int ends[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	inflight_init(inflight, ends[0]);
	if (uid) {
		ck_assert_int_eq(inflight_enter(inflight, uid), 0);
	}
	return ends[1];
}

/* That they are fds is what the ledger is told; the socket has a byte. */
static void send_fds(struct inflight *inflight, size_t n_fds)
{
	ck_assert(inflight_may_send(inflight, n_fds, now_ms));
	ck_assert_int_eq(wire_send(inflight->fd, "x", 1, NULL, 0, 0), 0);
	inflight_sent(inflight, n_fds);
}

static void read_one(int peer)
{
	char byte;
	ck_assert_int_eq(recv(peer, &byte, 1, 0), 1);
}

static bool may_send_later(struct inflight *inflight, size_t n_fds)
{
	now_ms += LATER_MS;
	return inflight_may_send(inflight, n_fds, now_ms);
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

/* Or hangs. */
static void expect_other_end_closed(int end)
{
	char byte;
	ck_assert_int_eq(read(end, &byte, 1), 0);
	close(end);
}

START_TEST(a_connection_has_a_packets_fds_unread)
{
	struct inflight ours;
	begin(512);
	int peer = open_pair(&ours, 0);
	send_fds(&ours, PACKET_FDS - 1);
	send_fds(&ours, 1);
	ck_assert(!inflight_may_send(&ours, 1, now_ms));
	read_one(peer);
	ck_assert(!inflight_may_send(&ours, 1, now_ms));
	read_one(peer);
	ck_assert(inflight_may_send(&ours, PACKET_FDS, now_ms));
	inflight_close(&ours);
	close(peer);
}
END_TEST

START_TEST(a_user_has_a_third_of_what_others_leave)
{
	struct inflight of_one[2], of_other[2];
	int peers[4];
	begin(1200);
	for (size_t i = 0; i < 2; i++) {
		peers[i] = open_pair(&of_one[i], UID);
		peers[2 + i] = open_pair(&of_other[i], UID + 1);
	}
	send_fds(&of_one[0], PACKET_FDS);
	ck_assert(!inflight_may_send(&of_one[1], 401 - PACKET_FDS, now_ms));
	send_fds(&of_one[1], 400 - PACKET_FDS);
	send_fds(&of_other[0], PACKET_FDS);
	ck_assert(!inflight_may_send(&of_other[1], 267 - PACKET_FDS, now_ms));
	send_fds(&of_other[1], 266 - PACKET_FDS);
	/* Looked at again, but not so soon. */
	read_one(peers[0]);
	ck_assert(!inflight_may_send(&of_one[1], 1, now_ms));
	ck_assert(may_send_later(&of_one[1], 1));
	for (size_t i = 0; i < 2; i++) {
		inflight_close(&of_one[i]);
		inflight_close(&of_other[i]);
	}
}
END_TEST

START_TEST(what_waits_in_glaked_is_bounded)
{
	struct inflight hung, other, neighbour;
	unsigned n_packets = 0;
	/* Alone: two packets' fds in the table. */
	begin(2 * PACKET_FDS * 3 * 3);
	int peer = open_pair(&hung, UID);
	open_pair(&other, UID);
	open_pair(&neighbour, UID + 1);
	send_fds(&hung, 1);
	ck_assert_int_eq(inflight_queue(&hung, PACKET_FDS), 0);
	ck_assert(!inflight_is_full(&hung, now_ms));
	/* Whoever could not be answered at once is not read from; his other programs are. */
	ck_assert_int_eq(inflight_queue(&hung, 1), 0);
	ck_assert(inflight_is_full(&hung, now_ms));
	ck_assert(!inflight_is_full(&other, now_ms));
	read_one(peer);
	ck_assert(!inflight_is_full(&hung, now_ms));
	while (inflight_queue(&hung, PACKET_FDS) == 0) {
		n_packets++;
		ck_assert_int_eq(inflight_is_full(&other, now_ms), n_packets > 0);
	}
	ck_assert_uint_eq(n_packets, 14);
	ck_assert_int_eq(inflight_queue(&other, PACKET_FDS), -ENOBUFS);
	ck_assert(!inflight_is_full(&neighbour, now_ms));
	inflight_unqueue(&hung, 15 * PACKET_FDS + 1);
	ck_assert(!inflight_is_full(&hung, now_ms));
}
END_TEST

START_TEST(a_closed_connection_counts_until_it_is_read)
{
	struct inflight closed, open;
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	char byte;
	begin(512);
	int peer = open_pair(&closed, UID);
	open_pair(&open, UID);
	send_fds(&closed, PACKET_FDS);
	/* Even if it is the peer's own end that lies in it: that is closed now, behind what reads like an end. */
	ck_assert_int_eq(send(peer, "", 0, 0), 0);
	int other_end = send_pipe_end(peer);
	shutdown(closed.fd, SHUT_RDWR);
	inflight_close(&closed);
	expect_other_end_closed(other_end);
	inflight_tick();
	ck_assert(!may_send_later(&open, 1));
	ck_assert_uint_eq(inflight_n_of_user(&open), 2);
	ck_assert_uint_eq(inflight_n_left(), 1);
	read_one(peer);
	ck_assert_int_eq(recv(peer, &byte, 1, 0), 0);
	while (inflight_n_left() > 0) {
		ck_assert(harness_now_ms() < end_ms);
		inflight_tick();
		harness_sleep_ms(1);
	}
	ck_assert(may_send_later(&open, PACKET_FDS));
	ck_assert_uint_eq(inflight_n_of_user(&open), 1);
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
	inflight_close_socket(UID, sockets[0]);
	expect_other_end_closed(other_end);
}
END_TEST

/* His connections are closed all the same, and so is what others sent. */
START_TEST(a_file_that_does_not_close_holds_up_its_users_files)
{
	static const struct fuse_file_faults faults = {.is_flush_endless = true};
	struct fuse_file file;
	struct inflight of_user, of_other;
	const char *temporary = getenv("TMPDIR");
	char folder[128], mount[160], content[160];
	int pipes[PACKET_FDS + 1][2];
	begin(2048);
	snprintf(folder, sizeof(folder), "%s/inflight.XXXXXX", temporary ? temporary : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(mount, sizeof(mount), "%s/mount", folder);
	snprintf(content, sizeof(content), "%s/content", folder);
	close(open(content, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	if (!fuse_file_start(&file, mount, content, &faults)) {
		return;
	}
	int fd = open(file.path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	inflight_close_files(UID, &fd, 1);
	fuse_file_await_held(&file);
	for (size_t i = 0; i < n_elements(pipes); i++) {
		ck_assert_int_eq(pipe2(pipes[i], O_CLOEXEC), 0);
	}
	int peer = open_pair(&of_user, UID);
	open_pair(&of_other, UID + 1);
	inflight_close_files(UID + 1, &pipes[PACKET_FDS][1], 1);
	expect_other_end_closed(pipes[PACKET_FDS][0]);
	for (size_t i = 0; i < PACKET_FDS; i++) {
		ck_assert(!inflight_is_full(&of_user, now_ms));
		inflight_close_files(UID, &pipes[i][1], 1);
	}
	ck_assert(inflight_is_full(&of_user, now_ms));
	ck_assert(!inflight_is_full(&of_other, now_ms));
	inflight_close(&of_user);
	expect_other_end_closed(peer);
	fuse_file_stop(&file);
	for (size_t i = 0; i < PACKET_FDS; i++) {
		expect_other_end_closed(pipes[i][0]);
	}
}
END_TEST
