/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/orders.h"

#include <assert.h>
#include <stdlib.h>

#include "proto/cleanup.h"

/* All users cause at most this many orders in a second: they cost systemd some 5 % of a core. */
#define MAX_ORDERS 2048u

struct order_charge {
	struct parking_wait parking; /* until the manager has carried it out */
	struct list link;            /* link: orders.passed, afterwards */
	struct orders *orders;
	struct user_charge charge;
};

void orders_init(struct orders *orders)
{
	*orders = (struct orders){.pot = {.row = USER_ORDERS, .limit = MAX_ORDERS}};
	list_init(&orders->passed);
	list_init(&orders->waits);
}

bool orders_may(const struct orders *orders, const struct user *user, uint64_t n)
{
	return pot_has_room(&orders->pot, user, n);
}

static void on_passed(struct parking_wait *wait)
{
	struct order_charge *charge = container_of(wait, struct order_charge, parking);
	list_insert(&charge->orders->passed, &charge->link);
}

void orders_count(struct orders *orders, struct parking *parking, struct user *user,
                  uint64_t number, uint64_t n)
{
	struct order_charge *charge = number && orders_may(orders, user, n)
	                                      ? calloc(1, sizeof(*charge))
	                                      : NULL;
	if (!charge) {
		return;
	}
	charge->orders = orders;
	list_init(&charge->parking.link);
	list_init(&charge->link);
	user_charge_anyway(&charge->charge, &orders->pot, user, n);
	parking_await(parking, &charge->parking, number, on_passed);
}

static void refund_passed(struct orders *orders)
{
	while (!list_is_empty(&orders->passed)) {
		struct order_charge *charge = list_first(&orders->passed, struct order_charge,
		                                         link);
		list_remove(&charge->link);
		user_refund_all(&charge->charge);
		free(charge);
	}
}

void orders_await(struct orders *orders, struct orders_wait *wait,
                  void (*on_tick)(struct orders_wait *wait))
{
	wait->on_tick = on_tick;
	list_insert(&orders->waits, &wait->link);
}

/* An order that has to wait again is behind the others then. */
void orders_tick(struct orders *orders)
{
	struct list waits = LIST_INIT(waits);
	refund_passed(orders);
	list_move(&waits, &orders->waits);
	while (!list_is_empty(&waits)) {
		struct orders_wait *wait = list_first(&waits, struct orders_wait, link);
		list_remove(&wait->link);
		wait->on_tick(wait);
	}
}

void orders_deinit(struct orders *orders)
{
	refund_passed(orders);
	assert(list_is_empty(&orders->waits));
	pot_deinit(&orders->pot);
}
