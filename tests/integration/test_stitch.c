/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in stream order that is split, merged and stitched (libclient/stitch/pool.h), with the real daemon. */
#include <string.h>

#include "libclient/stitch/pool_parts.h"
#include "proto/clock.h"
#include "tests/harness/gate.h"
#include "tests/integration/stitching.h"

#define CONFIG "tenants = ({ name = \"default\"; device_bytes = \"128MiB\"; });"

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "2x1GiB");
	stitching_begin();
}
BEGIN_EACH(begin)

/* @n of @n_bytes, which lie side by side. */
static void alloc_each(CUstream stream, unsigned n, uint64_t n_bytes, glake_ptr *ptr)
{
	for (unsigned i = 0; i < n; i++) {
		ptr[i] = alloc_on(stream, n_bytes);
	}
}

static void free_each(CUstream stream, unsigned n, const glake_ptr *ptr)
{
	for (unsigned i = 0; i < n; i++) {
		free_on(stream, ptr[i]);
	}
}

/* Every other piece of @n that are side by side is free. */
static void leave_gaps(CUstream stream, unsigned n, glake_ptr *ptr)
{
	alloc_each(stream, n, 8 * MIB, ptr);
	for (unsigned i = 0; i < n; i += 2) {
		free_on(stream, ptr[i]);
	}
}

START_TEST(pieces_that_are_apart_become_one_range)
{
	CUstream stream = stream_new();
	glake_ptr ptr[5];
	for (unsigned i = 0; i < 5; i++) {
		ptr[i] = alloc_on(stream, 8 * MIB);
		queue_write(stream, ptr[i], 8 * MIB, (unsigned char)i);
	}
	ck_assert_uint_eq(stats().reserved_bytes, 40 * MIB);
	free_on(stream, ptr[1]);
	free_on(stream, ptr[3]);
	/* Beside the work that still uses them: the stream has not got there. */
	glake_ptr large = alloc_on(stream, 16 * MIB);
	queue_write(stream, large, 16 * MIB, 9);
	struct glake_pool_stats now = stats();
	ck_assert_uint_eq(now.reserved_bytes, 40 * MIB);
	ck_assert_uint_eq(now.n_stitches, 1);
	ck_assert_uint_eq(now.used_bytes, 40 * MIB);
	synchronize(stream);
	ck_assert_uint_eq(n_wrong(large, 16 * MIB, 9), 0);
	ck_assert_uint_eq(n_wrong(ptr[0], 8 * MIB, 0), 0);
	ck_assert_uint_eq(n_wrong(ptr[2], 8 * MIB, 2), 0);
	ck_assert_uint_eq(n_wrong(ptr[4], 8 * MIB, 4), 0);
	/* The second round maps nothing, also for less. */
	free_on(stream, large);
	ck_assert_uint_eq(alloc_on(stream, 13 * MIB), large);
	ck_assert_uint_eq(stats().n_mapped, now.n_mapped);
	ck_assert_uint_eq(stats().n_reuses, 1);
	free_on(stream, large);
	ck_assert_uint_eq(stats().used_bytes, 24 * MIB);
}
END_TEST

/* The caller frees it. What it adds up to is what the numbers say. */
static struct glake_pool_range *snapshot(size_t *n_out)
{
	struct glake_pool_range *ranges;
	assert_ok(glake_pool_snapshot(session, 0, &ranges, n_out));
	uint64_t n_reserved = 0;
	uint64_t n_used = 0;
	for (size_t i = 0; i < *n_out; i++) {
		ck_assert(i == 0 || ranges[i].ptr >= ranges[i - 1].ptr + ranges[i - 1].bytes);
		n_reserved += ranges[i].bytes;
		n_used += ranges[i].state == GLAKE_POOL_USED ? ranges[i].bytes : 0;
	}
	ck_assert_uint_eq(n_reserved, stats().reserved_bytes);
	ck_assert_uint_eq(n_used, stats().used_bytes);
	return ranges;
}

START_TEST(a_snapshot_shows_each_piece_once)
{
	CUstream stream = stream_new();
	glake_ptr ptr[5];
	size_t n;
	struct glake_pool_range *ranges = snapshot(&n);
	ck_assert_uint_eq(n, 0);
	ck_assert_ptr_null(ranges);
	alloc_each(stream, 5, 8 * MIB, ptr);
	free_on(stream, ptr[1]);
	free_on(stream, ptr[3]);
	ranges = snapshot(&n);
	ck_assert_uint_eq(n, 5);
	for (unsigned i = 0; i < 5; i++) {
		bool is_used = i % 2 == 0;
		ck_assert_uint_eq(ranges[i].ptr, ptr[i]);
		ck_assert_int_eq(ranges[i].state, is_used ? GLAKE_POOL_USED : GLAKE_POOL_PARKED);
		ck_assert_uint_eq(ranges[i].allocation, is_used ? ptr[i] : 0);
		ck_assert_uint_eq(ranges[i].stream, ranges[0].stream);
		ck_assert_uint_ne(ranges[i].stream, GLAKE_POOL_NO_STREAM);
		ck_assert_uint_eq(ranges[i].chunk_bytes % (2 * MIB), 0);
		ck_assert_uint_gt(ranges[i].chunk_bytes, 0);
		ck_assert(!ranges[i].is_stitched);
	}
	free(ranges);
	glake_ptr large = alloc_on(stream, 16 * MIB);
	ranges = snapshot(&n);
	ck_assert_uint_eq(n, 5);
	for (unsigned i = 1; i < 5; i += 2) {
		ck_assert_int_eq(ranges[i].state, GLAKE_POOL_USED);
		ck_assert(ranges[i].is_stitched);
		ck_assert_uint_eq(ranges[i].allocation, large);
	}
	free(ranges);
	free_on(stream, large);
	synchronize(stream);
	/* Another stream can have it now, and takes some. */
	glake_ptr other = alloc_on(stream_new(), 2 * MIB);
	ranges = snapshot(&n);
	size_t at = 0;
	uint64_t n_free = 0;
	for (size_t i = 0; i < n; i++) {
		ck_assert_int_ne(ranges[i].state, GLAKE_POOL_PARKED);
		n_free += ranges[i].state == GLAKE_POOL_FREE ? ranges[i].bytes : 0;
		at = ranges[i].allocation == other ? i : at;
	}
	ck_assert_uint_eq(n_free, 14 * MIB);
	ck_assert_uint_eq(ranges[at].bytes, 2 * MIB);
	ck_assert_uint_ne(ranges[at].stream, ranges[0].stream);
	free(ranges);
}
END_TEST

