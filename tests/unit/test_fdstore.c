/* SPDX-License-Identifier: Apache-2.0 */
/* Orders to a manager that keeps fds, and the fds that are taken from it. The manager is the test. */
#include "daemon/base/notify.h"
#include "daemon/keep/fdstore.h"
#include "daemon/keep/parking.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/wire.h"
#include "tests/check_glake.h"

static uv_loop_t loop;
static struct fdstore *store;
static int manager = -1;
static unsigned n_came; /* barriers that came back */

/* Becomes the manager, which keeps @max fds. */
static void become_manager(const char *max)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int n_bytes = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1,
	                       "glake-fdstore-%d", (int)getpid());
	char name[128];
	snprintf(name, sizeof(name), "@%s", address.sun_path + 1);
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
	                               (size_t)n_bytes);
	ck_assert_int_eq(bind(manager, (struct sockaddr *)&address, length), 0);
	setenv("NOTIFY_SOCKET", name, 1);
	setenv("FDSTORE", max, 1);
}

static void begin(void)
{
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	ck_assert_int_eq(fdstore_open(&loop, &store), 0);
}

static void begin_kept(const char *max)
{
	become_manager(max);
	begin();
}

static void end(void)
{
	fdstore_close(store);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* The next message, and the fd with it, which is the caller's; -1: none. */
static const char *told_with(int *fd_out)
{
	static char text[GLAKE_MAX_PACKET_BYTES + 1];
	size_t n_bytes = 0;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	*fd_out = -1;
	if (wire_recv(manager, text, sizeof(text) - 1, &n_bytes, &fds, MSG_DONTWAIT) == 0) {
		ck_assert_uint_le(fds.n_fds, 1);
		*fd_out = fdlist_take(&fds, 0);
	}
	text[n_bytes] = '\0';
	return text;
}

static const char *told(void)
{
	cleanup_fd int fd = -1;
	return told_with(&fd);
}

static int file(const char *text)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (int)strlen(text));
	return fd;
}

static void assert_file(int fd, const char *text)
{
	char found[64] = "";
	ck_assert_int_ge(pread(fd, found, sizeof(found) - 1, 0), 0);
	ck_assert_str_eq(found, text);
}

/* Fds with the names "@prefix0", "@prefix1" and on. */
static void put_many(char prefix, unsigned n)
{
	char name[16];
	for (unsigned i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%c%u", prefix, i);
		ck_assert_int_eq(fdstore_put(store, name, STDIN_FILENO), 0);
	}
}

static void on_barrier(void *user)
{
	n_came++;
}

static void turn(void)
{
	uv_run(&loop, UV_RUN_NOWAIT);
}

START_TEST(without_a_manager_nothing_is_kept)
{
	unsetenv("FDSTORE");
	unsetenv("NOTIFY_SOCKET");
	begin();
	ck_assert(!fdstore_is_kept(store));
	ck_assert_int_eq(fdstore_put(store, "b1", STDIN_FILENO), -ENOTSUP);
	fdstore_remove(store, "b1");
	ck_assert_int_eq(fdstore_barrier(store, on_barrier, NULL), 0);
	ck_assert_uint_eq(n_came, 0);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_uint_eq(n_came, 1);
	ck_assert_int_eq(fdstore_take_listener(store), -ENOENT);
	ck_assert_int_eq(fdstore_take(store, "b1"), -ENOENT);
	ck_assert_ptr_null(fdstore_passed(store, 0));
	end();
}
END_TEST

/* systemd before 254, and a unit without FileDescriptorStoreMax=. */
START_TEST(manager_that_does_not_say_how_many_keeps_none)
{
	become_manager("5");
	unsetenv("FDSTORE");
	begin();
	ck_assert(!fdstore_is_kept(store));
	ck_assert_int_eq(fdstore_put(store, "b1", STDIN_FILENO), -ENOTSUP);
	ck_assert_str_eq(told(), "");
	end();
}
END_TEST

