/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sleep when something goes wrong: the driver or glaked fails at a step, threads wait for memory that is asleep, the
 * session ends meanwhile, or the process forks. And memory of each kind, which all of these have to put back.
 */
#include <pthread.h>

#include "libclient/link/rpc.h"
#include "libclient/link/session.h"
#include "libclient/space/errand.h"
#include "libclient/space/grant.h"
#include "libclient/space/map.h"
#include "libclient/space/number.h"
#include "libclient/space/program.h"
#include "libclient/space/range.h"
#include "proto/clock.h"
#include "tests/harness/words.h"

/* Freed memory goes back at once, and a wake waits 300 ms for memory. */
#define CONFIG WORLD_CONFIG "warm_bytes = \"2MiB\"; wake_wait_ms = 300;"
#define DEVICE_BYTES (256 * MIB)

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "1x256MiB");
	words_open_driver();
}
BEGIN_EACH(begin)

/* ---- a full device ---------------------------------------------------------------------------- */

#define MAX_FILLING (DEVICE_BYTES / CHUNK_BYTES)

/* All that is left of the device, each chunk with a content of its own. Returns their number. */
static unsigned fill_device(struct glake_session *session, glake_ptr *ptrs)
{
	unsigned n = 0;
	size_t n_free;
	size_t n_all;
	while (n < MAX_FILLING && glake_alloc(session, 0, CHUNK_BYTES, 0, &ptrs[n]) == 0) {
		words_write(ptrs[n], CHUNK_BYTES, 100 + n);
		n++;
	}
	ck_assert_int_eq(drv.cuMemGetInfo(&n_free, &n_all), CUDA_SUCCESS);
	ck_assert_uint_eq(n_free, 0);
	return n;
}

static void check_filling(const glake_ptr *ptrs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		words_check(ptrs[i], CHUNK_BYTES, 100 + i);
	}
}

/* That is when others want it to sleep. The mover begins then, and finds no memory of the device. */
START_TEST(who_has_filled_the_device_sleeps)
{
	struct glake_session *session = world_connect();
	glake_ptr filling[MAX_FILLING];
	glake_ptr large = words_alloc(session, 130 * MIB, 7);
	unsigned n = fill_device(session, filling);
	for (unsigned round = 0; round < 3; round++) {
		struct glake_slept slept = words_fall_asleep(session);
		ck_assert_uint_eq(slept.private_bytes, 130 * MIB + n * CHUNK_BYTES);
		ck_assert_uint_eq(slept.n_stays, 0);
		ck_assert_uint_eq(words_device_bytes(), 0);
		assert_ok(glake_wake(session, NULL));
		words_check(large, 130 * MIB, 7 + round);
		check_filling(filling, n);
		words_write(large, 130 * MIB, 8 + round);
	}
}
END_TEST

/* Two sessions fill the device together. What the mover took of it while one sleeps would be missing when both are awake. */
START_TEST(both_who_have_filled_the_device_are_awake_again)
{
	struct glake_session *one = world_connect();
	struct glake_session *other = world_connect();
	glake_ptr filling[MAX_FILLING];
	glake_ptr large = words_alloc(one, 130 * MIB, 7);
	unsigned n = fill_device(other, filling);
	words_fall_asleep(one);
	words_fall_asleep(other);
	assert_ok(glake_wake(one, NULL));
	assert_ok(glake_wake(other, NULL));
	words_check(large, 130 * MIB, 7);
	check_filling(filling, n);
}
END_TEST

/* Copies are compared, shared and read back as ever by a mover that gets no memory of the device. */
START_TEST(equal_bytes_of_a_full_device_have_one_copy)
{
	world_set_faults("glake-mover/cuMemAlloc:*:fail=2");
	struct glake_session *one = world_connect();
	struct glake_session *other = world_connect();
	glake_ptr first = words_alloc(one, 34 * MIB, 7);
	glake_ptr second = words_alloc(other, 34 * MIB, 7);
	glake_ptr sealed = words_alloc(other, 6 * MIB, 8);
	words_seal(sealed, 6 * MIB);
	words_fall_asleep(one);
	words_fall_asleep(other);
	ck_assert_uint_eq(world_copy_bytes(), 40 * MIB);
	assert_ok(glake_wake(one, NULL));
	assert_ok(glake_wake(other, NULL));
	words_check(first, 34 * MIB, 7);
	words_check(second, 34 * MIB, 7);
	words_check(sealed, 6 * MIB, 8);
}
END_TEST

