/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that one process has sealed are read by others without a copy: whatever their owner does then, sleep and death among it,
 * a reader reads what the record describes, and each byte is paid once.
 */
#include <stdlib.h>

#include "tests/integration/elastic.h"

#define FOREVER 1000000
#define N_ROUNDS 10

static uint8_t record[GLAKE_ELASTIC_RECORD_BYTES];
static size_t n_record;

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = 0;", .devices = "1x96MiB");
}

/* Somebody keeps glaked's fds, and so its books. */
static void begin_kept(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = 0;", .devices = "1x96MiB",
	            .is_activated = true, .keeps_fds = true);
}

/* In a process of its own. */
static void open_keyed(uint32_t flags)
{
	struct glake_elastic_desc desc = desc_of(0, flags | GLAKE_ELASTIC_SHARED);
	desc.key = "model and layout";
	desc.n_key = 16;
	words_open_driver();
	session = world_connect();
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
}

/* The record is a name, and the seed of what is written. */
struct note {
	char name[4];
	unsigned seed;
};

static void write_and_seal(uint32_t step, const char *name, unsigned seed)
{
	struct note note = {.seed = seed};
	memcpy(note.name, name, sizeof(note.name));
	write_step(step, seed);
	assert_ok(glake_elastic_seal(elastic, step, &note, sizeof(note)));
}

static int read_named(uint32_t step, const char *name)
{
	return glake_elastic_read(elastic, step, name, name ? 4 : 0, record, &n_record);
}

/* The step has what its record says, and the GPU lets nobody write to it. Returns the seed. */
static unsigned check_read(uint32_t step)
{
	struct note note;
	ck_assert_uint_eq(n_record, sizeof(note));
	memcpy(&note, record, sizeof(note));
	ck_assert_uint_eq(state_of(step), GLAKE_ELASTIC_READ);
	check_step(step, note.seed);
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		ck_assert(!words_can_write(place(step, lane)));
	}
	return note.seed;
}

static void expect_paid(uint64_t reserved_bytes, uint64_t shared_bytes)
{
	const struct glake_session_row row = world_row(session);
	ck_assert_uint_eq(row.reserved_bytes, reserved_bytes);
	ck_assert_uint_eq(row.shared_bytes, shared_bytes);
}

static void await_paid(uint64_t reserved_bytes)
{
	const uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (world_row(session).reserved_bytes != reserved_bytes) {
		ck_assert_msg(harness_now_ms() < end_ms, "%llu bytes are paid, not %llu",
		              (unsigned long long)world_row(session).reserved_bytes,
		              (unsigned long long)reserved_bytes);
		harness_sleep_ms(5);
	}
}

/* ---- two processes ------------------------------------------------------------------------------ */

/* The owner seals, waits for stage 2, does something, says 3, and waits to be killed. */
static void own(void *user)
{
	void (*const act)(void) = (void (*)(void))(uintptr_t)user;
	open_keyed(0);
	commit(0, 3);
	write_and_seal(0, "zero", 10);
	write_and_seal(1, "one.", 11);
	write_step(2, 12);
	world_reach(1);
	world_await(2);
	act();
	if (*world_stage < 3) {
		world_reach(3);
	}
	world_await(FOREVER);
}

/* The reader has step "zero" at its step 4 from stage 2 on, and goes on from stage 3. */
static void begin_to_read(uint32_t flags)
{
	open_keyed(flags);
	world_await(1);
	assert_ok(read_named(4, "zero"));
	ck_assert_uint_eq(check_read(4), 10);
	ck_assert_uint_eq(world_usage(session).live_bytes, flags ? CHUNK : 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, flags ? CHUNK : 0);
	expect_paid(flags ? CHUNK : 0, STEP);
	assert_fails(-ENOENT, "nobody else has sealed", read_named(5, "zero"));
	if (*world_stage < 2) {
		world_reach(2);
	}
	world_await(3);
	check_step(4, 10);
}

