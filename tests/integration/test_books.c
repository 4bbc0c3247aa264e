/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Books that do not fit what there is: torn, of another boot, without fds, or fds without books. What they say is
 * adopted as far as it is true, the rest is given back, and the log says so. world_end() finds what would be left.
 */
#include <sched.h>
#include <sys/mount.h>

#include "tests/harness/model_file.h"
#include "tests/harness/connection.h"
#include "tests/harness/models.h"
#include "tests/harness/words.h"
#include "tests/harness/world.h"

/* Two blocks */
#define MODEL_BYTES (140 * MIB)
#define N_BLOCKS 2u

/* A minute of glaked's clock is two seconds. */
#define SPEED 30

static void begin_with(const char *config, unsigned speed)
{
	world_begin(.config = config, .devices = "1x1GiB", .is_activated = true, .keeps_fds = true,
	            .speed = speed);
}

static void begin(void)
{
	begin_with(WORLD_CONFIG, 0);
}

static const char *state_path(void)
{
	return world_path("glaked.sock.state");
}

static const char *load(const char *name, uint64_t seed)
{
	const char *path = world_write_model(name, MODEL_BYTES, seed);
	world_load(path);
	return path;
}

/* Only the mark of the books is kept, and the watch of a file system (store/superblock.h). */
static void wait_for_fds(void)
{
	fdkeeper_forget(&harness.fdkeeper, "fs");
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (fdkeeper_n_kept(&harness.fdkeeper) != 1) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(1);
	}
}

static void assert_nothing_is_left(void)
{
	world_look_again();
	world_wait_books(&books_before);
	wait_for_fds();
}

/* Restarts have changed which fds of its own glaked has. */
static void look_no_more(void)
{
	harness_kill(&harness);
	fdkeeper_end(&harness.fdkeeper);
	harness.notify_fd = -1;
}

static void write_at(off_t at, const void *bytes, size_t n_bytes)
{
	cleanup_fd int fd = open(state_path(), O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(pwrite(fd, bytes, n_bytes, at), (ssize_t)n_bytes);
}

/* As journal.c has it: the version, the name of the boot, and the first record. */
static const struct {
	off_t at;
	const char *bytes;
	size_t n_bytes;
	const char *line;
} faults[] = {
	{8, "\3", 1, "they are of a newer version of glaked"},
	{0, "# a file", 8, "they are damaged"},
	{20, "x", 1, "they are damaged"},
	{80 + 24, "x", 1, "they are damaged"},
};

START_TEST_WITH(books_that_cannot_be_read_give_everything_back, .n = n_elements(faults))
{
	begin();
	load("model", 5);
	harness_kill(&harness);
	write_at(faults[_i].at, faults[_i].bytes, faults[_i].n_bytes);
	harness_restart(&harness);
	harness_wait_log(&harness, faults[_i].line);
	harness_wait_log(&harness, "fds of an earlier glaked that nothing describes");
	assert_nothing_is_left();
}
END_TEST

/* ---- books of others --------------------------------------------------------------------------- */

/* Ids of both begin anew: by them alone the fds of one could be taken for those of the other. */
START_TEST(books_of_another_glaked_do_not_describe_these_fds)
{
	begin();
	load("one", 5);
	harness_kill(&harness);
	ck_assert_int_eq(rename(state_path(), world_path("aside")), 0);
	harness_restart(&harness);
	assert_nothing_is_left();
	load("two", 6);
	harness_kill(&harness);
	ck_assert_int_eq(rename(world_path("aside"), state_path()), 0);
	harness_restart(&harness);
	harness_wait_log(&harness, "they do not describe the fds that were kept");
	assert_nothing_is_left();
}
END_TEST

static void open_to_all(void)
{
	ck_assert_int_eq(chmod(state_path(), 0666), 0);
}

static void be_a_link(void)
{
	ck_assert_int_eq(rename(state_path(), world_path("aside")), 0);
	ck_assert_int_eq(symlink("aside", state_path()), 0);
}

static void open_the_folder(void)
{
	ck_assert_int_eq(chmod(harness.folder, 0777), 0);
}

static void belong_to_nobody(void)
{
	if (harness_is_root()) {
		ck_assert_int_eq(chown(state_path(), 65534, 65534), 0);
	} else {
		open_to_all();
	}
}

static void (*const strange[])(void) = {open_to_all, be_a_link, open_the_folder, belong_to_nobody};

START_TEST_WITH(books_that_others_could_write_are_not_believed, .n = n_elements(strange))
{
	begin();
	load("model", 5);
	harness_kill(&harness);
	strange[_i]();
	harness_restart(&harness);
	harness_wait_log(&harness, "others may write to them");
	assert_nothing_is_left();
}
END_TEST

START_TEST(two_glakeds_do_not_share_their_books)
{
	begin();
	struct harness second;
	char config[1024];
	load("model", 5);
	snprintf(config, sizeof(config), WORLD_CONFIG "state_path = \"%s\";", state_path());
	int status = harness_start_failing(&second, &(struct harness_options){.config = config,
	                                                                      .is_activated = true,
	                                                                      .keeps_fds = true});
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "0x%x", status);
	harness_wait_log(&second, "keeps its books in");
	harness_clean(&second);
	/* The first one has not noticed. */
	harness_kill(&harness);
	harness_restart(&harness);
	ck_assert_uint_eq(world_books().n_models, 1);
}
END_TEST

