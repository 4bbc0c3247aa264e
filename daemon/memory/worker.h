/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread that does blocking work (driver calls) for the loop.
 *
 * Three kinds of work, in the order in which they are looked for:
 *   - releases that wait for a quiet moment (worker_submit_lazy): giving a chunk back. Driver calls
 *     of two processes slow each other down many times over, and the client that just got an answer
 *     is mapping its memory now. So each waits until the worker has had nothing else to do for
 *     WORKER_LAZY_US. When there are more than WORKER_MANY_LAZY, that is WORKER_PAUSE_US, and one runs
 *     before each turn; when there are more than WORKER_MAX_LAZY, they do not wait. Whoever gives much back can
 *     be told when there is little left (worker_await_lazy).
 *   - releases that do not wait (worker_submit_release), in order, and
 *   - work that somebody waits for (worker_submit), by turns of its users: each user's work is done
 *     in the order of its coming, one piece at a time, and then the next user has his turn.
 * As long as there are both, one release runs before each turn: a release may be larger than a turn,
 * so memory is given back faster than it is made, and fds that are to be closed do not pile up.
 *
 * A piece is what one call of work.run does. It returns false when there is more to do, and is called
 * again when it is its turn again.
 *
 * Promise: work that runs may call worker_catch_up() until all releases that were submitted before have
 * been done. That is how a create finds the memory that was released before it.
 *
 * Owner: embedded in a device.
 * Lifetime: worker_init() to worker_deinit(); the memory stays until the loop has closed it.
 * Threads: everything is called on the loop thread, but for work.run, which is on the worker's.
 */
#ifndef GLAKE_DAEMON_WORKER_H
#define GLAKE_DAEMON_WORKER_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/base/list.h"

struct work;
/* Runs on the worker's thread, and touches nothing that the loop owns. Returns whether all is done. */
typedef bool (*work_run_fn)(struct work *work);
/* Runs on the loop thread; may free the work. */
typedef void (*work_done_fn)(struct work *work);

/* Embedded in what is to be done. Belongs to the worker from submit until done has returned. */
struct work {
	struct list
		link; /* link: worker.turns, the .behind of the user's first, or another list below */
	struct list
		behind; /* of the user's further work, in order; of the first in worker.turns only */
	uint64_t user;
	work_run_fn run;
	work_done_fn done;
};

/* Work of nobody. */
#define WORKER_NOBODY UINT64_MAX

/* Lazy work: see above. */
#define WORKER_LAZY_US 1000u
#define WORKER_MANY_LAZY 32u
#define WORKER_PAUSE_US 100u
#define WORKER_MAX_LAZY 256u

struct worker {
	uv_thread_t thread;
	uv_mutex_t mutex;
	uv_cond_t wakeup;
	uv_async_t async;
	unsigned n_pending; /* submitted, done not yet returned; loop thread only */
	bool is_stopping;   /* under mutex */
	bool was_release;   /* under mutex: what ran last */
	struct list
		turns; /* under mutex: of each user the first work; the front one is running, or next */
	struct list releases; /* under mutex */
	struct list lazy;     /* under mutex */
	unsigned n_lazy;      /* under mutex */
	struct list behind;   /* under mutex: waits until there is little lazy work */
	struct list finished; /* under mutex */
};

/* Returns 0 or -errno; on failure there is nothing to undo. */
int worker_init(struct worker *worker, uv_loop_t *loop);

/* The queue must be empty (n_pending == 0). Joins the thread and closes the handle. */
void worker_deinit(struct worker *worker);

/* @user: whose turn it takes; any number, the same for what shall share one. */
void worker_submit(struct worker *worker, struct work *work, uint64_t user, work_run_fn run,
                   work_done_fn done);
/* Submit work that gives memory back, and does not fail. */
void worker_submit_release(struct worker *worker, struct work *work, work_run_fn run,
                           work_done_fn done);
void worker_submit_lazy(struct worker *worker, struct work *work, work_run_fn run,
                        work_done_fn done);

/* @done follows as soon as no more than WORKER_MANY_LAZY of the lazy work waits. Returns false if that is so already. */
bool worker_await_lazy(struct worker *worker, struct work *work, work_done_fn done);

/* Worker's thread, from inside a run: a piece of a release. Returns whether there was one. */
bool worker_catch_up(struct worker *worker);

#endif
