/* SPDX-License-Identifier: Apache-2.0 */
/* Models that a session has open sleep with it, and are there again at the same addresses, whatever became of them meanwhile. */
#include <dirent.h>

#include "libclient/link/session.h"
#include "libclient/model/dlpack.h"
#include "libclient/space/range.h"
#include "tests/harness/models.h"
#include "tests/harness/words.h"

#define CONFIG WORLD_CONFIG "warm_bytes = \"0\"; trust_file_times = true; "

static void begin_with(const char *config, const char *devices)
{
	world_begin(.config = config, .devices = devices);
	words_open_driver();
}

static void begin(void)
{
	begin_with(CONFIG, "1x4GiB");
}

static struct glake_model *open_model(struct glake_session *session, const char *path)
{
	struct glake_model *model = NULL;
	assert_ok(glake_model_open(session, path, NULL, &model));
	return model;
}

static void evict_all(void)
{
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
}

static void check(struct glake_session *session, const struct glake_model *model, uint64_t seed)
{
	ck_assert(world_has_layers(session, model, seed));
	ck_assert(!words_can_write(world_info(model).base));
	ck_assert(glake__space_is_valid());
}

struct wanted {
	const char *name;
	char state[16];
	unsigned n;
};

static int take_model(void *user, const struct glake_model_row *row)
{
	struct wanted *wanted = user;
	if (strstr(row->name, wanted->name)) {
		snprintf(wanted->state, sizeof(wanted->state), "%s", row->state);
		wanted->n++;
	}
	return 0;
}

/* "" = there is none. Of several, one. */
static struct wanted look(const char *name)
{
	struct wanted wanted = {.name = name};
	assert_ok(glake_list_models(eye, take_model, &wanted));
	return wanted;
}

static void assert_state(const char *name, const char *state)
{
	ck_assert_str_eq(look(name).state, state);
}

static int take_sleeper(void *user, const struct glake_sleeper_row *row)
{
	ck_assert_uint_eq(row->n_models, 1);
	ck_assert_str_eq(row->models[0], user);
	return 0;
}

/* ---- one -------------------------------------------------------------------------------------- */

/* As cache it stays on the GPU, unless somebody wants the memory. */
START_TEST_WITH(a_model_leaves_and_comes_back, .n = 2)
{
	begin();
	struct glake_session *session = world_connect();
	struct glake_model *model = open_model(session, world_write_layers("one.safetensors", 1));
	glake_ptr private = words_alloc(session, 6 * MIB, 7);
	const struct glake_model_info before = world_info(model);
	struct glake_slept slept = words_fall_asleep(session);
	ck_assert_uint_eq(slept.shared_bytes, WORLD_MODEL_BYTES);
	ck_assert_uint_eq(slept.private_bytes, 6 * MIB);
	ck_assert_uint_eq(slept.n_stays, 0);
	ck_assert_uint_eq(world_books().used_block_bytes, 0);
	ck_assert_uint_eq(world_row(session).n_models, 0);
	if (_i > 0) {
		evict_all();
		ck_assert_uint_eq(words_device_bytes(), 0);
	}
	assert_ok(glake_list_sleepers(eye, take_sleeper, (void *)before.name));
	slept.size = sizeof(slept);
	assert_ok(glake_wake(session, &slept));
	ck_assert_uint_eq(slept.shared_bytes, WORLD_MODEL_BYTES);
	ck_assert_uint_eq(world_info(model).base, before.base);
	ck_assert_uint_eq(world_row(session).n_models, 1);
	ck_assert_uint_eq(world_books().used_block_bytes, WORLD_MODEL_BYTES);
	ck_assert_uint_eq(world_metric("models_loaded"), 1);
	check(session, model, 1);
	words_check(private, 6 * MIB, 7);
	words_fall_asleep(session);
	assert_ok(glake_wake(session, NULL));
	check(session, model, 1);
	glake_model_close(model);
	assert_ok(glake_free(session, private));
	if (_i > 0) {
		/* The model was forgotten before: what this session had was its own. */
		ck_assert_uint_eq(words_device_bytes(), 0);
		ck_assert_uint_eq(look("one.safetensors").n, 0);
	}
}
END_TEST