static void run_two(void (*act)(void), world_fn reader)
{
	pid_t owner = world_client(own, (void *)(uintptr_t)act);
	pid_t client = world_client(reader, NULL);
	world_join(client);
	world_reach(FOREVER);
	world_join(owner);
}

static void find_it_busy(void)
{
	/* Steps that the record does not describe may change. */
	write_step(2, 99);
	assert_ok(glake_elastic_unseal(elastic, 1, 2));
	assert_fails(GLAKE_E_BUSY, "reads chunk", glake_elastic_unseal(elastic, 0, 1));
	/* To seal it once more does no harm. */
	struct note note = {.name = {'n', 'e', 'w', '.'}, .seed = 10};
	assert_ok(glake_elastic_seal(elastic, 0, &note, sizeof(note)));
	assert_fails(GLAKE_E_BUSY, "reads chunk", glake_elastic_unseal(elastic, 0, 3));
	expect_paid(3 * STEP, 0);
	world_reach(3);
	world_await(4);
	assert_ok(glake_elastic_unseal(elastic, 0, 3));
	write_step(0, 55);
	world_reach(5);
}

static void read_and_hide(void *user)
{
	begin_to_read(0);
	assert_ok(glake_elastic_hide(elastic, 4, 1));
	expect_paid(0, 0);
	world_reach(4);
	world_await(5);
	assert_fails(-ENOENT, "", read_named(4, NULL));
	expect_states("--------");
}

START_TEST(what_is_read_is_not_unsealed)
{
	begin();
	run_two(find_it_busy, read_and_hide);
}
END_TEST

static void lend_and_return(void)
{
	assert_ok(glake_elastic_lend(elastic, 0, 1));
	ck_assert_int_eq(glake_elastic_return(elastic, 0, 1), 1);
	expect_paid(2 * STEP, 0);
	commit(0, 1);
	check_zero(0);
	write_step(0, 44);
}

static void close_it(void)
{
	assert_ok(glake_elastic_close(elastic));
}

static void disconnect_it(void)
{
	world_disconnect(session);
}

static void fall_asleep(void)
{
	words_fall_asleep(session);
	assert_ok(glake_wake(session, NULL));
	expect_states("HHH-----");
	check_step(0, 10);
	check_step(1, 11);
	expect_paid(3 * STEP, 0);
	write_step(0, 33);
}

/* The step is this session's now. */
static void read_on(void *user)
{
	begin_to_read(user ? GLAKE_ELASTIC_GUARD : 0);
	expect_paid(STEP, 0);
	check_step(4, 10);
	ck_assert(!words_can_write(place(4, 1)));
	assert_ok(glake_elastic_hide(elastic, 4, 1));
	expect_states("--------");
	expect_paid(0, 0);
}

static void (*const losses[])(void) = {lend_and_return, close_it, disconnect_it, fall_asleep};

START_TEST_WITH(what_its_owner_gives_up_is_the_readers, .n = n_elements(losses))
{
	begin();
	run_two(losses[_i], read_on);
}
END_TEST

static void do_nothing(void)
{
}

/* The step that is read stays where it is while the reader sleeps: it is none of those that sleep. */
static void read_and_sleep(void *user)
{
	begin_to_read(user ? GLAKE_ELASTIC_GUARD : 0);
	commit(0, 1);
	write_step(0, 1);
	struct glake_slept slept = words_fall_asleep(session);
	ck_assert_uint_eq(slept.private_bytes, STEP);
	ck_assert_str_eq(slept.stays[slept.n_stays - 1].why, "another process's");
	ck_assert_uint_eq(slept.stays[slept.n_stays - 1].bytes, STEP);
	check_step(4, 10);
	ck_assert(!words_can_write(place(4, 1)));
	assert_ok(glake_wake(session, NULL));
	check_step(4, 10);
	check_step(0, 1);
	ck_assert(!words_can_write(place(4, 1)));
	ck_assert(words_can_write(place(0, 1)));
	/* Asleep it can ask for more, which wakes. */
	words_fall_asleep(session);
	assert_ok(read_named(5, "one."));
	ck_assert_uint_eq(check_read(5), 11);
	ck_assert(!glake_is_asleep(session));
	ck_assert(glake__space_is_valid());
}

