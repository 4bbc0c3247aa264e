/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a tenant's bytes are spent: whose warm memory is asked for, who waits for it, for how long,
 * and in which order.
 */
#include "tests/harness/connection.h"
#include "tests/harness/models.h"
#include "tests/harness/world.h"

#define TENANT(bytes) "tenants = ({ name = \"default\"; device_bytes = \"" bytes "\"; });"
/* Longer than any test may last: what is answered was not refused for its time. */
#define WAIT "pressure = \"wait\"; wait_ms = 3600000; "
#define OK GLAKE__WIRE__STATUS__OK
#define OVER_QUOTA GLAKE__WIRE__STATUS__OVER_QUOTA

static void begin(const char *config)
{
	world_begin(.config = config, .devices = "2x512MiB");
}

/* ---- clients of the library ------------------------------------------------------------------ */

/* Has memory, live or warm, and follows notices until stage 2. */
static void hold(uint64_t live_bytes, uint64_t warm_bytes)
{
	glake_ptr live = 0;
	glake_ptr warm = 0;
	struct glake_session *session = world_connect();
	if (live_bytes > 0) {
		assert_ok(glake_alloc(session, 0, live_bytes, 0, &live));
	}
	if (warm_bytes > 0) {
		assert_ok(glake_alloc(session, 0, warm_bytes, 0, &warm));
		/* Warm at once, and no word about it to glaked. */
		assert_ok(glake_free(session, warm));
	}
	world_reach(1);
	while (atomic_load(world_stage) < 2) {
		ck_assert_int_ge(glake_dispatch(session), 0);
		harness_sleep_ms(2);
	}
	world_disconnect(session);
}

static void hold_warm(void *user)
{
	hold(0, *(const uint64_t *)user);
}

static void hold_live(void *user)
{
	hold(*(const uint64_t *)user, 0);
}

static const struct {
	const char *config;
	uint64_t held_bytes;
	uint64_t wanted_bytes;
} warm_cases[] = {
	{WORLD_CONFIG TENANT("256MiB"), 200 * MIB, 200 * MIB},
	{WORLD_CONFIG TENANT("256MiB"), 200 * MIB, 58 * MIB},
	{WORLD_CONFIG WAIT TENANT("256MiB"), 256 * MIB, 256 * MIB},
	/* In these cases the device is full, not the quota. */
	{WORLD_CONFIG "reserve_bytes = \"256MiB\";", 200 * MIB, 200 * MIB},
	{WORLD_CONFIG WAIT "reserve_bytes = \"256MiB\";", 200 * MIB, 200 * MIB},
};

START_TEST_WITH(warm_memory_of_another_session_goes_first, .n = n_elements(warm_cases))
{
	uint64_t held_bytes = warm_cases[_i].held_bytes;
	glake_ptr ptr = 0;
	begin(warm_cases[_i].config);
	pid_t client = world_client(hold_warm, &held_bytes);
	world_await(1);
	ck_assert_uint_eq(world_books().private_bytes, held_bytes);
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, warm_cases[_i].wanted_bytes, 0, &ptr));
	ck_assert_uint_ge(world_metric("reclaims_sent"), 1);
	ck_assert_uint_eq(world_metric("quota_refusals"), 0);
	ck_assert_uint_eq(world_metric("memory_refusals"), 0);
	world_reach(2);
	world_join(client);
}
END_TEST

START_TEST(a_model_is_loaded_into_what_was_warm)
{
	uint64_t held_bytes = 200 * MIB;
	struct glake_model *model;
	begin(WORLD_CONFIG TENANT("256MiB"));
	const char *path = world_write_model("m.safetensors", 100 * MIB, 1);
	pid_t client = world_client(hold_warm, &held_bytes);
	world_await(1);
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, path, &model));
	world_reach(2);
	world_join(client);
}
END_TEST

/* One's own warm memory does not fit the request, and is in its way. */
START_TEST_WITH(own_warm_memory_goes_as_well, .n = 2)
{
	glake_ptr ptr = 0;
	begin(_i == 0 ? WORLD_CONFIG TENANT("256MiB") : WORLD_CONFIG WAIT TENANT("256MiB"));
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < 3; i++) {
		assert_ok(glake_alloc(session, 0, (i + 1) * 40 * MIB, 0, &ptr));
		assert_ok(glake_free(session, ptr));
	}
	assert_ok(glake_alloc(session, 0, 200 * MIB, 0, &ptr));
}
END_TEST