/* ---- memory of each kind ---------------------------------------------------------------------- */

struct scene {
	struct glake_session *session;
	glake_ptr large;
	glake_ptr small; /* of a slab */
	glake_ptr sealed;
	glake_ptr placed; /* two chunks side by side, and a hole */
	glake_ptr first;  /* a number is mapped here, to be written, */
	glake_ptr second; /* and here, to be read */
	unsigned long long number;
	unsigned long long nowhere; /* a number that is mapped nowhere, and was at: */
	glake_ptr third;
	atomic_uint n_ended;
};

static void note_end(void *user)
{
	(*(atomic_uint *)user)++;
}

/* As cuMemCreate() under the shim. */
static unsigned long long make_number(struct scene *scene, uint64_t n_bytes)
{
	CUmemGenericAllocationHandle handle;
	struct glake__wait wait = {0};
	unsigned long long value = 0;
	uint64_t id;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	assert_ok(glake__rpc_chunk_alloc(scene->session, 0, n_bytes, 1, 0, &wait, &id, &fds));
	assert_ok(glake__map_import(fds.fds[0], &handle));
	glake__lock();
	glake__books_add_live(&scene->session->books, n_bytes);
	glake__unlock();
	assert_ok(glake__number_make(scene->session, 0, id, n_bytes, handle, &scene->n_ended,
	                             note_end, &value));
	glake__grant_count(scene->session, (int64_t)n_bytes);
	return value;
}

/* As cuMemMap() and cuMemSetAccess(). */
static void map_number(unsigned long long value, glake_ptr ptr, uint64_t n_bytes, bool may_write)
{
	struct glake__number *number = glake__number_take(value);
	struct glake__mapping *mapping = NULL;
	assert_ok(glake__number_map(number, ptr, n_bytes));
	glake__number_give(number);
	assert_ok(glake__program_hold_whole(ptr, n_bytes, &mapping));
	assert_ok(glake__map_access(ptr, n_bytes, 1,
	                            may_write ? GLAKE__ACCESS_WRITE : GLAKE__ACCESS_READ));
	glake__program_opened(ptr, n_bytes, 0, true, may_write);
	glake__program_settle(mapping, true);
}

static void unmap_number(glake_ptr ptr, uint64_t n_bytes)
{
	struct glake__mapping *mapping = NULL;
	assert_ok(glake__program_unmap(ptr, n_bytes, &mapping));
	assert_ok(glake__map_unmap(ptr, n_bytes));
	glake__program_settle(mapping, true);
}

static glake_ptr reserve(uint64_t n_bytes)
{
	glake_ptr ptr;
	assert_ok(glake__program_reserve(n_bytes, 0, 0, &ptr));
	return ptr;
}

static void make_numbers(struct scene *scene)
{
	scene->number = make_number(scene, 4 * MIB);
	scene->first = reserve(4 * MIB);
	scene->second = reserve(4 * MIB);
	map_number(scene->number, scene->first, 4 * MIB, true);
	map_number(scene->number, scene->second, 4 * MIB, false);
	words_write(scene->first, 4 * MIB, 5);
	scene->nowhere = make_number(scene, 2 * MIB);
	scene->third = reserve(2 * MIB);
	map_number(scene->nowhere, scene->third, 2 * MIB, true);
	words_write(scene->third, 2 * MIB, 6);
	unmap_number(scene->third, 2 * MIB);
}

static void scene_begin(struct scene *scene)
{
	*scene = (struct scene){.session = world_connect()};
	scene->large = words_alloc(scene->session, 6 * MIB, 1);
	scene->small = words_alloc(scene->session, 64 * KIB, 2);
	scene->sealed = words_alloc(scene->session, 4 * MIB, 3);
	words_seal(scene->sealed, 4 * MIB);
	assert_ok(glake_reserve(scene->session, 8 * MIB, 0, &scene->placed));
	assert_ok(glake_map(scene->session, 0, scene->placed, 2 * MIB));
	assert_ok(glake_map(scene->session, 0, scene->placed + 2 * MIB, 4 * MIB));
	words_write(scene->placed, 6 * MIB, 4);
	make_numbers(scene);
}

