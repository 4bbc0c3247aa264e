/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of elastic ranges outlive the process that sealed them: the next one finds the bytes that the record describes, whenever
 * the first was killed, or it finds nothing.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/integration/elastic.h"

#define FOREVER 1000000
#define N_ROUNDS 12

static uint8_t record[GLAKE_ELASTIC_RECORD_BYTES];
static size_t n_record;
static uint32_t n_living;

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = 0;", .devices = "1x96MiB");
}

/* In a process of its own. */
static void open_keyed(uint32_t flags)
{
	struct glake_elastic_desc desc = desc_of(0, flags);
	desc.key = "model and layout";
	desc.n_key = 16;
	words_open_driver();
	session = world_connect();
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
}

/* The record is the seed of what is written. */
static void write_and_seal(uint32_t step, unsigned seed)
{
	assert_ok(glake_elastic_unseal(elastic, step, 1));
	write_step(step, seed);
	assert_ok(glake_elastic_seal(elastic, step, &seed, sizeof(seed)));
}

static int adopt(uint32_t step)
{
	return glake_elastic_adopt(elastic, step, record, &n_record, &n_living);
}

/* The adopted step has what its record says. Returns the seed. */
static unsigned check_adopted(uint32_t step)
{
	unsigned seed;
	ck_assert_uint_eq(n_record, sizeof(seed));
	memcpy(&seed, record, sizeof(seed));
	ck_assert_uint_eq(state_of(step), GLAKE_ELASTIC_HELD);
	check_step(step, seed);
	return seed;
}

static void expect_none(uint32_t n)
{
	assert_fails(-ENOENT, "no process has left", adopt(7));
	ck_assert_uint_eq(n_living, n);
	ck_assert_uint_eq(state_of(7), GLAKE_ELASTIC_HOLE);
}

static void wait_to_be_killed(void)
{
	world_reach(*world_stage + 1);
	world_await(FOREVER);
}

static void run_and_kill(world_fn fn)
{
	int stage = *world_stage;
	pid_t client = world_client(fn, NULL);
	world_await(stage + 1);
	world_kill(client);
}

static void run(world_fn fn)
{
	world_join(world_client(fn, NULL));
}

/* ---- killed behind each step -------------------------------------------------------------------- */

static void seal_three(void)
{
	open_keyed(0);
	commit(0, 4);
	for (uint32_t i = 0; i < 3; i++) {
		write_and_seal(i, 10 + i);
	}
}

static void die_sealed(void *user)
{
	seal_three();
	wait_to_be_killed();
}

static void find_three(void *user)
{
	open_keyed((uint32_t)(uintptr_t)user);
	for (uint32_t i = 0; i < 3; i++) {
		assert_ok(adopt(i));
		ck_assert_uint_eq(check_adopted(i), 12 - i);
	}
	expect_none(3);
	ck_assert_uint_eq(world_usage(session).live_bytes, user ? 3 * STEP + CHUNK : 3 * STEP);
	ck_assert(glake__space_is_valid());
	/* They are steps like others. */
	assert_ok(glake_elastic_unseal(elastic, 0, N_STEPS));
	write_step(1, 77);
	check_step(1, 77);
	check_step(0, 12);
	assert_ok(glake_elastic_lend(elastic, 0, 2));
	ck_assert_int_eq(glake_elastic_return(elastic, 0, 2), 2);
	commit(0, 1);
	check_zero(0);
	ck_assert(glake__space_is_valid());
}

START_TEST_WITH(what_a_killed_process_sealed_is_found_with_its_bytes, .n = 2)
{
	begin();
	run_and_kill(die_sealed);
	world_join(world_client(find_three, (void *)(uintptr_t)(_i ? GLAKE_ELASTIC_GUARD : 0)));
	ck_assert_uint_eq(world_metric("steps_adopted"), 3);
}
END_TEST

static void die_unsealed(void *user)
{
	seal_three();
	assert_ok(glake_elastic_unseal(elastic, 0, N_STEPS));
	wait_to_be_killed();
}

static void die_without_a_seal(void *user)
{
	open_keyed(0);
	commit(0, 3);
	wait_to_be_killed();
}

/* Two went, one is lent still. */
static void die_having_lent(void *user)
{
	seal_three();
	assert_ok(glake_elastic_lend(elastic, 0, 3));
	ck_assert_int_eq(glake_elastic_return(elastic, 1, 2), 2);
	wait_to_be_killed();
}