START_TEST(words_are_those_of_sd_notify)
{
	cleanup_fd int kept = file("kept");
	cleanup_fd int fd = -1;
	begin_kept("5");
	ck_assert(fdstore_is_kept(store));
	ck_assert_uint_eq(fdstore_max(store), 5);
	ck_assert_int_eq(fdstore_put(store, "b1", kept), 0);
	ck_assert_uint_eq(fdstore_n_kept(store), 1);
	ck_assert_str_eq(told_with(&fd), "FDSTORE=1\nFDPOLL=0\nFDNAME=b1");
	assert_file(fd, "kept");
	fdstore_remove(store, "b1");
	ck_assert_uint_eq(fdstore_n_kept(store), 0);
	ck_assert_str_eq(told(), "FDSTOREREMOVE=1\nFDNAME=b1");
	end();
}
END_TEST

START_TEST(barrier_comes_back_when_the_manager_closes_it)
{
	int first, second;
	begin_kept("5");
	ck_assert_int_eq(fdstore_barrier(store, on_barrier, NULL), 0);
	ck_assert_int_eq(fdstore_barrier(store, on_barrier, NULL), 0);
	ck_assert_str_eq(told_with(&first), "BARRIER=1");
	ck_assert_str_eq(told_with(&second), "BARRIER=1");
	turn();
	ck_assert_uint_eq(n_came, 0);
	close(first);
	turn();
	ck_assert_uint_eq(n_came, 1);
	close(second);
	turn();
	ck_assert_uint_eq(n_came, 2);
	end();
}
END_TEST

/* Then messages wait here, and keep their order; the loop does not wait. */
START_TEST(manager_that_does_not_read_is_waited_for)
{
	enum { N = 1000 };
	char name[16], text[64];
	begin_kept("5000");
	for (unsigned i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "b%u", i);
		cleanup_fd int fd = file(name);
		ck_assert_int_eq(fdstore_put(store, name, fd), 0);
	}
	ck_assert_int_eq(fdstore_barrier(store, on_barrier, NULL), 0);
	turn();
	ck_assert_uint_eq(n_came, 0);
	for (unsigned i = 0; i < N;) {
		cleanup_fd int fd = -1;
		const char *message = told_with(&fd);
		if (!*message) {
			turn();
			continue;
		}
		snprintf(name, sizeof(name), "b%u", i++);
		snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
		ck_assert_str_eq(message, text);
		assert_file(fd, name);
	}
	ck_assert_uint_eq(n_came, 0);
	turn();
	ck_assert_str_eq(told(), "BARRIER=1");
	turn();
	ck_assert_uint_eq(n_came, 1);
	end();
}
END_TEST

/* The next message, with the loop's help: the manager has read those there were, and there may be more. */
static const char *told_soon(void)
{
	const char *text = told();
	for (unsigned i = 0; !*text && i < 4; i++) {
		turn();
		text = told();
	}
	return text;
}

/* A chunk is named and freed, again and again: the manager has nothing to do with what it has not heard of. */
START_TEST(what_is_removed_before_it_was_sent_is_never_sent)
{
	enum { N = 1000 };
	char name[16];
	unsigned n_stores = 0, n_removals = 0;
	begin_kept("5000");
	for (unsigned i = 0; i < N; i++) {
		snprintf(name, sizeof(name), "c%u", i);
		ck_assert_int_eq(fdstore_put(store, name, STDIN_FILENO), 0);
		fdstore_remove(store, name);
	}
	ck_assert_int_eq(fdstore_put(store, "last", STDIN_FILENO), 0);
	ck_assert_uint_eq(fdstore_n_kept(store), 1);
	for (const char *text = told_soon(); *text; text = told_soon()) {
		n_stores += strncmp(text, "FDSTORE=1", 9) == 0;
		n_removals += strncmp(text, "FDSTOREREMOVE=1", 15) == 0;
	}
	ck_assert_uint_eq(n_stores, n_removals + 1);
	/* Only those were sent that the manager's queue had room for. */
	ck_assert_uint_lt(n_stores, N / 2);
	end();
}
END_TEST

