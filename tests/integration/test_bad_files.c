/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model files that are wrong, change, or cannot be read, through the whole stack: the user is told
 * which file, which tensor and what; nothing of the load stays; and the session goes on.
 */
#include <stdlib.h>

#include "tests/harness/fuse_file.h"
#include "tests/harness/models.h"
#include "tests/harness/world.h"

static const struct harness_options defaults = {.config = WORLD_CONFIG, .devices = "1x512MiB"};

/* A file of a length that it claims, a header and @n_content bytes of content. */
static void write_raw(const char *path, uint64_t claimed, const char *header, uint64_t n_content)
{
	FILE *file = fopen(path, "we");
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(&claimed, 1, sizeof(claimed), file), sizeof(claimed));
	ck_assert_int_ge(fputs(header, file), 0);
	ck_assert_int_eq(fclose(file), 0);
	ck_assert_int_eq(truncate(path, (off_t)(8 + strlen(header) + n_content)), 0);
}

/* No partial model stays, and the session goes on. */
static void assert_refused(struct glake_session *session, const char *path, int code,
                           const char *words)
{
	struct glake_model *model;
	uint64_t n_failed = world_metric("models_failed");
	assert_fails(code, words, world_open_unmapped(session, path, &model));
	ck_assert_msg(strstr(glake_error(), strrchr(path, '/') + 1), "no file in: %s",
	              glake_error());
	ck_assert_uint_le(world_metric("models_failed"), n_failed + 1);
	struct books books = world_books();
	ck_assert_uint_eq(books.n_models, 0);
	ck_assert_uint_eq(books.n_blocks, 0);
	assert_ok(glake_ping(session));
}

#define T(name, dtype, shape, offsets) \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets \
	"]}"

START_TEST(headers_that_are_wrong_are_named)
{
	static const struct {
		const char *header;
		uint64_t n_content;
		const char *words; /* besides the file's name */
	} bad[] = {
		{"{", 0, "header is not valid"},
		{"[]", 0, "does not begin with '{'"},
		{"{} {}", 0, "header is not valid"},
		{"{" T("a", "F32", "2", "0,8") "," T("b", "F32", "2", "4,12") "}", 12, "overlaps"},
		{"{" T("a", "F32", "2", "0,8") "}", 4, "tensor 'a'"},
		{"{" T("a", "F32", "2", "8,0") "}", 8, "tensor 'a'"},
		{"{" T("a", "F32", "2", "0,8") "}", 9, ""},
		{"{" T("a", "F32", "2", "0,8") "," T("b", "F32", "2", "12,20") "}", 20, ""},
		{"{" T("a", "F33", "2", "0,8") "}", 8, "F33"},
		{"{" T("a", "F32", "3", "0,8") "}", 8, "tensor 'a'"},
		{"{" T("a", "F32", "2", "0,4") "," T("a", "F32", "1", "4,8") "}", 8, "tensor 'a'"},
		{"{" T("a", "F32", "4294967296,4294967296", "0,8") "}", 8, "tensor 'a'"},
		{"{" T("a", "U8", "18446744073709551615,2", "0,8") "}", 8, "tensor 'a'"},
		{"{" T("a", "U8", "-1", "0,8") "}", 8, "tensor 'a'"},
		{"{" T("a", "U8", "1.5", "0,8") "}", 8, "tensor 'a'"},
		{"{" T("a", "U8", "8", "0,18446744073709551616") "}", 8, "tensor 'a'"},
		{"{" T("a", "U8",
	               "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
	               "1,1",
	               "0,1") "}",
	         1, "tensor 'a'"},
		{"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor 'a'"},
		{"{\"a\":7}", 0, "a"},
	};
	world_begin_as(&defaults);
	struct glake_session *session = world_connect_blind();
	for (size_t i = 0; i < n_elements(bad); i++) {
		char name[32];
		snprintf(name, sizeof(name), "bad%zu.safetensors", i);
		const char *path = world_path(name);
		write_raw(path, strlen(bad[i].header), bad[i].header, bad[i].n_content);
		assert_refused(session, path, GLAKE_E_BAD_FILE, bad[i].words);
	}
}
END_TEST

