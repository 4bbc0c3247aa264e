/* SPDX-License-Identifier: Apache-2.0 */
/* Elastic ranges with a guard: holes read zero, whatever the driver does. */
#include "tests/integration/elastic.h"

BEGIN_EACH(elastic_begin)

/* In all lanes. */
static void check_guarded(uint32_t step)
{
	check_zero(step);
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		ck_assert(!words_can_write(place(step, lane)));
	}
}

START_TEST(holes_read_zero_and_cannot_be_written)
{
	open_range(2, GLAKE_ELASTIC_GUARD);
	ck_assert_uint_eq(words_device_bytes(), 2 * STEP + CHUNK);
	ck_assert_uint_eq(world_usage(session).live_bytes, 2 * STEP + CHUNK);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 2 * STEP + CHUNK);
	expect_states("HH------");
	for (uint32_t i = 2; i < N_STEPS; i++) {
		check_guarded(i);
	}
	/* Behind the last lane, too. */
	ck_assert(words_are(base + N_LANES * STRIDE, 8, 0));
	ck_assert(!words_can_write(base + N_LANES * STRIDE));
	commit(3, 2);
	write_step(0, 7);
	write_step(3, 3);
	write_step(4, 4);
	check_guarded(2);
	check_guarded(5);
	assert_ok(glake_elastic_lend(elastic, 3, 2));
	ck_assert_int_eq(glake_elastic_return(elastic, 4, 1), 1);
	expect_states("HH-L----");
	ck_assert(glake__space_is_valid());
	/* The words that were written have gone with their memory. */
	check_guarded(4);
	check_guarded(5);
	ck_assert_uint_eq(glake_elastic_take(elastic, 3, 1), 1);
	check_step(3, 3);
	check_step(0, 7);
	commit(2, 6);
	check_zero(4);
	check_step(3, 3);
	ck_assert_uint_eq(words_device_bytes(), 8 * STEP + CHUNK);
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(more_steps_than_an_answer_carries)
{
	struct glake_elastic_desc desc = desc_of(0, GLAKE_ELASTIC_GUARD);
	uint8_t word[8];
	desc.n_lanes = 40;
	desc.n_steps = 9;
	desc.lane_stride = 9 * CHUNK;
	desc.chunk_bytes = CHUNK;
	session = world_connect();
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
	/* 360 chunks, more than there is room for: nothing of it stays. */
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "", glake_elastic_commit(elastic, 0, 9, NULL));
	expect_states("---------");
	ck_assert_uint_eq(words_device_bytes(), CHUNK);
	for (uint64_t at = 0; at < 40 * desc.lane_stride; at += CHUNK) {
		assert_ok(glake_read(session, 0, word, base + at, sizeof(word)));
		ck_assert(!words_can_write(base + at));
	}
	commit(8, 1);
	ck_assert(words_can_write(base + 39 * desc.lane_stride + 8 * CHUNK));
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(a_guard_is_awake_while_its_session_sleeps)
{
	open_range(1, GLAKE_ELASTIC_GUARD | GLAKE_ELASTIC_SERVE);
	commit(1, 3);
	for (uint32_t i = 0; i < 3; i++) {
		write_step(i, i);
	}
	assert_ok(glake_elastic_lend(elastic, 3, 1));
	struct glake_slept slept = words_fall_asleep(session);
	ck_assert_uint_eq(slept.private_bytes, 3 * STEP);
	ck_assert_uint_eq(slept.n_stays, 1);
	ck_assert_str_eq(slept.stays[0].why, "guards of elastic ranges");
	ck_assert_uint_eq(slept.stays[0].bytes, CHUNK);
	ck_assert_uint_eq(words_device_bytes(), CHUNK);
	check_guarded(3);
	/* Wakes it. */
	commit(4, 1);
	for (uint32_t i = 0; i < 3; i++) {
		check_step(i, i);
	}
	check_guarded(3);
	check_zero(4);
	ck_assert(words_can_write(place(4, 0)));
	ck_assert(glake__space_is_valid());
	assert_ok(glake_elastic_lend(elastic, 1, 4));
	ck_assert_int_eq(glake_elastic_return(elastic, 0, 8), 3);
	check_guarded(1);
	check_step(0, 0);
}
END_TEST

static const char *const calls[] = {"cuMemMap", "cuMemSetAccess", "cuMemUnmap",
                                    "cuMemImportFromShareableHandle"};

