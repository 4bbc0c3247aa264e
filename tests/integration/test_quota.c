/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When there is not enough: the tenant's limits, the device's memory, file descriptors, and what
 * is given up, in which order, before somebody is refused.
 */
#include <stdlib.h>
#include <sys/resource.h>

#include "tests/harness/connection.h"
#include "tests/harness/models.h"
#include "tests/harness/world.h"

#define TENANT(bytes) "tenants = ({ name = \"default\"; device_bytes = \"" bytes "\"; });"

/* ---- the tenant's limits --------------------------------------------------------------------- */

START_TEST(private_memory_over_the_quota_is_refused_whole)
{
	glake_ptr first = 0;
	glake_ptr second = 0;
	world_begin(.config = WORLD_CONFIG TENANT("64MiB"), .devices = "1x512MiB");
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 40 * MIB, 0, &first));
	struct books before = world_books();
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant default",
	             glake_alloc(session, 0, 40 * MIB, 0, &second));
	ck_assert_ptr_nonnull(strstr(
		glake_error(), "40.0 MiB more on device 0: tenant default uses 40.0 of 64.0 MiB"));
	world_wait_books(&before);
	ck_assert_uint_ge(world_metric("quota_refusals"), 1);
	assert_ok(glake_alloc(session, 0, 24 * MIB, 0, &second));
	assert_ok(glake_free(session, first));
	assert_ok(glake_free(session, second));
}
END_TEST

START_TEST(a_model_over_the_quota_leaves_nothing)
{
	struct glake_model *model;
	glake_ptr ptr = 0;
	world_begin(.config = WORLD_CONFIG TENANT("64MiB"), .devices = "1x512MiB");
	const char *path = world_write_model("m.safetensors", 100 * MIB, 1);
	struct glake_session *session = world_connect();
	assert_fails(GLAKE_E_OVER_QUOTA, "quota", glake_model_open(session, path, NULL, &model));
	ck_assert_uint_eq(world_books().n_models, 0);
	ck_assert_uint_eq(world_metric("models_failed"), 1);
	/* Nothing of it is charged. */
	assert_ok(glake_alloc(session, 0, 64 * MIB, 0, &ptr));
}
END_TEST

START_TEST(a_cached_model_counts_when_it_is_opened_again)
{
	struct glake_model *model;
	glake_ptr ptr = 0;
	world_begin(.config = WORLD_CONFIG TENANT("64MiB"), .devices = "1x512MiB");
	const char *path = world_write_model("m.safetensors", 40 * MIB, 1);
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, path, NULL, &model));
	assert_fails(GLAKE_E_OVER_QUOTA, "", glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	glake_model_close(model);
	/* As cache it is nobody's. */
	assert_ok(glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	uint64_t n_refused = world_metric("quota_refusals");
	assert_fails(GLAKE_E_OVER_QUOTA, "m.safetensors",
	             glake_model_open(session, path, NULL, &model));
	ck_assert_uint_eq(world_metric("quota_refusals"), n_refused + 1);
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_trim(session, 0, 0));
	assert_ok(glake_model_open(session, path, NULL, &model));
	ck_assert_int_ne(world_info(model).was_loaded, 0);
	ck_assert_uint_eq(world_metric("models_loaded"), 1);
}
END_TEST

/* ---- pins ------------------------------------------------------------------------------------ */

static int find_model(void *user, const struct glake_model_row *row)
{
	return strcmp(row->name, user) == 0;
}

static bool is_there(const char *path)
{
	return glake_list_models(eye, find_model, (void *)path) == 1;
}

struct tenant_use {
	const char *name;
	uint64_t used_bytes;
};

static int find_tenant(void *user, const struct glake_tenant_row *row)
{
	struct tenant_use *wanted = user;
	if (strcmp(row->name, wanted->name) != 0) {
		return 0;
	}
	wanted->used_bytes = row->devices[0].used_bytes;
	return 1;
}

static uint64_t used_by(const char *tenant)
{
	struct tenant_use wanted = {tenant, 0};
	ck_assert_int_eq(glake_list_tenants(eye, find_tenant, &wanted), 1);
	return wanted.used_bytes;
}

static void load(const char *path, bool pin)
{
	struct glake_session *session = world_connect_blind();
	struct glake_model *model;
	struct glake_model_options options = {.size = sizeof(options), .no_map = 1, .pin = pin};
	assert_ok(glake_model_open(session, path, &options, &model));
	glake_model_close(model);
	world_disconnect(session);
}

