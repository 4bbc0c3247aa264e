/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL, in the middle of things, of each: the mover, a client, the keeper, and glaked once. Who is left
 * is told, goes on, and has what he had; what the dead one had is back. test_restart.c and test_kept.c kill glaked again and again.
 */
#include "tests/harness/models.h"
#include "tests/harness/world.h"

#define SEED 9

static int note_event(void *user, const struct glake_event_row *row)
{
	struct glake_event_row *event = user;
	*event = *row;
	ck_assert(strstr(row->text, "signal 9"));
	ck_assert_str_eq(row->kind, "mover_failed");
	return 0;
}

/* Room for one of our models, and not for two. */
static const struct harness_options one_model = {
	.config = WORLD_CONFIG,
	.devices = "1x72MiB",
	.env = WORLD_SMALL_STEPS,
};

/* The stage is how many clients are in the middle of a load. */
static void on_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	static bool is_counted;
	if (done_bytes > 0 && !is_counted) {
		is_counted = true;
		atomic_fetch_add(world_stage, 1);
	}
}

static int open_with_progress(struct glake_session *session, const char *path, int no_map,
                              struct glake_model **model_out)
{
	struct glake_model_options options = {
		.size = sizeof(options), .no_map = no_map, .progress = on_progress};
	return glake_model_open(session, path, &options, model_out);
}

static void wait_dead(pid_t pid)
{
	pid_t parent;
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (world_state_of(pid, &parent) != 'Z') {
		ck_assert_msg(harness_now_ms() < end_ms, "%d lives on", (int)pid);
		harness_sleep_ms(10);
	}
}

static void load_without_mover(void *user)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_fails(GLAKE_E_MOVER, "signal 9", open_with_progress(session, user, 1, &model));
	assert_ok(glake_ping(session));
}

static void load_without_keeper(void *user)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_fails(GLAKE_E_MOVER, "glake-keeper", open_with_progress(session, user, 1, &model));
}

static void load_mapped(void *user)
{
	struct glake_model *model;
	struct glake_session *session = world_connect();
	int r = open_with_progress(session, user, 0, &model);
	ck_assert_msg(r == 0, "%s", glake_error());
	ck_assert(world_has_layers(session, model, SEED));
}

/* ---- the mover ------------------------------------------------------------------------------- */

START_TEST(the_mover_is_killed_in_a_load)
{
	world_begin_as(&one_model);
	world_start_mover();
	const char *path = world_write_layers("m.safetensors", SEED);
	pid_t mover = world_running_mover();
	world_set_faults(WORLD_STOP_AND_GO);
	pid_t client = world_client(load_without_mover, (void *)path);
	world_await(1);
	ck_assert_int_eq(kill(mover, SIGKILL), 0);
	world_set_faults(NULL);
	world_join(client);
	ck_assert_uint_eq(world_metric("mover_deaths"), 1);
	ck_assert_uint_eq(world_metric("models_failed"), 1);
	struct glake_event_row event = {0};
	assert_ok(glake_list_events(eye, note_event, &event));
	ck_assert_uint_eq(event.id, 1);
	ck_assert_int_eq((pid_t)event.pid, mover);
	struct books books = world_books();
	ck_assert_uint_eq(books.n_models, 0);
	ck_assert_uint_eq(books.physical_bytes, books_before.physical_bytes);
	/* A new one comes when it is wanted; there is room for it only if the memory is back. */
	world_join(world_client(load_mapped, (void *)path));
	ck_assert_int_ne(world_running_mover(), mover);
	ck_assert_uint_eq(world_metric("mover_starts"), 2);
}
END_TEST