/* A name that is put again is another fd's: an fd that was sent is removed, one that was not sent is not. */
START_TEST(a_name_is_of_the_last_that_was_put)
{
	begin_kept("5000");
	ck_assert_int_eq(fdstore_put(store, "b1", STDIN_FILENO), 0);
	ck_assert_str_eq(told(), "FDSTORE=1\nFDPOLL=0\nFDNAME=b1");
	put_many('c', 600);
	ck_assert(fdstore_remove(store, "b1"));
	ck_assert_int_eq(fdstore_put(store, "b1", STDIN_FILENO), 0);
	ck_assert(!fdstore_remove(store, "b1"));
	ck_assert_uint_eq(fdstore_n_kept(store), 600);
	unsigned n_removals = 0;
	for (const char *text = told_soon(); *text; text = told_soon()) {
		ck_assert_str_ne(text, "FDSTORE=1\nFDPOLL=0\nFDNAME=b1");
		n_removals += strcmp(text, "FDSTOREREMOVE=1\nFDNAME=b1") == 0;
	}
	ck_assert_uint_eq(n_removals, 1);
	end();
}
END_TEST

/* The watchdog does not wait for a thousand orders, and is not lost because the queue is full. */
START_TEST(the_beat_goes_before_what_waits)
{
	enum { N = 1000 };
	unsigned n_before = 0;
	begin_kept("5000");
	put_many('b', N);
	ck_assert(!notify_watchdog());
	for (const char *text = told(); strcmp(text, "WATCHDOG=1") != 0; text = told()) {
		n_before += *text != '\0';
		turn();
	}
	/* Messages that were in the queue already. */
	ck_assert_uint_lt(n_before, N / 2);
	ck_assert(notify_catch_up());
	ck_assert_str_ne(told_soon(), "WATCHDOG=1");
	end();
}
END_TEST

/* ---- parking.h -------------------------------------------------------------------------------- */

static struct parking *parking;

static void begin_parking(void)
{
	begin_kept("5000");
	parking = parking_new(&loop, store);
	ck_assert_ptr_nonnull(parking);
}

static void end_parking(void)
{
	parking_free(parking);
	end();
}

static void on_passed(struct parking_wait *wait)
{
	n_came++;
}

START_TEST(a_barrier_that_cannot_be_asked_is_asked_again)
{
	struct parking_wait wait;
	struct rlimit limit;
	begin_parking();
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	const struct rlimit none = {3, limit.rlim_max};
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	list_init(&wait.link);
	parking_await(parking, &wait, parking_put(parking, "b1", STDIN_FILENO), on_passed);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_str_ne(told(), "");
	ck_assert_str_eq(told(), "");
	/* A loop that waited could ask as it begins, and then wait for what nobody has received. */
	while (n_came == 0) {
		uv_run(&loop, UV_RUN_NOWAIT);
		told();
		usleep(1000);
	}
	end_parking();
}
END_TEST

START_TEST(a_barrier_that_was_not_sent_parks_nothing)
{
	char name[16];
	struct parking_wait wait;
	uint64_t number = 0;
	begin_parking();
	for (unsigned i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "b%u", i);
		number = parking_put(parking, name, STDIN_FILENO);
		ck_assert_uint_gt(number, 0);
	}
	list_init(&wait.link);
	parking_await(parking, &wait, number, on_passed);
	/* The first barrier is there, and the second one cannot be asked. */
	for (int fd = -1; n_came == 0;) {
		const char *text = told_with(&fd);
		fd_close(&fd);
		if (strcmp(text, "BARRIER=1") == 0) {
			fd_close(&manager);
		}
		uv_run(&loop, UV_RUN_NOWAIT);
	}
	ck_assert(parking_is_lost(parking));
	ck_assert_uint_eq(parking_put(parking, "c", STDIN_FILENO), 0);
	end_parking();
}
END_TEST

/* The manager handles what it is told. Returns how often it was asked whether it has. */
static unsigned handle_all(void)
{
	int fd = -1;
	unsigned n_barriers = 0;
	while (parking_pending(parking)) {
		n_barriers += strcmp(told_with(&fd), "BARRIER=1") == 0;
		fd_close(&fd);
		turn();
	}
	return n_barriers;
}

START_TEST(a_manager_is_asked_once_for_all_that_it_was_told)
{
	struct parking_wait wait;
	begin_parking();
	list_init(&wait.link);
	parking_await(parking, &wait, parking_put(parking, "b1", STDIN_FILENO), on_passed);
	ck_assert_uint_eq(handle_all(), 1);
	ck_assert_uint_eq(n_came, 1);
	ck_assert_str_eq(told(), "");
	/* The barrier of the first one is on its way: another one is for both others. */
	parking_put(parking, "b2", STDIN_FILENO);
	parking_put(parking, "b3", STDIN_FILENO);
	parking_put(parking, "b4", STDIN_FILENO);
	ck_assert_uint_eq(handle_all(), 2);
	ck_assert_str_eq(told(), "");
	end_parking();
}
END_TEST

