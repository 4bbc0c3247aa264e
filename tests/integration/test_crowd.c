/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many clients, clients that come and go, clients that die in the middle: the others are served
 * meanwhile, and afterwards glaked has as many fds as before and no more memory than a crowd of that
 * size leaves behind the first time.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/harness/connection.h"
#include "tests/harness/world.h"

static const struct harness_options quiet = {
	.config = WORLD_CONFIG "max_sessions = 10000;",
	.has_witness = true,
};

#define CROWD 2000u

static uint64_t send_alloc(int connection, uint32_t n_chunks)
{
	return connection_send(connection,
	                       REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc,
	                               .chunk_bytes = CHUNK_BYTES, .n_chunks = n_chunks),
	                       NULL, 0);
}

/* ---- many at a time -------------------------------------------------------------------------- */

static void crowd_comes_and_goes(void)
{
	static int connections[CROWD];
	for (size_t i = 0; i < n_elements(connections); i++) {
		connections[i] = connection_hello(&harness);
	}
	for (size_t i = 0; i < n_elements(connections); i++) {
		connection_ping(connections[i]);
	}
	world_serves_in_time();
	for (size_t i = 0; i < n_elements(connections); i++) {
		connection_close(&connections[i]);
	}
}

START_TEST(two_thousand_sessions_are_served)
{
	struct rlimit limit;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_max < 2 * CROWD) {
		printf("SKIP: the limit on open files is %llu\n",
		       (unsigned long long)limit.rlim_max);
		return;
	}
	world_begin_as(&quiet);
	world_repeat_without_growth(crowd_comes_and_goes);
	ck_assert_uint_ge(connection_counter(witness, "sessions_total"), 4 * CROWD);
}
END_TEST

/* As somebody who is no admin: with one session beside the witness all is full. */
static void session_too_many(struct harness *h, void *user)
{
	int first = connection_hello(h);
	for (unsigned i = 0; i < 3; i++) {
		int second = connection_open(h);
		ck_assert_int_eq(connection_greet(second, GLAKE_WIRE_VERSION),
		                 GLAKE__WIRE__STATUS__OVER_QUOTA);
		connection_expect_closed(second);
		connection_close(&second);
	}
	connection_ping(first);
	connection_close(&first);
	int third = connection_await_hello(h);
	connection_close(&third);
}

START_TEST(session_beyond_the_limit_is_told_so)
{
	if (!harness_is_root()) {
		return;
	}
	world_begin(.has_witness = true, .config = "pool = (); max_sessions = 3;");
	harness_as(&harness, 1234, 1234, session_too_many, NULL);
	ck_assert_uint_ge(connection_counter(witness, "sessions_refused"), 3);
}
END_TEST

START_TEST(session_beyond_the_tenants_limit_is_told_so)
{
	if (!harness_is_root()) {
		return;
	}
	world_begin(.has_witness = true,
	            .config =
	                    "pool = ();"
	                    "tenants = ( { name = \"one\"; uids = [1234]; max_sessions = 1; } );");
	harness_as(&harness, 1234, 1234, session_too_many, NULL);
	ck_assert_uint_ge(connection_counter(witness, "sessions_refused"), 3);
}
END_TEST

/* A connection of somebody else, and whether it was let in. */
static Glake__Wire__Status greet_as(uid_t uid, int *connection_out)
{
	ck_assert_int_eq(seteuid(uid), 0);
	*connection_out = connection_open(&harness);
	ck_assert_int_eq(seteuid(0), 0);
	return connection_greet(*connection_out, GLAKE_WIRE_VERSION);
}

START_TEST(one_user_cannot_have_all_sessions)
{
	enum { SHARE = 25 };
	static int connections[SHARE];
	int connection;
	if (!harness_is_root()) {
		return;
	}
	world_begin(.has_witness = true, .config = "pool = (); max_sessions = 100;");
	for (unsigned i = 0; i < SHARE; i++) {
		ck_assert_int_eq(greet_as(1234, &connections[i]), GLAKE__WIRE__STATUS__OK);
	}
	ck_assert_int_eq(greet_as(1234, &connection), GLAKE__WIRE__STATUS__OVER_QUOTA);
	connection_expect_closed(connection);
	connection_close(&connection);
	/* Everybody else is let in, and he too when he has one less. */
	ck_assert_int_eq(greet_as(1235, &connection), GLAKE__WIRE__STATUS__OK);
	connection_close(&connection);
	for (unsigned i = 0; i < SHARE; i++) {
		connection_ping(connections[i]);
		connection_close(&connections[i]);
	}
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (greet_as(1234, &connection) != GLAKE__WIRE__STATUS__OK) {
		connection_close(&connection);
		ck_assert(harness_now_ms() < end_ms);
	}
}
END_TEST

