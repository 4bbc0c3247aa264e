/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that outlive their process by a will, as the wire says it: one heir gets them, whole, with the record, or nobody
 * does.
 */
#include "proto/limits.h"
#include "tests/harness/connection.h"
#include "tests/harness/world.h"

#define N_LANES 3u
#define STEP (N_LANES * CHUNK_BYTES)
#define FOREVER 1000

static uint64_t ids[N_LANES];

static void begin_with(const char *config)
{
	world_begin(.config = config, .devices = "1x64MiB");
}

static void begin(void)
{
	begin_with(WORLD_CONFIG);
}

static ProtobufCBinaryData text(const char *string)
{
	return (ProtobufCBinaryData){.len = strlen(string), .data = (uint8_t *)string};
}

static Glake__Wire__Status take(int connection, uint32_t n)
{
	return connection_alloc(connection, 0, CHUNK_BYTES, n, ids, NULL);
}

static Glake__Wire__Status keep_as(int connection, const char *key, ProtobufCBinaryData record,
                                   bool may_be_read)
{
	return connection_status(connection,
	                         REQUEST(CHUNK_KEEP, ChunkKeep, chunk_keep, .ids = ids,
	                                 .n_ids = N_LANES, .key = text(key), .record = record,
	                                 .may_be_read = may_be_read),
	                         NULL, 0);
}

static Glake__Wire__Status keep(int connection, const char *key, const char *record)
{
	return keep_as(connection, key, text(record), false);
}

static Glake__Wire__Status unkeep(int connection)
{
	return connection_status(
		connection,
		REQUEST(CHUNK_UNKEEP, ChunkUnkeep, chunk_unkeep, .ids = ids, .n_ids = N_LANES),
		NULL, 0);
}

static Glake__Wire__Request *ask(uint64_t chunk_bytes, uint32_t n_chunks)
{
	static Glake__Wire__ChunkAdopt body;
	static Glake__Wire__Request request;
	glake__wire__chunk_adopt__init(&body);
	glake__wire__request__init(&request);
	body.key = text("layout");
	body.chunk_bytes = chunk_bytes;
	body.n_chunks = n_chunks;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_CHUNK_ADOPT;
	request.chunk_adopt = &body;
	return &request;
}

/* The heir gets @record with all fds; or with NULL nothing, and hears of so many living. */
static void adopt(int connection, const char *record, uint32_t n_living)
{
	struct fdlist fds;
	fdlist_init(&fds);
	Glake__Wire__Answer *answer = connection_call(connection, ask(CHUNK_BYTES, N_LANES), NULL,
	                                              0, &fds);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	const Glake__Wire__ChunkAdoptAnswer *got = answer->chunk_adopt;
	ck_assert_uint_eq(got->n_ids, record ? N_LANES : 0);
	ck_assert_uint_eq(fds.n_fds, got->n_ids);
	ck_assert_uint_eq(got->n_living, n_living);
	if (record) {
		ck_assert_uint_eq(got->record.len, strlen(record));
		ck_assert_mem_eq(got->record.data, record, got->record.len);
		memcpy(ids, got->ids, sizeof(ids));
	}
	connection_free(answer);
	fdlist_deinit(&fds);
}

static uint64_t kept_bytes(void)
{
	return world_device(0).kept_bytes;
}

static void await_kept(uint64_t bytes)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (kept_bytes() != bytes) {
		ck_assert_msg(harness_now_ms() < end_ms, "%llu bytes are kept, not %llu",
		              (unsigned long long)kept_bytes(), (unsigned long long)bytes);
		harness_sleep_ms(10);
	}
}

/* ---- processes that are killed ------------------------------------------------------------------ */

/* The last act of each process: it reaches the next stage, and waits for its end. */
static void wait_to_be_killed(void)
{
	world_reach(*world_stage + 1);
	world_await(FOREVER);
}

