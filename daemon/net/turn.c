/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/net/turn.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"
#include "proto/clock.h"

/*
 * What a user has of each turn. Long against the turn itself, which costs some 20 us with many
 * connections; short against what others may be kept waiting.
 */
#define SLICE_NS 1000000u

/* After so many steps at most the user's next connection is served. */
#define STEPS_IN_A_ROW 16

struct turn_user {
	struct list link; /* link: fresh or left, while it has a line */
	struct list all;  /* link: users */
	uid_t uid;
	size_t n_turns; /* entered, and one while it is served */
	struct list line;
};

static struct turn_user nobody = {
	.link = LIST_INIT(nobody.link), .n_turns = 1, .line = LIST_INIT(nobody.line)};
static struct list users = LIST_INIT(users);
static struct list fresh = LIST_INIT(fresh);
static struct list left = LIST_INIT(left);
static uv_check_t check;
static uv_idle_t idle;

/* ---- users ----------------------------------------------------------------------------------- */

/* NULL: no memory. */
static struct turn_user *get_user(uid_t uid)
{
	struct turn_user *user;
	list_for_each (user, &users, all) {
		if (user->uid == uid) {
			return user;
		}
	}
	user = calloc(1, sizeof(*user));
	if (!user) {
		return NULL;
	}
	user->uid = uid;
	list_init(&user->link);
	list_init(&user->line);
	list_insert(&users, &user->all);
	return user;
}

static void unref_user(struct turn_user *user)
{
	if (--user->n_turns == 0) {
		list_remove(&user->link);
		list_remove(&user->all);
		free(user);
	}
}

/* ---- the line -------------------------------------------------------------------------------- */

void turn_init(struct turn *turn, turn_fn serve)
{
	list_init(&turn->link);
	turn->user = &nobody;
	turn->serve = serve;
	nobody.n_turns++;
}

int turn_enter(struct turn *turn, uid_t uid)
{
	assert(!turn_is_waiting(turn));
	struct turn_user *user = get_user(uid);
	if (!user) {
		return -ENOMEM;
	}
	user->n_turns++;
	unref_user(turn->user);
	turn->user = user;
	return 0;
}

void turn_leave(struct turn *turn)
{
	list_remove(&turn->link);
	if (turn->user) {
		unref_user(turn->user);
		turn->user = NULL;
	}
}

static void on_idle(uv_idle_t *handle)
{
	/* It is there so that poll does not wait. */
}

void turn_wait(struct turn *turn)
{
	if (turn_is_waiting(turn)) {
		return;
	}
	list_insert(&turn->user->line, &turn->link);
	if (list_is_empty(&turn->user->link)) {
		list_insert(&fresh, &turn->user->link);
	}
	uv_idle_start(&idle, on_idle);
}

bool turn_is_waiting(const struct turn *turn)
{
	return !list_is_empty(&turn->link);
}

/* ---- the loop's turn ------------------------------------------------------------------------- */

static void serve_user(struct turn_user *user)
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

/* Moves all of @from behind what is in @to. */
static void append(struct list *to, struct list *from)
{
	while (!list_is_empty(from)) {
		struct list *link = from->next;
		list_remove(link);
		list_insert(to, link);
	}
}

static void on_check(uv_check_t *handle)
{
	struct list round;
	list_init(&round);
	append(&round, &fresh);
	append(&round, &left);
	while (!list_is_empty(&round)) {
		struct turn_user *user = list_first(&round, struct turn_user, link);
		list_remove(&user->link);
		if (list_is_empty(&user->line)) {
			continue;
		}
		user->n_turns++;
		serve_user(user);
		if (!list_is_empty(&user->line)) {
			list_remove(&user->link);
			list_insert(&left, &user->link);
		}
		unref_user(user);
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
	/* Of itself it is no reason to go on. */
	uv_unref((uv_handle_t *)&check);
}

void turns_end(void)
{
	assert(list_is_empty(&users));
	uv_close((uv_handle_t *)&check, NULL);
	uv_close((uv_handle_t *)&idle, NULL);
}