/* Whatever is of an odd size, or in no block at all. */
START_TEST(models_of_all_kinds_sleep_together)
{
	begin();
	struct glake_session *session = world_connect();
	const char *path = world_write_model("large.safetensors", 200 * MIB + 8, 3);
	struct glake_model *large = open_model(session, path);
	struct glake_model *same = open_model(session, path);
	struct glake_model *many = open_model(session, world_write_layers("many.safetensors", 1));
	struct glake_model *empty = open_model(session, world_write_model("e.safetensors", 0, 1));
	const uint64_t n_bytes = 2 * world_info(large).mapped_bytes + WORLD_MODEL_BYTES;
	ck_assert_uint_eq(words_fall_asleep(session).shared_bytes, n_bytes);
	evict_all();
	assert_ok(glake_wake(session, NULL));
	check(session, many, 1);
	glake_model_close(many);
	struct glake_tensor tensor = world_tensor(same, "w");
	ck_assert(world_is_content(session, tensor.ptr, tensor.bytes, 3, 0));
	glake_model_close(same);
	tensor = world_tensor(large, "w");
	ck_assert(world_is_content(session, tensor.ptr, tensor.bytes, 3, 0));
	glake_model_close(large);
	glake_model_close(empty);
	ck_assert_uint_eq(words_device_bytes(), 0);
}
END_TEST

/* ---- several ---------------------------------------------------------------------------------- */

START_TEST(who_is_awake_keeps_it_on_the_gpu)
{
	begin();
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	const char *path = world_write_layers("one.safetensors", 1);
	struct glake_model *first = open_model(one, path);
	struct glake_model *second = open_model(two, path);
	words_fall_asleep(one);
	evict_all();
	ck_assert_uint_eq(words_device_bytes(), WORLD_MODEL_BYTES);
	check(two, second, 1);
	words_fall_asleep(two);
	ck_assert_uint_eq(world_books().used_block_bytes, 0);
	/* Both have the same copies. */
	ck_assert_uint_eq(world_copy_bytes(), WORLD_MODEL_BYTES);
	evict_all();
	ck_assert_uint_eq(words_device_bytes(), 0);
	assert_ok(glake_wake(one, NULL));
	assert_ok(glake_wake(two, NULL));
	ck_assert_uint_eq(words_device_bytes(), WORLD_MODEL_BYTES);
	check(one, first, 1);
	check(two, second, 1);
	glake_model_close(first);
	check(two, second, 1);
	/* Who opens it now loads it, and gets the same blocks. */
	struct glake_model *third = open_model(one, path);
	ck_assert_uint_eq(words_device_bytes(), WORLD_MODEL_BYTES);
	check(one, third, 1);
	glake_model_close(second);
	check(one, third, 1);
	assert_state("one.safetensors", "ready");
}
END_TEST

static void sleep_with_model(void *user)
{
	words_open_driver();
	struct glake_session *session = world_connect();
	open_model(session, user);
	words_fall_asleep(session);
	world_reach(1);
	world_await(2);
}

START_TEST(one_that_is_killed_asleep_leaves_the_other_its_model)
{
	world_begin(.config = CONFIG, .devices = "1x4GiB");
	const char *path = world_write_layers("one.safetensors", 1);
	pid_t client = world_client(sleep_with_model, (void *)path);
	world_await(1);
	words_open_driver();
	struct glake_session *session = world_connect();
	struct glake_model *model = open_model(session, path);
	ck_assert_uint_eq(world_metric("models_loaded"), 1);
	words_fall_asleep(session);
	world_kill(client);
	evict_all();
	assert_ok(glake_wake(session, NULL));
	check(session, model, 1);
}
END_TEST

/* ---- what becomes of it meanwhile -------------------------------------------------------------- */

