/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/worker.h"

#include <assert.h>

#include "proto/cleanup.h"

/* ---- what is next: all of it under the mutex -------------------------------------------------- */

enum next {
	NEXT_TURN,
	NEXT_RELEASE,
	NEXT_END,
};

static struct work *first_of(struct list *list)
{
	return list_is_empty(list) ? NULL : list_first(list, struct work, link);
}

static void enter_turns(struct worker *worker, struct work *work)
{
	struct work *first;
	list_for_each (first, &worker->turns, link) {
		if (first->user == work->user) {
			list_insert(&first->behind, &work->link);
			return;
		}
	}
	list_insert(&worker->turns, &work->link);
}

/* The user of @first has had his turn: the next one is the others'. */
static void pass_turn(struct worker *worker, struct work *first, bool is_finished)
{
	struct work *next = is_finished ? first_of(&first->behind) : first;
	list_remove(&first->link);
	if (next && next != first) {
		list_remove(&next->link);
		list_move(&next->behind, &first->behind);
	}
	if (next) {
		list_insert(&worker->turns, &next->link);
	}
}

static bool has_many_lazy(const struct worker *worker)
{
	return worker->n_lazy > WORKER_MANY_LAZY;
}

/* Nothing came for a while, so lazy work is in nobody's way. */
static bool is_quiet(struct worker *worker)
{
	unsigned wait_us = has_many_lazy(worker) ? WORKER_PAUSE_US : WORKER_LAZY_US;
	int r = uv_cond_timedwait(&worker->wakeup, &worker->mutex, wait_us * 1000u);
	return r == UV_ETIMEDOUT && list_is_empty(&worker->turns) &&
	       list_is_empty(&worker->releases);
}

static enum next wait_for_work(struct worker *worker)
{
	for (;;) {
		/* Lazy work holds fds and memory: it may not wait for ever behind the rest. */
		if (worker->n_lazy > WORKER_MAX_LAZY) {
			return NEXT_RELEASE;
		}
		bool has_turns = !list_is_empty(&worker->turns);
		bool has_releases = !list_is_empty(&worker->releases);
		if (has_turns &&
		    (worker->was_release || !(has_releases || has_many_lazy(worker)))) {
			return NEXT_TURN;
		}
		if (has_turns || has_releases) {
			return NEXT_RELEASE;
		}
		if (list_is_empty(&worker->lazy)) {
			if (worker->is_stopping) {
				return NEXT_END;
			}
			uv_cond_wait(&worker->wakeup, &worker->mutex);
		} else if (worker->is_stopping || !list_is_empty(&worker->behind) ||
		           is_quiet(worker)) {
			return NEXT_RELEASE;
		}
	}
}

/* Takes one off its list; NULL: there is none. */
static struct work *take_release(struct worker *worker)
{
	bool is_lazy = worker->n_lazy > WORKER_MAX_LAZY || list_is_empty(&worker->releases);
	struct work *work = first_of(is_lazy ? &worker->lazy : &worker->releases);
	if (work) {
		list_remove(&work->link);
		worker->n_lazy -= is_lazy;
	}
	return work;
}

/* ---- the thread: the mutex is held but while work runs ------------------------------------------ */

static bool run(struct worker *worker, struct work *work)
{
	uv_mutex_unlock(&worker->mutex);
	bool is_finished = work->run(work);
	uv_mutex_lock(&worker->mutex);
	return is_finished;
}

static void finish(struct worker *worker, struct work *work)
{
	list_insert(&worker->finished, &work->link);
	uv_async_send(&worker->async);
}

static void finish_behind(struct worker *worker)
{
	while (!has_many_lazy(worker) && !list_is_empty(&worker->behind)) {
		struct work *work = first_of(&worker->behind);
		list_remove(&work->link);
		finish(worker, work);
	}
}

static bool run_release(struct worker *worker)
{
	struct work *work = take_release(worker);
	if (!work) {
		return false;
	}
	if (run(worker, work)) {
		finish(worker, work);
	} else {
		list_insert(worker->releases.next, &work->link);
	}
	worker->was_release = true;
	finish_behind(worker);
	return true;
}

/* The work keeps its place while it runs, so that later work of the same user stands behind it. */
static void run_turn(struct worker *worker)
{
	struct work *work = first_of(&worker->turns);
	bool is_finished = run(worker, work);
	pass_turn(worker, work, is_finished);
	if (is_finished) {
		finish(worker, work);
	}
	worker->was_release = false;
}

