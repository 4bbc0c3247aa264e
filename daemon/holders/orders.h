/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Orders to the service manager that users cause by naming memory for others, and by freeing it: each costs the manager
 * time, and its queue has few places for all of the node. An order counts until the manager has carried it out
 * (parking.h) and the next orders_tick() has come. So a user causes no more of them in a second than its share,
 * however fast the manager is; who wants more waits for a tick. Removals are never refused.
 *
 * Owner: embedded in the holders. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_ORDERS_H
#define GLAKE_DAEMON_ORDERS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/list.h"
#include "daemon/keep/parking.h"
#include "daemon/net/user.h"

struct orders {
	struct pot pot;
	struct list passed; /* of struct order_charge, until the next tick */
	struct list waits;  /* of struct orders_wait */
};

/* Embedded in what waits for the next tick. list_remove(&wait->link) ends the waiting. */
struct orders_wait {
	struct list link; /* link: orders.waits */
	void (*on_tick)(struct orders_wait *wait);
};

void orders_init(struct orders *orders);
/* Nobody waits, and no order is under way: parking_free() was called. */
void orders_deinit(struct orders *orders);

/* Whether @user may cause @n more. */
bool orders_may(const struct orders *orders, const struct user *user, uint64_t n);
/* @user has caused @n orders, or as many as he may; @number is the last one's. 0: there was none. */
void orders_count(struct orders *orders, struct parking *parking, struct user *user,
                  uint64_t number, uint64_t n);

/* Call back at the next tick, in the order of coming. */
void orders_await(struct orders *orders, struct orders_wait *wait,
                  void (*on_tick)(struct orders_wait *wait));
/* Every second. */
void orders_tick(struct orders *orders);

#endif