static int find_pool(void *user, const struct glake_session_row *row)
{
	struct glake_session_pool *pool = user;
	if (row->n_pools > 0) {
		*pool = row->pools[0];
	}
	return 0;
}

START_TEST(glaked_lists_what_the_pool_has)
{
	CUstream stream = stream_new();
	glake_ptr ptr[3];
	leave_gaps(stream, 3, ptr);
	alloc_on(stream, 14 * MIB);
	/* Nothing is told twice within a tenth of a second. */
	usleep(120000);
	assert_ok(glake_ping(session));
	struct glake_session_pool pool = {.device = 99};
	assert_ok(glake_list_sessions(eye, find_pool, &pool));
	struct glake_pool_stats now = stats();
	ck_assert_uint_eq(pool.device, 0);
	ck_assert_uint_eq(pool.live_bytes, 22 * MIB);
	ck_assert_uint_eq(pool.reserved_bytes, 24 * MIB);
	ck_assert_uint_eq(pool.n_allocs, 4);
	ck_assert_uint_eq(pool.n_stitches, 1);
	ck_assert_uint_eq(pool.n_kept, 1);
	ck_assert_uint_eq(pool.n_mapped, now.n_mapped);
	ck_assert_uint_eq(world_row(session).live_bytes, 22 * MIB);
}
END_TEST

START_TEST(only_what_is_missing_is_asked_for)
{
	CUstream stream = stream_new();
	glake_ptr ptr[3];
	alloc_each(stream, 3, 8 * MIB, ptr);
	free_on(stream, ptr[1]);
	/* At the end: no stitching, the hole behind is filled. */
	free_on(stream, ptr[2]);
	glake_ptr joined = alloc_on(stream, 20 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 28 * MIB);
	free_on(stream, ptr[0]);
	glake_ptr kept = alloc_on(stream, 4 * MIB);
	glake_ptr large = alloc_on(stream, 10 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 34 * MIB);
	free_on(stream, large);
	free_on(stream, kept);
	free_on(stream, joined);
	synchronize(stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 0);
	ck_assert_uint_eq(stats().n_kept, 0);
}
END_TEST

