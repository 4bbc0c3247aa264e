/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/worker.h"

#include <assert.h>

#include "proto/cleanup.h"

static struct work *pop(struct list *list)
{
	struct work *work = list_first(list, struct work, link);
	list_remove(&work->link);
	return work;
}

static struct work *pop_lazy(struct worker *worker)
{
	worker->n_lazy--;
	return pop(&worker->lazy);
}

/* Under the mutex: nothing came for a while, so lazy work is in nobody's way. */
static bool is_quiet(struct worker *worker)
{
	int r = uv_cond_timedwait(&worker->wakeup, &worker->mutex, WORKER_LAZY_US * 1000u);
	return r == UV_ETIMEDOUT && list_is_empty(&worker->queue);
}

/* Under the mutex. NULL at the end. */
static struct work *wait_for_work(struct worker *worker)
{
	for (;;) {
		/* It holds fds and memory: it may not wait for ever behind the rest. */
		if (worker->n_lazy > WORKER_MAX_LAZY) {
			return pop_lazy(worker);
		}
		if (!list_is_empty(&worker->queue)) {
			return pop(&worker->queue);
		}
		if (list_is_empty(&worker->lazy)) {
			if (worker->is_stopping) {
				return NULL;
			}
			uv_cond_wait(&worker->wakeup, &worker->mutex);
		} else if (worker->is_stopping || is_quiet(worker)) {
			return pop_lazy(worker);
		}
	}
}

static void run(struct worker *worker, struct work *work)
{
	work->run(work);
	uv_mutex_lock(&worker->mutex);
	list_insert(&worker->finished, &work->link);
	uv_mutex_unlock(&worker->mutex);
	uv_async_send(&worker->async);
}

static struct work *next_work(struct worker *worker)
{
	uv_mutex_lock(&worker->mutex);
	struct work *work = wait_for_work(worker);
	uv_mutex_unlock(&worker->mutex);
	return work;
}

static void worker_main(void *user)
{
	struct worker *worker = user;
	struct work *work;
	while ((work = next_work(worker))) {
		run(worker, work);
	}
}

void worker_catch_up(struct worker *worker)
{
	struct work *work;
	do {
		uv_mutex_lock(&worker->mutex);
		work = list_is_empty(&worker->lazy) ? NULL : pop_lazy(worker);
		uv_mutex_unlock(&worker->mutex);
		if (work) {
			run(worker, work);
		}
	} while (work);
}

static void finish_all(struct worker *worker)
{
	for (;;) {
		uv_mutex_lock(&worker->mutex);
		struct work *work = NULL;
		if (!list_is_empty(&worker->finished)) {
			work = pop(&worker->finished);
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
	list_init(&worker->queue);
	list_init(&worker->lazy);
	worker->n_lazy = 0;
	list_init(&worker->finished);
	worker->n_pending = 0;
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

static void submit(struct worker *worker, struct work *work, work_fn run_fn, work_fn done,
                   bool is_lazy)
{
	work->run = run_fn;
	work->done = done;
	worker->n_pending++;
	uv_mutex_lock(&worker->mutex);
	list_insert(is_lazy ? &worker->lazy : &worker->queue, &work->link);
	worker->n_lazy += is_lazy;
	uv_cond_signal(&worker->wakeup);
	uv_mutex_unlock(&worker->mutex);
}

void worker_submit(struct worker *worker, struct work *work, work_fn run_fn, work_fn done)
{
	submit(worker, work, run_fn, done, false);
}

void worker_submit_lazy(struct worker *worker, struct work *work, work_fn run_fn, work_fn done)
{
	submit(worker, work, run_fn, done, true);
}
