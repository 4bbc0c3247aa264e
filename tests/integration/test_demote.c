/* SPDX-License-Identifier: Apache-2.0 */
/* Models in host memory: copied when they are loaded, kept when they are evicted, and brought back. */
#include <inttypes.h>
#include <pthread.h>

#include "libclient/link/rpc.h"
#include "tests/harness/models.h"
#include "tests/harness/words.h"
#include "tests/harness/world.h"

#define CONFIG WORLD_CONFIG "trust_file_times = true; demote = true; "

/* Two of them do not fit the device beside each other. */
#define DEVICES "1x128MiB"
/* Beside the mover. */
#define ROOM_BYTES (106 * MIB)
#define N_BYTES (24 * MIB)

static struct glake_session *session;

static void begin_with(const char *config)
{
	world_begin(.config = config, .devices = DEVICES);
	world_open_driver();
	session = world_connect();
}

struct wanted {
	const char *name;
	char state[16];
	uint64_t copied_bytes;
};

static int take_model(void *user, const struct glake_model_row *row)
{
	struct wanted *wanted = user;
	if (strstr(row->name, wanted->name)) {
		snprintf(wanted->state, sizeof(wanted->state), "%s", row->state);
		wanted->copied_bytes = row->copied_bytes;
	}
	return 0;
}

static const struct wanted *find(const char *name)
{
	static struct wanted wanted;
	wanted = (struct wanted){.name = name};
	assert_ok(glake_list_models(eye, take_model, &wanted));
	return &wanted;
}

/* "" = there is none. */
static const char *state_of(const char *name)
{
	return find(name)->state;
}

static struct glake_model *open_model(const char *path)
{
	struct glake_model *model = NULL;
	assert_ok(glake_model_open(session, path, NULL, &model));
	return model;
}

/* Load a model, and wait until the blocks of @n_copied models are copied. */
static const char *load(const char *name, uint64_t seed, uint64_t n_copied)
{
	const char *path = world_write_model(name, N_BYTES, seed);
	glake_model_close(open_model(path));
	world_wait_metric("blocks_copied", n_copied);
	return path;
}

/* As much private memory as there is room for without models. */
static void evict_by_pressure(void)
{
	glake_ptr ptr;
	assert_ok(glake_alloc(session, 0, ROOM_BYTES, 0, &ptr));
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_trim(session, 0, 0));
}

static void check(const char *path, uint64_t seed)
{
	struct glake_model *model = open_model(path);
	struct glake_tensor tensor = world_tensor(model, "w");
	ck_assert(world_is_content(session, tensor.ptr, N_BYTES, seed, 0));
	glake_model_close(model);
}

START_TEST(an_evicted_model_comes_back_from_host_memory)
{
	begin_with(CONFIG);
	const char *path = load("one.safetensors", 1, 1);
	ck_assert_uint_eq(world_copy_bytes(), N_BYTES);
	ck_assert_str_eq(state_of("one.safetensors"), "ready");
	evict_by_pressure();
	ck_assert_str_eq(state_of("one.safetensors"), "host");
	ck_assert_uint_eq(world_books().block_bytes, 0);
	uint64_t n_read = world_metric("bytes_loaded");
	check(path, 1);
	ck_assert_str_eq(state_of("one.safetensors"), "ready");
	ck_assert_uint_eq(world_metric("bytes_loaded"), n_read);
	ck_assert_uint_eq(world_metric("models_promoted"), 1);
	/* Its copy stays, and serves again. */
	ck_assert_uint_eq(world_copy_bytes(), N_BYTES);
	evict_by_pressure();
	check(path, 1);
	ck_assert_uint_eq(world_metric("blocks_copied"), 1);
	ck_assert_uint_eq(world_metric("models_demoted"), 2);
}
END_TEST