/* Nobody's session lasts as long as a pin does. */
START_TEST(a_pinned_model_counts_when_nobody_has_it_open)
{
	struct glake_model *model;
	struct glake_model_options pinned = {.size = sizeof(pinned), .no_map = 1, .pin = 1};
	glake_ptr ptr = 0;
	world_begin(.config = WORLD_CONFIG TENANT("128MiB"), .devices = "1x512MiB");
	const char *first = world_write_model("first.safetensors", 100 * MIB, 1);
	const char *second = world_write_model("second.safetensors", 100 * MIB, 2);
	load(first, true);
	ck_assert_uint_eq(used_by("default"), 100 * MIB);
	struct books before = world_books();
	struct glake_session *session = world_connect();
	assert_fails(GLAKE_E_OVER_QUOTA, "quota",
	             glake_model_open(session, second, &pinned, &model));
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant default",
	             glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	/* Who opens it pays nothing more. */
	assert_ok(glake_model_open(session, first, NULL, &model));
	ck_assert_uint_eq(used_by("default"), 100 * MIB);
	glake_model_close(model);
	world_disconnect(session);
	world_wait_books(&before);
	assert_ok(glake_pin(eye, first, 0));
	ck_assert_uint_eq(used_by("default"), 0);
	load(second, true);
	assert_ok(glake_pin(eye, second, 0));
}
END_TEST

START_TEST(an_idle_model_is_pinned_by_who_can_pay)
{
	world_begin(.config = WORLD_CONFIG TENANT("128MiB"), .devices = "1x512MiB");
	const char *first = world_write_model("first.safetensors", 100 * MIB, 1);
	const char *second = world_write_model("second.safetensors", 100 * MIB, 2);
	load(first, false);
	load(second, false);
	ck_assert_uint_eq(used_by("default"), 0);
	assert_ok(glake_pin(eye, first, 1));
	assert_ok(glake_pin(eye, first, 1));
	ck_assert_uint_eq(used_by("default"), 100 * MIB);
	uint64_t n_refused = world_metric("quota_refusals");
	assert_fails(GLAKE_E_OVER_QUOTA, "second.safetensors", glake_pin(eye, second, 1));
	ck_assert_uint_eq(world_metric("quota_refusals"), n_refused + 1);
	ck_assert_uint_eq(used_by("default"), 100 * MIB);
	/* A model whose pin was refused is cache as before. */
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert(is_there(first) && !is_there(second));
	assert_ok(glake_pin(eye, first, 0));
	ck_assert_uint_eq(used_by("default"), 0);
}
END_TEST

/* A block is paid for once: with two places in a model, and in two pinned models. */
START_TEST(what_pinned_models_share_is_paid_for_once)
{
	static const struct model_tensor tensors[] = {
		{"a", "U8", 1, {4 * MIB}, 1},
		{"b", "U8", 1, {4 * MIB}, 1},
		{"c", "U8", 1, {6 * MIB}, 2},
	};
	world_begin(.config = WORLD_CONFIG TENANT("10MiB"), .devices = "1x512MiB");
	const char *twice = world_path("twice.safetensors");
	const char *once = world_path("once.safetensors");
	/* The whole does not fit while it is loaded, before what is equal is found. */
	assert_ok(glake_set_quota(eye, "default", 0, 0));
	model_file_write(twice, tensors, 3);
	model_file_write(once, tensors, 1);
	load(twice, false);
	load(once, false);
	assert_ok(glake_set_quota(eye, "default", 0, 10 * MIB));
	assert_ok(glake_pin(eye, twice, 1));
	assert_ok(glake_pin(eye, once, 1));
	ck_assert_uint_eq(used_by("default"), 10 * MIB);
	assert_ok(glake_pin(eye, twice, 0));
	ck_assert_uint_eq(used_by("default"), 4 * MIB);
	assert_ok(glake_pin(eye, once, 0));
	ck_assert_uint_eq(used_by("default"), 0);
}
END_TEST

struct stranger {
	const char *path;
	int result;
};

static void pin_as_other(struct harness *where, void *user)
{
	const struct stranger *stranger = user;
	setenv("GLAKE_SOCKET", where->socket_path, 1);
	struct glake_session *session = world_connect_blind();
	int r = glake_pin(session, stranger->path, 1);
	ck_assert_msg(r == stranger->result, "%d: %s", r, glake_error());
	world_disconnect(session);
}

