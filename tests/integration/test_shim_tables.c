/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of readers that glaked hands out: programs (tests/shim/auto.c) that have no other are sealed by themselves. And who may
 * have written them.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/readers.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define CONFIG WORLD_CONFIG "warm_bytes = \"64MiB\"; "
#define SOMEBODY 1000

static void begin_as(uid_t uid)
{
	world_begin(.config = CONFIG, .devices = "1x1GiB", .uid = uid);
	readers_begin();
	unsetenv("GLAKE_READERS");
}

static void reload(const char *folder)
{
	char text[512];
	snprintf(text, sizeof(text), CONFIG "readers = \"%s\";", world_path(folder));
	harness_reload(&harness, text);
}

/* Its fd is none of the world's. */
static void finish(void)
{
	harness_reload(&harness, CONFIG);
}

static void start_as(struct run *run, const char *dedup, const char *scenario)
{
	run_start(run, dedup, run_in_build("tests/shim/auto"), scenario, NULL);
}

static void run_as(const char *dedup, const char *scenario)
{
	struct run run;
	start_as(&run, dedup, scenario);
	run_end_well(&run);
}

static void two_are_one(void)
{
	struct run runs[2];
	start_as(&runs[0], "GLAKE_DEDUP=auto", "reads");
	start_as(&runs[1], "GLAKE_DEDUP=auto", "reads");
	run_read(&runs[0], "sealed");
	run_read(&runs[1], "sealed");
	ck_assert_uint_eq(world_books().block_bytes, 4 * MIB);
	for (unsigned i = 0; i < 2; i++) {
		run_finish(&runs[i]);
	}
}

START_TEST(programs_have_the_tables_that_glaked_has)
{
	begin_as(0);
	if (!harness_is_root()) {
		return;
	}
	run_as("GLAKE_DEDUP=auto", "unsealed");
	reload("readers.d");
	two_are_one();
	run_as("GLAKE_DEDUP=auto", "plain");
	run_as("GLAKE_DEDUP=auto", "unlisted");
	run_as("GLAKE_DEDUP=auto", "early");
	run_as("GLAKE_DEDUP=off", "unsealed");
	/* Who names a folder has that one. */
	setenv("GLAKE_READERS", world_path("."), 1);
	run_as("GLAKE_DEDUP=auto", "unsealed");
	finish();
}
END_TEST

/* His own programs and his own tables: no administrator is asked. */
START_TEST(a_glaked_of_a_user_has_tables_of_the_user)
{
	if (!harness_is_root()) {
		world_begin(.config = CONFIG);
		return;
	}
	begin_as(SOMEBODY);
	assert_ok(chown(world_path("readers.d"), SOMEBODY, SOMEBODY));
	assert_ok(chown(world_path("readers.d/test.readers"), SOMEBODY, SOMEBODY));
	reload("readers.d");
	harness_wait_log(&harness, "tables of readers: 1, ");
	two_are_one();
	finish();
}
END_TEST

static void forged(const char *what)
{
	unsigned n = harness_n_log_lines(&harness, what);
	reload("readers.d");
	ck_assert_msg(harness_n_log_lines(&harness, what) == n + 1, "not said: %s", what);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "tables of readers: "), 0);
}

START_TEST(a_forged_table_does_not_count)
{
	begin_as(0);
	cleanup_free char *table = strdup(world_path("readers.d/test.readers"));
	cleanup_free char *folder = strdup(world_path("readers.d"));
	char text[8192];
	if (!harness_is_root()) {
		return;
	}
	assert_ok(chmod(table, 0666));
	forged("a table of readers does not count: ");
	run_as("GLAKE_DEDUP=auto", "unsealed");
	assert_ok(chmod(table, 0664));
	forged("test.readers: others may write to it");
	assert_ok(chmod(table, 0644));
	assert_ok(chown(table, SOMEBODY, 0));
	forged("test.readers: others may write to it");
	assert_ok(chown(table, 0, 0));
	assert_ok(chmod(folder, 0777));
	forged("no table of readers counts: ");
	run_as("GLAKE_DEDUP=auto", "unsealed");
	assert_ok(chmod(folder, 0755));
	assert_ok(chmod(world_path("."), 0777));
	forged("readers.d: others may write to a folder above it");
	assert_ok(chmod(world_path("."), 0755));
	assert_ok(rename(table, world_path("elsewhere")));
	assert_ok(symlink(world_path("elsewhere"), table));
	forged("test.readers: Too many levels of symbolic links");
	assert_ok(unlink(table));
	assert_ok(mkfifo(table, 0644));
	forged("test.readers: it is not a file");
	assert_ok(unlink(table));
	/* Cut short it would say less of what a word wants. */
	cleanup_fd int fd = open(world_path("elsewhere"), O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text) - 1);
	ck_assert_int_gt(n, 1);
	text[n - 1] = '\0';
	world_write_text("readers.d/test.readers", text);
	assert_ok(chmod(table, 0644));
	forged("test.readers: its last line has no end");
	text[n - 1] = '\n';
	text[20] = '\0';
	world_write_file("readers.d/test.readers", text, (size_t)n);
	assert_ok(chmod(table, 0644));
	forged("test.readers: it is no text");
	assert_ok(truncate(table, (16 << 20) + 1));
	forged("test.readers: it is too large");
	run_as("GLAKE_DEDUP=auto", "unsealed");
	assert_ok(unlink(table));
	assert_ok(rename(world_path("elsewhere"), table));
	reload("readers.d");
	two_are_one();
	finish();
}
END_TEST

