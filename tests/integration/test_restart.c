/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glaked ends, in any way, or is killed again and again, and another one begins: what there was is there. The service manager keeps the fds
 * (fdkeeper.h), and the socket.
 */
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>

#include "proto/clock.h"
#include "tests/harness/connection.h"
#include "tests/harness/models.h"
#include "tests/harness/proxy.h"
#include "tests/harness/words.h"
#include "tests/harness/world.h"

#define CONFIG WORLD_CONFIG "tenants = ( { name = \"default\"; device_bytes = \"3GiB\"; } );"
#define DEVICES "1x8GiB"

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = DEVICES, .is_activated = true, .keeps_fds = true);
}

static void kill_glaked(void)
{
	harness_kill(&harness);
}

static void end_glaked(void)
{
	harness_leave(&harness);
}

static void crash_glaked(void)
{
	harness_signal(&harness, SIGSEGV);
	harness_wait_exit(&harness);
}

/* By the number of the test. */
static void (*const ends[])(void) = {kill_glaked, end_glaked, crash_glaked};

/* ---- what there is, as text ------------------------------------------------------------------- */

struct listing {
	char text[65536];
	size_t n_bytes;
};

__attribute__((format(printf, 2, 3))) static int add_line(struct listing *listing,
                                                          const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	listing->n_bytes += (size_t)vsnprintf(listing->text + listing->n_bytes,
	                                      sizeof(listing->text) - listing->n_bytes, format,
	                                      arguments);
	va_end(arguments);
	ck_assert_uint_lt(listing->n_bytes, sizeof(listing->text));
	return 0;
}

#define U(value) ((unsigned long long)(value))

static int add_session(void *user, const struct glake_session_row *row)
{
	return add_line(user,
	                "session %llu pid %u uid %u '%s' '%s' '%s' %s %s %s: reserved %llu shared "
	                "%llu chunks %u "
	                "models %u sealed %llu part %llu\n",
	                U(row->session), row->pid, row->uid, row->program, row->name, row->script,
	                row->cgroup, row->tenant, row->realm, U(row->reserved_bytes),
	                U(row->shared_bytes), row->n_chunks, row->n_models, U(row->sealed_bytes),
	                U(row->part_bytes));
}

static int add_tenant(void *user, const struct glake_tenant_row *row)
{
	add_line(user, "tenant %s: sessions %u/%u manifests %llu/%llu", row->name, row->n_sessions,
	         row->max_sessions, U(row->manifest_bytes), U(row->quota_manifest_bytes));
	for (uint32_t i = 0; i < row->n_devices; i++) {
		add_line(user, " %llu/%llu", U(row->devices[i].used_bytes),
		         U(row->devices[i].quota_bytes));
	}
	return add_line(user, "\n");
}

static int add_model(void *user, const struct glake_model_row *row)
{
	return add_line(user,
	                "model %llu '%s' %s %s device %u: span %llu content %llu unique %llu part "
	                "%llu tensors %llu blocks %llu open %u%s%s '%s'\n",
	                U(row->id), row->name, row->realm, row->state, row->device,
	                U(row->span_bytes), U(row->content_bytes), U(row->unique_bytes),
	                U(row->part_bytes), U(row->n_tensors), U(row->n_blocks), row->n_open,
	                row->pinned ? " pinned" : "", row->is_published ? " published" : "",
	                row->reload_reason);
}

static int add_block(void *user, const struct glake_block_row *row)
{
	uint64_t digest;
	memcpy(&digest, &row->digest, sizeof(digest));
	return add_line(user, "block %llu %016llx %s: %llu/%llu models %u users %u maps %u\n",
	                U(row->id), U(digest), row->realm, U(row->content_bytes),
	                U(row->chunk_bytes), row->n_models, row->n_users, row->n_mappings);
}

static int add_device(void *user, const struct glake_status *status)
{
	const struct glake_device_status *device = &status->devices[0];
	return add_line(user,
	                "device: physical %llu private %llu block %llu used %llu logical %llu\n",
	                U(device->physical_bytes), U(device->private_bytes), U(device->block_bytes),
	                U(device->used_block_bytes), U(device->logical_bytes));
}

/* The sessions of this program, the eye's among them, have a name, which stays, too. */
__attribute__((constructor)) static void give_name(void)
{
	setenv("GLAKE_NAME", "restarter", 1);
}

