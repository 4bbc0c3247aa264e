/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of elastic ranges in a second place: read-only, and as long as that is there, nobody's else. */
#include <pthread.h>

#include "tests/integration/elastic.h"

BEGIN_EACH(elastic_begin)

static struct glake_elastic *view;
static glake_ptr view_base;

static void open_view(uint32_t flags)
{
	const struct glake_elastic_desc desc = desc_of(0, flags);
	assert_ok(glake_elastic_open(session, &desc, &view, &view_base));
}

static glake_ptr second(uint32_t step, uint32_t lane)
{
	return view_base + lane * STRIDE + step * CHUNK;
}

static bool is_second(uint32_t step, unsigned seed)
{
	uint32_t n = 0;
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		n += words_are(second(step, lane), CHUNK, seed * N_LANES + lane);
	}
	return n == N_LANES;
}

static void check_second(uint32_t step, unsigned seed)
{
	ck_assert(is_second(step, seed));
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		ck_assert(!words_can_write(second(step, lane)));
	}
}

static uint32_t view_state(uint32_t step)
{
	return __atomic_load_n(&glake_elastic_states(view)[step], __ATOMIC_ACQUIRE);
}

static void show(uint32_t first, uint32_t step)
{
	assert_ok(glake_elastic_show(view, first, elastic, &step, 1));
}

/* Wherever they lie, and whatever stands in holes. */
static void show_a_prefix(uint32_t flags, uint32_t view_flags)
{
	static const uint32_t steps[] = {5, 1, 3};
	const uint64_t n_guards = !!(flags & GLAKE_ELASTIC_GUARD) +
	                          !!(view_flags & GLAKE_ELASTIC_GUARD);
	open_range(0, flags);
	open_view(view_flags);
	commit(0, 6);
	for (uint32_t i = 0; i < 6; i++) {
		write_step(i, i);
	}
	/* A lent step is taken. */
	assert_ok(glake_elastic_lend(elastic, 3, 1));
	assert_ok(glake_elastic_show(view, 2, elastic, steps, 3));
	expect_states("HSHSHS--");
	ck_assert_uint_eq(view_state(2), GLAKE_ELASTIC_READ);
	ck_assert_uint_eq(view_state(5), GLAKE_ELASTIC_HOLE);
	check_second(2, 5);
	check_second(3, 1);
	check_second(4, 3);
	/* In both places it is one memory, which is charged once. */
	ck_assert_uint_eq(words_device_bytes(), 6 * STEP + n_guards * CHUNK);
	ck_assert_uint_eq(world_usage(session).live_bytes, 6 * STEP + n_guards * CHUNK);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 6 * STEP + n_guards * CHUNK);
	write_step(1, 9);
	check_second(3, 9);
	ck_assert(glake__space_is_valid());
	struct glake_elastic_stats of_view = {.size = sizeof(of_view)};
	assert_ok(glake_elastic_stats(view, &of_view));
	ck_assert_uint_eq(of_view.n_read, 3);
	ck_assert_uint_eq(of_view.n_held, 0);
	ck_assert_uint_eq(stats().n_held, 6);
	assert_ok(glake_elastic_hide(view, 0, N_STEPS));
	expect_states("HHHHHH--");
	ck_assert_uint_eq(view_state(2), GLAKE_ELASTIC_HOLE);
	ck_assert(glake__space_is_valid());
	check_step(5, 5);
	check_step(1, 9);
	assert_ok(glake_elastic_close(view));
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}

START_TEST(a_prefix_is_read_side_by_side)
{
	show_a_prefix(0, 0);
}
END_TEST

START_TEST(so_it_is_where_holes_have_a_guard)
{
	show_a_prefix(0, GLAKE_ELASTIC_GUARD);
}
END_TEST

START_TEST(so_it_is_of_a_range_with_a_guard)
{
	show_a_prefix(GLAKE_ELASTIC_GUARD, 0);
}
END_TEST

START_TEST(so_it_is_with_two_guards)
{
	show_a_prefix(GLAKE_ELASTIC_GUARD, GLAKE_ELASTIC_GUARD);
}
END_TEST

