/* SPDX-License-Identifier: Apache-2.0 */
/* Elastic ranges: steps come, are lent, are taken back, and go to others who need memory. */
#include <pthread.h>
#include <sys/mman.h>

#include "tests/integration/elastic.h"

BEGIN_EACH(elastic_begin)

START_TEST(steps_come_and_go_in_all_lanes)
{
	open_range(1, 0);
	expect_states("H-------");
	check_zero(0);
	commit(2, 3);
	expect_states("H-HHH---");
	ck_assert_uint_eq(words_device_bytes(), 4 * STEP);
	for (uint32_t i = 2; i < 5; i++) {
		check_zero(i);
		write_step(i, i);
	}
	ck_assert(glake__space_is_valid());
	assert_ok(glake_elastic_lend(elastic, 3, 2));
	expect_states("H-HLL---");
	ck_assert_uint_eq(world_usage(session).live_bytes, 2 * STEP);
	ck_assert_uint_eq(world_usage(session).warm_bytes, 2 * STEP);
	/* Nobody needed it: it is as it was. */
	ck_assert_uint_eq(glake_elastic_take(elastic, 3, 5), 2);
	expect_states("H-HHH---");
	check_step(4, 4);
	assert_ok(glake_elastic_lend(elastic, 2, 3));
	ck_assert_int_eq(glake_elastic_return(elastic, 3, 5), 2);
	expect_states("H-L-----");
	ck_assert_uint_eq(words_device_bytes(), 2 * STEP);
	/* A step that comes anew has nobody's bytes. */
	commit(2, 2);
	expect_states("H-HH----");
	check_step(2, 2);
	check_zero(3);
	ck_assert_uint_eq(stats().n_commits, 5);
	ck_assert_uint_eq(stats().n_takes, 3);
	ck_assert_uint_eq(stats().n_returns, 2);
	ck_assert_uint_eq(stats().step_bytes, STEP);
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert(glake__space_is_valid());
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

/* The program of the lender does nothing meanwhile. */
START_TEST(others_get_what_is_lent)
{
	glake_ptr ptr;
	open_range(1, GLAKE_ELASTIC_SERVE);
	commit(1, 7);
	for (uint32_t i = 0; i < N_STEPS; i++) {
		write_step(i, i);
	}
	assert_ok(glake_elastic_lend(elastic, 2, 6));
	struct glake_session *other = world_connect();
	/* Some 48 MiB are free. */
	assert_ok(glake_alloc(other, 0, 48 * MIB + STEP + CHUNK, 0, &ptr));
	/* The highest went, and no more than was needed. */
	expect_states("HHLLLL--");
	ck_assert_uint_eq(glake_elastic_take(elastic, 2, 6), 4);
	for (uint32_t i = 0; i < 6; i++) {
		check_step(i, i);
	}
	/* Nobody gets what is not lent. */
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "", glake_alloc(other, 0, STEP, 0, &ptr));
	expect_states("HHHHHH--");
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(a_step_comes_whole_or_not_at_all)
{
	glake_ptr ptr;
	uint32_t n_got = 99;
	open_range(0, 0);
	struct glake_session *other = world_connect();
	/* Two steps and two thirds are left. */
	assert_ok(glake_alloc(other, 0, 96 * MIB - 2 * STEP - 2 * CHUNK, 0, &ptr));
	commit(0, 1);
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "", glake_elastic_commit(elastic, 0, 3, &n_got));
	ck_assert_uint_eq(n_got, 1);
	expect_states("H-------");
	commit(1, 1);
	ck_assert_uint_eq(words_device_bytes(), 96 * MIB - 2 * CHUNK);
	ck_assert(glake__space_is_valid());
	assert_ok(glake_free(other, ptr));
	commit(0, 8);
	write_step(7, 1);
	check_step(7, 1);
}
END_TEST

START_TEST(what_is_lent_serves_the_lender_first)
{
	glake_ptr ptr;
	open_range(0, 0);
	commit(0, 8);
	write_step(0, 5);
	assert_ok(glake_elastic_lend(elastic, 1, 7));
	assert_ok(glake_alloc(session, 0, 48 * MIB + STEP, 0, &ptr));
	check_step(0, 5);
	ck_assert_uint_eq(state_of(7), GLAKE_ELASTIC_HOLE);
	assert_ok(glake_free(session, ptr));
	commit(0, 8);
	check_step(0, 5);
}
END_TEST

