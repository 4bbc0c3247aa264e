/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keep/parking.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

#define PATIENCE_NS 5000000000ull
/* The next try to ask when there is no memory, or no fd, for it. */
#define RETRY_MS 20

struct parking {
	struct fdstore *store; /* borrowed */
	uv_timer_t retry;
	uint64_t last;  /* number */
	uint64_t asked; /* the barrier under way is for it and all before it; 0: there is none */
	struct list waits;
	uv_mutex_t mutex;
	uv_cond_t cond;
	uint64_t passed; /* under mutex; written by the loop thread only */
	bool is_silent; /* under mutex: somebody has waited in vain, and no barrier came back since */
};

struct parking *parking_new(uv_loop_t *loop, struct fdstore *store)
{
	struct parking *parking = calloc(1, sizeof(*parking));
	if (!parking) {
		return NULL;
	}
	parking->store = store;
	uv_timer_init(loop, &parking->retry);
	list_init(&parking->waits);
	uv_mutex_init(&parking->mutex);
	uv_cond_init(&parking->cond);
	return parking;
}

static void on_retry_closed(uv_handle_t *handle)
{
	free(container_of(handle, struct parking, retry));
}

void parking_free(struct parking *parking)
{
	if (!parking) {
		return;
	}
	while (!list_is_empty(&parking->waits)) {
		struct parking_wait *wait = list_first(&parking->waits, struct parking_wait, link);
		list_remove(&wait->link);
		wait->on_passed(wait);
	}
	uv_cond_destroy(&parking->cond);
	uv_mutex_destroy(&parking->mutex);
	uv_close((uv_handle_t *)&parking->retry, on_retry_closed);
}

/* The manager has handled all up to @number. */
static void note_passed(struct parking *parking, uint64_t number)
{
	uv_mutex_lock(&parking->mutex);
	parking->passed = number;
	parking->is_silent = false;
	uv_cond_broadcast(&parking->cond);
	uv_mutex_unlock(&parking->mutex);
}

static void wake(struct parking *parking)
{
	while (!list_is_empty(&parking->waits)) {
		struct parking_wait *wait = list_first(&parking->waits, struct parking_wait, link);
		if (wait->number > parking->passed) {
			return;
		}
		list_remove(&wait->link);
		wait->on_passed(wait);
	}
}

static void ask(struct parking *parking);

static void on_barrier(void *user)
{
	struct parking *parking = user;
	note_passed(parking, parking->asked);
	parking->asked = 0;
	ask(parking);
	wake(parking);
}

static void on_retry(uv_timer_t *timer)
{
	ask(container_of(timer, struct parking, retry));
}

static void ask(struct parking *parking)
{
	static struct log_limit limit;
	if (parking->asked || parking->passed == parking->last) {
		return;
	}
	parking->asked = parking->last;
	int r = fdstore_barrier(parking->store, on_barrier, parking);
	if (r < 0) {
		parking->asked = 0;
		uv_timer_start(&parking->retry, on_retry, RETRY_MS, 0);
		log_limited(&limit, LOG_LEVEL_ERROR, "cannot ask the service manager: %s",
		            strerror(-r));
	}
}

bool parking_is_lost(const struct parking *parking)
{
	return fdstore_is_lost(parking->store);
}

bool parking_is_full(const struct parking *parking)
{
	return fdstore_is_full(parking->store);
}

uint32_t parking_max(const struct parking *parking)
{
	return fdstore_max(parking->store);
}

uint64_t parking_put(struct parking *parking, const char *name, int fd)
{
	if (fdstore_put(parking->store, name, fd) < 0) {
		return 0;
	}
	parking->last++;
	ask(parking);
	return parking->last;
}

uint64_t parking_remove(struct parking *parking, const char *name)
{
	if (!fdstore_remove(parking->store, name)) {
		return 0;
	}
	parking->last++;
	ask(parking);
	return parking->last;
}

uint64_t parking_pending(const struct parking *parking)
{
	return parking->passed == parking->last ? 0 : parking->last;
}

void parking_await(struct parking *parking, struct parking_wait *wait, uint64_t number,
                   void (*on_passed)(struct parking_wait *wait))
{
	wait->number = number;
	wait->on_passed = on_passed;
	list_insert(&parking->waits, &wait->link);
	ask(parking);
}

void parking_block(struct parking *parking, uint64_t number)
{
	uv_mutex_lock(&parking->mutex);
	while (parking->passed < number && !parking->is_silent) {
		parking->is_silent = uv_cond_timedwait(&parking->cond, &parking->mutex,
		                                       PATIENCE_NS) != 0;
	}
	uv_mutex_unlock(&parking->mutex);
}