/* A copy that nobody needs is cache; of a demoted model it is all that there is. */
START_TEST(the_tier_and_the_model_tell_what_host_memory_has)
{
	begin_with(CONFIG);
	const char *path = world_write_model("one.safetensors", N_BYTES, 1);
	struct glake_model *model = open_model(path);
	world_wait_metric("blocks_copied", 1);
	ck_assert_uint_eq(find("one.safetensors")->copied_bytes, N_BYTES);
	ck_assert_uint_eq(world_host().cached_copy_bytes, N_BYTES);
	glake_model_close(model);
	evict_by_pressure();
	ck_assert_uint_eq(find("one.safetensors")->copied_bytes, N_BYTES);
	ck_assert_uint_eq(world_host().model_copy_bytes, N_BYTES);
	ck_assert_uint_eq(world_host().cached_copy_bytes, 0);
	check(path, 1);
	ck_assert_uint_eq(world_host().model_copy_bytes, 0);
	ck_assert_uint_eq(world_host().cached_copy_bytes, N_BYTES);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(world_host().cached_copy_bytes, 0);
	ck_assert_uint_eq(world_copy_bytes(), 0);
}
END_TEST

START_TEST(models_take_turns_on_a_device_that_is_too_small)
{
	const char *paths[6];
	begin_with(CONFIG);
	for (unsigned i = 0; i < 6; i++) {
		char name[32];
		snprintf(name, sizeof(name), "%u.safetensors", i);
		paths[i] = strdup(load(name, i + 1, i + 1));
	}
	uint64_t n_read = world_metric("bytes_loaded");
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 6; i++) {
			check(paths[i], i + 1);
		}
	}
	ck_assert_uint_eq(world_metric("bytes_loaded"), n_read);
	ck_assert_uint_gt(world_metric("models_promoted"), 6);
	for (unsigned i = 0; i < 6; i++) {
		free((char *)paths[i]);
	}
}
END_TEST

/* The one that was used least lately is forgotten. */
START_TEST(host_memory_that_is_full_keeps_what_was_used_lately)
{
	begin_with(CONFIG "host_bytes = \"48MiB\"; ");
	const char *one = load("one.safetensors", 1, 1);
	const char *two = load("two.safetensors", 2, 2);
	evict_by_pressure();
	ck_assert_str_eq(state_of("one.safetensors"), "host");
	check(one, 1);
	evict_by_pressure();
	load("three.safetensors", 3, 3);
	ck_assert_uint_le(world_copy_bytes(), 48 * MIB);
	ck_assert_str_eq(state_of("two.safetensors"), "");
	ck_assert_str_eq(state_of("one.safetensors"), "host");
	evict_by_pressure();
	ck_assert_str_eq(state_of("three.safetensors"), "host");
	check(two, 2);
	check(one, 1);
}
END_TEST

START_TEST(a_model_that_does_not_fit_host_memory_is_forgotten_as_before)
{
	begin_with(CONFIG "host_bytes = \"16MiB\"; ");
	const char *path = world_write_model("one.safetensors", N_BYTES, 1);
	glake_model_close(open_model(path));
	evict_by_pressure();
	ck_assert_str_eq(state_of("one.safetensors"), "");
	ck_assert_uint_eq(world_copy_bytes(), 0);
	check(path, 1);
}
END_TEST

START_TEST(what_an_operator_evicts_is_gone_from_host_memory_too)
{
	begin_with(CONFIG);
	const char *one = load("one.safetensors", 1, 1);
	load("two.safetensors", 2, 2);
	evict_by_pressure();
	assert_ok(glake_evict(eye, one, NULL, NULL));
	ck_assert_str_eq(state_of("one.safetensors"), "");
	ck_assert_str_eq(state_of("two.safetensors"), "host");
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_str_eq(state_of("two.safetensors"), "");
}
END_TEST

/* Copies are cache. */
START_TEST(memory_of_programs_comes_before_copies)
{
	const struct glake__chunks_at wanted = {
		.is_host = true, .n_chunks = 1, .chunk_bytes = 32 * MIB, .last_bytes = 32 * MIB};
	struct glake__wait wait = {0};
	uint64_t id;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	begin_with(CONFIG "host_bytes = \"48MiB\"; ");
	load("one.safetensors", 1, 1);
	const char *two = load("two.safetensors", 2, 2);
	evict_by_pressure();
	assert_ok(glake__rpc_chunk_alloc_at(session, &wanted, 1, &wait, &id, &fds));
	ck_assert_uint_eq(world_copy_bytes(), 0);
	check(two, 2);
	assert_ok(glake__rpc_chunk_free(session, &id, 1));
}
END_TEST

static int take_made(void *user, const struct glake_status *status)
{
	*(uint64_t *)user = status->n_hosts > 0 ? status->hosts[0].copy_bytes : 0;
	return 0;
}

