/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker without a thread: what was submitted runs when the test says so. Included instead of being linked,
 * since its functions are those of worker.c.
 */
#ifndef GLAKE_TESTS_FAKE_WORKER_H
#define GLAKE_TESTS_FAKE_WORKER_H

#include "daemon/memory/worker.h"
#include "proto/cleanup.h"
#include "tests/check_glake.h"

int worker_init(struct worker *worker, uv_loop_t *loop)
{
	list_init(&worker->releases);
	worker->n_pending = 0;
	return 0;
}

void worker_submit_release(struct worker *worker, struct work *work, work_run_fn run,
                           work_done_fn done)
{
	work->run = run;
	work->done = done;
	list_insert(&worker->releases, &work->link);
	worker->n_pending++;
}

void worker_submit_lazy(struct worker *worker, struct work *work, work_run_fn run,
                        work_done_fn done)
{
	worker_submit_release(worker, work, run, done);
}

void worker_submit(struct worker *worker, struct work *work, uint64_t user, work_run_fn run,
                   work_done_fn done)
{
	worker_submit_release(worker, work, run, done);
}

bool worker_catch_up(struct worker *worker)
{
	return false;
}

/* All that was submitted, and what that submits. */
static void fake_worker_run(struct worker *worker)
{
	while (!list_is_empty(&worker->releases)) {
		struct work *work = list_first(&worker->releases, struct work, link);
		list_remove(&work->link);
		while (!work->run(work)) {
		}
		worker->n_pending--;
		work->done(work);
	}
}

void worker_deinit(struct worker *worker)
{
	ck_assert_uint_eq(worker->n_pending, 0);
}

#endif
