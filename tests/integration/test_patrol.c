/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The patrol finds a block whose content has changed behind glaked's back. Who opens the model or
 * publishes the content later gets right bytes; who has it keeps it; the operator learns who that is.
 * Whatever else goes wrong is no damage.
 */
#include <dirent.h>

#include "tests/harness/models.h"
#include "tests/harness/words.h"

#define ALWAYS WORLD_CONFIG "verify = \"always\"; "
#define SAMPLE "pool = (); drain_ms = 300; verify = \"sample\"; "
#define FILE_NAME "m.safetensors"
#define FILE_BYTES (10 * MIB)
#define SEED 5

/* A byte changes in the memory that begins with these bytes, wherever glaked has it. */
static void damage(const void *begin, size_t n_bytes, off_t where)
{
	char path[300];
	unsigned n_damaged = 0;
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)harness.pid);
	DIR *folder = opendir(path);
	ck_assert_ptr_nonnull(folder);
	for (struct dirent *entry; (entry = readdir(folder));) {
		char target[512] = "";
		uint8_t bytes[64];
		snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)harness.pid, entry->d_name);
		if (readlink(path, target, sizeof(target) - 1) < 0 || !strstr(target, "cudasim:")) {
			continue;
		}
		cleanup_fd int fd = open(path, O_RDWR | O_CLOEXEC);
		if (pread(fd, bytes, n_bytes, 0) != (ssize_t)n_bytes ||
		    memcmp(bytes, begin, n_bytes) != 0) {
			continue;
		}
		ck_assert_int_eq(pread(fd, bytes, 1, where), 1);
		bytes[0] ^= 0x10;
		ck_assert_int_eq(pwrite(fd, bytes, 1, where), 1);
		n_damaged++;
	}
	closedir(folder);
	ck_assert_uint_eq(n_damaged, 1);
}

static void damage_model(off_t where)
{
	struct model_tensor tensor = {.seed = SEED};
	uint8_t bytes[32];
	model_tensor_fill(&tensor, 0, bytes, sizeof(bytes));
	damage(bytes, sizeof(bytes), where);
}

/* The whole store is looked at once more, and nothing is found that was not known before. */
static void look_on(void)
{
	uint64_t n_damaged = world_metric("blocks_damaged");
	uint64_t want = world_metric("blocks_verified") + world_books().n_blocks + 1;
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (world_metric("blocks_verified") < want) {
		ck_assert_msg(harness_now_ms() < end_ms, "the patrol does not go on");
		harness_sleep_ms(20);
	}
	ck_assert_uint_eq(world_metric("blocks_damaged"), n_damaged);
}

struct seen {
	unsigned n;
	char kind[32];
	char realm[64];
	char text[512];
};

/* The last one, of those that are not the test's own doing. */
static int note_event(void *user, const struct glake_event_row *row)
{
	struct seen *seen = user;
	if (strcmp(row->kind, "config") == 0) {
		return 0;
	}
	seen->n++;
	snprintf(seen->kind, sizeof(seen->kind), "%s", row->kind);
	snprintf(seen->realm, sizeof(seen->realm), "%s", row->realm);
	snprintf(seen->text, sizeof(seen->text), "%s", row->text);
	return 0;
}

static struct seen events(void)
{
	struct seen seen = {0};
	assert_ok(glake_list_events(eye, note_event, &seen));
	return seen;
}

static void wait_damaged(void)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	world_wait_metric("blocks_damaged", 1);
	/* The event names those who use the block, and comes when glaked has looked for them. */
	while (events().n == 0) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(1);
	}
	ck_assert_uint_eq(events().n, 1);
	ck_assert_str_eq(events().kind, "block_damaged");
}

static void open_right(void *user)
{
	const bool *wants_loaded = user;
	struct glake_model *model;
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, world_path(FILE_NAME), NULL, &model));
	ck_assert_int_eq(world_info(model).was_loaded, *wants_loaded);
	ck_assert(world_is_content(session, world_tensor(model, "w").ptr, FILE_BYTES, SEED, 0));
	world_disconnect(session);
}

