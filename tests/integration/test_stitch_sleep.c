/* SPDX-License-Identifier: Apache-2.0 */
/* Sleep of a session that stitches: chunks that are mapped at home and in a stitched range leave and come back at both. */
#include "tests/integration/stitching.h"

#define N_PIECES 6u

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB");
	stitching_begin();
}
BEGIN_EACH(begin)

struct scene {
	CUstream stream;
	glake_ptr kept[N_PIECES / 2]; /* every other one of what was side by side */
	glake_ptr stitched;           /* of what lay between them */
	glake_ptr small;              /* a part of a chunk */
};

static void scene_begin(struct scene *scene)
{
	glake_ptr all[N_PIECES];
	scene->stream = stream_new();
	for (unsigned i = 0; i < N_PIECES; i++) {
		all[i] = alloc_on(scene->stream, 4 * MIB);
		queue_write(scene->stream, all[i], 4 * MIB, (unsigned char)(i + 1));
	}
	for (unsigned i = 0; i < N_PIECES; i += 2) {
		free_on(scene->stream, all[i]);
		scene->kept[i / 2] = all[i + 1];
	}
	scene->stitched = alloc_on(scene->stream, 10 * MIB);
	queue_write(scene->stream, scene->stitched, 10 * MIB, 77);
	scene->small = alloc_on(scene->stream, MIB);
	queue_write(scene->stream, scene->small, MIB, 78);
	synchronize(scene->stream);
	ck_assert_uint_ge(stats().n_stitches, 1);
}

static void scene_check(const struct scene *scene)
{
	ck_assert(!glake_is_asleep(session));
	for (unsigned i = 0; i < N_PIECES / 2; i++) {
		ck_assert_uint_eq(n_wrong(scene->kept[i], 4 * MIB, (unsigned char)(2 * i + 2)), 0);
	}
	ck_assert_uint_eq(n_wrong(scene->stitched, 10 * MIB, 77), 0);
	ck_assert_uint_eq(n_wrong(scene->small, MIB, 78), 0);
	stats();
}

/* And what it had can be cut, stitched and written to as before. */
static void scene_end(struct scene *scene)
{
	for (unsigned i = 0; i < N_PIECES / 2; i++) {
		free_on(scene->stream, scene->kept[i]);
	}
	free_on(scene->stream, scene->stitched);
	free_on(scene->stream, scene->small);
	glake_ptr all = alloc_on(scene->stream, 20 * MIB);
	queue_write(scene->stream, all, 20 * MIB, 79);
	synchronize(scene->stream);
	ck_assert_uint_eq(n_wrong(all, 20 * MIB, 79), 0);
	free_on(scene->stream, all);
	synchronize(scene->stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 0);
}

static void fall_asleep(void)
{
	struct glake_slept slept = {.size = sizeof(slept)};
	assert_ok(glake_sleep(session, 1000, &slept));
	ck_assert_uint_ge(slept.private_bytes, 22 * MIB);
	ck_assert_uint_eq(slept.n_stays, 0);
	ck_assert_uint_eq(world_books().private_bytes, 0);
	ck_assert(glake__space_is_valid());
}

START_TEST(it_leaves_and_comes_back_at_all_places)
{
	struct scene scene;
	scene_begin(&scene);
	for (int i = 0; i < 3; i++) {
		fall_asleep();
		assert_ok(glake_wake(session, NULL));
		scene_check(&scene);
	}
	scene_end(&scene);
}
END_TEST

static const char *const calls[] = {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"};

START_TEST_WITH(what_cannot_be_mapped_sleeps_on, .n = 3)
{
	struct scene scene;
	bool has_failed = true;
	scene_begin(&scene);
	for (unsigned time = 1; has_failed; time++) {
		char rule[96];
		fall_asleep();
		snprintf(rule, sizeof(rule), "%s:%u:fail=999", calls[_i], time);
		world_set_own_faults(rule);
		int r = glake_wake(session, NULL);
		world_set_own_faults("");
		has_failed = r < 0;
		ck_assert_int_eq(r, has_failed ? GLAKE_E_CUDA : 0);
		if (has_failed) {
			assert_ok(glake_wake(session, NULL));
		}
		scene_check(&scene);
	}
	scene_end(&scene);
}
END_TEST

START_TEST(what_cannot_be_unmapped_does_not_sleep)
{
	struct scene scene;
	bool has_failed = true;
	scene_begin(&scene);
	for (unsigned time = 1; has_failed; time++) {
		char rule[96];
		snprintf(rule, sizeof(rule), "cuMemUnmap:%u:fail=999", time);
		world_set_own_faults(rule);
		has_failed = glake_sleep(session, 1000, NULL) < 0;
		world_set_own_faults("");
		if (has_failed) {
			scene_check(&scene);
		}
	}
	assert_ok(glake_wake(session, NULL));
	scene_check(&scene);
	scene_end(&scene);
}
END_TEST

START_TEST(a_session_ends_asleep)
{
	struct scene scene;
	scene_begin(&scene);
	fall_asleep();
	world_disconnect(session);
	ck_assert_uint_eq(world_books().private_bytes, 0);
}
END_TEST
