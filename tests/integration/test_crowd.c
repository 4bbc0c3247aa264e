/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many clients, clients that come and go, clients that die in the middle, clients that do not read:
 * the others are served meanwhile, and afterwards glaked has as many fds as before and no more
 * memory than a crowd of that size leaves behind the first time.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/wire.h"
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/model_file.h"

#define CHUNK_BYTES (2u * 1024 * 1024)
#define MIB (1024u * 1024u)
#define CROWD 2000u
/* What an allocator may keep or place otherwise from one round to the next. */
#define RSS_SLACK_BYTES (4u * MIB)
/* How long a session may wait for an answer while others misbehave. */
#define PATIENCE_MS 2000u

static const struct harness_options quiet = {
	.config = "pool = (); mover_idle_ms = 0; drain_ms = 200; max_sessions = 10000;",
};

static struct harness harness;
static int witness = -1;
static size_t n_fds_before;

static void start_with(const struct harness_options *options)
{
	struct rlimit limit;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	harness_start(&harness, options);
	witness = connection_hello(&harness);
	n_fds_before = harness_settle_n_fds(&harness);
}

static void stop(void)
{
	connection_ping(witness);
	harness_wait_n_fds(&harness, n_fds_before);
	connection_close(&witness);
	harness_stop(&harness);
}

/* The witness is answered in time. */
static void witness_is_served(void)
{
	uint64_t start_ms = harness_now_ms();
	connection_ping(witness);
	uint64_t took_ms = harness_now_ms() - start_ms;
	ck_assert_msg(took_ms < PATIENCE_MS, "a Ping took %llu ms", (unsigned long long)took_ms);
}

/* Do it twice to fill all caches, then twice more: the memory must not grow with each. */
static void repeated_without_growth(void (*round)(void))
{
	for (unsigned i = 0; i < 2; i++) {
		round();
		harness_wait_n_fds(&harness, n_fds_before);
	}
	uint64_t before = harness_rss_bytes(&harness);
	for (unsigned i = 0; i < 2; i++) {
		round();
		harness_wait_n_fds(&harness, n_fds_before);
	}
	uint64_t after = harness_rss_bytes(&harness);
	ck_assert_msg(TEST_SANITIZED || after <= before + RSS_SLACK_BYTES,
	              "resident %llu KiB, then %llu KiB", (unsigned long long)before / 1024,
	              (unsigned long long)after / 1024);
}

static uint64_t send_alloc(int connection, uint32_t n_chunks)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ChunkAlloc body = GLAKE__WIRE__CHUNK_ALLOC__INIT;
	body.chunk_bytes = CHUNK_BYTES;
	body.n_chunks = n_chunks;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC;
	request.chunk_alloc = &body;
	return connection_send(connection, &request, NULL, 0);
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
	witness_is_served();
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
	start_with(&quiet);
	repeated_without_growth(crowd_comes_and_goes);
	ck_assert_uint_ge(connection_counter(witness, "sessions_total"), 4 * CROWD);
	stop();
}
END_TEST

static Glake__Wire__Status hello_status(int connection)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__Hello hello = GLAKE__WIRE__HELLO__INIT;
	hello.version = GLAKE_WIRE_VERSION;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_HELLO;
	request.hello = &hello;
	return connection_status(connection, &request, NULL, 0);
}

static void hello_until_accepted(struct harness *h)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	for (;;) {
		int again = connection_open(h);
		Glake__Wire__Status status = hello_status(again);
		connection_close(&again);
		if (status == GLAKE__WIRE__STATUS__OK) {
			return;
		}
		ck_assert_uint_lt(harness_now_ms(), end_ms);
	}
}

/* As somebody who is no admin: with one session beside the witness all is full. */
static void session_too_many(struct harness *h, void *user)
{
	int first = connection_hello(h);
	for (unsigned i = 0; i < 3; i++) {
		int second = connection_open(h);
		ck_assert_int_eq(hello_status(second), GLAKE__WIRE__STATUS__OVER_QUOTA);
		connection_expect_closed(second);
		connection_close(&second);
	}
	connection_ping(first);
	connection_close(&first);
	hello_until_accepted(h);
}