static const bool anew = false;
static const bool as_it_is = true;

static void have_model(void *user)
{
	struct glake_session *session = world_connect();
	struct glake_model *model;
	assert_ok(glake_model_open(session, world_path(FILE_NAME), NULL, &model));
	world_reach(1);
	world_await(2);
	/* The damaged block is still mapped. */
	glake_ptr ptr = world_tensor(model, "w").ptr;
	ck_assert(!world_is_content(session, ptr, FILE_BYTES, SEED, 0));
	ck_assert(world_is_content(session, ptr, 7 * MIB, SEED, 0));
	world_disconnect(session);
}

static bool in_text(const char *text, uint64_t number)
{
	char digits[32];
	snprintf(digits, sizeof(digits), "%llu", (unsigned long long)number);
	return strstr(text, digits) != NULL;
}

/* ---- what is found --------------------------------------------------------------------------- */

START_TEST(whoever_has_a_damaged_block_keeps_it_and_nobody_else_gets_it)
{
	world_begin(.config = ALWAYS, .devices = "1x256MiB");
	world_write_model(FILE_NAME, FILE_BYTES, SEED);
	pid_t client = world_client(have_model, NULL);
	world_await(1);
	look_on();
	damage_model(7 * MIB + 12345);
	wait_damaged();
	struct seen seen = events();
	ck_assert_msg(strstr(seen.text, "models (1)") && strstr(seen.text, FILE_NAME) &&
	                      strstr(seen.text, "sessions (1)") &&
	                      in_text(seen.text, (uint64_t)client),
	              "%s", seen.text);
	ck_assert_str_eq(seen.realm, "uid:0");
	world_join(world_client(open_right, (void *)&anew));
	world_join(world_client(open_right, (void *)&as_it_is));
	/* The damage is found once. */
	look_on();
	ck_assert_uint_eq(events().n, 1);
	world_reach(2);
	world_join(client);
}
END_TEST

START_TEST(an_idle_model_with_a_damaged_block_goes)
{
	world_begin(.config = ALWAYS, .devices = "1x256MiB");
	world_write_model(FILE_NAME, FILE_BYTES, SEED);
	world_join(world_client(open_right, (void *)&anew));
	look_on();
	damage_model(0x1fff);
	wait_damaged();
	world_wait_books(&books_before);
	ck_assert_ptr_nonnull(strstr(events().text, "sessions (0)"));
	world_join(world_client(open_right, (void *)&anew));
}
END_TEST

START_TEST(a_pinned_model_with_a_damaged_block_stays_and_is_not_given_out)
{
	world_begin(.config = ALWAYS, .devices = "1x256MiB");
	const char *path = world_write_model(FILE_NAME, FILE_BYTES, SEED);
	world_join(world_client(open_right, (void *)&anew));
	assert_ok(glake_pin(eye, path, 1));
	damage_model(FILE_BYTES - 1);
	wait_damaged();
	ck_assert_uint_eq(world_books().n_models, 1);
	world_join(world_client(open_right, (void *)&anew));
	ck_assert_uint_eq(world_books().n_models, 2);
	/* By its id: both have the name. */
	assert_fails(GLAKE_E_BAD_REQUEST, "2 models", glake_pin(eye, path, 0));
	world_stop();
}
END_TEST

/* Behind the content, where no reader looks, but whoever wrote there may have written elsewhere. */
START_TEST(a_rest_that_is_not_zero_is_damage)
{
	world_begin(.config = ALWAYS, .devices = "1x256MiB");
	world_write_model(FILE_NAME, FILE_BYTES - 1000, SEED);
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, world_path(FILE_NAME), &model));
	look_on();
	damage_model(FILE_BYTES - 500);
	wait_damaged();
}
END_TEST

static void publish_some(void *user)
{
	struct glake_block *block;
	struct glake_block_info info = {.size = sizeof(info)};
	words_open_driver();
	struct glake_session *session = world_connect();
	assert_ok(glake_block_publish(session, words_alloc(session, 2 * MIB, 7), 2 * MIB, &block));
	glake_block_release(block);
	world_reach(1);
	world_await(2);
	assert_ok(glake_block_publish(session, words_alloc(session, 2 * MIB, 7), 2 * MIB, &block));
	assert_ok(glake_block_info(block, &info));
	ck_assert_int_eq(info.was_known, 0);
	world_disconnect(session);
}