/* Who opened it first goes some day, and cannot pay for what another one keeps. */
START_TEST(who_pins_pays_in_place_of_who_uses)
{
	struct glake_model *model;
	if (!harness_is_root()) {
		return;
	}
	world_begin(.config = WORLD_CONFIG
	            "realms = ({ name = \"both\"; uids = [0, 12345]; });"
	            "tenants = ({ name = \"other\"; uids = [12345]; device_bytes = \"32MiB\"; });",
	            .devices = "1x512MiB");
	const char *path = world_write_model("m.safetensors", 60 * MIB, 1);
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, path, &model));
	struct stranger stranger = {path, GLAKE_E_OVER_QUOTA};
	harness_as(&harness, 12345, 12345, pin_as_other, &stranger);
	ck_assert_uint_eq(used_by("default"), 60 * MIB);
	ck_assert_uint_eq(used_by("other"), 0);
	assert_ok(glake_set_quota(eye, "other", 0, 64 * MIB));
	stranger.result = 0;
	harness_as(&harness, 12345, 12345, pin_as_other, &stranger);
	ck_assert_uint_eq(used_by("default"), 0);
	ck_assert_uint_eq(used_by("other"), 60 * MIB);
	glake_model_close(model);
	ck_assert_uint_eq(used_by("other"), 60 * MIB);
	assert_ok(glake_pin(eye, path, 0));
	ck_assert_uint_eq(used_by("other"), 0);
}
END_TEST

/* ---- a full device --------------------------------------------------------------------------- */

static const struct harness_options small_device = {.config = WORLD_CONFIG, .devices = "1x256MiB"};

static void load_and_close(const char *path)
{
	load(path, false);
}

START_TEST(the_longest_idle_model_goes_first_and_pinned_ones_stay)
{
	glake_ptr ptr = 0;
	glake_ptr more = 0;
	char paths[3][512];
	world_begin_as(&small_device);
	for (unsigned i = 0; i < 3; i++) {
		char name[32];
		snprintf(name, sizeof(name), "m%u.safetensors", i);
		strcpy(paths[i], world_write_model(name, 60 * MIB, i + 1));
		load_and_close(paths[i]);
		harness_sleep_ms(10);
	}
	/* The first has been idle longest, and is pinned. One more is enough. */
	assert_ok(glake_pin(eye, paths[0], 1));
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 100 * MIB, 0, &ptr));
	ck_assert(is_there(paths[0]) && !is_there(paths[1]) && is_there(paths[2]));
	ck_assert_uint_eq(world_metric("models_evicted"), 1);
	assert_ok(glake_alloc(session, 0, 60 * MIB, 0, &more));
	ck_assert(is_there(paths[0]) && !is_there(paths[2]));
	ck_assert_uint_eq(world_metric("models_evicted"), 2);
	/* A pinned model stays, whoever wants memory; one that is in use as well. */
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "device 0",
	             glake_alloc(session, 0, 60 * MIB, 0, &more));
	ck_assert(is_there(paths[0]));
	ck_assert_uint_eq(world_metric("memory_refusals"), 1);
	assert_fails(GLAKE_E_BUSY, "pinned", glake_evict(eye, paths[0], NULL, NULL));
	assert_ok(glake_pin(eye, paths[0], 0));
	assert_ok(glake_alloc(session, 0, 60 * MIB, 0, &more));
}
END_TEST

static void load_in_folder(struct harness *where, void *user)
{
	setenv("GLAKE_SOCKET", where->socket_path, 1);
	load_and_close(user);
}

START_TEST(the_lower_priority_goes_first)
{
	if (!harness_is_root()) {
		return;
	}
	world_begin(.config = WORLD_CONFIG
	            "tenants = ({ name = \"low\"; uids = [12345]; priority = -5; });",
	            .devices = "1x256MiB");
	char high[512];
	strcpy(high, world_write_model("high.safetensors", 100 * MIB, 1));
	load_and_close(high);
	harness_sleep_ms(10);
	world_write_model("low.safetensors", 100 * MIB, 2);
	harness_as(&harness, 12345, 12345, load_in_folder, (void *)"./low.safetensors");
	ck_assert(is_there(world_path("low.safetensors")));
	struct glake_session *session = world_connect();
	glake_ptr ptr = 0;
	assert_ok(glake_alloc(session, 0, 100 * MIB, 0, &ptr));
	ck_assert(!is_there(world_path("low.safetensors")) && is_there(high));
}
END_TEST