static struct listing list(void)
{
	struct listing listing = {.n_bytes = 0};
	assert_ok(glake_list_sessions(eye, add_session, &listing));
	ck_assert_ptr_nonnull(strstr(listing.text, "'restarter'"));
	assert_ok(glake_list_tenants(eye, add_tenant, &listing));
	assert_ok(glake_list_models(eye, add_model, &listing));
	assert_ok(glake_list_blocks(eye, add_block, &listing));
	assert_ok(glake_get_status(eye, add_device, &listing));
	return listing;
}

static void restart(void (*end)(void))
{
	end();
	harness_restart(&harness);
}

/* Everything is listed as before. */
static void restart_unseen(void (*end)(void))
{
	static struct listing before;
	before = list();
	restart(end);
	static struct listing after;
	after = list();
	ck_assert_msg(strcmp(before.text, after.text) == 0, "before:\n%s\nafter:\n%s\n%s",
	              before.text, after.text, harness_log(&harness));
}

/* ---- the store -------------------------------------------------------------------------------- */

static void check_content(void *path)
{
	struct glake_model *model;
	words_open_driver();
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, path, NULL, &model));
	struct glake_tensor tensor = world_tensor(model, "w");
	ck_assert_int_eq(world_info(model).was_loaded, 1);
	ck_assert(world_is_content(session, tensor.ptr, 140 * MIB, 5, 0));
	glake_model_close(model);
	world_disconnect(session);
}

START_TEST_WITH(a_model_of_the_cache_is_not_loaded_again, .n = n_elements(ends))
{
	begin();
	const char *path = world_write_model("model", 140 * MIB, 5);
	world_load(path);
	ck_assert_uint_gt(fdkeeper_n_kept(&harness.fdkeeper), 2);
	restart_unseen(ends[_i]);
	world_join(world_client(check_content, (void *)path));
	ck_assert_uint_eq(world_metric("models_loaded"), 0);
	ck_assert_uint_eq(world_metric("bytes_loaded"), 0);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "evicted"), 0);
	harness_wait_log(&harness, "adopted from");
}
END_TEST

START_TEST(pins_and_limits_stay)
{
	begin();
	const char *path = world_write_model("model", 4 * MIB, 5);
	world_load(path);
	assert_ok(glake_pin(eye, path, 1));
	assert_ok(glake_set_quota(eye, "default", 0, 2 * GIB));
	assert_ok(glake_set_max_sessions(eye, "default", 77));
	restart_unseen(kill_glaked);
	restart_unseen(kill_glaked);
	uint64_t n_models;
	assert_ok(glake_evict(eye, NULL, &n_models, NULL));
	ck_assert_uint_eq(n_models, 0);
	assert_ok(glake_pin(eye, path, 0));
	/* The limits of the file count again as soon as it is read. */
	harness_reload(&harness, CONFIG);
	struct listing listing = list();
	ck_assert_ptr_nonnull(strstr(listing.text, "/3221225472\n"));
	restart_unseen(kill_glaked);
	ck_assert_int_eq(glake_set_max_sessions(eye, "default", 0), 0);
}
END_TEST

static void load_pin_and_leave(void *path)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, path, &model));
	assert_ok(glake_pin(session, path, 1));
	glake_model_close(model);
	world_disconnect(session);
}

static int keep_idle(void *user, const struct glake_model_row *row)
{
	*(uint64_t *)user = row->idle_ms;
	return 0;
}

START_TEST(a_pinned_model_is_unused_since_its_last_user)
{
	uint64_t idle_ms = UINT64_MAX;
	uint64_t began_ms = clock_now_ns() / 1000000;
	begin();
	const char *path = world_write_model("model", 4 * MIB, 5);
	world_join(world_client(load_pin_and_leave, (void *)path));
	restart(kill_glaked);
	assert_ok(glake_list_models(eye, keep_idle, &idle_ms));
	ck_assert_uint_le(idle_ms, clock_now_ns() / 1000000 - began_ms + 1);
	assert_ok(glake_pin(eye, path, 0));
}
END_TEST

static void load_on_second(void *path)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	const struct glake_model_options options = {
		.size = sizeof(options), .no_map = 1, .device = 1};
	assert_ok(glake_model_open(session, path, &options, &model));
	glake_model_close(model);
	world_disconnect(session);
}

static int find_model_device(void *user, const struct glake_model_row *row)
{
	*(uint32_t *)user = row->device;
	return 1;
}