/* ---- parts are missing ------------------------------------------------------------------------- */

START_TEST(without_books_everything_is_given_back)
{
	begin();
	load("model", 5);
	harness_kill(&harness);
	ck_assert_int_eq(unlink(state_path()), 0);
	harness_restart(&harness);
	harness_wait_log(&harness, "closing 2 fds of an earlier glaked that nothing describes");
	assert_nothing_is_left();
}
END_TEST

START_TEST(books_whose_fds_are_gone_describe_nothing)
{
	begin();
	load("model", 5);
	harness_kill(&harness);
	fdkeeper_forget(&harness.fdkeeper, "");
	harness_restart(&harness);
	harness_wait_log(&harness, "nobody has kept the fds");
	assert_nothing_is_left();
}
END_TEST

START_TEST(a_model_without_one_of_its_fds_is_given_back)
{
	begin();
	load("one", 5);
	load("two", 6);
	ck_assert_uint_eq(world_books().n_models, 2);
	harness_kill(&harness);
	/* Its first block, since the model has the first id of all. */
	fdkeeper_forget(&harness.fdkeeper, "b2");
	harness_restart(&harness);
	harness_wait_log(&harness, "not adopted: 1 blocks");
	ck_assert_uint_eq(world_books().n_models, 1);
	ck_assert_uint_eq(world_books().n_blocks, N_BLOCKS);
	/* And what is not adopted is not in the books any more. */
	harness_kill(&harness);
	harness_restart(&harness);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "not adopted"), 1);
	ck_assert_uint_eq(world_books().n_models, 1);
}
END_TEST

/* Bytes of records, as journal.c has it in the header. */
static uint64_t records_end(void)
{
	uint64_t end = 0;
	cleanup_fd int fd = open(state_path(), O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(pread(fd, &end, sizeof(end), 72), sizeof(end));
	return end;
}

/* Records that are missing at the end may have taken something back. The whole file, at last, is believed. */
START_TEST(books_that_are_cut_are_not_believed)
{
	begin();
	enum { N_CUTS = 6 };
	for (int i = 0; i <= N_CUTS; i++) {
		load("model", 5);
		harness_kill(&harness);
		ck_assert_int_eq(truncate(state_path(), (off_t)records_end() * i / N_CUTS), 0);
		harness_restart(&harness);
		world_look_again();
		ck_assert_uint_eq(world_books().n_models, i == N_CUTS);
		assert_ok(glake_evict(eye, NULL, NULL, NULL));
		wait_for_fds();
		ck_assert_uint_eq(world_books().physical_bytes, books_before.physical_bytes);
	}
	ck_assert_uint_eq(harness_n_log_lines(&harness, "they are damaged"), N_CUTS - 1);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "the file is gone or empty"), 1);
	look_no_more();
}
END_TEST