/* A chunk that another allocation is in begins a row by its rear, or ends one by its front. */
START_TEST(chunks_in_part_begin_and_end_a_range)
{
	CUstream stream = stream_new();
	glake_ptr before = alloc_on(stream, MIB);
	glake_ptr behind = alloc_on(stream, MIB);
	glake_ptr front = alloc_on(stream, 3 * MIB);
	alloc_on(stream, 2 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 8 * MIB);
	queue_write(stream, behind, MIB, 1);
	queue_write(stream, front, 3 * MIB, 2);
	free_on(stream, before);
	/* 1 MiB of the second and 1 MiB of the first chunk; without them it would be 6 MiB more. */
	glake_ptr large = alloc_on(stream, 6 * MIB);
	queue_write(stream, large, 6 * MIB, 3);
	struct glake_pool_stats now = stats();
	ck_assert_uint_eq(now.n_stitches, 1);
	ck_assert_uint_eq(now.reserved_bytes, 12 * MIB);
	ck_assert_uint_eq(now.used_bytes, 12 * MIB);
	synchronize(stream);
	ck_assert_uint_eq(n_wrong(behind, MIB, 1), 0);
	ck_assert_uint_eq(n_wrong(front, 3 * MIB, 2), 0);
	ck_assert_uint_eq(n_wrong(large, 6 * MIB, 3), 0);
	/* Kept, it serves again, from where it began. */
	free_on(stream, large);
	glake_ptr again = alloc_on(stream, 5 * MIB);
	ck_assert_uint_eq(again, large);
	queue_write(stream, again, 5 * MIB, 4);
	ck_assert_uint_eq(stats().n_mapped, now.n_mapped);
	/* Its chunks stay, also those that others leave. */
	free_on(stream, behind);
	free_on(stream, front);
	synchronize(stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(n_wrong(again, 5 * MIB, 4), 0);
	ck_assert_uint_eq(stats().n_kept_live, 1);
	free_on(stream, again);
	synchronize(stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 2 * MIB);
}
END_TEST

START_TEST(a_large_chunk_in_part_is_stitched)
{
	CUstream stream = stream_new();
	glake_ptr first = alloc_on(stream, 40 * MIB);
	ck_assert_uint_eq(stats().n_mapped, 1);
	alloc_on(stream, 2 * MIB);
	free_on(stream, first);
	glake_ptr small = alloc_on(stream, 10 * MIB);
	queue_write(stream, small, 10 * MIB, 1);
	glake_ptr large = alloc_on(stream, 40 * MIB);
	queue_write(stream, large, 40 * MIB, 2);
	ck_assert_uint_eq(stats().reserved_bytes, 52 * MIB);
	ck_assert_uint_eq(stats().n_stitches, 1);
	synchronize(stream);
	ck_assert_uint_eq(n_wrong(small, 10 * MIB, 1), 0);
	ck_assert_uint_eq(n_wrong(large, 40 * MIB, 2), 0);
}
END_TEST

/* Else a larger allocation that takes the range later would have some of its bytes twice. */
START_TEST(a_chunk_stands_once_in_a_range)
{
	CUstream stream = stream_new();
	glake_ptr first = alloc_on(stream, 40 * MIB);
	alloc_on(stream, 2 * MIB);
	free_on(stream, first);
	glake_ptr front = alloc_on(stream, 10 * MIB);
	glake_ptr middle = alloc_on(stream, 20 * MIB);
	free_on(stream, front);
	glake_ptr large = alloc_on(stream, 21 * MIB);
	free_on(stream, middle);
	free_on(stream, large);
	stats();
	large = alloc_on(stream, 52 * MIB);
	queue_write(stream, large, 52 * MIB, 1);
	stats();
	synchronize(stream);
	ck_assert_uint_eq(n_wrong(large, 52 * MIB, 1), 0);
}
END_TEST

/* Weights come in large chunks, until memory has been used a second time. */
START_TEST(what_was_stitched_was_used_again)
{
	CUstream stream = stream_new();
	glake_ptr ptr[4];
	leave_gaps(stream, 4, ptr);
	alloc_on(stream, 16 * MIB);
	struct glake_pool_stats now = stats();
	ck_assert_uint_eq(now.n_stitches, 1);
	alloc_on(stream, 32 * MIB);
	ck_assert_uint_eq(stats().n_mapped - now.n_mapped, 16);
}
END_TEST

START_TEST(ends_of_allocations_serve_others)
{
	CUstream stream = stream_new();
	glake_ptr first = alloc_on(stream, 16 * MIB - 300 * KIB);
	glake_ptr second = alloc_on(stream, 280 * KIB);
	ck_assert_uint_eq(stats().reserved_bytes, 16 * MIB);
	ck_assert_uint_eq(first % (2 * MIB), 0);
	free_on(stream, first);
	free_on(stream, second);
	glake_ptr whole = alloc_on(stream, 16 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 16 * MIB);
	free_on(stream, whole);
}
END_TEST

START_TEST(another_stream_has_it_once_it_has_been_passed)
{
	CUstream one = stream_new();
	CUstream two = stream_new();
	glake_ptr first = alloc_on(one, 32 * MIB);
	queue_write(one, first, 32 * MIB, 1);
	free_on(one, first);
	glake_ptr second = alloc_on(two, 16 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 48 * MIB);
	queue_write(two, second, 16 * MIB, 2);
	synchronize(one);
	glake_ptr third = alloc_on(two, 32 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 48 * MIB);
	queue_write(two, third, 32 * MIB, 3);
	synchronize(two);
	ck_assert_uint_eq(n_wrong(second, 16 * MIB, 2), 0);
	ck_assert_uint_eq(n_wrong(third, 32 * MIB, 3), 0);
}
END_TEST

/* Frees that follow each other soon have one event, recorded when somebody wants the memory. */
START_TEST(what_is_freed_last_is_others_too)
{
	CUstream one = stream_new();
	glake_ptr ptr[8];
	alloc_each(one, 8, 4 * MIB, ptr);
	free_each(one, 8, ptr);
	synchronize(one);
	assert_ok(glake_dispatch(session));
	alloc_on(stream_new(), 32 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 32 * MIB);
}
END_TEST

START_TEST(a_stream_may_be_destroyed_when_glake_was_told)
{
	CUstream one = stream_new();
	glake_ptr ptr[4];
	alloc_each(one, 4, 8 * MIB, ptr);
	free_each(one, 4, ptr);
	assert_ok(glake_stream_ends(session, one, 0));
	must(drv.cuStreamDestroy(one));
	must(drv.cuCtxSynchronize());
	assert_ok(glake_dispatch(session));
	alloc_on(stream_new(), 32 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 32 * MIB);
	ck_assert_int_eq(glake_stream_ends(session, one, 4), -EINVAL);
}
END_TEST

START_TEST(a_full_quota_stitches_the_last_page)
{
	CUstream stream = stream_new();
	CUstream other = stream_new();
	glake_ptr ptr[32];
	for (unsigned i = 0; i < 32; i++) {
		ptr[i] = alloc_on(i % 2 ? stream : other, 4 * MIB);
		queue_write(i % 2 ? stream : other, ptr[i], 4 * MIB, 1);
	}
	ck_assert_uint_eq(stats().reserved_bytes, 128 * MIB);
	glake_ptr none;
	ck_assert_int_lt(glake_alloc_async(session, stream, 2 * MIB, 0, &none), 0);
	for (unsigned i = 0; i < 32; i += 2) {
		free_on(other, ptr[i]);
	}
	/* Not passed yet: the request waits for the other stream's work. */
	glake_ptr large = alloc_on(stream, 64 * MIB);
	queue_write(stream, large, 64 * MIB, 5);
	synchronize(stream);
	ck_assert_uint_eq(n_wrong(large, 64 * MIB, 5), 0);
	for (unsigned i = 1; i < 32; i += 2) {
		ck_assert_uint_eq(n_wrong(ptr[i], 4 * MIB, 1), 0);
	}
	ck_assert_uint_eq(stats().reserved_bytes, 128 * MIB);
}
END_TEST

/* Two programs that need much by turns would make and map it in thousands of small ones. */
START_TEST(what_glaked_wanted_comes_back_in_large_chunks)
{
	CUstream stream = stream_new();
	glake_ptr small[3];
	leave_gaps(stream, 3, small);
	free_on(stream, alloc_on(stream, 16 * MIB));
	ck_assert_uint_eq(stats().n_stitches, 1);
	/* Memory has been used again: from now on it is made in small chunks. */
	free_on(stream, alloc_on(stream, 8 * MIB));
	glake_ptr ptr = alloc_on(stream, 64 * MIB);
	uint64_t n_mapped = stats().n_mapped;
	ck_assert_uint_ge(n_mapped, 24);
	free_on(stream, ptr);
	synchronize(stream);
	assert_ok(glake_trim(session, 0, GIB)); /* sees that the stream has got there */
	ck_assert_uint_gt(glake__pool_reclaim(session->heaps[0].stitching, 64 * MIB, true), 0);
	n_mapped = stats().n_mapped;
	ptr = alloc_on(stream, 64 * MIB);
	ck_assert_uint_le(stats().n_mapped - n_mapped, 24);
	queue_write(stream, ptr, 64 * MIB, 7);
	synchronize(stream);
	ck_assert_uint_eq(n_wrong(ptr, 64 * MIB, 7), 0);
	free_on(stream, ptr);
	free_on(stream, small[1]);
}
END_TEST

START_TEST(memory_of_a_pool_is_not_shared)
{
	CUstream stream = stream_new();
	struct glake_share share;
	glake_ptr ptr = alloc_on(stream, 8 * MIB);
	ck_assert_int_eq(glake_share(session, ptr, &share), -EINVAL);
	/* Smaller ones lie in slabs, and glake_alloc() has ranges of its own, as ever. */
	ck_assert_uint_eq(stats().n_allocs, 1);
	glake_ptr small = alloc_on(stream, 64 * KIB);
	glake_ptr own;
	assert_ok(glake_alloc(session, 0, 8 * MIB, 0, &own));
	assert_ok(glake_share(session, own, &share));
	ck_assert_uint_eq(stats().n_allocs, 1);
	free_on(stream, small);
	/* Without a stream: the caller has waited. */
	assert_ok(glake_free(session, ptr));
	ck_assert_int_eq(glake_free(session, ptr), -EINVAL);
	assert_ok(glake_free(session, own));
	ck_assert_uint_eq(stats().live_bytes, 0);
}
END_TEST

/* ---- edges ------------------------------------------------------------------------------------- */

/* Three pieces that are apart, freed, and one range of 26 MiB that was stitched of them, freed as well. */
static glake_ptr keep_a_range(CUstream stream, glake_ptr held[3])
{
	glake_ptr ptr[6];
	for (unsigned i = 0; i < 6; i++) {
		ptr[i] = alloc_on(stream, (i < 5 ? 8 : 10) * MIB);
	}
	for (unsigned i = 0; i < 3; i++) {
		held[i] = ptr[2 * i];
		free_on(stream, ptr[2 * i + 1]);
	}
	glake_ptr large = alloc_on(stream, 26 * MIB);
	ck_assert_uint_eq(stats().n_stitches, 1);
	free_on(stream, large);
	synchronize(stream);
	return large;
}

START_TEST(addresses_that_work_still_uses_stay_mapped)
{
	CUstream stream = stream_new();
	glake_ptr held[3];
	glake_ptr large = keep_a_range(stream, held);
	/* Less than the range has: its last piece is free, and no work uses that. */
	ck_assert_uint_eq(alloc_on(stream, 16 * MIB), large);
	gate_close(stream);
	queue_write(stream, large, 16 * MIB, 7);
	free_on(stream, large);
	assert_ok(glake_trim(session, 0, 0));
	gate_open();
	synchronize(stream);
	ck_assert_uint_eq(stats().n_kept, 1);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().n_kept, 0);
	ck_assert_uint_eq(stats().reserved_bytes, 24 * MIB);
}
END_TEST