START_TEST(headers_of_wrong_length_are_named)
{
	static const char header[] = "{" T("a", "U8", "8", "0,8") "}";
	world_begin_as(&defaults);
	struct glake_session *session = world_connect_blind();
	const char *path = world_path("length.safetensors");
	/* Longer than the file, absurd, beyond what any writer makes, and too short. */
	static const uint64_t lengths[] = {sizeof(header) + 100, UINT64_MAX, INT64_MAX, 100000001,
	                                   1};
	for (size_t i = 0; i < n_elements(lengths); i++) {
		write_raw(path, lengths[i], header, 8);
		assert_refused(session, path, GLAKE_E_BAD_FILE, "");
	}
	/* Cut anywhere. */
	write_raw(path, sizeof(header) - 1, header, 8);
	for (off_t n = (off_t)sizeof(header) + 8; n-- > 0;) {
		ck_assert_int_eq(truncate(path, n), 0);
		assert_refused(session, path, GLAKE_E_BAD_FILE, "");
	}
}
END_TEST

START_TEST(names_too_long_do_not_hurt_the_mover)
{
	static char header[4000];
	static char name[1100];
	world_begin_as(&defaults);
	world_start_mover();
	pid_t mover = world_running_mover();
	struct glake_session *session = world_connect_blind();
	memset(name, 'n', sizeof(name) - 1);
	int n = snprintf(header, sizeof(header),
	                 "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", name);
	write_raw(world_path("name.safetensors"), (uint64_t)n, header, 1);
	assert_refused(session, world_path("name.safetensors"), GLAKE_E_BAD_FILE, "nnn");
	ck_assert_int_eq(world_running_mover(), mover);
}
END_TEST

/* The largest header there may be: read, and found to be nothing, in bounded time. */
START_TEST(a_header_of_100_megabytes_is_no_trap)
{
	const uint64_t n_header = 100000000;
	world_begin_as(&defaults);
	struct glake_session *session = world_connect_blind();
	const char *path = world_path("huge.safetensors");
	FILE *file = fopen(path, "we");
	ck_assert_ptr_nonnull(file);
	ck_assert_uint_eq(fwrite(&n_header, 1, 8, file), 8);
	/* Deep, and never closed. */
	static char brackets[1000000];
	memset(brackets, '[', sizeof(brackets));
	memcpy(brackets, "{\"a\":", 5);
	for (unsigned i = 0; i < 100; i++) {
		ck_assert_uint_eq(fwrite(brackets, 1, sizeof(brackets), file), sizeof(brackets));
		memset(brackets, '[', 5);
	}
	ck_assert_int_eq(fclose(file), 0);
	assert_refused(session, path, GLAKE_E_BAD_FILE, "");
	/* Blanks to the end: as long as can be, and not wrong before its last byte. */
	file = fopen(path, "we");
	memset(brackets, ' ', sizeof(brackets));
	ck_assert_uint_eq(fwrite(&n_header, 1, 8, file), 8);
	memcpy(brackets, "{", 1);
	for (unsigned i = 0; i < 100; i++) {
		ck_assert_uint_eq(fwrite(brackets, 1, sizeof(brackets), file), sizeof(brackets));
		memset(brackets, ' ', 5);
	}
	ck_assert_int_eq(fclose(file), 0);
	assert_refused(session, path, GLAKE_E_BAD_FILE, "");
}
END_TEST

