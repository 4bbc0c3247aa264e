/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in stream order of a session that stitches, sealed: in home, and stitched of what lies apart there. */
#include <errno.h>
#include <pthread.h>

#include "libclient/heap/claim.h"
#include "libclient/seal/candidates.h"
#include "libclient/space/fill.h"
#include "libclient/space/held.h"
#include "libclient/space/sealed.h"
#include "libclient/stitch/pool_parts.h"
#include "tests/harness/gate.h"
#include "tests/harness/words.h"
#include "tests/integration/stitching.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "1x1GiB");
}
BEGIN_EACH(begin)

/* ---- scenes ------------------------------------------------------------------------------------- */

static glake_ptr alloc_words(CUstream stream, uint64_t n_bytes, uint64_t content)
{
	glake_ptr ptr = alloc_on(stream, n_bytes);
	synchronize(stream);
	words_write(ptr, n_bytes, content);
	return ptr;
}

/* An allocation that is stitched of two holes of 8 MiB, with others beside them. */
struct scene {
	CUstream stream;
	glake_ptr beside[3];
	glake_ptr ptr;
};

static void scene_begin(struct scene *scene)
{
	glake_ptr all[5];
	scene->stream = stream_new();
	for (unsigned i = 0; i < 5; i++) {
		all[i] = alloc_words(scene->stream, 8 * MIB, 20 + i);
	}
	free_on(scene->stream, all[1]);
	free_on(scene->stream, all[3]);
	for (unsigned i = 0; i < 3; i++) {
		scene->beside[i] = all[2 * i];
	}
	scene->ptr = alloc_words(scene->stream, 16 * MIB, 7);
	ck_assert_uint_eq(stats().n_kept_live, 1);
}

static void check_beside(const struct scene *scene)
{
	for (unsigned i = 0; i < 3; i++) {
		words_check(scene->beside[i], 8 * MIB, 20 + 2 * i);
	}
}

/* Where home has the memory at @ptr, which is stitched. */
static glake_ptr home_of(glake_ptr ptr)
{
	glake_ptr found = 0;
	glake__lock();
	const struct glake__piece *piece = glake__piece_at_locked(ptr);
	const struct glake__piece *at = piece->chunk->mappings;
	for (; at && !found; at = at->next_mapping) {
		if (at->range == the_pool()->home) {
			found = at->range->ptr + at->offset + (ptr - piece->range->ptr) -
			        piece->offset;
		}
	}
	glake__unlock();
	ck_assert_uint_ne(found, 0);
	return found;
}

static uint64_t shared_bytes(void)
{
	return world_usage(session).shared_bytes;
}

/* Whatever is free, and more, is allocated, and can be written to by work. */
static void check_all_can_be_written(CUstream stream)
{
	glake_ptr ptr[64];
	for (unsigned i = 0; i < 64; i++) {
		ptr[i] = alloc_on(stream, (i % 5 + 1) * 3 * MIB / 2);
		queue_write(stream, ptr[i], (i % 5 + 1) * 3 * MIB / 2, (unsigned char)i);
	}
	synchronize(stream);
	for (unsigned i = 0; i < 64; i++) {
		ck_assert_uint_eq(n_wrong(ptr[i], (i % 5 + 1) * 3 * MIB / 2, (unsigned char)i), 0);
		free_on(stream, ptr[i]);
	}
	synchronize(stream);
	stats();
}

/* ---- in place ----------------------------------------------------------------------------------- */

/* Not a size that starts on a page. */
#define N_BYTES (15 * MIB / 2)

START_TEST(memory_in_home_is_sealed_and_unsealed)
{
	stitching_begin();
	CUstream stream = stream_new();
	/* So that it begins in the middle of a page, and ends in one. */
	glake_ptr before = alloc_words(stream, MIB, 1);
	glake_ptr ptr = alloc_words(stream, N_BYTES, 7);
	glake_ptr behind = alloc_words(stream, MIB, 2);
	struct glake_pool_stats was = stats();
	ck_assert_uint_eq(ptr - before, MIB);
	struct glake_sealed sealed = words_seal(ptr, N_BYTES);
	ck_assert_uint_eq(sealed.sealed_bytes, 6 * MIB);
	ck_assert_uint_eq(sealed.edge_bytes, 3 * MIB / 2);
	ck_assert_uint_eq(shared_bytes(), 6 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, was.reserved_bytes - 6 * MIB);
	ck_assert_uint_eq(stats().used_bytes, was.used_bytes - 6 * MIB);
	ck_assert_uint_eq(stats().live_bytes, was.live_bytes - 6 * MIB);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, stats().reserved_bytes);
	ck_assert(!words_can_write(ptr + MIB));
	words_check(ptr, N_BYTES, 7);
	/* Others' memory in its pages stays writable. */
	words_write(behind, MIB, 3);
	assert_ok(glake_unseal(ptr, N_BYTES));
	ck_assert_uint_eq(shared_bytes(), 0);
	ck_assert_uint_eq(stats().reserved_bytes, was.reserved_bytes);
	ck_assert_uint_eq(stats().used_bytes, was.used_bytes);
	words_check(ptr, N_BYTES, 7);
	ck_assert(words_can_write(ptr + MIB));
	words_check(before, MIB, 1);
	words_check(behind, MIB, 3);
}
END_TEST