/* All of it is where it was, with its content and its access. */
static void scene_check(const struct scene *scene)
{
	/* The library has a handle of it again. */
	map_number(scene->nowhere, scene->third, 2 * MIB, true);
	words_check(scene->third, 2 * MIB, 6);
	unmap_number(scene->third, 2 * MIB);
	ck_assert(!glake_is_asleep(scene->session));
	words_check(scene->large, 6 * MIB, 1);
	words_check(scene->small, 64 * KIB, 2);
	words_check(scene->sealed, 4 * MIB, 3);
	words_check(scene->placed, 6 * MIB, 4);
	words_check(scene->first, 4 * MIB, 5);
	words_check(scene->second, 4 * MIB, 5);
	ck_assert(!words_can_write(scene->sealed));
	ck_assert(!words_can_write(scene->second));
	ck_assert(!words_can_write(scene->placed + 6 * MIB));
	words_write(scene->large, 6 * MIB, 1);
	words_write(scene->placed, 6 * MIB, 4);
	words_write(scene->first, 4 * MIB, 5);
	ck_assert(glake__space_is_valid());
}

/* Nothing of it is mapped. */
static void scene_check_asleep(const struct scene *scene)
{
	const glake_ptr all[] = {scene->large,  scene->small, scene->sealed,
	                         scene->placed, scene->first, scene->second};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		uint64_t word;
		ck_assert_int_ne(drv.cuMemcpyDtoH(&word, all[i], sizeof(word)), CUDA_SUCCESS);
	}
	ck_assert(glake__space_is_valid());
}

static void scene_end(struct scene *scene)
{
	assert_ok(glake_free(scene->session, scene->large));
	assert_ok(glake_free(scene->session, scene->small));
	assert_ok(glake_free(scene->session, scene->sealed));
	assert_ok(glake_unmap(scene->session, scene->placed, 6 * MIB));
	assert_ok(glake_unreserve(scene->session, scene->placed));
	ck_assert(glake__number_release(scene->nowhere));
	ck_assert(glake__number_release(scene->number));
	unmap_number(scene->first, 4 * MIB);
	unmap_number(scene->second, 4 * MIB);
	ck_assert_uint_eq(scene->n_ended, 2);
	assert_ok(glake__program_unreserve(scene->first, 4 * MIB));
	assert_ok(glake__program_unreserve(scene->second, 4 * MIB));
	assert_ok(glake__program_unreserve(scene->third, 2 * MIB));
}

START_TEST(memory_of_each_kind_leaves_and_comes_back)
{
	struct scene scene;
	scene_begin(&scene);
	uint64_t n_bytes = words_device_bytes();
	for (int i = 0; i < 3; i++) {
		struct glake_slept slept = words_fall_asleep(scene.session);
		ck_assert_uint_eq(slept.private_bytes, n_bytes - 4 * MIB);
		ck_assert_uint_eq(slept.shared_bytes, 4 * MIB);
		ck_assert_uint_eq(slept.n_stays, 0);
		ck_assert_uint_eq(world_books().private_bytes, 0);
		scene_check_asleep(&scene);
		assert_ok(glake_wake(scene.session, NULL));
		scene_check(&scene);
	}
	scene_end(&scene);
}
END_TEST

/* ---- the driver fails ------------------------------------------------------------------------- */

static bool fails_at(const char *call, unsigned time, int result)
{
	ck_assert_msg(result == 0 || result == GLAKE_E_CUDA, "%s %u: %d: %s", call, time, result,
	              glake_error());
	return result < 0;
}

static void set_fault(const char *call, unsigned time)
{
	char rule[96];
	snprintf(rule, sizeof(rule), "%s:%u:fail=999", call, time);
	world_set_own_faults(rule);
}

/* At its first time, its second, ...: what was unmapped before is mapped again. */
START_TEST(what_cannot_be_unmapped_does_not_sleep)
{
	struct scene scene;
	unsigned time = 1;
	bool has_failed = true;
	scene_begin(&scene);
	for (; has_failed; time++) {
		struct glake_slept slept = {.size = sizeof(slept)};
		set_fault("cuMemUnmap", time);
		has_failed = fails_at("cuMemUnmap", time, glake_sleep(scene.session, 1000, &slept));
		world_set_own_faults("");
		if (has_failed) {
			scene_check(&scene);
		}
	}
	ck_assert_uint_gt(time, 6);
	assert_ok(glake_wake(scene.session, NULL));
	scene_check(&scene);
	scene_end(&scene);
}
END_TEST

