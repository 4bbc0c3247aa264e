/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker.h"

#include <assert.h>

#include "proto/cleanup.h"

static struct work *next_work(struct worker *worker)
{
	uv_mutex_lock(&worker->mutex);
	while (list_is_empty(&worker->queue) && !worker->is_stopping) {
		uv_cond_wait(&worker->wakeup, &worker->mutex);
	}
	struct work *work = NULL;
	if (!list_is_empty(&worker->queue)) {
		work = container_of(worker->queue.next, struct work, link);
		list_remove(&work->link);
	}
	uv_mutex_unlock(&worker->mutex);
	return work;
}

static void worker_main(void *user)
{
	struct worker *worker = user;
	struct work *work;
	while ((work = next_work(worker))) {
		work->run(work);
		uv_mutex_lock(&worker->mutex);
		list_insert(&worker->finished, &work->link);
		uv_mutex_unlock(&worker->mutex);
		uv_async_send(&worker->async);
	}
}

static void finish_all(struct worker *worker)
{
	for (;;) {
		uv_mutex_lock(&worker->mutex);
		struct work *work = NULL;
		if (!list_is_empty(&worker->finished)) {
			work = container_of(worker->finished.next, struct work, link);
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
	list_init(&worker->queue);
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

void worker_submit(struct worker *worker, struct work *work, work_fn run, work_fn done)
{
	work->run = run;
	work->done = done;
	worker->n_pending++;
	uv_mutex_lock(&worker->mutex);
	list_insert(&worker->queue, &work->link);
	uv_cond_signal(&worker->wakeup);
	uv_mutex_unlock(&worker->mutex);
}
