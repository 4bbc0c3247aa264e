/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holders by themselves: what a process has, with and without a connection, and that its end gives
 * everything back. Store, worker and driver are the test's; the processes are real ones.
 */
#include "daemon/holders/holder.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "proto/fdlist.h"
#include "proto/wire.h"
#include "tests/unit/fake_parts.h"

static struct holders holders;

/* One end of a connection whose other end, and so its peer, is this process's. */
static int connection_of_own(int *other_out)
{
	int ends[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	*other_out = ends[1];
	return ends[0];
}

static int own_connection;
static int other_end;

static void begin_holders(void)
{
	own_connection = connection_of_own(&other_end);
	begin();
	holders_init(&holders, &loop, locations, N_DEVICES, &store, 0);
}
BEGIN_EACH(begin_holders)

/* end() proves that nobody has anything. */
static void end_holders(void)
{
	while (holders.n > 0) {
		holder_end(list_first(&holders.list, struct holder, link));
	}
	ck_assert_uint_eq(payer->n_sessions, 0);
	uv_run(&loop, UV_RUN_NOWAIT);
	end();
	close(own_connection);
	close(other_end);
}
END_EACH(end_holders)

/* The list's reference alone is left. */
static struct holder *attach(int connection, uint64_t image)
{
	struct holder *holder = holder_new(&holders);
	ck_assert_ptr_nonnull(holder);
	ck_assert_int_eq(peer_init(&holder->peer, connection, false), 0);
	ck_assert_int_eq(tenant_session_enter(payer), 0);
	holder->tenant = payer;
	holder->realm = realm_ref(realm);
	ck_assert_int_eq(holder_attach(holder, -1, &(struct holder_labels){0}, image, NULL), 0);
	holder_unref(holder);
	return holder;
}

static uint64_t give_chunk(struct holder *holder, uint64_t request)
{
	struct chunk chunk = new_chunk();
	struct held *held;
	ck_assert_int_eq(holder_add_chunks(holder, request, &chunk, 1, &held), 0);
	ck_assert_ptr_null(chunk.at);
	return held->id;
}

static uint64_t give_block(struct holder *holder, uint64_t request, unsigned name)
{
	return holder_add_block(holder, request, have_block(name));
}

START_TEST(an_end_gives_everything_back)
{
	struct holder *holder = attach(own_connection, 0);
	for (unsigned i = 0; i < 100; i++) {
		give_chunk(holder, i);
	}
	give_block(holder, 100, 1);
	ck_assert_uint_eq(holder->at[0].reserved_bytes, 100 * CHUNK_BYTES);
	ck_assert_uint_eq(holder->at[0].shared_bytes, CHUNK_BYTES);
	ck_assert_uint_eq(used_bytes(payer), 101 * CHUNK_BYTES);
	holder_end(holder);
	run_workers();
	ck_assert_uint_eq(used_bytes(payer), 0);
	ck_assert_uint_eq(holders.n, 0);
}
END_TEST

START_TEST(ids_are_of_one_kind_and_never_come_again)
{
	struct holder *holder = attach(own_connection, 0);
	uint64_t chunk = give_chunk(holder, 1);
	uint64_t block = give_block(holder, 2, 1);
	ck_assert_ptr_nonnull(holder_find(holder, HELD_CHUNK, chunk));
	ck_assert_ptr_null(holder_find(holder, HELD_BLOCK, chunk));
	ck_assert_ptr_null(holder_find(holder, HELD_CHUNK, block));
	holder_release(holder, holder_find(holder, HELD_CHUNK, chunk));
	ck_assert_ptr_null(holder_find(holder, HELD_CHUNK, chunk));
	ck_assert_uint_gt(give_chunk(holder, 3), block);
}
END_TEST

/* A client does not keep what it was granted and never heard of. */
START_TEST(what_was_not_answered_is_given_back)
{
	const uint64_t unanswered[] = {8, 9, 77};
	struct holder *holder = attach(own_connection, 0);
	uint64_t kept = give_chunk(holder, 7);
	give_chunk(holder, 8);
	give_chunk(holder, 8);
	give_block(holder, 9, 1);
	holder_release_unanswered(holder, unanswered, 3);
	run_workers();
	ck_assert_uint_eq(holder->n_held[HELD_CHUNK], 1);
	ck_assert_uint_eq(holder->n_held[HELD_BLOCK], 0);
	ck_assert_ptr_nonnull(holder_find(holder, HELD_CHUNK, kept));
	ck_assert_uint_eq(used_bytes(payer), CHUNK_BYTES);
}
END_TEST

static uint64_t cpu_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A Hello is one packet: it may not take longer than to make what is looked through, however much it names. */
START_TEST(a_long_report_is_one_walk)
{
	enum { N_BLOCKS = 200000 };
	uint64_t unanswered[GLAKE_MAX_UNANSWERED];
	struct holder *holder = attach(own_connection, 0);
	struct block *block = have_block(1);
	uint64_t began_ns = cpu_ns();
	bool has_all = true;
	for (unsigned i = 0; i < N_BLOCKS; i++) {
		has_all = has_all && (i == 0 || store_use_block(&store, block, payer) == 0) &&
		          holder_add_block(holder, 1000 + i, block) != 0;
	}
	ck_assert(has_all);
	uint64_t made_ns = cpu_ns();
	/* The last of them is one that brought something. */
	for (unsigned i = 0; i < n_elements(unanswered); i++) {
		unanswered[i] = 1001 - n_elements(unanswered) + i;
	}
	holder_release_unanswered(holder, unanswered, n_elements(unanswered));
	uint64_t released_ns = cpu_ns();
	ck_assert_uint_eq(holder->n_held[HELD_BLOCK], N_BLOCKS - 1);
	ck_assert_uint_lt(released_ns - made_ns, made_ns - began_ns);
}
END_TEST

START_TEST(a_lost_connection_costs_a_living_process_nothing)
{
	struct holder *holder = attach(own_connection, 0);
	struct peer peer = holder->peer;
	uint8_t key[GLAKE_KEY_BYTES];
	give_chunk(holder, 1);
	memcpy(key, holder->key, sizeof(key));
	ck_assert(holder_detach(holder, own_connection));
	ck_assert_uint_eq(holders_n_detached(&holders, peer.owner), 1);
	ck_assert_uint_eq(used_bytes(payer), CHUNK_BYTES);
	ck_assert_ptr_eq(holder_by_key(&holders, &peer, key), holder);
	/* Neither with another key, nor as another process or user. */
	key[0] ^= 1;
	ck_assert_ptr_null(holder_by_key(&holders, &peer, key));
	key[0] ^= 1;
	peer.pid++;
	ck_assert_ptr_null(holder_by_key(&holders, &peer, key));
	peer.pid--;
	peer.uid++;
	ck_assert_ptr_null(holder_by_key(&holders, &peer, key));
	holder_resume(holder);
	ck_assert_uint_eq(holders_n_detached(&holders, holder->peer.owner), 0);
	ck_assert_uint_eq(holder->n_held[HELD_CHUNK], 1);
}
END_TEST

/* A process that has called exec() has nothing mapped any more of what it had. */
START_TEST(another_program_in_the_process_ends_what_is_detached)
{
	struct holder *before = attach(own_connection, 1);
	give_chunk(before, 1);
	ck_assert(holder_detach(before, own_connection));
	struct holder *same = attach(own_connection, 1);
	ck_assert_uint_eq(holders.n, 2);
	struct holder *after = attach(own_connection, 2);
	run_workers();
	ck_assert_uint_eq(holders.n, 2);
	ck_assert_uint_eq(used_bytes(payer), 0);
	ck_assert_int_eq(same->state, HOLDER_ATTACHED);
	ck_assert_int_eq(after->state, HOLDER_ATTACHED);
}
END_TEST

START_TEST(who_drains_keeps_nobody_detached)
{
	struct holder *lost = attach(own_connection, 0);
	struct holder *here = attach(own_connection, 0);
	give_chunk(lost, 1);
	ck_assert(holder_detach(lost, own_connection));
	holders_drain(&holders);
	run_workers();
	ck_assert_uint_eq(used_bytes(payer), 0);
	ck_assert_uint_eq(holders.n, 1);
	ck_assert(!holder_detach(here, own_connection));
}
END_TEST

/* A connection that another process has made, which then waits. */
static int connection_of_child(pid_t *pid_out)
{
	int ways[2];
	int fd = -1;
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ways), 0);
	*pid_out = fork();
	if (*pid_out == 0) {
		int other;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int own = connection_of_own(&other);
		ck_assert_int_eq(wire_send(ways[1], "x", 1, &own, 1, 0), 0);
		for (;;) {
			pause();
		}
	}
	struct fdlist fds;
	char byte;
	size_t n_bytes;
	fdlist_init(&fds);
	ck_assert_int_eq(wire_recv(ways[0], &byte, 1, &n_bytes, &fds, 0), 0);
	ck_assert_uint_eq(fds.n_fds, 1);
	fd = dup(fds.fds[0]);
	fdlist_deinit(&fds);
	close(ways[0]);
	close(ways[1]);
	return fd;
}