static atomic_bool is_handled;
static atomic_bool is_asking;

/* A worker, which lets go of its own fd when the manager has closed the other one. */
static void *wait_for_removal(void *number)
{
	is_asking = true;
	parking_block(parking, *(uint64_t *)number);
	return (void *)(uintptr_t)is_handled;
}

START_TEST(memory_is_free_when_the_manager_has_closed_its_fd)
{
	pthread_t worker;
	void *was_handled = NULL;
	begin_parking();
	ck_assert_uint_eq(parking_remove(parking, "b1"), 0);
	ck_assert_uint_eq(parking_pending(parking), 0);
	uint64_t put = parking_put(parking, "b1", STDIN_FILENO);
	ck_assert_uint_eq(parking_pending(parking), put);
	handle_all();
	ck_assert_uint_eq(parking_pending(parking), 0);
	uint64_t removed = parking_remove(parking, "b1");
	ck_assert_uint_gt(removed, put);
	ck_assert_uint_eq(parking_pending(parking), removed);
	ck_assert_int_eq(pthread_create(&worker, NULL, wait_for_removal, &removed), 0);
	while (!is_asking) {
		turn();
	}
	for (unsigned i = 0; i < 1000; i++) {
		turn();
	}
	is_handled = true;
	handle_all();
	ck_assert_int_eq(pthread_join(worker, &was_handled), 0);
	ck_assert_ptr_nonnull(was_handled);
	ck_assert_uint_eq(parking_remove(parking, "b1"), 0);
	end_parking();
}
END_TEST

START_TEST(end_does_not_wait_for_the_manager)
{
	begin_kept("5000");
	put_many('b', 1000);
	ck_assert_int_eq(fdstore_barrier(store, on_barrier, NULL), 0);
	end();
	ck_assert_uint_eq(n_came, 0);
}
END_TEST

START_TEST(full_store_refuses)
{
	begin_kept("2");
	ck_assert_int_eq(fdstore_put(store, "b1", STDIN_FILENO), 0);
	ck_assert_int_eq(fdstore_put(store, "b2", STDIN_FILENO), 0);
	ck_assert_int_eq(fdstore_put(store, "b3", STDIN_FILENO), -ENOSPC);
	fdstore_remove(store, "b1");
	ck_assert_int_eq(fdstore_put(store, "b3", STDIN_FILENO), 0);
	end();
}
END_TEST

/* The kernel starts no program with a longer variable: nobody could start glaked again. */
START_TEST(names_fill_the_store_too)
{
	char name[FDSTORE_NAME_BYTES];
	unsigned n_put = 0;
	int r;
	begin_kept("1000000");
	for (;; n_put++) {
		snprintf(name, sizeof(name), "%0255u", n_put);
		r = fdstore_put(store, name, STDIN_FILENO);
		if (r < 0) {
			break;
		}
		while (*told()) {
		}
	}
	ck_assert_int_eq(r, -ENOSPC);
	ck_assert_uint_eq(n_put, FDSTORE_NAMES_BYTES / 256);
	end();
}
END_TEST

START_TEST(wrong_names_are_refused)
{
	char name[FDSTORE_NAME_BYTES + 1];
	begin_kept("5");
	memset(name, 'a', FDSTORE_NAME_BYTES);
	name[FDSTORE_NAME_BYTES] = '\0';
	ck_assert_int_eq(fdstore_put(store, name, STDIN_FILENO), -EINVAL);
	ck_assert_int_eq(fdstore_put(store, "", STDIN_FILENO), -EINVAL);
	ck_assert_int_eq(fdstore_put(store, "a:b", STDIN_FILENO), -EINVAL);
	ck_assert_int_eq(fdstore_put(store, "a\nREADY=1", STDIN_FILENO), -EINVAL);
	ck_assert_str_eq(told(), "");
	end();
}
END_TEST

/* ---- what is passed --------------------------------------------------------------------------- */