static void wait_made(uint64_t bytes)
{
	uint64_t made = UINT64_MAX;
	for (unsigned i = 0; made != bytes; i++) {
		ck_assert_msg(i < 3000, "%" PRIu64 " bytes", made);
		usleep(10000);
		assert_ok(glake_get_status(eye, take_made, &made));
	}
}

/* When nobody asks for any; and programs get all of it. */
START_TEST(host_memory_is_made_ahead)
{
	const struct glake__chunks_at wanted = {
		.is_host = true, .n_chunks = 1, .chunk_bytes = 48 * MIB, .last_bytes = 48 * MIB};
	struct glake__wait wait = {0};
	uint64_t id;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	begin_with(CONFIG "host_bytes = \"48MiB\"; ");
	harness_reload(&harness, CONFIG "host_bytes = \"48MiB\"; host_ready_bytes = \"32MiB\"; ");
	wait_made(32 * MIB);
	ck_assert_uint_eq(world_copy_bytes(), 0);
	assert_ok(glake__rpc_chunk_alloc_at(session, &wanted, 1, &wait, &id, &fds));
	wait_made(0);
	assert_ok(glake__rpc_chunk_free(session, &id, 1));
	wait_made(32 * MIB);
	harness_reload(&harness, CONFIG "host_bytes = \"48MiB\"; ");
	wait_made(0);
}
END_TEST

/* ---- bad days ---------------------------------------------------------------------------------- */

/* One model, which only host memory has. */
static const char *demote_one(const char *config)
{
	begin_with(config);
	const char *path = load("one.safetensors", 1, 1);
	evict_by_pressure();
	ck_assert_str_eq(state_of("one.safetensors"), "host");
	return path;
}

START_TEST(nobody_gets_a_damaged_copy)
{
	struct glake_model *model;
	const char *path = demote_one(CONFIG);
	world_damage_copies();
	assert_fails(GLAKE_E_BUSY, "damaged: open it again",
	             glake_model_open(session, path, NULL, &model));
	ck_assert_str_eq(state_of("one.safetensors"), "");
	ck_assert_uint_eq(world_copy_bytes(), 0);
	/* From its file, and copied again. */
	check(path, 1);
	world_wait_metric("blocks_copied", 2);
}
END_TEST

START_TEST(a_mover_that_dies_copying_costs_the_copy)
{
	begin_with(CONFIG);
	world_set_faults("glake-mover/cuMemcpyDtoDAsync:1:die");
	const char *path = world_write_model("one.safetensors", N_BYTES, 1);
	glake_model_close(open_model(path));
	world_wait_metric("mover_deaths", 1);
	world_set_faults(NULL);
	ck_assert_uint_eq(world_copy_bytes(), 0);
	load("two.safetensors", 2, 1);
	evict_by_pressure();
	ck_assert_str_eq(state_of("one.safetensors"), "");
	ck_assert_str_eq(state_of("two.safetensors"), "host");
	check(path, 1);
}
END_TEST

/* @rules: of what the mover does on the way back. */
static void fail_on_the_way_back(const char *rules, int code)
{
	struct glake_model *model;
	const char *path = demote_one(CONFIG);
	world_set_faults(rules);
	int r = glake_model_open(session, path, NULL, &model);
	ck_assert_msg(r == code, "%d: %s", r, glake_error());
	world_set_faults(NULL);
	ck_assert_str_eq(state_of("one.safetensors"), "host");
	ck_assert_uint_eq(world_books().block_bytes, 0);
	check(path, 1);
	ck_assert_uint_eq(world_metric("models_promoted"), 1);
}

START_TEST(a_mover_that_dies_on_the_way_back_costs_an_open)
{
	fail_on_the_way_back("glake-mover/cuMemcpyDtoDAsync:1+:die", GLAKE_E_MOVER);
}
END_TEST

START_TEST(a_driver_that_does_not_map_costs_an_open)
{
	fail_on_the_way_back("glake-mover/cuMemMap:1+:fail=2", GLAKE_E_NO_DEVICE_MEMORY);
}
END_TEST

