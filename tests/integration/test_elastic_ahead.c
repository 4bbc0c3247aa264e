/* SPDX-License-Identifier: Apache-2.0 */
/* Elastic ranges: steps that come before they are needed, of free memory only. */
#include "libclient/elastic/elastic.h"
#include "tests/integration/elastic.h"

BEGIN_EACH(elastic_begin)

/* The thread that makes steps has the range in use from before it takes what is wanted until that has been tried. */
static bool is_idle(void)
{
	glake__lock();
	bool is_idle = elastic->n_users == 0 && !elastic->has_wanted;
	glake__unlock();
	return is_idle;
}

/* All that was asked for has been tried. */
static void await_idle(void)
{
	while (!is_idle()) {
		usleep(1000);
	}
}

/* As a program does: memory that others have given back may not be free yet. */
static void have_ahead(uint32_t first, uint32_t n, const char *letters)
{
	while (!are_states(letters)) {
		assert_ok(glake_elastic_ahead(elastic, first, n));
		await_idle();
	}
}

START_TEST_WITH(free_memory_is_there_before_it_is_needed, .n = 2)
{
	open_range(1, _i ? GLAKE_ELASTIC_GUARD : 0);
	const uint64_t guard_bytes = _i ? CHUNK : 0;
	have_ahead(0, 5, "HLLLL---");
	ck_assert_uint_eq(world_usage(session).live_bytes, STEP + guard_bytes);
	ck_assert_uint_eq(world_usage(session).warm_bytes, 4 * STEP);
	ck_assert_uint_eq(words_device_bytes(), 5 * STEP + guard_bytes);
	/* No driver is needed for it any more. */
	world_set_own_faults("cuMemMap:*:fail=2");
	commit(1, 4);
	world_set_own_faults("");
	for (uint32_t i = 1; i < 5; i++) {
		check_zero(i);
		write_step(i, i);
	}
	/* Steps that are there stay as they are. */
	assert_ok(glake_elastic_lend(elastic, 2, 1));
	have_ahead(0, N_STEPS, "HHLHHLLL");
	ck_assert_uint_eq(glake_elastic_take(elastic, 2, 1), 1);
	for (uint32_t i = 1; i < 5; i++) {
		check_step(i, i);
	}
	ck_assert_uint_eq(stats().n_commits, 8);
	ck_assert_uint_eq(stats().n_ahead, 7);
	ck_assert(glake__space_is_valid());
	assert_ok(glake_elastic_close(elastic));
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

START_TEST(nobody_gives_anything_for_it)
{
	glake_ptr ptr;
	struct glake_elastic *others;
	glake_ptr others_base;
	const struct glake_elastic_desc desc = desc_of(0, GLAKE_ELASTIC_SERVE);
	struct glake_session *other = world_connect();
	assert_ok(glake_elastic_open(other, &desc, &others, &others_base));
	assert_ok(glake_elastic_commit(others, 0, N_STEPS, NULL));
	assert_ok(glake_elastic_lend(others, 0, N_STEPS));
	open_range(1, 0);
	/* Room for two steps and a chunk is left. */
	assert_ok(glake_alloc(session, 0, 96 * MIB - 11 * STEP - 2 * CHUNK, 0, &ptr));
	assert_ok(glake_elastic_ahead(elastic, 0, N_STEPS));
	await_idle();
	expect_states("HLL-----");
	struct glake_elastic_stats theirs = {.size = sizeof(theirs)};
	assert_ok(glake_elastic_stats(others, &theirs));
	ck_assert_uint_eq(theirs.n_lent, N_STEPS);
	/* Who needs it gets it: what is asked for goes to the highest bidder, and ahead is none. */
	commit(1, 4);
	assert_ok(glake_elastic_stats(others, &theirs));
	ck_assert_uint_eq(theirs.n_lent, N_STEPS - 2);
	ck_assert(glake__space_is_valid());
}
END_TEST

START_TEST(what_is_ahead_is_lent)
{
	glake_ptr ptr;
	open_range(1, GLAKE_ELASTIC_SERVE);
	struct glake_session *other = world_connect();
	have_ahead(1, 7, "HLLLLLLL");
	assert_ok(glake_alloc(other, 0, 48 * MIB + STEP + CHUNK, 0, &ptr));
	expect_states("HLLLLL--");
	assert_ok(glake_free(other, ptr));
	/* A call is a try. */
	have_ahead(1, 7, "HLLLLLLL");
}
END_TEST

START_TEST(a_sleeper_is_not_woken_for_it)
{
	open_range(1, GLAKE_ELASTIC_SERVE);
	write_step(0, 5);
	have_ahead(1, 2, "HLL-----");
	words_fall_asleep(session);
	expect_states("H-------");
	assert_ok(glake_elastic_ahead(elastic, 1, 2));
	await_idle();
	ck_assert(glake_is_asleep(session));
	expect_states("H-------");
	ck_assert_uint_eq(words_device_bytes(), 0);
	commit(3, 1);
	check_step(0, 5);
}
END_TEST

START_TEST(the_driver_fails_ahead)
{
	open_range(0, GLAKE_ELASTIC_GUARD);
	world_set_own_faults("cuMemSetAccess:2:fail=2");
	assert_ok(glake_elastic_ahead(elastic, 2, 3));
	await_idle();
	world_set_own_faults("");
	expect_states("--------");
	check_zero(2);
	ck_assert_uint_eq(words_device_bytes(), CHUNK);
	have_ahead(2, 3, "--LLL---");
}
END_TEST

/* An earlier glaked would have others give memory for what is not needed. */
START_TEST(an_earlier_glaked_is_not_asked)
{
	open_range(0, 0);
	session->link.knows_spare = false;
	assert_ok(glake_elastic_ahead(elastic, 0, 3));
	await_idle();
	expect_states("--------");
	session->link.knows_spare = true;
	have_ahead(0, 3, "LLL-----");
}
END_TEST

static void begin_blind(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = 0;", .devices = "1x96MiB");
}

static void be_promised(void *user)
{
	words_open_driver();
	setenv("GLAKE_PROMISE", "20MiB", 1);
	open_range(0, 0);
	assert_ok(glake_elastic_ahead(elastic, 0, 3));
	await_idle();
	expect_states("--------");
	commit(0, 1);
	have_ahead(0, N_STEPS, "HLL-----");
}

/* A promise may have to be waited for. Once it is there, what comes ahead is of it, and no more than it has. */
START_TEST_WITH(it_does_not_ask_for_a_promise, .begin = begin_blind)
{
	world_join(world_client(be_promised, NULL));
}
END_TEST

static void leave(void *user)
{
	assert_fails(GLAKE_E_FORKED, "", glake_elastic_ahead(elastic, 3, 1));
	glake_disconnect(session);
}

START_TEST(a_child_leaves_the_thread_alone)
{
	open_range(0, GLAKE_ELASTIC_SERVE);
	have_ahead(0, 1, "L-------");
	world_join(world_client(leave, NULL));
	have_ahead(0, 2, "LL------");
	/* The session's end, and a range's, wait for what is under way. */
	assert_ok(glake_elastic_ahead(elastic, 0, N_STEPS));
	assert_ok(glake_elastic_close(elastic));
	const struct glake_elastic_desc desc = desc_of(0, 0);
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
	assert_ok(glake_elastic_ahead(elastic, 0, N_STEPS));
	world_disconnect(session);
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

START_TEST(nonsense_is_refused)
{
	open_range(0, 0);
	assert_fails(-EINVAL, "the range has 8", glake_elastic_ahead(elastic, 7, 2));
	assert_fails(-EINVAL, "NULL", glake_elastic_ahead(NULL, 0, 1));
	assert_ok(glake_elastic_ahead(elastic, 8, 0));
	expect_states("--------");
}
END_TEST