/* The service manager closes its fds when it has time for it. */
static void let_it_close(void *user)
{
	harness_wait_log(&harness, "fds of an earlier glaked that nothing describes");
	harness_sleep_ms(100);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "is ready"), 1);
	world_reach(1);
	fdkeeper_stall(&harness.fdkeeper);
}

static void use_most(void *user)
{
	glake_ptr ptr;
	words_open_driver();
	struct glake_session *session = world_connect();
	atomic_fetch_add(world_stage, 1);
	assert_ok(glake_alloc(session, 0, 900 * MIB, 0, &ptr));
	glake_free(session, ptr);
	world_disconnect(session);
}

START_TEST(what_is_given_back_is_free_before_anybody_is_served)
{
	begin();
	load("one", 5);
	load("two", 6);
	harness_kill(&harness);
	write_at(0, "# a file", 8);
	fdkeeper_stall(&harness.fdkeeper);
	pid_t manager = world_client(let_it_close, NULL);
	harness_restart(&harness);
	ck_assert_int_eq(atomic_load(world_stage), 1);
	world_join(manager);
	world_join(world_client(use_most, NULL));
	assert_nothing_is_left();
	look_no_more();
}
END_TEST

/* ---- no room ----------------------------------------------------------------------------------- */

static int copy_default(void *user, const struct glake_tenant_row *row)
{
	if (strcmp(row->name, "default") != 0) {
		return 0;
	}
	*(uint32_t *)user = row->max_sessions;
	return 1;
}

/* A chunk is at the mover, which is stopped. Returns the connection, and the request that waits for it. */
static int publish_while_stopped(uint64_t *publish_out)
{
	uint64_t chunk;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	kill(world_running_mover(), SIGSTOP);
	int connection = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(connection, 0, CHUNK_BYTES, 1, &chunk, &fds), 0);
	*publish_out = connection_send(connection,
	                               REQUEST(BLOCK_PUBLISH, BlockPublish, block_publish,
	                                       .chunk = chunk, .content_bytes = 5),
	                               NULL, 0);
	connection_ping(connection);
	return connection;
}

static char room[512];

/* The books are in a file system of their own. Returns whether there is one. */
static bool begin_with_room(const char *options, unsigned speed)
{
	static char config[1024]; /* read when the world ends, too */
	snprintf(room, sizeof(room), "%s/roomXXXXXX", getenv("TMPDIR"));
	ck_assert_ptr_nonnull(mkdtemp(room));
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("none", room, "tmpfs", 0, options) < 0) {
		printf("SKIP: cannot mount tmpfs\n");
		return false;
	}
	snprintf(config, sizeof(config), WORLD_CONFIG "state_path = \"%s/state\";", room);
	begin_with(config, speed);
	return true;
}

START_TEST(books_that_cannot_be_written_are_begun_as_soon_as_they_can)
{
	if (!begin_with_room("size=1m,mode=0700", SPEED)) {
		return;
	}
	harness_wait_log(&harness, "the books of glaked end here");
	load("one", 5);
	assert_ok(glake_set_max_sessions(eye, "default", 77));
	uint64_t publish;
	int connection = publish_while_stopped(&publish);
	ck_assert_int_eq(mount("none", room, "tmpfs", MS_REMOUNT, "size=64m"), 0);
	harness_wait_log(&harness, "the books of glaked are whole again");
	kill(world_running_mover(), SIGCONT);
	ck_assert_int_eq(connection_status_of(connection, publish), GLAKE__WIRE__STATUS__OK);
	connection_close(&connection);
	/* The books have what was before, and what comes. */
	load("two", 6);
	harness_kill(&harness);
	harness_restart(&harness);
	ck_assert_uint_eq(world_books().n_models, 2);
	uint32_t max_sessions = 0;
	ck_assert_int_eq(glake_list_tenants(eye, copy_default, &max_sessions), 1);
	ck_assert_uint_eq(max_sessions, 77);
	assert_ok(glake_set_max_sessions(eye, "default", 0));
	look_no_more(); /* the file was not open in the beginning */
}
END_TEST