START_TEST(session_beyond_the_limit_is_told_so)
{
	if (!harness_is_root()) {
		return;
	}
	start_with(&(struct harness_options){.config = "pool = (); max_sessions = 2;"});
	harness_as(&harness, 1234, 1234, session_too_many, NULL);
	ck_assert_uint_ge(connection_counter(witness, "sessions_refused"), 3);
	stop();
}
END_TEST

START_TEST(session_beyond_the_tenants_limit_is_told_so)
{
	if (!harness_is_root()) {
		return;
	}
	start_with(&(struct harness_options){
		.config = "pool = ();"
			  "tenants = ( { name = \"one\"; uids = [1234]; max_sessions = 1; } );"});
	harness_as(&harness, 1234, 1234, session_too_many, NULL);
	ck_assert_uint_ge(connection_counter(witness, "sessions_refused"), 3);
	stop();
}
END_TEST

/* More connections than glaked has fds: the rest waits in the backlog, and gets its turn. */
START_TEST(no_fds_left_is_survived)
{
	enum { N = 200 };
	int connections[N];
	start_with(&(struct harness_options){.config = "pool = ();", .max_fds = 100});
	for (size_t i = 0; i < N; i++) {
		connections[i] = connection_open(&harness);
	}
	harness_wait_log(&harness, "cannot accept");
	witness_is_served();
	for (size_t i = 0; i < N; i++) {
		connection_close(&connections[i]);
	}
	harness_wait_n_fds(&harness, n_fds_before);
	int connection = connection_hello(&harness);
	connection_close(&connection);
	stop();
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
	witness_is_served();
}

START_TEST(storm_of_connections_leaves_nothing)
{
	start_with(&quiet);
	repeated_without_growth(storm);
	stop();
}
END_TEST

static void work_until_killed(void)
{
	struct fdlist fds;
	uint64_t ids[16];
	fdlist_init(&fds);
	for (;;) {
		int connection = connection_hello(&harness);
		for (unsigned i = 0; i < 4; i++) {
			connection_alloc(connection, i % 2, CHUNK_BYTES, 8, ids, &fds);
			fdlist_deinit(&fds);
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
	witness_is_served();
}

START_TEST(clients_killed_in_the_middle_leave_nothing)
{
	start_with(&quiet);
	repeated_without_growth(killed_in_the_middle);
	stop();
}
END_TEST

/* A request is on its way when the client goes: what it would have granted is given back. */
START_TEST(client_gone_while_the_driver_works)
{
	struct harness_options slow = quiet;
	slow.faults = "cuMemCreate:*:slow=20";
	start_with(&slow);
	for (unsigned i = 0; i < 20; i++) {
		int connection = connection_hello(&harness);
		for (unsigned k = 0; k < 5; k++) {
			send_alloc(connection, 2);
		}
		if (i % 2) {
			shutdown(connection, SHUT_WR);
			connection_expect_closed(connection);
		}
		connection_close(&connection);
	}
	witness_is_served();
	stop();
}
END_TEST

START_TEST(connection_that_does_not_greet_is_closed)
{
	start_with(&quiet);
	int connection = connection_open(&harness);
	uint64_t start_ms = harness_now_ms();
	connection_expect_closed(connection);
	ck_assert_uint_gt(harness_now_ms() - start_ms, 5000);
	connection_close(&connection);
	connection_ping(witness);
	stop();
}
END_TEST

/* ---- too much at once, and not reading ------------------------------------------------------- */

START_TEST(requests_beyond_the_limit_in_flight_are_refused)
{
	enum { N = 40, LIMIT = 4 };
	unsigned n_ok = 0;
	unsigned n_busy = 0;
	uint64_t ids[N];
	start_with(&(struct harness_options){
		.config = "pool = (); max_requests_in_flight = 4; drain_ms = 200;",
		.faults = "cuMemCreate:*:slow=30",
	});
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
	connection_close(&connection);
	stop();
}
END_TEST

/* Sends @request until the socket takes no more for a while. Returns how many went. */
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

static size_t pack(Glake__Wire__Request__BodyCase body, void *message, uint8_t *bytes)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	request.id = 1;
	request.body_case = body;
	request.ping = message;
	return glake__wire__request__pack(&request, bytes);
}

static void flood_of_pings(void)
{
	uint8_t bytes[64];
	Glake__Wire__Ping ping = GLAKE__WIRE__PING__INIT;
	size_t n_bytes = pack(GLAKE__WIRE__REQUEST__BODY_PING, &ping, bytes);
	int connection = connection_hello(&harness);
	unsigned n_sent = flood(connection, bytes, n_bytes);
	ck_assert_uint_lt(n_sent, 200000);
	witness_is_served();
	connection_close(&connection);
}

START_TEST(client_that_never_reads_is_not_served_for_ever)
{
	start_with(&quiet);
	repeated_without_growth(flood_of_pings);
	stop();
}
END_TEST

/* What was stuck goes on when it is read, in order, and nothing is lost. */
START_TEST(client_that_reads_late_gets_everything)
{
	uint8_t bytes[64];
	Glake__Wire__StatsGet stats_get = GLAKE__WIRE__STATS_GET__INIT;
	size_t n_bytes = pack(GLAKE__WIRE__REQUEST__BODY_STATS_GET, &stats_get, bytes);
	start_with(&quiet);
	int connection = connection_hello(&harness);
	unsigned n_sent = flood(connection, bytes, n_bytes);
	ck_assert_uint_gt(n_sent, 10);
	witness_is_served();
	for (unsigned i = 0; i < n_sent; i++) {
		Glake__Wire__Answer *answer = connection_receive(connection, NULL);
		ck_assert_ptr_nonnull(answer);
		ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_STATS_GET);
		connection_free(answer);
	}
	connection_ping(connection);
	connection_close(&connection);
	stop();
}
END_TEST