START_TEST(a_trim_gives_what_is_lent)
{
	glake_ptr ptr;
	open_range(0, 0);
	commit(0, 5);
	write_step(0, 5);
	assert_ok(glake_elastic_lend(elastic, 1, 4));
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &ptr));
	assert_ok(glake_trim(session, 0, 4 * STEP));
	expect_states("HLLLL---");
	assert_ok(glake_trim(session, 0, 4 * STEP - 1));
	expect_states("HLLL----");
	assert_ok(glake_trim(session, 0, STEP));
	expect_states("HL------");
	assert_ok(glake_trim(session, 0, 0));
	expect_states("H-------");
	ck_assert_uint_eq(words_device_bytes(), STEP + 4 * MIB);
	check_step(0, 5);
}
END_TEST

START_TEST(a_lender_sleeps_without_what_it_has_lent)
{
	open_range(1, GLAKE_ELASTIC_SERVE);
	commit(1, 5);
	for (uint32_t i = 0; i < 3; i++) {
		write_step(i, i);
	}
	assert_ok(glake_elastic_lend(elastic, 3, 3));
	struct glake_slept slept = words_fall_asleep(session);
	ck_assert_uint_eq(slept.private_bytes, 3 * STEP);
	ck_assert_uint_eq(words_device_bytes(), 0);
	expect_states("HHH-----");
	/* A step that sleeps can be lent, and stays. */
	assert_ok(glake_elastic_lend(elastic, 2, 1));
	ck_assert_int_eq(glake_elastic_return(elastic, 0, 8), 0);
	expect_states("HHL-----");
	/* This wakes it. */
	commit(3, 1);
	ck_assert(!glake_is_asleep(session));
	ck_assert_uint_eq(glake_elastic_take(elastic, 0, 4), 4);
	for (uint32_t i = 0; i < 3; i++) {
		check_step(i, i);
	}
	check_zero(3);
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(a_step_that_the_driver_unmaps_in_part_is_lost)
{
	open_range(0, 0);
	commit(0, 2);
	write_step(1, 4);
	assert_ok(glake_elastic_lend(elastic, 1, 1));
	world_set_own_faults("cuMemUnmap:*:fail=1");
	ck_assert_int_eq(glake_elastic_return(elastic, 1, 1), 0);
	world_set_own_faults("");
	/* All of it is there still. */
	ck_assert_uint_eq(glake_elastic_take(elastic, 1, 1), 1);
	check_step(1, 4);
	assert_ok(glake_elastic_lend(elastic, 1, 1));
	world_set_own_faults("cuMemUnmap:2:fail=1");
	ck_assert_int_eq(glake_elastic_return(elastic, 1, 1), 0);
	world_set_own_faults("");
	expect_states("Hx------");
	ck_assert_uint_eq(glake_elastic_take(elastic, 1, 1), 0);
	assert_fails(GLAKE_E_CUDA, "lost step 1", glake_elastic_commit(elastic, 0, 2, NULL));
	ck_assert_uint_eq(world_usage(session).live_bytes, STEP);
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

START_TEST(nonsense_is_refused)
{
	struct glake_elastic_desc desc = desc_of(0, 0);
	struct glake_elastic *none = NULL;
	glake_ptr ptr;
	open_range(2, 0);
	assert_fails(-EINVAL, "NULL", glake_elastic_open(session, NULL, &none, &ptr));
	desc.n_lanes = 0;
	assert_fails(-EINVAL, "lanes", glake_elastic_open(session, &desc, &none, &ptr));
	desc = desc_of(9, 0);
	assert_fails(-EINVAL, "floor", glake_elastic_open(session, &desc, &none, &ptr));
	desc = desc_of(0, 128);
	assert_fails(-EINVAL, "flag", glake_elastic_open(session, &desc, &none, &ptr));
	desc = desc_of(0, 0);
	desc.chunk_bytes = CHUNK + 4096;
	assert_fails(-EINVAL, "2 MiB", glake_elastic_open(session, &desc, &none, &ptr));
	desc = desc_of(0, 0);
	desc.lane_stride = CHUNK;
	assert_fails(-EINVAL, "room", glake_elastic_open(session, &desc, &none, &ptr));
	desc.lane_stride = UINT64_MAX - 2 * MIB + 1;
	assert_fails(-EINVAL, "room", glake_elastic_open(session, &desc, &none, &ptr));
	desc = desc_of(0, 0);
	desc.device = 7;
	assert_fails(-ENODEV, "", glake_elastic_open(session, &desc, &none, &ptr));
	/* A floor that there is no room for. */
	desc = desc_of(8, 0);
	desc.chunk_bytes = 8 * MIB;
	desc.lane_stride = 64 * MIB;
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "", glake_elastic_open(session, &desc, &none, &ptr));
	ck_assert_ptr_null(none);
	assert_fails(-EINVAL, "the range has 8", glake_elastic_commit(elastic, 7, 2, NULL));
	assert_fails(-EINVAL, "the range has 8", glake_elastic_lend(elastic, 9, 0));
	assert_fails(-EINVAL, "floor", glake_elastic_lend(elastic, 1, 2));
	assert_fails(-EINVAL, "NULL", glake_elastic_commit(NULL, 0, 0, NULL));
	assert_fails(-EINVAL, "the range has 8", glake_elastic_return(elastic, 0, 9));
	ck_assert_uint_eq(glake_elastic_take(elastic, 0, 9), 0);
	ck_assert_uint_eq(glake_elastic_take(NULL, 0, 1), 0);
	assert_ok(glake_elastic_close(NULL));
	expect_states("HH------");
}
END_TEST

static void is_no_business_of_a_child(void *user)
{
	assert_fails(GLAKE_E_FORKED, "", glake_elastic_commit(elastic, 3, 1, NULL));
	ck_assert_uint_eq(glake_elastic_take(elastic, 0, 1), 0);
	glake_disconnect(session);
}

START_TEST(a_child_leaves_it_alone)
{
	open_range(1, GLAKE_ELASTIC_SERVE);
	write_step(0, 3);
	world_join(world_client(is_no_business_of_a_child, NULL));
	check_step(0, 3);
	commit(1, 1);
}
END_TEST

static void *open_another(void *user)
{
	const struct glake_elastic_desc desc = desc_of(1, GLAKE_ELASTIC_SERVE);
	glake_ptr ptr;
	assert_ok(glake_elastic_open(session, &desc, user, &ptr));
	return NULL;
}

START_TEST(one_thread_serves_all_ranges)
{
	struct glake_elastic *others[4];
	pthread_t threads[4];
	session = world_connect();
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(pthread_create(&threads[i], NULL, open_another, &others[i]), 0);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
	}
	/* The end of the session waits for each thread, and for no other. */
	assert_ok(glake_elastic_close(others[2]));
	world_disconnect(session);
}
END_TEST