START_TEST(live_memory_is_nobodys_to_take)
{
	uint64_t held_bytes = 200 * MIB;
	glake_ptr ptr = 0;
	begin(WORLD_CONFIG TENANT("256MiB"));
	pid_t client = world_client(hold_live, &held_bytes);
	world_await(1);
	struct books before = world_books();
	struct glake_session *session = world_connect();
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant default",
	             glake_alloc(session, 0, 100 * MIB, 0, &ptr));
	ck_assert_uint_eq(world_metric("quota_refusals"), 1);
	world_disconnect(session);
	world_wait_books(&before);
	world_reach(2);
	world_join(client);
}
END_TEST

START_TEST(who_waits_in_vain_is_refused_in_time)
{
	glake_ptr ptr = 0;
	begin(WORLD_CONFIG "pressure = \"wait\"; wait_ms = 1400;" TENANT("64MiB"));
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	struct books before = world_books();
	uint64_t since_ms = harness_now_ms();
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant default",
	             glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	uint64_t ms = harness_now_ms() - since_ms;
	ck_assert_msg(ms >= 1390, "%llu ms", (unsigned long long)ms);
	ck_assert_uint_eq(world_metric("quota_waits"), 1);
	ck_assert_uint_eq(world_metric("quota_refusals"), 1);
	world_wait_books(&before);
}
END_TEST

START_TEST(what_can_never_fit_does_not_wait)
{
	glake_ptr ptr = 0;
	begin(WORLD_CONFIG WAIT TENANT("64MiB"));
	struct glake_session *session = world_connect();
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant default uses 0 of 64.0 MiB",
	             glake_alloc(session, 0, 66 * MIB, 0, &ptr));
	ck_assert_uint_eq(world_metric("quota_waits"), 0);
	ck_assert_uint_eq(world_metric("quota_refusals"), 1);
	ck_assert_uint_eq(world_metric("reclaims_sent"), 0);
	assert_ok(glake_alloc(session, 0, 64 * MIB, 0, &ptr));
}
END_TEST

/* ---- at the wire: nobody answers but when the test says so ----------------------------------- */

static uint64_t send_waited_alloc(int connection, uint32_t device, uint64_t n_bytes,
                                  uint64_t waited_ms)
{
	return connection_send(connection,
	                       REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc, .device = device,
	                               .chunk_bytes = n_bytes, .n_chunks = 1,
	                               .waited_ms = waited_ms),
	                       NULL, 0);
}

static uint64_t send_alloc(int connection, uint32_t device, uint64_t n_bytes)
{
	return send_waited_alloc(connection, device, n_bytes, 0);
}

static void expect_status(int connection, uint64_t request, Glake__Wire__Status status)
{
	ck_assert_int_eq(connection_status_of(connection, request), status);
}

/* Chunk of @n_bytes on device 0, at once. */
static uint64_t take(int connection, uint64_t n_bytes)
{
	uint64_t id;
	ck_assert_int_eq(connection_alloc(connection, 0, n_bytes, 1, &id, NULL), OK);
	return id;
}

static void give(int connection, uint64_t id)
{
	ck_assert_int_eq(connection_free_chunks(connection, &id, 1), OK);
}

/* No answer has come to what waits: one would be in the way of the Ping's. */
static void expect_waiting(int connection)
{
	connection_ping(connection);
	harness_sleep_ms(50);
	connection_ping(connection);
}

/* Asks for a chunk on device 0, for which glaked has it wait. */
static uint64_t send_to_wait(int connection, uint64_t n_bytes)
{
	uint64_t request = send_alloc(connection, 0, n_bytes);
	expect_waiting(connection);
	return request;
}

static int holder;
static int asker;

/* The holder has 40 MiB, the chunk of that id, and the asker nothing. */
static uint64_t begin_held(const char *config)
{
	begin(config);
	holder = connection_hello(&harness);
	asker = connection_hello(&harness);
	return take(holder, 40 * MIB);
}