/* Chunks in answers that nobody reads are charged like any; more fds than chunks are not held. */
START_TEST(unread_chunks_are_charged_and_come_back)
{
	uint8_t bytes[64];
	Glake__Wire__ChunkAlloc alloc = GLAKE__WIRE__CHUNK_ALLOC__INIT;
	alloc.chunk_bytes = CHUNK_BYTES;
	alloc.n_chunks = 100;
	size_t n_bytes = pack(GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC, &alloc, bytes);
	struct harness_options large = quiet;
	large.devices = "1x16GiB";
	start_with(&large);
	int connection = connection_hello(&harness);
	for (unsigned i = 0; i < 40; i++) {
		ck_assert_int_eq(wire_send(connection, bytes, n_bytes, NULL, 0, 0), 0);
	}
	size_t n_fds = harness_settle_n_fds(&harness);
	ck_assert_uint_gt(n_fds, n_fds_before + 100);
	ck_assert_uint_le(n_fds, n_fds_before + 1 + 40 * 100 + 16);
	witness_is_served();
	connection_close(&connection);
	stop();
}
END_TEST

/* ---- fds in flight --------------------------------------------------------------------------- */

/*
 * The kernel lets one user have only so many fds under way in sockets (RLIMIT_NOFILE of the sender,
 * unless it is root). A client that asks for the fds of a model again and again and reads nothing
 * must not use that up for everybody: another one opens the same model and gets its fds.
 */