START_TEST(a_model_that_is_demoted_is_promoted_by_the_wake)
{
	begin_with(CONFIG "demote = true; ", "1x128MiB");
	struct glake_session *session = world_connect();
	struct glake_session *other = world_connect();
	const char *path = world_write_layers("one.safetensors", 1);
	struct glake_model *model = open_model(session, path);
	words_fall_asleep(session);
	assert_ok(glake_free(other, words_alloc(other, 96 * MIB, 7)));
	assert_state("one.safetensors", "host");
	assert_ok(glake_wake(session, NULL));
	assert_state("one.safetensors", "ready");
	ck_assert_uint_eq(look("one.safetensors").n, 1);
	check(session, model, 1);
	struct glake_model *again = open_model(other, path);
	ck_assert_uint_eq(world_metric("models_loaded"), 1);
	check(other, again, 1);
	glake_model_close(model);
	glake_model_close(again);
	assert_state("one.safetensors", "ready");
}
END_TEST

START_TEST(a_model_that_is_pinned_stays)
{
	begin();
	struct glake_session *session = world_connect();
	struct glake_model *model = open_model(session, world_write_layers("one.safetensors", 1));
	assert_ok(glake_pin(eye, world_path("one.safetensors"), 1));
	words_fall_asleep(session);
	evict_all();
	ck_assert_uint_eq(words_device_bytes(), WORLD_MODEL_BYTES);
	assert_ok(glake_wake(session, NULL));
	check(session, model, 1);
	words_fall_asleep(session);
	assert_ok(glake_pin(eye, world_path("one.safetensors"), 0));
	evict_all();
	ck_assert_uint_eq(words_device_bytes(), 0);
	assert_ok(glake_wake(session, NULL));
	check(session, model, 1);
}
END_TEST

static void publish(struct glake_session *session, glake_ptr ptr, uint64_t n_bytes)
{
	const struct glake_tensor tensor = {.size = sizeof(tensor),
	                                    .name = "w",
	                                    .dtype = GLAKE_U64,
	                                    .n_dims = 1,
	                                    .shape = &(uint64_t){n_bytes / 8},
	                                    .ptr = ptr};
	assert_ok(glake_weights_publish(session, "key", &tensor, 1, NULL, NULL));
}

static struct glake_model *attach(struct glake_session *session)
{
	struct glake_model *model = NULL;
	assert_ok(glake_weights_attach(session, "key", NULL, &model));
	return model;
}

/* Who attached the old one has that. */
START_TEST(published_weights_that_were_replaced_are_the_old_ones_for_who_slept)
{
	begin();
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr old = words_alloc(two, 6 * MIB, 7);
	publish(two, old, 6 * MIB);
	assert_ok(glake_free(two, old));
	struct glake_model *model = attach(one);
	ck_assert_uint_eq(words_fall_asleep(one).shared_bytes, 6 * MIB);
	glake_ptr new = words_alloc(two, 6 * MIB, 8);
	publish(two, new, 6 * MIB);
	assert_ok(glake_free(two, new));
	ck_assert_uint_eq(words_device_bytes(), 6 * MIB);
	assert_ok(glake_wake(one, NULL));
	words_check(world_tensor(model, "w").ptr, 6 * MIB, 7);
	assert_state("key", look("key").n == 2 ? look("key").state : "both");
	struct glake_model *other = attach(one);
	words_check(world_tensor(other, "w").ptr, 6 * MIB, 8);
	glake_model_close(model);
	ck_assert_uint_eq(words_device_bytes(), 6 * MIB);
}
END_TEST

/* ---- the end ----------------------------------------------------------------------------------- */

/* Nobody waits for a wake. */
START_TEST(a_model_that_is_closed_asleep_goes_with_the_wake)
{
	begin();
	struct glake_session *session = world_connect();
	struct glake_model *model = open_model(session, world_write_layers("one.safetensors", 1));
	struct DLManagedTensor *tensor;
	assert_ok(glake_model_dlpack(model, 3, &tensor));
	glake_model_close(model);
	words_fall_asleep(session);
	tensor->deleter(tensor);
	assert_ok(glake_wake(session, NULL));
	ck_assert_uint_eq(world_row(session).n_models, 0);
	evict_all();
	ck_assert_uint_eq(words_device_bytes(), 0);
	ck_assert(glake__space_is_valid());
}
END_TEST