/* ---- at random --------------------------------------------------------------------------------- */

static atomic_bool is_over;

/* Takes as much as it gets, and gives it back, all the time. */
static void *take_from_others(void *user)
{
	struct glake_session *other = user;
	unsigned seed = 1;
	while (!is_over) {
		glake_ptr ptr;
		uint64_t n_bytes = (1 + rand_r(&seed) % 44) * CHUNK;
		if (glake_alloc(other, 0, n_bytes, 0, &ptr) == 0) {
			assert_ok(glake_free(other, ptr));
		}
	}
	return NULL;
}

/* All of it, or nothing. */
static bool is_step(uint32_t step, unsigned seed)
{
	uint32_t n = 0;
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		n += words_are(place(step, lane), CHUNK, seed * N_LANES + lane);
	}
	ck_assert(n == 0 || n == N_LANES);
	return n > 0;
}

/* Now and then: two requests may be lost, one after the other. */
static atomic_bool ends_glaked;
/* Rounds that are done, for the process that ends glaked: on a busy machine nothing would ever be done otherwise. */
static atomic_uint *n_done; /* shared; NULL: nobody asks */

static bool are_equal(glake_ptr one, glake_ptr other)
{
	static uint8_t bytes[2][CHUNK];
	assert_ok(glake_read(session, 0, bytes[0], one, CHUNK));
	assert_ok(glake_read(session, 0, bytes[1], other, CHUNK));
	return memcmp(bytes[0], bytes[1], CHUNK) == 0;
}

