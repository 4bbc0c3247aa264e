/* SPDX-License-Identifier: Apache-2.0 */
/* The client library against the real daemon: models, from file to mapped bytes. */
#include <math.h>
#include <pthread.h>

#include "tests/harness/models.h"
#include "tests/harness/world.h"

#define CONFIG "max_requests_in_flight = 16;"

/* ---- files ------------------------------------------------------------------------------------ */

/* Deterministic bytes of a tensor: known from its name and length alone. */
TEST_BYTE_LOOP static void make_bytes(const char *name, uint8_t *bytes, size_t n_bytes)
{
	uint64_t state = 0x243F6A8885A308D3ull;
	for (const char *at = name; *at; at++) {
		state = (state ^ (uint8_t)*at) * 0x100000001B3ull;
	}
	for (size_t i = 0; i < n_bytes; i++) {
		state = state * 6364136223846793005ull + 1442695040888963407ull;
		bytes[i] = (uint8_t)(state >> 56);
	}
}

struct entry {
	const char *name;
	const char *dtype;
	const char *shape;
	size_t n_bytes;
};

static void write_model(const char *file, const struct entry *entries, size_t n_entries)
{
	size_t n_total = 0;
	size_t n_header = 0;
	char *header = calloc(n_entries + 1, 256);
	n_header += (size_t)sprintf(header, "{");
	for (size_t i = 0; i < n_entries; i++) {
		n_header += (size_t)sprintf(header + n_header,
		                            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],"
		                            "\"data_offsets\":[%zu,%zu]}",
		                            i ? "," : "", entries[i].name, entries[i].dtype,
		                            entries[i].shape, n_total,
		                            n_total + entries[i].n_bytes);
		n_total += entries[i].n_bytes;
	}
	n_header += (size_t)sprintf(header + n_header, "}");
	while (n_header % 8) {
		header[n_header++] = ' ';
	}
	uint8_t *bytes = malloc(8 + n_header + n_total);
	uint64_t length = n_header;
	memcpy(bytes, &length, 8);
	memcpy(bytes + 8, header, n_header);
	uint8_t *at = bytes + 8 + n_header;
	for (size_t i = 0; i < n_entries; i++) {
		make_bytes(entries[i].name, at, entries[i].n_bytes);
		at += entries[i].n_bytes;
	}
	world_write_file(file, bytes, 8 + n_header + n_total);
	free(bytes);
	free(header);
}

static const struct entry small_model[] = {
	{"z.weight", "F32", "16,4", 256},  {"a.bias", "BF16", "3", 6},
	{"empty", "F16", "0,7", 0},        {"scalar", "I64", "", 8},
	{"big", "U8", "3145729", 3145729}, {"fp8", "F8_E4M3", "5,5", 25},
};
#define N_SMALL (sizeof(small_model) / sizeof(small_model[0]))

/* Every tensor is there, under its name, with the bytes that were written. */
static void check_bytes(struct glake_session *session, struct glake_model *model,
                        const struct entry *entries, size_t n_entries)
{
	for (size_t i = 0; i < n_entries; i++) {
		struct glake_tensor tensor = {.size = sizeof(tensor)};
		assert_ok(glake_model_tensor(model, entries[i].name, &tensor));
		ck_assert_str_eq(tensor.name, entries[i].name);
		ck_assert_str_eq(glake_dtype_name(tensor.dtype), entries[i].dtype);
		ck_assert_uint_eq(tensor.bytes, entries[i].n_bytes);
		if (entries[i].n_bytes == 0) {
			ck_assert_uint_eq(tensor.ptr, 0);
			continue;
		}
		uint8_t *expected = malloc(entries[i].n_bytes);
		uint8_t *got = malloc(entries[i].n_bytes);
		make_bytes(entries[i].name, expected, entries[i].n_bytes);
		assert_ok(glake_read(session, 0, got, tensor.ptr, entries[i].n_bytes));
		ck_assert(same_bytes(got, expected, entries[i].n_bytes));
		free(expected);
		free(got);
	}
}

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = "2x16GiB");
}
BEGIN_EACH(begin)