START_TEST(free_memory_behind_what_stays_is_given_back)
{
	CUstream stream = stream_new();
	glake_ptr held[3];
	glake_ptr large = keep_a_range(stream, held);
	ck_assert_uint_eq(alloc_on(stream, 16 * MIB), large);
	/* The live range keeps its last piece, but not what was freed behind that. */
	glake_ptr behind = alloc_on(stream, 20 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 60 * MIB);
	free_on(stream, behind);
	synchronize(stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 50 * MIB);
}
END_TEST

/* The freeing thread is between its event and the pool; others have seen the event, and use many streams. */
START_TEST(a_free_that_is_under_way_keeps_its_line)
{
	CUstream stream = stream_new();
	struct glake__parking parking;
	glake_ptr ptr = alloc_on(stream, 8 * MIB);
	struct glake__allocation *allocation = glake__heap_claim(ptr);
	ck_assert(glake__heap_park(allocation, allocation->tag.stream - 1, &parking));
	glake__heap_release(session, allocation);
	glake__lock();
	for (uint64_t id = 1000; id < 1100; id++) {
		ck_assert_ptr_nonnull(glake__runs_line(&the_pool()->runs, id));
	}
	glake__unlock();
	glake__heap_parked(&parking);
	stats();
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 0);
}
END_TEST

static struct glake__allocation *park_in_graph(glake_ptr ptr, struct glake__parking *parking)
{
	struct glake__allocation *allocation = glake__heap_claim(ptr);
	ck_assert(glake__heap_park(allocation, RUN_TIED_STREAMS + 7, parking));
	return allocation;
}

/* The graph is over while a thread frees something of it. */
START_TEST(memory_of_a_graph_is_anybodys_behind_it)
{
	CUstream stream = stream_new();
	struct glake__parking first;
	struct glake__parking second;
	glake_ptr ptr[2] = {alloc_on(stream, 8 * MIB), alloc_on(stream, 8 * MIB)};
	struct glake__allocation *parked = park_in_graph(ptr[0], &first);
	glake__heap_parked(&first);
	struct glake__allocation *parking = park_in_graph(ptr[1], &second);
	glake__heap_release(session, parking);
	glake__heap_release(session, parked);
	glake__heap_parked(&second);
	stats();
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 0);
}
END_TEST

static __typeof__(cuMemUnmap) *unmap;
static CUdeviceptr stuck;
static unsigned n_found;

/* The first call fails; whoever looks meanwhile finds nothing there. */
static CUresult unmap_but_one(CUdeviceptr ptr, size_t n_bytes)
{
	struct glake__facts facts;
	if (stuck) {
		n_found += glake__heap_find(stuck, &facts);
		return unmap(ptr, n_bytes);
	}
	stuck = ptr;
	return CUDA_ERROR_UNKNOWN;
}

START_TEST(what_cannot_be_unmapped_is_not_used_again)
{
	CUstream stream = stream_new();
	glake_ptr ptr[3];
	alloc_each(stream, 3, 2 * MIB, ptr);
	free_on(stream, ptr[0]);
	free_on(stream, ptr[2]);
	synchronize(stream);
	unmap = glake__space.drv.cuMemUnmap;
	glake__space.drv.cuMemUnmap = unmap_but_one;
	assert_ok(glake_trim(session, 0, 0));
	glake__space.drv.cuMemUnmap = unmap;
	ck_assert_uint_eq(n_found, 0);
	for (unsigned i = 0; i < 4; i++) {
		ck_assert_uint_ne(alloc_on(stream, 2 * MIB), stuck);
		stats();
	}
}
END_TEST