/* More connections than glaked has fds: the rest waits in the backlog, and gets its turn. */
START_TEST(no_fds_left_is_survived)
{
	enum { N = 200 };
	int connections[N];
	world_begin(.has_witness = true, .config = "pool = ();", .max_fds = 100);
	for (size_t i = 0; i < N; i++) {
		connections[i] = connection_open(&harness);
	}
	harness_wait_log(&harness, "cannot accept");
	world_serves_in_time();
	for (size_t i = 0; i < N; i++) {
		connection_close(&connections[i]);
	}
	world_wait_n_fds(0);
	connection_hello(&harness);
}
END_TEST

/* ---- coming and going ------------------------------------------------------------------------ */

static void storm(void)
{
	for (unsigned i = 0; i < 600; i++) {
		int connection = connection_open(&harness);
		if (i % 3 > 0) {
			connection_close(&connection);
			connection = connection_hello(&harness);
		}
		if (i % 3 > 1) {
			send_alloc(connection, 1 + i % 20);
		}
		connection_close(&connection);
	}
	world_serves_in_time();
}

START_TEST(storm_of_connections_leaves_nothing)
{
	world_begin_as(&quiet);
	world_repeat_without_growth(storm);
}
END_TEST

static void work_until_killed(void)
{
	uint64_t ids[16];
	for (;;) {
		int connection = connection_hello(&harness);
		for (unsigned i = 0; i < 4; i++) {
			connection_alloc(connection, i % 2, CHUNK_BYTES, 8, ids, NULL);
		}
		connection_close(&connection);
	}
}

static void killed_in_the_middle(void)
{
	enum { N = 4 };
	pid_t children[N];
	for (unsigned round = 0; round < 5; round++) {
		for (unsigned i = 0; i < N; i++) {
			children[i] = fork();
			ck_assert_int_ge(children[i], 0);
			if (children[i] == 0) {
				work_until_killed();
			}
		}
		harness_sleep_ms(20 + 17 * round);
		for (unsigned i = 0; i < N; i++) {
			int status;
			kill(children[i], SIGKILL);
			ck_assert_int_eq(waitpid(children[i], &status, 0), children[i]);
			ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
			              "a client ended by itself: 0x%x\n%s", status,
			              harness_log(&harness));
		}
	}
	world_serves_in_time();
}

START_TEST(clients_killed_in_the_middle_leave_nothing)
{
	world_begin_as(&quiet);
	world_repeat_without_growth(killed_in_the_middle);
}
END_TEST

/* A request is on its way when the client goes: what it would have granted is given back. */
START_TEST(client_gone_while_the_driver_works)
{
	struct harness_options slow = quiet;
	slow.faults = "cuMemCreate:*:slow=20";
	world_begin_as(&slow);
	for (unsigned i = 0; i < 20; i++) {
		int connection = connection_hello(&harness);
		for (unsigned k = 0; k < 5; k++) {
			send_alloc(connection, 2);
		}
		if (i % 2) {
			connection_goodbye(connection);
			shutdown(connection, SHUT_WR);
			connection_expect_closed(connection);
		}
		connection_close(&connection);
	}
	world_serves_in_time();
}
END_TEST

START_TEST(connection_that_does_not_greet_is_closed)
{
	struct harness_options fast = quiet;
	fast.speed = 5;
	world_begin_as(&fast);
	int connection = connection_open(&harness);
	uint64_t start_ms = harness_now_ms();
	connection_expect_closed(connection);
	ck_assert_uint_gt((harness_now_ms() - start_ms) * fast.speed, 5000);
	connection_close(&connection);
	connection_ping(witness);
}
END_TEST

/* ---- too much at once ------------------------------------------------------------------------ */

START_TEST(requests_beyond_the_limit_in_flight_are_refused)
{
	enum { N = 40, LIMIT = 4 };
	unsigned n_ok = 0;
	unsigned n_busy = 0;
	uint64_t ids[N];
	world_begin(.has_witness = true,
	            .config = "pool = (); max_requests_in_flight = 4; drain_ms = 200;",
	            .faults = "cuMemCreate:*:slow=30");
	int connection = connection_hello(&harness);
	for (unsigned i = 0; i < N; i++) {
		ids[i] = send_alloc(connection, 1);
	}
	for (unsigned i = 0; i < N; i++) {
		Glake__Wire__Answer *answer = connection_receive(connection, NULL);
		ck_assert_ptr_nonnull(answer);
		ck_assert(answer->id >= ids[0] && answer->id <= ids[N - 1]);
		n_ok += answer->status == GLAKE__WIRE__STATUS__OK;
		n_busy += answer->status == GLAKE__WIRE__STATUS__BUSY;
		connection_free(answer);
	}
	ck_assert_uint_eq(n_ok + n_busy, N);
	ck_assert_uint_ge(n_ok, LIMIT);
	ck_assert_uint_gt(n_busy, 0);
}
END_TEST