static void damage_words(uint64_t content)
{
	const uint64_t words[] = {content << 48, content << 48 | 1, content << 48 | 2};
	damage(words, sizeof(words), 4711);
}

START_TEST(a_damaged_block_of_a_program_is_not_shared_again)
{
	world_begin(.config = ALWAYS, .devices = "1x256MiB");
	pid_t client = world_client(publish_some, NULL);
	world_await(1);
	look_on();
	damage_words(7);
	wait_damaged();
	ck_assert_uint_eq(world_books().n_blocks, 0);
	world_reach(2);
	world_join(client);
}
END_TEST

static void publish_weights(struct glake_session *session, uint64_t content)
{
	const uint64_t shape[] = {2 * MIB / sizeof(uint64_t)};
	const struct glake_tensor tensor = {
		.size = sizeof(tensor),
		.name = "w",
		.dtype = GLAKE_U64,
		.n_dims = 1,
		.shape = shape,
		.ptr = words_alloc(session, 2 * MIB, content),
	};
	assert_ok(glake_weights_publish(session, "key", &tensor, 1, NULL, NULL));
}

static void use_weights(void *user)
{
	struct glake_model *model;
	words_open_driver();
	struct glake_session *session = world_connect();
	publish_weights(session, 8);
	world_reach(1);
	world_await(2);
	assert_fails(GLAKE_E_NOT_FOUND, "key", glake_weights_attach(session, "key", NULL, &model));
	publish_weights(session, 8);
	assert_ok(glake_weights_attach(session, "key", NULL, &model));
	words_check(world_tensor(model, "w").ptr, 2 * MIB, 8);
	world_disconnect(session);
}

/* Whoever published them has them sealed, and so damaged; but nobody attaches them. */
START_TEST(published_weights_with_a_damaged_block_are_not_attached)
{
	world_begin(.config = ALWAYS, .devices = "1x256MiB");
	pid_t client = world_client(use_weights, NULL);
	world_await(1);
	look_on();
	damage_words(8);
	wait_damaged();
	world_reach(2);
	world_join(client);
}
END_TEST

static void publish_layer(void *user)
{
	const struct model_tensor *layer = user;
	static uint8_t bytes[WORLD_LAYER_BYTES];
	struct glake_block *block;
	struct glake_block_info info = {.size = sizeof(info)};
	glake_ptr ptr;
	words_open_driver();
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, sizeof(bytes), 0, &ptr));
	model_tensor_fill(layer, 0, bytes, sizeof(bytes));
	ck_assert_int_eq(drv.cuMemcpyHtoD(ptr, bytes, sizeof(bytes)), CUDA_SUCCESS);
	assert_ok(glake_block_publish(session, ptr, sizeof(bytes), &block));
	assert_ok(glake_block_info(block, &info));
	ck_assert_int_eq(info.was_known, 0);
	world_disconnect(session);
}

/* Whoever has the right bytes is not given the damaged ones; and the patrol looks there first. */
START_TEST(a_block_that_differs_from_its_equal_is_looked_at_first)
{
	struct glake_model *model;
	uint8_t bytes[32];
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB");
	const char *path = world_write_layers(FILE_NAME, SEED);
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, path, &model));
	struct model_tensor layer = {.seed = SEED * WORLD_N_LAYERS + WORLD_N_LAYERS / 2};
	model_tensor_fill(&layer, 0, bytes, sizeof(bytes));
	damage(bytes, sizeof(bytes), 4711);
	world_join(world_client(publish_layer, &layer));
	harness_wait_log(&harness, "two different contents have the digest");
	harness_reload(&harness, ALWAYS);
	wait_damaged();
	/* And not after all the blocks before it. */
	ck_assert_uint_lt(world_metric("blocks_verified"), WORLD_N_LAYERS / 2);
}
END_TEST

/* ---- what is none ---------------------------------------------------------------------------- */