/* glaked has not got it. */
START_TEST(what_cannot_be_unmapped_pays_nothing)
{
	CUstream stream = stream_new();
	glake_ptr first = alloc_on(stream, 2 * MIB);
	glake_ptr second = alloc_on(stream, 2 * MIB);
	glake__heap_reclaim(&session->devices[0], 2 * MIB);
	stuck = 0;
	unmap = glake__space.drv.cuMemUnmap;
	glake__space.drv.cuMemUnmap = unmap_but_one;
	assert_ok(glake_free(session, first));
	glake__space.drv.cuMemUnmap = unmap;
	ck_assert_uint_eq(stuck, first);
	ck_assert_uint_eq(stats().reserved_bytes, 4 * MIB);
	assert_ok(glake_free(session, second));
	ck_assert_uint_eq(stats().reserved_bytes, 2 * MIB);
}
END_TEST

START_TEST(sizes_do_not_wrap)
{
	CUstream stream = stream_new();
	glake_ptr held[3];
	keep_a_range(stream, held);
	const struct glake__tag tag = {.stream = 1};
	ck_assert_ptr_null(glake__heap_take(session, 0, UINT64_MAX, &tag));
	ck_assert_ptr_null(glake__heap_take(session, 0, UINT64_MAX - 512, &tag));
	ck_assert_ptr_null(glake__heap_take(session, 0, UINT64_MAX / 2, &tag));
}
END_TEST

/* The program never used the second allocation, but the stream still uses the first one. */
START_TEST(a_free_without_a_stream_waits_for_work_before)
{
	CUstream one = stream_new();
	CUstream two = stream_new();
	glake_ptr kept = alloc_on(one, 32 * MIB);
	glake_ptr first = alloc_on(one, 32 * MIB);
	queue_write(one, first, 32 * MIB, 1);
	ck_assert_int_eq(drv.cuMemcpyDtoDAsync(kept, first, 32 * MIB, one), CUDA_SUCCESS);
	free_on(one, first);
	glake_ptr second = alloc_on(one, 32 * MIB);
	ck_assert_uint_eq(second, first);
	assert_ok(glake_free(session, second));
	glake_ptr third = alloc_on(two, 32 * MIB);
	queue_write(two, third, 32 * MIB, 3);
	synchronize(two);
	synchronize(one);
	ck_assert_uint_eq(n_wrong(kept, 32 * MIB, 1), 0);
	ck_assert_uint_eq(n_wrong(third, 32 * MIB, 3), 0);
}
END_TEST

START_TEST(whatever_is_freed_next_pays_what_glaked_asked_for)
{
	CUstream stream = stream_new();
	glake_ptr own;
	glake_ptr pooled = alloc_on(stream, 8 * MIB);
	glake_ptr other = alloc_on(stream, 8 * MIB);
	assert_ok(glake_alloc(session, 0, 8 * MIB, 0, &own));
	/* Nothing is free. */
	glake__heap_reclaim(&session->devices[0], 16 * MIB);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 24 * MIB);
	assert_ok(glake_free(session, own));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 16 * MIB);
	assert_ok(glake_free(session, pooled));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 8 * MIB);
	/* All is paid. */
	assert_ok(glake_free(session, other));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 8 * MIB);
}
END_TEST

START_TEST(small_frees_pay_too)
{
	enum { N = 128 };
	CUstream stream = stream_new();
	glake_ptr ptr[N];
	for (unsigned i = 0; i < N; i++) {
		ptr[i] = alloc_on(stream, 256 * KIB);
	}
	glake__heap_reclaim(&session->devices[0], 32 * MIB);
	for (unsigned i = 0; i < N; i++) {
		assert_ok(glake_free(session, ptr[i]));
	}
	ck_assert_uint_eq(stats().reserved_bytes, 0);
}
END_TEST

/* A graph, for example, may be launched again for as long as the program lives. */
START_TEST(a_range_in_use_does_not_keep_younger_ones)
{
	CUstream one = stream_new();
	CUstream two = stream_new();
	const uint64_t many = 5000;
	glake_ptr of_one[4];
	glake_ptr of_two[6];
	leave_gaps(one, 4, of_one);
	free_on(one, alloc_on(one, 16 * MIB));
	leave_gaps(two, 6, of_two);
	free_on(two, alloc_on(two, 16 * MIB));
	ck_assert_uint_eq(stats().n_kept, 2);
	glake__lock();
	the_pool()->stitched.oldest->number = UINT64_MAX;
	glake__unlock();
	the_pool()->stitched.n_kept_pages += many;
	alloc_on(two, 24 * MIB);
	the_pool()->stitched.n_kept_pages -= many;
	ck_assert_uint_eq(stats().n_stitches, 3);
	ck_assert_uint_eq(stats().n_kept, 2);
	ck_assert_uint_eq(stats().n_kept_live, 1);
}
END_TEST

START_TEST(without_glaked_what_is_free_serves)
{
	CUstream stream = stream_new();
	glake_ptr ptr[6];
	leave_gaps(stream, 6, ptr);
	harness_kill(&harness);
	glake_ptr large = alloc_on(stream, 24 * MIB);
	ck_assert_uint_eq(stats().n_stitches, 1);
	glake_ptr none;
	for (unsigned i = 0; i < 2; i++) {
		ck_assert_int_lt(glake_alloc_async(session, stream, 32 * MIB, 0, &none), 0);
		ck_assert_uint_eq(stats().reserved_bytes, 48 * MIB);
		free_on(stream, ptr[1 + 2 * i]);
	}
	free_on(stream, large);
	synchronize(stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 8 * MIB);
	world_restart();
}
END_TEST