/* Puts @fd at its place among the passed fds: 3 and on. */
static void pass(int fd, int place, const char *names)
{
	char number[16];
	ck_assert_int_eq(dup2(fd, place), place);
	snprintf(number, sizeof(number), "%d", (int)getpid());
	setenv("LISTEN_PID", number, 1);
	snprintf(number, sizeof(number), "%d", place - 2);
	setenv("LISTEN_FDS", number, 1);
	setenv("LISTEN_FDNAMES", names, 1);
}

static int listener(int type, int listens)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = fcntl(socket(AF_UNIX, type, 0), F_DUPFD, 20);
	ck_assert_int_ge(fd, 20);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t)), 0);
	if (listens) {
		ck_assert_int_eq(listen(fd, 4), 0);
	}
	return fd;
}

START_TEST(kept_files_come_back_beside_a_listener)
{
	int fd;
	cleanup_fd int first = fcntl(file("first"), F_DUPFD, 20);
	cleanup_fd int second = fcntl(file("second"), F_DUPFD, 20);
	pass(listener(SOCK_SEQPACKET, 1), 3, "glaked.socket");
	pass(second, 4, "glaked.socket:b2");
	pass(first, 5, "glaked.socket:b2:b1");
	pass(listener(SOCK_SEQPACKET, 1), 6, "glaked.socket:b2:b1:listen");
	begin_kept("5");
	ck_assert_ptr_null(getenv("LISTEN_FDS"));
	ck_assert_ptr_null(getenv("LISTEN_FDNAMES"));
	ck_assert_uint_eq(fdstore_n_kept(store), 3);
	ck_assert_str_eq(fdstore_passed(store, 0), "b1");
	ck_assert_str_eq(fdstore_passed(store, 1), "b2");
	ck_assert_str_eq(fdstore_passed(store, 2), "listen");
	ck_assert_ptr_null(fdstore_passed(store, 3));
	ck_assert_int_eq(fdstore_take_listener(store), 3);
	ck_assert_int_eq(fdstore_take_listener(store), -ENOENT);
	fd = fdstore_take(store, "b1");
	ck_assert_int_eq(fd, 5);
	assert_file(fd, "first");
	ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
	ck_assert_int_eq(fdstore_take(store, "b1"), -ENOENT);
	ck_assert_int_eq(fdstore_take(store, "listen"), 6);

	/* An fd that nobody took goes, here and at the manager. */
	ck_assert_uint_eq(fdstore_settle(store), 1);
	ck_assert_str_eq(told(), "FDSTOREREMOVE=1\nFDNAME=b2");
	ck_assert_str_eq(told(), "");
	ck_assert_uint_eq(fdstore_n_kept(store), 2);
	ck_assert_ptr_null(fdstore_passed(store, 0));
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(fcntl(4, F_GETFD), -1);
	ck_assert_int_eq(fcntl(5, F_GETFD), FD_CLOEXEC);
	end();
}
END_TEST

START_TEST(fds_of_another_process_are_not_ours)
{
	pass(listener(SOCK_SEQPACKET, 1), 3, "glaked.socket");
	setenv("LISTEN_PID", "1", 1);
	begin();
	ck_assert_int_eq(fdstore_take_listener(store), -ENOENT);
	end();
}
END_TEST

/* Whoever passes fds need not name them. */
START_TEST(listener_without_a_name_is_taken)
{
	pass(listener(SOCK_SEQPACKET, 1), 3, "");
	unsetenv("LISTEN_FDNAMES");
	begin();
	ck_assert_int_eq(fdstore_take_listener(store), 3);
	ck_assert_int_eq(fcntl(3, F_GETFD), FD_CLOEXEC);
	end();
}
END_TEST

static void refused(int n_passed)
{
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	ck_assert_int_eq(fdstore_open(&loop, &store), -EINVAL);
	for (int fd = 3; fd < 3 + n_passed; fd++) {
		ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
	}
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

START_TEST(stream_socket_is_refused)
{
	pass(listener(SOCK_STREAM, 1), 3, "a");
	refused(1);
}
END_TEST

START_TEST(socket_that_does_not_listen_is_refused)
{
	pass(listener(SOCK_SEQPACKET, 0), 3, "a");
	refused(1);
}
END_TEST

START_TEST(two_sockets_are_refused)
{
	pass(listener(SOCK_SEQPACKET, 1), 3, "a");
	pass(listener(SOCK_SEQPACKET, 1), 4, "a:b");
	refused(2);
}
END_TEST