START_TEST(the_end_of_its_process_is_the_end_of_a_detached_holder)
{
	pid_t pid;
	int connection = connection_of_child(&pid);
	struct holder *holder = attach(connection, 0);
	ck_assert_int_eq(holder->peer.pid, pid);
	give_chunk(holder, 1);
	give_block(holder, 2, 1);
	ck_assert(holder_detach(holder, connection));
	uv_run(&loop, UV_RUN_NOWAIT);
	ck_assert_uint_eq(holders.n, 1);
	kill(pid, SIGKILL);
	while (holders.n > 0) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	run_workers();
	ck_assert_uint_eq(used_bytes(payer), 0);
	/* There is nobody to wait for any more. */
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert(!holder_detach(attach(connection, 0), connection));
	close(connection);
}
END_TEST

static void count_user(void *user, const struct holder *holder)
{
	++*(unsigned *)user;
}

/* Users of a block are found in steps, while they come and go. */
START_TEST(users_of_a_block_are_looked_for_in_steps)
{
	enum { N = 5, CHUNKS = 200 };
	struct holder *some[N];
	int ends[N][2];
	unsigned n_users = 0;
	unsigned n_calls = 1;
	size_t n_steps = 16;
	for (unsigned i = 0; i < N; i++) {
		ends[i][0] = connection_of_own(&ends[i][1]);
		some[i] = attach(ends[i][0], 0);
		for (unsigned j = 0; j < CHUNKS; j++) {
			give_chunk(some[i], j);
		}
	}
	give_block(some[1], 1000, 1);
	struct block *block = list_first(&store.block_list, struct block, link);
	for (unsigned i = 2; i < N; i++) {
		block->n_users++;
		ck_assert_uint_ne(holder_add_block(some[i], 1000, block), 0);
	}
	holders_begin_walk(&holders);
	while (!holders_walk(&holders, block, &n_steps, count_user, &n_users)) {
		ck_assert_uint_eq(n_steps, 0);
		n_steps = 16;
		if (n_calls == 3) {
			/* Whose things are being looked at. */
			holder_end(some[0]);
		} else if (n_calls == 10) {
			struct held *next = holders.walk.held;
			holder_release(some[1], next);
			ck_assert_ptr_ne(holders.walk.held, next);
			holder_end(some[4]);
		}
		n_calls++;
	}
	ck_assert_uint_ge(n_calls, 3 * CHUNKS / 16);
	ck_assert_uint_eq(n_users, 3);
	for (unsigned i = 0; i < N; i++) {
		close(ends[i][0]);
		close(ends[i][1]);
	}
}
END_TEST