static const char *const mapping_calls[] = {"cuMemImportFromShareableHandle", "cuMemMap",
                                            "cuMemSetAccess"};

/* And the next wake goes on there. */
START_TEST_WITH(what_cannot_be_mapped_sleeps_on, .n = 3)
{
	const char *call = mapping_calls[_i];
	struct scene scene;
	unsigned time = 1;
	bool has_failed = true;
	scene_begin(&scene);
	for (; has_failed; time++) {
		words_fall_asleep(scene.session);
		set_fault(call, time);
		has_failed = fails_at(call, time, glake_wake(scene.session, NULL));
		world_set_own_faults("");
		ck_assert_int_eq(glake_is_asleep(scene.session), has_failed);
		if (has_failed) {
			ck_assert(glake__space_is_valid());
			assert_ok(glake_wake(scene.session, NULL));
		}
		scene_check(&scene);
	}
	ck_assert_uint_gt(time, 4);
	scene_end(&scene);
}
END_TEST

/* Neither can what was unmapped be mapped again: it sleeps, and the wake brings it back. */
START_TEST(what_can_be_neither_unmapped_nor_mapped_sleeps)
{
	struct scene scene;
	scene_begin(&scene);
	world_set_own_faults("cuMemUnmap:3:fail=999,cuMemMap:2:fail=999");
	ck_assert_int_eq(glake_sleep(scene.session, 1000, NULL), GLAKE_E_CUDA);
	world_set_own_faults("");
	ck_assert(glake_is_asleep(scene.session));
	assert_ok(glake_wake(scene.session, NULL));
	scene_check(&scene);
	scene_end(&scene);
}
END_TEST

/* Some is mapped, and some is not. */
START_TEST(a_session_ends_while_half_of_it_is_mapped)
{
	struct glake_session *session = world_connect();
	for (int i = 0; i < 4; i++) {
		words_alloc(session, 6 * MIB, 7);
	}
	words_fall_asleep(session);
	world_set_own_faults("cuMemMap:3:fail=999");
	ck_assert_int_eq(glake_wake(session, NULL), GLAKE_E_CUDA);
	world_set_own_faults("");
	world_disconnect(session);
	ck_assert(glake__space_is_valid());
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

/* ---- glaked fails ----------------------------------------------------------------------------- */

/* Its driver cannot copy the memory out: it stays. */
START_TEST(what_is_not_copied_stays_awake)
{
	struct scene scene;
	scene_begin(&scene);
	world_set_faults("glake-mover/*:*:fail=999");
	ck_assert_int_eq(glake_sleep(scene.session, 1000, NULL), GLAKE_E_MOVER);
	world_set_faults(NULL);
	scene_check(&scene);
	/* The mover that failed ends by itself. Copies that are still under way are waited for. */
	int r = GLAKE_E_MOVER;
	while (r == GLAKE_E_MOVER) {
		r = glake_sleep(scene.session, 1000, NULL);
	}
	assert_ok(r);
	assert_ok(glake_wake(scene.session, NULL));
	scene_check(&scene);
	scene_end(&scene);
}
END_TEST

/* The mover's driver cannot copy the memory back: the session sleeps on, and a later wake brings all of it. */
START_TEST(what_is_not_copied_back_sleeps_on)
{
	struct scene scene;
	scene_begin(&scene);
	words_fall_asleep(scene.session);
	world_set_faults("glake-mover/cuMemcpyDtoDAsync:*:fail=999");
	ck_assert_int_eq(glake_wake(scene.session, NULL), GLAKE_E_MOVER);
	world_set_faults(NULL);
	ck_assert(glake_is_asleep(scene.session));
	scene_check_asleep(&scene);
	/* The mover that failed ends by itself. */
	int r = GLAKE_E_MOVER;
	while (r == GLAKE_E_MOVER) {
		r = glake_wake(scene.session, NULL);
	}
	assert_ok(r);
	scene_check(&scene);
	scene_end(&scene);
}
END_TEST

static int take_sleeper(void *user, const struct glake_sleeper_row *row)
{
	*(struct glake_sleeper_row *)user = *row;
	return 0;
}

/* Others have the GPU: the wake says so after wake_wait_ms, and the next one succeeds when they have gone. */
START_TEST(without_room_it_sleeps_on)
{
	struct scene scene;
	struct glake_session *other = world_connect();
	glake_ptr ptr;
	scene_begin(&scene);
	words_fall_asleep(scene.session);
	assert_ok(glake_alloc(other, 0, DEVICE_BYTES - 24 * MIB, 0, &ptr));
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(glake_wake(scene.session, NULL), GLAKE_E_NO_DEVICE_MEMORY);
		ck_assert(glake_is_asleep(scene.session));
		scene_check_asleep(&scene);
	}
	assert_ok(glake_free(other, ptr));
	assert_ok(glake_wake(scene.session, NULL));
	scene_check(&scene);
	/* Who looks later sees what that wake cost: it was refused twice, each time after wake_wait_ms. */
	words_fall_asleep(scene.session);
	struct glake_sleeper_row row = {.session = 0};
	assert_ok(glake_list_sleepers(eye, take_sleeper, &row));
	ck_assert_uint_eq(row.n_sleeps, 2);
	ck_assert_uint_gt(row.woke_ns, 0);
	ck_assert_uint_ge(row.woke_waited_ms, 2 * 300);
	ck_assert_uint_eq(world_metric("wakes_failed"), 2);
	ck_assert_uint_eq(world_metric("wakes_refused"), 2);
	assert_ok(glake_wake(scene.session, NULL));
	scene_end(&scene);
}
END_TEST

