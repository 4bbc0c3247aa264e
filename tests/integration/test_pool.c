/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The numbers of memory in stream order, from the library to the listing. The tests write them where the
 * allocator counts them, so that each has a value of its own.
 */
#include <stddef.h>

#include "libclient/link/session.h"
#include "libclient/heap/heap.h"
#include "tests/harness/world.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = "2x1GiB");
}
BEGIN_EACH(begin)

/* Each number differs from all others. */
static const struct glake_pool_stats COUNTED = {
	.live_bytes = 3 * MIB,
	.peak_live_bytes = 5 * MIB,
	.used_bytes = 4 * MIB,
	.reserved_bytes = 6 * MIB,
	.peak_reserved_bytes = 8 * MIB,
	.n_allocs = 100,
	.n_stitches = 11,
	.stitched_bytes = 22 * MIB,
	.n_reuses = 33,
	.n_grows = 12,
	.grown_bytes = 24 * MIB,
	.n_mapped = 44,
	.n_unmapped = 43,
	.n_kept = 7,
	.n_kept_live = 2,
	.kept_bytes = 14 * MIB,
};

static void count(struct glake_session *session, uint32_t at, const struct glake_pool_stats *stats)
{
	glake__lock();
	session->heaps[at].pool = *stats;
	glake__unlock();
}

START_TEST(each_device_has_its_own_numbers)
{
	struct glake_session *session = world_connect_blind();
	count(session, 1, &COUNTED);
	struct glake_pool_stats stats = {.size = sizeof(stats)};
	assert_ok(glake_pool_stats(session, 0, &stats));
	ck_assert_uint_eq(stats.size, sizeof(stats));
	ck_assert_uint_eq(stats.live_bytes + stats.reserved_bytes + stats.n_allocs, 0);
	assert_ok(glake_pool_stats(session, 1, &stats));
	struct glake_pool_stats want = COUNTED;
	want.size = sizeof(want);
	ck_assert_mem_eq(&stats, &want, sizeof(want));
}
END_TEST

START_TEST(peaks_begin_anew_at_the_present_values)
{
	struct glake_session *session = world_connect_blind();
	count(session, 0, &COUNTED);
	assert_ok(glake_pool_reset_peaks(session, 0));
	struct glake_pool_stats stats = {.size = sizeof(stats)};
	assert_ok(glake_pool_stats(session, 0, &stats));
	struct glake_pool_stats want = COUNTED;
	want.size = sizeof(want);
	want.peak_live_bytes = COUNTED.live_bytes;
	want.peak_reserved_bytes = COUNTED.reserved_bytes;
	ck_assert_mem_eq(&stats, &want, sizeof(want));
}
END_TEST

struct seen {
	uint64_t session;
	uint32_t n_pools;
	struct glake_session_pool pool;
};

static int see(void *user, const struct glake_session_row *row)
{
	struct seen *seen = user;
	if (row->session == seen->session) {
		seen->n_pools = row->n_pools;
		seen->pool = row->n_pools ? row->pools[0] : (struct glake_session_pool){0};
	}
	return 0;
}

/* Returns what glaked lists of @session, which has told it by then. */
static struct seen listed(struct glake_session *session)
{
	struct glake_session_info info = {.size = sizeof(info)};
	assert_ok(glake_session_info(session, &info));
	usleep(120000);
	assert_ok(glake_ping(session));
	struct seen seen = {.session = info.session};
	assert_ok(glake_list_sessions(eye, see, &seen));
	return seen;
}

START_TEST(glaked_lists_what_each_device_has)
{
	struct glake_session *session = world_connect_blind();
	ck_assert_uint_eq(listed(session).n_pools, 0);
	count(session, 1, &COUNTED);
	struct seen seen = listed(session);
	ck_assert_uint_eq(seen.n_pools, 1);
	const struct glake_session_pool want = {
		.device = 1,
		.live_bytes = COUNTED.live_bytes,
		.peak_live_bytes = COUNTED.peak_live_bytes,
		.reserved_bytes = COUNTED.reserved_bytes,
		.peak_reserved_bytes = COUNTED.peak_reserved_bytes,
		.n_allocs = COUNTED.n_allocs,
		.n_stitches = COUNTED.n_stitches,
		.stitched_bytes = COUNTED.stitched_bytes,
		.n_reuses = COUNTED.n_reuses,
		.n_grows = COUNTED.n_grows,
		.n_mapped = COUNTED.n_mapped,
		.n_unmapped = COUNTED.n_unmapped,
		.n_kept = COUNTED.n_kept,
		.kept_bytes = COUNTED.kept_bytes,
	};
	ck_assert_uint_eq(seen.pool.device, want.device);
	ck_assert_mem_eq(&seen.pool.live_bytes, &want.live_bytes,
	                 sizeof(want) - offsetof(struct glake_session_pool, live_bytes));
}
END_TEST

/* The kept ranges alone have changed: nothing else of the session has. */
START_TEST(each_number_that_changes_is_told)
{
	struct glake_session *session = world_connect_blind();
	struct glake_pool_stats stats = COUNTED;
	count(session, 0, &stats);
	ck_assert_uint_eq(listed(session).pool.n_kept, 7);
	stats.n_kept = 6;
	count(session, 0, &stats);
	ck_assert_uint_eq(listed(session).pool.n_kept, 6);
}
END_TEST

static bool stitches(int option, const char *environment)
{
	ck_assert_int_eq(setenv("GLAKE_ALLOC", environment, 1), 0);
	struct glake_connect_options options = {
		.size = sizeof(options),
		.no_cuda = 1,
		.stitch = option,
	};
	struct glake_session *session;
	assert_ok(glake_connect(&options, &session));
	bool is = session->stitches;
	glake_disconnect(session);
	return is;
}

START_TEST(the_option_and_the_environment_both_turn_stitching_on)
{
	ck_assert(!stitches(0, ""));
	ck_assert(!stitches(0, "plain"));
	ck_assert(stitches(1, ""));
	ck_assert(stitches(0, "stitch"));
}
END_TEST

int main(void)
{
	return tests_run();
}