START_TEST(a_reader_may_sleep)
{
	begin();
	run_two(do_nothing, read_and_sleep);
}
END_TEST

/* ---- deaths ------------------------------------------------------------------------------------- */

static void read_until_it_is_dead(void *user)
{
	begin_to_read(0);
	world_reach(4);
	await_paid(STEP);
	check_step(4, 10);
	ck_assert(!words_can_write(place(4, 2)));
	/* A step that nobody read is kept. */
	assert_ok(read_named(5, NULL));
	ck_assert_uint_eq(check_read(5), 11);
	expect_paid(2 * STEP, 0);
	world_reach(5);
	world_await(FOREVER);
	check_step(4, 10);
	check_step(5, 11);
}

/* Both are found at the first reader. */
static void read_behind_it(void *user)
{
	open_keyed(GLAKE_ELASTIC_GUARD);
	unsigned seen = 0;
	for (uint32_t i = 0; i < 2; i++) {
		assert_ok(read_named(i, NULL));
		seen += check_read(i);
	}
	ck_assert_uint_eq(seen, 10 + 11);
	assert_fails(-ENOENT, "", read_named(2, NULL));
	expect_paid(CHUNK, 2 * STEP);
	world_reach(6);
	world_await(7);
	await_paid(2 * STEP + CHUNK);
	check_step(0, 11);
	check_step(1, 10);
	world_reach(8);
	world_await(9);
}

/* From the reader that was killed last. */
static void adopt_both(void *user)
{
	uint32_t n_living;
	open_keyed(0);
	for (uint32_t i = 0; i < 2; i++) {
		int r = glake_elastic_adopt(elastic, i, record, &n_record, &n_living);
		while (r == -ENOENT && n_living > 0) {
			harness_sleep_ms(5);
			r = glake_elastic_adopt(elastic, i, record, &n_record, &n_living);
		}
		assert_ok(r);
	}
	assert_ok(glake_elastic_unseal(elastic, 0, 2));
	write_step(0, 1);
	expect_paid(2 * STEP, 0);
}

START_TEST(it_goes_from_reader_to_reader)
{
	begin();
	pid_t owner = world_client(own, (void *)(uintptr_t)do_nothing);
	pid_t first = world_client(read_until_it_is_dead, NULL);
	world_await(4);
	world_kill(owner);
	world_await(5);
	pid_t second = world_client(read_behind_it, NULL);
	world_await(6);
	ck_assert_uint_eq(words_device_bytes(), 2 * STEP + CHUNK);
	world_kill(first);
	world_reach(7);
	world_await(8);
	ck_assert_uint_eq(words_device_bytes(), 2 * STEP + CHUNK);
	world_kill(second);
	world_join(world_client(adopt_both, NULL));
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

/* The reader has the step's memory when the owner has ended, though the reader sleeps. */
static void sleep_through_its_end(void *user)
{
	begin_to_read(user ? GLAKE_ELASTIC_GUARD : 0);
	commit(0, 1);
	write_step(0, 1);
	words_fall_asleep(session);
	world_reach(4);
	world_await(5);
	ck_assert(glake_is_asleep(session));
	check_step(4, 10);
	assert_ok(glake_wake(session, NULL));
	await_paid((user ? CHUNK : 0) + 2 * STEP);
	check_step(0, 1);
	check_step(4, 10);
	struct glake_slept slept = words_fall_asleep(session);
	ck_assert_uint_eq(slept.private_bytes, STEP);
	assert_ok(glake_wake(session, NULL));
	check_step(4, 10);
	ck_assert(!words_can_write(place(4, 1)));
	assert_ok(glake_elastic_hide(elastic, 4, 1));
	expect_paid((user ? CHUNK : 0) + STEP, 0);
}

START_TEST_WITH(an_owner_may_end_while_its_reader_sleeps, .n = 2)
{
	begin();
	pid_t owner = world_client(own, (void *)(uintptr_t)do_nothing);
	pid_t reader = world_client(sleep_through_its_end, (void *)(uintptr_t)_i);
	world_await(4);
	world_kill(owner);
	world_wait_metric("steps_kept", 1);
	world_reach(5);
	world_join(reader);
}
END_TEST

static void read_to_the_end(void *user)
{
	begin_to_read(0);
	world_reach(4);
	world_await(FOREVER);
}

START_TEST(a_reader_that_is_killed_leaves_it_to_its_owner)
{
	begin();
	pid_t owner = world_client(own, (void *)(uintptr_t)do_nothing);
	pid_t reader = world_client(read_to_the_end, NULL);
	world_await(4);
	world_kill(reader);
	ck_assert_uint_eq(words_device_bytes(), 3 * STEP);
	world_kill(owner);
	world_wait_metric("steps_kept", 2);
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

/* A tenant that has all that it may have goes on to pay, and gets no more. */
static void outlive_beyond_the_quota(void *user)
{
	begin_to_read(0);
	commit(0, 1);
	world_reach(4);
	world_await(5);
	await_paid(2 * STEP);
	check_step(4, 10);
	assert_fails(GLAKE_E_OVER_QUOTA, "", glake_elastic_commit(elastic, 1, 1, NULL));
	assert_ok(glake_elastic_hide(elastic, 4, 1));
	assert_ok(glake_elastic_lend(elastic, 0, 1));
	ck_assert_int_eq(glake_elastic_return(elastic, 0, 1), 1);
	commit(1, 1);
}

START_TEST(a_quota_is_charged_once)
{
	begin();
	pid_t owner = world_client(own, (void *)(uintptr_t)do_nothing);
	pid_t reader = world_client(outlive_beyond_the_quota, NULL);
	world_await(4);
	ck_assert_uint_eq(words_device_bytes(), 4 * STEP);
	/* Less than the reader will have. */
	assert_ok(glake_set_quota(eye, "default", 0, STEP + CHUNK));
	world_kill(owner);
	world_reach(5);
	world_join(reader);
}
END_TEST

/* ---- glaked ------------------------------------------------------------------------------------- */

static void go_on(void)
{
	world_reach(3);
	world_await(5);
	check_step(0, 10);
	/* glaked knows of the reader still. */
	int r;
	while ((r = glake_elastic_unseal(elastic, 0, 1)) == GLAKE_E_GONE) {
		harness_sleep_ms(10);
	}
	ck_assert_int_eq(r, GLAKE_E_BUSY);
	world_reach(6);
	world_await(FOREVER);
}

static void read_beside_a_restart(void *user)
{
	begin_to_read(0);
	world_reach(4);
	world_await(6);
	check_step(4, 10);
	expect_paid(0, STEP);
	world_reach(7);
	await_paid(STEP);
	check_step(4, 10);
	assert_ok(glake_elastic_hide(elastic, 4, 1));
	expect_paid(0, 0);
}

START_TEST(it_outlives_glaked)
{
	begin_kept();
	pid_t owner = world_client(own, (void *)(uintptr_t)go_on);
	pid_t reader = world_client(read_beside_a_restart, NULL);
	world_await(4);
	harness_kill(&harness);
	harness_restart(&harness);
	world_reach(5);
	world_await(7);
	world_kill(owner);
	world_join(reader);
}
END_TEST

static void read_until_both_are_dead(void *user)
{
	begin_to_read(0);
	world_reach(*world_stage + 1);
	world_await(6);
	check_step(4, 10);
	expect_paid(user ? 0 : STEP, user ? STEP : 0);
	ck_assert(!words_can_write(place(4, 0)));
	world_reach(*world_stage + 1);
	world_await(9);
	check_step(4, 10);
	expect_paid(STEP, 0);
	assert_ok(glake_elastic_hide(elastic, 4, 1));
	expect_paid(0, 0);
}

/* The next glaked finds that the first of two readers has it. */
START_TEST(an_owner_may_end_while_there_is_no_glaked)
{
	begin_kept();
	pid_t readers[2];
	pid_t owner = world_client(own, (void *)(uintptr_t)do_nothing);
	readers[0] = world_client(read_until_both_are_dead, NULL);
	world_await(4);
	readers[1] = world_client(read_until_both_are_dead, (void *)1);
	world_await(5);
	harness_kill(&harness);
	world_kill(owner);
	harness_restart(&harness);
	world_reach(6);
	world_await(8);
	world_kill(readers[0]);
	while (words_device_bytes() != STEP) {
		harness_sleep_ms(5);
	}
	world_reach(9);
	world_join(readers[1]);
}
END_TEST

/* ---- at any time -------------------------------------------------------------------------------- */

/* Seals, unseals what nobody reads, leaves to readers what they read, and ends whenever. */
static void write_for_ever(void *user)
{
	unsigned dice = (unsigned)(uintptr_t)user;
	int r;
	open_keyed(0);
	/* What readers still read of writers that have ended may be all there is. */
	while ((r = glake_elastic_commit(elastic, 0, 4, NULL)) == GLAKE_E_NO_DEVICE_MEMORY) {
		harness_sleep_ms(1);
	}
	assert_ok(r);
	for (unsigned seed = 1;; seed++) {
		uint32_t step = rand_r(&dice) % 4;
		r = glake_elastic_unseal(elastic, step, 1);
		ck_assert(r == 0 || r == GLAKE_E_BUSY);
		if (r < 0 && rand_r(&dice) % 2) {
			assert_ok(glake_elastic_lend(elastic, step, 1));
			glake_elastic_return(elastic, step, 1);
			r = glake_elastic_commit(elastic, step, 1, NULL);
			ck_assert(r == 0 || r == GLAKE_E_NO_DEVICE_MEMORY);
		}
		if (r == 0 && state_of(step) == GLAKE_ELASTIC_HELD) {
			write_and_seal(step, "any.", seed);
		}
		if (seed == 8) {
			world_reach(*world_stage + 1);
		}
	}
}

static void read_for_ever(void *user)
{
	unsigned dice = (unsigned)(uintptr_t)user;
	unsigned seeds[N_STEPS] = {0};
	open_keyed(dice % 2 ? GLAKE_ELASTIC_GUARD : 0);
	for (unsigned n = 0; *world_stage < FOREVER; n++) {
		uint32_t step = rand_r(&dice) % N_STEPS;
		if (state_of(step) == GLAKE_ELASTIC_READ) {
			check_step(step, seeds[step]);
			ck_assert(!words_can_write(place(step, n % N_LANES)));
			if (rand_r(&dice) % 3) {
				assert_ok(glake_elastic_hide(elastic, step, 1));
			}
		} else {
			int r = read_named(step, n % 2 ? "any." : NULL);
			ck_assert_msg(r == 0 || r == -ENOENT, "%d: %s", r, glake_error());
			seeds[step] = r == 0 ? check_read(step) : 0;
		}
	}
	assert_ok(glake_elastic_close(elastic));
}

/* Two writers, one after the other and at once, of whom one is killed; and readers, of whom one is. */
START_TEST(readers_read_what_the_record_says_whoever_ends)
{
	begin();
	pid_t readers[3];
	for (unsigned i = 0; i < 3; i++) {
		readers[i] = world_client(read_for_ever, (void *)(uintptr_t)(i + 1));
	}
	for (unsigned i = 0; i < N_ROUNDS; i++) {
		int stage = *world_stage;
		pid_t writer = world_client(write_for_ever, (void *)(uintptr_t)(i + 10));
		world_await(stage + 1);
		harness_sleep_ms(random() % 40);
		if (i % 2) {
			world_kill(readers[i % 3]);
			readers[i % 3] = world_client(read_for_ever, (void *)(uintptr_t)(i + 20));
		}
		world_kill(writer);
	}
	world_reach(FOREVER);
	for (unsigned i = 0; i < 3; i++) {
		world_join(readers[i]);
	}
}
END_TEST

/* ---- who does not share ------------------------------------------------------------------------- */

static void own_alone(void *user)
{
	struct glake_elastic_desc desc = desc_of(1, 0);
	desc.key = "model and layout";
	desc.n_key = 16;
	words_open_driver();
	session = world_connect();
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
	write_and_seal(0, "zero", 10);
	world_reach(1);
	world_await(FOREVER);
}

static void read_what_is_left(void *user)
{
	open_keyed(0);
	assert_fails(-ENOENT, "", read_named(0, NULL));
	world_reach(2);
	int r;
	while ((r = read_named(0, NULL)) == -ENOENT) {
		harness_sleep_ms(5);
	}
	assert_ok(r);
	ck_assert_uint_eq(check_read(0), 10);
	expect_paid(STEP, 0);
}

START_TEST(what_is_not_shared_is_read_when_its_process_has_ended)
{
	begin();
	pid_t owner = world_client(own_alone, NULL);
	world_await(1);
	pid_t reader = world_client(read_what_is_left, NULL);
	world_await(2);
	world_kill(owner);
	world_join(reader);
}
END_TEST

/* ---- what is refused ---------------------------------------------------------------------------- */

static void ask_for_nonsense(void *user)
{
	begin_to_read(0);
	assert_fails(-EINVAL, "NULL", glake_elastic_read(elastic, 0, NULL, 1, record, &n_record));
	assert_fails(-EINVAL, "NULL", glake_elastic_read(elastic, 0, NULL, 0, NULL, &n_record));
	assert_fails(-EINVAL, "NULL", glake_elastic_read(elastic, 0, NULL, 0, record, NULL));
	assert_fails(-EINVAL, "65 bytes",
	             glake_elastic_read(elastic, 0, record, 65, record, &n_record));
	assert_fails(-EINVAL, "the range has 8", read_named(8, NULL));
	assert_fails(-EBUSY, "step 4 is no hole", read_named(4, NULL));
	assert_fails(-ENOENT, "", read_named(0, "none"));
	expect_states("----R---");
	assert_fails(-EBUSY, "second place", glake_elastic_lend(elastic, 4, 1));
	assert_fails(-EBUSY, "second place", glake_elastic_commit(elastic, 4, 1, NULL));
	assert_fails(-EBUSY, "second place", glake_elastic_unseal(elastic, 4, 1));
	const uint32_t step = 4;
	assert_fails(-EBUSY, "is not held", glake_elastic_show(elastic, 0, elastic, &step, 1));
	/* One's own steps one does not find. */
	commit(0, 1);
	write_and_seal(0, "own.", 3);
	assert_fails(-ENOENT, "", read_named(1, "own."));
	assert_ok(read_named(1, "one."));
	ck_assert_uint_eq(check_read(1), 11);
	/* A step that cannot be mapped is not read. */
	world_set_own_faults("cuMemMap:2:fail=1");
	assert_ok(glake_elastic_hide(elastic, 1, 1));
	assert_fails(GLAKE_E_CUDA, "", read_named(1, "one."));
	world_set_own_faults("");
	expect_paid(STEP, STEP);
	assert_ok(read_named(1, "one."));
	ck_assert_uint_eq(check_read(1), 11);
	ck_assert(glake__space_is_valid());
	assert_ok(glake_elastic_close(elastic));
	expect_paid(0, 0);
	const struct glake_elastic_desc desc = desc_of(0, 0);
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
	assert_fails(-EINVAL, "without a key", read_named(0, NULL));
}

START_TEST(what_makes_no_sense_is_refused)
{
	begin();
	run_two(do_nothing, ask_for_nonsense);
}
END_TEST
