/* SPDX-License-Identifier: Apache-2.0 */
/* Extents of large chunks: placed, merged, charged and given back; nobody reads what he has not written. */
#include "daemon/memory/extent.h"

#include <fcntl.h>

#include "tests/unit/fake_parts.h"

#define LARGE (64 * MIB)
#define MOST (1024 * MIB)
#define N_OWNERS 2u
/* The pages of 2 MiB of an extent that is taken at random, at most. */
#define MOST_PAGES 48u

static struct extents extents;
static struct location *host;

static void extents_begin(void)
{
	begin();
	host = &devices[1].at;
	host->kind = LOCATION_HOST;
	extents_init(&extents, &allocator, host, store.cache);
	extents.large_bytes = LARGE;
}

/* ---- requests --------------------------------------------------------------------------------- */

static struct taken {
	struct extents_request *request;
	enum status status;
	unsigned n_done;
	struct extent *extent;
} takes[64];

static void on_taken(void *user, enum status status, struct extent *extent)
{
	struct taken *taken = user;
	taken->status = status;
	taken->n_done++;
	ck_assert_ptr_null(taken->request);
	ck_assert_int_eq(extent != NULL, status == STATUS_OK);
	taken->extent = extent;
}

static void start(struct taken *taken, struct tenant *tenant, uint64_t bytes)
{
	*taken = (struct taken){.status = STATUS_COUNT};
	extents_take(&extents, tenant, bytes, on_taken, taken, &taken->request);
}

static enum status take(struct taken *taken, struct tenant *tenant, uint64_t bytes)
{
	start(taken, tenant, bytes);
	run_workers();
	ck_assert_uint_eq(taken->n_done, 1);
	return taken->status;
}

static void give(struct taken *taken)
{
	extent_release(&extents, ptr_steal(taken->extent));
}

static void extents_end(void)
{
	run_workers();
	extents_deinit(&extents);
	end();
}

BEGIN_EACH(extents_begin)
END_EACH(extents_end)

static uint64_t paid(const struct tenant *tenant)
{
	return tenant->at[1].used_bytes;
}

/* ---- placing ---------------------------------------------------------------------------------- */

START_TEST(extents_share_a_chunk_and_the_rest_is_the_caches)
{
	ck_assert_int_eq(take(&takes[0], payer, 6 * MIB), STATUS_OK);
	ck_assert_int_eq(take(&takes[1], other_payer, 10 * MIB), STATUS_OK);
	ck_assert_ptr_eq(takes[0].extent->in, takes[1].extent->in);
	ck_assert_uint_eq(takes[1].extent->offset, 6 * MIB);
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], LARGE);
	ck_assert_uint_eq(paid(payer), 6 * MIB);
	ck_assert_uint_eq(paid(other_payer), 10 * MIB);
	ck_assert_uint_eq(paid(store.cache), LARGE - 16 * MIB);
	ck_assert_uint_eq(store.cache->n_fds, 1);
	give(&takes[0]);
	ck_assert_int_eq(take(&takes[2], payer, 4 * MIB), STATUS_OK);
	ck_assert_uint_eq(takes[2].extent->offset, 0);
	give(&takes[1]);
	ck_assert_int_eq(take(&takes[3], payer, 60 * MIB), STATUS_OK);
	ck_assert_uint_eq(takes[3].extent->offset, 4 * MIB);
	give(&takes[2]);
	give(&takes[3]);
	run_workers();
	ck_assert_uint_eq(location_physical_bytes(host), 0);
}
END_TEST