/* One that does not count is no reason to do without the others; and one with an error is none for programs. */
START_TEST(other_tables_count)
{
	begin_as(0);
	if (!harness_is_root()) {
		return;
	}
	world_write_text("readers.d/a.readers", "glake-readers 1\nthis is none\n");
	assert_ok(chmod(world_path("readers.d/a.readers"), 0644));
	world_write_text("readers.d/b.readers", "glake-readers 1\n");
	assert_ok(chmod(world_path("readers.d/b.readers"), 0666));
	world_write_text("readers.d/empty.readers", "");
	assert_ok(chmod(world_path("readers.d/empty.readers"), 0644));
	reload("readers.d");
	harness_wait_log(&harness, "b.readers: others may write to it");
	harness_wait_log(&harness, "tables of readers: 3, ");
	run_as("GLAKE_DEDUP=auto", "plain");
	finish();
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_no_end)
{
	begin_as(0);
	reload("nowhere");
	harness_wait_log(&harness, "no table of readers counts: ");
	run_as("GLAKE_DEDUP=auto", "unsealed");
	finish();
}
END_TEST

/* ---- what clients can do to it ---- */

static int take(int connection, uint64_t *n_bytes_out)
{
	struct fdlist fds;
	fdlist_init(&fds);
	Glake__Wire__Answer *answer = connection_call(
		connection, REQUEST(READERS_GET, ReadersGet, readers_get), NULL, 0, &fds);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	*n_bytes_out = answer->readers->bytes;
	int fd = fdlist_take(&fds, 0);
	connection_free(answer);
	fdlist_deinit(&fds);
	return fd;
}

static void change_it(struct harness *of, void *user)
{
	int fd = *(const int *)user;
	char path[64];
	struct stat facts;
	(void)of;
	assert_ok(fstat(fd, &facts));
	ck_assert_int_lt(write(fd, "x", 1), 0);
	ck_assert_int_lt(ftruncate(fd, 0), 0);
	ck_assert_int_lt(ftruncate(fd, facts.st_size + 1), 0);
	ck_assert_int_lt(fallocate(fd, 0, 0, facts.st_size + 4096), 0);
	ck_assert_int_lt(fcntl(fd, F_ADD_SEALS, 0), 0);
	ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	/* Nor has it another way in, or properties of a stranger's. */
	if (geteuid() != 0) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ck_assert_int_lt(open(path, O_RDWR | O_CLOEXEC), 0);
		ck_assert_int_lt(fchmod(fd, 0666), 0);
	}
	/* The place where others would read on, if they read so. */
	ck_assert_int_ge(lseek(fd, 0, SEEK_END), 0);
}

START_TEST(no_client_changes_what_others_read)
{
	uint64_t n_bytes;
	begin_as(0);
	cleanup_fd int connection = connection_hello(&harness);
	ck_assert_int_eq(take(connection, &n_bytes), -1);
	ck_assert_uint_eq(n_bytes, 0);
	if (!harness_is_root()) {
		return;
	}
	reload("readers.d");
	cleanup_fd int fd = take(connection, &n_bytes);
	struct stat facts;
	assert_ok(fstat(fd, &facts));
	ck_assert_uint_eq((uint64_t)facts.st_size, n_bytes);
	change_it(&harness, &fd);
	harness_as(&harness, SOMEBODY, SOMEBODY, change_it, &fd);
	two_are_one();
	connection_goodbye(connection);
	finish();
}
END_TEST

/* glaked has one fd for them, and none for those before; who has been given those reads on. */
START_TEST(tables_of_before_go)
{
	uint64_t n_bytes;
	char first;
	begin_as(0);
	if (!harness_is_root()) {
		return;
	}
	cleanup_fd int connection = connection_hello(&harness);
	reload("readers.d");
	cleanup_fd int fd = take(connection, &n_bytes);
	size_t n_fds = harness_settle_n_fds(&harness);
	for (unsigned i = 0; i < 10; i++) {
		reload("readers.d");
		uint64_t n_now;
		cleanup_fd int again = take(connection, &n_now);
		ck_assert_uint_eq(n_now, n_bytes);
	}
	harness_wait_n_fds(&harness, n_fds);
	ck_assert_int_eq(pread(fd, &first, 1, 0), 1);
	ck_assert_int_eq(first, 'g');
	reload("nowhere");
	harness_wait_n_fds(&harness, n_fds - 1);
	connection_goodbye(connection);
	finish();
}
END_TEST

/* A reload is for processes that start later. */
START_TEST(a_process_keeps_its_tables)
{
	struct run run;
	begin_as(0);
	if (!harness_is_root()) {
		return;
	}
	reload("readers.d");
	start_as(&run, "GLAKE_DEDUP=auto", "reads");
	run_read(&run, "sealed");
	reload("nowhere");
	run_as("GLAKE_DEDUP=auto", "unsealed");
	run_finish(&run);
	finish();
}
END_TEST