static bool has_reader(glake_ptr ptr, uint64_t n_bytes, int device)
{
	bool has = true;
	glake__lock();
	for (uint64_t at = 0; at < n_bytes; at += 2 * MIB) {
		has &= glake__piece_at_locked(ptr + at)->readers >> device & 1;
	}
	glake__unlock();
	return has;
}

/* Where it lies and where it is stitched, what there was and what comes. */
START_TEST(a_peer_reads_all_of_it)
{
	CUstream stream = stream_new();
	glake_ptr ptr[6];
	leave_gaps(stream, 6, ptr);
	glake_ptr first = alloc_on(stream, 16 * MIB);
	assert_ok(glake__space_add_reader(0, 1));
	glake_ptr fresh = alloc_on(stream, 30 * MIB);
	glake_ptr second = alloc_on(stream, 20 * MIB);
	ck_assert_uint_eq(stats().n_stitches, 2);
	ck_assert(has_reader(ptr[1], 8 * MIB, 1));
	ck_assert(has_reader(first, 16 * MIB, 1));
	ck_assert(has_reader(fresh, 30 * MIB, 1));
	ck_assert(has_reader(second, 20 * MIB, 1));
	queue_write(stream, first, 16 * MIB, 5);
	queue_write(stream, second, 20 * MIB, 6);
	synchronize(stream);
	CUcontext other;
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(other), CUDA_SUCCESS);
	ck_assert_uint_eq(n_wrong(first, 16 * MIB, 5), 0);
	ck_assert_uint_eq(n_wrong(second, 20 * MIB, 6), 0);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
}
END_TEST

static void pass_rounds(unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		the_pool()->round_ns -= POOL_ROUND_NS;
		ck_assert_int_ge(glake_dispatch(session), 0);
	}
}

/* The program calls only glake_dispatch() any more. */
START_TEST(an_idle_program_gives_its_memory_back)
{
	CUstream stream = stream_new();
	glake_ptr live = alloc_on(stream, 8 * MIB);
	glake_ptr ptr = alloc_on(stream, 64 * MIB);
	free_on(stream, ptr);
	synchronize(stream);
	ck_assert_uint_eq(stats().reserved_bytes, 72 * MIB);
	pass_rounds(4);
	/* An eighth of what it has used may stay. */
	ck_assert_uint_le(stats().reserved_bytes, 9 * MIB);
	free_on(stream, live);
}
END_TEST

/* Work still uses what it has freed when the round ends, and not any more in the middle of the next. */
START_TEST(what_could_not_go_back_does_so_later)
{
	CUstream stream = stream_new();
	glake_ptr live = alloc_on(stream, 8 * MIB);
	glake_ptr ptr = alloc_on(stream, 64 * MIB);
	gate_close(stream);
	queue_write(stream, ptr, 64 * MIB, 1);
	free_on(stream, ptr);
	pass_rounds(4);
	ck_assert_uint_eq(stats().reserved_bytes, 72 * MIB);
	gate_open();
	synchronize(stream);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_ge(glake_dispatch(session), 0);
	}
	ck_assert_uint_le(stats().reserved_bytes, 9 * MIB);
	free_on(stream, live);
}
END_TEST

/* Memory that stays lies together, and the next request has room behind it. */
START_TEST(what_lies_last_goes_back_first)
{
	CUstream stream = stream_new();
	glake_ptr ptr[6];
	alloc_each(stream, 6, 8 * MIB, ptr);
	free_each(stream, 6, ptr);
	synchronize(stream);
	assert_ok(glake_trim(session, 0, 16 * MIB));
	size_t n;
	struct glake_pool_range *ranges = snapshot(&n);
	ck_assert_uint_eq(n, 1);
	ck_assert_uint_eq(ranges[0].ptr, ptr[0]);
	free(ranges);
}
END_TEST

/* A request in every minute: giving its memory back each time would cost more than it saves. */
START_TEST(what_is_wanted_again_and_again_stays_longer)
{
	CUstream stream = stream_new();
	glake_ptr live = alloc_on(stream, 8 * MIB);
	for (unsigned n_rounds = 4; n_rounds <= 32; n_rounds *= 2) {
		/* A little more each time. */
		uint64_t n_bytes = (40 + n_rounds) * MIB;
		glake_ptr ptr = alloc_on(stream, n_bytes);
		ck_assert_uint_eq(stats().reserved_bytes, 8 * MIB + n_bytes);
		free_on(stream, ptr);
		synchronize(stream);
		if (n_rounds > 4) {
			pass_rounds(n_rounds / 2 - 2);
			ck_assert_uint_eq(stats().reserved_bytes, 8 * MIB + n_bytes);
		}
		pass_rounds(n_rounds);
		ck_assert_uint_le(stats().reserved_bytes, 9 * MIB);
	}
	/* The pool has forgotten by now. */
	pass_rounds(400);
	uint64_t length_ns = the_pool()->round_length_ns;
	alloc_on(stream, 64 * MIB);
	ck_assert_uint_eq(the_pool()->round_length_ns, length_ns);
	free_on(stream, live);
}
END_TEST

START_TEST(what_went_back_comes_again_in_large_chunks)
{
	CUstream stream = stream_new();
	free_on(stream, alloc_on(stream, 8 * MIB));
	/* Memory has been used again: from now on it is made in small chunks. */
	glake_ptr live = alloc_on(stream, 8 * MIB);
	free_on(stream, alloc_on(stream, 64 * MIB));
	synchronize(stream);
	pass_rounds(4);
	struct glake_pool_stats less = stats();
	ck_assert_uint_le(less.reserved_bytes, 9 * MIB);
	glake_ptr ptr = alloc_on(stream, 64 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, 72 * MIB);
	ck_assert_uint_le(stats().n_mapped - less.n_mapped, 8);
	free_on(stream, ptr);
	free_on(stream, live);
}
END_TEST

/* Some of its runs lie before the one that stands for all, some behind. */
START_TEST(a_session_ends_with_ranges_in_use)
{
	CUstream stream = stream_new();
	glake_ptr held[3];
	keep_a_range(stream, held);
	free_on(stream, held[0]);
	alloc_on(stream, 30 * MIB);
	alloc_on(stream, 12 * MIB);
	stats();
	world_disconnect(session);
}
END_TEST

