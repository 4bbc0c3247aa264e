/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread that does blocking work (driver calls) for the loop, in the order it was asked.
 *
 * Work comes in two kinds. What somebody waits for (worker_submit) runs at once, in order. What nobody
 * waits for (worker_submit_lazy: giving memory back) runs when the worker has had
 * nothing else to do for WORKER_LAZY_US, because driver calls of two processes slow each other down
 * many times over, and the one that just got an answer is mapping its memory now.
 *
 * Promise: work that runs may call worker_catch_up(), after which all lazy work that was submitted
 * before has been done. That is how a create finds the memory that was released before it.
 *
 * Owner: embedded in a device.
 * Lifetime: worker_init() to worker_deinit(); the memory stays until the loop has closed it.
 * Threads: everything is called on the loop thread, but for work.run, which is on the worker's.
 */
#ifndef GLAKE_DAEMON_WORKER_H
#define GLAKE_DAEMON_WORKER_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/base/list.h"

struct work;
typedef void (*work_fn)(struct work *work);

/* Embedded in what is to be done. Belongs to the worker from submit until done has returned. */
struct work {
	struct list link; /* link: worker.queue or worker.lazy, then worker.finished */
	work_fn run;      /* on the worker's thread; must not touch what the loop owns */
	work_fn done;     /* on the loop thread; may free the work */
};

/* Lazy work waits so long for a quiet moment, and no more than so much of it may wait. */
#define WORKER_LAZY_US 1000u
#define WORKER_MAX_LAZY 64u

struct worker {
	uv_thread_t thread;
	uv_mutex_t mutex;
	uv_cond_t wakeup;
	uv_async_t async;
	unsigned n_pending;   /* submitted, done not yet returned; loop thread only */
	bool is_stopping;     /* under mutex */
	struct list queue;    /* under mutex */
	struct list lazy;     /* under mutex */
	unsigned n_lazy;      /* under mutex */
	struct list finished; /* under mutex */
};

/* Returns 0 or -errno; on failure there is nothing to undo. */
int worker_init(struct worker *worker, uv_loop_t *loop);

/* The queue must be empty (n_pending == 0). Joins the thread and closes the handle. */
void worker_deinit(struct worker *worker);

void worker_submit(struct worker *worker, struct work *work, work_fn run, work_fn done);
void worker_submit_lazy(struct worker *worker, struct work *work, work_fn run, work_fn done);

/* Worker's thread, from inside a run: do the lazy work now. */
void worker_catch_up(struct worker *worker);

#endif