START_TEST(a_model_in_use_is_not_evicted_for_another)
{
	struct glake_model *model;
	struct glake_model *other;
	world_begin_as(&small_device);
	const char *path = world_write_model("used.safetensors", 150 * MIB, 1);
	const char *second = world_write_model("other.safetensors", 150 * MIB, 2);
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, path, NULL, &model));
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "memory",
	             glake_model_open(session, second, NULL, &other));
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert(world_is_content(session, world_tensor(model, "w").ptr, 150 * MIB, 1, 0));
	glake_model_close(model);
	assert_ok(glake_model_open(session, second, NULL, &other));
	ck_assert(!is_there(path));
}
END_TEST

/* Freed, and warm; until stage 2. */
static void keep_40_warm(void *user)
{
	glake_ptr ptr = 0;
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 40 * MIB, 0, &ptr));
	assert_ok(glake_free(session, ptr));
	world_reach(1);
	while (atomic_load(world_stage) < 2) {
		ck_assert_int_ge(glake_dispatch(session), 0);
		harness_sleep_ms(2);
	}
}

/* Nobody pays for what cannot be: neither the store, nor the pool, nor who has warm memory. */
START_TEST_WITH(more_than_the_device_is_refused_and_costs_nobody, .n = 2)
{
	static const char *const configs[] = {
		WORLD_CONFIG,
		WORLD_CONFIG "pressure = \"wait\"; wait_ms = 3600000;",
	};
	glake_ptr ptr = 0;
	world_begin(.config = configs[_i], .devices = "1x256MiB");
	const char *path = world_write_model("m.safetensors", 60 * MIB, 1);
	load_and_close(path);
	pid_t client = world_client(keep_40_warm, NULL);
	world_await(1);
	struct glake_session *session = world_connect();
	struct books before = world_books();
	uint64_t n_evicted = world_metric("models_evicted");
	/* All but what glaked keeps for itself is the most there can be. */
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "device 0",
	             glake_alloc(session, 0, 256 * MIB, 0, &ptr));
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "device 0",
	             glake_alloc(session, 0, 8192 * MIB, 0, &ptr));
	ck_assert(is_there(path));
	world_wait_books(&before);
	ck_assert_uint_eq(world_metric("reclaims_sent"), 0);
	ck_assert_uint_eq(world_metric("models_evicted"), n_evicted);
	ck_assert_uint_eq(world_metric("memory_refusals"), 2);
	/* glake-mover has some as well. */
	assert_ok(glake_alloc(session, 0, 220 * MIB, 0, &ptr));
	ck_assert(!is_there(path));
	world_reach(2);
	world_join(client);
}
END_TEST

START_TEST(nothing_goes_for_what_blocks_in_use_are_in_the_way_of)
{
	struct glake_model *model;
	glake_ptr ptr = 0;
	world_begin_as(&small_device);
	const char *used = world_write_model("used.safetensors", 100 * MIB, 1);
	const char *idle = world_write_model("idle.safetensors", 60 * MIB, 2);
	load_and_close(idle);
	pid_t client = world_client(keep_40_warm, NULL);
	world_await(1);
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, used, NULL, &model));
	uint64_t rest = 256 * MIB - 2 * MIB - world_books().used_block_bytes;
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "device 0",
	             glake_alloc(session, 0, rest + 2 * MIB, 0, &ptr));
	ck_assert(is_there(idle));
	ck_assert_uint_eq(world_metric("reclaims_sent"), 0);
	/* glake-mover has some as well. */
	assert_ok(glake_alloc(session, 0, rest - 32 * MIB, 0, &ptr));
	ck_assert(!is_there(idle));
	world_reach(2);
	world_join(client);
}
END_TEST

static void hold_and_free(void *user)
{
	glake_ptr ptr = 0;
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 200 * MIB, 0, &ptr));
	world_reach(1);
	harness_sleep_ms(300);
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_trim(session, 0, 0));
	world_await(2);
}

START_TEST(who_waits_gets_what_another_frees)
{
	glake_ptr ptr = 0;
	world_begin(.config = WORLD_CONFIG "pressure = \"wait\"; wait_ms = 3600000;",
	            .devices = "1x256MiB");
	pid_t client = world_client(hold_and_free, NULL);
	world_await(1);
	struct glake_session *session = world_connect();
	uint64_t since_ms = harness_now_ms();
	assert_ok(glake_alloc(session, 0, 200 * MIB, 0, &ptr));
	ck_assert_uint_ge(harness_now_ms() - since_ms, 100);
	world_reach(2);
	world_join(client);
}
END_TEST