START_TEST(unread_fds_do_not_starve_others)
{
	enum { N_TENSORS = 120 };
	static struct model_tensor tensors[N_TENSORS];
	static char names[N_TENSORS][16];
	char path[HARNESS_PATH_BYTES + 16];
	uint8_t bytes[64];
	if (!harness_is_root()) {
		return;
	}
	for (unsigned i = 0; i < N_TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "t%u", i);
		tensors[i] = (struct model_tensor){.name = names[i],
		                                   .dtype = "U8",
		                                   .n_dims = 1,
		                                   .shape = {CHUNK_BYTES},
		                                   .seed = i};
	}
	struct harness_options options = quiet;
	options.devices = "1x1GiB";
	options.max_fds = 1200;
	options.uid = 4321;
	start_with(&options);
	snprintf(path, sizeof(path), "%s/m.safetensors", harness.folder);
	model_file_write(path, tensors, N_TENSORS);
	cleanup_fd int fd = model_file_open(path);

	uint64_t models[2];
	int connections[2] = {connection_hello(&harness), witness};
	for (unsigned i = 0; i < 2; i++) {
		Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
		Glake__Wire__ModelOpen open = GLAKE__WIRE__MODEL_OPEN__INIT;
		char *file = (char *)"m.safetensors";
		open.files = &file;
		open.n_files = 1;
		request.body_case = GLAKE__WIRE__REQUEST__BODY_MODEL_OPEN;
		request.model_open = &open;
		Glake__Wire__Answer *answer = connection_call(connections[i], &request, &fd, 1,
		                                              NULL);
		ck_assert_msg(answer->status == GLAKE__WIRE__STATUS__OK, "%s", answer->error);
		ck_assert_uint_eq(answer->model_open->n_blocks, N_TENSORS);
		models[i] = answer->model_open->model;
		connection_free(answer);
	}
	Glake__Wire__ModelBlocks blocks = GLAKE__WIRE__MODEL_BLOCKS__INIT;
	blocks.model = models[0];
	size_t n_bytes = pack(GLAKE__WIRE__REQUEST__BODY_MODEL_BLOCKS, &blocks, bytes);
	flood(connections[0], bytes, n_bytes);

	struct fdlist fds;
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	fdlist_init(&fds);
	blocks.model = models[1];
	request.body_case = GLAKE__WIRE__REQUEST__BODY_MODEL_BLOCKS;
	request.model_blocks = &blocks;
	uint64_t start_ms = harness_now_ms();
	Glake__Wire__Answer *answer = connection_call(witness, &request, NULL, 0, &fds);
	ck_assert_uint_lt(harness_now_ms() - start_ms, PATIENCE_MS);
	ck_assert_uint_eq(fds.n_fds, N_TENSORS);
	connection_free(answer);
	fdlist_deinit(&fds);
	connection_close(&connections[0]);
	n_fds_before = harness_settle_n_fds(&harness);
	stop();
}
END_TEST

/* A session that has one chunk. */
static int hello_with_chunk(const struct harness *h, uint64_t *id_out)
{
	struct fdlist fds;
	int connection = connection_hello(h);
	fdlist_init(&fds);
	ck_assert_int_eq(connection_alloc(connection, 0, CHUNK_BYTES, 1, id_out, &fds),
	                 GLAKE__WIRE__STATUS__OK);
	fdlist_deinit(&fds);
	return connection;
}

/* For the same chunk so many times. */
static void ask_for_fds(int connection, uint64_t id, size_t n_fds)
{
	uint64_t ids[GLAKE_MAX_PACKET_FDS];
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	Glake__Wire__ChunkOpen body = GLAKE__WIRE__CHUNK_OPEN__INIT;
	for (size_t i = 0; i < n_fds; i++) {
		ids[i] = id;
	}
	body.ids = ids;
	body.n_ids = n_fds;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_CHUNK_OPEN;
	request.chunk_open = &body;
	connection_send(connection, &request, NULL, 0);
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
	static struct pollfd ready[CROWD];
	struct fdlist fds;
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
	start_with(&quiet);
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
	stop();
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

/* Nor does he use up what glaked may have in sockets, with connections that are closed neither. */
START_TEST(many_unread_connections_do_not_starve_others)
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
	start_with(&options);
	for (unsigned i = 0; i < N; i++) {
		connections[i] = hello_with_chunk(&harness, &ids[i]);
	}
	for (unsigned i = 0; i < N; i++) {
		ask_for_fds(connections[i], ids[i], GLAKE_MAX_PACKET_FDS);
		if (_i == CLOSED) {
			send_garbage(connections[i]);
		}
	}
	if (_i == CLOSED) {
		await_hangup(connections[0]);
	}
	harness_as(&harness, 1234, 1234, gets_fds, NULL);
	connection_close(&witness);
	/* Before they are closed: what glaked had left goes when it ends. */
	harness_stop(&harness);
	for (unsigned i = 0; i < N; i++) {
		connection_close(&connections[i]);
	}
}
END_TEST