START_TEST(stitched_memory_is_read_only_at_each_place)
{
	struct scene scene;
	stitching_begin();
	scene_begin(&scene);
	glake_ptr home = home_of(scene.ptr + 8 * MIB);
	ck_assert_uint_ne(home, scene.ptr + 8 * MIB);
	struct glake_sealed sealed = words_seal(scene.ptr, 16 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 16 * MIB);
	ck_assert(!words_can_write(scene.ptr + 8 * MIB));
	ck_assert(!words_can_write(home));
	words_check(scene.ptr, 16 * MIB, 7);
	ck_assert_uint_eq(stats().live_bytes, 24 * MIB);
	assert_ok(glake_unseal(scene.ptr, 16 * MIB));
	ck_assert_uint_eq(shared_bytes(), 0);
	words_check(scene.ptr, 16 * MIB, 7);
	ck_assert(words_can_write(home));
	ck_assert(words_can_write(scene.ptr));
	ck_assert_uint_eq(home_of(scene.ptr + 8 * MIB), home);
	ck_assert_uint_eq(stats().live_bytes, 40 * MIB);
	check_beside(&scene);
	free_on(scene.stream, scene.ptr);
	check_all_can_be_written(scene.stream);
	check_beside(&scene);
}
END_TEST

START_TEST(sessions_share_it)
{
	struct scene scene;
	stitching_begin();
	scene_begin(&scene);
	ck_assert_uint_eq(words_seal(scene.ptr, 16 * MIB).shared_bytes, 0);
	struct glake_session *first = session;
	struct scene other;
	session = connect_stitching();
	scene_begin(&other);
	glake_ptr home = home_of(other.ptr + 8 * MIB);
	ck_assert_uint_eq(words_seal(other.ptr, 16 * MIB).shared_bytes, 16 * MIB);
	ck_assert_uint_eq(shared_bytes(), 16 * MIB);
	ck_assert_uint_eq(home_of(other.ptr + 8 * MIB), home);
	words_check(other.ptr, 16 * MIB, 7);
	check_beside(&other);
	free_on(other.stream, other.ptr);
	check_all_can_be_written(other.stream);
	ck_assert_uint_eq(shared_bytes(), 0);
	world_disconnect(session);
	session = first;
	words_check(scene.ptr, 16 * MIB, 7);
	world_disconnect(session);
}
END_TEST

/* ---- freed -------------------------------------------------------------------------------------- */