/* The GPUs have other numbers from now on. */
START_TEST(what_is_on_a_device_stays_there_whatever_its_number)
{
	uint32_t device = 9;
	world_begin(.config = CONFIG, .devices = "2x1GiB", .is_activated = true, .keeps_fds = true);
	const char *path = world_write_model("model", 140 * MIB, 5);
	world_join(world_client(load_on_second, (void *)path));
	assert_ok(glake_pin(eye, path, 1));
	assert_ok(glake_set_quota(eye, "default", 1, 2 * GIB));
	harness_kill(&harness);
	FILE *file = fopen(harness.config_path, "ae");
	ck_assert_ptr_nonnull(file);
	fputs("devices = [1, 0];\n", file);
	ck_assert_int_eq(fclose(file), 0);
	harness_restart(&harness);
	ck_assert_int_eq(glake_list_models(eye, find_model_device, &device), 1);
	ck_assert_uint_eq(device, 0);
	struct listing listing = list();
	ck_assert_ptr_nonnull(strstr(listing.text, "/2147483648 "));
	/* The books have the new numbers, too. */
	restart_unseen(kill_glaked);
	restart_unseen(kill_glaked);
	world_join(world_client(check_content, (void *)path));
	ck_assert_uint_eq(world_metric("models_loaded"), 0);
	assert_ok(glake_pin(eye, path, 0));
}
END_TEST

START_TEST(what_was_evicted_stays_so)
{
	begin();
	const char *path = world_write_model("model", 4 * MIB, 5);
	world_load(path);
	size_t n_kept = fdkeeper_n_kept(&harness.fdkeeper);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	world_assert_level();
	restart_unseen(kill_glaked);
	ck_assert_uint_lt(fdkeeper_n_kept(&harness.fdkeeper), n_kept);
	ck_assert_uint_eq(world_books().n_blocks, 0);
}
END_TEST

/* ---- processes -------------------------------------------------------------------------------- */

#define N_CLIENTS 3
#define PRIVATE_BYTES (10 * MIB)
#define SEALED_BYTES (8 * MIB)

/* Everything that a process may have, from before the restart to behind it. */
static void work(void *user)
{
	int number = (int)(intptr_t)user;
	struct glake_model *model;
	struct glake_model *weights;
	struct glake_published published = {.size = sizeof(published)};
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr private = words_alloc(session, PRIVATE_BYTES, (uint64_t)number + 1);
	glake_ptr common = words_alloc(session, SEALED_BYTES, 99);
	const struct glake_tensor tensor = {.size = sizeof(tensor),
	                                    .name = "w",
	                                    .dtype = GLAKE_U64,
	                                    .n_dims = 1,
	                                    .shape = (const uint64_t[]){SEALED_BYTES / 8},
	                                    .ptr = common};
	assert_ok(glake_model_open(session, world_path("model"), NULL, &model));
	assert_ok(glake_weights_publish(session, "engine", &tensor, 1, NULL, &published));
	assert_ok(glake_weights_attach(session, "engine", NULL, &weights));
	glake_ptr w = world_tensor(model, "w").ptr;
	atomic_fetch_add(world_stage, 1);
	world_await(100);

	/* The memory is there all the while. */
	words_check(private, PRIVATE_BYTES, (uint64_t)number + 1);
	words_check(common, SEALED_BYTES, 99);
	words_check(world_tensor(weights, "w").ptr, SEALED_BYTES, 99);
	ck_assert(world_is_content(session, w, 140 * MIB, 5, 0));
	/* And more can be had, and given back. */
	glake_ptr more = words_alloc(session, 6 * MIB, 55);
	words_check(more, 6 * MIB, 55);
	words_write(private, PRIVATE_BYTES, 77);
	words_check(private, PRIVATE_BYTES, 77);
	atomic_fetch_add(world_stage, 1);
	world_await(200);
	glake_free(session, more);
	glake_free(session, private);
	glake_model_close(weights);
	glake_model_close(model);
	glake_free(session, common);
	world_disconnect(session);
}

START_TEST_WITH(processes_go_on, .n = n_elements(ends))
{
	begin();
	pid_t clients[N_CLIENTS];
	world_write_model("model", 140 * MIB, 5);
	for (int i = 0; i < N_CLIENTS; i++) {
		clients[i] = world_client(work, (void *)(intptr_t)i);
	}
	world_await(N_CLIENTS);
	restart_unseen(ends[_i]);
	restart_unseen(ends[_i]);
	world_reach(100);
	world_await(100 + N_CLIENTS);
	restart_unseen(ends[_i]);
	world_reach(200);
	for (int i = 0; i < N_CLIENTS; i++) {
		world_join(clients[i]);
	}
}
END_TEST

