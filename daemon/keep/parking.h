/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parking tells which of our fds the service manager has. Orders to it (fdstore.h) have numbers, and barriers tell which of
 * them it has carried out: then the number has passed. At most one barrier is under way, for all orders before it.
 *
 * A parked fd keeps its memory when glaked has gone. So memory of a parked chunk is free only when the order to remove it has
 * passed, too: parking_block() waits for that on a worker's thread.
 *
 * Owner: books. Threads: the loop thread, but for parking_block().
 */
#ifndef GLAKE_DAEMON_PARKING_H
#define GLAKE_DAEMON_PARKING_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/keep/fdstore.h"

struct parking;

/* Embedded in what waits for a number. list_init() its link before the first use. */
struct parking_wait {
	struct list link; /* link: parking.waits */
	uint64_t number;
	void (*on_passed)(struct parking_wait *wait);
};

/* Somebody keeps fds. NULL: no memory. */
struct parking *parking_new(uv_loop_t *loop, struct fdstore *store);
/* All numbers count as passed: who still waits is called from here. The loop frees it. NULL is fine. */
void parking_free(struct parking *parking);

/* Orders that have not passed by now count as passed, and their fds as not parked. */
bool parking_is_lost(const struct parking *parking);

/* Whether there is no room for another fd. */
bool parking_is_full(const struct parking *parking);
/* About how many there is room for. */
uint32_t parking_max(const struct parking *parking);

/* Returns the order's number, or 0: the fd is not parked, and the log knows why. */
uint64_t parking_put(struct parking *parking, const char *name, int fd);
/* Returns the order's number, or 0: there is none, because the manager was never told of the fd. */
uint64_t parking_remove(struct parking *parking, const char *name);

/* The number of the last order; 0: all have passed. */
uint64_t parking_pending(const struct parking *parking);

/*
 * Call back, from the loop, when @number has passed and everybody who has waited for longer was called. It has not
 * passed yet. list_remove(&wait->link) ends the waiting.
 */
void parking_await(struct parking *parking, struct parking_wait *wait, uint64_t number,
                   void (*on_passed)(struct parking_wait *wait));

/* Wait, on any other thread, until @number has passed, or for five seconds. */
void parking_block(struct parking *parking, uint64_t number);

#endif
