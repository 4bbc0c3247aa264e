/* SPDX-License-Identifier: Apache-2.0 */
/* The journal: what was put is there again, whatever happens to the process or the file. */
#include "daemon/keep/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/check_glake.h"

#define N_IDS 40u

static uv_loop_t loop;
static char folder[256];
static char path[300];
static char lock_path[310];
static struct journal *journal;
static struct journal_image image;

static void begin(void)
{
	const char *temporary = getenv("TMPDIR");
	snprintf(folder, sizeof(folder), "%s/journalXXXXXX", temporary ? temporary : "/tmp");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(path, sizeof(path), "%s/state", folder);
	snprintf(lock_path, sizeof(lock_path), "%s.lock", path);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
}

/* As journal.c has it, behind the boot. 0: there is none. */
static uint64_t serial_in_file(void)
{
	uint64_t serial = 0;
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	return pread(fd, &serial, sizeof(serial), 56) == (ssize_t)sizeof(serial) ? serial : 0;
}

static void open_as(const char *boot)
{
	int r = journal_open(&loop, path, boot, serial_in_file(), &journal, &image);
	ck_assert_msg(r == 0, "%s: %s", path, strerror(-r));
}

static void run_jobs(void)
{
	while (journal_is_busy(journal)) {
		uv_run(&loop, UV_RUN_ONCE);
	}
}

static void leave(void)
{
	journal_close(journal);
	run_jobs();
	journal_free(journal);
	journal = NULL;
}

static void end(void)
{
	if (journal) {
		leave();
	}
	ck_assert_int_eq(uv_loop_close(&loop), 0);
	unlink(path);
	unlink(lock_path);
	/* So no other file is left beside it. */
	ck_assert_int_eq(rmdir(folder), 0);
}
BEGIN_EACH(begin)
END_EACH(end)

/* ---- what it should say ----------------------------------------------------------------------- */

/* Bodies as the test's own table has them; 0: none. */
static unsigned model[N_IDS];

static void body_of(uint64_t id, unsigned version, char *text, size_t n_bytes)
{
	snprintf(text, n_bytes, "%u of %u, %.*s", version, (unsigned)id,
	         (int)(version * 7 + id * 3) % 60,
	         "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefgh");
}

static void put(unsigned id, unsigned version)
{
	char text[128];
	body_of(id, version, text, sizeof(text));
	journal_put(journal, 1 + id % 3, id, text, strlen(text));
	model[id] = version;
}

static void delete (unsigned id)
{
	journal_delete(journal, 1 + id % 3, id);
	model[id] = 0;
}

static unsigned version_of(const struct journal_entry *entry)
{
	char text[128];
	unsigned version = (unsigned)strtoul((const char *)entry->pieces[0].body, NULL, 10);
	body_of(entry->key.id, version, text, sizeof(text));
	ck_assert_uint_eq(entry->n_pieces, 1);
	ck_assert_uint_eq(entry->key.kind, 1 + entry->key.id % 3);
	ck_assert_uint_eq(entry->pieces[0].n_bytes, strlen(text));
	ck_assert_int_eq(memcmp(entry->pieces[0].body, text, strlen(text)), 0);
	return version;
}

static void assert_says(const struct journal_image *says, const unsigned *want)
{
	unsigned seen[N_IDS] = {0};
	ck_assert_int_eq(says->state, JOURNAL_GOOD);
	for (const struct journal_entry *entry = says->entries; entry; entry = entry->hh.next) {
		seen[entry->key.id] = version_of(entry);
	}
	ck_assert_int_eq(memcmp(seen, want, sizeof(seen)), 0);
}

static void open_again(void)
{
	leave();
	open_as("one");
	assert_says(&image, model);
	ck_assert(!image.is_torn);
	journal_image_free(&image);
}

static void change(unsigned step)
{
	unsigned id = (step * 2654435761u >> 8) % N_IDS;
	if (step % 4 == 3 && model[id]) {
		delete (id);
	} else {
		put(id, step + 1);
	}
}

/* ---- the tests -------------------------------------------------------------------------------- */