/* ---- opening ---------------------------------------------------------------------------------- */

START_TEST_WITH(every_process_gets_the_same_bytes, .timeout_s = TEST_TIMEOUT_S * 10)
{
	write_model("m.safetensors", small_model, N_SMALL);
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	size_t n_fds = world_own_n_fds();
	struct glake_model *first;
	struct glake_model *second;
	assert_ok(glake_model_open(one, world_path("m.safetensors"), NULL, &first));
	assert_ok(glake_model_open(two, world_path("m.safetensors"), NULL, &second));
	ck_assert_int_eq(world_info(first).was_loaded, 0);
	ck_assert_int_eq(world_info(second).was_loaded, 1);
	ck_assert_str_eq(world_info(first).name, world_path("m.safetensors"));
	ck_assert_uint_eq(world_info(first).n_tensors, N_SMALL);
	ck_assert_uint_eq(world_info(first).content_bytes, 256 + 6 + 8 + 3145729 + 25);
	check_bytes(one, first, small_model, N_SMALL);
	check_bytes(two, second, small_model, N_SMALL);
	ck_assert_uint_eq(world_row(one).shared_bytes, world_info(first).mapped_bytes);
	ck_assert_uint_eq(world_usage(one).shared_bytes, world_info(first).mapped_bytes);

	struct glake_tensor tensor = {.size = sizeof(tensor)};
	static const char *const in_order[] = {"a.bias", "big",    "empty",
	                                       "fp8",    "scalar", "z.weight"};
	for (uint64_t i = 0; i < N_SMALL; i++) {
		assert_ok(glake_model_tensor_at(first, i, &tensor));
		ck_assert_str_eq(tensor.name, in_order[i]);
	}
	ck_assert_int_eq(glake_model_tensor_at(first, N_SMALL, &tensor), -ENOENT);
	ck_assert_int_eq(glake_model_tensor(first, "big ", &tensor), -ENOENT);
	assert_ok(glake_model_tensor(first, "scalar", &tensor));
	ck_assert_uint_eq(tensor.n_dims, 0);
	assert_ok(glake_model_tensor(first, "empty", &tensor));
	ck_assert_uint_eq(tensor.n_dims, 2);
	ck_assert_uint_eq(tensor.shape[0], 0);
	ck_assert_uint_eq(tensor.shape[1], 7);

	world_disconnect(one);
	check_bytes(two, second, small_model, N_SMALL);
	glake_model_close(second);
	ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
	ck_assert_uint_eq(world_row(two).n_models, 0);
	/* The simulated driver holds fds of its own for what is mapped; one socket is closed. */
	ck_assert_uint_eq(world_own_n_fds(), n_fds - 1);
}
END_TEST

#define N_MANY 300

/* More blocks than an answer carries fds, and more tensors than one page. */
START_TEST_WITH(long_lists_come_in_pages, .timeout_s = TEST_TIMEOUT_S * 10)
{
	struct entry *entries = calloc(2 * N_MANY, sizeof(*entries));
	char(*names)[128] = calloc(2 * N_MANY, sizeof(*names));
	for (int i = 0; i < N_MANY; i++) {
		sprintf(names[i], "layers.%0100d.weight", i);
		entries[i] = (struct entry){names[i], "U8", "2097152", 2097152};
		sprintf(names[N_MANY + i], "layers.%0100d.bias", i);
		entries[N_MANY + i] = (struct entry){names[N_MANY + i], "U8", "64", 64};
	}
	write_model("many.safetensors", entries, 2 * N_MANY);
	struct glake_session *session = world_connect();
	size_t n_fds = world_own_n_fds();
	struct glake_model *model;
	assert_ok(glake_model_open(session, world_path("many.safetensors"), NULL, &model));
	ck_assert_uint_ge(world_info(model).n_blocks, N_MANY);
	ck_assert_uint_eq(world_info(model).n_tensors, 2 * N_MANY);
	check_bytes(session, model, entries, 2 * N_MANY);
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	const char *previous = "";
	for (uint64_t i = 0; i < 2 * N_MANY; i++) {
		assert_ok(glake_model_tensor_at(model, i, &tensor));
		ck_assert_int_lt(strcmp(previous, tensor.name), 0);
		previous = tensor.name;
	}
	glake_model_close(model);
	ck_assert_uint_eq(world_own_n_fds(), n_fds);

	/* The driver fails in the middle of the second page. */
	world_set_own_faults("cuMemMap:200:fail=1");
	ck_assert_int_eq(glake_model_open(session, world_path("many.safetensors"), NULL, &model),
	                 GLAKE_E_CUDA);
	ck_assert_ptr_nonnull(strstr(glake_error(), "cuMemMap"));
	ck_assert_uint_eq(world_own_n_fds(), n_fds);
	ck_assert_uint_eq(world_row(session).n_models, 0);
	world_set_own_faults("");
	assert_ok(glake_model_open(session, world_path("many.safetensors"), NULL, &model));
	world_disconnect(session);
	free(entries);
	free(names);
}
END_TEST