START_TEST(what_is_read_stays)
{
	glake_ptr ptr;
	open_range(0, GLAKE_ELASTIC_SERVE);
	open_view(0);
	commit(0, 4);
	write_step(1, 7);
	show(0, 1);
	show(1, 1);
	assert_fails(-EBUSY, "step 1 is read in a second place", glake_elastic_lend(elastic, 0, 4));
	expect_states("HSHH----");
	assert_fails(-EBUSY, "step 1 is read", glake_elastic_unseal(elastic, 0, 4));
	assert_fails(-EBUSY, "step 1 is read", glake_elastic_close(elastic));
	assert_fails(-EBUSY, "second place of another", glake_elastic_lend(view, 0, 1));
	assert_fails(-EBUSY, "second place of another", glake_elastic_unseal(view, 0, 1));
	assert_fails(-EBUSY, "second place of another", glake_elastic_commit(view, 0, 1, NULL));
	ck_assert_uint_eq(glake_elastic_take(view, 0, 1), 0);
	ck_assert_uint_eq(glake_elastic_take(elastic, 0, 4), 4);
	ck_assert_int_eq(glake_elastic_return(elastic, 0, 8), 0);
	ck_assert_int_eq(glake_elastic_return(view, 0, 8), 0);
	assert_ok(glake_elastic_lend(elastic, 2, 2));
	/* All that there is, but for what glaked keeps: what is lent goes, and this does not. */
	struct glake_session *other = world_connect();
	assert_ok(glake_alloc(other, 0, 94 * MIB - 2 * STEP, 0, &ptr));
	expect_states("HS------");
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "", glake_alloc(other, 0, CHUNK, 0, &ptr));
	check_second(0, 7);
	check_second(1, 7);
	assert_ok(glake_elastic_hide(view, 0, 1));
	assert_fails(-EBUSY, "step 1 is read", glake_elastic_lend(elastic, 1, 1));
	check_second(1, 7);
	assert_ok(glake_elastic_hide(view, 0, 8));
	assert_ok(glake_elastic_lend(elastic, 1, 1));
	assert_ok(glake_alloc(other, 0, STEP, 0, &ptr));
	expect_states("H-------");
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(a_range_may_read_itself)
{
	const uint32_t step = 1;
	open_range(0, 0);
	commit(0, 2);
	write_step(1, 3);
	assert_ok(glake_elastic_show(elastic, 6, elastic, &step, 1));
	expect_states("HS----R-");
	check_step(6, 3);
	ck_assert(!words_can_write(place(6, 2)));
	ck_assert_uint_eq(words_device_bytes(), 2 * STEP);
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
}
END_TEST