/* ---- borrowing --------------------------------------------------------------------------------- */

/* The quota is full, and @lender's half is freed behind a copy of it to the other half, and that behind the gate. */
struct loan {
	CUstream lender;
	CUstream borrower;
	glake_ptr lent;
	glake_ptr copy;
	CUevent behind; /* the copy */
};

static struct loan lend(bool has_gate)
{
	struct loan loan = {.lender = stream_new(), .borrower = stream_new()};
	loan.copy = alloc_on(loan.lender, 64 * MIB);
	loan.lent = alloc_on(loan.lender, 64 * MIB);
	if (has_gate) {
		gate_close(loan.lender);
	}
	queue_write(loan.lender, loan.lent, 64 * MIB, 1);
	must(drv.cuMemcpyDtoDAsync(loan.copy, loan.lent, 64 * MIB, loan.lender));
	/* Before the free: whoever has waited for that has waited for this. */
	loan.behind = record(loan.lender);
	free_on(loan.lender, loan.lent);
	return loan;
}

START_TEST(a_stream_borrows_without_waiting)
{
	struct loan loan = lend(true);
	glake_ptr ptr = alloc_on(loan.borrower, 60 * MIB);
	ck_assert_uint_eq(ptr, loan.lent);
	ck_assert_int_eq(drv.cuEventQuery(loan.behind), CUDA_ERROR_NOT_READY);
	ck_assert_uint_eq(stats().reserved_bytes, 128 * MIB);
	queue_write(loan.borrower, ptr, 60 * MIB, 2);
	/* The rest of the loan is still the lender's. */
	glake_ptr rest = alloc_on(loan.lender, 4 * MIB);
	ck_assert_uint_eq(rest, loan.lent + 60 * MIB);
	ck_assert_int_eq(drv.cuEventQuery(loan.behind), CUDA_ERROR_NOT_READY);
	gate_open();
	synchronize(loan.borrower);
	ck_assert_uint_eq(n_wrong(loan.copy, 64 * MIB, 1), 0);
	ck_assert_uint_eq(n_wrong(ptr, 60 * MIB, 2), 0);
	free_on(loan.borrower, ptr);
	synchronize(loan.borrower);
	ck_assert_uint_eq(alloc_on(loan.lender, 60 * MIB), ptr);
}
END_TEST

/* glaked asks all sessions before it refuses, which takes time. */
START_TEST(glaked_is_not_asked_again_soon_after_a_refusal)
{
	struct loan loan = lend(true);
	CUstream third = stream_new();
	/* Little enough that glaked is asked first. */
	glake_ptr ptr = alloc_on(loan.borrower, 24 * MIB);
	uint64_t n_refusals = world_metric("quota_refusals");
	ck_assert_uint_gt(n_refusals, 0);
	ck_assert_uint_eq(ptr, loan.lent);
	the_pool()->refused_ns = clock_now_ns();
	glake_ptr next = alloc_on(third, 24 * MIB);
	ck_assert_uint_eq(next, loan.lent + 24 * MIB);
	ck_assert_uint_eq(world_metric("quota_refusals"), n_refusals);
	ck_assert_int_eq(drv.cuEventQuery(loan.behind), CUDA_ERROR_NOT_READY);
	gate_open();
	queue_write(third, next, 24 * MIB, 3);
	/* Nothing fits: it is asked after all. */
	glake_ptr none;
	ck_assert_int_eq(glake_alloc_async(session, loan.borrower, 32 * MIB, 0, &none),
	                 GLAKE_E_OVER_QUOTA);
	ck_assert_uint_gt(world_metric("quota_refusals"), n_refusals);
	synchronize(third);
	ck_assert_uint_eq(n_wrong(next, 24 * MIB, 3), 0);
	ck_assert_uint_eq(n_wrong(loan.copy, 64 * MIB, 1), 0);
}
END_TEST

/* One wait is for all that the lender has freed until then: the rest needs none. */
START_TEST(what_is_borrowed_is_cut_and_stitched)
{
	CUstream lender = stream_new();
	CUstream borrower = stream_new();
	glake_ptr ptr[4];
	gate_close(lender);
	for (unsigned i = 0; i < 4; i++) {
		ptr[i] = alloc_on(lender, 32 * MIB);
		queue_write(lender, ptr[i], 32 * MIB, 1);
	}
	must(drv.cuMemcpyDtoDAsync(ptr[1], ptr[0], 32 * MIB, lender));
	must(drv.cuMemcpyDtoDAsync(ptr[3], ptr[2], 32 * MIB, lender));
	CUevent behind = record(lender);
	free_on(lender, ptr[0]);
	/* So that the next free has an event of its own, too. */
	harness_sleep_ms(2);
	free_on(lender, ptr[2]);
	glake_ptr large = alloc_on(borrower, 48 * MIB);
	world_set_own_faults("cuStreamWaitEvent:*:fail=999");
	glake_ptr small = alloc_on(borrower, 8 * MIB);
	world_set_own_faults(NULL);
	ck_assert_int_eq(drv.cuEventQuery(behind), CUDA_ERROR_NOT_READY);
	gate_open();
	struct glake_pool_stats now = stats();
	ck_assert_uint_eq(now.reserved_bytes, 128 * MIB);
	ck_assert_uint_eq(now.n_stitches, 1);
	queue_write(borrower, large, 48 * MIB, 2);
	queue_write(borrower, small, 8 * MIB, 3);
	synchronize(borrower);
	ck_assert_uint_eq(n_wrong(ptr[1], 32 * MIB, 1), 0);
	ck_assert_uint_eq(n_wrong(ptr[3], 32 * MIB, 1), 0);
	ck_assert_uint_eq(n_wrong(large, 48 * MIB, 2), 0);
	ck_assert_uint_eq(n_wrong(small, 8 * MIB, 3), 0);
}
END_TEST