static size_t count_maps(void)
{
	size_t n_lines = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	for (int c = fgetc(maps); c != EOF; c = fgetc(maps)) {
		n_lines += c == '\n';
	}
	fclose(maps);
	return n_lines;
}

START_TEST_WITH(nothing_remains_of_a_failed_mapping, .timeout_s = TEST_TIMEOUT_S * 10)
{
	static const char *const faults[] = {
		"cuMemImportFromShareableHandle:1:fail=1",
		"cuMemImportFromShareableHandle:2:fail=1",
		"cuMemMap:1:fail=1",
		"cuMemMap:2:fail=2",
		"cuMemSetAccess:1:fail=2",
	};
	write_model("m.safetensors", small_model, N_SMALL);
	struct glake_session *session = world_connect();
	struct glake_model *model;
	/* The first open allocates some things once and for all. */
	assert_ok(glake_model_open(session, world_path("m.safetensors"), NULL, &model));
	glake_model_close(model);
	size_t n_fds = world_own_n_fds();
	size_t n_maps = count_maps();
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		world_set_own_faults(faults[i]);
		ck_assert_msg(glake_model_open(session, world_path("m.safetensors"), NULL,
		                               &model) == GLAKE_E_CUDA,
		              "%s", faults[i]);
		ck_assert_ptr_nonnull(strstr(glake_error(), "CUDA_ERROR"));
		ck_assert_uint_eq(world_own_n_fds(), n_fds);
		ck_assert_uint_eq(world_row(session).n_models, 0);
		ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
	}
	world_set_own_faults("");
	assert_ok(glake_model_open(session, world_path("m.safetensors"), NULL, &model));
	check_bytes(session, model, small_model, N_SMALL);
	glake_model_close(model);
	ck_assert(TEST_SANITIZED || count_maps() <= n_maps + 2);
}
END_TEST