static void die_closed(void *user)
{
	seal_three();
	assert_ok(glake_elastic_close(elastic));
	wait_to_be_killed();
}

static void die_disconnected(void *user)
{
	seal_three();
	world_disconnect(session);
	wait_to_be_killed();
}

static void find_none(void *user)
{
	open_keyed(0);
	expect_none(0);
}

static void find_one(void *user)
{
	open_keyed(0);
	assert_ok(adopt(0));
	ck_assert_uint_eq(check_adopted(0), 10);
	expect_none(1);
}

static const struct death {
	world_fn die;
	world_fn find;
} deaths[] = {{die_unsealed, find_none},
              {die_without_a_seal, find_none},
              {die_having_lent, find_one},
              {die_closed, find_none},
              {die_disconnected, find_none}};

START_TEST_WITH(what_is_not_sealed_any_more_is_not_kept, .n = n_elements(deaths))
{
	begin();
	run_and_kill(deaths[_i].die);
	run(deaths[_i].find);
}
END_TEST

/* All that the one before has left, who may not have ended yet. Returns how many steps. */
static uint32_t adopt_all(void)
{
	uint32_t n = 0;
	int r = adopt(0);
	while (r == -ENOENT && n == 0 && n_living > 0) {
		harness_sleep_ms(1);
		r = adopt(0);
	}
	while (r == 0) {
		check_adopted(n++);
		r = n < N_STEPS ? adopt(n) : -ENOENT;
	}
	ck_assert_int_eq(r, -ENOENT);
	return n;
}

static void check_all(void *user)
{
	open_keyed(0);
	ck_assert_uint_gt(adopt_all(), 0);
}

static void adopt_and_die(void *user)
{
	open_keyed(0);
	for (uint32_t i = 0; i < 3; i++) {
		assert_ok(adopt(i));
	}
	wait_to_be_killed();
}

START_TEST(an_heir_that_is_killed_leaves_it_to_the_next)
{
	begin();
	run_and_kill(die_sealed);
	run_and_kill(adopt_and_die);
	run(check_all);
	ck_assert_uint_eq(world_metric("steps_adopted"), 6);
}
END_TEST

/* ---- killed at any time ------------------------------------------------------------------------- */

/* Whenever this ends: what is sealed has the bytes of its record. */
static void write_for_ever(void *user)
{
	open_keyed(0);
	commit(0, N_STEPS - 1);
	for (unsigned seed = 1;; seed++) {
		write_and_seal(seed % (N_STEPS - 1), seed);
		if (seed == N_STEPS) {
			world_reach(*world_stage + 1);
		}
	}
}

/* An heir that takes over, and goes on so: only the one step that is being written may be lost. */
static void take_over_for_ever(void *user)
{
	open_keyed(0);
	uint32_t n = adopt_all();
	ck_assert_uint_ge(n, N_STEPS - 2);
	commit(0, N_STEPS - 1);
	for (unsigned seed = 1000;; seed++) {
		write_and_seal((seed - 1000 + n) % (N_STEPS - 1), seed);
		if (seed == 1001) {
			world_reach(*world_stage + 1);
		}
	}
}

static void kill_soon(world_fn fn)
{
	int stage = *world_stage;
	pid_t client = world_client(fn, NULL);
	world_await(stage + 1);
	harness_sleep_ms(random() % 20);
	world_kill(client);
}

START_TEST(a_record_never_describes_other_bytes)
{
	begin();
	kill_soon(write_for_ever);
	for (unsigned i = 0; i < N_ROUNDS; i++) {
		kill_soon(take_over_for_ever);
	}
	run(check_all);
}
END_TEST

/* ---- several heirs ------------------------------------------------------------------------------ */

static void seal_seven_and_die(void *user)
{
	open_keyed(0);
	commit(0, 7);
	for (uint32_t i = 0; i < 7; i++) {
		write_and_seal(i, i);
	}
	wait_to_be_killed();
}

/* Each seed is somebody's: the test's process sees who. */
static atomic_int *n_heirs_of;

static void adopt_with_others(void *user)
{
	open_keyed(0);
	world_reach(*world_stage + 1);
	world_await(FOREVER / 2);
	uint32_t n = 0;
	while (adopt(n) == 0) {
		n_heirs_of[check_adopted(n++)]++;
	}
	assert_ok(glake_elastic_unseal(elastic, 0, N_STEPS));
	world_await(FOREVER);
}