START_TEST(tensors_of_no_bytes_work)
{
	static const struct model_tensor some[] = {
		{"full", "F32", 2, {4, 4}, 7},
		{"none", "F16", 2, {0, 9}, 0},
	};
	world_begin_as(&defaults);
	model_file_write(world_path("some.safetensors"), some, 2);
	model_file_write(world_path("none.safetensors"), some + 1, 1);
	write_raw(world_path("empty.safetensors"), 2, "{}", 0);
	struct glake_session *session = world_connect();
	struct glake_model *models[3];
	assert_ok(glake_model_open(session, world_path("some.safetensors"), NULL, &models[0]));
	assert_ok(glake_model_open(session, world_path("none.safetensors"), NULL, &models[1]));
	assert_ok(glake_model_open(session, world_path("empty.safetensors"), NULL, &models[2]));
	for (int i = 0; i < 2; i++) {
		struct glake_tensor none = world_tensor(models[i], "none");
		ck_assert_uint_eq(none.bytes, 0);
		ck_assert_uint_eq(none.ptr, 0);
		ck_assert_uint_eq(none.n_dims, 2);
		ck_assert_uint_eq(none.shape[1], 9);
	}
	ck_assert(world_is_content(session, world_tensor(models[0], "full").ptr, 64, 7, 0));
	ck_assert_uint_eq(world_info(models[1]).mapped_bytes, 0);
	ck_assert_uint_eq(world_info(models[2]).n_tensors, 0);
}
END_TEST

/* ---- folders --------------------------------------------------------------------------------- */

static void write_text(const char *name, const char *text)
{
	FILE *file = fopen(world_path(name), "we");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_ge(fputs(text, file), 0);
	ck_assert_int_eq(fclose(file), 0);
}

START_TEST(folders_that_are_wrong_are_named)
{
	struct glake_model *model;
	world_begin_as(&defaults);
	struct glake_session *session = world_connect_blind();
	ck_assert_int_eq(mkdir(world_path("folder"), 0755), 0);
	assert_fails(-ENOENT, "folder", world_open_unmapped(session, world_path("folder"), &model));

	world_write_model("folder/one.safetensors", 100, 1);
	static const char index[] = "folder/model.safetensors.index.json";
	write_text(index, "{\"weight_map\":{\"w\":\"one.safetensors\",\"v\":\"two.safetensors\"}}");
	assert_fails(GLAKE_E_BAD_FILE, "two.safetensors",
	             world_open_unmapped(session, world_path("folder"), &model));
	write_text(index, "{\"weight_map\":{\"w\":\"one.safetensors\",\"v\":\"one.safetensors\"}}");
	assert_fails(GLAKE_E_BAD_FILE, "tensor 'v'",
	             world_open_unmapped(session, world_path("folder"), &model));
	write_text(index, "{\"weight_map\":{\"w\":\"../secret.safetensors\"}}");
	assert_fails(GLAKE_E_BAD_FILE, "secret",
	             world_open_unmapped(session, world_path("folder"), &model));
	write_text(index, "{\"weight_map\":");
	assert_fails(GLAKE_E_BAD_FILE, "index.json",
	             world_open_unmapped(session, world_path("folder"), &model));
	ck_assert_int_eq(mkfifo(world_path("folder/pipe.safetensors"), 0600), 0);
	write_text(index, "{\"weight_map\":{\"w\":\"pipe.safetensors\"}}");
	assert_fails(GLAKE_E_BAD_FILE, "pipe.safetensors",
	             world_open_unmapped(session, world_path("folder"), &model));
	write_text(index, "{\"weight_map\":{\"w\":\"one.safetensors\"}}");
	assert_ok(world_open_unmapped(session, world_path("folder"), &model));
}
END_TEST

START_TEST(what_is_no_file_does_not_hang)
{
	struct glake_model *model;
	world_begin_as(&defaults);
	struct glake_session *session = world_connect_blind();
	const char *fifo = world_path("fifo.safetensors");
	ck_assert_int_eq(mkfifo(fifo, 0600), 0);
	assert_refused(session, fifo, GLAKE_E_BAD_FILE, "neither a regular file nor a folder");
	assert_fails(GLAKE_E_BAD_FILE, "/dev/zero",
	             world_open_unmapped(session, "/dev/zero", &model));
	assert_fails(-ENXIO, "glaked.sock",
	             world_open_unmapped(session, harness.socket_path, &model));
	/* A file whose size says nothing. */
	assert_refused(session, "/proc/self/status", GLAKE_E_BAD_FILE, "status");
}
END_TEST