/* The chunk is not cut when it is free for a moment: nothing is put where another extent of its size would lie. */
START_TEST(what_is_larger_than_a_chunk_has_one_of_its_own)
{
	const uint64_t bytes = 2 * LARGE + 6 * MIB;
	extents_want_ready(&extents, LARGE);
	extents_tick(&extents);
	run_workers();
	ck_assert_int_eq(take(&takes[0], payer, bytes), STATUS_OK);
	ck_assert_uint_eq(takes[0].extent->bytes, bytes);
	ck_assert_uint_eq(extent_chunk_bytes(takes[0].extent), bytes);
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], LARGE + bytes);
	ck_assert_uint_eq(paid(payer), bytes);
	ck_assert_uint_eq(payer->at[1].peak_bytes, bytes);
	ck_assert_int_eq(take(&takes[1], payer, 6 * MIB), STATUS_OK);
	ck_assert_ptr_ne(takes[1].extent->in, takes[0].extent->in);
	give(&takes[0]);
	run_workers();
	/* Though nothing is free otherwise. */
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], LARGE);
	give(&takes[1]);
	extents_want_ready(&extents, 0);
}
END_TEST

/* "Or what fits": the last chunk is as small as the request. */
START_TEST(where_room_is_short_a_chunk_is_small)
{
	host->usable_bytes = LARGE + 8 * MIB;
	ck_assert_int_eq(take(&takes[0], payer, LARGE), STATUS_OK);
	ck_assert_int_eq(take(&takes[1], payer, 6 * MIB), STATUS_OK);
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], LARGE + 6 * MIB);
	give(&takes[0]);
	give(&takes[1]);
}
END_TEST

START_TEST(what_does_not_fit_changes_nothing)
{
	ck_assert_int_eq(take(&takes[0], payer, 6 * MIB), STATUS_OK);
	host->usable_bytes = 2 * LARGE;
	ck_assert_int_eq(take(&takes[1], payer, 3 * LARGE), STATUS_NO_DEVICE_MEMORY);
	ck_assert_int_eq(tenant_set_quota(payer, 1, 16 * MIB), 0);
	ck_assert_int_eq(take(&takes[1], payer, 12 * MIB), STATUS_OVER_QUOTA);
	ck_assert_int_eq(take(&takes[1], payer, 70 * MIB), STATUS_OVER_QUOTA);
	ck_assert_uint_eq(paid(payer), 6 * MIB);
	ck_assert_uint_eq(paid(store.cache), LARGE - 6 * MIB);
	ck_assert_uint_eq(extents.used_bytes, 6 * MIB);
	give(&takes[0]);
}
END_TEST

START_TEST(a_request_that_is_cancelled_leaves_nothing)
{
	ck_assert_int_eq(take(&takes[0], payer, 6 * MIB), STATUS_OK);
	start(&takes[1], payer, LARGE + 10 * MIB);
	ck_assert_uint_eq(paid(payer), LARGE + 16 * MIB);
	extents_cancel(takes[1].request);
	run_workers();
	ck_assert_uint_eq(takes[1].n_done, 0);
	ck_assert_uint_eq(paid(payer), 6 * MIB);
	ck_assert_uint_eq(host->use_bytes[CHUNK_COPIES], LARGE);
	give(&takes[0]);
}
END_TEST

/* ---- whose bytes ------------------------------------------------------------------------------ */

START_TEST(nobody_reads_what_was_there_before)
{
	ck_assert_int_eq(take(&takes[0], payer, 2 * MIB), STATUS_OK);
	ck_assert_int_eq(take(&takes[1], payer, 2 * MIB), STATUS_OK);
	struct extent *secret = takes[0].extent;
	ck_assert_int_eq(extent_source(secret), -1);
	ck_assert_int_ge(extent_target(secret), 0);
	extent_written(secret);
	ck_assert_int_ge(extent_source(secret), 0);
	uint64_t offset = secret->offset;
	give(&takes[0]);
	/* Somebody else gets the same place. */
	ck_assert_int_eq(take(&takes[2], other_payer, 2 * MIB), STATUS_OK);
	ck_assert_uint_eq(takes[2].extent->offset, offset);
	ck_assert_int_eq(extent_source(takes[2].extent), -1);
	give(&takes[1]);
	give(&takes[2]);
}
END_TEST