START_TEST_WITH(a_folder_is_its_index_or_its_one_file, .timeout_s = TEST_TIMEOUT_S * 10)
{
	struct glake_session *session = world_connect();
	struct glake_model *model;
	ck_assert_int_eq(glake_model_open(session, harness.folder, NULL, &model), -ENOENT);
	ck_assert_ptr_nonnull(strstr(glake_error(), "model.safetensors"));
	write_model("model.safetensors", small_model, N_SMALL);
	assert_ok(glake_model_open(session, harness.folder, NULL, &model));
	check_bytes(session, model, small_model, N_SMALL);
	glake_model_close(model);

	write_model("one.safetensors", small_model, 2);
	write_model("two.safetensors", small_model + 2, N_SMALL - 2);
	world_write_text("model.safetensors.index.json",
	                 "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {"
	                 "\"z.weight\": \"one.safetensors\", \"a.bias\": \"one.safetensors\","
	                 "\"empty\": \"two.safetensors\", \"scalar\": \"two.safetensors\","
	                 "\"big\": \"two.safetensors\", \"fp8\": \"two.safetensors\"}}");
	assert_ok(glake_model_open(session, harness.folder, NULL, &model));
	ck_assert_uint_eq(world_info(model).n_tensors, N_SMALL);
	check_bytes(session, model, small_model, N_SMALL);
	glake_model_close(model);
	assert_ok(glake_model_open(session, world_path("model.safetensors.index.json"), NULL,
	                           &model));
	ck_assert_uint_eq(world_info(model).n_tensors, N_SMALL);
	glake_model_close(model);

	const char *shards[] = {world_path("one.safetensors"), world_path("two.safetensors")};
	assert_ok(glake_model_open_shards(session, shards, 2, NULL, &model));
	check_bytes(session, model, small_model, N_SMALL);
	glake_model_close(model);
	int fds[2];
	for (int i = 0; i < 2; i++) {
		fds[i] = open(shards[i], O_RDONLY | O_CLOEXEC);
	}
	assert_ok(glake_model_open_fds(session, fds, NULL, 2, NULL, &model));
	check_bytes(session, model, small_model, N_SMALL);
	glake_model_close(model);
	ck_assert_int_ge(fcntl(fds[0], F_GETFD), 0);
	close(fds[0]);
	close(fds[1]);
}
END_TEST

START_TEST_WITH(bad_files_are_named, .timeout_s = TEST_TIMEOUT_S * 10)
{
	struct glake_session *session = world_connect();
	struct glake_model *model;
	size_t n_fds = world_own_n_fds();
	ck_assert_int_eq(glake_model_open(session, world_path("none"), NULL, &model), -ENOENT);
	ck_assert_ptr_nonnull(strstr(glake_error(), "none"));
	ck_assert_int_eq(mkfifo(world_path("fifo"), 0600), 0);
	ck_assert_int_eq(glake_model_open(session, world_path("fifo"), NULL, &model),
	                 GLAKE_E_BAD_FILE);
	ck_assert_int_eq(glake_model_open(session, "/dev/null", NULL, &model), GLAKE_E_BAD_FILE);
	world_write_text("text.safetensors", "this is no model, is it?");
	ck_assert_int_eq(glake_model_open(session, world_path("text.safetensors"), NULL, &model),
	                 GLAKE_E_BAD_FILE);
	ck_assert_ptr_nonnull(strstr(glake_error(), "text.safetensors"));
	const char *paths[] = {world_path("fifo")};
	ck_assert_int_eq(glake_model_open_shards(session, paths, 1, NULL, &model),
	                 GLAKE_E_BAD_FILE);
	ck_assert_int_eq(glake_model_open_shards(session, paths, 0, NULL, &model), -EINVAL);
	ck_assert_uint_eq(world_row(session).n_models, 0);
	ck_assert_uint_eq(world_own_n_fds(), n_fds);
}
END_TEST

struct progress {
	struct glake_session *session;
	uint64_t n_calls;
	uint64_t done_bytes;
	uint64_t total_bytes;
};

static void on_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	struct progress *progress = user;
	progress->n_calls++;
	ck_assert_uint_ge(done_bytes, progress->done_bytes);
	ck_assert_uint_le(done_bytes, total_bytes);
	progress->done_bytes = done_bytes;
	progress->total_bytes = total_bytes;
	/* No lock is held: the library may be called. */
	assert_ok(glake_ping(progress->session));
}

START_TEST_WITH(a_load_tells_its_progress, .timeout_s = TEST_TIMEOUT_S * 10)
{
	struct entry entries[40];
	char names[40][16];
	for (int i = 0; i < 40; i++) {
		sprintf(names[i], "t%d", i);
		entries[i] = (struct entry){names[i], "U8", "2097152", 2097152};
	}
	write_model("m.safetensors", entries, 40);
	struct glake_session *session = world_connect();
	struct progress progress = {.session = session};
	struct glake_model_options options = {
		.size = sizeof(options),
		.progress = on_progress,
		.progress_user = &progress,
		.name = "a name",
	};
	struct glake_model *model;
	assert_ok(glake_model_open(session, world_path("m.safetensors"), &options, &model));
	ck_assert_uint_gt(progress.n_calls, 0);
	ck_assert_str_eq(world_info(model).name, "a name");
}
END_TEST