#define N_WORDY 30

static const char *wordy_path(unsigned i)
{
	char name[32];
	snprintf(name, sizeof(name), "wordy%u", i);
	return world_path(name);
}

/* As the user @uid, who stays far below all limits. */
static void open_until_refused(void *uid)
{
	struct glake_model *model = NULL;
	int r = 0;
	ck_assert_int_eq(setgid(*(uid_t *)uid), 0);
	ck_assert_int_eq(setuid(*(uid_t *)uid), 0);
	struct glake_session *session = world_connect_blind();
	for (unsigned i = 0; r == 0 && i < N_WORDY; i++) {
		r = world_open_unmapped(session, wordy_path(i), &model);
	}
	ck_assert_msg(r == GLAKE_E_NO_HOST_MEMORY && strstr(glake_error(), "the books of glaked"),
	              "%d: %s", r, glake_error());
	/* The close of a model is written in any case. */
	glake_model_close(model);
	atomic_fetch_add(world_stage, 1);
	pause();
}

/* Two users, none of them near a limit. */
START_TEST(books_that_users_have_filled_do_not_end)
{
	static uid_t uids[] = {12345, 12346};
	pid_t clients[n_elements(uids)];
	if (!begin_with_room("size=24m,mode=0700", 0)) {
		return;
	}
	ck_assert_int_eq(chmod(harness.socket_path, 0666), 0);
	for (unsigned i = 0; i < N_WORDY; i++) {
		/* A record of 300 KiB in the books. */
		model_file_write_wordy(wordy_path(i), 300, i);
	}
	for (unsigned i = 0; i < n_elements(uids); i++) {
		clients[i] = world_client(open_until_refused, &uids[i]);
	}
	world_await(n_elements(uids));
	uint64_t n_models = world_books().n_models;
	ck_assert_uint_gt(n_models, 10);
	harness_kill(&harness);
	harness_restart(&harness);
	world_look_again();
	ck_assert_uint_eq(world_books().n_models, n_models);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "the books of glaked end here"), 0);
	for (unsigned i = 0; i < n_elements(uids); i++) {
		world_kill(clients[i]);
	}
	look_no_more();
}
END_TEST

/* A request of a few bytes, and the record of a session has a thousand. */
START_TEST(what_is_written_already_is_not_written_again)
{
	begin();
	int connection = connection_hello(&harness);
	uint64_t ends[2];
	for (unsigned i = 0; i < n_elements(ends); i++) {
		for (unsigned j = 0; j < 50; j++) {
			uint64_t id = connection_send(
				connection,
				REQUEST(SEAL_PROGRESS, SealProgress, seal_progress, .seal = 0),
				NULL, 0);
			connection_free(connection_receive_for(connection, id, NULL));
		}
		ends[i] = records_end();
	}
	ck_assert_uint_gt(ends[0], 0);
	ck_assert_uint_eq(ends[0], ends[1]);
	connection_close(&connection);
}
END_TEST

/* ---- parking ---------------------------------------------------------------------------------- */

static void open_while_stalled(void *path)
{
	struct glake_model *model;
	struct glake_session *session = world_connect_blind();
	world_reach(1);
	assert_ok(world_open_unmapped(session, path, &model));
	world_reach(2);
	glake_model_close(model);
	world_disconnect(session);
}