START_TEST_WITH(an_extent_is_not_written_to_once_it_is_full, .signal = SIGABRT)
{
	take(&takes[0], payer, 2 * MIB);
	extent_written(takes[0].extent);
	extent_target(takes[0].extent);
	give(&takes[0]);
}
END_TEST

/* ---- made ahead ------------------------------------------------------------------------------- */

static uint64_t large_bytes(void)
{
	return host->use_bytes[CHUNK_COPIES];
}

static void tick(void)
{
	extents_tick(&extents);
	run_workers();
}

START_TEST(free_memory_is_kept_ready)
{
	extents_want_ready(&extents, 2 * LARGE + 6 * MIB);
	run_workers();
	ck_assert_uint_eq(large_bytes(), 0);
	tick();
	ck_assert_uint_eq(large_bytes(), 2 * LARGE + 6 * MIB);
	ck_assert_uint_eq(paid(store.cache), large_bytes());
	/* No chunk is made for who comes then. */
	start(&takes[0], payer, LARGE);
	ck_assert_int_eq(takes[0].status, STATUS_OK);
	tick();
	ck_assert_uint_eq(large_bytes(), 2 * LARGE + 6 * MIB);
	/* Chunks beyond those that are kept ready go; those stay. */
	for (unsigned i = 1; i < 4; i++) {
		ck_assert_int_eq(take(&takes[i], payer, LARGE), STATUS_OK);
	}
	ck_assert_uint_gt(large_bytes(), 2 * LARGE + 6 * MIB);
	for (unsigned i = 0; i < 4; i++) {
		give(&takes[i]);
	}
	run_workers();
	ck_assert_uint_ge(large_bytes(), 2 * LARGE + 6 * MIB);
	ck_assert_uint_lt(large_bytes(), 3 * LARGE + 6 * MIB);
	extents_want_ready(&extents, 10 * MIB);
	run_workers();
	ck_assert_uint_eq(large_bytes(), LARGE);
	tick();
	ck_assert_uint_eq(large_bytes(), LARGE);
	extents_want_ready(&extents, 0);
}
END_TEST

START_TEST(what_is_ready_goes_when_the_room_is_wanted)
{
	extents_want_ready(&extents, 2 * LARGE);
	tick();
	ck_assert_int_eq(take(&takes[0], payer, 2 * MIB), STATUS_OK);
	tick();
	ck_assert_uint_eq(large_bytes(), 2 * LARGE);
	while (extents_give_ready(&extents)) {
	}
	run_workers();
	ck_assert_uint_eq(large_bytes(), LARGE);
	/* Not in the turn that it was taken in. */
	give(&takes[0]);
	ck_assert_uint_eq(large_bytes(), LARGE);
	ck_assert(extents_give_ready(&extents));
	run_workers();
	ck_assert_uint_eq(large_bytes(), 0);
	tick();
	ck_assert_uint_eq(large_bytes(), 2 * LARGE);
	extents_want_ready(&extents, 0);
}
END_TEST

/* One chunk for each time; it waits to be used, and goes afterwards. */
START_TEST(one_more_is_made_when_an_extent_had_to_go)
{
	extents_want_ready(&extents, LARGE);
	tick();
	ck_assert_int_eq(take(&takes[0], payer, LARGE), STATUS_OK);
	extents_want_more(&extents);
	tick();
	tick();
	ck_assert_uint_eq(large_bytes(), 2 * LARGE);
	start(&takes[1], payer, LARGE);
	ck_assert_int_eq(takes[1].status, STATUS_OK);
	/* Not without room, and not later for what is past. */
	host->usable_bytes = 2 * LARGE;
	extents_want_more(&extents);
	tick();
	host->usable_bytes = MOST;
	tick();
	ck_assert_uint_eq(large_bytes(), 2 * LARGE);
	give(&takes[1]);
	give(&takes[0]);
	run_workers();
	ck_assert_uint_eq(large_bytes(), LARGE);
	extents_want_ready(&extents, 0);
}
END_TEST