/* The @n_th call of a function fails, then all work again: no step is half of anything. */
START_TEST(a_call_of_the_driver_that_fails_leaves_a_step_as_it_was)
{
	char rule[64];
	unsigned n_failed = 0;
	unsigned n_stayed = 0;
	open_range(1, GLAKE_ELASTIC_GUARD);
	commit(1, 1);
	write_step(0, 9);
	write_step(1, 1);
	assert_ok(glake_elastic_lend(elastic, 1, 1));
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		for (int k = 1; k <= 8; k++) {
			snprintf(rule, sizeof(rule), "%s:%d:fail=2", calls[i], k);
			world_set_own_faults(rule);
			int r = glake_elastic_commit(elastic, 2, 2, NULL);
			world_set_own_faults("");
			n_failed += r < 0;
			expect_states(r < 0 ? "HL------" : "HLHH----");
			for (uint32_t step = 2; step < 4 && r < 0; step++) {
				check_guarded(step);
			}
			ck_assert_uint_eq(words_device_bytes(), (r < 0 ? 2 : 4) * STEP + CHUNK);
			if (r == 0) {
				check_zero(2);
				assert_ok(glake_elastic_lend(elastic, 2, 2));
				ck_assert_int_eq(glake_elastic_return(elastic, 2, 2), 2);
			}
			world_set_own_faults(rule);
			int n = glake_elastic_return(elastic, 1, 1);
			world_set_own_faults("");
			n_stayed += n == 0;
			expect_states(n == 0 ? "HL------" : "H-------");
			ck_assert_uint_eq(glake_elastic_take(elastic, 1, 1), n == 0);
			if (n == 0) {
				check_step(1, 1);
			} else {
				check_guarded(1);
				commit(1, 1);
				write_step(1, 1);
			}
			assert_ok(glake_elastic_lend(elastic, 1, 1));
			check_step(0, 9);
			ck_assert(glake__space_is_valid());
		}
	}
	/* Six chunks come by six calls of each; three go by three of each. */
	ck_assert_uint_eq(n_failed, 4 * 6);
	ck_assert_uint_eq(n_stayed, 3 * 3);
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
}
END_TEST

/* The driver fails to undo as well. */
START_TEST(a_step_that_the_driver_loses_is_used_no_more)
{
	open_range(1, GLAKE_ELASTIC_GUARD);
	commit(1, 2);
	write_step(2, 2);
	assert_ok(glake_elastic_lend(elastic, 1, 1));
	world_set_own_faults("cuMemMap:2+:fail=2");
	ck_assert_int_eq(glake_elastic_return(elastic, 1, 1), 0);
	world_set_own_faults("");
	expect_states("HxH-----");
	world_set_own_faults("cuMemMap:2+:fail=2");
	assert_fails(GLAKE_E_CUDA, "cuMemMap", glake_elastic_commit(elastic, 5, 1, NULL));
	world_set_own_faults("");
	expect_states("HxH--x--");
	assert_fails(GLAKE_E_CUDA, "lost step 1", glake_elastic_commit(elastic, 1, 1, NULL));
	assert_ok(glake_elastic_lend(elastic, 1, 1));
	ck_assert_uint_eq(glake_elastic_take(elastic, 1, 1), 0);
	ck_assert_int_eq(glake_elastic_return(elastic, 0, 8), 0);
	/* All else goes on. */
	check_guarded(4);
	check_guarded(6);
	check_step(2, 2);
	commit(3, 2);
	check_zero(4);
	ck_assert_uint_eq(world_usage(session).live_bytes, 4 * STEP + CHUNK);
	ck_assert(glake__space_is_valid());
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

START_TEST(there_is_no_guard_without_memory)
{
	struct glake_elastic_desc desc = desc_of(0, GLAKE_ELASTIC_GUARD);
	struct glake_elastic *none = NULL;
	glake_ptr ptr;
	session = world_connect();
	struct glake_session *other = world_connect();
	assert_ok(glake_alloc(other, 0, 80 * MIB, 0, &ptr));
	while (glake_alloc(other, 0, CHUNK, 0, &ptr) == 0) {
	}
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "",
	             glake_elastic_open(session, &desc, &none, &base));
	world_disconnect(other);
	/* The driver maps some of it, and then no more. */
	world_set_own_faults("cuMemMap:17:fail=2");
	assert_fails(GLAKE_E_CUDA, "cuMemMap", glake_elastic_open(session, &desc, &none, &base));
	world_set_own_faults("");
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert_ptr_null(none);
	ck_assert(glake__space_is_valid());
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
	check_guarded(0);
	/* The session's end ends it, too. */
}
END_TEST

static void leave(void *user)
{
	assert_fails(GLAKE_E_FORKED, "", glake_elastic_commit(elastic, 3, 1, NULL));
	glake_disconnect(session);
}

START_TEST(a_child_leaves_a_guard_alone)
{
	open_range(1, GLAKE_ELASTIC_GUARD | GLAKE_ELASTIC_SERVE);
	world_join(world_client(leave, NULL));
	check_guarded(1);
	commit(1, 1);
}
END_TEST