/* Open, or closed with a tensor in other hands. */
START_TEST_WITH(a_session_ends_asleep, .n = 3)
{
	begin();
	struct glake_session *session = world_connect();
	struct glake_model *model = open_model(session, world_write_layers("one.safetensors", 1));
	struct DLManagedTensor *tensor = NULL;
	if (_i > 0) {
		assert_ok(glake_model_dlpack(model, 3, &tensor));
	}
	words_fall_asleep(session);
	if (_i > 1) {
		glake_model_close(model);
		tensor->deleter(tensor);
	}
	world_disconnect(session);
	evict_all();
	ck_assert_uint_eq(words_device_bytes(), 0);
	if (_i == 1) {
		tensor->deleter(tensor);
	}
	ck_assert(glake__space_is_valid());
}
END_TEST

/* ---- bad days ---------------------------------------------------------------------------------- */

START_TEST(what_does_not_fit_host_memory_stays)
{
	begin_with(CONFIG "host_bytes = \"32MiB\"; ", "1x4GiB");
	struct glake_session *session = world_connect();
	struct glake_model *model = open_model(session, world_write_layers("one.safetensors", 1));
	glake_ptr private = words_alloc(session, 6 * MIB, 7);
	assert_fails(GLAKE_E_NO_HOST_MEMORY, "", glake_sleep(session, 1000, NULL));
	ck_assert(!glake_is_asleep(session));
	check(session, model, 1);
	words_check(private, 6 * MIB, 7);
	ck_assert_uint_eq(world_books().used_block_bytes, WORLD_MODEL_BYTES);
}
END_TEST

/* All of it, or nothing. */
START_TEST(a_wake_without_room_for_the_model_takes_nothing)
{
	begin_with(CONFIG "wake_wait_ms = 50; ", "1x128MiB");
	struct glake_session *session = world_connect();
	struct glake_session *other = world_connect();
	struct glake_model *model = open_model(session, world_write_layers("one.safetensors", 1));
	glake_ptr private = words_alloc(session, 6 * MIB, 7);
	words_fall_asleep(session);
	glake_ptr large = words_alloc(other, 100 * MIB, 8);
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "", glake_wake(session, NULL));
	ck_assert(glake_is_asleep(session));
	ck_assert_uint_eq(words_device_bytes(), 100 * MIB);
	assert_ok(glake_free(other, large));
	assert_ok(glake_wake(session, NULL));
	check(session, model, 1);
	words_check(private, 6 * MIB, 7);
}
END_TEST

START_TEST(nobody_gets_a_damaged_copy)
{
	begin();
	struct glake_session *session = world_connect();
	const char *path = world_write_layers("one.safetensors", 1);
	struct glake_model *model = open_model(session, path);
	words_fall_asleep(session);
	evict_all();
	world_damage_copies();
	assert_fails(GLAKE_E_MOVER, "damaged", glake_wake(session, NULL));
	ck_assert(glake_is_asleep(session));
	/* Somebody loads the same: that is good. */
	struct glake_session *other = world_connect();
	struct glake_model *same = open_model(other, path);
	check(other, same, 1);
	assert_ok(glake_wake(session, NULL));
	check(session, model, 1);
}
END_TEST

/* glaked's own memory for it is the tenant's to pay. */
START_TEST(a_tenant_without_manifests_for_the_copies_stays_awake)
{
	begin();
	struct glake_session *session = world_connect();
	struct glake_model *model = open_model(session, world_write_layers("one.safetensors", 1));
	const uint64_t n_bytes = world_books().charged_manifest_bytes;
	assert_ok(glake_set_manifest_quota(eye, "default", n_bytes + 1024));
	assert_fails(GLAKE_E_OVER_QUOTA, "manifests", glake_sleep(session, 1000, NULL));
	check(session, model, 1);
	assert_ok(glake_set_manifest_quota(eye, "default", 0));
	words_fall_asleep(session);
	assert_ok(glake_wake(session, NULL));
	check(session, model, 1);
}
END_TEST