/* The parent of movers: they go with it, and there is another one soon. */
START_TEST(the_keeper_is_killed_in_a_load)
{
	struct glake_model *model;
	world_begin_as(&one_model);
	world_start_mover();
	const char *path = world_write_layers("m.safetensors", SEED);
	pid_t mover = world_running_mover();
	pid_t keeper = world_parent_of(mover);
	ck_assert_int_eq(world_parent_of(keeper), harness.pid);
	world_set_faults(WORLD_STOP_AND_GO);
	pid_t client = world_client(load_without_keeper, (void *)path);
	world_await(1);
	ck_assert_int_eq(kill(keeper, SIGTERM), 0);
	ck_assert_int_eq(kill(keeper, SIGKILL), 0);
	world_set_faults(NULL);
	world_join(client);
	wait_dead(mover);
	world_wait_books(&books_before);
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, path, &model));
	ck_assert_int_ne(world_parent_of(world_running_mover()), keeper);
	ck_assert_int_eq(world_parent_of(world_parent_of(world_running_mover())), harness.pid);
}
END_TEST

/* By itself, at whatever call of the driver. */
START_TEST(the_mover_dies_anywhere)
{
	static const char *const calls[] = {
		"cuInit:1",           "cuDevicePrimaryCtxRetain:1",
		"cuMemHostAlloc:1",   "cuMemImportFromShareableHandle:2",
		"cuMemMap:2",         "cuMemSetAccess:3",
		"cuLaunchKernel:2",   "cuMemcpyHtoDAsync_v2:5",
		"cuEventRecord:1",    "cuMemUnmap:1",
		"cuMemAddressFree:1", "cuMemcpyDtoHAsync_v2:1",
	};
	char faults[128];
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB");
	world_start_mover();
	const char *path = world_write_model("m.safetensors", 20 * MIB, SEED);
	struct glake_session *session = world_connect_blind();
	unsigned n_deaths = 0;
	for (size_t i = 0; i < n_elements(calls); i++) {
		struct glake_model *model;
		/* So that it is the new one that dies. */
		kill(world_running_mover(), SIGKILL);
		world_wait_metric("mover_deaths", 2 * n_deaths + 1 + (i - n_deaths));
		snprintf(faults, sizeof(faults), "glake-mover/%s:die", calls[i]);
		world_set_faults(faults);
		int r = world_open_unmapped(session, path, &model);
		ck_assert_msg(r == 0 || r == GLAKE_E_MOVER, "%s: %d %s", faults, r, glake_error());
		world_set_faults(NULL);
		if (r == GLAKE_E_MOVER) {
			n_deaths++;
			assert_ok(world_open_unmapped(session, path, &model));
		}
		glake_model_close(model);
		assert_ok(glake_evict(eye, NULL, NULL, NULL));
		ck_assert_uint_eq(world_books().block_bytes, 0);
	}
	ck_assert_uint_ge(n_deaths, 6);
}
END_TEST

/* ---- a client -------------------------------------------------------------------------------- */

static void load_unmapped(void *user)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, user, &model));
}

START_TEST(a_client_is_killed_in_its_load)
{
	struct harness_options options = one_model;
	/* The mover may take longer than a second to let go of the first load. */
	options.config = WORLD_CONFIG "pressure = \"wait\"; wait_ms = 60000;";
	world_begin_as(&options);
	world_start_mover();
	const char *path = world_write_layers("m.safetensors", SEED);
	const char *other = world_write_layers("o.safetensors", SEED + 1);
	pid_t mover = world_running_mover();
	world_set_faults(WORLD_STOP_AND_GO);
	pid_t client = world_client(load_mapped, (void *)path);
	world_await(1);
	world_kill(client);
	/* At once, and of another model: the device has room for one of them only. */
	client = world_client(load_unmapped, (void *)other);
	world_wait_metric("models_failed", 1);
	world_set_faults(NULL);
	world_join(client);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(world_metric("models_failed"), 1);
	ck_assert_uint_eq(world_metric("mover_deaths"), 0);
	ck_assert_int_eq(world_running_mover(), mover);
	world_join(world_client(load_mapped, (void *)path));
}
END_TEST

START_TEST(two_clients_want_the_same_model)
{
	world_begin_as(&one_model);
	const char *path = world_write_layers("m.safetensors", SEED);
	uint64_t n_loaded = world_metric("models_loaded");
	world_set_faults(WORLD_STOP_AND_GO);
	pid_t first = world_client(load_mapped, (void *)path);
	pid_t second = world_client(load_mapped, (void *)path);
	world_await(2);
	world_set_faults(NULL);
	world_join(first);
	world_join(second);
	ck_assert_uint_eq(world_metric("models_loaded"), n_loaded + 1);
	ck_assert_uint_eq(world_books().block_bytes, WORLD_MODEL_BYTES);
}
END_TEST