START_TEST(what_was_put_is_there_again)
{
	struct stat status;
	open_as("one");
	ck_assert_int_eq(image.state, JOURNAL_ABSENT);
	for (unsigned step = 0; step < 200; step++) {
		change(step);
	}
	open_again();
	change(7);
	open_again();
	ck_assert_int_eq(stat(path, &status), 0);
	ck_assert_int_eq(status.st_mode & 07777, 0600);
}
END_TEST

START_TEST(a_body_may_come_in_pieces)
{
	open_as("one");
	journal_put(journal, 5, 9, "old", 3);
	journal_put(journal, 5, 9, "a", 1);
	journal_more(journal, 5, 9, "bc", 2);
	journal_more(journal, 5, 9, "", 0);
	leave();
	open_as("one");
	const struct journal_entry *entry = image.entries;
	ck_assert_uint_eq(entry->n_pieces, 3);
	ck_assert_int_eq(memcmp(entry->pieces[0].body, "a", 1), 0);
	ck_assert_int_eq(memcmp(entry->pieces[1].body, "bc", 2), 0);
	ck_assert_uint_eq(entry->pieces[2].n_bytes, 0);
	journal_image_free(&image);
}
END_TEST

START_TEST(a_killed_process_leaves_what_it_had_put)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		uv_loop_fork(&loop);
		open_as("one");
		for (unsigned step = 0; step < 50; step++) {
			change(step);
		}
		raise(SIGKILL);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFSIGNALED(status));
	for (unsigned step = 0; step < 50; step++) {
		unsigned id = (step * 2654435761u >> 8) % N_IDS;
		model[id] = step % 4 == 3 && model[id] ? 0 : step + 1;
	}
	open_as("one");
	assert_says(&image, model);
	journal_image_free(&image);
}
END_TEST

static size_t read_file(uint8_t **bytes_out)
{
	cleanup_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t n_bytes = (size_t)lseek(fd, 0, SEEK_END);
	*bytes_out = malloc(n_bytes + 8);
	ck_assert_ptr_nonnull(*bytes_out);
	ck_assert_int_eq(pread(fd, *bytes_out, n_bytes, 0), (ssize_t)n_bytes);
	return n_bytes;
}

/* All steps' states, and where each of them ends in the file. */
#define N_STEPS 30u
static unsigned states[N_STEPS + 1][N_IDS];
static size_t ends[N_STEPS + 1];

static size_t write_steps(uint8_t **bytes_out)
{
	open_as("one");
	for (unsigned step = 0; step <= N_STEPS; step++) {
		memcpy(states[step], model, sizeof(model));
		ends[step] = journal_n_bytes(journal);
		change(step);
	}
	leave();
	return read_file(bytes_out);
}

/* The last records may be those that take something back. */
START_TEST(a_file_that_is_cut_anywhere_is_not_believed)
{
	uint8_t *bytes;
	write_steps(&bytes);
	for (size_t n = 0; n <= ends[N_STEPS]; n++) {
		ck_assert_int_eq(journal_read(bytes, n, "one", &image), 0);
		ck_assert_int_eq(image.state, n == 0 ? JOURNAL_ABSENT : JOURNAL_DAMAGED);
		ck_assert_ptr_null(image.entries);
	}
	free(bytes);
}
END_TEST

/* The first word is written last, and behind it only where the records end: as journal.c has it. */
START_TEST(a_record_that_is_not_complete_does_not_count)
{
	uint8_t *bytes;
	size_t n_bytes = write_steps(&bytes);
	uint64_t end = ends[N_STEPS - 1];
	memset(bytes + end, 0, 8);
	memcpy(bytes + 72, &end, sizeof(end));
	for (size_t n = ends[N_STEPS]; n > end; n--) {
		memset(bytes + n, 0, ends[N_STEPS] - n);
		memset(bytes + ends[N_STEPS], 0, n_bytes - ends[N_STEPS]);
		ck_assert_int_eq(journal_read(bytes, n_bytes, "one", &image), 0);
		assert_says(&image, states[N_STEPS - 1]);
		journal_image_free(&image);
	}
	free(bytes);
}
END_TEST

START_TEST(the_next_process_goes_on_behind_a_torn_record)
{
	open_as("one");
	for (unsigned step = 0; step < N_STEPS; step++) {
		change(step);
	}
	size_t at = journal_n_bytes(journal);
	leave();
	cleanup_fd int fd = open(path, O_RDWR | O_CLOEXEC);
	/* All but the first word, which would have been the last. */
	ck_assert_int_eq(pwrite(fd, "some bytes of a record", 22, (off_t)at + 8), 22);
	open_as("one");
	ck_assert(image.is_torn);
	assert_says(&image, model);
	journal_image_free(&image);
	change(100);
	open_again();
}
END_TEST