START_TEST(who_leaves_connections_unread_gets_no_more)
{
	enum { N = 65 };
	int connections[N];
	start_with(&quiet);
	for (unsigned i = 0; i < N; i++) {
		connections[i] = leave_unread(&harness);
	}
	int another = connection_open(&harness);
	ck_assert_int_eq(hello_status(another), GLAKE__WIRE__STATUS__OVER_QUOTA);
	connection_close(&another);
	connection_ping(witness);
	/* One of them is read, the others are closed. */
	connection_expect_closed(connections[0]);
	for (unsigned i = 1; i < N; i++) {
		connection_close(&connections[i]);
	}
	harness_wait_n_fds(&harness, n_fds_before);
	another = connection_hello(&harness);
	connection_close(&another);
	connection_close(&connections[0]);
	stop();
}
END_TEST

static void leaves_one_and_comes_again(struct harness *h, void *user)
{
	int connection = leave_unread(h);
	int another = connection_open(h);
	ck_assert_int_eq(hello_status(another), GLAKE__WIRE__STATUS__OVER_QUOTA);
	connection_close(&another);
	connection_close(&connection);
	hello_until_accepted(h);
}

START_TEST(connection_left_unread_counts_as_a_session)
{
	if (!harness_is_root()) {
		return;
	}
	start_with(&(struct harness_options){.config = "pool = (); max_sessions = 2;"});
	harness_as(&harness, 1234, 1234, leaves_one_and_comes_again, NULL);
	stop();
}
END_TEST

/* The peer's end lies unread in glaked's own: nobody will ever read from it. */
START_TEST(connection_that_holds_its_other_end_is_closed)
{
	uint64_t id;
	start_with(&quiet);
	int connection = hello_with_chunk(&harness, &id);
	harness_signal(&harness, SIGSTOP);
	ask_for_fds(connection, id, 1);
	send_garbage(connection);
	ck_assert_int_eq(connection_send_bytes(connection, "x", 1, &connection, 1), 0);
	connection_close(&connection);
	harness_signal(&harness, SIGCONT);
	stop();
}
END_TEST

/* The same behind answers that nobody reads, and then the process ends. */
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
	start_with(&quiet);
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		end_holding_both_ends();
	}
	int status;
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
	connection_await_private(witness, 0);
	stop();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("crowd");
	suite_add_timed(suite, two_thousand_sessions_are_served, 300);
	suite_add_timed(suite, session_beyond_the_limit_is_told_so, 120);
	suite_add_timed(suite, session_beyond_the_tenants_limit_is_told_so, 120);
	suite_add_timed(suite, no_fds_left_is_survived, 120);
	suite_add_timed(suite, storm_of_connections_leaves_nothing, 300);
	suite_add_timed(suite, clients_killed_in_the_middle_leave_nothing, 300);
	suite_add_timed(suite, client_gone_while_the_driver_works, 120);
	suite_add_timed(suite, connection_that_does_not_greet_is_closed, 120);
	suite_add_timed(suite, requests_beyond_the_limit_in_flight_are_refused, 120);
	suite_add_timed(suite, client_that_never_reads_is_not_served_for_ever, 300);
	suite_add_timed(suite, client_that_reads_late_gets_everything, 120);
	suite_add_timed(suite, unread_chunks_are_charged_and_come_back, 120);
	suite_add_timed(suite, unread_fds_do_not_starve_others, 120);
	suite_add_timed(suite, unread_fds_do_not_fill_glakeds_table, 120);
	TCase *tcase = tcase_create("many_unread_connections_do_not_starve_others");
	tcase_set_timeout(tcase, 120);
	tcase_add_loop_test(tcase, many_unread_connections_do_not_starve_others, 0, N_UNREADS);
	suite_add_tcase(suite, tcase);
	suite_add_timed(suite, who_leaves_connections_unread_gets_no_more, 120);
	suite_add_timed(suite, connection_left_unread_counts_as_a_session, 120);
	suite_add_timed(suite, connection_that_holds_its_other_end_is_closed, 120);
	suite_add_timed(suite, session_of_a_process_that_has_ended_ends, 120);
	return suite_run(suite);
}