static void open_unreadable(struct harness *where, void *user)
{
	struct glake_model *model;
	setenv("GLAKE_SOCKET", where->socket_path, 1);
	struct glake_session *session = world_connect_blind();
	assert_fails(-EACCES, "secret.safetensors",
	             world_open_unmapped(session, "secret.safetensors", &model));
	assert_ok(glake_ping(session));
	world_disconnect(session);
}

/* glaked may read it, and does not: whoever asks must be able to open it himself. */
START_TEST(what_the_client_may_not_read_is_not_read)
{
	if (!harness_is_root()) {
		return;
	}
	world_begin_as(&defaults);
	const char *path = world_write_model("secret.safetensors", 100, 1);
	ck_assert_int_eq(chmod(path, 0600), 0);
	harness_as(&harness, 12345, 12345, open_unreadable, NULL);
}
END_TEST

/* ---- while it is loaded ---------------------------------------------------------------------- */

struct opening {
	const char *path;
	int code;
	const char *words;
};

static void on_progress(void *user, uint64_t done_bytes, uint64_t total_bytes)
{
	if (done_bytes > 0) {
		world_reach(1);
	}
}

static void open_slowly(void *user)
{
	const struct opening *opening = user;
	struct glake_model *model;
	struct glake_model_options options = {
		.size = sizeof(options), .no_map = 1, .progress = on_progress};
	struct glake_session *session = world_connect_blind();
	assert_fails(opening->code, opening->words,
	             glake_model_open(session, opening->path, &options, &model));
	ck_assert_ptr_nonnull(strstr(glake_error(), "big.safetensors"));
	assert_ok(glake_ping(session));
}

enum change { TRUNCATED, TOUCHED, WRITTEN_TO, N_CHANGES };

START_TEST_WITH(a_file_that_changes_while_it_is_loaded_is_refused, .n = N_CHANGES)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x512MiB", .env = WORLD_SMALL_STEPS);
	const char *path = world_write_layers("big.safetensors", 3);
	struct opening opening = {path, GLAKE_E_FILE_CHANGED, ""};
	world_set_faults(WORLD_STOP_AND_GO);
	pid_t client = world_client(open_slowly, &opening);
	world_await(1);
	if (_i == TRUNCATED) {
		ck_assert_int_eq(truncate(path, 1000000), 0);
	} else if (_i == TOUCHED) {
		ck_assert_int_eq(utimensat(AT_FDCWD, path, NULL, 0), 0);
	} else {
		int fd = open(path, O_WRONLY | O_CLOEXEC);
		ck_assert_int_eq(pwrite(fd, "changed", 7, 30 * MIB), 7);
		close(fd);
	}
	world_set_faults(NULL);
	world_join(client);
	ck_assert_uint_eq(world_books().n_models, 0);
}
END_TEST

/* A replaced file is another one: who is loading keeps to what he opened. */
START_TEST(a_file_replaced_while_it_is_loaded_is_not_noticed)
{
	struct glake_model *model;
	world_begin_as(&defaults);
	const char *path = world_write_model("a.safetensors", 5 * MIB, 3);
	struct glake_session *session = world_connect();
	assert_ok(glake_model_open(session, path, NULL, &model));
	ck_assert_int_eq(rename(world_write_model("b.safetensors", 5 * MIB, 4), path), 0);
	struct glake_model *again;
	assert_ok(glake_model_open(session, path, NULL, &again));
	ck_assert(world_is_content(session, world_tensor(model, "w").ptr, 5 * MIB, 3, 0));
	ck_assert(world_is_content(session, world_tensor(again, "w").ptr, 5 * MIB, 4, 0));
}
END_TEST

