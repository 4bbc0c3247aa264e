/* SPDX-License-Identifier: Apache-2.0 */
/* Sleep without the shim: a session's memory goes to host memory and comes back, at the same addresses. */
#include "libclient/link/session.h"
#include "libclient/space/range.h"
#include "tests/harness/words.h"

#define CONFIG WORLD_CONFIG "warm_bytes = \"64MiB\";"

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "1x4GiB");
	words_open_driver();
}
BEGIN_EACH(begin)

START_TEST(private_memory_leaves_and_comes_back)
{
	struct glake_session *session = world_connect();
	glake_ptr first = words_alloc(session, 6 * MIB, 7);
	glake_ptr second = words_alloc(session, 34 * MIB, 8);
	struct glake_slept slept = words_fall_asleep(session);
	ck_assert_uint_eq(slept.private_bytes, 40 * MIB);
	ck_assert_uint_eq(slept.shared_bytes, 0);
	ck_assert_uint_eq(slept.n_stays, 0);
	ck_assert_uint_eq(words_device_bytes(), 0);
	slept.size = sizeof(slept);
	assert_ok(glake_wake(session, &slept));
	ck_assert_uint_eq(slept.private_bytes, 40 * MIB);
	ck_assert(!glake_is_asleep(session));
	words_check(first, 6 * MIB, 7);
	words_check(second, 34 * MIB, 8);
	ck_assert(words_can_write(first));
	ck_assert(glake__space_is_valid());
	ck_assert_uint_eq(words_device_bytes(), 40 * MIB);
	assert_ok(glake_free(session, first));
	assert_ok(glake_free(session, second));
}
END_TEST

static int take_host(void *user, const struct glake_status *status)
{
	*(struct glake_host_status *)user = status->hosts[0];
	return 0;
}

static struct glake_host_status host(void)
{
	struct glake_host_status host = {.node = 0};
	assert_ok(glake_get_status(eye, take_host, &host));
	ck_assert_uint_eq(host.sleep_copy_bytes + host.model_copy_bytes + host.cached_copy_bytes,
	                  host.used_copy_bytes);
	return host;
}

static int add_gpu_bytes(void *user, const struct glake_sleeper_row *row)
{
	*(uint64_t *)user += row->gpu_bytes;
	return 0;
}

static uint64_t asleep_gpu_bytes(void)
{
	uint64_t bytes = 0;
	assert_ok(glake_list_sleepers(eye, add_gpu_bytes, &bytes));
	return bytes;
}

/* A copy is there once, whoever has it, and each who sleeps has it whole. */
START_TEST(the_host_tier_tells_what_its_copies_stand_for)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	words_seal(words_alloc(one, 6 * MIB, 7), 6 * MIB);
	words_seal(words_alloc(two, 6 * MIB, 7), 6 * MIB);
	words_alloc(two, 4 * MIB, 8);
	words_fall_asleep(one);
	ck_assert_uint_eq(host().sleep_copy_bytes, 6 * MIB);
	ck_assert_uint_eq(host().slept_bytes, 6 * MIB);
	/* The other one has it on the GPU. */
	ck_assert_uint_eq(asleep_gpu_bytes(), 6 * MIB);
	words_fall_asleep(two);
	ck_assert_uint_eq(host().sleep_copy_bytes, 10 * MIB);
	ck_assert_uint_eq(host().slept_bytes, 16 * MIB);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(asleep_gpu_bytes(), 0);
	assert_ok(glake_wake(two, NULL));
	ck_assert_uint_eq(host().sleep_copy_bytes, 6 * MIB);
	ck_assert_uint_eq(host().slept_bytes, 6 * MIB);
	assert_ok(glake_wake(one, NULL));
	ck_assert_uint_eq(host().slept_bytes, 0);
	ck_assert_uint_eq(host().cached_copy_bytes, 6 * MIB);
}
END_TEST

/* The other session has the block: it is neither copied back nor held twice. */
START_TEST_WITH(sealed_memory_is_found_again, .n = 2)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = words_alloc(one, 6 * MIB, 7);
	glake_ptr second = words_alloc(two, 6 * MIB, 7);
	words_seal(first, 6 * MIB);
	words_seal(second, 6 * MIB);
	struct glake_slept slept = words_fall_asleep(one);
	ck_assert_uint_eq(slept.shared_bytes, 6 * MIB);
	ck_assert_uint_eq(words_device_bytes(), 6 * MIB);
	words_check(second, 6 * MIB, 7);
	if (_i > 0) {
		words_fall_asleep(two);
		assert_ok(glake_evict(one, NULL, NULL, NULL));
		ck_assert_uint_eq(words_device_bytes(), 0);
		assert_ok(glake_wake(two, NULL));
	}
	assert_ok(glake_wake(one, NULL));
	ck_assert_uint_eq(words_device_bytes(), 6 * MIB);
	words_check(first, 6 * MIB, 7);
	words_check(second, 6 * MIB, 7);
	ck_assert(!words_can_write(first));
	assert_ok(glake_unseal(first, 1));
	words_write(first, 6 * MIB, 8);
	words_check(second, 6 * MIB, 7);
}
END_TEST

START_TEST(nothing_is_lost_when_a_session_ends_asleep)
{
	struct glake_session *session = world_connect();
	words_alloc(session, 6 * MIB, 7);
	words_fall_asleep(session);
	world_disconnect(session);
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST
