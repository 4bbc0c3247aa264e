/* SPDX-License-Identifier: Apache-2.0 */
/* Kept ranges that are made to fit (libclient/stitch/pool_change.c): more at their end, or other chunks in them. */
#include <stdio.h>

#include "libclient/stitch/pool_parts.h"
#include "tests/harness/gate.h"
#include "tests/integration/stitching.h"

#define N_PIECES 9u
#define PIECE_BYTES (8 * MIB)
#define PIECE_CHUNKS 4u
/* Kept pages, more than the pool may have. */
#define MANY_PAGES 100000u

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x1GiB");
}
BEGIN_EACH(begin)

/* Pieces side by side, each with its value; those of which the bit is set are free. */
struct scene {
	CUstream stream;
	glake_ptr ptr[N_PIECES];
};

static void free_piece(struct scene *scene, unsigned i)
{
	free_on(scene->stream, scene->ptr[i]);
	scene->ptr[i] = 0;
}

static void scene_begin(struct scene *scene, unsigned free_pieces)
{
	scene->stream = stream_new();
	for (unsigned i = 0; i < N_PIECES; i++) {
		scene->ptr[i] = alloc_on(scene->stream, PIECE_BYTES);
		queue_write(scene->stream, scene->ptr[i], PIECE_BYTES, (unsigned char)(i + 1));
	}
	for (unsigned i = 0; i < N_PIECES; i++) {
		if (free_pieces >> i & 1) {
			free_piece(scene, i);
		}
	}
}

static void check_pieces(const struct scene *scene)
{
	synchronize(scene->stream);
	for (unsigned i = 0; i < N_PIECES; i++) {
		if (scene->ptr[i]) {
			ck_assert_uint_eq(
				n_wrong(scene->ptr[i], PIECE_BYTES, (unsigned char)(i + 1)), 0);
		}
	}
}

/* A range that is kept, of @n_bytes. */
static glake_ptr keep_range(const struct scene *scene, uint64_t n_bytes)
{
	glake_ptr ptr = alloc_on(scene->stream, n_bytes);
	free_on(scene->stream, ptr);
	return ptr;
}

static glake_ptr alloc_when_full(CUstream stream, uint64_t n_bytes)
{
	the_pool()->stitched.n_kept_pages += MANY_PAGES;
	glake_ptr ptr = 0;
	int r = glake_alloc_async(session, stream, n_bytes, 0, &ptr);
	the_pool()->stitched.n_kept_pages -= MANY_PAGES;
	ck_assert_msg(r == 0 || r == GLAKE_E_CUDA, "%d: %s", r, glake_error());
	return ptr;
}

static void check_value(CUstream stream, glake_ptr ptr, uint64_t n_bytes, unsigned char value)
{
	queue_write(stream, ptr, n_bytes, value);
	synchronize(stream);
	ck_assert_uint_eq(n_wrong(ptr, n_bytes, value), 0);
}

/* ---- more at the end ---------------------------------------------------------------------------- */

START_TEST(a_kept_range_that_is_too_short_gets_the_rest)
{
	struct scene scene;
	stitching_begin();
	scene_begin(&scene, 1 << 1 | 1 << 3);
	/* Beside work that still uses it. */
	gate_close(scene.stream);
	glake_ptr kept = keep_range(&scene, 16 * MIB);
	free_piece(&scene, 5);
	struct glake_pool_stats before = stats();
	glake_ptr large = alloc_on(scene.stream, 20 * MIB);
	ck_assert_uint_eq(large, kept);
	ck_assert_uint_eq(stats().n_mapped - before.n_mapped, 2);
	ck_assert_uint_eq(stats().n_unmapped, 0);
	ck_assert_uint_eq(stats().n_kept, 1);
	ck_assert_uint_eq(stats().kept_bytes, 20 * MIB);
	ck_assert_uint_eq(stats().reserved_bytes, before.reserved_bytes);
	gate_open();
	check_value(scene.stream, large, 20 * MIB, 99);
	check_pieces(&scene);
	/* The second round maps nothing, of either size. */
	free_on(scene.stream, large);
	ck_assert_uint_eq(keep_range(&scene, 16 * MIB), kept);
	ck_assert_uint_eq(keep_range(&scene, 20 * MIB), kept);
	ck_assert_uint_eq(stats().n_mapped - before.n_mapped, 2);
	/* There is room for a quarter. */
	ck_assert_uint_ne(alloc_on(scene.stream, 22 * MIB), kept);
	ck_assert_uint_eq(stats().n_kept, 2);
	check_pieces(&scene);
}
END_TEST

START_TEST(what_a_short_range_misses_comes_from_glaked)
{
	struct scene scene;
	stitching_begin();
	scene_begin(&scene, 1 << 1 | 1 << 3);
	glake_ptr kept = keep_range(&scene, 16 * MIB);
	struct glake_pool_stats before = stats();
	glake_ptr large = alloc_on(scene.stream, 19 * MIB);
	ck_assert_uint_eq(large, kept);
	ck_assert_uint_eq(stats().reserved_bytes - before.reserved_bytes, 4 * MIB);
	/* At home and in the range. */
	ck_assert_uint_eq(stats().n_mapped - before.n_mapped, 2 + 2);
	check_value(scene.stream, large, 19 * MIB, 99);
	check_pieces(&scene);
}
END_TEST

START_TEST(a_short_range_is_nobodys_where_nothing_comes)
{
	struct scene scene;
	glake_ptr large = 0;
	stitching_begin();
	scene_begin(&scene, 1 << 1 | 1 << 3);
	keep_range(&scene, 16 * MIB);
	struct glake_pool_stats before = stats();
	world_set_faults("cuMemCreate:*:fail=2");
	ck_assert_int_eq(glake_alloc_async(session, scene.stream, 19 * MIB, 0, &large),
	                 GLAKE_E_NO_DEVICE_MEMORY);
	world_set_faults(NULL);
	ck_assert_uint_eq(stats().n_kept_live, before.n_kept_live);
	ck_assert_uint_eq(stats().used_bytes, before.used_bytes);
	large = alloc_on(scene.stream, 16 * MIB);
	check_value(scene.stream, large, 16 * MIB, 99);
	check_pieces(&scene);
}
END_TEST

START_TEST(a_short_range_in_use_stays)
{
	struct scene scene;
	stitching_begin();
	scene_begin(&scene, 1 << 1 | 1 << 3);
	glake_ptr live = alloc_on(scene.stream, 16 * MIB);
	queue_write(scene.stream, live, 16 * MIB, 98);
	free_piece(&scene, 5);
	free_piece(&scene, 7);
	glake_ptr large = alloc_on(scene.stream, 20 * MIB);
	ck_assert(large + 20 * MIB <= live || live + 16 * MIB <= large);
	check_value(scene.stream, large, 20 * MIB, 99);
	ck_assert_uint_eq(n_wrong(live, 16 * MIB, 98), 0);
	check_pieces(&scene);
}
END_TEST

/* ---- other chunks ------------------------------------------------------------------------------- */

/* A kept range of pieces 0, 2, 4 and 6, of which another allocation has one by now; and piece 1 is free. */
static glake_ptr keep_used(struct scene *scene, bool is_gated, glake_ptr *user_out)
{
	scene_begin(scene, 1 << 0 | 1 << 2 | 1 << 4 | 1 << 6);
	if (is_gated) {
		gate_close(scene->stream);
	}
	glake_ptr kept = keep_range(scene, 4 * PIECE_BYTES);
	*user_out = alloc_on(scene->stream, PIECE_BYTES);
	queue_write(scene->stream, *user_out, PIECE_BYTES, 98);
	free_piece(scene, 1);
	return kept;
}

START_TEST(when_full_a_kept_range_gets_other_chunks)
{
	struct scene scene;
	glake_ptr user;
	stitching_begin();
	glake_ptr kept = keep_used(&scene, false, &user);
	synchronize(scene.stream);
	struct glake_pool_stats before = stats();
	glake_ptr large = alloc_when_full(scene.stream, 4 * PIECE_BYTES);
	ck_assert_uint_eq(large, kept);
	ck_assert_uint_eq(stats().n_mapped - before.n_mapped, PIECE_CHUNKS);
	ck_assert_uint_eq(stats().n_unmapped - before.n_unmapped, PIECE_CHUNKS);
	ck_assert_uint_eq(stats().reserved_bytes, before.reserved_bytes);
	check_value(scene.stream, large, 4 * PIECE_BYTES, 99);
	ck_assert_uint_eq(n_wrong(user, PIECE_BYTES, 98), 0);
	check_pieces(&scene);
	/* The range is kept with the chunks that it has now, */
	free_on(scene.stream, large);
	ck_assert_uint_eq(keep_range(&scene, 4 * PIECE_BYTES), kept);
	ck_assert_uint_eq(stats().n_mapped - before.n_mapped, PIECE_CHUNKS);
	/* and does not hold those that it has not. */
	free_on(scene.stream, user);
	synchronize(scene.stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 4 * PIECE_BYTES);
	check_pieces(&scene);
}
END_TEST

START_TEST(a_kept_range_stays_while_there_is_room)
{
	struct scene scene;
	glake_ptr user;
	stitching_begin();
	glake_ptr kept = keep_used(&scene, false, &user);
	synchronize(scene.stream);
	ck_assert_uint_ne(alloc_on(scene.stream, 4 * PIECE_BYTES), kept);
	ck_assert_uint_eq(stats().n_unmapped, 0);
	ck_assert_uint_eq(stats().n_kept, 2);
}
END_TEST

START_TEST(a_kept_range_stays_while_work_uses_it)
{
	struct scene scene;
	glake_ptr user;
	stitching_begin();
	glake_ptr kept = keep_used(&scene, true, &user);
	glake_ptr large = alloc_when_full(scene.stream, 4 * PIECE_BYTES);
	ck_assert_uint_ne(large, kept);
	ck_assert_uint_eq(stats().n_unmapped, 0);
	gate_open();
	check_value(scene.stream, large, 4 * PIECE_BYTES, 99);
	ck_assert_uint_eq(n_wrong(user, PIECE_BYTES, 98), 0);
	check_pieces(&scene);
}
END_TEST

/* Then a new one costs little more. */
START_TEST(a_kept_range_that_is_mostly_used_stays)
{
	struct scene scene;
	glake_ptr user;
	stitching_begin();
	glake_ptr kept = keep_used(&scene, false, &user);
	for (unsigned i = 0; i < 4; i++) {
		alloc_on(scene.stream, PIECE_BYTES);
	}
	for (unsigned i = 3; i < N_PIECES; i += i < 7 ? 2 : 1) {
		free_piece(&scene, i);
	}
	synchronize(scene.stream);
	struct glake_pool_stats before = stats();
	glake_ptr large = alloc_when_full(scene.stream, 4 * PIECE_BYTES);
	ck_assert_uint_ne(large, kept);
	ck_assert_uint_eq(stats().n_mapped - before.n_mapped, 4 * PIECE_CHUNKS);
	check_value(scene.stream, large, 4 * PIECE_BYTES, 99);
	check_pieces(&scene);
}
END_TEST

/* Its first chunk was another allocation's in front: the one that takes its place is not. */
START_TEST(a_first_chunk_that_goes_is_whole)
{
	stitching_begin();
	CUstream stream = stream_new();
	glake_ptr front = alloc_on(stream, MIB);
	glake_ptr rear = alloc_on(stream, MIB);
	glake_ptr three = alloc_on(stream, 3 * MIB);
	glake_ptr whole = alloc_on(stream, 2 * MIB);
	glake_ptr last = alloc_on(stream, 2 * MIB);
	free_on(stream, front);
	/* Behind `three`, two chunks, and what `front` has left. */
	glake_ptr kept = alloc_on(stream, 6 * MIB);
	ck_assert_uint_eq(kept % (2 * MIB), MIB);
	ck_assert_uint_eq(stats().kept_bytes, 8 * MIB);
	free_on(stream, kept);
	glake_ptr user[2];
	for (unsigned i = 0; i < 2; i++) {
		user[i] = alloc_on(stream, MIB);
		queue_write(stream, user[i], MIB, (unsigned char)(1 + i));
	}
	queue_write(stream, rear, MIB, 3);
	queue_write(stream, three, 3 * MIB, 4);
	queue_write(stream, last, 2 * MIB, 5);
	free_on(stream, whole);
	synchronize(stream);
	struct glake_pool_stats before = stats();
	glake_ptr large = alloc_when_full(stream, 6 * MIB);
	ck_assert_uint_eq(large, kept - MIB);
	ck_assert_uint_eq(stats().n_mapped - before.n_mapped, 1);
	ck_assert_uint_eq(stats().n_unmapped - before.n_unmapped, 1);
	ck_assert_uint_eq(stats().reserved_bytes, before.reserved_bytes);
	check_value(stream, large, 6 * MIB, 99);
	ck_assert_uint_eq(n_wrong(user[0], MIB, 1), 0);
	ck_assert_uint_eq(n_wrong(user[1], MIB, 2), 0);
	ck_assert_uint_eq(n_wrong(rear, MIB, 3), 0);
	ck_assert_uint_eq(n_wrong(three, 3 * MIB, 4), 0);
	ck_assert_uint_eq(n_wrong(last, 2 * MIB, 5), 0);
}
END_TEST

/* ---- calls that fail ---------------------------------------------------------------------------- */

static const struct fault {
	const char *call;
	bool keeps_memory; /* what the driver does not unmap is gone until the process ends */
} faults[] = {
	{"cuMemMap", false},
	{"cuMemSetAccess", false},
	{"cuMemUnmap", true},
};

/* Memory of both, or an error; what was there, and the next try, is as if nothing had been. */
static void try_one(const struct fault *fault, unsigned nth, bool is_full)
{
	struct scene scene;
	glake_ptr user;
	char rule[100];
	glake_ptr kept = keep_used(&scene, false, &user);
	uint64_t n_bytes = is_full ? 4 * PIECE_BYTES : 4 * PIECE_BYTES + 8 * MIB;
	if (!is_full) {
		free_on(scene.stream, user);
		user = 0;
		free_piece(&scene, 8);
	}
	synchronize(scene.stream);
	snprintf(rule, sizeof(rule), "%s:%u:fail=2", fault->call, nth);
	world_set_own_faults(rule);
	glake_ptr ptr = 0;
	if (is_full) {
		ptr = alloc_when_full(scene.stream, n_bytes);
	} else {
		int r = glake_alloc_async(session, scene.stream, n_bytes, 0, &ptr);
		ck_assert_msg(r == 0 || r == GLAKE_E_CUDA, "%d: %s", r, glake_error());
	}
	world_set_own_faults(NULL);
	stats();
	check_pieces(&scene);
	ptr = ptr ? ptr : alloc_on(scene.stream, n_bytes);
	/* The allocation has what was free, and a range that lacks nothing stays. */
	ck_assert(is_full || ptr == kept);
	check_value(scene.stream, ptr, n_bytes, 99);
	check_pieces(&scene);
	if (user) {
		ck_assert_uint_eq(n_wrong(user, PIECE_BYTES, 98), 0);
		free_on(scene.stream, user);
	}
	free_on(scene.stream, ptr);
	for (unsigned i = 0; i < N_PIECES; i++) {
		if (scene.ptr[i]) {
			free_piece(&scene, i);
		}
	}
	synchronize(scene.stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert(fault->keeps_memory || stats().reserved_bytes == 0);
}

static void fail_at_each(void *user)
{
	stitching_begin();
	for (unsigned nth = 1; nth <= PIECE_CHUNKS + 1; nth++) {
		try_one(user, nth, true);
		try_one(user, nth, false);
	}
}

START_TEST_WITH(a_call_that_fails_leaves_all_as_it_was, .n = n_elements(faults))
{
	struct fault fault = faults[_i];
	world_join(world_client(fail_at_each, &fault));
}
END_TEST