START_TEST_WITH(a_disk_that_fails_is_told, .n = 3)
{
	struct fuse_file file;
	static const uint64_t bad_from[] = {3, 1 * MIB, 20 * MIB};
	world_begin_as(&defaults);
	const char *content = world_write_model("content", 40 * MIB, 5);
	struct fuse_file_faults faults = {.bad_from = bad_from[_i]};
	if (!fuse_file_start(&file, world_path("mount"), content, &faults)) {
		world_end();
		return;
	}
	struct glake_session *session = world_connect_blind();
	assert_refused(session, file.path, GLAKE_E_READ, "Input/output error");
	/* With the place, and the tensor when it is in one. */
	ck_assert_ptr_nonnull(strstr(glake_error(), "at byte"));
	ck_assert_int_eq(strstr(glake_error(), "tensor 'w'") != NULL, bad_from[_i] > 100);
	world_disconnect(session);
	fuse_file_stop(&file);
}
END_TEST

/* ---- that does not answer -------------------------------------------------------------------- */

static void open_for_ever(void *user)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	world_open_unmapped(session, user, &model);
	ck_abort_msg("the file has been read: %s", glake_error());
}

static void open_until_the_mover_dies(void *user)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_fails(GLAKE_E_MOVER, "", world_open_unmapped(session, user, &model));
	world_disconnect(session);
}

/* With another mover, and back to what the first one still has. */
static void load_and_evict(const char *path, const struct books *stuck)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	assert_ok(world_open_unmapped(session, path, &model));
	glake_model_close(model);
	assert_ok(glake_evict(session, NULL, NULL, NULL));
	world_disconnect(session);
	world_wait_books(stuck);
	ck_assert_uint_eq(world_metric("mover_deaths"), 1);
}

enum stuck { WITHOUT_CLIENT, IN_A_DEAD_MOVER, WITHOUT_KEEPER, AT_THE_END, N_STUCKS };

/*
 * The mover keeps the memory of a load for as long as it is stuck in it, and so do the books: at the cost
 * of the tenant, though his session has ended, and though the mover has nothing else to do; and though it
 * was killed, alone or with its keeper, and the client has his answer.
 */
START_TEST_WITH(what_a_stuck_load_has_is_charged, .n = N_STUCKS)
{
	static const struct fuse_file_faults faults = {.endless_from = 20 * MIB};
	struct fuse_file file;
	world_begin(.config = "pool = (); mover_idle_ms = 50; drain_ms = 300;",
	            .devices = "1x512MiB");
	const char *content = world_write_model("content", 40 * MIB, 5);
	if (!fuse_file_start(&file, world_path("mount"), content, &faults)) {
		world_end();
		return;
	}
	pid_t client = world_client(
		_i == WITHOUT_CLIENT ? open_for_ever : open_until_the_mover_dies, file.path);
	struct books stuck = books_before;
	stuck.physical_bytes += 40 * MIB;
	stuck.block_bytes += 40 * MIB;
	stuck.used_block_bytes += 40 * MIB;
	stuck.charged_bytes += 40 * MIB;
	stuck.charged_fds++;
	stuck.fds_used++;
	fuse_file_await_held(&file);
	if (_i == WITHOUT_CLIENT) {
		world_kill(client);
	} else {
		pid_t mover = world_running_mover();
		ck_assert_int_eq(
			kill(_i == WITHOUT_KEEPER ? world_parent_of(mover) : mover, SIGKILL), 0);
		world_join(client);
	}
	world_wait_books(&stuck);
	if (_i == WITHOUT_CLIENT) {
		harness_sleep_ms(200);
		world_wait_books(&stuck);
	} else {
		load_and_evict(content, &stuck);
	}
	if (_i == AT_THE_END) {
		world_stop();
		fuse_file_stop(&file);
		return;
	}
	fuse_file_stop(&file);
	world_wait_books(&books_before);
}
END_TEST
