/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong while memory is split, merged and stitched (libclient/stitch/pool.h): each driver call fails once, at
 * its first time, its second, ...; a process is killed at each of them, or forks.
 */
#include "tests/integration/stitching.h"

#define CONFIG WORLD_CONFIG "tenants = ({ name = \"default\"; device_bytes = \"64MiB\"; });"
#define MOST_TIMES 12u
#define N_PIECES 6u

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "1x1GiB");
}
BEGIN_EACH(begin)

/* Pieces of 4 MiB side by side, each with its value: every other one is freed and stays so. */
struct scene {
	CUstream stream;
	glake_ptr ptr[N_PIECES];
	glake_ptr large;
	glake_ptr small;
};

static void scene_begin(struct scene *scene)
{
	for (unsigned i = 0; i < N_PIECES; i++) {
		scene->ptr[i] = alloc_on(scene->stream, 4 * MIB);
		queue_write(scene->stream, scene->ptr[i], 4 * MIB, (unsigned char)(i + 1));
	}
	for (unsigned i = 0; i < N_PIECES; i += 2) {
		free_on(scene->stream, scene->ptr[i]);
	}
}

/* 0, or an error that says what the driver or glaked has said: then there is nothing. */
static glake_ptr try_alloc(const struct scene *scene, uint64_t n_bytes)
{
	glake_ptr ptr = 0;
	int r = glake_alloc_async(session, scene->stream, n_bytes, 0, &ptr);
	bool is_known = r == 0 || r == GLAKE_E_CUDA || r == GLAKE_E_NO_DEVICE_MEMORY ||
	                r == GLAKE_E_OVER_QUOTA;
	ck_assert_msg(is_known, "%d: %s", r, glake_error());
	if (r == 0) {
		queue_write(scene->stream, ptr, n_bytes, 99);
	}
	return r == 0 ? ptr : 0;
}

/* The error, if it fails: then the program still has it. */
static bool try_free(const struct scene *scene, glake_ptr ptr)
{
	int r = ptr ? glake_free_async(session, scene->stream, ptr, 0) : 0;
	ck_assert_msg(r == 0 || r == GLAKE_E_CUDA, "%d: %s", r, glake_error());
	return r == 0;
}

/* All that the pool does, once. */
static void scene_play(struct scene *scene)
{
	scene->small = try_alloc(scene, MIB);      /* the front of a chunk */
	scene->large = try_alloc(scene, 17 * MIB); /* stitched, its rear first, with 6 MiB more */
	stats();
	if (try_free(scene, scene->large)) {
		scene->large = try_alloc(scene, 14 * MIB); /* the range that was kept */
	}
	if (try_free(scene, scene->large)) {
		scene->large = 0;
		synchronize(scene->stream);
	}
	/* Then there is no quota for it before something else has gone back. */
	glake_trim(session, 0, 0);
	glake_ptr all = try_alloc(scene, 44 * MIB);
	stats();
	if (all) {
		synchronize(scene->stream);
		ck_assert_uint_eq(n_wrong(all, 44 * MIB, 99), 0);
		assert_ok(glake_free(session, all));
	}
}

static void look(glake_ptr ptr, uint64_t n_bytes, unsigned char value)
{
	if (ptr) {
		ck_assert_uint_eq(n_wrong(ptr, n_bytes, value), 0);
		assert_ok(glake_free(session, ptr));
	}
}

static void scene_end(const struct scene *scene)
{
	synchronize(scene->stream);
	for (unsigned i = 1; i < N_PIECES; i += 2) {
		look(scene->ptr[i], 4 * MIB, (unsigned char)(i + 1));
	}
	look(scene->large, 14 * MIB, 99);
	look(scene->small, MIB, 99);
	stats();
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().live_bytes, 0);
}

static const struct fault {
	const char *call;
	bool is_glakeds;
	bool keeps_memory; /* what the driver does not unmap or release is gone until the process ends */
} faults[] = {
	{"cuMemImportFromShareableHandle", false, false},
	{"cuMemRetainAllocationHandle", false, false},
	{"cuMemMap", false, false},
	{"cuMemSetAccess", false, false},
	{"cuMemUnmap", false, true},
	{"cuMemRelease", false, true},
	{"cuEventCreate", false, false},
	{"cuEventRecord", false, false},
	{"cuMemCreate", true, false},
	{"cuMemExportToShareableHandle", true, false},
};

static void set_fault(const struct fault *fault, unsigned nth, const char *action)
{
	char rule[100];
	snprintf(rule, sizeof(rule), "%s:%u:%s", fault->call, nth, action);
	if (fault->is_glakeds) {
		world_set_faults(rule);
	} else {
		world_set_own_faults(rule);
	}
}