static void worker_main(void *user)
{
	struct worker *worker = user;
	enum next next;
	uv_mutex_lock(&worker->mutex);
	while ((next = wait_for_work(worker)) != NEXT_END) {
		if (next == NEXT_TURN) {
			run_turn(worker);
		} else {
			run_release(worker);
		}
	}
	uv_mutex_unlock(&worker->mutex);
}

bool worker_catch_up(struct worker *worker)
{
	uv_mutex_lock(&worker->mutex);
	bool has_run = run_release(worker);
	uv_mutex_unlock(&worker->mutex);
	return has_run;
}

/* ---- the loop --------------------------------------------------------------------------------- */

static void finish_all(struct worker *worker)
{
	for (;;) {
		uv_mutex_lock(&worker->mutex);
		struct work *work = first_of(&worker->finished);
		if (work) {
			list_remove(&work->link);
		}
		uv_mutex_unlock(&worker->mutex);
		if (!work) {
			return;
		}
		worker->n_pending--;
		work->done(work);
	}
}

static void on_async(uv_async_t *async)
{
	finish_all(container_of(async, struct worker, async));
}

int worker_init(struct worker *worker, uv_loop_t *loop)
{
	list_init(&worker->turns);
	list_init(&worker->releases);
	list_init(&worker->lazy);
	worker->n_lazy = 0;
	list_init(&worker->behind);
	list_init(&worker->finished);
	worker->n_pending = 0;
	worker->was_release = false;
	worker->is_stopping = false;
	int r = uv_mutex_init(&worker->mutex);
	if (r < 0) {
		return r;
	}
	r = uv_cond_init(&worker->wakeup);
	if (r < 0) {
		goto err_mutex;
	}
	r = uv_thread_create(&worker->thread, worker_main, worker);
	if (r < 0) {
		goto err_cond;
	}
	/* Last, since an initialised handle can only be left through uv_close(). */
	r = uv_async_init(loop, &worker->async, on_async);
	if (r < 0) {
		goto err_thread;
	}
	return 0;

err_thread:
	uv_mutex_lock(&worker->mutex);
	worker->is_stopping = true;
	uv_cond_signal(&worker->wakeup);
	uv_mutex_unlock(&worker->mutex);
	uv_thread_join(&worker->thread);
err_cond:
	uv_cond_destroy(&worker->wakeup);
err_mutex:
	uv_mutex_destroy(&worker->mutex);
	return r;
}

void worker_deinit(struct worker *worker)
{
	assert(worker->n_pending == 0);
	uv_mutex_lock(&worker->mutex);
	worker->is_stopping = true;
	uv_cond_signal(&worker->wakeup);
	uv_mutex_unlock(&worker->mutex);
	uv_thread_join(&worker->thread);
	uv_close((uv_handle_t *)&worker->async, NULL);
	uv_cond_destroy(&worker->wakeup);
	uv_mutex_destroy(&worker->mutex);
}

static void begin_submit(struct worker *worker, struct work *work, work_run_fn run_fn,
                         work_done_fn done)
{
	work->run = run_fn;
	work->done = done;
	list_init(&work->link);
	list_init(&work->behind);
	worker->n_pending++;
	uv_mutex_lock(&worker->mutex);
}

static void end_submit(struct worker *worker)
{
	uv_cond_signal(&worker->wakeup);
	uv_mutex_unlock(&worker->mutex);
}

void worker_submit(struct worker *worker, struct work *work, uint64_t user, work_run_fn run_fn,
                   work_done_fn done)
{
	begin_submit(worker, work, run_fn, done);
	work->user = user;
	enter_turns(worker, work);
	end_submit(worker);
}

void worker_submit_release(struct worker *worker, struct work *work, work_run_fn run_fn,
                           work_done_fn done)
{
	begin_submit(worker, work, run_fn, done);
	list_insert(&worker->releases, &work->link);
	end_submit(worker);
}

void worker_submit_lazy(struct worker *worker, struct work *work, work_run_fn run_fn,
                        work_done_fn done)
{
	begin_submit(worker, work, run_fn, done);
	list_insert(&worker->lazy, &work->link);
	worker->n_lazy++;
	end_submit(worker);
}

bool worker_await_lazy(struct worker *worker, struct work *work, work_done_fn done)
{
	uv_mutex_lock(&worker->mutex);
	bool waits = has_many_lazy(worker);
	if (waits) {
		work->done = done;
		list_init(&work->link);
		worker->n_pending++;
		list_insert(&worker->behind, &work->link);
	}
	uv_mutex_unlock(&worker->mutex);
	return waits;
}