/* Warm memory of one session is asked back for another. */
static void keep_warm(void *user)
{
	glake_ptr ptr = 0;
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 200 * MIB, 0, &ptr));
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_ping(session));
	world_reach(1);
	while (atomic_load(world_stage) < 2) {
		ck_assert_int_ge(glake_dispatch(session), 0);
		harness_sleep_ms(10);
	}
}

START_TEST(warm_memory_is_reclaimed_for_who_waits)
{
	glake_ptr ptr = 0;
	world_begin(.config = WORLD_CONFIG "pressure = \"wait\"; wait_ms = 3600000;",
	            .devices = "1x256MiB");
	pid_t client = world_client(keep_warm, NULL);
	world_await(1);
	ck_assert_uint_eq(world_books().private_bytes, 200 * MIB);
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 200 * MIB, 0, &ptr));
	ck_assert_uint_ge(world_metric("reclaims_sent"), 1);
	world_reach(2);
	world_join(client);
}
END_TEST

/*
 * Freed, and out of the books, but still held: as by a process on its way out, or by the mover when
 * its load is cancelled. Who wants the memory then waits a moment.
 */
START_TEST_WITH(memory_that_is_late_is_waited_for, .n = 2)
{
	struct fdlist held;
	uint64_t id;
	world_begin_as(&small_device);
	int one = connection_hello(&harness);
	int two = connection_hello(&harness);
	fdlist_init(&held);
	ck_assert_int_eq(connection_alloc(one, 0, 200 * MIB, 1, &id, &held),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_int_eq(connection_free_chunks(one, &id, 1), GLAKE__WIRE__STATUS__OK);
	uint64_t request_id = connection_send(two,
	                                      REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc,
	                                              .chunk_bytes = 200 * MIB, .n_chunks = 1),
	                                      NULL, 0);
	harness_sleep_ms(200);
	if (_i == 0) {
		fdlist_deinit(&held);
	}
	ck_assert_int_eq(connection_status_of(two, request_id),
	                 _i == 0 ? GLAKE__WIRE__STATUS__OK : GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY);
	fdlist_deinit(&held);
}
END_TEST

/* A block that is published again is one's own already, and costs what its memory did. */
START_TEST(what_is_in_the_cache_is_shared_within_the_quota)
{
	struct glake_block *block;
	glake_ptr ptr = 0;
	world_begin(.config = WORLD_CONFIG TENANT("2MiB"), .devices = "1x512MiB");
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < 3; i++) {
		assert_ok(glake_alloc(session, 0, 2 * MIB, GLAKE_ZERO, &ptr));
		assert_ok(glake_block_publish(session, ptr, MIB, &block));
		ck_assert_uint_eq(world_books().block_bytes, 2 * MIB);
		ck_assert_uint_eq(world_books().charged_bytes,
		                  2 * MIB + books_before.charged_bytes);
		glake_block_release(block);
	}
	ck_assert_uint_eq(world_metric("blocks_collapsed"), 2);
}
END_TEST

/* ---- other things that run out --------------------------------------------------------------- */

/* Glaked has 32 fds for chunks with it. */
#define FEW_FDS "fd_budget = 64;"

START_TEST(without_fds_private_memory_works_and_models_are_refused)
{
	enum { N = 60 };
	glake_ptr ptrs[N];
	world_begin(.config = WORLD_CONFIG "fd_budget = 64;", .devices = "1x512MiB");
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < N; i++) {
		assert_ok(glake_alloc(session, 0, 2 * MIB, 0, &ptrs[i]));
	}
	struct books books = world_books();
	ck_assert_uint_eq(books.private_bytes, N * 2 * MIB);
	ck_assert_uint_lt(books.fds_used, N);
	/* Memory that is held by a handle is memory like other memory. */
	char got[32] = {1};
	assert_ok(glake_read(session, 0, got, ptrs[N - 1], sizeof(got)));
	ck_assert_int_eq(got[0], 0);

	/* Big pieces and blocks have what the small ones may not take, but no more. */
	glake_ptr big[16];
	unsigned n_big = 0;
	while (n_big < 16 && glake_alloc(session, 0, 64 * MIB, 0, &big[n_big]) == 0) {
		n_big++;
	}
	for (unsigned i = 0; i < n_big; i++) {
		assert_ok(glake_free(session, big[i]));
	}
	assert_ok(glake_trim(session, 0, 0));
	ck_assert_uint_ge(n_big, 3);
	for (unsigned i = 0; i < N; i++) {
		assert_ok(glake_free(session, ptrs[i]));
	}
}
END_TEST