/* The end of a session asks for no order. */
START_TEST(a_session_may_end_meanwhile)
{
	open_range(1, 0);
	open_view(GLAKE_ELASTIC_GUARD);
	show(3, 0);
	world_disconnect(session);
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

static void sleep_and_wake(uint32_t flags)
{
	open_range(0, flags | GLAKE_ELASTIC_SERVE);
	open_view(flags);
	commit(0, 3);
	for (uint32_t i = 0; i < 3; i++) {
		write_step(i, i);
	}
	show(0, 2);
	show(1, 0);
	struct glake_slept slept = words_fall_asleep(session);
	ck_assert_uint_eq(slept.private_bytes, 3 * STEP);
	ck_assert_uint_eq(words_device_bytes(), flags & GLAKE_ELASTIC_GUARD ? 2 * CHUNK : 0);
	ck_assert_uint_eq(view_state(0), GLAKE_ELASTIC_READ);
	assert_fails(-EBUSY, "step 0 is read", glake_elastic_lend(elastic, 0, 1));
	assert_ok(glake_wake(session, NULL));
	expect_states("SHS-----");
	check_second(0, 2);
	check_second(1, 0);
	check_step(1, 1);
	write_step(2, 8);
	check_second(0, 8);
	/* To show something, and to hide it, wakes. */
	words_fall_asleep(session);
	show(2, 1);
	ck_assert(!glake_is_asleep(session));
	check_second(2, 1);
	words_fall_asleep(session);
	assert_ok(glake_elastic_hide(view, 0, 3));
	ck_assert(!glake_is_asleep(session));
	expect_states("HHH-----");
	check_step(2, 8);
	ck_assert_uint_eq(world_usage(session).reserved_bytes,
	                  3 * STEP + (flags & GLAKE_ELASTIC_GUARD ? 2 * CHUNK : 0));
	ck_assert(glake__space_is_valid());
}

START_TEST(both_places_sleep_and_wake)
{
	sleep_and_wake(0);
}
END_TEST

START_TEST(both_places_sleep_and_wake_beside_guards)
{
	sleep_and_wake(GLAKE_ELASTIC_GUARD);
}
END_TEST

static const char *const calls[] = {"cuMemMap", "cuMemSetAccess", "cuMemRetainAllocationHandle",
                                    "cuMemUnmap"};

/* The @n_th call of a function fails. */
static unsigned fail_each_call(uint32_t flags)
{
	unsigned n_failed = 0;
	char rule[64];
	for (size_t i = 0; i < n_elements(calls); i++) {
		for (unsigned n_th = 1; n_th <= N_LANES + 1; n_th++) {
			snprintf(rule, sizeof(rule), "%s:%u:fail=1", calls[i], n_th);
			static const uint32_t steps[] = {1, 0};
			world_set_own_faults(rule);
			int r = glake_elastic_show(view, 0, elastic, steps, 2);
			world_set_own_faults("");
			n_failed += r < 0;
			if (r < 0) {
				ck_assert_int_eq(r, GLAKE_E_CUDA);
				expect_states("HH------");
				ck_assert_uint_eq(view_state(0), GLAKE_ELASTIC_HOLE);
				ck_assert_uint_eq(view_state(1), GLAKE_ELASTIC_HOLE);
				assert_ok(glake_elastic_show(view, 0, elastic, steps, 2));
			}
			check_second(0, 1);
			check_second(1, 0);
			world_set_own_faults(rule);
			r = glake_elastic_hide(view, 0, 2);
			world_set_own_faults("");
			n_failed += r < 0;
			if (r < 0 && (view_state(0) == GLAKE_ELASTIC_LOST ||
			              view_state(1) == GLAKE_ELASTIC_LOST)) {
				/* Its memory stays until the range ends. */
				ck_assert_str_eq(calls[i], "cuMemUnmap");
				assert_ok(glake_elastic_hide(view, 0, 2));
				assert_ok(glake_elastic_close(view));
				open_view(flags);
			} else {
				assert_ok(glake_elastic_hide(view, 0, 2));
				ck_assert_uint_eq(view_state(0), GLAKE_ELASTIC_HOLE);
			}
			expect_states("HH------");
			check_step(0, 0);
			check_step(1, 1);
			ck_assert(glake__space_is_valid());
		}
	}
	return n_failed;
}

static void meet_failures(uint32_t flags)
{
	open_range(2, 0);
	open_view(flags);
	write_step(0, 0);
	write_step(1, 1);
	ck_assert_uint_gt(fail_each_call(flags), 6);
	assert_ok(glake_elastic_close(view));
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}

START_TEST(a_call_of_the_driver_that_fails_leaves_none_or_all)
{
	meet_failures(0);
}
END_TEST

START_TEST(a_call_of_the_driver_that_fails_leaves_none_or_all_beside_a_guard)
{
	meet_failures(GLAKE_ELASTIC_GUARD);
}
END_TEST

START_TEST(nonsense_is_refused)
{
	const uint32_t steps[] = {0, 7, 8};
	struct glake_elastic_desc desc = desc_of(0, 0);
	struct glake_elastic *odd;
	glake_ptr ptr;
	open_range(1, 0);
	open_view(0);
	write_step(0, 0);
	assert_fails(-EINVAL, "NULL", glake_elastic_show(NULL, 0, elastic, steps, 1));
	assert_fails(-EINVAL, "NULL", glake_elastic_show(view, 0, NULL, steps, 1));
	assert_fails(-EINVAL, "NULL", glake_elastic_show(view, 0, elastic, NULL, 1));
	assert_fails(-EINVAL, "the range has 8", glake_elastic_show(view, 6, elastic, steps, 3));
	assert_fails(-EINVAL, "the range has 8", glake_elastic_show(view, 0, elastic, steps, 3));
	assert_fails(-EINVAL, "the range has 8", glake_elastic_hide(view, 8, 1));
	assert_fails(-EINVAL, "NULL", glake_elastic_hide(NULL, 0, 1));
	/* One of them is a hole: then none is shown. */
	assert_fails(-EBUSY, "step 7 is not held", glake_elastic_show(view, 0, elastic, steps, 2));
	expect_states("H-------");
	show(1, 0);
	assert_fails(-EBUSY, "step 1 is no hole", glake_elastic_show(view, 1, elastic, steps, 1));
	assert_fails(-EBUSY, "step 0 is no hole",
	             glake_elastic_show(elastic, 0, elastic, steps, 1));
	/* No second place of a second place. */
	const uint32_t again = 1;
	assert_fails(-EBUSY, "step 1 is not held", glake_elastic_show(view, 2, view, &again, 1));
	assert_ok(glake_elastic_show(view, 3, elastic, NULL, 0));
	desc.n_lanes = 2;
	assert_ok(glake_elastic_open(session, &desc, &odd, &ptr));
	assert_fails(-EINVAL, "as many lanes", glake_elastic_show(odd, 0, elastic, steps, 1));
	struct glake_session *other = world_connect();
	desc = desc_of(0, 0);
	assert_ok(glake_elastic_open(other, &desc, &odd, &ptr));
	assert_fails(-EINVAL, "same session", glake_elastic_show(odd, 0, elastic, steps, 1));
	check_second(1, 0);
}
END_TEST

static void is_no_business_of_a_child(void *user)
{
	const uint32_t step = 0;
	assert_fails(GLAKE_E_FORKED, "", glake_elastic_show(view, 1, elastic, &step, 1));
	assert_fails(GLAKE_E_FORKED, "", glake_elastic_hide(view, 0, 1));
	glake_disconnect(session);
}

START_TEST(a_child_leaves_it_alone)
{
	open_range(1, 0);
	open_view(0);
	write_step(0, 3);
	show(0, 0);
	world_join(world_client(is_no_business_of_a_child, NULL));
	check_second(0, 3);
	check_step(0, 3);
}
END_TEST

/* Threads show, hide and lend the same steps: whoever sees one shown reads it. */
enum { N_THREADS = 3, N_ROUNDS = 150 };

static void *show_and_hide(void *user)
{
	const uint32_t own = *(const uint32_t *)user;
	unsigned dice = own + 1;
	CUcontext context;
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
	for (unsigned i = 0; i < N_ROUNDS; i++) {
		const uint32_t step = rand_r(&dice) % 4;
		if (rand_r(&dice) % 3 == 0) {
			int r = glake_elastic_lend(elastic, step, 1);
			ck_assert(r == 0 || r == -EBUSY);
			r = glake_elastic_commit(elastic, step, 1, NULL);
			ck_assert(r == 0 || r == GLAKE_E_NO_DEVICE_MEMORY);
			continue;
		}
		int r = glake_elastic_show(view, own, elastic, &step, 1);
		if (r < 0) {
			ck_assert_int_eq(r, -EBUSY);
			continue;
		}
		/* The second place has the step's bytes, or zeros if the step went and came. */
		bool is_one = is_second(own, step) || words_are(second(own, 0), CHUNK, 0);
		uint64_t words[2];
		assert_ok(glake_read(session, 0, words, second(own, 0), 16));
		ck_assert(is_one || (words[0] == 0 && words[1] == 0));
		ck_assert(!words_can_write(second(own, N_LANES - 1)));
		assert_ok(glake_elastic_hide(view, own, 1));
	}
	return NULL;
}

START_TEST(threads_may_show_one_step_while_others_want_memory)
{
	pthread_t threads[N_THREADS];
	uint32_t own[N_THREADS];
	glake_ptr ptr;
	open_range(0, GLAKE_ELASTIC_SERVE);
	open_view(GLAKE_ELASTIC_GUARD);
	commit(0, 4);
	for (uint32_t i = 0; i < 4; i++) {
		write_step(i, i);
	}
	struct glake_session *other = world_connect();
	for (uint32_t i = 0; i < N_THREADS; i++) {
		own[i] = i;
		ck_assert_int_eq(pthread_create(&threads[i], NULL, show_and_hide, &own[i]), 0);
	}
	for (unsigned i = 0; i < N_ROUNDS; i++) {
		if (glake_alloc(other, 0, 80 * MIB, 0, &ptr) == 0) {
			assert_ok(glake_free(other, ptr));
		}
	}
	for (uint32_t i = 0; i < N_THREADS; i++) {
		pthread_join(threads[i], NULL);
	}
	ck_assert(glake__space_is_valid());
	for (uint32_t i = 0; i < 4; i++) {
		ck_assert_uint_ne(state_of(i), GLAKE_ELASTIC_SHOWN);
	}
	assert_ok(glake_elastic_close(view));
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
}
END_TEST