/* The one who came first, and pays, or the other: who remains gets the model. */
START_TEST_WITH(one_of_two_who_wait_is_killed, .n = 2)
{
	world_begin_as(&one_model);
	const char *path = world_write_layers("m.safetensors", SEED);
	uint64_t n_loaded = world_metric("models_loaded");
	pid_t clients[2];
	world_set_faults(WORLD_STOP_AND_GO);
	clients[0] = world_client(load_mapped, (void *)path);
	world_await(1);
	clients[1] = world_client(load_mapped, (void *)path);
	world_await(2);
	world_kill(clients[_i]);
	world_set_faults(NULL);
	world_join(clients[1 - _i]);
	ck_assert_uint_eq(world_metric("models_loaded"), n_loaded + 1);
	ck_assert_uint_eq(world_metric("models_failed"), 0);
}
END_TEST

/* A client that dies with all it can have, at any time. */
static void have_everything(void *user)
{
	struct glake_session *session = world_connect();
	struct glake_model *model;
	struct glake_block *block;
	glake_ptr ptr = 0;
	for (int round = 1; round <= 3; round++) {
		assert_ok(glake_alloc(session, 0, 20 * MIB, GLAKE_ZERO, &ptr));
		assert_ok(glake_alloc(session, 0, 4 * MIB, GLAKE_ZERO, &ptr));
		assert_ok(glake_block_publish(session, ptr, 3 * MIB, &block));
		assert_ok(glake_model_open(session, user, NULL, &model));
		world_reach(round);
		if (round < 3) {
			glake_model_close(model);
			glake_block_release(block);
			assert_ok(glake_trim(session, 0, 0));
		}
	}
	pause();
}

START_TEST(a_client_is_killed_with_all_it_has)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x512MiB");
	const char *path = world_write_model("m.safetensors", 30 * MIB, SEED);
	for (unsigned i = 0; i < 8; i++) {
		world_reach(0);
		pid_t client = world_client(have_everything, (void *)path);
		harness_sleep_ms(7 * i);
		world_kill(client);
		world_assert_level();
	}
	world_reach(0);
	pid_t client = world_client(have_everything, (void *)path);
	world_await(3);
	world_kill(client);
}
END_TEST

/* ---- glaked ---------------------------------------------------------------------------------- */

static void lose_the_daemon(void *user)
{
	struct glake_model *model;
	struct glake_model *other;
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, world_path("open.safetensors"), NULL, &model));
	assert_fails(GLAKE_E_GONE, "", open_with_progress(session, user, 0, &other));
	/* The program keeps what it has. */
	ck_assert(world_is_content(session, world_tensor(model, "w").ptr, MIB, SEED, 0));
	assert_fails(GLAKE_E_GONE, "", glake_ping(session));
	ck_assert(world_is_content(session, world_tensor(model, "w").ptr, MIB, SEED, 0));
	world_disconnect(session);
	struct glake_session *again;
	/* glaked may not be dead to the last of its fds yet, and take the connection. */
	assert_fails(GLAKE_E_GONE, "", glake_connect(NULL, &again));
}

START_TEST(glaked_is_killed_in_a_load)
{
	world_begin_as(&one_model);
	world_start_mover();
	const char *path = world_write_layers("m.safetensors", SEED);
	world_write_model("open.safetensors", MIB, SEED);
	pid_t mover = world_running_mover();
	world_set_faults(WORLD_STOP_AND_GO);
	pid_t client = world_client(lose_the_daemon, (void *)path);
	world_await(1);
	harness_kill(&harness);
	world_set_faults(NULL);
	world_join(client);
	wait_dead(mover);
	/* The next one finds a device that is empty. */
	world_restart();
	world_join(world_client(load_mapped, (void *)path));
}
END_TEST