/* The memory was made when there were no fds for small chunks; a block is worth one. */
START_TEST(memory_that_is_held_by_a_handle_can_be_published)
{
	enum { N = 30 };
	struct glake_block *block;
	struct glake_block *again;
	glake_ptr ptrs[N];
	world_begin(.config = WORLD_CONFIG FEW_FDS, .devices = "1x512MiB");
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < N; i++) {
		assert_ok(glake_alloc(session, 0, 2 * MIB, GLAKE_ZERO, &ptrs[i]));
	}
	uint64_t n_fds = world_books().fds_used;
	ck_assert_uint_lt(n_fds, N);
	assert_ok(glake_block_publish(session, ptrs[N - 1], MIB, &block));
	ck_assert_uint_eq(world_books().fds_used, n_fds + 1);
	assert_ok(glake_block_publish(session, ptrs[N - 2], MIB, &again));
	ck_assert_uint_eq(world_books().fds_used, n_fds + 1);
	ck_assert_uint_eq(world_books().block_bytes, 2 * MIB);
}
END_TEST

/* A model of @n_blocks blocks of @block_bytes, each of them an fd; no two @seeds have one in common. */
static const char *write_blocks(const char *name, unsigned n_blocks, uint64_t block_bytes,
                                unsigned seed)
{
	enum { N = 64 };
	struct model_tensor tensors[N];
	char names[N][16];
	const char *path = world_path(name);
	for (unsigned i = 0; i < n_blocks; i++) {
		snprintf(names[i], sizeof(names[i]), "t%02u", i);
		tensors[i] = (struct model_tensor){
			names[i], "U8", 1, {block_bytes}, seed * N + i + 1};
	}
	model_file_write(path, tensors, n_blocks);
	return path;
}

START_TEST(a_model_beyond_the_fds_is_refused)
{
	struct glake_model *model;
	world_begin(.config = WORLD_CONFIG FEW_FDS, .devices = "1x512MiB");
	const char *many = write_blocks("many.safetensors", 50, 2 * MIB, 1);
	const char *few = write_blocks("few.safetensors", 10, 2 * MIB, 1);
	struct glake_session *session = world_connect_blind();
	assert_fails(GLAKE_E_NO_FDS, "fds", world_open_unmapped(session, many, &model));
	ck_assert_uint_eq(world_books().block_bytes, 0);
	assert_ok(world_open_unmapped(session, few, &model));
}
END_TEST

/* As for bytes: the longest idle goes, and no more than it takes. */
START_TEST(what_nobody_uses_gives_its_fds_to_who_needs_them)
{
	struct glake_model *model;
	struct glake_model *again;
	world_begin(.config = WORLD_CONFIG FEW_FDS, .devices = "2x512MiB");
	const char *first = write_blocks("first.safetensors", 10, 2 * MIB, 1);
	const char *second = write_blocks("second.safetensors", 10, 2 * MIB, 2);
	const char *wanted = write_blocks("wanted.safetensors", 15, 2 * MIB, 3);
	const char *more = write_blocks("more.safetensors", 15, 2 * MIB, 4);
	const char *last = write_blocks("last.safetensors", 15, 2 * MIB, 5);
	struct glake_model_options other = {.size = sizeof(other), .device = 1, .no_map = 1};
	struct glake_session *session = world_connect_blind();
	assert_ok(glake_model_open(session, first, &other, &model));
	glake_model_close(model);
	assert_ok(world_open_unmapped(session, second, &model));
	glake_model_close(model);
	assert_ok(world_open_unmapped(session, wanted, &model));
	ck_assert(!is_there(first) && is_there(second));
	assert_ok(world_open_unmapped(session, more, &again));
	ck_assert(!is_there(second) && is_there(wanted));
	assert_fails(GLAKE_E_NO_FDS, "fds", world_open_unmapped(session, last, &model));
}
END_TEST

/* Chunks of another size, made ahead. */
START_TEST(the_pool_gives_its_fds_to_who_needs_them)
{
	struct glake_model *model;
	world_begin(.config = "mover_idle_ms = 0; drain_ms = 300; " FEW_FDS
	                      "pool = ( { chunk_bytes = \"2MiB\"; n_chunks = 16; } );",
	            .devices = "1x512MiB");
	const char *path = write_blocks("m.safetensors", 30, 4 * MIB, 1);
	struct glake_session *session = world_connect_blind();
	world_wait_metric("chunks_created", 16);
	assert_ok(world_open_unmapped(session, path, &model));
}
END_TEST

