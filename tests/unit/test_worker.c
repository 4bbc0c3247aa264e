/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>

#include "daemon/memory/worker.h"
#include "proto/cleanup.h"
#include "tests/check_glake.h"

enum { MAX_NOTES = WORKER_MAX_LAZY + 16 };

/* The names of the work that has run, in its order. */
static struct {
	atomic_uint n;
	int names[MAX_NOTES];
} ran;

/* The gated work has begun: what is submitted from here on queues up behind it. */
static atomic_bool is_at_gate;
static uv_sem_t gate;
static unsigned n_done;
static uv_loop_t loop;
static struct worker worker;

struct note {
	struct work work;
	int name;
	bool is_gated; /* it waits for the gate before it is noted */
	bool catches_up;
	int n_pieces; /* each is noted; 0 as 1 */
};

static struct note notes[MAX_NOTES];

static bool run_note(struct work *work)
{
	struct note *note = container_of(work, struct note, work);
	if (note->is_gated) {
		atomic_store(&is_at_gate, true);
		uv_sem_wait(&gate);
	}
	while (note->catches_up && worker_catch_up(&worker)) {
	}
	ran.names[atomic_fetch_add(&ran.n, 1)] = note->name;
	return --note->n_pieces <= 0;
}

static void count_done(struct work *work)
{
	n_done++;
}

static void submit_of(uint64_t user, int name)
{
	notes[name].name = name;
	worker_submit(&worker, &notes[name].work, user, run_note, count_done);
}

static void submit(int name, bool is_lazy)
{
	notes[name].name = name;
	if (is_lazy) {
		worker_submit_lazy(&worker, &notes[name].work, run_note, count_done);
	} else {
		submit_of(WORKER_NOBODY, name);
	}
}

static void submit_release(int name)
{
	notes[name].name = name;
	worker_submit_release(&worker, &notes[name].work, run_note, count_done);
}

/* Number 0 keeps the worker busy until the gate opens. */
static void submit_gated(uint64_t user)
{
	notes[0].is_gated = true;
	submit_of(user, 0);
	while (!atomic_load(&is_at_gate)) {
		uv_sleep(1);
	}
}

static void begin(void)
{
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	ck_assert_int_eq(worker_init(&worker, &loop), 0);
	uv_sem_init(&gate, 0);
}

static void end(void)
{
	uv_sem_destroy(&gate);
}

BEGIN_EACH(begin)
END_EACH(end)