static void make_will(int connection, const char *record)
{
	ck_assert_int_eq(take(connection, N_LANES), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(keep(connection, "layout", record), GLAKE__WIRE__STATUS__OK);
}

static void leave(void *record)
{
	make_will(connection_hello(&harness), record);
	wait_to_be_killed();
}

static void run_and_kill(world_fn fn, const char *record)
{
	int stage = *world_stage;
	pid_t client = world_client(fn, (void *)record);
	world_await(stage + 1);
	world_kill(client);
}

/* One step waits for an heir when this returns. */
static void leave_step(const char *record)
{
	run_and_kill(leave, record);
	await_kept(STEP);
}

static void leave_two(const char *older, const char *younger)
{
	leave_step(older);
	run_and_kill(leave, younger);
	await_kept(2 * STEP);
}

START_TEST(the_step_of_a_killed_process_goes_to_one_heir)
{
	begin();
	leave_step("its blocks");
	ck_assert_uint_eq(world_books().private_bytes, 0);
	int heir = connection_hello(&harness);
	int other = connection_hello(&harness);
	adopt(heir, "its blocks", 0);
	adopt(other, NULL, 1);
	ck_assert_uint_eq(world_books().private_bytes, STEP);
	ck_assert_uint_eq(kept_bytes(), 0);
	ck_assert_uint_eq(world_metric("steps_adopted"), 1);
	/* The step's chunks are as any chunks of the heir. */
	ck_assert_int_eq(unkeep(heir), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_free_chunks(heir, ids, N_LANES), GLAKE__WIRE__STATUS__OK);
	adopt(other, NULL, 0);
	connection_close(&heir);
	connection_close(&other);
}
END_TEST

/* In the end there is what there was before all, but for the eye's sessions. */
static void kill_glaked(void)
{
	struct books before = books_before;
	harness_kill(&harness);
	world_restart();
	before.n_sessions = books_before.n_sessions;
	books_before = before;
}

static void adopt_and_end(void *record)
{
	int connection = connection_hello(&harness);
	adopt(connection, record, 0);
	ck_assert_int_eq(unkeep(connection), GLAKE__WIRE__STATUS__OK);
	wait_to_be_killed();
}

/* With all that waits: a kill loses none, in none of three, and what has gone stays away. */
START_TEST(kept_steps_outlive_glaked)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x64MiB", .has_keeper = true);
	leave_two("older", "younger");
	for (int i = 0; i < 3; i++) {
		kill_glaked();
		await_kept(2 * STEP);
	}
	ck_assert_uint_gt(harness_n_log_lines(&harness, "2 steps that outlived their processes"),
	                  0);
	/* The step that an heir got is its own; the other one waits still. */
	run_and_kill(adopt_and_end, "younger");
	await_kept(STEP);
	kill_glaked();
	await_kept(STEP);
	run_and_kill(adopt_and_end, "older");
	kill_glaked();
	await_kept(0);
}
END_TEST

/* Memory that somebody needed is free, and its record is gone with it. */
START_TEST(what_went_does_not_come_back)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x64MiB", .has_keeper = true);
	leave_step("x");
	kill_glaked();
	await_kept(STEP);
	world_evict_until(&books_before);
	ck_assert_uint_eq(kept_bytes(), 0);
	kill_glaked();
	ck_assert_uint_eq(kept_bytes(), 0);
	world_wait_books(&books_before);
}
END_TEST

START_TEST(the_youngest_comes_first)
{
	begin();
	leave_two("first", "second");
	int heir = connection_hello(&harness);
	adopt(heir, "second", 0);
	adopt(heir, "first", 0);
	adopt(heir, NULL, 2);
	connection_close(&heir);
}
END_TEST

static void leave_another_record(void *user)
{
	int connection = connection_hello(&harness);
	make_will(connection, "old");
	ck_assert_int_eq(keep(connection, "layout", "new"), GLAKE__WIRE__STATUS__OK);
	wait_to_be_killed();
}