START_TEST(nobody_gets_a_model_before_it_is_parked)
{
	begin();
	const char *path = world_write_model("model", MODEL_BYTES, 5);
	fdkeeper_stall(&harness.fdkeeper);
	pid_t client = world_client(open_while_stalled, (void *)path);
	world_await(1);
	/* All of it is loaded, and waits. */
	struct books books;
	do {
		books = world_books();
	} while (books.block_bytes < MODEL_BYTES);
	ck_assert_uint_eq(world_metric("models_loaded"), 0);
	ck_assert_int_eq(atomic_load(world_stage), 1);
	fdkeeper_stall(&harness.fdkeeper);
	world_join(client);
	ck_assert_int_eq(atomic_load(world_stage), 2);
}
END_TEST

START_TEST(blocks_of_a_load_that_was_cut_off_are_given_back)
{
	begin();
	const char *path = world_write_model("model", MODEL_BYTES, 5);
	fdkeeper_stall(&harness.fdkeeper);
	pid_t client = world_client(open_while_stalled, (void *)path);
	world_await(1);
	while (world_books().block_bytes < MODEL_BYTES) {
	}
	world_kill(client);
	harness_kill(&harness);
	fdkeeper_stall(&harness.fdkeeper);
	harness_restart(&harness);
	assert_nothing_is_left();
}
END_TEST

static void publish_and_leave(void *user)
{
	struct glake_block *block;
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 4 * MIB, 7);
	assert_ok(glake_block_publish(session, ptr, 4 * MIB, &block));
	glake_block_release(block);
	world_disconnect(session);
}

/* Nobody has it: it must not count as memory that an eviction would free. */
START_TEST(a_published_block_without_its_fd_is_given_back)
{
	begin();
	world_join(world_client(publish_and_leave, NULL));
	ck_assert_uint_eq(world_books().n_blocks, 1);
	harness_kill(&harness);
	fdkeeper_forget(&harness.fdkeeper, "b1");
	harness_restart(&harness);
	harness_wait_log(&harness, "not adopted: 1 blocks");
	assert_nothing_is_left();
}
END_TEST

static void share_after_restart(void *user)
{
	struct glake_block *block;
	struct glake_share share;
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr old = words_alloc(session, 4 * MIB, 7);
	world_reach(1);
	world_await(2);
	assert_fails(GLAKE_E_BAD_REQUEST, "has no fd since glaked was restarted",
	             glake_block_publish(session, old, 4 * MIB, &block));
	assert_fails(GLAKE_E_NO_FDS, "has no fd since glaked was restarted",
	             glake_share(session, old, &share));
	words_check(old, 4 * MIB, 7);
	/* New memory is as ever. */
	glake_ptr new = words_alloc(session, 4 * MIB, 8);
	assert_ok(glake_block_publish(session, new, 4 * MIB, &block));
	glake_block_release(block);
	glake_free(session, old);
	world_disconnect(session);
}

START_TEST(private_memory_from_before_stays_private)
{
	begin();
	pid_t client = world_client(share_after_restart, NULL);
	world_await(1);
	struct books before = world_books();
	harness_kill(&harness);
	harness_restart(&harness);
	struct books after = world_books();
	ck_assert_uint_eq(after.private_bytes, before.private_bytes);
	ck_assert_uint_eq(after.charged_bytes, before.charged_bytes);
	world_reach(2);
	world_join(client);
}
END_TEST

/* An evicted block is free when the service manager has closed its fds, and the request waits for that. */
START_TEST(what_is_evicted_is_free_at_once)
{
	begin();
	for (int i = 0; i < 3; i++) {
		load("one", 5);
		load("two", 6);
		ck_assert_uint_eq(world_books().n_models, 2);
		/* The service manager is busy for a while. */
		kill(harness.fdkeeper.pid, SIGSTOP);
		pid_t client = world_client(use_most, NULL);
		world_await(i + 1);
		harness_sleep_ms(200);
		kill(harness.fdkeeper.pid, SIGCONT);
		world_join(client);
		ck_assert_uint_eq(world_books().n_models, 0);
		if (i == 1) {
			harness_kill(&harness);
			harness_restart(&harness);
		}
	}
}
END_TEST