/* In the order of a stream: nothing is unmapped while its work goes on, and nobody gets a block. */
START_TEST(freed_blocks_serve_nobody)
{
	stitching_begin();
	CUstream stream = stream_new();
	glake_ptr before = alloc_words(stream, MIB, 1);
	glake_ptr ptr = alloc_words(stream, 8 * MIB, 7);
	glake_ptr others[4];
	for (unsigned i = 0; i < 4; i++) {
		others[i] = alloc_on(stream, 4 * MIB);
	}
	words_seal(ptr, 8 * MIB);
	gate_close(stream);
	CUevent event = record(stream);
	/* The first has a mark, and what is freed soon joins the second. */
	for (unsigned i = 0; i < 4; i++) {
		free_on(stream, others[i]);
	}
	free_on(stream, ptr);
	glake_ptr next = alloc_on(stream, 8 * MIB);
	ck_assert(next + 8 * MIB <= ptr + MIB || ptr + 7 * MIB <= next);
	queue_write(stream, next, 8 * MIB, 9);
	ck_assert_uint_eq(glake__find_sealed(ptr + MIB, 1), ptr + MIB);
	gate_open();
	synchronize(stream);
	ck_assert_uint_eq(n_wrong(next, 8 * MIB, 9), 0);
	must(drv.cuEventDestroy(event));
	check_all_can_be_written(stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(shared_bytes(), 0);
	words_check(before, MIB, 1);
}
END_TEST

START_TEST(all_blocks_of_what_is_freed_go_back)
{
	stitching_begin();
	CUstream stream = stream_new();
	glake_ptr ptr = alloc_words(stream, 8 * MIB, 7);
	for (unsigned i = 0; i < 4; i++) {
		words_seal(ptr + i * 2 * MIB, 2 * MIB);
	}
	ck_assert_uint_eq(shared_bytes(), 8 * MIB);
	assert_ok(glake_free(session, ptr));
	ck_assert_uint_eq(shared_bytes(), 0);
}
END_TEST

static uint64_t unsealed_bytes(void)
{
	uint64_t n_bytes = 0;
	glake__lock();
	for (unsigned why = 0; why < GLAKE_N_UNSEALED; why++) {
		n_bytes += session->books.unsealed_bytes[why];
	}
	glake__unlock();
	return n_bytes;
}

/* Why pages of it stayed private. */
START_TEST(what_is_freed_has_no_cause)
{
	stitching_begin();
	CUstream stream = stream_new();
	glake_ptr before = alloc_words(stream, MIB, 1);
	for (unsigned i = 0; i < 2; i++) {
		glake_ptr ptr = alloc_words(stream, N_BYTES, 7);
		words_seal(ptr, N_BYTES);
		ck_assert_uint_gt(unsealed_bytes(), 0);
		if (i == 0) {
			free_on(stream, ptr);
		} else {
			assert_ok(glake_free(session, ptr));
		}
		ck_assert_uint_eq(unsealed_bytes(), 0);
	}
	synchronize(stream);
	words_check(before, MIB, 1);
}
END_TEST

static void free_stitched(void (*free_it)(const struct scene *scene))
{
	struct scene scene;
	stitching_begin();
	scene_begin(&scene);
	words_seal(scene.ptr, 16 * MIB);
	free_it(&scene);
	check_all_can_be_written(scene.stream);
	ck_assert_uint_eq(shared_bytes(), 0);
	ck_assert_uint_eq(glake__sealed_bytes(), 0);
	check_beside(&scene);
}

static void free_async(const struct scene *scene)
{
	free_on(scene->stream, scene->ptr);
}

static void free_now(const struct scene *scene)
{
	assert_ok(glake_free(session, scene->ptr));
	ck_assert_uint_eq(shared_bytes(), 0);
}

START_TEST(a_stitched_range_of_blocks_is_dropped)
{
	free_stitched(free_async);
}
END_TEST

START_TEST(a_stitched_range_of_blocks_is_dropped_at_once)
{
	free_stitched(free_now);
}
END_TEST

/* Another one that is live begins in the chunk of which the front becomes a block. */
START_TEST(ranges_that_map_a_freed_block_serve_nobody_again)
{
	stitching_begin();
	CUstream stream = stream_new();
	glake_ptr all[8];
	for (unsigned i = 0; i < 8; i++) {
		all[i] = alloc_words(stream, 9 * MIB, 20 + i);
	}
	free_on(stream, all[1]);
	free_on(stream, all[3]);
	free_on(stream, all[5]);
	glake_ptr stitched = alloc_words(stream, 26 * MIB, 6);
	ck_assert_uint_eq(stats().n_kept_live, 1);
	for (unsigned i = 0; i < 8; i += 2) {
		words_seal(all[i], 9 * MIB);
	}
	words_check(stitched, 26 * MIB, 6);
	for (unsigned i = 0; i < 8; i += 2) {
		words_check(all[i], 9 * MIB, 20 + i);
		free_on(stream, all[i]);
	}
	synchronize(stream);
	words_check(stitched, 26 * MIB, 6);
	words_write(stitched, 26 * MIB, 8);
	free_on(stream, stitched);
	glake_ptr again = alloc_on(stream, 26 * MIB);
	queue_write(stream, again, 26 * MIB, 5);
	synchronize(stream);
	ck_assert_uint_eq(n_wrong(again, 26 * MIB, 5), 0);
	check_all_can_be_written(stream);
	ck_assert_uint_eq(shared_bytes(), 0);
	words_check(all[7], 9 * MIB, 27);
}
END_TEST

static void *free_it(void *user)
{
	const struct scene *scene = user;
	must(drv.cuCtxSetCurrent(context));
	free_on(scene->stream, scene->ptr);
	return NULL;
}

static void *seal_it(void *user)
{
	const struct scene *scene = user;
	must(drv.cuCtxSetCurrent(context));
	words_seal(scene->ptr, 16 * MIB);
	return NULL;
}

START_TEST(frees_and_seals_wait_for_its_holder)
{
	struct scene scene;
	struct glake__held held;
	struct glake__facts facts;
	pthread_t threads[2];
	stitching_begin();
	scene_begin(&scene);
	glake_ptr inner = scene.ptr + 9 * MIB;
	ck_assert_int_eq(glake__held_begin(inner, &held), 0);
	ck_assert_uint_eq(held.begin, scene.ptr);
	ck_assert_uint_eq(held.end, scene.ptr + 16 * MIB);
	ck_assert_uint_eq(held.tail, held.end);
	pthread_create(&threads[0], NULL, seal_it, &scene);
	usleep(50000);
	ck_assert_uint_eq(shared_bytes(), 0);
	glake__held_end(&held);
	pthread_join(threads[0], NULL);
	ck_assert_uint_eq(shared_bytes(), 16 * MIB);
	ck_assert_int_eq(glake__held_begin(inner, &held), 0);
	pthread_create(&threads[1], NULL, free_it, &scene);
	usleep(50000);
	ck_assert(glake__heap_find(inner, &facts));
	glake__held_end(&held);
	pthread_join(threads[1], NULL);
	ck_assert(!glake__heap_find(inner, &facts));
	check_all_can_be_written(scene.stream);
	ck_assert_uint_eq(shared_bytes(), 0);
}
END_TEST

/* ---- beside others ------------------------------------------------------------------------------ */

START_TEST(memory_of_graphs_is_not_held)
{
	stitching_begin();
	const struct glake__tag tag = {.stream = GLAKE__GRAPH_STREAM + 1};
	struct glake__wait wait = {0};
	struct glake__allocation *allocation;
	struct glake__held held;
	assert_ok(glake__pool_make(the_pool(), 4 * MIB, &tag, &wait, &allocation));
	ck_assert_int_eq(glake__held_begin(allocation->address, &held), -ENOTSUP);
	struct glake_sealed sealed = words_seal(allocation->address, 4 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 0);
	ck_assert_uint_eq(sealed.edge_bytes, 4 * MIB);
	glake__heap_release(session, allocation);
}
END_TEST

/* Without the shim nobody holds back the work on what lies beside it in the same chunk. */
START_TEST(a_chunk_with_other_memory_stays_where_nothing_is_held_back)
{
	stitching_begin();
	CUstream stream = stream_new();
	glake_ptr large = alloc_on(stream, 64 * MIB);
	free_on(stream, large);
	glake_ptr first = alloc_words(stream, 8 * MIB, 1);
	glake_ptr second = alloc_words(stream, 8 * MIB, 2);
	ck_assert_uint_eq(first, large);
	struct glake_sealed sealed = words_seal(second, 8 * MIB);
	ck_assert_uint_eq(sealed.sealed_bytes, 0);
	ck_assert_uint_eq(sealed.edge_bytes, 8 * MIB);
	ck_assert_uint_eq(sealed.pinned_bytes, 0);
}
END_TEST

START_TEST(what_is_free_beside_blocks_goes_back)
{
	struct scene scene;
	stitching_begin();
	scene_begin(&scene);
	words_seal(scene.ptr, 16 * MIB);
	free_on(scene.stream, scene.beside[1]);
	synchronize(scene.stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 16 * MIB);
	words_check(scene.ptr, 16 * MIB, 7);
	free_on(scene.stream, scene.ptr);
	synchronize(scene.stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 16 * MIB);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 16 * MIB);
	ck_assert_uint_eq(shared_bytes(), 0);
	words_check(scene.beside[0], 8 * MIB, 20);
	words_check(scene.beside[2], 8 * MIB, 24);
}
END_TEST

/* A thread holds the pieces of an allocation, as one that seals it does while glaked compares them. */
START_TEST(who_allocates_does_not_wait_for_a_seal)
{
	struct scene scene;
	struct glake__held held;
	struct glake__hold hold;
	stitching_begin();
	scene_begin(&scene);
	free_on(scene.stream, scene.ptr);
	/* The allocation takes the front of the range that is kept, and the range has other chunks in use soon. */
	glake_ptr ptr = alloc_words(scene.stream, 8 * MIB, 5);
	ck_assert_int_eq(glake__held_begin(ptr, &held), 0);
	assert_ok(glake__hold_begin(&hold, ptr, 8 * MIB, false));
	check_all_can_be_written(scene.stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().n_kept, 1);
	glake__hold_end(&hold);
	glake__held_end(&held);
	assert_ok(glake_trim(session, 0, 0));
	words_check(ptr, 8 * MIB, 5);
	check_beside(&scene);
}
END_TEST

/* Frees and allocations of all sizes while another thread seals and unseals what stays. */
struct race {
	const struct scene *scene;
	_Atomic bool is_over;
};

static void *seal_on_and_on(void *user)
{
	struct race *race = user;
	must(drv.cuCtxSetCurrent(context));
	for (unsigned i = 0; i < 12; i++) {
		words_seal(race->scene->beside[i % 3], 8 * MIB);
		words_seal(race->scene->ptr, 16 * MIB);
		assert_ok(glake_unseal(race->scene->ptr, 16 * MIB));
	}
	race->is_over = true;
	return NULL;
}