/* The borrower never used it, but the lender still does. */
START_TEST(what_is_borrowed_and_freed_at_once_is_the_lenders)
{
	struct loan loan = lend(false);
	CUstream third = stream_new();
	glake_ptr ptr = alloc_on(loan.borrower, 60 * MIB);
	assert_ok(glake_free(session, ptr));
	stats();
	glake_ptr again = alloc_on(third, 60 * MIB);
	queue_write(third, again, 60 * MIB, 3);
	synchronize(third);
	synchronize(loan.lender);
	ck_assert_uint_eq(n_wrong(loan.copy, 64 * MIB, 1), 0);
	ck_assert_uint_eq(n_wrong(again, 60 * MIB, 3), 0);
}
END_TEST

/* The driver refuses the wait: then the host waits, as ever. */
START_TEST(a_wait_that_fails_gives_the_memory_back)
{
	struct loan loan = lend(false);
	world_set_own_faults("cuStreamWaitEvent:*:fail=999");
	glake_ptr ptr = alloc_on(loan.borrower, 60 * MIB);
	world_set_own_faults(NULL);
	ck_assert_int_eq(drv.cuEventQuery(loan.behind), CUDA_SUCCESS);
	queue_write(loan.borrower, ptr, 60 * MIB, 2);
	synchronize(loan.borrower);
	ck_assert_uint_eq(n_wrong(loan.copy, 64 * MIB, 1), 0);
	ck_assert_uint_eq(stats().live_bytes, 124 * MIB);
}
END_TEST

/* Two threads give back at a time: one has the range, the other one what it maps. */
START_TEST(memory_of_a_range_that_is_dropped_late_goes_back)
{
	CUstream stream = stream_new();
	struct glake__stretch *stretch = calloc(1, sizeof(*stretch));
	struct glake__stitched *late;
	free_on(stream, alloc_on(stream, 8 * MIB));
	synchronize(stream);
	*stretch = (struct glake__stretch){.page = 0, .n_pages = 4};
	assert_ok(glake__stitched_new(session, the_pool()->home, 0, stretch, 1, &late));
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 8 * MIB);
	glake__stitched_drop(session, late);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

/* While a thread asked glaked for a slab, others have freed what it needs. */
START_TEST(a_slab_too_many_goes_back)
{
	struct glake__device *device = &session->devices[0];
	const struct glake__tag tag = {.stream = 0};
	struct glake__wait wait = {0};
	struct glake__allocation *allocations[4];
	for (unsigned i = 0; i < 4; i++) {
		assert_ok(glake__heap_make(device, KIB, true, &tag, &wait, &allocations[i]));
	}
	for (unsigned i = 0; i < 4; i++) {
		glake__heap_release(session, allocations[i]);
	}
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST

/* ---- random ----------------------------------------------------------------------------------- */

#define N_SLOTS 24u
#define N_STREAMS 3u
#define N_STEPS 4000u

static struct slot {
	glake_ptr ptr; /* 0: empty */
	uint64_t n_bytes;
	CUstream stream; /* whose work it waits for */
	unsigned char value;
} slots[N_SLOTS];

static uint64_t random_bytes(void)
{
	static const uint64_t most[] = {256 * KIB, 2 * MIB, 8 * MIB, 24 * MIB};
	return 1 + (uint64_t)random() % most[random() % 4];
}

static void look(const struct slot *slot)
{
	synchronize(slot->stream);
	ck_assert_uint_eq(n_wrong(slot->ptr, slot->n_bytes, slot->value), 0);
}

static void fill(struct slot *slot, CUstream stream)
{
	uint64_t n_bytes = random_bytes();
	if (glake_alloc_async(session, stream, n_bytes, 0, &slot->ptr) < 0) {
		slot->ptr = 0;
		return;
	}
	slot->n_bytes = n_bytes;
	slot->stream = stream;
	slot->value = (unsigned char)random();
	queue_write(stream, slot->ptr, n_bytes, slot->value);
}

static void empty(struct slot *slot, CUstream stream)
{
	if (random() % 4 == 0) {
		look(slot);
	}
	if (random() % 8 == 0) {
		synchronize(slot->stream);
		assert_ok(glake_free(session, slot->ptr));
	} else if (random() % 8 == 0) {
		/* In another stream's order, which knows that the work is done. */
		synchronize(slot->stream);
		free_on(stream, slot->ptr);
	} else {
		free_on(slot->stream, slot->ptr);
	}
	slot->ptr = 0;
}

START_TEST(random_work_keeps_every_byte)
{
	CUstream streams[N_STREAMS];
	uint64_t most = 0;
	for (unsigned i = 0; i < N_STREAMS; i++) {
		streams[i] = stream_new();
	}
	for (unsigned step = 0; step < N_STEPS; step++) {
		struct slot *slot = &slots[random() % N_SLOTS];
		CUstream stream = streams[random() % N_STREAMS];
		if (slot->ptr) {
			empty(slot, stream);
		} else {
			fill(slot, stream);
		}
		if (random() % 100 == 0) {
			uint64_t keep_bytes = (uint64_t)random() % 64 * MIB;
			assert_ok(glake_trim(session, 0, keep_bytes));
		}
		if (random() % 50 == 0) {
			synchronize(stream);
			glake__pool_settle(session->heaps[0].stitching, 2 * MIB);
		}
		if (step % 16 == 0) {
			struct glake_pool_stats now = stats();
			most = now.peak_reserved_bytes;
			ck_assert_uint_le(now.reserved_bytes, 128 * MIB);
		}
	}
	ck_assert_uint_gt(most, 100 * MIB);
	ck_assert_uint_gt(stats().n_stitches, 20);
	for (unsigned i = 0; i < N_SLOTS; i++) {
		if (slots[i].ptr) {
			look(&slots[i]);
			free_on(slots[i].stream, slots[i].ptr);
		}
	}
	for (unsigned i = 0; i < N_STREAMS; i++) {
		synchronize(streams[i]);
	}
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().used_bytes, 0);
	ck_assert_uint_eq(stats().reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(session).live_bytes, 0);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
}
END_TEST