/* Takes all memory that others leave, again and again. */
static void press(void *user)
{
	struct glake_session *greedy = world_connect_blind();
	uint64_t chunk;
	int fd;
	world_reach(*world_stage + 1);
	world_await(FOREVER / 2);
	while (glake_chunk_new(greedy, 0, CHUNK, &chunk, &fd) == 0) {
		close(fd);
	}
	world_await(FOREVER);
	world_disconnect(greedy);
}

static void share_out(unsigned n, bool has_pressure)
{
	pid_t clients[9];
	n_heirs_of = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	run_and_kill(seal_seven_and_die);
	world_wait_metric("steps_kept", 7);
	for (unsigned i = 0; i < n + has_pressure; i++) {
		int stage = *world_stage;
		clients[i] = world_client(i < n ? adopt_with_others : press, NULL);
		world_await(stage + 1);
	}
	world_reach(FOREVER / 2);
	world_wait_metric("steps_kept", 7);
	while (world_metric("steps_adopted") + world_metric("steps_dropped") < 7) {
		harness_sleep_ms(10);
	}
	world_reach(FOREVER);
	for (unsigned i = 0; i < n + has_pressure; i++) {
		world_join(clients[i]);
	}
	unsigned n_adopted = 0;
	for (unsigned i = 0; i < 7; i++) {
		ck_assert_int_le(n_heirs_of[i], 1);
		n_adopted += n_heirs_of[i];
	}
	ck_assert_uint_eq(n_adopted, world_metric("steps_adopted"));
	ck_assert(has_pressure || n_adopted == 7);
}

START_TEST(two_heirs_share_them_out)
{
	begin();
	share_out(2, false);
}
END_TEST

START_TEST(eight_heirs_share_them_out)
{
	begin();
	share_out(8, false);
}
END_TEST

START_TEST(under_pressure_a_step_is_one_heirs_or_gone)
{
	begin();
	share_out(4, true);
}
END_TEST

/* ---- what is refused ---------------------------------------------------------------------------- */

static void ask_for_what_is_not_there(void *user)
{
	open_keyed(0);
	commit(0, 1);
	assert_fails(-EINVAL, "is not held", glake_elastic_seal(elastic, 1, "x", 1));
	assert_fails(-EINVAL, "9 steps", glake_elastic_unseal(elastic, 0, 9));
	assert_fails(-EINVAL, "1 steps from 8", glake_elastic_seal(elastic, 8, "x", 1));
	assert_fails(-EINVAL, "at most",
	             glake_elastic_seal(elastic, 0, record, sizeof(record) + 1));
	assert_ok(glake_elastic_seal(elastic, 0, record, sizeof(record)));
	assert_ok(glake_elastic_seal(elastic, 0, NULL, 0));
	assert_fails(-EBUSY, "no hole", adopt(0));
	assert_fails(-EINVAL, "NULL", glake_elastic_adopt(elastic, 1, NULL, &n_record, NULL));
	expect_none(1);
	/* Unsealed, it counts no more. */
	assert_ok(glake_elastic_unseal(elastic, 0, N_STEPS));
	expect_none(0);
	assert_ok(glake_elastic_unseal(elastic, 0, N_STEPS));
	assert_ok(glake_elastic_close(elastic));
	struct glake_elastic_desc desc = desc_of(1, 0);
	desc.n_key = GLAKE_ELASTIC_KEY_BYTES + 1;
	desc.key = record;
	assert_fails(-EINVAL, "a key", glake_elastic_open(session, &desc, &elastic, &base));
	desc.n_key = 0;
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
	assert_fails(-EINVAL, "without a key", glake_elastic_seal(elastic, 0, "x", 1));
	assert_fails(-EINVAL, "without a key", adopt(1));
}

START_TEST(what_makes_no_sense_is_refused)
{
	begin();
	run(ask_for_what_is_not_there);
}
END_TEST

static void seal_in_vain(void *user)
{
	open_keyed(0);
	commit(0, 1);
	assert_fails(GLAKE_E_NO_PERMISSION, "kept_ms is 0", glake_elastic_seal(elastic, 0, "x", 1));
	assert_ok(glake_elastic_unseal(elastic, 0, 1));
	expect_none(0);
}

/* A chunk less than two steps is the tenant's. */
static void adopt_beyond_the_quota(void *user)
{
	open_keyed(0);
	assert_ok(adopt(0));
	assert_fails(GLAKE_E_OVER_QUOTA, "", adopt(1));
	ck_assert_uint_eq(state_of(1), GLAKE_ELASTIC_HOLE);
	assert_ok(glake_elastic_unseal(elastic, 0, 1));
	assert_ok(glake_elastic_lend(elastic, 0, 1));
	ck_assert_int_eq(glake_elastic_return(elastic, 0, 1), 1);
	assert_ok(adopt(1));
	check_adopted(1);
}