/* While the worker has other work, without room, and when fds are few. */
START_TEST_WITH(nothing_is_made_ahead_at_the_cost_of_others, .n = 3)
{
	extents_want_ready(&extents, 5 * LARGE);
	if (_i == 0) {
		start(&takes[0], payer, 2 * MIB);
		extents_tick(&extents);
		ck_assert_ptr_null(extents.making);
		run_workers();
		give(&takes[0]);
		ck_assert_uint_eq(large_bytes(), LARGE);
	} else {
		host->usable_bytes = _i == 1 ? LARGE + 2 * MIB : MOST;
		allocator.books.max_fds = _i == 1 ? 100 : 4;
		tick();
		tick();
		ck_assert_uint_eq(large_bytes(), _i == 1 ? LARGE : 3 * LARGE);
		ck_assert_uint_eq(stats.memory_refusals, 0);
	}
	extents_want_ready(&extents, 0);
}
END_TEST

START_TEST(what_is_being_made_ahead_is_not_wanted_any_more)
{
	extents_want_ready(&extents, 2 * LARGE);
	extents_tick(&extents);
	ck_assert_ptr_nonnull(extents.making);
	extents_want_ready(&extents, 0);
	ck_assert_ptr_null(extents.making);
	run_workers();
	ck_assert_uint_eq(large_bytes(), 0);
	extents_want_ready(&extents, 2 * LARGE);
	extents_tick(&extents);
	/* Less of it, while the first is made. */
	extents_want_ready(&extents, 2 * MIB);
	run_workers();
	ck_assert_uint_eq(large_bytes(), LARGE);
	extents_want_ready(&extents, 0);
}
END_TEST

/* ---- from an earlier glaked ------------------------------------------------------------------- */

static struct extent_chunk *adopt_chunk(uint64_t id)
{
	struct chunk chunk;
	const struct extent_parking parking = {.id = id};
	struct charge charge = tenant_charge_adopted(payer_alone(store.cache), 1, LARGE, 1, 0);
	ck_assert_int_eq(location_start(host, &loop), 0);
	chunk_adopt(&chunk, host, &allocator.books, LARGE, open("/dev/null", O_RDONLY | O_CLOEXEC),
	            CHUNK_COPIES, &charge);
	return extents_adopt_chunk(&extents, &chunk, &parking);
}

START_TEST(what_is_adopted_lies_where_it_was)
{
	struct extent_chunk *in = adopt_chunk(7);
	ck_assert(extents_is_empty(in));
	struct extent *second = extents_adopt(&extents, in, 20 * MIB, 6 * MIB, payer);
	struct extent *first = extents_adopt(&extents, in, 0, 2 * MIB, other_payer);
	struct extent *last = extents_adopt(&extents, in, LARGE - 4 * MIB, 4 * MIB, payer);
	ck_assert_ptr_nonnull(first);
	ck_assert_ptr_nonnull(second);
	ck_assert_ptr_nonnull(last);
	ck_assert_uint_eq(second->offset, 20 * MIB);
	ck_assert_uint_eq(paid(payer), 10 * MIB);
	ck_assert_uint_eq(paid(other_payer), 2 * MIB);
	ck_assert_uint_eq(paid(store.cache), LARGE - 12 * MIB);
	/* An adopted extent can be read, and its chunk is known. */
	ck_assert_int_ge(extent_source(first), 0);
	ck_assert_uint_eq(extent_chunk_parking(first)->id, 7);
	/* A place that is not free, or is no extent, is refused. */
	static const uint64_t bad[][2] = {
		{24 * MIB, 4 * MIB},     {18 * MIB, 4 * MIB},     {LARGE - 8 * MIB, LARGE},
		{LARGE, 2 * MIB},        {UINT64_MAX, 2 * MIB},   {10 * MIB, 0},
		{10 * MIB + 1, 2 * MIB}, {10 * MIB, 2 * MIB + 1}, {10 * MIB, UINT64_MAX}};
	for (size_t i = 0; i < n_elements(bad); i++) {
		ck_assert_ptr_null(extents_adopt(&extents, in, bad[i][0], bad[i][1], payer));
	}
	/* New ones go between. */
	ck_assert_int_eq(take(&takes[0], payer, 16 * MIB), STATUS_OK);
	ck_assert_uint_eq(takes[0].extent->offset, 2 * MIB);
	give(&takes[0]);
	extent_chunk_unparked(first, 0);
	extent_release(&extents, first);
	extent_release(&extents, second);
	extent_release(&extents, last);
	ck_assert_uint_eq(paid(store.cache), 0);
}
END_TEST