static void fail_at_each(void *user)
{
	const struct fault *fault = user;
	stitching_begin();
	struct scene scene = {.stream = stream_new()};
	for (unsigned nth = 1; nth <= MOST_TIMES; nth++) {
		scene_begin(&scene);
		set_fault(fault, nth, "fail=2");
		scene_play(&scene);
		world_set_faults(NULL);
		world_set_own_faults(NULL);
		scene_end(&scene);
		if (!fault->keeps_memory) {
			ck_assert_uint_eq(stats().reserved_bytes, 0);
			ck_assert_uint_eq(world_usage(session).reserved_bytes, 0);
			ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
		}
	}
}

START_TEST_WITH(each_call_that_fails_leaves_all_as_it_was, .n = n_elements(faults))
{
	struct fault fault = faults[_i];
	world_join(world_client(fail_at_each, &fault));
}
END_TEST

static size_t free_of_device(void)
{
	size_t n_free;
	size_t n_all;
	must(drv.cuMemGetInfo(&n_free, &n_all));
	return n_free;
}

/* glaked lets go of a chunk a moment after its answer. */
static void wait_for_free(size_t n_bytes)
{
	while (free_of_device() != n_bytes) {
		usleep(1000);
	}
}

/* The handles that it is stitched by go with it. */
START_TEST(memory_that_leaves_is_the_devices_again)
{
	stitching_begin();
	CUstream stream = stream_new();
	size_t n_before = free_of_device();
	glake_ptr ptr[5];
	for (unsigned i = 0; i < 5; i++) {
		ptr[i] = alloc_on(stream, 8 * MIB);
	}
	free_on(stream, ptr[1]);
	free_on(stream, ptr[3]);
	/* The driver is not asked for what it has said before. */
	world_set_own_faults("cuMemRetainAllocationHandle:*:fail=2");
	glake_ptr large = alloc_on(stream, 16 * MIB);
	ck_assert_uint_eq(stats().n_stitches, 1);
	ck_assert_uint_eq(n_before - free_of_device(), 40 * MIB);
	free_on(stream, large);
	synchronize(stream);
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_eq(stats().reserved_bytes, 24 * MIB);
	wait_for_free(n_before - 24 * MIB);
	for (unsigned i = 0; i < 5; i += 2) {
		free_on(stream, ptr[i]);
	}
	synchronize(stream);
	assert_ok(glake_trim(session, 0, 0));
	wait_for_free(n_before);
}
END_TEST

/* ---- processes --------------------------------------------------------------------------------- */

struct death {
	unsigned fault;
	unsigned nth;
};

static void die_at(void *user)
{
	const struct death *death = user;
	stitching_begin();
	struct scene scene = {.stream = stream_new()};
	scene_begin(&scene);
	set_fault(&faults[death->fault], death->nth, "die");
	scene_play(&scene);
	world_reach((int)death->nth);
	pause();
}

/* At some call of each kind, or at the end of all. */
START_TEST(nothing_of_a_killed_process_is_left)
{
	for (unsigned fault = 0; !faults[fault].is_glakeds; fault++) {
		for (unsigned nth = 1; nth <= MOST_TIMES; nth += 5) {
			struct death death = {fault, nth};
			pid_t client = world_client(die_at, &death);
			siginfo_t info = {.si_pid = 0};
			while (info.si_pid == 0 && *world_stage != (int)nth) {
				usleep(1000);
				waitid(P_PID, (id_t)client, &info, WEXITED | WNOHANG | WNOWAIT);
			}
			world_kill(client);
			world_reach(0);
			world_set_own_faults(NULL);
			world_wait_books(&books_before);
		}
	}
}
END_TEST

/* In a child nothing of the session can be used, and ending it frees memory of the host only. */
START_TEST(a_forked_child_has_no_pool)
{
	stitching_begin();
	struct scene scene = {.stream = stream_new()};
	scene_begin(&scene);
	glake_ptr large = alloc_on(scene.stream, 10 * MIB);
	queue_write(scene.stream, large, 10 * MIB, 9);
	ck_assert_uint_eq(stats().n_stitches, 1);
	pid_t pid = fork();
	if (pid == 0) {
		struct glake_pool_stats now = {.size = sizeof(now)};
		struct glake_pool_range *ranges;
		glake_ptr none;
		size_t n;
		bool good = glake_alloc_async(session, scene.stream, MIB, 0, &none) ==
		                    GLAKE_E_FORKED &&
		            glake_free_async(session, scene.stream, large, 0) == GLAKE_E_FORKED &&
		            glake_free(session, large) == GLAKE_E_FORKED &&
		            glake_trim(session, 0, 0) == GLAKE_E_FORKED &&
		            glake_pool_stats(session, 0, &now) == GLAKE_E_FORKED &&
		            glake_pool_snapshot(session, 0, &ranges, &n) == GLAKE_E_FORKED;
		world_disconnect(session);
		_exit(good ? 0 : 1);
	}
	world_join(pid);
	synchronize(scene.stream);
	look(large, 10 * MIB, 9);
	scene_end(&scene);
	ck_assert_uint_eq(stats().reserved_bytes, 0);
}
END_TEST