#define NAMED_BYTES (70 * MIB)

static void name_memory(void *name)
{
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr memory = words_alloc(session, NAMED_BYTES, 3);
	assert_ok(glake_share(session, memory, name));
	world_reach(1);
	world_await(2);
	glake_free(session, memory);
	world_disconnect(session);
}

static void open_named(void *name)
{
	glake_ptr memory;
	words_open_driver();
	struct glake_session *session = world_connect();
	assert_ok(glake_share_open(session, name, 0, &memory));
	words_check(memory, NAMED_BYTES, 3);
	assert_ok(glake_share_close(session, name, memory));
	world_disconnect(session);
}

/* Somebody has the name, perhaps since before. */
START_TEST_WITH(named_memory_is_still_opened, .n = n_elements(ends))
{
	begin();
	void *name = mmap(NULL, sizeof(struct glake_share), PROT_READ | PROT_WRITE,
	                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(name, MAP_FAILED);
	size_t n_kept = fdkeeper_n_kept(&harness.fdkeeper);
	pid_t client = world_client(name_memory, name);
	world_await(1);
	for (int i = 0; i < 2; i++) {
		restart_unseen(ends[_i]);
		world_join(world_client(open_named, name));
	}
	world_reach(2);
	world_join(client);
	while (fdkeeper_n_kept(&harness.fdkeeper) > n_kept) {
		harness_sleep_ms(1);
	}
}
END_TEST

START_TEST(processes_that_end_meanwhile_leave_nothing)
{
	begin();
	pid_t clients[N_CLIENTS];
	world_write_model("model", 140 * MIB, 5);
	for (int i = 0; i < N_CLIENTS; i++) {
		clients[i] = world_client(work, (void *)(intptr_t)i);
	}
	world_await(N_CLIENTS);
	kill_glaked();
	world_kill(clients[0]);
	harness_restart(&harness);
	harness_wait_log(&harness, "1 sessions have ended while there was no glaked: 1 private "
	                           "chunks (10485760 bytes)");
	/* This one ends without a word as well, after the restart, and the last one later. */
	world_kill(clients[1]);
	world_reach(100);
	world_await(101);
	world_reach(200);
	world_join(clients[2]);
}
END_TEST

/* ---- while there is no glaked ------------------------------------------------------------------ */

/* By the number of the test: connecting waits, or there is nothing to connect to. */
static void lose_glaked(int number)
{
	kill_glaked();
	if (number == 1) {
		ck_assert_int_eq(rename(harness.socket_path, world_path("away")), 0);
	}
}

static void begin_next_glaked(int number)
{
	if (number == 1) {
		ck_assert_int_eq(rename(world_path("away"), harness.socket_path), 0);
	}
	harness_restart(&harness);
}

static void alloc_meanwhile(void *user)
{
	glake_ptr before;
	glake_ptr meanwhile;
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 4 * MIB, 0, &before));
	world_reach(1);
	world_await(2);
	world_reach(3);
	assert_ok(glake_alloc(session, 0, 6 * MIB, 0, &meanwhile));
	struct glake_session_row row = world_row(session);
	ck_assert_uint_eq(row.reserved_bytes, 10 * MIB);
	world_disconnect(session);
}

START_TEST_WITH(an_allocation_waits_for_the_next_glaked, .n = 2)
{
	begin();
	pid_t client = world_client(alloc_meanwhile, NULL);
	world_await(1);
	lose_glaked(_i);
	world_reach(2);
	world_await(3);
	/* The program has surely asked by then. */
	harness_sleep_ms(200);
	begin_next_glaked(_i);
	world_join(client);
}
END_TEST

#define N_MEANWHILE 2100u

/* More than one Hello tells of. */
static void free_meanwhile(void *user)
{
	static uint64_t sizes[N_MEANWHILE];
	static glake_ptr ptrs[N_MEANWHILE];
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < N_MEANWHILE; i++) {
		sizes[i] = 2 * MIB;
	}
	assert_ok(glake_alloc_many(session, 0, sizes, N_MEANWHILE, 0, ptrs));
	world_reach(1);
	world_await(2);
	for (unsigned i = 1; i < N_MEANWHILE; i++) {
		assert_ok(glake_free(session, ptrs[i]));
	}
	assert_ok(glake_trim(session, 0, 0));
	world_reach(3);
	world_await(4);
	/* A session looks for the next glaked for five seconds, and a busy machine may need more. */
	while (glake_ping(session) == GLAKE_E_GONE) {
		harness_sleep_ms(10);
	}
	ck_assert_uint_eq(world_row(session).reserved_bytes, 2 * MIB);
	ck_assert_uint_eq(world_usage(session).reserved_bytes, 2 * MIB);
	world_disconnect(session);
}