START_TEST(flipped_bits_are_found)
{
	uint8_t *bytes;
	size_t n_bytes = write_steps(&bytes);
	for (size_t bit = 0; bit < ends[N_STEPS - 1] * 8; bit += TEST_ONE_IN) {
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		ck_assert_int_eq(journal_read(bytes, n_bytes, "one", &image), 0);
		/* Padding says nothing. */
		if (image.state == JOURNAL_GOOD && image.end >= ends[N_STEPS]) {
			ck_assert(!image.is_torn);
		} else {
			ck_assert_int_ne(image.state, JOURNAL_GOOD);
			ck_assert_ptr_null(image.entries);
		}
		journal_image_free(&image);
		bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	free(bytes);
}
END_TEST

START_TEST(books_of_another_boot_are_not_read)
{
	open_as("one");
	put(1, 1);
	leave();
	open_as("two");
	ck_assert_int_eq(image.state, JOURNAL_OTHER_BOOT);
	ck_assert_ptr_null(image.entries);
	leave();
	/* And are gone. */
	open_as("one");
	ck_assert_int_eq(image.state, JOURNAL_OTHER_BOOT);
}
END_TEST

START_TEST(books_of_a_newer_version_are_not_read)
{
	uint32_t version = JOURNAL_VERSION + 1;
	open_as("one");
	put(1, 1);
	leave();
	cleanup_fd int fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(pwrite(fd, &version, sizeof(version), 8), sizeof(version));
	open_as("one");
	ck_assert_int_eq(image.state, JOURNAL_NEWER);
	ck_assert_ptr_null(image.entries);
}
END_TEST

START_TEST(another_file_is_no_journal)
{
	cleanup_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	ck_assert_int_eq(write(fd, "# a config file\n", 16), 16);
	open_as("one");
	ck_assert_int_eq(image.state, JOURNAL_DAMAGED);
	put(1, 1);
	open_again();
}
END_TEST

START_TEST(what_is_not_valid_any_more_does_not_stay)
{
	size_t most_bytes = 0;
	open_as("one");
	for (unsigned step = 0; step < 200000; step++) {
		change(step);
		if (step % 4096 == 0) {
			run_jobs();
		}
		most_bytes = journal_n_bytes(journal) > most_bytes ? journal_n_bytes(journal)
		                                                   : most_bytes;
	}
	/* Some 16 MB were put. */
	ck_assert_uint_lt(most_bytes, 4u * 1024 * 1024);
	run_jobs();
	ck_assert_uint_lt(journal_n_bytes(journal), 4u * 1024 * 1024);
	open_again();
	ck_assert_int_eq(journal_error(journal), 0);
}
END_TEST

static void crash_at(unsigned n_steps)
{
	open_as("one");
	for (unsigned step = 0; step < n_steps; step++) {
		change(step);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	/* Not journal_close(): a thread may be at work. */
	raise(SIGKILL);
}

START_TEST(a_process_that_is_killed_while_it_compacts_has_lost_nothing)
{
	for (unsigned n_steps = 14000; n_steps < 18000; n_steps += 397) {
		int status;
		pid_t child = fork();
		if (child == 0) {
			uv_loop_fork(&loop);
			crash_at(n_steps);
		}
		ck_assert_int_eq(waitpid(child, &status, 0), child);
		ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		memset(model, 0, sizeof(model));
		for (unsigned step = 0; step < n_steps; step++) {
			unsigned id = (step * 2654435761u >> 8) % N_IDS;
			model[id] = step % 4 == 3 && model[id] ? 0 : step + 1;
		}
		open_as("one");
		assert_says(&image, model);
		journal_image_free(&image);
		leave();
		unlink(path);
	}
	char new_path[310];
	snprintf(new_path, sizeof(new_path), "%s.new", path);
	unlink(new_path);
}
END_TEST

START_TEST(the_highest_id_is_remembered)
{
	open_as("one");
	put(5, 1);
	put(32, 1);
	delete (32);
	for (unsigned i = 0; i < 40000; i++) {
		put(5, 1 + i % 9);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	run_jobs();
	ck_assert_uint_lt(journal_n_bytes(journal), 2u * 1024 * 1024);
	leave();
	open_as("one");
	ck_assert_uint_eq(image.max_ids[1 + 32 % 3], 32);
	assert_says(&image, model);
	journal_image_free(&image);
}
END_TEST

START_TEST(more_than_was_allocated_ahead_goes_in_at_once)
{
	static uint8_t body[JOURNAL_MAX_BODY];
	open_as("one");
	for (unsigned i = 0; i < 500; i++) {
		memset(body, (int)i, sizeof(body));
		journal_put(journal, 2, i, body, sizeof(body));
	}
	ck_assert_int_eq(journal_error(journal), 0);
	leave();
	open_as("one");
	ck_assert_uint_eq(HASH_COUNT(image.entries), 500);
	ck_assert_uint_eq(image.entries->pieces[0].n_bytes, sizeof(body));
	journal_image_free(&image);
}
END_TEST

static void limit_files(rlim_t n_bytes)
{
	struct rlimit limit;
	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = n_bytes;
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void put_all(void *user)
{
	for (unsigned id = 0; id < N_IDS; id++) {
		put(id, id + 1);
	}
}

static void fail_journal(void)
{
	static const uint8_t body[JOURNAL_MAX_BODY];
	signal(SIGXFSZ, SIG_IGN);
	limit_files(12u * 1024 * 1024);
	for (unsigned i = 0; i < 500; i++) {
		journal_put(journal, 2, i, body, sizeof(body));
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	ck_assert_int_eq(journal_error(journal), EFBIG);
	run_jobs();
	ck_assert_int_lt(access(path, F_OK), 0);
}

START_TEST(books_that_are_not_complete_are_not_kept)
{
	open_as("one");
	fail_journal();
	leave();
}
END_TEST

static atomic_bool is_held;
static atomic_bool is_reached;

/* That of libc; the thread that gives new books their name stands here while it is held. */
int rename(const char *from, const char *to)
{
	is_reached = true;
	while (is_held) {
		sched_yield();
	}
	return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

/* The old ones lack something, and the new ones get their name a moment later. */
START_TEST(books_that_fail_while_they_are_written_anew_are_not_kept)
{
	static const uint8_t body[JOURNAL_MAX_BODY];
	open_as("one");
	is_held = true;
	is_reached = false;
	for (unsigned step = 0; !is_reached; step++) {
		change(step);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	signal(SIGXFSZ, SIG_IGN);
	limit_files(1024);
	for (unsigned i = 0; !journal_error(journal); i++) {
		journal_put(journal, 2, i, body, sizeof(body));
	}
	is_held = false;
	run_jobs();
	ck_assert_int_lt(access(path, F_OK), 0);
	limit_files(RLIM_INFINITY);
	leave();
}
END_TEST

START_TEST(books_that_have_failed_begin_anew_as_soon_as_there_is_room)
{
	open_as("one");
	uint64_t serial = journal_serial(journal);
	fail_journal();
	limit_files(1024);
	ck_assert_int_eq(journal_renew(journal, put_all, NULL), -EFBIG);
	ck_assert_int_eq(journal_error(journal), EFBIG);
	ck_assert_int_lt(access(path, F_OK), 0);
	limit_files(RLIM_INFINITY);
	ck_assert_int_eq(journal_renew(journal, put_all, NULL), 0);
	change(7);
	open_again();
	ck_assert_uint_eq(journal_serial(journal), serial);
}
END_TEST

/* ---- a file that cannot grow ------------------------------------------------------------------- */

#define LIMIT_BYTES (24u * 1024 * 1024)

static void begin_small(void)
{
	signal(SIGXFSZ, SIG_IGN);
	limit_files(LIMIT_BYTES);
	open_as("one");
}

/* As the smallest record of the books. */
static void put_small(uint64_t id)
{
	journal_put(journal, 1, id, "twenty-four bytes long..", 24);
}

static void tick(void)
{
	journal_tick(journal);
	run_jobs();
}

/* Returns how many. */
static uint64_t fill(void)
{
	uint64_t n = 0;
	while (journal_has_room(journal)) {
		put_small(++n);
		if (n % 64 == 0) {
			uv_run(&loop, UV_RUN_NOWAIT);
		}
		if (!journal_has_room(journal)) {
			tick();
		}
	}
	return n;
}

static void assert_has(uint64_t first, uint64_t last)
{
	leave();
	open_as("one");
	ck_assert_int_eq(image.state, JOURNAL_GOOD);
	ck_assert_uint_eq(HASH_COUNT(image.entries), last - first + 1);
	for (uint64_t id = first; id <= last; id++) {
		ck_assert_ptr_nonnull(journal_find(&image, 1, id));
	}
	journal_image_free(&image);
}

/* Without a turn of the loop: a process with all of them has died. */
START_TEST(all_that_was_put_can_be_deleted_however_full_the_file_is)
{
	begin_small();
	uint64_t n = fill();
	ck_assert_uint_gt(n, 200000);
	for (uint64_t id = 1; id < n; id++) {
		journal_delete(journal, 1, id);
	}
	ck_assert_int_eq(journal_error(journal), 0);
	assert_has(n, n);
	tick();
	ck_assert(journal_has_room(journal));
}
END_TEST

START_TEST(what_is_valid_and_fits_never_ends_a_journal)
{
	enum { N = 100000 };
	begin_small();
	for (uint64_t i = 0; i < 30 * N; i++) {
		/* Two thirds of the file can be used, and these are four tenths. */
		while (!journal_has_room(journal)) {
			ck_assert(journal_is_busy(journal));
			uv_run(&loop, UV_RUN_ONCE);
		}
		put_small(1 + i % (2 * N));
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	ck_assert_int_eq(journal_error(journal), 0);
	assert_has(1, 2 * N);
}
END_TEST

START_TEST(a_full_journal_has_room_again_when_something_is_deleted)
{
	begin_small();
	uint64_t n = fill();
	for (uint64_t id = 1; id <= 20000; id++) {
		journal_delete(journal, 1, id);
	}
	tick();
	ck_assert(journal_has_room(journal));
	assert_has(20001, n);
}
END_TEST

/* Entries from before are gone. */
START_TEST(books_begin_anew_at_once)
{
	open_as("one");
	journal_put(journal, 7, 1, "old", 3);
	ck_assert_int_eq(journal_renew(journal, put_all, NULL), 0);
	for (unsigned step = 0; step < 20000; step++) {
		change(step);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	run_jobs();
	open_again();
}
END_TEST

START_TEST(a_file_that_cannot_be_made_at_first_is_made_later)
{
	signal(SIGXFSZ, SIG_IGN);
	limit_files(1024);
	open_as("one");
	ck_assert_int_eq(journal_error(journal), EFBIG);
	put(1, 1);
	limit_files(RLIM_INFINITY);
	ck_assert_int_eq(journal_renew(journal, put_all, NULL), 0);
	open_again();
}
END_TEST

/* Not as if nothing had been put. */
START_TEST(a_damaged_file_stays_damaged)
{
	open_as("one");
	for (unsigned step = 0; step < 100; step++) {
		change(step);
	}
	cleanup_fd int fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(pwrite(fd, "x", 1, 80 + 24), 1);
	for (unsigned step = 0; step < 20000; step++) {
		change(step);
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	leave();
	open_as("one");
	ck_assert_int_eq(image.state, JOURNAL_DAMAGED);
}
END_TEST

/* Nothing that is put is believed to be there, and nothing is left beside it. */
START_TEST(a_folder_in_its_place_is_an_error)
{
	ck_assert_int_eq(mkdir(path, 0700), 0);
	open_as("one");
	ck_assert_int_eq(journal_error(journal), EISDIR);
	ck_assert_int_eq(journal_renew(journal, put_all, NULL), -EISDIR);
	ck_assert_int_eq(journal_error(journal), EISDIR);
	leave();
	ck_assert_int_eq(rmdir(path), 0);
}
END_TEST

START_TEST(a_folder_that_is_not_there_is_an_error)
{
	snprintf(path, sizeof(path), "%s/not/there", folder);
	ck_assert_int_eq(journal_open(&loop, path, "one", 0, &journal, &image), -ENOENT);
	ck_assert_ptr_null(journal);
}
END_TEST