/* A step that is held stands once more, in the same lanes of @view, or no more. */
static void show_at_random(struct glake_elastic *view, glake_ptr view_base, uint32_t step,
                           unsigned dice)
{
	const glake_ptr second = view_base + (dice % N_LANES) * STRIDE + step * CHUNK;
	if (state_of(step) == GLAKE_ELASTIC_HELD) {
		assert_ok(glake_elastic_show(view, step, elastic, &step, 1));
		ck_assert_uint_eq(state_of(step), GLAKE_ELASTIC_SHOWN);
	}
	ck_assert_int_eq(glake_elastic_lend(elastic, step, 1), -EBUSY);
	ck_assert(are_equal(place(step, dice % N_LANES), second));
	ck_assert(!words_can_write(second));
	if (dice & 8) {
		assert_ok(glake_elastic_hide(view, step, 1));
		ck_assert_uint_eq(state_of(step), GLAKE_ELASTIC_HELD);
	}
}

/* Another session takes memory meanwhile, all the time. */
static void work_at_random(uint32_t flags, bool works_ahead)
{
	enum { N_ROUNDS = 300 };
	unsigned seeds[N_STEPS] = {
		0}; /* of the content of what is held or lent; 0: it reads zero */
	unsigned dice = 7;
	unsigned n_back = 0;
	unsigned n_shown = 0;
	pthread_t thread;
	struct glake_elastic *view;
	glake_ptr view_base;
	open_range(1, flags | GLAKE_ELASTIC_SERVE);
	const struct glake_elastic_desc of_view = desc_of(0, 0);
	assert_ok(glake_elastic_open(session, &of_view, &view, &view_base));
	struct glake_session *other = world_connect();
	ck_assert_int_eq(pthread_create(&thread, NULL, take_from_others, other), 0);
	for (unsigned round = 1; round <= (ends_glaked ? N_ROUNDS / 3 : N_ROUNDS); round++) {
		if (n_done) {
			atomic_store(n_done, round);
		}
		uint32_t step = 1 + rand_r(&dice) % (N_STEPS - 1);
		if (works_ahead && rand_r(&dice) % 2) {
			assert_ok(glake_elastic_ahead(elastic, 1, N_STEPS - 1));
		}
		bool is_held = state_of(step) == GLAKE_ELASTIC_HELD;
		if (state_of(step) == GLAKE_ELASTIC_SHOWN || (is_held && rand_r(&dice) % 8 == 0)) {
			n_shown += is_held;
			check_step(step, seeds[step]);
			show_at_random(view, view_base, step, (unsigned)rand_r(&dice));
		} else if (is_held && rand_r(&dice) % 2) {
			assert_ok(glake_elastic_lend(elastic, step, 1));
		} else if (is_held) {
			check_step(step, seeds[step]);
			seeds[step] = round;
			write_step(step, round);
		} else if (glake_elastic_take(elastic, step, 1) == 1) {
			n_back++;
			/* The step may have gone, and come anew. */
			bool is_old = !works_ahead ||
			              (seeds[step] > 0 && is_step(step, seeds[step]));
			if (is_old) {
				check_step(step, seeds[step]);
			} else {
				check_zero(step);
				seeds[step] = round;
				write_step(step, round);
			}
		} else {
			/* Only this thread makes it something else. */
			if (flags & GLAKE_ELASTIC_GUARD && !works_ahead &&
			    state_of(step) == GLAKE_ELASTIC_HOLE) {
				check_zero(step);
				ck_assert(!words_can_write(place(step, round % N_LANES)));
			}
			uint32_t n_got = 0;
			int r = glake_elastic_commit(elastic, step, 1, &n_got);
			if (r == 0) {
				/* With it came nothing, also if it came ahead meanwhile. */
				check_zero(step);
				seeds[step] = round;
				write_step(step, round);
			} else {
				ck_assert(r == GLAKE_E_NO_DEVICE_MEMORY ||
				          (r == GLAKE_E_GONE && ends_glaked));
				ck_assert_uint_eq(n_got, 0);
			}
		}
	}
	is_over = true;
	pthread_join(thread, NULL);
	ck_assert_uint_gt(n_back, 0);
	ck_assert_uint_gt(n_shown, 0);
	/* Who asks a glaked that ends may never get one. */
	ck_assert(stats().n_returns > 0 || ends_glaked);
	ck_assert_int_eq(stats().n_ahead > 0, works_ahead);
	ck_assert(glake__space_is_valid());
	world_disconnect(other);
	assert_ok(glake_elastic_close(view));
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}

