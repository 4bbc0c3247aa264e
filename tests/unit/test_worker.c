/* SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>

#include "daemon/memory/worker.h"
#include "proto/cleanup.h"
#include "tests/check_glake.h"

enum { MAX_NOTES = 256 };

/* What has run, in its order. */
static struct {
	atomic_uint n;
	int names[MAX_NOTES];
} ran;

/* The gated work has begun: what is submitted from here on queues up behind it. */
static atomic_bool is_at_gate;
static unsigned n_done;
static uv_loop_t loop;
static struct worker worker;

struct note {
	struct work work;
	int name;
	uv_sem_t *gate; /* waited for before it is noted; may be NULL */
	bool catches_up;
};

static struct note notes[MAX_NOTES];

static void run_note(struct work *work)
{
	struct note *note = container_of(work, struct note, work);
	if (note->gate) {
		atomic_store(&is_at_gate, true);
		uv_sem_wait(note->gate);
	}
	if (note->catches_up) {
		worker_catch_up(&worker);
	}
	ran.names[atomic_fetch_add(&ran.n, 1)] = note->name;
}

static void count_done(struct work *work)
{
	n_done++;
}

static void submit(int name, bool is_lazy)
{
	notes[name].name = name;
	(is_lazy ? worker_submit_lazy : worker_submit)(&worker, &notes[name].work, run_note,
	                                               count_done);
}

/* Number 0 keeps the worker busy until @gate opens. */
static void submit_gated(uv_sem_t *gate)
{
	uv_sem_init(gate, 0);
	notes[0].gate = gate;
	submit(0, false);
	while (!atomic_load(&is_at_gate)) {
		uv_sleep(1);
	}
}

static void begin(void)
{
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	ck_assert_int_eq(worker_init(&worker, &loop), 0);
}

/* Until everything was run and told; then the loop must close clean. */
static void finish(unsigned n_expected)
{
	while (worker.n_pending > 0) {
		uv_run(&loop, UV_RUN_ONCE);
	}
	ck_assert_uint_eq(n_done, n_expected);
	ck_assert_uint_eq(atomic_load(&ran.n), n_expected);
	worker_deinit(&worker);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

START_TEST(work_runs_in_order_and_is_told_on_the_loop)
{
	begin();
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
	uv_sem_t gate;
	begin();
	submit_gated(&gate);
	submit(1, true);
	submit(2, true);
	submit(3, false);
	uv_sem_post(&gate);
	finish(4);
	const int expected[] = {0, 3, 1, 2};
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(ran.names[i], expected[i]);
	}
	uv_sem_destroy(&gate);
}
END_TEST

START_TEST(lazy_work_runs_by_itself)
{
	begin();
	submit(0, true);
	finish(1);
}
END_TEST

START_TEST(who_needs_it_catches_up)
{
	uv_sem_t gate;
	begin();
	submit_gated(&gate);
	submit(1, true);
	submit(2, true);
	notes[3].catches_up = true;
	submit(3, false);
	uv_sem_post(&gate);
	finish(4);
	const int expected[] = {0, 1, 2, 3};
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(ran.names[i], expected[i]);
	}
	uv_sem_destroy(&gate);
}
END_TEST

START_TEST(lazy_work_does_not_pile_up)
{
	uv_sem_t gate;
	begin();
	submit_gated(&gate);
	for (unsigned i = 1; i <= WORKER_MAX_LAZY + 2; i++) {
		submit((int)i, true);
	}
	int last = (int)WORKER_MAX_LAZY + 3;
	submit(last, false);
	uv_sem_post(&gate);
	finish(WORKER_MAX_LAZY + 4);
	/* Two too many: they came before what somebody waited for. */
	const int expected[] = {0, 1, 2, last, 3};
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(ran.names[i], expected[i]);
	}
	uv_sem_destroy(&gate);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("worker");
	suite_add(suite, work_runs_in_order_and_is_told_on_the_loop);
	suite_add(suite, lazy_work_lets_the_other_pass);
	suite_add(suite, lazy_work_runs_by_itself);
	suite_add(suite, who_needs_it_catches_up);
	suite_add(suite, lazy_work_does_not_pile_up);
	return suite_run(suite);
}