START_TEST(there_is_no_room_for_it_on_the_device)
{
	glake_ptr ptr;
	struct glake_model *model;
	const char *path = demote_one(CONFIG);
	assert_ok(glake_alloc(session, 0, ROOM_BYTES, 0, &ptr));
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "", glake_model_open(session, path, NULL, &model));
	ck_assert_str_eq(state_of("one.safetensors"), "host");
	assert_ok(glake_free(session, ptr));
	assert_ok(glake_trim(session, 0, 0));
	check(path, 1);
}
END_TEST

START_TEST(a_quota_forbids_it)
{
	struct glake_model *model;
	const char *path = demote_one(CONFIG "tenants = ( { name = \"default\"; } );");
	assert_ok(glake_set_quota(eye, "default", 0, 8 * MIB));
	assert_fails(GLAKE_E_OVER_QUOTA, "", glake_model_open(session, path, NULL, &model));
	ck_assert_str_eq(state_of("one.safetensors"), "host");
	assert_ok(glake_set_quota(eye, "default", 0, 0));
	check(path, 1);
}
END_TEST

/* ---- several ----------------------------------------------------------------------------------- */

/* Without the driver, which the test's process has. */
static void open_it(void *path)
{
	struct glake_model *model;
	struct glake_session *own = world_connect_blind();
	assert_ok(world_open_unmapped(own, path, &model));
	glake_model_close(model);
	world_disconnect(own);
}

/* They wait for one promotion, or get its model. */
START_TEST(who_opens_it_at_the_same_time_waits_for_the_same_copy)
{
	pid_t clients[4];
	const char *path = demote_one(CONFIG);
	world_set_faults("glake-mover/cuMemcpyDtoDAsync:1:slow=300");
	for (unsigned i = 0; i < 4; i++) {
		clients[i] = world_client(open_it, (void *)path);
	}
	for (unsigned i = 0; i < 4; i++) {
		world_join(clients[i]);
	}
	ck_assert_uint_eq(world_metric("models_promoted"), 1);
}
END_TEST

START_TEST(a_client_that_dies_waiting_leaves_it_in_host_memory)
{
	const char *path = demote_one(CONFIG);
	world_set_faults("glake-mover/cuMemcpyDtoDAsync:1+:slow=1000");
	pid_t client = world_client(open_it, (void *)path);
	while (strcmp(state_of("one.safetensors"), "loading") != 0) {
		usleep(1000);
	}
	world_kill(client);
	while (strcmp(state_of("one.safetensors"), "host") != 0) {
		usleep(1000);
	}
	world_set_faults(NULL);
	check(path, 1);
}
END_TEST

/* A tensor that both have is one block, and one copy. */
START_TEST(models_with_equal_tensors_share_a_copy)
{
	begin_with(CONFIG);
	const char *one = load("one.safetensors", 1, 1);
	const char *same = world_write_model("same.safetensors", N_BYTES, 1);
	glake_model_close(open_model(same));
	ck_assert_uint_eq(world_copy_bytes(), N_BYTES);
	evict_by_pressure();
	ck_assert_str_eq(state_of("one.safetensors"), "host");
	ck_assert_str_eq(state_of("same.safetensors"), "host");
	check(one, 1);
	ck_assert_str_eq(state_of("same.safetensors"), "host");
	check(same, 1);
	ck_assert_uint_eq(world_copy_bytes(), N_BYTES);
	ck_assert_uint_eq(world_metric("blocks_copied"), 1);
}
END_TEST

/* A model that is in host memory already comes back from there. */
START_TEST(it_can_be_switched_off_while_glaked_runs)
{
	const char *path = demote_one(CONFIG);
	harness_reload(&harness, WORLD_CONFIG "trust_file_times = true; ");
	check(path, 1);
	evict_by_pressure();
	ck_assert_str_eq(state_of("one.safetensors"), "");
	check(path, 1);
}
END_TEST

/* ---- published weights ------------------------------------------------------------------------ */

/* The publisher does not keep them. */
static void publish(uint64_t content)
{
	glake_ptr ptr = words_alloc(session, N_BYTES, content);
	const struct glake_tensor tensor = {.size = sizeof(tensor),
	                                    .name = "w",
	                                    .dtype = GLAKE_U64,
	                                    .n_dims = 1,
	                                    .shape = &(uint64_t){N_BYTES / 8},
	                                    .ptr = ptr};
	assert_ok(glake_weights_publish(session, "key", &tensor, 1, NULL, NULL));
	assert_ok(glake_free(session, ptr));
}