START_TEST(nobody_loses_a_byte_that_he_holds)
{
	work_at_random(0, false);
}
END_TEST

START_TEST(nobody_loses_one_or_reads_another_beside_a_guard)
{
	work_at_random(GLAKE_ELASTIC_GUARD, false);
}
END_TEST

START_TEST(nobody_loses_one_while_steps_come_ahead)
{
	work_at_random(0, true);
}
END_TEST

static void begin_kept(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = 0;", .devices = "1x96MiB",
	            .is_activated = true, .keeps_fds = true);
	n_done = mmap(NULL, sizeof(*n_done), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
	              0);
	ck_assert_ptr_ne(n_done, MAP_FAILED);
}

static void work_beside_ends(void *user)
{
	words_open_driver();
	ends_glaked = true;
	work_at_random(GLAKE_ELASTIC_GUARD, true);
	world_reach(1);
	world_await(2);
	/* The session goes on. That the last glaked has gone is found by a call, perhaps. */
	const struct glake_elastic_desc desc = desc_of(2, 0);
	int r;
	for (unsigned i = 0;
	     (r = glake_elastic_open(session, &desc, &elastic, &base)) == GLAKE_E_GONE; i++) {
		ck_assert_uint_lt(i, 1000);
		harness_sleep_ms(10);
	}
	assert_ok(r);
	commit(2, 1);
	assert_ok(glake_elastic_close(elastic));
	world_disconnect(session);
}

/* In the middle of a commit, a lend, or whatever it is. By a process of one thread: it forks. */
START_TEST_WITH(glaked_may_end_at_any_time, .begin = begin_kept)
{
	unsigned seed = 3;
	unsigned n_seen = 0;
	pid_t client = world_client(work_beside_ends, NULL);
	while (*world_stage < 1) {
		while (*world_stage < 1 && atomic_load(n_done) == n_seen) {
			ck_assert_int_ne(world_state_of(client, &(pid_t){0}), 'Z');
			usleep(1000);
		}
		n_seen = atomic_load(n_done);
		usleep(5000 + rand_r(&seed) % 50000);
		harness_kill(&harness);
		harness_restart(&harness);
	}
	world_reach(2);
	world_join(client);
	harness_kill(&harness);
	world_restart();
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

static void begin_blind(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = 0;", .devices = "1x96MiB");
}

static void work_to_the_end(void *user)
{
	words_open_driver();
	work_at_random(GLAKE_ELASTIC_GUARD, true);
	pause();
}

/* Whatever it has on its way. All is there for the next one, at once. */
START_TEST_WITH(an_engine_may_end_at_any_time, .begin = begin_blind)
{
	unsigned seed = 5;
	for (int i = 0; i < 12; i++) {
		pid_t client = world_client(work_to_the_end, NULL);
		usleep(10000 + rand_r(&seed) % 150000);
		world_kill(client);
	}
	struct glake_session *next = world_connect_blind();
	uint64_t id;
	int fd;
	assert_ok(glake_chunk_new(next, 0, 80 * MIB, &id, &fd));
	close(fd);
	world_disconnect(next);
}
END_TEST

START_TEST(nobody_loses_one_with_all_of_it)
{
	work_at_random(GLAKE_ELASTIC_GUARD, true);
}
END_TEST