/* Until everything was run and told; then the loop must close clean. */
static void finish(unsigned n_expected)
{
	while (worker.n_pending > 0) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	ck_assert_uint_eq(n_done, n_expected);
	ck_assert_uint_eq(worker.n_lazy, 0);
	worker_deinit(&worker);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

static void expect(const int *names, unsigned n)
{
	ck_assert_uint_eq(atomic_load(&ran.n), n);
	for (unsigned i = 0; i < n; i++) {
		ck_assert_msg(ran.names[i] == names[i], "%u: %d, not %d", i, ran.names[i],
		              names[i]);
	}
}

START_TEST(work_runs_in_order_and_is_told_on_the_loop)
{
	for (int i = 0; i < 100; i++) {
		submit(i, false);
	}
	finish(100);
	for (int i = 0; i < 100; i++) {
		ck_assert_int_eq(ran.names[i], i);
	}
}
END_TEST

START_TEST(lazy_work_lets_the_other_pass)
{
	submit_gated(WORKER_NOBODY);
	submit(1, true);
	submit(2, true);
	submit(3, false);
	uv_sem_post(&gate);
	finish(4);
	const int expected[] = {0, 3, 1, 2};
	expect(expected, n_elements(expected));
}
END_TEST

/* However much one has, another waits for one piece of it. */
START_TEST(users_take_turns_piece_by_piece)
{
	submit_gated(WORKER_NOBODY);
	notes[1].n_pieces = 4;
	submit_of(1, 1);
	submit_of(1, 2);
	submit_of(1, 3);
	submit_of(2, 4);
	notes[5].n_pieces = 2;
	submit_of(3, 5);
	submit_of(2, 6);
	uv_sem_post(&gate);
	finish(7);
	const int expected[] = {0, 1, 4, 5, 1, 6, 5, 1, 1, 2, 3};
	expect(expected, n_elements(expected));
}
END_TEST

/* The user whose work is running stands behind those that came meanwhile. */
START_TEST(a_new_user_is_next)
{
	notes[0].n_pieces = 2;
	submit_gated(1);
	submit_of(1, 1);
	submit_of(2, 2);
	uv_sem_post(&gate);
	uv_sem_post(&gate);
	finish(3);
	const int expected[] = {0, 2, 0, 1};
	expect(expected, n_elements(expected));
}
END_TEST

START_TEST(releases_run_between_turns)
{
	submit_gated(WORKER_NOBODY);
	notes[1].n_pieces = 2;
	submit_release(1);
	submit_release(2);
	submit_of(1, 3);
	submit_of(1, 4);
	submit_release(5);
	submit_of(2, 6);
	uv_sem_post(&gate);
	finish(7);
	const int expected[] = {0, 1, 3, 1, 6, 2, 4, 5};
	expect(expected, n_elements(expected));
}
END_TEST

START_TEST(who_needs_it_catches_up_with_all_releases)
{
	submit_gated(WORKER_NOBODY);
	notes[1].catches_up = true;
	submit_of(1, 1);
	notes[2].n_pieces = 3;
	submit_release(2);
	submit_release(3);
	submit(4, true);
	uv_sem_post(&gate);
	finish(5);
	const int expected[] = {0, 2, 2, 2, 3, 4, 1};
	expect(expected, n_elements(expected));
}
END_TEST

START_TEST(lazy_work_runs_by_itself)
{
	submit(0, true);
	finish(1);
}
END_TEST

START_TEST(who_needs_it_catches_up)
{
	submit_gated(WORKER_NOBODY);
	submit(1, true);
	submit(2, true);
	notes[3].catches_up = true;
	submit(3, false);
	uv_sem_post(&gate);
	finish(4);
	const int expected[] = {0, 1, 2, 3};
	expect(expected, n_elements(expected));
}
END_TEST

/* They are not done one after the other while somebody waits. */
START_TEST(much_lazy_work_runs_between_turns)
{
	enum { N_TURNS = 3, N_LAZY = WORKER_MANY_LAZY + N_TURNS - 1 };
	submit_gated(WORKER_NOBODY);
	for (int i = 0; i < N_TURNS; i++) {
		submit(1 + i, false);
	}
	for (int i = 0; i < N_LAZY; i++) {
		submit(100 + i, true);
	}
	uv_sem_post(&gate);
	finish(1 + N_TURNS + N_LAZY);
	const int expected[] = {0, 100, 1, 101, 2, 3, 102};
	for (unsigned i = 0; i < n_elements(expected); i++) {
		ck_assert_int_eq(ran.names[i], expected[i]);
	}
}
END_TEST

static struct work waiting;
static unsigned n_ran_before;

static void note_ran(struct work *work)
{
	n_ran_before = atomic_load(&ran.n);
	n_done++;
}

START_TEST(who_waits_for_lazy_work_is_told_when_little_is_left)
{
	enum { N_LAZY = WORKER_MANY_LAZY + 20 };
	ck_assert(!worker_await_lazy(&worker, &waiting, note_ran));
	submit_gated(WORKER_NOBODY);
	for (int i = 1; i <= N_LAZY; i++) {
		submit(i, true);
	}
	ck_assert(worker_await_lazy(&worker, &waiting, note_ran));
	uv_sem_post(&gate);
	finish(1 + N_LAZY + 1);
	ck_assert_uint_ge(n_ran_before, 1 + N_LAZY - WORKER_MANY_LAZY);
}
END_TEST

START_TEST(lazy_work_does_not_pile_up)
{
	submit_gated(WORKER_NOBODY);
	for (unsigned i = 1; i <= WORKER_MAX_LAZY + 2; i++) {
		submit((int)i, true);
	}
	int last = (int)WORKER_MAX_LAZY + 3;
	submit(last, false);
	uv_sem_post(&gate);
	finish(WORKER_MAX_LAZY + 4);
	/* Two too many: they came before what somebody waited for. */
	const int expected[] = {0, 1, 2, last, 3};
	for (unsigned i = 0; i < n_elements(expected); i++) {
		ck_assert_int_eq(ran.names[i], expected[i]);
	}
}
END_TEST