START_TEST(an_adopted_chunk_with_nothing_in_it_goes)
{
	struct extent_chunk *in = adopt_chunk(7);
	extents_drop_adopted(in, 0);
	ck_assert_uint_eq(paid(store.cache), 0);
}
END_TEST

/* ---- at random, against a model: a map of 2 MiB pages ----------------------------------------- */

static void check(void)
{
	uint64_t used_bytes = 0;
	uint64_t large_bytes = 0;
	uint64_t by_tenant[N_OWNERS] = {0};
	const struct extent_chunk *seen[64];
	static bool pages[64][MOST_PAGES];
	uint64_t seen_bytes = 0;
	size_t n_seen = 0;
	memset(pages, 0, sizeof(pages));
	for (size_t i = 0; i < n_elements(takes); i++) {
		const struct extent *extent = takes[i].extent;
		if (extent) {
			size_t at = 0;
			while (at < n_seen && seen[at] != extent->in) {
				at++;
			}
			ck_assert_uint_lt(at, n_elements(seen));
			seen[at] = extent->in;
			seen_bytes += at == n_seen ? extent_chunk_bytes(extent) : 0;
			n_seen += at == n_seen;
			ck_assert_uint_le(extent->offset + extent->bytes,
			                  extent_chunk_bytes(extent));
			for (uint64_t page = 0; page < extent->bytes / (2 * MIB); page++) {
				bool *is = &pages[at][extent->offset / (2 * MIB) + page];
				ck_assert(!*is);
				*is = true;
			}
			used_bytes += extent->bytes;
			by_tenant[i % N_OWNERS] += extent->bytes;
		}
	}
	/* No chunk is there without an extent. */
	large_bytes = host->use_bytes[CHUNK_COPIES];
	ck_assert_uint_eq(large_bytes, seen_bytes);
	ck_assert_uint_eq(extents.used_bytes, used_bytes);
	ck_assert_uint_eq(paid(payer), by_tenant[0]);
	ck_assert_uint_eq(paid(other_payer), by_tenant[1]);
	ck_assert_uint_eq(paid(store.cache), large_bytes - used_bytes);
}

/* All spans are free in the end: two neighbours would keep their chunk. */
START_TEST_WITH(extents_at_random, .n = 4)
{
	srandom((unsigned)_i + 1);
	for (unsigned step = 0; step < 3000; step++) {
		size_t i = (size_t)random() % n_elements(takes);
		if (takes[i].extent) {
			give(&takes[i]);
		} else {
			uint64_t bytes = (1 +
			                  (uint64_t)random() % (random() % 8 ? 8 : MOST_PAGES)) *
			                 2 * MIB;
			enum status status = take(&takes[i], i % 2 ? other_payer : payer, bytes);
			ck_assert(status == STATUS_OK || status == STATUS_NO_DEVICE_MEMORY);
		}
		run_workers();
		check();
	}
	for (size_t i = 0; i < n_elements(takes); i++) {
		if (takes[i].extent) {
			give(&takes[i]);
		}
	}
}
END_TEST
