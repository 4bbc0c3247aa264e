/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that do not read what they are sent, connections that are left with fds unread in them,
 * sessions of processes that have ended: the others are served and get their fds meanwhile, who
 * reads late gets everything, and what nobody will ever read is given back.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/wire.h"
#include "tests/harness/connection.h"
#include "tests/harness/world.h"

static const struct harness_options quiet = {
	.config = WORLD_CONFIG "max_sessions = 10000;",
	.has_witness = true,
};

/* ---- answers --------------------------------------------------------------------------------- */

/* Sends that packet until the socket takes no more for a while. Returns how many went. */
static unsigned flood(int connection, const uint8_t *bytes, size_t n_bytes)
{
	unsigned n_sent = 0;
	unsigned n_full = 0;
	while (n_full < 50 && n_sent < 200000) {
		int result = wire_send(connection, bytes, n_bytes, NULL, 0, MSG_DONTWAIT);
		if (result == 0) {
			n_sent++;
			n_full = 0;
			continue;
		}
		ck_assert_int_eq(result, -EAGAIN);
		n_full++;
		harness_sleep_ms(5);
	}
	return n_sent;
}

static size_t pack(Glake__Wire__Request *request, uint8_t *bytes)
{
	request->id = 1;
	return glake__wire__request__pack(request, bytes);
}

/* The Goodbye of who never reads does not get through, but the end of its process does. */
static void flood_and_leave(struct harness *h, void *user)
{
	uint8_t bytes[64];
	size_t n_bytes = pack(REQUEST(PING, Ping, ping), bytes);
	int connection = connection_hello(&harness);
	unsigned n_sent = flood(connection, bytes, n_bytes);
	ck_assert_uint_lt(n_sent, 200000);
	world_serves_in_time();
	connection_close(&connection);
}

static void flood_of_pings(void)
{
	harness_in_child(&harness, flood_and_leave, NULL);
}

START_TEST(client_that_never_reads_is_not_served_for_ever)
{
	world_begin_as(&quiet);
	world_repeat_without_growth(flood_of_pings);
}
END_TEST

/* Answers that were stuck go on when they are read, in order, and none is lost. */
START_TEST(client_that_reads_late_gets_everything)
{
	uint8_t bytes[64];
	size_t n_bytes = pack(REQUEST(STATS_GET, StatsGet, stats_get), bytes);
	world_begin_as(&quiet);
	int connection = connection_hello(&harness);
	unsigned n_sent = flood(connection, bytes, n_bytes);
	ck_assert_uint_gt(n_sent, 10);
	world_serves_in_time();
	for (unsigned i = 0; i < n_sent; i++) {
		Glake__Wire__Answer *answer = connection_receive(connection, NULL);
		ck_assert_ptr_nonnull(answer);
		ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_STATS_GET);
		connection_free(answer);
	}
	connection_ping(connection);
}
END_TEST

/* Chunks in answers that nobody reads are charged like any; more fds than chunks are not held. */
START_TEST(unread_chunks_are_charged_and_come_back)
{
	uint8_t bytes[64];
	size_t n_bytes = pack(REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc,
	                              .chunk_bytes = CHUNK_BYTES, .n_chunks = 100),
	                      bytes);
	struct harness_options large = quiet;
	large.devices = "1x16GiB";
	world_begin_as(&large);
	int connection = connection_hello(&harness);
	for (unsigned i = 0; i < 40; i++) {
		ck_assert_int_eq(wire_send(connection, bytes, n_bytes, NULL, 0, 0), 0);
	}
	/* More than an answer's; a busy glaked rests on its way there, too. */
	size_t n_fds;
	do {
		harness_settle_n_fds(&harness);
		n_fds = world_n_more_fds();
	} while (n_fds <= 100);
	ck_assert_uint_le(n_fds, 1 + 40 * 100 + 16);
	world_serves_in_time();
}
END_TEST

/* ---- fds in flight --------------------------------------------------------------------------- */