START_TEST(without_a_patrol_nothing_is_looked_at)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB");
	world_write_model(FILE_NAME, FILE_BYTES, SEED);
	world_join(world_client(open_right, (void *)&anew));
	damage_model(4711);
	harness_sleep_ms(500);
	ck_assert_uint_eq(world_metric("blocks_verified"), 0);
	harness_reload(&harness, ALWAYS);
	wait_damaged();
	harness_reload(&harness, WORLD_CONFIG);
	world_join(world_client(open_right, (void *)&anew));
	uint64_t n_verified = world_metric("blocks_verified");
	harness_sleep_ms(500);
	ck_assert_uint_le(world_metric("blocks_verified"), n_verified + 1);
}
END_TEST

/* The patrol rests for a minute after a failure, also after one that glaked hears of only now. */
static void look_without_rest(void)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (world_metric("blocks_verified") == 0) {
		ck_assert_msg(harness_now_ms() < end_ms, "the patrol rests");
		harness_reload(&harness, WORLD_CONFIG);
		harness_reload(&harness, ALWAYS);
		harness_sleep_ms(500);
	}
	look_on();
}

/* The mover dies, or the driver fails, at a call that only the patrol makes now. */
START_TEST_WITH(a_failure_is_no_damage, .n = 4)
{
	static const char *const faults[] = {
		"glake-mover/cuMemSetAccess:1:die",
		"glake-mover/cuLaunchKernel:2:die",
		"glake-mover/cuMemMap:1:fail=2",
		"glake-mover/cuEventSynchronize:1:fail=700",
	};
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB");
	world_write_model(FILE_NAME, FILE_BYTES, SEED);
	world_join(world_client(open_right, (void *)&anew));
	world_set_faults(faults[_i]);
	harness_reload(&harness, ALWAYS);
	harness_wait_log(&harness, "could not digest a block again: ");
	ck_assert_uint_eq(world_metric("blocks_verified"), 0);
	world_set_faults(NULL);
	look_without_rest();
	ck_assert_uint_eq(world_metric("blocks_damaged"), 0);
	world_join(world_client(open_right, (void *)&as_it_is));
}
END_TEST

/* Evicted while the mover has it: it goes when the mover is done. */
START_TEST_WITH(a_block_that_is_evicted_meanwhile_is_no_damage, .n = 2)
{
	uint64_t n_models;
	uint64_t freed_bytes;
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB");
	world_write_model(FILE_NAME, FILE_BYTES, SEED);
	world_join(world_client(open_right, (void *)&anew));
	world_set_faults("glake-mover/cuLaunchKernel:*:slow=300");
	harness_reload(&harness, ALWAYS);
	harness_sleep_ms(250);
	pid_t mover = world_running_mover();
	assert_ok(glake_evict(eye, NULL, &n_models, &freed_bytes));
	ck_assert_uint_eq(n_models, 1);
	if (_i == 1) {
		ck_assert_int_eq(kill(mover, SIGKILL), 0);
	}
	world_wait_books(&books_before);
	ck_assert_uint_eq(world_metric("blocks_damaged"), 0);
	world_set_faults(NULL);
	world_join(world_client(open_right, (void *)&anew));
}
END_TEST

/* ---- how often ------------------------------------------------------------------------------- */

/* While the mover waits for more work, and not longer. Ten minutes later it comes for a look. */
START_TEST(a_sample_does_not_keep_the_mover)
{
	world_begin(.config = SAMPLE "mover_idle_ms = 20000; ", .devices = "1x256MiB", .speed = 60);
	world_write_model(FILE_NAME, FILE_BYTES, SEED);
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, world_path(FILE_NAME), &model));
	harness_wait_log(&harness, "idle and is stopped");
	uint64_t n_verified = world_metric("blocks_verified");
	ck_assert_uint_ge(n_verified, 1);
	ck_assert_uint_eq(world_metric("mover_starts"), 1);
	damage_model(1);
	wait_damaged();
	ck_assert_uint_eq(world_metric("mover_starts"), 2);
	world_disconnect(session);
}
END_TEST