START_TEST_WITH(a_model_can_be_loaded_without_mapping, .timeout_s = TEST_TIMEOUT_S * 10)
{
	write_model("m.safetensors", small_model, N_SMALL);
	struct glake_model *model;
	assert_ok(world_open_unmapped(world_connect_blind(), world_path("m.safetensors"), &model));
	ck_assert_uint_eq(world_info(model).base, 0);
	ck_assert_uint_eq(world_info(model).mapped_bytes, 0);
	struct glake_tensor tensor = {.size = sizeof(tensor)};
	assert_ok(glake_model_tensor(model, "big", &tensor));
	ck_assert_uint_eq(tensor.ptr, 0);
	ck_assert_uint_eq(tensor.bytes, 3145729);
	glake_model_close(model);
}
END_TEST

struct opener {
	struct glake_session *session;
	const char *path;
	int result;
};

static void *open_and_close(void *argument)
{
	struct opener *opener = argument;
	for (int i = 0; i < 20 && opener->result == 0; i++) {
		struct glake_model *model;
		opener->result = glake_model_open(opener->session, opener->path, NULL, &model);
		if (opener->result == 0) {
			check_bytes(opener->session, model, small_model, N_SMALL);
			glake_model_close(model);
		}
	}
	return NULL;
}

START_TEST_WITH(threads_open_models_through_one_session, .timeout_s = TEST_TIMEOUT_S * 10)
{
	write_model("m.safetensors", small_model, N_SMALL);
	struct glake_session *session = world_connect();
	const char *path = world_path("m.safetensors");
	struct opener openers[4];
	pthread_t threads[4];
	for (int i = 0; i < 4; i++) {
		openers[i] = (struct opener){.session = session, .path = path};
		pthread_create(&threads[i], NULL, open_and_close, &openers[i]);
	}
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		ck_assert_int_eq(openers[i].result, 0);
	}
	ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
	ck_assert_uint_eq(world_row(session).n_models, 0);
}
END_TEST

START_TEST_WITH(a_model_outlives_the_daemon, .timeout_s = TEST_TIMEOUT_S * 10)
{
	write_model("m.safetensors", small_model, N_SMALL);
	struct glake_session *session = world_connect();
	struct glake_model *model;
	assert_ok(glake_model_open(session, world_path("m.safetensors"), NULL, &model));
	harness_kill(&harness);
	check_bytes(session, model, small_model, N_SMALL);
	struct glake_model *other;
	ck_assert_int_eq(glake_model_open(session, world_path("m.safetensors"), NULL, &other),
	                 GLAKE_E_GONE);
	glake_model_close(model);
}
END_TEST

/* Killed at a random moment of an open: gone, or done, never stuck, nothing left. */
START_TEST_WITH(the_daemon_may_die_at_any_time_of_an_open, .timeout_s = TEST_TIMEOUT_S * 10)
{
	struct entry entries[64];
	char names[64][16];
	for (int i = 0; i < 64; i++) {
		sprintf(names[i], "t%d", i);
		entries[i] = (struct entry){names[i], "U8", "2097152", 2097152};
	}
	write_model("m.safetensors", entries, 64);
	for (int round = 0; round < 8; round++) {
		struct glake_session *session = world_connect();
		size_t n_fds = world_own_n_fds();
		pid_t killer = fork();
		if (killer == 0) {
			usleep((useconds_t)(1000u << round) / 2);
			kill(harness.pid, SIGKILL);
			_exit(0);
		}
		struct glake_model *model;
		int r = 0;
		while (r == 0) {
			r = glake_model_open(session, world_path("m.safetensors"), NULL, &model);
			if (r == 0) {
				glake_model_close(model);
			}
		}
		ck_assert_msg(r == GLAKE_E_GONE, "%d: %s", r, glake_error());
		ck_assert_uint_eq(world_own_n_fds(), n_fds);
		ck_assert_uint_eq(world_usage(session).shared_bytes, 0);
		world_disconnect(session);
		waitpid(killer, NULL, 0);
		harness_kill(&harness);
		world_restart();
	}
}
END_TEST