START_TEST(big_chunks_get_the_fds_of_what_nobody_uses)
{
	uint64_t ids[2];
	world_begin(.config = WORLD_CONFIG FEW_FDS, .devices = "1x512MiB");
	load_and_close(write_blocks("m.safetensors", 32, 2 * MIB, 1));
	ck_assert_uint_eq(world_books().fds_used, 32);
	int client = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(client, 0, 64 * MIB, 2, ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(world_books().fds_used, 2);
}
END_TEST

/* His own limit is no reason to take from others. */
START_TEST(nothing_goes_for_who_is_at_his_own_limit_of_fds)
{
	struct glake_model *model;
	world_begin(.config = WORLD_CONFIG FEW_FDS
	            "tenants = ({ name = \"default\"; max_fds = 30; });",
	            .devices = "1x512MiB");
	const char *idle = write_blocks("idle.safetensors", 20, 2 * MIB, 1);
	const char *many = write_blocks("many.safetensors", 31, 2 * MIB, 2);
	struct glake_session *session = world_connect_blind();
	load_and_close(idle);
	assert_fails(GLAKE_E_NO_FDS,
	             "needs 31 more fds for chunks on device 0: tenant default uses 0 of 30",
	             world_open_unmapped(session, many, &model));
	ck_assert(is_there(idle));
}
END_TEST

START_TEST(a_tenants_fds_are_a_limit)
{
	glake_ptr ptrs[4];
	world_begin(.config = WORLD_CONFIG "tenants = ({ name = \"default\"; max_fds = 3; });",
	            .devices = "1x512MiB");
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < 3; i++) {
		assert_ok(glake_alloc(session, 0, 2 * MIB, 0, &ptrs[i]));
	}
	assert_fails(GLAKE_E_NO_FDS, "default", glake_alloc(session, 0, 2 * MIB, 0, &ptrs[3]));
	assert_ok(glake_free(session, ptrs[0]));
	assert_ok(glake_trim(session, 0, 0));
	assert_ok(glake_alloc(session, 0, 2 * MIB, 0, &ptrs[3]));
}
END_TEST

/* ---- models that can never fit --------------------------------------------------------------- */

/* Each would fit as far as some batches of chunks, and nothing goes for those. */
START_TEST_WITH(nothing_goes_for_a_model_that_cannot_fit, .n = 7)
{
	static const struct {
		const char *config;
		uint64_t used_bytes; /* of a model that is open meanwhile */
		unsigned n_blocks;
		uint64_t block_bytes;
		int code;
		const char *words;
	} cases[] = {
		{WORLD_CONFIG, 0, 60, 6 * MIB, GLAKE_E_NO_DEVICE_MEMORY,
	         "needs 360.0 MiB more on device 0, which has 254.0 MiB in all"},
		{WORLD_CONFIG "pressure = \"wait\"; wait_ms = 3600000;", 0, 60, 6 * MIB,
	         GLAKE_E_NO_DEVICE_MEMORY, "needs 360.0 MiB more on device 0, which"},
		{WORLD_CONFIG, 100 * MIB, 40, 4 * MIB, GLAKE_E_NO_DEVICE_MEMORY,
	         "needs 160.0 MiB more on device 0: 100.0 of 254.0 MiB are in use"},
		{WORLD_CONFIG TENANT("230MiB"), 0, 60, 4 * MIB, GLAKE_E_OVER_QUOTA,
	         "needs 240.0 MiB more on device 0: tenant default uses 0 of 230.0 MiB"},
		{WORLD_CONFIG TENANT("230MiB"), 100 * MIB, 34, 4 * MIB, GLAKE_E_OVER_QUOTA,
	         "136.0 MiB more on device 0: tenant default uses 100.0 of 230.0 MiB"},
		{WORLD_CONFIG FEW_FDS, 0, 33, 2 * MIB, GLAKE_E_NO_FDS,
	         "needs 33 more fds for chunks on device 0: 0 of glaked's 32 are in use"},
		{WORLD_CONFIG FEW_FDS, 100 * MIB, 32, 2 * MIB, GLAKE_E_NO_FDS,
	         "needs 32 more fds for chunks on device 0: 1 of glaked's 32 are in use"},
	};
	struct glake_model *used;
	struct glake_model *model;
	world_begin(.config = cases[_i].config, .devices = "1x256MiB");
	const char *idle = write_blocks("idle.safetensors", 20, 2 * MIB, 1);
	const char *large = write_blocks("large.safetensors", cases[_i].n_blocks,
	                                 cases[_i].block_bytes, 2);
	struct glake_session *session = world_connect_blind();
	load_and_close(idle);
	if (cases[_i].used_bytes > 0) {
		assert_ok(world_open_unmapped(
			session, world_write_model("used.safetensors", cases[_i].used_bytes, 7),
			&used));
	}
	struct books before = world_books();
	assert_fails(cases[_i].code, cases[_i].words, world_open_unmapped(session, large, &model));
	ck_assert(is_there(idle));
	world_wait_books(&before);
	ck_assert_uint_eq(world_metric("memory_refusals") + world_metric("quota_refusals") +
	                          world_metric("fd_refusals"),
	                  1);
}
END_TEST