static void publish_and_demote(uint64_t content, uint64_t n_copied)
{
	publish(content);
	world_wait_metric("blocks_copied", n_copied);
	evict_by_pressure();
	ck_assert_str_eq(state_of("key"), "host");
	ck_assert_uint_eq(world_books().block_bytes, 0);
}

static void check_weights(struct glake_session *own, uint64_t content)
{
	struct glake_model *model;
	assert_ok(glake_weights_attach(own, "key", NULL, &model));
	words_check(world_tensor(model, "w").ptr, N_BYTES, content);
	glake_model_close(model);
}

START_TEST(published_weights_come_back_from_host_memory)
{
	begin_with(CONFIG);
	words_open_driver();
	publish_and_demote(7, 1);
	check_weights(session, 7);
	ck_assert_str_eq(state_of("key"), "ready");
	ck_assert_uint_eq(world_metric("models_promoted"), 1);
	/* And once more, from the same copy. */
	evict_by_pressure();
	ck_assert_str_eq(state_of("key"), "host");
	check_weights(session, 7);
	ck_assert_uint_eq(world_metric("blocks_copied"), 1);
	evict_by_pressure();
	assert_ok(glake_evict(eye, "key", NULL, NULL));
	ck_assert_int_eq(glake_weights_attach(session, "key", NULL, &(struct glake_model *){0}),
	                 GLAKE_E_NOT_FOUND);
}
END_TEST

START_TEST(weights_in_host_memory_that_are_published_anew_are_forgotten)
{
	begin_with(CONFIG);
	words_open_driver();
	publish_and_demote(7, 1);
	publish(8);
	ck_assert_str_eq(state_of("key"), "ready");
	check_weights(session, 8);
	/* Equal weights, published once more, are the same model. */
	publish(8);
	check_weights(session, 8);
	/* Nobody takes what is in host memory for it. */
	world_wait_metric("blocks_copied", 2);
	evict_by_pressure();
	publish(8);
	check_weights(session, 8);
	ck_assert_str_eq(state_of("key"), "ready");
}
END_TEST

static void *attach_old(void *own)
{
	CUcontext context;
	ck_assert_int_eq(drv.cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSetCurrent(context), CUDA_SUCCESS);
	check_weights(own, 7);
	return NULL;
}

/* Who asked before has the old ones. */
START_TEST(weights_that_are_published_anew_while_they_come_back)
{
	pthread_t thread;
	begin_with(CONFIG);
	words_open_driver();
	struct glake_session *other = world_connect();
	publish_and_demote(7, 1);
	glake_ptr ptr = words_alloc(session, N_BYTES, 8);
	words_seal(ptr, N_BYTES);
	world_set_faults("glake-mover/cuMemcpyDtoDAsync:1+:slow=1000");
	ck_assert_int_eq(pthread_create(&thread, NULL, attach_old, other), 0);
	while (strcmp(state_of("key"), "loading") != 0) {
		usleep(1000);
	}
	publish(8);
	world_set_faults(NULL);
	pthread_join(thread, NULL);
	check_weights(session, 8);
	assert_ok(glake_free(session, ptr));
	ck_assert_uint_eq(world_metric("models_promoted"), 1);
}
END_TEST

/* ---- the end ----------------------------------------------------------------------------------- */

START_TEST(glaked_ends_with_models_in_host_memory)
{
	demote_one(CONFIG);
	world_disconnect(session);
	world_stop();
}
END_TEST

START_TEST(glaked_ends_while_it_copies)
{
	begin_with(CONFIG);
	world_set_faults("glake-mover/cuMemcpyDtoDAsync:1+:slow=500");
	const char *path = world_write_model("one.safetensors", N_BYTES, 1);
	glake_model_close(open_model(path));
	world_disconnect(session);
	world_stop();
}
END_TEST

/* The books do not have it: it is loaded from its file. */
START_TEST(a_restart_forgets_host_memory)
{
	world_begin(.config = CONFIG, .devices = DEVICES, .has_keeper = true, .speed = 20);
	world_open_driver();
	session = world_connect();
	const char *path = load("one.safetensors", 1, 1);
	load("two.safetensors", 2, 2);
	evict_by_pressure();
	harness_kill(&harness);
	harness_restart(&harness);
	ck_assert_str_eq(state_of("one.safetensors"), "");
	check(path, 1);
}
END_TEST