static int count_row(void *user, const struct glake_model_row *row)
{
	ck_assert_str_eq(row->state, "ready");
	++*(int *)user;
	return 0;
}

static int count_block(void *user, const struct glake_block_row *row)
{
	ck_assert_uint_gt(row->chunk_bytes, 0);
	++*(int *)user;
	return *(int *)user == 2 ? 42 : 0;
}

static int count_metric(void *user, const char *name, uint64_t value, const char *help)
{
	ck_assert_uint_gt(strlen(name), 0);
	++*(int *)user;
	return 0;
}

static int check_status(void *user, const struct glake_status *status)
{
	ck_assert_uint_eq(status->pid, (uint64_t)harness.pid);
	ck_assert_uint_eq(status->n_devices, 2);
	ck_assert_uint_gt(status->devices[0].block_bytes, 0);
	++*(int *)user;
	return 0;
}

static int check_tenant(void *user, const struct glake_tenant_row *row)
{
	if (strcmp(row->name, "default") == 0) {
		*(uint64_t *)user = row->devices[1].quota_bytes;
	}
	return 0;
}

START_TEST_WITH(the_store_can_be_seen_and_steered, .timeout_s = TEST_TIMEOUT_S * 10)
{
	write_model("m.safetensors", small_model, N_SMALL);
	struct glake_session *session = world_connect();
	struct glake_model *model;
	assert_ok(glake_model_open(session, world_path("m.safetensors"), NULL, &model));
	int n_seen = 0;
	assert_ok(glake_get_status(session, check_status, &n_seen));
	ck_assert_int_eq(n_seen, 1);
	n_seen = 0;
	assert_ok(glake_get_stats(session, count_metric, &n_seen));
	ck_assert_int_gt(n_seen, 5);
	n_seen = 0;
	assert_ok(glake_list_models(session, count_row, &n_seen));
	ck_assert_int_eq(n_seen, 1);
	n_seen = 0;
	ck_assert_int_eq(glake_list_blocks(session, count_block, &n_seen), 42);

	uint64_t n_models = 0;
	uint64_t n_bytes = 0;
	const char *name = world_path("m.safetensors");
	ck_assert_int_eq(glake_evict(session, name, &n_models, &n_bytes), GLAKE_E_BUSY);
	ck_assert_int_eq(glake_evict(session, "nothing", NULL, NULL), GLAKE_E_NOT_FOUND);
	assert_ok(glake_pin(session, name, 1));
	ck_assert_int_eq(glake_pin(session, "nothing", 1), GLAKE_E_NOT_FOUND);
	glake_model_close(model);
	assert_ok(glake_evict(session, NULL, &n_models, &n_bytes));
	ck_assert_uint_eq(n_models, 0);
	assert_ok(glake_pin(session, name, 0));
	assert_ok(glake_evict(session, NULL, &n_models, &n_bytes));
	ck_assert_uint_eq(n_models, 1);
	ck_assert_uint_gt(n_bytes, 0);

	assert_ok(glake_set_quota(session, "default", 1, 4 * MIB));
	uint64_t quota_bytes = 0;
	assert_ok(glake_list_tenants(session, check_tenant, &quota_bytes));
	ck_assert_uint_eq(quota_bytes, 4 * MIB);
	glake_ptr ptr;
	ck_assert_int_eq(glake_alloc(session, 1, 6 * MIB, 0, &ptr), GLAKE_E_OVER_QUOTA);
	assert_ok(glake_set_max_sessions(session, "default", 1));
	struct glake_session *refused;
	ck_assert_int_eq(glake_connect(NULL, &refused), GLAKE_E_OVER_QUOTA);
}
END_TEST