START_TEST(allocations_go_on_while_others_are_sealed)
{
	struct scene scene;
	struct race race = {.scene = &scene};
	pthread_t thread;
	stitching_begin();
	scene_begin(&scene);
	CUstream stream = stream_new();
	glake_ptr ptr[12] = {0};
	pthread_create(&thread, NULL, seal_on_and_on, &race);
	for (unsigned i = 0; !race.is_over; i++) {
		unsigned at = i * 7 % 12;
		uint64_t n_bytes = (i % 9 + 1) * MIB + i % 3 * 512 * KIB;
		if (ptr[at]) {
			free_on(stream, ptr[at]);
		}
		ptr[at] = alloc_on(stream, n_bytes);
		queue_write(stream, ptr[at], n_bytes, (unsigned char)i);
		synchronize(stream);
		ck_assert_uint_eq(n_wrong(ptr[at], n_bytes, (unsigned char)i), 0);
	}
	pthread_join(thread, NULL);
	check_beside(&scene);
	words_check(scene.ptr, 16 * MIB, 7);
	stats();
}
END_TEST

START_TEST(a_session_ends_with_sealed_memory)
{
	struct scene scene;
	stitching_begin();
	scene_begin(&scene);
	words_seal(scene.ptr, 16 * MIB);
	words_seal(scene.beside[1], 8 * MIB);
	free_on(scene.stream, scene.ptr);
	world_disconnect(session);
	ck_assert_uint_eq(glake__sealed_bytes(), 0);
	ck_assert(glake__space_is_valid());
	session = connect_stitching();
	scene_begin(&scene);
	ck_assert_uint_eq(words_seal(scene.beside[1], 8 * MIB).sealed_bytes, 8 * MIB);
}
END_TEST

/* Whole pages that the host has copied once look like weights. */
START_TEST(weights_are_found_and_sealed)
{
	struct scene scene;
	struct glake__candidates found;
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	stitching_begin();
	glake__lock();
	glake__fill_start();
	glake__unlock();
	scene_begin(&scene);
	glake_ptr home = alloc_words(scene.stream, N_BYTES, 9);
	glake__fill_copied(scene.ptr, 16 * MIB);
	glake__fill_copied(home, N_BYTES);
	glake__fill_copied(scene.beside[0], 2 * MIB);
	glake__fill_written(scene.beside[2], 8 * MIB);
	const uint64_t n_whole = (home + N_BYTES) / (2 * MIB) * 2 * MIB -
	                         (home + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
	assert_ok(glake__candidates_find(session, &found));
	ck_assert_uint_eq(found.n_bytes, 18 * MIB + n_whole);
	ck_assert_uint_eq(found.rewritten_bytes, 8 * MIB);
	ck_assert_uint_eq(found.unfilled_bytes, 14 * MIB);
	assert_ok(glake__candidates_seal(found.spans, found.n_spans, &sealed));
	ck_assert_uint_eq(sealed.sealed_bytes, 18 * MIB + n_whole);
	free(found.spans);
	check_beside(&scene);
	words_check(home, N_BYTES, 9);
	assert_ok(glake__candidates_find(session, &found));
	ck_assert_uint_eq(found.sealed_bytes, 18 * MIB + n_whole);
	free(found.spans);
	/* Memory that is allocated next has been filled by nobody. */
	free_on(scene.stream, scene.beside[0]);
	synchronize(scene.stream);
	alloc_on(scene.stream, 6 * MIB);
	assert_ok(glake__candidates_find(session, &found));
	ck_assert_uint_eq(found.n_bytes, 16 * MIB + n_whole);
	free(found.spans);
}
END_TEST