START_TEST_WITH(what_is_freed_meanwhile_is_free, .n = 2)
{
	begin();
	assert_ok(glake_set_quota(eye, "default", 0, 0));
	pid_t client = world_client(free_meanwhile, NULL);
	world_await(1);
	lose_glaked(_i);
	world_reach(2);
	world_await(3);
	begin_next_glaked(_i);
	world_reach(4);
	world_join(client);
}
END_TEST

static void open_meanwhile(void *path)
{
	struct glake_model *model;
	words_open_driver();
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, path, NULL, &model));
	ck_assert(world_is_content(session, world_tensor(model, "w").ptr, 20 * MIB, 5, 0));
	glake_model_close(model);
	world_disconnect(session);
}

START_TEST(a_load_that_is_cut_off_begins_anew)
{
	begin();
	const char *path = world_write_model("model", 20 * MIB, 5);
	world_set_faults("glake-mover/cuLaunchKernel:1:slow=300");
	pid_t client = world_client(open_meanwhile, (void *)path);
	world_running_mover();
	kill_glaked();
	harness_restart(&harness);
	world_join(client);
}
END_TEST

/* glaked ends behind the first answer about a draft: the next glaked does not know the draft. */
static atomic_bool is_restart_due;
static atomic_bool was_restarted;

static bool wait_behind_draft(void *user, struct proxy_packet *packet)
{
	Glake__Wire__Answer *answer = packet->is_answer
	                                      ? glake__wire__answer__unpack(NULL, packet->n_bytes,
	                                                                    packet->bytes)
	                                      : NULL;
	bool is_draft = answer && answer->body_case == GLAKE__WIRE__ANSWER__BODY_WEIGHTS_PUBLISH;
	if (answer) {
		glake__wire__answer__free_unpacked(answer, NULL);
	}
	is_restart_due = is_restart_due || is_draft;
	while (is_restart_due && !was_restarted) {
		usleep(1000);
	}
	return true;
}

/* The last page is not all of it, so it is copied when glaked is there again. */
#define PUBLISHED_BYTES (SEALED_BYTES - MIB)

struct publishing {
	struct glake_session *session;
	struct glake_tensor tensor;
};

static void *publish(void *user)
{
	struct publishing *publishing = user;
	assert_ok(glake_weights_publish(publishing->session, "engine", &publishing->tensor, 1, NULL,
	                                NULL));
	return NULL;
}

START_TEST(weights_are_published_over_a_restart)
{
	pthread_t thread;
	struct glake_model *weights;
	begin();
	proxy_start(wait_behind_draft, NULL);
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, SEALED_BYTES, 99);
	const struct glake_span span = {.ptr = ptr, .bytes = PUBLISHED_BYTES};
	struct publishing publishing = {.session = session,
	                                .tensor = {.size = sizeof(publishing.tensor),
	                                           .name = "w",
	                                           .dtype = GLAKE_U64,
	                                           .n_dims = 1,
	                                           .shape = (const uint64_t[]){PUBLISHED_BYTES / 8},
	                                           .ptr = ptr}};
	assert_ok(glake_seal(&span, 1, NULL));
	ck_assert_int_eq(pthread_create(&thread, NULL, publish, &publishing), 0);
	while (!is_restart_due) {
		usleep(1000);
	}
	restart(kill_glaked);
	was_restarted = true;
	pthread_join(thread, NULL);
	assert_ok(glake_weights_attach(session, "engine", NULL, &weights));
	words_check(world_tensor(weights, "w").ptr, PUBLISHED_BYTES, 99);
	glake_model_close(weights);
	glake_free(session, ptr);
}
END_TEST

/* ---- under glake-keeper ------------------------------------------------------------------------ */

