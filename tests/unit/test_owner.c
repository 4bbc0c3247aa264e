/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-ups of owners, with a database of the test's own: who connects with many uids waits behind himself.
 */
#include "daemon/net/owner.h"

#include <errno.h>
#include <pthread.h>
#include <pwd.h>
#include <shadow/subid.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/inflight.h"
#include "proto/cleanup.h"
#include "tests/check_glake.h"

#define ALICE 12345u
#define BOB 12346u
/* Uids of Alice and, in the middle of the same 65,536, of Bob. */
#define HERS 720000u
#define N_HERS 20000u
#define HIS (HERS + N_HERS)
#define STRANGER 5000000u
/* Look-ups of one line, at most, before it is the turn of another. */
#define TURN 16u

/* ---- the database ----------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answers = PTHREAD_COND_INITIALIZER;
static bool is_hanging;
static atomic_uint n_lookups;
static bool has_overlap;

static void set_hanging(bool hangs)
{
	pthread_mutex_lock(&lock);
	is_hanging = hangs;
	pthread_cond_broadcast(&answers);
	pthread_mutex_unlock(&lock);
}

bool subid_init(const char *name, FILE *log)
{
	return true;
}

int subid_get_uid_owners(uid_t uid, uid_t **owners_out)
{
	int n = 0;
	uid_t *owners = calloc(2, sizeof(*owners));
	pthread_mutex_lock(&lock);
	n_lookups++;
	while (is_hanging) {
		pthread_cond_wait(&answers, &lock);
	}
	pthread_mutex_unlock(&lock);
	if (uid >= HERS && uid < HERS + N_HERS) {
		owners[n++] = ALICE;
	}
	if ((uid >= HIS && uid < HIS + 10) || (has_overlap && uid == HERS + 7)) {
		owners[n++] = BOB;
	}
	*owners_out = owners;
	return n;
}

int subid_get_uid_ranges(const char *name, struct subid_range **ranges_out)
{
	bool is_alice = strcmp(name, "alice") == 0;
	*ranges_out = calloc(1, sizeof(**ranges_out));
	(*ranges_out)->start = is_alice ? HERS : HIS;
	(*ranges_out)->count = is_alice ? N_HERS : 10;
	return 1;
}

int getpwuid_r(uid_t uid, struct passwd *account, char *buffer, size_t n_bytes,
               struct passwd **found_out)
{
	*found_out = uid == ALICE || uid == BOB ? account : NULL;
	account->pw_name = (char *)(uid == ALICE ? "alice" : "bob");
	return 0;
}

/* ---- connections ------------------------------------------------------------------------------ */

/* Whose the next connection is, as the kernel would say. */
static uid_t peer_uid;

int getsockopt(int fd, int level, int name, void *value, socklen_t *n_bytes)
{
	((struct ucred *)value)->uid = peer_uid;
	return 0;
}

static uv_loop_t loop;
static struct owners *owners;
static unsigned n_known;
static unsigned n_strange; /* of them, not Alice's */
static uid_t last_owner;

static void on_known(void *user, int fd, uid_t owner)
{
	n_known++;
	n_strange += owner != ALICE;
	last_owner = owner;
	close(fd);
}

static void connect_as(uid_t uid)
{
	int ends[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	close(ends[1]);
	peer_uid = uid;
	owners_find(owners, ends[0]);
}

static void begin(void)
{
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	ck_assert_int_eq(owners_new(&loop, on_known, NULL, &owners), 0);
}

static void run_until(unsigned n)
{
	while (n_known < n) {
		uv_run(&loop, UV_RUN_ONCE);
	}
}

static void end(void)
{
	owners_close(owners);
	while (owners_is_busy(owners)) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	owners_free(owners);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}
BEGIN_EACH(begin)
END_EACH(end)

/* ---- the tests -------------------------------------------------------------------------------- */

/* Returns the number of look-ups until one more, of @uid, is known behind a hundred of Alice. */
static unsigned lookups_until_known(uid_t uid)
{
	set_hanging(true);
	for (unsigned i = 0; i < 100; i++) {
		connect_as(HERS + 100 + i);
	}
	connect_as(uid);
	unsigned n_before = n_lookups;
	set_hanging(false);
	while (n_strange == 0) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	return n_lookups - n_before;
}

START_TEST(a_stranger_does_not_wait_for_all_uids_of_another)
{
	ck_assert_uint_le(lookups_until_known(STRANGER), 2 + TURN);
	ck_assert_uint_eq(last_owner, STRANGER);
	run_until(101);
}
END_TEST

/* As soon as one look-up has told where Alice's range ends. */
START_TEST(a_neighbour_of_a_range_does_not_wait_for_it)
{
	ck_assert_uint_le(lookups_until_known(HIS), 3 + TURN);
	ck_assert_uint_eq(last_owner, BOB);
	run_until(101);
}
END_TEST

/* A range is no answer. */
START_TEST(a_uid_in_a_known_range_is_looked_up_itself)
{
	has_overlap = true;
	connect_as(HERS);
	run_until(1);
	ck_assert_uint_eq(last_owner, ALICE);
	connect_as(HERS + 7);
	run_until(2);
	ck_assert_uint_eq(last_owner, HERS + 7);
}
END_TEST

START_TEST(whom_many_uids_of_another_follow_stays_known)
{
	connect_as(STRANGER);
	run_until(1);
	for (unsigned i = 0; i < 6000; i++) {
		connect_as(HERS + i);
		run_until(2 + i);
	}
	unsigned n_before = n_lookups;
	connect_as(STRANGER);
	ck_assert_uint_eq(n_known, 6002);
	ck_assert_uint_eq(n_lookups, n_before);
}
END_TEST

/* Accepting waits for who is being looked up, but not for a database that hangs. */
START_TEST(a_database_that_hangs_holds_up_one_users_connections_alone)
{
	set_hanging(true);
	for (unsigned i = 0; !owners_is_full(owners); i++) {
		ck_assert_uint_lt(i, OWNERS_MAX_WAITING);
		connect_as(HERS + i);
	}
	while (owners_is_full(owners)) {
		uv_sleep(1);
		uv_update_time(&loop);
	}
	for (unsigned i = 0; i < 2 * OWNERS_MAX_WAITING; i++) {
		connect_as(HERS + 300 + i);
		ck_assert(!owners_is_full(owners));
	}
	connect_as(STRANGER);
	set_hanging(false);
	while (n_strange == 0) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	ck_assert_uint_lt(n_known, 4 + TURN);
}
END_TEST

START_TEST(who_waits_is_known_or_let_go)
{
	set_hanging(true);
	for (unsigned i = 0; i < 50; i++) {
		connect_as(HERS + i % 3);
		connect_as(HIS + i % 5);
		connect_as(STRANGER + (i << 16));
	}
	set_hanging(false);
	run_until(150);
	ck_assert_uint_eq(n_lookups, 3 + 5 + 50);
	owners_forget(owners);
	connect_as(HERS);
	run_until(151);
	ck_assert_uint_eq(n_lookups, 3 + 5 + 50 + 1);
	connect_as(HERS + 1);
}
END_TEST
