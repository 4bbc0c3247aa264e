/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lost connection is not the end of who had it: while the process lives it keeps what it has, pays
 * for it, and goes on with another connection. Its end, or its Goodbye, gives back all.
 */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/harness.h"
#include "tests/harness/world.h"

static const struct harness_options quiet = {
	.config = "pool = (); mover_idle_ms = 0; drain_ms = 60000;", .has_witness = true};
static const struct harness_options quota = {
	.config = "pool = (); mover_idle_ms = 0;"
		  "tenants = ( { name = \"default\"; device_bytes = \"8MiB\"; } );",
	.has_witness = true,
};

static void refused_as(struct connection_identity *identity, Glake__Wire__Status status)
{
	int connection = connection_open(&harness);
	identity->version = GLAKE_WIRE_VERSION;
	ck_assert_int_eq(connection_greet_as(connection, identity), status);
	connection_expect_closed(connection);
	connection_drop(&connection);
}

static uint64_t alloc(int connection, uint32_t n_chunks, uint64_t *ids_out)
{
	return connection_alloc(connection, 0, CHUNK_BYTES, n_chunks, ids_out, NULL);
}

/* Whether it is listed as detached; the test fails if it is not listed. */
static bool is_detached(uint64_t session)
{
	Glake__Wire__Answer *answer = connection_call(
		witness, REQUEST(SESSION_LIST, SessionList, session_list), NULL, 0, NULL);
	int detached = -1;
	for (size_t i = 0; i < answer->session_list->n_sessions; i++) {
		if (answer->session_list->sessions[i]->session == session) {
			detached = answer->session_list->sessions[i]->detached;
		}
	}
	connection_free(answer);
	ck_assert_int_ge(detached, 0);
	return detached;
}

static void await_lost(uint64_t n)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (connection_counter(witness, "sessions_lost") != n) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(2);
	}
}

/* ---- lost, and found again ------------------------------------------------------------------- */