/* The id of the next Reclaim, which is all that may come. It asks for @n_bytes, or any number with 0. */
static uint64_t expect_reclaim_of(int connection, uint64_t n_bytes)
{
	Glake__Wire__Answer *answer = connection_receive(connection, NULL);
	ck_assert(answer && answer->id == 0);
	ck_assert_int_eq(answer->body_case, GLAKE__WIRE__ANSWER__BODY_RECLAIM);
	uint64_t id = answer->reclaim->id;
	ck_assert_uint_gt(id, 0);
	if (n_bytes > 0) {
		ck_assert_uint_eq(answer->reclaim->bytes, n_bytes);
	}
	connection_free(answer);
	return id;
}

static uint64_t expect_reclaim(int connection)
{
	return expect_reclaim_of(connection, 0);
}

static void report(int connection, uint64_t reclaim)
{
	ck_assert_int_eq(connection_status(connection,
	                                   REQUEST(USAGE_REPORT, UsageReport, usage_report,
	                                           .reclaim = reclaim),
	                                   NULL, 0),
	                 OK);
}

/* The memory is live when it is wanted, and freed when nobody asks: it does not become warm. */
START_TEST(what_is_owed_goes_when_it_is_freed)
{
	glake_ptr ptr = 0;
	begin(WORLD_CONFIG WAIT TENANT("256MiB"));
	struct glake_session *session = world_connect();
	asker = connection_hello(&harness);
	assert_ok(glake_alloc(session, 0, 200 * MIB, 0, &ptr));
	uint64_t request = send_to_wait(asker, 100 * MIB);
	while (glake_dispatch(session) == 0) {
		harness_sleep_ms(2);
	}
	assert_ok(glake_free(session, ptr));
	expect_status(asker, request, OK);
	/* Then the debt is paid, though it may have been asked twice meanwhile. */
	struct glake_usage usage = {.size = sizeof(usage)};
	while (usage.warm_bytes != 100 * MIB) {
		assert_ok(glake_alloc(session, 0, 100 * MIB, 0, &ptr));
		assert_ok(glake_free(session, ptr));
		assert_ok(glake_usage(session, &usage));
	}
	world_disconnect(session);
}
END_TEST

START_TEST(an_answer_ends_the_wait)
{
	uint64_t held = begin_held(WORLD_CONFIG TENANT("64MiB"));
	for (int gives = 0; gives < 2; gives++) {
		uint64_t request = send_alloc(asker, 0, 40 * MIB);
		uint64_t id = expect_reclaim(holder);
		/* Answers to what was never asked, or long ago, are none. */
		report(holder, id + 1);
		report(holder, id - 1);
		if (gives) {
			give(holder, held);
		}
		report(holder, id);
		expect_status(asker, request, gives ? OK : OVER_QUOTA);
	}
}
END_TEST

/* Else it would owe, and give back as it frees, what it never had. */
START_TEST_WITH(nobody_is_asked_for_more_than_he_has, .n = 2)
{
	begin(_i == 0 ? WORLD_CONFIG TENANT("64MiB") : WORLD_CONFIG "reserve_bytes = \"446MiB\";");
	int small = connection_hello(&harness);
	int big = connection_hello(&harness);
	asker = connection_hello(&harness);
	take(small, 10 * MIB);
	take(big, 40 * MIB);
	uint64_t request = send_alloc(asker, 0, 24 * MIB);
	uint64_t id = expect_reclaim_of(small, 10 * MIB);
	report(small, id);
	/* And for no more than there is not: 14 MiB of the device are free. */
	id = expect_reclaim_of(big, _i == 0 ? 24 * MIB : 10 * MIB);
	report(big, id);
	expect_status(asker, request, _i == 0 ? OVER_QUOTA : GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY);
}
END_TEST

START_TEST(who_came_first_is_served_first)
{
	begin(WORLD_CONFIG WAIT TENANT("64MiB"));
	holder = connection_hello(&harness);
	int big = connection_hello(&harness);
	int small = connection_hello(&harness);
	uint64_t first = take(holder, 24 * MIB);
	uint64_t second = take(holder, 30 * MIB);
	uint64_t big_request = send_to_wait(big, 40 * MIB);
	/* There would be room for it, and for more of it for ever. */
	uint64_t small_request = send_to_wait(small, 2 * MIB);
	give(holder, first);
	expect_waiting(small);
	expect_waiting(big);
	/* Another device is another queue. */
	expect_status(holder, send_alloc(holder, 1, 64 * MIB), OK);
	give(holder, second);
	expect_status(big, big_request, OK);
	expect_status(small, small_request, OK);
	ck_assert_uint_eq(world_metric("quota_waits"), 2);
}
END_TEST

