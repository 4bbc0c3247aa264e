/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks of sizes that are asked for again are made ahead: the next request has one at once. Nobody pays for
 * them, and they go when they are in the way, or when their size is not asked for any more.
 */
#include "libclient/glake_admin.h"
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/world.h"

#define CONFIG \
	"pool = ( { chunk_bytes = \"2MiB\"; n_chunks = 1; } ); " \
	"mover_idle_ms = 0; drain_ms = 300; "
#define QUOTA "tenants = ({ name = \"default\"; device_bytes = \"180MiB\"; });"

static int client;

static void begin(const char *config, const char *devices)
{
	world_begin(.config = config, .devices = devices);
	client = connection_hello(&harness);
}

static Glake__Wire__Status alloc(uint64_t n_bytes)
{
	uint64_t id;
	return connection_alloc(client, 0, n_bytes, 1, &id, NULL);
}

static void must_alloc(uint64_t n_bytes)
{
	ck_assert_int_eq(alloc(n_bytes), GLAKE__WIRE__STATUS__OK);
}

/* Beside the two chunks that are always there, at most. */
static uint64_t ahead(void)
{
	uint64_t pool_bytes = world_device(0).pool_bytes;
	return pool_bytes > 4 * MIB ? pool_bytes - 4 * MIB : 0;
}

static void await_ahead(uint64_t n_bytes)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (ahead() != n_bytes) {
		ck_assert_msg(harness_now_ms() < end_ms, "%llu bytes are made ahead, not %llu",
		              (unsigned long long)ahead(), (unsigned long long)n_bytes);
		harness_sleep_ms(2);
	}
}

/* Twice the same, and one more is there. */
static void make_ahead(uint64_t n_bytes)
{
	must_alloc(n_bytes);
	must_alloc(n_bytes);
	await_ahead(n_bytes);
}

START_TEST(a_size_that_comes_again_is_made_ahead)
{
	begin(CONFIG, "1x256MiB");
	make_ahead(6 * MIB);
	uint64_t n_hits = world_metric("pool_hits");
	must_alloc(6 * MIB);
	ck_assert_uint_eq(world_metric("pool_hits"), n_hits + 1);
	ck_assert_uint_eq(world_books().private_bytes, 18 * MIB);
	/* Nobody asks again. */
	await_ahead(0);
}
END_TEST

START_TEST(it_is_nobodys_quota)
{
	begin(CONFIG QUOTA, "1x512MiB");
	make_ahead(60 * MIB);
	must_alloc(60 * MIB);
	ck_assert_int_eq(alloc(2 * MIB), GLAKE__WIRE__STATUS__OVER_QUOTA);
}
END_TEST

START_TEST(it_goes_when_it_is_in_the_way)
{
	begin(CONFIG, "1x256MiB");
	make_ahead(60 * MIB);
	must_alloc(128 * MIB);
	ck_assert_uint_eq(ahead(), 0);
	ck_assert_uint_eq(world_metric("reclaims_sent"), 0);
	ck_assert_uint_eq(world_metric("memory_refusals"), 0);
}
END_TEST

START_TEST(it_is_no_more_than_a_part)
{
	begin(CONFIG, "1x2GiB");
	for (unsigned i = 0; i < 8; i++) {
		must_alloc(100 * MIB);
	}
	uint64_t most = 0;
	for (unsigned i = 0; i < 100 || most == 0; i++) {
		most = ahead() > most ? ahead() : most;
		harness_sleep_ms(2);
	}
	ck_assert_uint_ge(most, 100 * MIB);
	ck_assert_uint_le(most, 200 * MIB);
}
END_TEST

START_TEST(without_a_pool_nothing_is_made_ahead)
{
	begin(WORLD_CONFIG, "1x256MiB");
	for (unsigned i = 0; i < 8; i++) {
		must_alloc(6 * MIB);
	}
	harness_sleep_ms(50);
	ck_assert_uint_eq(ahead(), 0);
	ck_assert_uint_eq(world_metric("chunks_created"), 8);
}
END_TEST

static void ask_until_killed(void *user)
{
	client = connection_hello(&harness);
	for (unsigned i = 0;; i++) {
		must_alloc(4 * MIB);
		world_reach(1);
		/* Beyond that there is nothing to have. */
		harness_sleep_ms(i < 20 ? 2 : 1000);
	}
}

/* While one is being made; world_end() counts what is left. */
START_TEST(it_goes_when_its_cause_was_killed)
{
	begin(CONFIG, "1x256MiB");
	world_set_faults("cuMemCreate:*:slow=3");
	for (unsigned i = 0; i < 4; i++) {
		pid_t killed = world_client(ask_until_killed, NULL);
		world_await(1);
		harness_sleep_ms(7 * i);
		world_kill(killed);
		world_stage[0] = 0;
	}
	world_set_faults(NULL);
	await_ahead(0);
}
END_TEST