START_TEST(a_chunk_is_in_one_will)
{
	begin();
	run_and_kill(leave_another_record, NULL);
	await_kept(STEP);
	int heir = connection_hello(&harness);
	adopt(heir, "new", 0);
	connection_close(&heir);
}
END_TEST

/* ---- nothing is kept ---------------------------------------------------------------------------- */

static void take_back(void *user)
{
	int connection = connection_hello(&harness);
	make_will(connection, "x");
	ck_assert_int_eq(unkeep(connection), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(unkeep(connection), GLAKE__WIRE__STATUS__OK);
	wait_to_be_killed();
}

static void free_one(void *user)
{
	int connection = connection_hello(&harness);
	make_will(connection, "x");
	ck_assert_int_eq(connection_free_chunks(connection, ids, 1), GLAKE__WIRE__STATUS__OK);
	wait_to_be_killed();
}

static void name_one(void *user)
{
	int connection = connection_hello(&harness);
	make_will(connection, "x");
	ck_assert_int_eq(connection_share(connection, ids, 1, NULL), GLAKE__WIRE__STATUS__OK);
	/* And what is named gets none. */
	ck_assert_int_eq(keep(connection, "layout", "x"), GLAKE__WIRE__STATUS__BAD_REQUEST);
	wait_to_be_killed();
}

static void publish_one(void *user)
{
	int connection = connection_hello(&harness);
	make_will(connection, "x");
	ck_assert_int_eq(connection_publish(connection, ids[1], CHUNK_BYTES),
	                 GLAKE__WIRE__STATUS__OK);
	wait_to_be_killed();
}

/* The process lives still, so somebody may write to them. */
static void say_goodbye(void *user)
{
	int connection = connection_hello(&harness);
	make_will(connection, "x");
	connection_close(&connection);
	wait_to_be_killed();
}

static const world_fn voids[] = {take_back, free_one, name_one, publish_one, say_goodbye};

START_TEST_WITH(a_will_that_is_void_keeps_nothing, .n = n_elements(voids))
{
	begin();
	run_and_kill(voids[_i], NULL);
	world_evict_until(&books_before);
	ck_assert_uint_eq(kept_bytes(), 0);
	ck_assert_uint_eq(world_metric("steps_kept"), 0);
}
END_TEST

START_TEST(what_is_refused_changes_nothing)
{
	static uint8_t bytes[GLAKE_MAX_RECORD_BYTES + 1];
	const Glake__Wire__Status bad = GLAKE__WIRE__STATUS__BAD_REQUEST;
	begin();
	int connection = connection_hello(&harness);
	ck_assert_int_eq(keep(connection, "layout", "x"), bad); /* no such chunk */
	ck_assert_int_eq(take(connection, N_LANES), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(keep(connection, "", "x"), bad);
	memset(bytes, 'k', GLAKE_MAX_WILL_KEY_BYTES + 1);
	ck_assert_int_eq(keep(connection, (char *)bytes, "x"), bad);
	memset(bytes, 'r', sizeof(bytes));
	ck_assert_int_eq(
		keep_as(connection, "layout", (ProtobufCBinaryData){sizeof(bytes), bytes}, false),
		bad);
	uint64_t twice[] = {ids[0], ids[0]};
	ck_assert_int_eq(connection_status(connection,
	                                   REQUEST(CHUNK_KEEP, ChunkKeep, chunk_keep, .ids = twice,
	                                           .n_ids = 2, .key = text("layout")),
	                                   NULL, 0),
	                 bad);
	ck_assert_int_eq(connection_status(connection, ask(CHUNK_BYTES, 0), NULL, 0), bad);
	adopt(connection, NULL, 0);
	/* The largest there is. */
	ck_assert_int_eq(keep_as(connection, "layout",
	                         (ProtobufCBinaryData){GLAKE_MAX_RECORD_BYTES, bytes}, false),
	                 GLAKE__WIRE__STATUS__OK);
	adopt(connection, NULL, 1);
	connection_close(&connection);
}
END_TEST

START_TEST(others_are_no_heirs)
{
	begin();
	leave_step("x");
	int heir = connection_hello(&harness);
	struct {
		uint64_t chunk_bytes;
		uint32_t n;
	} wrong[] = {
		{CHUNK_BYTES, N_LANES - 1}, {CHUNK_BYTES, N_LANES + 1}, {2 * CHUNK_BYTES, N_LANES}};
	for (size_t i = 0; i < n_elements(wrong); i++) {
		Glake__Wire__Answer *answer = connection_call(
			heir, ask(wrong[i].chunk_bytes, wrong[i].n), NULL, 0, NULL);
		ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
		ck_assert_uint_eq(answer->chunk_adopt->n_ids, 0);
		connection_free(answer);
	}
	Glake__Wire__Request *request = ask(CHUNK_BYTES, N_LANES);
	request->chunk_adopt->key = text("layouu");
	Glake__Wire__Answer *answer = connection_call(heir, request, NULL, 0, NULL);
	ck_assert_uint_eq(answer->chunk_adopt->n_ids, 0);
	connection_free(answer);
	adopt(heir, "x", 0);
	connection_close(&heir);
}
END_TEST

static void ask_as_another_user(void *user)
{
	ck_assert_int_eq(setgid(1234), 0);
	ck_assert_int_eq(setuid(1234), 0);
	int connection = connection_hello(&harness);
	adopt(connection, NULL, 0);
	connection_close(&connection);
}

/* In one realm with the one that has ended. */
START_TEST(another_user_is_no_heir)
{
	begin_with(WORLD_CONFIG "realms = ({ name = \"all\"; uids = [0, 1234]; });");
	if (!harness_is_root()) {
		return;
	}
	leave_step("x");
	world_join(world_client(ask_as_another_user, NULL));
	int heir = connection_hello(&harness);
	adopt(heir, "x", 0);
	connection_close(&heir);
}
END_TEST

START_TEST(with_kept_ms_0_nothing_is_kept)
{
	begin_with(WORLD_CONFIG "kept_ms = 0;");
	int connection = connection_hello(&harness);
	ck_assert_int_eq(take(connection, N_LANES), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(keep(connection, "layout", "x"), GLAKE__WIRE__STATUS__NO_PERMISSION);
	connection_close(&connection);
}
END_TEST

/* ---- it is read --------------------------------------------------------------------------------- */

static Glake__Wire__Status share_as_read(int connection, const char *record)
{
	return keep_as(connection, "layout", text(record), true);
}

/* Into read_ids, with all fds; or nothing, if @name is of none. */
static uint64_t read_ids[N_LANES];
static bool read_named(int connection, const char *name)
{
	struct fdlist fds;
	fdlist_init(&fds);
	Glake__Wire__Answer *answer = connection_call(
		connection,
		REQUEST(CHUNK_READ, ChunkRead, chunk_read, .key = text("layout"),
	                .chunk_bytes = CHUNK_BYTES, .n_chunks = N_LANES, .name = text(name)),
		NULL, 0, &fds);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	const Glake__Wire__ChunkAdoptAnswer *got = answer->chunk_read;
	const bool is_found = got->n_ids > 0;
	ck_assert_uint_eq(fds.n_fds, got->n_ids);
	if (is_found) {
		ck_assert_uint_eq(got->n_ids, N_LANES);
		memcpy(read_ids, got->ids, sizeof(read_ids));
		ck_assert_uint_ge(got->record.len, strlen(name));
		ck_assert_mem_eq(got->record.data, name, strlen(name));
	}
	connection_free(answer);
	fdlist_deinit(&fds);
	return is_found;
}

static Glake__Wire__Status give_back(int connection, uint64_t *of)
{
	return connection_free_chunks(connection, of, N_LANES);
}

START_TEST(nobody_else_is_to_write_to_what_is_read)
{
	begin();
	int owner = connection_hello(&harness);
	int reader = connection_hello(&harness);
	ck_assert_int_eq(take(owner, N_LANES), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(keep(owner, "layout", "alone"), GLAKE__WIRE__STATUS__OK);
	ck_assert(!read_named(reader, ""));
	ck_assert_int_eq(share_as_read(owner, "first"), GLAKE__WIRE__STATUS__OK);
	ck_assert(!read_named(reader, "firsts"));
	ck_assert(!read_named(owner, ""));
	ck_assert(read_named(reader, "fir"));
	ck_assert(!read_named(reader, ""));
	ck_assert_int_eq(unkeep(owner), GLAKE__WIRE__STATUS__BUSY);
	ck_assert_int_eq(connection_share(owner, ids, 1, NULL), GLAKE__WIRE__STATUS__BUSY);
	ck_assert_int_eq(connection_publish(owner, ids[1], CHUNK_BYTES),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	/* A reader has nothing that it could keep, name or copy. */
	ck_assert_int_eq(connection_share(reader, read_ids, 1, NULL),
	                 GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(
		connection_status(reader,
	                          REQUEST(CHUNK_KEEP, ChunkKeep, chunk_keep, .ids = read_ids,
	                                  .n_ids = N_LANES, .key = text("layout")),
	                          NULL, 0),
		GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(give_back(reader, read_ids), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(give_back(reader, read_ids), GLAKE__WIRE__STATUS__BAD_REQUEST);
	ck_assert_int_eq(unkeep(owner), GLAKE__WIRE__STATUS__OK);
	ck_assert(!read_named(reader, ""));
	connection_close(&reader);
	connection_close(&owner);
}
END_TEST

/* A session of a process that has been promised so much. */
static int promised(uint64_t bytes)
{
	int connection = connection_hello(&harness);
	ck_assert_int_eq(connection_status(connection,
	                                   REQUEST(PROMISE, Promise, promise, .bytes = bytes), NULL,
	                                   0),
	                 GLAKE__WIRE__STATUS__OK);
	return connection;
}

/* By a process of its own: a promise is a process's. */
static void read_as_promised(void *user)
{
	int reader = promised(STEP + CHUNK_BYTES);
	ck_assert_int_eq(take(reader, 2), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(
		connection_status(reader,
	                          REQUEST(CHUNK_READ, ChunkRead, chunk_read, .key = text("layout"),
	                                  .chunk_bytes = CHUNK_BYTES, .n_chunks = N_LANES),
	                          NULL, 0),
		GLAKE__WIRE__STATUS__OVER_QUOTA);
	ck_assert_int_eq(connection_free_chunks(reader, ids, 2), GLAKE__WIRE__STATUS__OK);
	ck_assert(read_named(reader, ""));
	ck_assert_int_eq(take(reader, 1), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(take(reader, 1), GLAKE__WIRE__STATUS__OVER_QUOTA);
	ck_assert_int_eq(give_back(reader, read_ids), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(take(reader, 1), GLAKE__WIRE__STATUS__OK);
	connection_close(&reader);
}

/* A step that is read may be the reader's one day, so it is taken from the promise at once. */
START_TEST(a_promise_has_room_for_what_is_read)
{
	begin();
	int owner = connection_hello(&harness);
	ck_assert_int_eq(take(owner, N_LANES), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(share_as_read(owner, "x"), GLAKE__WIRE__STATUS__OK);
	uint64_t owned[N_LANES];
	memcpy(owned, ids, sizeof(owned));
	world_join(world_client(read_as_promised, NULL));
	ck_assert_int_eq(unkeep(owner), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(give_back(owner, owned), GLAKE__WIRE__STATUS__OK);
	connection_close(&owner);
}
END_TEST

/* Lane by lane: each is the reader's then, and his to give back. */
START_TEST(an_owner_gives_back_a_part)
{
	begin();
	int owner = connection_hello(&harness);
	int readers[] = {connection_hello(&harness), connection_hello(&harness)};
	ck_assert_int_eq(take(owner, N_LANES), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(share_as_read(owner, "x"), GLAKE__WIRE__STATUS__OK);
	uint64_t of_first[N_LANES];
	ck_assert(read_named(readers[0], ""));
	memcpy(of_first, read_ids, sizeof(of_first));
	ck_assert(read_named(readers[1], ""));
	ck_assert_int_eq(connection_free_chunks(owner, &ids[1], 1), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(world_n_chunks(), N_LANES);
	/* The first has one of its own now, and gives up all of them: so the second has one. */
	ck_assert_int_eq(give_back(readers[0], of_first), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(world_n_chunks(), N_LANES);
	connection_close(&owner);
	while (world_n_chunks() != N_LANES) {
		harness_sleep_ms(5);
	}
	ck_assert_int_eq(give_back(readers[1], read_ids), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(world_n_chunks(), 0);
	connection_close(&readers[0]);
	connection_close(&readers[1]);
}
END_TEST

/* ---- it goes ----------------------------------------------------------------------------------- */

START_TEST(its_time_is_over)
{
	begin_with(WORLD_CONFIG "kept_ms = 1;");
	run_and_kill(leave, "x");
	world_wait_metric("steps_dropped", 1);
	ck_assert_uint_eq(kept_bytes(), 0);
}
END_TEST

/* 12 of 64 MiB, less what glaked itself has, are kept; then somebody wants more than is free. */
START_TEST(pressure_takes_the_oldest_step_first_and_whole)
{
	begin();
	leave_two("first", "second");
	int connection = connection_hello(&harness);
	uint64_t chunks[32];
	uint32_t n = 0;
	/* Free memory first. */
	while (kept_bytes() == 2 * STEP) {
		ck_assert_int_eq(
			connection_alloc(connection, 0, CHUNK_BYTES, 1, &chunks[n++], NULL),
			GLAKE__WIRE__STATUS__OK);
	}
	ck_assert_uint_eq(kept_bytes(), STEP);
	adopt(connection, "second", 0);
	connection_close(&connection);
}
END_TEST

/* More than a half of what there is. */
static void leave_many(void *user)
{
	char record[2] = "a";
	int connection = connection_hello(&harness);
	for (unsigned i = 0; i < 7; i++, record[0]++) {
		make_will(connection, record);
	}
	wait_to_be_killed();
}

START_TEST(a_users_share_is_of_the_youngest)
{
	begin();
	run_and_kill(leave_many, NULL);
	world_wait_metric("steps_kept", 7);
	ck_assert_uint_le(kept_bytes(), 32 * MIB);
	ck_assert_uint_gt(kept_bytes(), 32 * MIB - 2 * STEP);
	int heir = connection_hello(&harness);
	adopt(heir, "g", 0);
	adopt(heir, "f", 0);
	connection_close(&heir);
}
END_TEST

/* ---- heirs that die ---------------------------------------------------------------------------- */

static void adopt_and_die(void *user)
{
	adopt(connection_hello(&harness), "x", 0);
	wait_to_be_killed();
}

static void adopt_unkeep_and_die(void *user)
{
	int connection = connection_hello(&harness);
	adopt(connection, "x", 0);
	ck_assert_int_eq(unkeep(connection), GLAKE__WIRE__STATUS__OK);
	wait_to_be_killed();
}

START_TEST(an_heir_that_dies_leaves_it_to_the_next)
{
	begin();
	leave_step("x");
	run_and_kill(adopt_and_die, NULL);
	await_kept(STEP);
	run_and_kill(adopt_unkeep_and_die, NULL);
	world_wait_books(&books_before);
	ck_assert_uint_eq(kept_bytes(), 0);
}
END_TEST

/* The answer was lost with the connection: the heir asks again, and gets it. */
START_TEST(an_answer_that_is_lost_loses_nothing)
{
	begin();
	leave_step("x");
	struct connection_identity identity = {0};
	int heir = connection_hello_as(&harness, &identity);
	uint64_t request = connection_send(heir, ask(CHUNK_BYTES, N_LANES), NULL, 0);
	await_kept(0);
	connection_drop(&heir);
	identity.unanswered = &request;
	identity.n_unanswered = 1;
	heir = connection_hello_as(&harness, &identity);
	ck_assert_uint_eq(kept_bytes(), STEP);
	adopt(heir, "x", 0);
	connection_close(&heir);
}
END_TEST

static void adopt_at_once(void *user)
{
	struct fdlist fds;
	int connection = connection_hello(&harness);
	world_reach(*world_stage + 1);
	world_await(FOREVER / 2);
	fdlist_init(&fds);
	Glake__Wire__Answer *answer = connection_call(connection, ask(CHUNK_BYTES, N_LANES), NULL,
	                                              0, &fds);
	ck_assert_uint_eq(fds.n_fds, answer->chunk_adopt->n_ids);
	connection_free(answer);
	fdlist_deinit(&fds);
	world_await(FOREVER);
	connection_close(&connection);
}

START_TEST(of_eight_who_ask_at_once_each_step_has_one)
{
	pid_t clients[8];
	begin();
	leave_two("x", "y");
	for (size_t i = 0; i < n_elements(clients); i++) {
		int stage = *world_stage;
		clients[i] = world_client(adopt_at_once, NULL);
		world_await(stage + 1);
	}
	world_reach(FOREVER / 2);
	world_wait_metric("steps_adopted", 2);
	ck_assert_uint_eq(world_books().private_bytes, 2 * STEP);
	world_reach(FOREVER);
	for (size_t i = 0; i < n_elements(clients); i++) {
		world_join(clients[i]);
	}
}
END_TEST

START_TEST(an_heir_pays)
{
	begin_with(WORLD_CONFIG "tenants = ({ name = \"default\"; device_bytes = \"8MiB\"; });");
	leave_step("x");
	int heir = connection_hello(&harness);
	ck_assert_int_eq(take(heir, 2), GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_status(heir, ask(CHUNK_BYTES, N_LANES), NULL, 0),
	                 GLAKE__WIRE__STATUS__OVER_QUOTA);
	ck_assert_uint_eq(kept_bytes(), STEP);
	ck_assert_int_eq(connection_free_chunks(heir, ids, 2), GLAKE__WIRE__STATUS__OK);
	adopt(heir, "x", 0);
	connection_close(&heir);
}
END_TEST

/* The tenant's limit leaves nothing beside what was promised, so only the promise can pay. */
static void have_too_little(void *user)
{
	int heir = promised(2 * CHUNK_BYTES);
	ck_assert_int_eq(connection_status(heir, ask(CHUNK_BYTES, N_LANES), NULL, 0),
	                 GLAKE__WIRE__STATUS__OVER_QUOTA);
	ck_assert_int_eq(take(heir, 2), GLAKE__WIRE__STATUS__OK);
	connection_close(&heir);
}

static void have_enough(void *user)
{
	int heir = promised(4 * CHUNK_BYTES);
	adopt(heir, "x", 0);
	ck_assert_int_eq(take(heir, 2), GLAKE__WIRE__STATUS__OVER_QUOTA);
	ck_assert_int_eq(take(heir, 1), GLAKE__WIRE__STATUS__OK);
	connection_close(&heir);
}

START_TEST(an_heir_with_a_promise_pays_from_that)
{
	begin_with(WORLD_CONFIG "tenants = ({ name = \"default\"; device_bytes = \"8MiB\"; });");
	leave_step("x");
	world_join(world_client(have_too_little, NULL));
	ck_assert_uint_eq(kept_bytes(), STEP);
	world_join(world_client(have_enough, NULL));
	ck_assert_uint_eq(kept_bytes(), 0);
}
END_TEST