START_TEST_WITH(without_glaked_nothing_hangs, .n = 2)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 6 * MIB, 7);
	bool is_asleep = _i > 0;
	if (is_asleep) {
		words_fall_asleep(session);
	}
	harness_kill(&harness);
	int r = is_asleep ? glake_wake(session, NULL) : glake_sleep(session, 1000, NULL);
	ck_assert_int_eq(r, GLAKE_E_GONE);
	ck_assert_int_eq(glake_is_asleep(session), is_asleep);
	if (!is_asleep) {
		words_check(ptr, 6 * MIB, 7);
	}
	world_disconnect(session);
}
END_TEST

/* ---- others meanwhile ------------------------------------------------------------------------- */

static struct glake_session *sleeper;
static atomic_uint n_wanted;

static void note_wanted(void *user)
{
	ck_assert_ptr_eq(user, &n_wanted);
	n_wanted++;
}

/* As the shim's, but that nobody follows it. */
static void have_gate(void)
{
	glake__space.gate = (struct glake__gate){.user = &n_wanted, .wanted = note_wanted};
}

static void await_wanted(void)
{
	while (n_wanted == 0) {
		clock_sleep_ns(1000000);
	}
}

static void *seal_it(void *ptr)
{
	const struct glake_span span = {.ptr = *(glake_ptr *)ptr, .bytes = 6 * MIB};
	glake_seal(&span, 1, NULL);
	return NULL;
}

START_TEST(who_waits_for_it_asks_for_the_wake)
{
	pthread_t thread;
	sleeper = world_connect();
	glake_ptr ptr = words_alloc(sleeper, 6 * MIB, 7);
	have_gate();
	words_fall_asleep(sleeper);
	ck_assert_uint_eq(n_wanted, 0);
	pthread_create(&thread, NULL, seal_it, &ptr);
	await_wanted();
	assert_ok(glake_wake(sleeper, NULL));
	pthread_join(thread, NULL);
	ck_assert(glake__space_is_valid());
}
END_TEST

/* Nothing of it sleeps, since all of it is held at once. */
START_TEST(what_others_work_on_keeps_all_awake)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 6 * MIB, 7);
	glake_ptr other = words_alloc(session, 4 * MIB, 8);
	struct glake__hold hold;
	assert_ok(glake__hold_begin(&hold, ptr, 6 * MIB, false));
	assert_fails(-EBUSY, "other threads", glake_sleep(session, 0, NULL));
	ck_assert(!glake_is_asleep(session));
	words_check(other, 4 * MIB, 8);
	glake__hold_end(&hold);
	words_fall_asleep(session);
	assert_ok(glake_wake(session, NULL));
	words_check(ptr, 6 * MIB, 7);
	words_check(other, 4 * MIB, 8);
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_free(session, other));
}
END_TEST