/* A session that has one chunk. */
static int hello_with_chunk(const struct harness *h, uint64_t *id_out)
{
	int connection = connection_hello(h);
	ck_assert_int_eq(connection_alloc(connection, 0, CHUNK_BYTES, 1, id_out, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	return connection;
}

/* For the same chunk so many times. */
static void ask_for_fds(int connection, uint64_t id, size_t n_fds)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	for (size_t i = 0; i < n_fds; i++) {
		ids[i] = id;
	}
	connection_send(connection,
	                REQUEST(CHUNK_OPEN, ChunkOpen, chunk_open, .ids = ids, .n_ids = n_fds),
	                NULL, 0);
}

static void send_garbage(int connection)
{
	ck_assert_int_eq(connection_send_bytes(connection, "\xff\xff", 2, NULL, 0), 0);
}

/* glaked has closed it; what it had sent before stays unread. */
static void await_hangup(int connection)
{
	struct pollfd hangup = {.fd = connection};
	ck_assert_int_eq(poll(&hangup, 1, HARNESS_TIMEOUT_MS), 1);
}

/* A connection that glaked has closed, with an fd unread in it. */
static int leave_unread(const struct harness *h)
{
	uint64_t id;
	int connection = hello_with_chunk(h, &id);
	ask_for_fds(connection, id, 1);
	send_garbage(connection);
	await_hangup(connection);
	return connection;
}

/* Reads @n_answers with a full packet's fds each, in whatever order they come. */
static void read_late(const int *connections, size_t n_connections, unsigned n_answers)
{
	struct pollfd ready[64];
	struct fdlist fds;
	ck_assert_uint_le(n_connections, n_elements(ready));
	fdlist_init(&fds);
	for (size_t i = 0; i < n_connections; i++) {
		ready[i] = (struct pollfd){.fd = connections[i], .events = POLLIN};
	}
	while (n_answers > 0) {
		int n_ready = poll(ready, n_connections, HARNESS_TIMEOUT_MS);
		ck_assert_msg(n_ready > 0, "%u answers do not come", n_answers);
		for (size_t i = 0; i < n_connections; i++) {
			if (!ready[i].revents) {
				continue;
			}
			Glake__Wire__Answer *answer = connection_receive(connections[i], &fds);
			ck_assert(answer && answer->status == GLAKE__WIRE__STATUS__OK);
			ck_assert_uint_eq(fds.n_fds, GLAKE_MAX_PACKET_FDS);
			connection_free(answer);
			fdlist_deinit(&fds);
			n_answers--;
		}
	}
}

/* However many connections a user has: what waits for him in glaked is a few packets. */
START_TEST(unread_fds_do_not_fill_glakeds_table)
{
	enum { N = 24, N_ASKS = 3 };
	int connections[N];
	uint64_t ids[N];
	world_begin_as(&quiet);
	for (unsigned i = 0; i < N; i++) {
		connections[i] = hello_with_chunk(&harness, &ids[i]);
	}
	size_t n_fds = harness_settle_n_fds(&harness);
	for (unsigned i = 0; i < N; i++) {
		for (unsigned k = 0; k < N_ASKS; k++) {
			ask_for_fds(connections[i], ids[i], GLAKE_MAX_PACKET_FDS);
		}
	}
	ck_assert_uint_le(harness_settle_n_fds(&harness), n_fds + 3 * GLAKE_MAX_PACKET_FDS);
	read_late(connections, N, N * N_ASKS);
	harness_wait_n_fds(&harness, n_fds);
	for (unsigned i = 0; i < N; i++) {
		connection_ping(connections[i]);
		connection_close(&connections[i]);
	}
}
END_TEST

/*
 * While a user does not read the fds that he asked for nothing is read from him: not even the Hello
 * of another of his programs, which therefore is not silent.
 */
START_TEST(greeting_that_glaked_does_not_read_is_no_silence)
{
	enum { N = 8, N_ASKS = 1, LONGER_THAN_PATIENCE_MS = 12500 / 5 };
	int connections[N];
	uint64_t ids[N];
	struct pollfd late = {.events = POLLIN};
	struct harness_options options = quiet;
	if (!harness_is_root()) {
		return;
	}
	options.max_fds = 1200;
	options.uid = 4321;
	options.speed = 5;
	world_begin_as(&options);
	for (unsigned i = 0; i < N; i++) {
		connections[i] = hello_with_chunk(&harness, &ids[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		for (unsigned k = 0; k < N_ASKS; k++) {
			ask_for_fds(connections[i], ids[i], GLAKE_MAX_PACKET_FDS);
		}
	}
	harness_settle_n_fds(&harness);
	late.fd = connection_open(&harness);
	uint64_t id = connection_send(late.fd,
	                              REQUEST(HELLO, Hello, hello, .version = GLAKE_WIRE_VERSION,
	                                      .program = (char *)"late"),
	                              NULL, 0);
	ck_assert_int_eq(poll(&late, 1, LONGER_THAN_PATIENCE_MS), 0);
	read_late(connections, N, N * N_ASKS);
	ck_assert_int_eq(connection_status_of(late.fd, id), GLAKE__WIRE__STATUS__OK);
	connection_close(&late.fd);
}
END_TEST

static void gets_fds(struct harness *h, void *user)
{
	enum { N_CHUNKS = 8 };
	uint64_t ids[N_CHUNKS];
	struct fdlist fds;
	int connection = connection_hello(h);
	fdlist_init(&fds);
	ck_assert_int_eq(connection_alloc(connection, 0, CHUNK_BYTES, N_CHUNKS, ids, &fds),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(fds.n_fds, N_CHUNKS);
	fdlist_deinit(&fds);
	connection_close(&connection);
}

enum unread { OPEN, CLOSED, N_UNREADS };

/*
 * The kernel lets one user have only so many fds under way in sockets (RLIMIT_NOFILE of the sender,
 * unless it is root). Who reads nothing does not use that up for everybody, with connections that are
 * closed neither.
 */
START_TEST_WITH(many_unread_connections_do_not_starve_others, .n = N_UNREADS)
{
	enum { N = 8 };
	int connections[N];
	uint64_t ids[N];
	struct harness_options options = quiet;
	if (!harness_is_root()) {
		return;
	}
	options.max_fds = 1200;
	options.uid = 4321;
	world_begin_as(&options);
	for (unsigned i = 0; i < N; i++) {
		connections[i] = hello_with_chunk(&harness, &ids[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		ask_for_fds(connections[i], ids[i], GLAKE_MAX_PACKET_FDS);
		if (_i == CLOSED) {
			send_garbage(connections[i]);
			/* Before the others ask: then glaked may read nothing more of this user. */
			if (i == 0) {
				await_hangup(connections[0]);
			}
		}
	}
	harness_as(&harness, 1234, 1234, gets_fds, NULL);
	/* Before they are closed: what glaked had left goes when it ends. */
	world_stop();
}
END_TEST

static void leaves_one_and_comes_again(struct harness *h, void *user)
{
	int connection = leave_unread(h);
	int another = connection_open(h);
	ck_assert_int_eq(connection_greet(another, GLAKE_WIRE_VERSION),
	                 GLAKE__WIRE__STATUS__OVER_QUOTA);
	connection_close(&another);
	connection_close(&connection);
	int later = connection_await_hello(h);
	connection_close(&later);
}

START_TEST(connection_left_unread_counts_as_a_session)
{
	if (!harness_is_root()) {
		return;
	}
	world_begin(.has_witness = true, .config = "pool = (); max_sessions = 3;");
	harness_as(&harness, 1234, 1234, leaves_one_and_comes_again, NULL);
}
END_TEST

/* His Goodbye says so, though his other programs have more in glaked's table than a user may have. */
static void leave_beside_hanging_programs(struct harness *h, void *user)
{
	enum { N = 2, N_ASKS = 2 };
	int hanging[N];
	uint64_t ids[N];
	int leaving = hello_with_chunk(h, &ids[0]);
	for (unsigned i = 0; i < N; i++) {
		hanging[i] = hello_with_chunk(h, &ids[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		for (unsigned k = 0; k < N_ASKS; k++) {
			ask_for_fds(hanging[i], ids[i], GLAKE_MAX_PACKET_FDS);
		}
	}
	harness_sleep_ms(100);
	connection_close(&leaving);
	connection_await_private(witness, N * CHUNK_BYTES);
	for (unsigned i = 0; i < N; i++) {
		connection_close(&hanging[i]);
	}
	connection_await_private(witness, 0);
}

START_TEST(who_leaves_is_heard_in_any_case)
{
	if (!harness_is_root()) {
		return;
	}
	struct harness_options few = quiet;
	few.max_fds = 1024;
	world_begin_as(&few);
	harness_as(&harness, 1234, 1234, leave_beside_hanging_programs, NULL);
}
END_TEST

/* The peer's end lies unread in glaked's own: nobody will ever read from it. */
START_TEST(connection_that_holds_its_other_end_is_closed)
{
	uint64_t id;
	world_begin_as(&quiet);
	int connection = hello_with_chunk(&harness, &id);
	harness_signal(&harness, SIGSTOP);
	ask_for_fds(connection, id, 1);
	send_garbage(connection);
	ck_assert_int_eq(connection_send_bytes(connection, "x", 1, &connection, 1), 0);
	connection_close(&connection);
	harness_signal(&harness, SIGCONT);
}
END_TEST

/* The peer's end lies behind answers that nobody reads, and then the process ends. */
static void end_holding_both_ends(void)
{
	uint64_t id;
	int connection = hello_with_chunk(&harness, &id);
	for (unsigned i = 0; i < 3; i++) {
		ask_for_fds(connection, id, GLAKE_MAX_PACKET_FDS);
	}
	ck_assert_int_eq(connection_send_bytes(connection, "x", 1, &connection, 1), 0);
	_exit(0);
}

START_TEST(session_of_a_process_that_has_ended_ends)
{
	world_begin_as(&quiet);
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		end_holding_both_ends();
	}
	world_join(pid);
	connection_await_private(witness, 0);
}
END_TEST