START_TEST(lost_connection_keeps_what_the_process_has)
{
	struct connection_identity identity = {0};
	uint64_t ids[3];
	world_begin_as(&quota);
	int connection = connection_hello_as(&harness, &identity);
	uint64_t session = identity.session;
	ck_assert_uint_eq(alloc(connection, 2, ids), GLAKE__WIRE__STATUS__OK);
	ck_assert(!is_detached(session));
	connection_drop(&connection);
	await_lost(1);
	ck_assert(is_detached(session));
	ck_assert_uint_eq(connection_private_bytes(witness), 2 * CHUNK_BYTES);

	/* The memory is still charged: of 8 MiB, 4 are left. */
	ck_assert_uint_eq(alloc(witness, 3, ids + 2), GLAKE__WIRE__STATUS__OVER_QUOTA);

	connection = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(identity.session, session);
	ck_assert(!is_detached(session));
	ck_assert_uint_eq(alloc(connection, 1, &ids[2]), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(connection_private_bytes(witness), 3 * CHUNK_BYTES);
	ck_assert_int_eq(connection_free_chunks(connection, &ids[0], 1), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(connection_private_bytes(witness), 2 * CHUNK_BYTES);
}
END_TEST

START_TEST(half_closed_connection_is_a_lost_one)
{
	struct connection_identity identity = {0};
	uint64_t id;
	world_begin_as(&quiet);
	int connection = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(alloc(connection, 1, &id), GLAKE__WIRE__STATUS__OK);
	shutdown(connection, SHUT_RDWR);
	await_lost(1);
	int second = connection_hello_as(&harness, &identity);
	ck_assert_int_eq(connection_free_chunks(second, &id, 1), GLAKE__WIRE__STATUS__OK);
	connection_drop(&connection);
}
END_TEST

START_TEST(second_connection_takes_over)
{
	struct connection_identity identity = {0};
	uint64_t id;
	world_begin_as(&quiet);
	int first = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(alloc(first, 1, &id), GLAKE__WIRE__STATUS__OK);
	int second = connection_hello_as(&harness, &identity);
	connection_expect_closed(first);
	connection_drop(&first);
	connection_ping(second);
	ck_assert_int_eq(connection_free_chunks(second, &id, 1), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(connection_counter(witness, "sessions_lost"), 0);
	connection_close(&second);
	refused_as(&identity, GLAKE__WIRE__STATUS__NOT_FOUND);
}
END_TEST

/* Memory that came with an answer that nobody read goes back, and nothing else. */
START_TEST(unanswered_requests_give_back)
{
	struct connection_identity identity = {0};
	uint64_t id;
	world_begin_as(&quiet);
	int connection = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(alloc(connection, 1, &id), GLAKE__WIRE__STATUS__OK);
	uint64_t unanswered = connection_send(connection,
	                                      REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc,
	                                              .chunk_bytes = CHUNK_BYTES, .n_chunks = 5),
	                                      NULL, 0);
	connection_await_private(witness, 6 * CHUNK_BYTES);
	connection_drop(&connection);
	await_lost(1);
	ck_assert_uint_eq(connection_private_bytes(witness), 6 * CHUNK_BYTES);
	identity.unanswered = &unanswered;
	identity.n_unanswered = 1;
	connection = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(connection_private_bytes(witness), CHUNK_BYTES);
	ck_assert_int_eq(connection_free_chunks(connection, &id, 1), GLAKE__WIRE__STATUS__OK);
}
END_TEST

static Glake__Wire__Request *publish_request(uint64_t chunk)
{
	static Glake__Wire__Request request;
	static Glake__Wire__BlockPublish body;
	glake__wire__request__init(&request);
	glake__wire__block_publish__init(&body);
	body.chunk = chunk;
	body.content_bytes = CHUNK_BYTES;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_BLOCK_PUBLISH;
	request.block_publish = &body;
	return &request;
}

static void publish_again(int connection, uint64_t chunk, bool was_known)
{
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	Glake__Wire__Answer *answer = connection_call(connection, publish_request(chunk), NULL, 0,
	                                              &fds);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(answer->block->block, chunk);
	ck_assert_int_eq(answer->block->was_known, was_known);
	ck_assert_uint_eq(fds.n_fds, 1);
	connection_free(answer);
}

/*
 * The connection is lost before the block is there, or afterwards: what was a chunk is held, and the answer
 * can be had again. Of equal contents the second is the first one's block.
 */
START_TEST_WITH(lost_publication_is_not_lost, .n = 2)
{
	struct connection_identity identity = {0};
	uint64_t chunks[2];
	harness_start(&harness, &quiet);
	witness = connection_hello(&harness);
	int connection = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(alloc(connection, 2, chunks), GLAKE__WIRE__STATUS__OK);
	for (unsigned i = 0; i < 2; i++) {
		uint64_t unanswered = connection_send(connection, publish_request(chunks[i]), NULL,
		                                      0);
		if (_i == 1) {
			connection_await_private(witness, (1 - i) * CHUNK_BYTES);
		}
		connection_drop(&connection);
		await_lost(i + 1);
		identity.unanswered = &unanswered;
		identity.n_unanswered = 1;
		connection = connection_hello_as(&harness, &identity);
		publish_again(connection, chunks[i], i > 0);
		/* As often as one likes. */
		publish_again(connection, chunks[i], i > 0);
		connection_await_private(witness, (1 - i) * CHUNK_BYTES);
		ck_assert_uint_eq(connection_counter(witness, "blocks_sealed"), 1);
		/* A published chunk is no chunk any more. */
		ck_assert_int_eq(connection_free_chunks(connection, &chunks[i], 1),
		                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	}
	connection_close(&connection);
	connection_close(&witness);
	harness_stop(&harness);
}
END_TEST

START_TEST(thousand_losses_leave_nothing)
{
	struct connection_identity identity = {0};
	uint64_t id;
	world_begin_as(&quiet);
	int connection = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(alloc(connection, 1, &id), GLAKE__WIRE__STATUS__OK);
	for (unsigned i = 0; i < 1000; i++) {
		connection_drop(&connection);
		connection = connection_hello_as(&harness, &identity);
	}
	ck_assert_uint_eq(connection_private_bytes(witness), CHUNK_BYTES);
	ck_assert_uint_eq(connection_counter(witness, "sessions_resumed"), 1000);
	ck_assert_int_eq(connection_free_chunks(connection, &id, 1), GLAKE__WIRE__STATUS__OK);
}
END_TEST

/* ---- who may not ----------------------------------------------------------------------------- */

static void resume_in_child(struct harness *h, void *user)
{
	refused_as(user, GLAKE__WIRE__STATUS__NOT_FOUND);
}

START_TEST(only_the_process_and_its_key_resume)
{
	struct connection_identity identity = {0};
	uint64_t id;
	world_begin_as(&quiet);
	int connection = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(alloc(connection, 1, &id), GLAKE__WIRE__STATUS__OK);
	for (int is_lost = 0; is_lost < 2; is_lost++) {
		struct connection_identity wrong = identity;
		wrong.key[15] ^= 1;
		refused_as(&wrong, GLAKE__WIRE__STATUS__NOT_FOUND);
		memset(wrong.key, 0, sizeof(wrong.key));
		refused_as(&wrong, GLAKE__WIRE__STATUS__NOT_FOUND);
		harness_in_child(&harness, resume_in_child, &identity);
		if (is_lost == 0) {
			connection_ping(connection);
			connection_drop(&connection);
			await_lost(1);
		}
	}
	connection = connection_hello_as(&harness, &identity);
	ck_assert_int_eq(connection_free_chunks(connection, &id, 1), GLAKE__WIRE__STATUS__OK);
}
END_TEST

static void resume_as_another(struct harness *h, void *user)
{
	struct connection_identity *identity = user;
	int connection = connection_open(h);
	ck_assert_int_eq(setresuid(1000, 1000, 0), 0);
	int other = connection_open(h);
	ck_assert_int_eq(connection_greet_as(connection, identity), GLAKE__WIRE__STATUS__OK);
	connection_drop(&connection);
	/* As another user, the process does not resume. */
	ck_assert_int_eq(connection_greet_as(other, identity), GLAKE__WIRE__STATUS__NOT_FOUND);
	connection_drop(&other);
}

START_TEST(another_uid_does_not_resume)
{
	struct connection_identity identity = {.version = GLAKE_WIRE_VERSION};
	if (!harness_is_root()) {
		return;
	}
	world_begin_as(&quiet);
	ck_assert_int_eq(chmod(harness.folder, 0755), 0);
	ck_assert_int_eq(chmod(harness.socket_path, 0777), 0);
	harness_as(&harness, 0, 0, resume_as_another, &identity);
}
END_TEST

static Glake__Wire__Status ping_of(int connection)
{
	return connection_status(connection, REQUEST(PING, Ping, ping), NULL, 0);
}

/* Requests that a session calls unanswered are looked for among its own, however many it names. */
START_TEST(reports_of_a_resumed_session_take_nothing_of_another)
{
	static uint64_t claimed[GLAKE_MAX_UNANSWERED + 1];
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES] = {8, 1, 18, 0xf0, 0xff, 3, 34, 0xec, 0xff, 3};
	struct connection_identity identity = {0};
	struct connection_identity other = {0};
	uint64_t ids[2];
	world_begin_as(&quiet);
	int connection = connection_hello_as(&harness, &identity);
	int untouched = connection_hello_as(&harness, &other);
	ck_assert_uint_eq(alloc(connection, 1, &ids[0]), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(alloc(untouched, 1, &ids[1]), GLAKE__WIRE__STATUS__OK);
	/* The ids of both, and the numbers of all requests: connection.c begins behind 1000. */
	for (size_t i = 0; i < n_elements(claimed); i++) {
		claimed[i] = i < 2 ? ids[i] : 999 + i;
	}
	identity.unanswered = claimed;
	identity.n_unanswered = n_elements(claimed);
	refused_as(&identity, GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(ping_of(connection), GLAKE__WIRE__STATUS__OK);
	/* Tens of thousands. */
	int crowd = connection_open(&harness);
	connection_send_bytes(crowd, bytes, sizeof(bytes), NULL, 0);
	connection_expect_closed(crowd);

	identity.n_unanswered = GLAKE_MAX_UNANSWERED;
	connection_drop(&connection);
	connection = connection_hello_as(&harness, &identity);
	ck_assert_int_eq(connection_free_chunks(untouched, &ids[1], 1), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_free_chunks(connection, &ids[0], 1),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
}
END_TEST

/* ---- the end --------------------------------------------------------------------------------- */

/* Loses its connection, says so, and waits to be killed. */
static pid_t start_loser(bool drops)
{
	int tell[2];
	char byte;
	ck_assert_int_eq(pipe(tell), 0);
	pid_t pid = fork();
	if (pid == 0) {
		uint64_t ids[4];
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int connection = connection_hello(&harness);
		if (alloc(connection, 4, ids) == GLAKE__WIRE__STATUS__OK) {
			if (drops) {
				connection_drop(&connection);
			}
			ck_assert_int_eq(write(tell[1], "x", 1), 1);
		}
		for (;;) {
			pause();
		}
	}
	ck_assert_int_eq(read(tell[0], &byte, 1), 1);
	close(tell[0]);
	close(tell[1]);
	return pid;
}

static void kill_and_wait(pid_t pid)
{
	int status;
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
}

START_TEST(end_of_the_process_gives_back_all)
{
	world_begin_as(&quiet);
	for (int drops = 0; drops < 2; drops++) {
		uint64_t n_lost = connection_counter(witness, "sessions_lost");
		pid_t pid = start_loser(drops);
		await_lost(n_lost + (drops ? 1 : 0));
		ck_assert_uint_eq(connection_private_bytes(witness), 4 * CHUNK_BYTES);
		kill_and_wait(pid);
		connection_await_private(witness, 0);
	}
}
END_TEST

/* exec() leaves the process and takes the program: the next one's Hello tells. */
START_TEST(another_program_in_the_process_ends_it)
{
	struct connection_identity before = {.image = 1};
	struct connection_identity same = {.image = 1};
	struct connection_identity after = {.image = 2};
	uint64_t id;
	world_begin_as(&quiet);
	int connection = connection_hello_as(&harness, &before);
	ck_assert_uint_eq(alloc(connection, 1, &id), GLAKE__WIRE__STATUS__OK);
	connection_drop(&connection);
	await_lost(1);
	int second = connection_hello_as(&harness, &same);
	ck_assert_uint_eq(connection_private_bytes(witness), CHUNK_BYTES);
	connection_hello_as(&harness, &after);
	connection_await_private(witness, 0);
	connection_ping(second);
}
END_TEST

START_TEST(drain_ends_who_is_detached)
{
	struct connection_identity identity = {0};
	uint64_t id;
	world_start(&quiet);
	witness = connection_hello(&harness);
	int connection = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(alloc(connection, 1, &id), GLAKE__WIRE__STATUS__OK);
	connection_drop(&connection);
	await_lost(1);
	/* In less than the drain_ms that it would wait for a session. */
	world_stop();
}
END_TEST

/* ---- limits ---------------------------------------------------------------------------------- */

static const struct harness_options few = {
	.config = "pool = (); mover_idle_ms = 0;"
		  "tenants = ( { name = \"default\"; max_sessions = 4; } );",
	.has_witness = true,
};

START_TEST(detached_ones_count_as_sessions)
{
	struct connection_identity identities[2] = {{0}, {0}};
	world_begin_as(&few);
	for (unsigned i = 0; i < 2; i++) {
		int connection = connection_hello_as(&harness, &identities[i]);
		connection_drop(&connection);
	}
	await_lost(2);
	struct connection_identity third = {0};
	refused_as(&third, GLAKE__WIRE__STATUS__OVER_QUOTA);
	/* Whoever has a place comes in again. */
	for (unsigned i = 0; i < 2; i++) {
		int connection = connection_hello_as(&harness, &identities[i]);
		connection_close(&connection);
	}
}
END_TEST

/* ---- storms ---------------------------------------------------------------------------------- */

static void storm(struct harness *h, void *user)
{
	for (unsigned i = 0; i < 300; i++) {
		uint64_t ids[2];
		int connection = connection_try_open(h);
		ck_assert_int_ge(connection, 0);
		struct connection_identity identity = {.version = GLAKE_WIRE_VERSION};
		Glake__Wire__Status status = connection_greet_as(connection, &identity);
		if (status == GLAKE__WIRE__STATUS__OK && i % 3 == 0) {
			alloc(connection, 2, ids);
		}
		connection_drop(&connection);
	}
}

START_TEST(storm_of_ends_ends_with_its_process)
{
	world_begin_as(&quiet);
	harness_in_child(&harness, storm, NULL);
	connection_ping(witness);
}
END_TEST