struct parts {
	uint64_t of_models;
	uint64_t of_sessions;
	double of_devices; /* of sessions, too, and not rounded */
	uint64_t logical_bytes;
	uint64_t physical_bytes;
	uint64_t least_bytes; /* the smallest part of a session that has one */
};

static int add_model_part(void *user, const struct glake_model_row *row)
{
	((struct parts *)user)->of_models += row->part_bytes;
	return 0;
}

static int add_session_part(void *user, const struct glake_session_row *row)
{
	struct parts *parts = user;
	ck_assert_uint_eq(row->sealed_bytes, 0);
	parts->of_sessions += row->part_bytes;
	for (uint32_t i = 0; i < row->n_devices; i++) {
		parts->of_devices += row->devices[i].part_bytes;
	}
	if (row->part_bytes > 0 && (!parts->least_bytes || row->part_bytes < parts->least_bytes)) {
		parts->least_bytes = row->part_bytes;
	}
	return 0;
}

static int add_block_part(void *user, const struct glake_block_row *row)
{
	struct parts *parts = user;
	parts->logical_bytes += row->n_mappings * row->chunk_bytes;
	parts->physical_bytes += row->chunk_bytes;
	return 0;
}

static struct parts parts_now(void)
{
	struct parts parts = {.of_models = 0};
	assert_ok(glake_list_models(eye, add_model_part, &parts));
	assert_ok(glake_list_sessions(eye, add_session_part, &parts));
	assert_ok(glake_list_blocks(eye, add_block_part, &parts));
	return parts;
}

/* A block that is in both models, twice in one, and mapped by three sessions. */
START_TEST_WITH(parts_of_models_and_sessions_are_the_whole, .timeout_s = TEST_TIMEOUT_S * 10)
{
	enum { N = 16 };
	const struct model_tensor base[] = {
		{"a", "U8", 1, {N * MIB}, 1},
		{"b", "U8", 1, {N * MIB}, 2},
		{"c", "U8", 1, {N * MIB}, 1},
	};
	const struct model_tensor tuned[] = {
		{"a", "U8", 1, {N * MIB}, 1},
		{"b", "U8", 1, {N * MIB}, 3},
	};
	struct glake_session *sessions[3];
	struct glake_model *opened[3];
	const char *base_path = world_path("base.safetensors");
	const char *tuned_path = world_path("tuned.safetensors");
	model_file_write(base_path, base, 3);
	model_file_write(tuned_path, tuned, 2);
	for (size_t i = 0; i < 3; i++) {
		sessions[i] = world_connect_blind();
		assert_ok(world_open_unmapped(sessions[i], i < 2 ? base_path : tuned_path,
		                              &opened[i]));
	}
	struct parts parts = parts_now();
	ck_assert_uint_eq(parts.physical_bytes, 3 * N * MIB);
	ck_assert_uint_eq(parts.logical_bytes, 8 * N * MIB);
	ck_assert_uint_eq(parts.of_models, 3 * N * MIB);
	ck_assert_uint_le(parts.of_sessions, 3 * N * MIB + 3);
	ck_assert_uint_ge(parts.of_sessions, 3 * N * MIB - 3);
	ck_assert(fabs(parts.of_devices - 3 * N * MIB) < 0.01);
	/* Two of five places, and a half of the other block. */
	ck_assert_uint_eq(parts.least_bytes, (2 * N * MIB + 2) / 5 + N * MIB / 2);
	glake_model_close(opened[0]);
	glake_model_close(opened[2]);
	parts = parts_now();
	ck_assert_uint_eq(parts.logical_bytes, 3 * N * MIB);
	ck_assert_uint_eq(parts.of_sessions, 2 * N * MIB);
	ck_assert(fabs(parts.of_devices - 2 * N * MIB) < 0.01);
	glake_model_close(opened[1]);
	ck_assert_uint_eq(parts_now().logical_bytes, 0);
}
END_TEST