/* However much a process holds, a listing looks at so much of it; with enough of them all is seen. */
START_TEST(what_a_holder_shares_is_added_up_in_steps)
{
	enum { CHUNKS = 100, BLOCKS = 100 };
	struct holder *holder = attach(own_connection, 0);
	size_t n_steps = 0;
	unsigned n_calls = 0;
	for (unsigned i = 0; i < CHUNKS; i++) {
		give_chunk(holder, i);
		give_block(holder, CHUNKS + i, 1 + i);
	}
	do {
		ck_assert_uint_eq(n_steps, 0);
		ck_assert(holder->sharing.part_bytes == 0);
		n_steps = 16;
		n_calls++;
		if (n_calls == 5) {
			/* This one would be looked at next. */
			holder_release(holder, holder->sharing_walk.at);
			give_chunk(holder, 1000);
		}
	} while (!holder_look_at_sharing(holder, &n_steps));
	ck_assert_uint_ge(n_calls, (CHUNKS + BLOCKS) / 16);
	double n_blocks = holder->n_held[HELD_BLOCK];
	ck_assert(holder->sharing.part_bytes == n_blocks * CHUNK_BYTES);
	n_steps = SIZE_MAX;
	ck_assert(holder_look_at_sharing(holder, &n_steps));
	ck_assert(holder->sharing.part_bytes == n_blocks * CHUNK_BYTES);
}
END_TEST