/* ---- the driver fails ------------------------------------------------------------------------ */

/* The n-th call fails: whichever it is, the request is refused whole or granted whole. */
START_TEST_WITH(a_failing_driver_is_refused_cleanly, .n = 4)
{
	static const struct {
		const char *call;
		int code;
		int driver_code;
	} faults[] = {
		{"cuMemCreate", GLAKE_E_NO_DEVICE_MEMORY, 2},
		{"cuMemCreate", GLAKE_E_INTERNAL, 999},
		{"cuMemExportToShareableHandle", GLAKE_E_INTERNAL, 304},
		{"cuMemExportToShareableHandle", GLAKE_E_NO_DEVICE_MEMORY, 2},
	};
	char rules[256];
	world_begin(.config = WORLD_CONFIG, .devices = "1x512MiB", .speed = 5);
	const char *file = world_write_model("m.safetensors", 100 * MIB, 1);
	struct glake_session *session = world_connect();
	for (unsigned nth = 1; nth <= 3; nth++) {
		glake_ptr ptr = 0;
		struct glake_model *model;
		snprintf(rules, sizeof(rules), "glaked/%s:%u%s:fail=%d", faults[_i].call, nth,
		         faults[_i].driver_code == 2 ? "+" : "", faults[_i].driver_code);
		for (int what = 0; what < 2; what++) {
			struct books before = world_books();
			world_set_faults(rules);
			int r = what == 0 ? glake_alloc(session, 0, 300 * MIB, 0, &ptr)
			                  : glake_model_open(session, file, NULL, &model);
			ck_assert_msg(r == faults[_i].code || (r == 0 && nth > 1), "%s: %d %s",
			              rules, r, glake_error());
			if (r == 0 && what == 0) {
				assert_ok(glake_free(session, ptr));
				assert_ok(glake_trim(session, 0, 0));
			} else if (r == 0) {
				glake_model_close(model);
				assert_ok(glake_evict(eye, NULL, NULL, NULL));
			}
			world_wait_books(&before);
		}
	}
}
END_TEST

/* glake-mover without memory for the headers: it says so, and lives. */
START_TEST(a_mover_without_host_memory_says_so)
{
	struct glake_model *model;
#ifdef __SANITIZE_THREAD__
	printf("SKIP: ThreadSanitizer ends a program that has no memory\n");
	return;
#endif
	world_begin_as(&small_device);
	world_start_mover();
	pid_t mover = world_running_mover();
	ck_assert_int_gt(mover, 0);
	const uint64_t n_header = 90000000;
	const char *path = world_path("long.safetensors");
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	ck_assert_int_eq(write(fd, &n_header, 8), 8);
	ck_assert_int_eq(ftruncate(fd, 100000000), 0);
	close(fd);
	char statm[64];
	unsigned long long pages;
	snprintf(statm, sizeof(statm), "/proc/%d/statm", (int)mover);
	FILE *file = fopen(statm, "re");
	ck_assert_int_eq(fscanf(file, "%llu", &pages), 1);
	fclose(file);
	struct rlimit limit = {pages * (uint64_t)sysconf(_SC_PAGESIZE) + 40 * MIB, RLIM_INFINITY};
	ck_assert_int_eq(prlimit(mover, RLIMIT_AS, &limit, NULL), 0);
	struct glake_session *session = world_connect_blind();
	assert_fails(GLAKE_E_NO_HOST_MEMORY, "host memory",
	             world_open_unmapped(session, path, &model));
	ck_assert_int_eq(world_running_mover(), mover);
	limit.rlim_cur = RLIM_INFINITY;
	ck_assert_int_eq(prlimit(mover, RLIMIT_AS, &limit, NULL), 0);
	assert_fails(GLAKE_E_BAD_FILE, "long.safetensors",
	             world_open_unmapped(session, path, &model));
}
END_TEST