START_TEST(processes_go_on_under_glake_keeper)
{
	pid_t clients[N_CLIENTS];
	world_begin(.config = CONFIG, .devices = DEVICES, .has_keeper = true);
	world_write_model("model", 140 * MIB, 5);
	for (int i = 0; i < N_CLIENTS; i++) {
		clients[i] = world_client(work, (void *)(intptr_t)i);
	}
	world_await(N_CLIENTS);
	restart_unseen(kill_glaked);
	world_reach(100);
	world_await(100 + N_CLIENTS);
	/* As for another version. */
	ck_assert_int_eq(kill(harness.keeper, SIGUSR2), 0);
	harness.pid = 0;
	harness_restart(&harness);
	restart_unseen(kill_glaked);
	world_reach(200);
	for (int i = 0; i < N_CLIENTS; i++) {
		world_join(clients[i]);
	}
}
END_TEST

/* ---- under load -------------------------------------------------------------------------------- */

#define N_KILLS 20
#define N_BUFFERS 8
#define END_STAGE 1000

static int n_gone;

static void count_gone(void *user, const struct glake_notice *notice)
{
	n_gone += notice->kind == GLAKE_NOTICE_GONE;
}

struct buffer {
	glake_ptr ptr; /* 0: none */
	uint64_t n_bytes;
	uint64_t content;
};

/* A request that a restart has cut off may fail; what has been granted stays right. */
static void change_buffer(struct glake_session *session, struct buffer *buffer, unsigned random)
{
	if (buffer->ptr) {
		words_check(buffer->ptr, buffer->n_bytes, buffer->content);
		glake_free(session, buffer->ptr);
		buffer->ptr = 0;
		return;
	}
	buffer->n_bytes = (1 + random % 4) * 2 * MIB;
	if (glake_alloc(session, 0, buffer->n_bytes, 0, &buffer->ptr) < 0) {
		buffer->ptr = 0;
		return;
	}
	buffer->content = random % 1000;
	words_write(buffer->ptr, buffer->n_bytes, buffer->content);
}

static void look_into_model(struct glake_session *session)
{
	struct glake_model *model;
	if (glake_model_open(session, world_path("model"), NULL, &model) == 0) {
		ck_assert(world_is_content(session, world_tensor(model, "w").ptr, 20 * MIB, 5, 0));
		glake_model_close(model);
	}
}

static void publish_anew(struct glake_session *session, const struct buffer *buffer)
{
	const struct glake_tensor tensor = {.size = sizeof(tensor),
	                                    .name = "w",
	                                    .dtype = GLAKE_U64,
	                                    .n_dims = 1,
	                                    .shape = (const uint64_t[]){buffer->n_bytes / 8},
	                                    .ptr = buffer->ptr};
	struct glake_published published = {.size = sizeof(published)};
	struct glake_model *weights;
	if (!buffer->ptr) {
		return;
	}
	glake_weights_publish(session, "engine", &tensor, 1, NULL, &published);
	words_check(buffer->ptr, buffer->n_bytes, buffer->content);
	if (glake_weights_attach(session, "engine", NULL, &weights) == 0) {
		glake_model_close(weights);
	}
}

static void be_busy(void *user)
{
	struct buffer buffers[N_BUFFERS] = {{0}};
	unsigned random = 1 + (unsigned)(intptr_t)user;
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_set_notice_handler(session, count_gone, NULL);
	atomic_fetch_add(world_stage, 1);
	while (atomic_load(world_stage) < END_STAGE) {
		random = random * 1103515245 + 12345;
		struct buffer *buffer = &buffers[random / 65536 % N_BUFFERS];
		if (random / 1024 % 16 == 0) {
			look_into_model(session);
		} else if (random / 1024 % 16 == 1) {
			publish_anew(session, buffer);
		} else {
			change_buffer(session, buffer, random / 65536);
		}
	}
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		if (buffers[i].ptr) {
			change_buffer(session, &buffers[i], 0);
		}
	}
	ck_assert_int_eq(n_gone, 0);
	world_disconnect(session);
}

START_TEST(nothing_is_lost_when_glaked_is_killed_again_and_again)
{
	begin();
	pid_t clients[N_CLIENTS];
	world_write_model("model", 20 * MIB, 5);
	for (int i = 0; i < N_CLIENTS; i++) {
		clients[i] = world_client(be_busy, (void *)(intptr_t)i);
	}
	world_await(N_CLIENTS);
	for (int i = 0; i < N_KILLS; i++) {
		harness_sleep_ms(10 + (unsigned)(i * 37) % 90);
		restart(ends[i % 3 == 1 ? 1 : 0]);
	}
	world_reach(END_STAGE);
	for (int i = 0; i < N_CLIENTS; i++) {
		world_join(clients[i]);
	}
}
END_TEST
