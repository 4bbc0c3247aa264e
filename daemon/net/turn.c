/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/turn.h"

#include <assert.h>
#include <errno.h>

#include "daemon/net/user.h"
#include "proto/clock.h"

/*
 * A user's share of each turn of the loop. A turn itself costs some 20 us with many connections, so
 * this is long enough; and it is short enough for the others to wait.
 */
#define SLICE_NS 1000000u

/* After at most this many steps the user's next connection is served. */
#define STEPS_IN_A_ROW 16

/* The user of glaked's own connections, and of those without a user yet. */
static struct user nobody = {.place = LIST_INIT(nobody.place), .line = LIST_INIT(nobody.line)};
static size_t n_turns; /* of all users */
static struct list fresh = LIST_INIT(fresh);
static struct list left = LIST_INIT(left);
static uv_check_t check;
static uv_idle_t idle;

/* ---- the line -------------------------------------------------------------------------------- */

void turn_init(struct turn *turn, turn_fn serve)
{
	list_init(&turn->link);
	turn->user = &nobody;
	turn->serve = serve;
	nobody.n_turns++;
	n_turns++;
}

int turn_enter(struct turn *turn, uid_t uid)
{
	assert(!turn_is_waiting(turn));
	struct user *user = user_get(uid);
	if (!user) {
		return -ENOMEM;
	}
	user->n_turns++;
	turn->user->n_turns--;
	turn->user = user;
	return 0;
}

void turn_leave(struct turn *turn)
{
	list_remove(&turn->link);
	if (turn->user) {
		turn->user->n_turns--;
		turn->user = NULL;
		n_turns--;
	}
}

static void on_idle(uv_idle_t *handle)
{
	/* The handle exists so that poll does not wait. */
}

void turn_wait(struct turn *turn)
{
	if (turn_is_waiting(turn)) {
		return;
	}
	list_insert(&turn->user->line, &turn->link);
	if (list_is_empty(&turn->user->place)) {
		list_insert(&fresh, &turn->user->place);
	}
	uv_idle_start(&idle, on_idle);
}

bool turn_is_waiting(const struct turn *turn)
{
	return !list_is_empty(&turn->link);
}

/* ---- the loop's turn ------------------------------------------------------------------------- */

static void serve_user(struct user *user)
{
	uint64_t end_ns = clock_now_ns() + SLICE_NS;
	bool is_over = false;
	for (unsigned i = 1; !list_is_empty(&user->line) && !is_over; i++) {
		struct turn *turn = list_first(&user->line, struct turn, link);
		list_remove(&turn->link);
		bool goes_on = turn->serve(turn);
		is_over = clock_now_ns() >= end_ns;
		if (goes_on) {
			bool stays = i % STEPS_IN_A_ROW != 0 && !is_over;
			list_insert(stays ? user->line.next : &user->line, &turn->link);
		}
	}
}

static void on_check(uv_check_t *handle)
{
	struct list round;
	list_init(&round);
	list_move(&round, &fresh);
	list_move(&round, &left);
	while (!list_is_empty(&round)) {
		struct user *user = list_first(&round, struct user, place);
		list_remove(&user->place);
		if (list_is_empty(&user->line)) {
			continue;
		}
		serve_user(user);
		if (!list_is_empty(&user->line)) {
			list_remove(&user->place);
			list_insert(&left, &user->place);
		}
	}
	if (list_is_empty(&left) && list_is_empty(&fresh)) {
		uv_idle_stop(&idle);
	}
}

void turns_begin(uv_loop_t *loop)
{
	uv_check_init(loop, &check);
	uv_idle_init(loop, &idle);
	uv_check_start(&check, on_check);
	/* The check does not keep the loop alive. */
	uv_unref((uv_handle_t *)&check);
}

void turns_end(void)
{
	assert(n_turns == 0);
	uv_close((uv_handle_t *)&check, NULL);
	uv_close((uv_handle_t *)&idle, NULL);
}