static void *map_it(void *user)
{
	const struct scene *scene = user;
	map_number(scene->nowhere, scene->third, 2 * MIB, true);
	return NULL;
}

/* The memory is mapped by the handle that it has after the wake. */
START_TEST(memory_that_sleeps_is_mapped_when_it_is_awake)
{
	pthread_t thread;
	struct scene scene;
	scene_begin(&scene);
	have_gate();
	words_fall_asleep(scene.session);
	pthread_create(&thread, NULL, map_it, &scene);
	await_wanted();
	assert_ok(glake_wake(scene.session, NULL));
	pthread_join(thread, NULL);
	words_check(scene.third, 2 * MIB, 6);
	unmap_number(scene.third, 2 * MIB);
	scene_check(&scene);
	scene_end(&scene);
}
END_TEST

/* A call that waits for the memory ends before its session does. */
START_TEST(a_session_ends_while_a_thread_waits_for_its_memory)
{
	pthread_t thread;
	sleeper = world_connect();
	glake_ptr ptr = words_alloc(sleeper, 6 * MIB, 7);
	have_gate();
	words_fall_asleep(sleeper);
	pthread_create(&thread, NULL, seal_it, &ptr);
	await_wanted();
	world_disconnect(sleeper);
	pthread_join(thread, NULL);
	ck_assert_uint_eq(world_books().private_bytes, 0);
}
END_TEST

/* The program's handler may call the library, and is called without a lock. */
static void wake_by_notice(void *user, const struct glake_notice *notice)
{
	ck_assert_int_eq(notice->kind, GLAKE_NOTICE_MODEL_EVICTED);
	assert_ok(glake_wake(user, NULL));
	n_wanted++;
}

START_TEST(a_notice_that_comes_meanwhile_may_wake_it)
{
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 6 * MIB, 7);
	glake_set_notice_handler(session, wake_by_notice, session);
	pthread_mutex_lock(&session->link.lock);
	glake__notices_add(&session->link.notices, GLAKE_NOTICE_MODEL_EVICTED)->public.name =
		strdup("model");
	pthread_mutex_unlock(&session->link.lock);
	assert_ok(glake_sleep(session, 1000, NULL));
	ck_assert_uint_eq(n_wanted, 1);
	ck_assert(!glake_is_asleep(session));
	words_check(ptr, 6 * MIB, 7);
	assert_ok(glake_free(session, ptr));
}
END_TEST

/* The child calls no driver, takes no lock that the parent may have held, and leaves the parent's memory alone. */
START_TEST(a_forked_child_ends_a_session_that_sleeps)
{
	struct scene scene;
	scene_begin(&scene);
	words_fall_asleep(scene.session);
	pid_t child = fork();
	if (child == 0) {
		bool is_refused = glake_wake(scene.session, NULL) == GLAKE_E_FORKED;
		glake_disconnect(scene.session);
		_exit(is_refused ? 0 : 1);
	}
	world_join(child);
	assert_ok(glake_wake(scene.session, NULL));
	scene_check(&scene);
	scene_end(&scene);
}
END_TEST

/* Work of the library's own, which has another mapping of it. */
START_TEST(what_the_library_works_on_stays_and_is_counted)
{
	struct glake_session *session = world_connect();
	struct glake__device *device = glake__session_device(session, 0);
	glake_ptr ptr = words_alloc(session, 6 * MIB, 7);
	glake_ptr other = words_alloc(session, 4 * MIB, 8);
	struct glake__range *mirror;
	glake__lock();
	struct glake__range *range = glake__piece_at_locked(ptr)->range;
	glake__unlock();
	assert_ok(glake__errand_mirror(device, range, 0, 6 * MIB, GLAKE__ACCESS_READ, &mirror));
	struct glake_slept slept = words_fall_asleep(session);
	ck_assert_uint_eq(slept.private_bytes, 4 * MIB);
	ck_assert_uint_eq(slept.n_stays, 1);
	ck_assert_str_eq(slept.stays[0].why, "being worked on");
	ck_assert_uint_eq(slept.stays[0].bytes, 6 * MIB);
	words_check(ptr, 6 * MIB, 7);
	assert_ok(glake_wake(session, NULL));
	glake__errand_end(session, &mirror);
	words_check(other, 4 * MIB, 8);
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_free(session, other));
}
END_TEST