START_TEST(an_heir_beyond_its_quota_leaves_it)
{
	begin();
	run_and_kill(die_sealed);
	world_wait_metric("steps_kept", 3);
	assert_ok(glake_set_quota(eye, "default", 0, 2 * STEP - CHUNK));
	run(adopt_beyond_the_quota);
}
END_TEST

/* As it is with memory that was handed out. */
static void seal_what_others_write_to(void *user)
{
	open_keyed(0);
	commit(0, 1);
	glake__lock();
	struct glake__chunk *chunk = glake__piece_at_locked(place(0, 1))->chunk;
	glake__chunk_note_pin_locked(chunk, GLAKE__PIN_EXPORTED, true);
	glake__unlock();
	assert_fails(-EBUSY, "others may write", glake_elastic_seal(elastic, 0, "x", 1));
	glake__lock();
	glake__chunk_note_pin_locked(chunk, GLAKE__PIN_EXPORTED, false);
	glake__unlock();
	assert_ok(glake_elastic_seal(elastic, 0, "x", 1));
}

START_TEST(what_others_may_write_to_is_not_sealed)
{
	begin();
	run(seal_what_others_write_to);
}
END_TEST

/* A kept step that cannot be mapped is gone, and nothing of it is left. */
static void adopt_without_luck(void *user)
{
	open_keyed(user ? GLAKE_ELASTIC_GUARD : 0);
	uint64_t live_bytes = world_usage(session).live_bytes;
	uint64_t reserved_bytes = world_usage(session).reserved_bytes;
	world_set_own_faults("cuMemMap:2:fail=1");
	assert_fails(GLAKE_E_CUDA, "", adopt(1));
	world_set_own_faults("");
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	const struct rlimit none = {.rlim_cur = 3, .rlim_max = limit.rlim_max};
	setrlimit(RLIMIT_NOFILE, &none);
	int r = adopt(1);
	setrlimit(RLIMIT_NOFILE, &limit);
	ck_assert_int_eq(r, -EMFILE);
	expect_states("--------");
	ck_assert_uint_eq(world_usage(session).live_bytes, live_bytes);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, reserved_bytes);
	ck_assert(glake__space_is_valid());
	assert_ok(adopt(1));
	check_adopted(1);
	expect_none(1);
}

START_TEST_WITH(what_cannot_be_mapped_is_gone, .n = 2)
{
	begin();
	run_and_kill(die_sealed);
	world_wait_metric("steps_kept", 3);
	world_join(world_client(adopt_without_luck, (void *)(uintptr_t)_i));
}
END_TEST

/* The bytes are the first engine's, though glaked was killed meanwhile. */
START_TEST(what_was_kept_outlives_glaked)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = 0;", .devices = "1x96MiB",
	            .has_keeper = true);
	run_and_kill(die_sealed);
	world_wait_metric("steps_kept", 3);
	harness_kill(&harness);
	world_restart();
	run(find_three);
	/* In the end there is nothing. */
	harness_kill(&harness);
	world_restart();
	ck_assert_uint_eq(books_before.private_bytes, 0);
}
END_TEST

static void ask_with_others(void *user)
{
	struct glake_elastic_desc desc = desc_of(0, 0);
	words_open_driver();
	session = world_connect();
	desc.key = "model and layout";
	desc.n_key = 15;
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
	expect_none(0);
	assert_ok(glake_elastic_close(elastic));
	desc.n_key = 16;
	desc.n_lanes = N_LANES - 1;
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
	expect_none(0);
	assert_ok(glake_elastic_close(elastic));
	desc.n_lanes = N_LANES;
	desc.lane_stride *= 2;
	desc.chunk_bytes *= 2;
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
	expect_none(0);
}

START_TEST(other_keys_lanes_and_sizes_find_nothing)
{
	begin();
	run_and_kill(die_sealed);
	world_wait_metric("steps_kept", 3);
	run(ask_with_others);
	ck_assert_uint_eq(world_metric("steps_adopted"), 0);
}
END_TEST

START_TEST(a_glaked_that_keeps_nothing_says_so)
{
	world_begin(.config = WORLD_CONFIG "kept_ms = 0;", .devices = "1x96MiB");
	run(seal_in_vain);
}
END_TEST