START_TEST(who_dies_in_line_is_passed)
{
	begin(WORLD_CONFIG WAIT TENANT("64MiB"));
	holder = connection_hello(&harness);
	int first = connection_hello(&harness);
	int second = connection_hello(&harness);
	take(holder, 40 * MIB);
	send_alloc(first, 0, 60 * MIB);
	send_to_wait(first, 50 * MIB);
	uint64_t request = send_to_wait(second, 20 * MIB);
	connection_close(&first);
	expect_status(second, request, OK);
	/* And so does everybody, with glaked: the books are level at the end. */
	send_to_wait(second, 60 * MIB);
}
END_TEST

/* The time that an allocation has waited before it is tried again counts. */
START_TEST(who_has_waited_does_not_wait_again)
{
	uint64_t held = begin_held(WORLD_CONFIG WAIT TENANT("64MiB"));
	uint64_t request = send_waited_alloc(asker, 0, 40 * MIB, 3600000);
	expect_status(asker, request, OVER_QUOTA);
	request = send_waited_alloc(asker, 0, 40 * MIB, 3600);
	expect_waiting(asker);
	give(holder, held);
	expect_status(asker, request, OK);
}
END_TEST

/* As many as may be under way: what frees memory is not among them. */
START_TEST(a_session_that_waits_can_free)
{
	enum { N = 16 };
	uint64_t requests[N];
	begin(WORLD_CONFIG WAIT TENANT("64MiB"));
	int connection = connection_hello(&harness);
	uint64_t held = take(connection, 40 * MIB);
	for (unsigned i = 0; i < N; i++) {
		requests[i] = send_alloc(connection, 0, i == 0 ? 30 * MIB : 2 * MIB);
	}
	expect_waiting(connection);
	expect_status(connection, send_alloc(connection, 0, 2 * MIB), GLAKE__WIRE__STATUS__BUSY);
	give(connection, held);
	for (unsigned i = 0; i < N; i++) {
		expect_status(connection, requests[i], OK);
	}
}
END_TEST

START_TEST(a_changed_quota_is_noticed)
{
	begin_held(WORLD_CONFIG WAIT TENANT("64MiB"));
	uint64_t request = send_to_wait(asker, 40 * MIB);
	assert_ok(glake_set_quota(eye, "default", 0, 80 * MIB));
	expect_status(asker, request, OK);
	/* No limit at all, and one below what is asked for. */
	request = send_to_wait(asker, 20 * MIB);
	assert_ok(glake_set_quota(eye, "default", 0, 0));
	expect_status(asker, request, OK);
	assert_ok(glake_set_quota(eye, "default", 0, 64 * MIB));
	request = send_to_wait(asker, 40 * MIB);
	assert_ok(glake_set_quota(eye, "default", 0, 30 * MIB));
	expect_status(asker, request, OVER_QUOTA);
}
END_TEST

/* The tenant leaves the configuration while somebody stands in its line. */
START_TEST(a_tenant_stays_for_who_waits)
{
	uint64_t held = begin_held(
		WORLD_CONFIG WAIT
		"tenants = ({ name = \"gone\"; gids = [0]; device_bytes = \"64MiB\"; });");
	uint64_t request = send_to_wait(asker, 40 * MIB);
	harness_reload(&harness, WORLD_CONFIG WAIT);
	expect_waiting(asker);
	give(holder, held);
	expect_status(asker, request, OK);
}
END_TEST

/* Reading the configuration again lets go whoever waits. */
START_TEST(a_shorter_wait_holds_at_once)
{
	begin_held(WORLD_CONFIG WAIT TENANT("64MiB"));
	uint64_t request = send_to_wait(asker, 40 * MIB);
	harness_reload(&harness, WORLD_CONFIG TENANT("64MiB"));
	expect_status(asker, request, OVER_QUOTA);
}
END_TEST
