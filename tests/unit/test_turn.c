/* SPDX-License-Identifier: Apache-2.0 */
/* The loop's time is shared out by user: many connections of one do not stand before another's. */
#include "daemon/net/turn.h"

#include "proto/cleanup.h"
#include "proto/clock.h"
#include "tests/check_glake.h"

#define BUSY_UID 1
#define OTHER_UID 2
#define N_BUSY 50u

struct connection {
	struct turn turn;
	unsigned n_served;
	unsigned n_steps; /* so many it has to take */
	unsigned step_us;
};

static uv_loop_t loop;
static struct connection busy[N_BUSY];
static struct connection other;
static unsigned n_served_before; /* of the busy ones, when the other was served */

static bool serve(struct turn *turn)
{
	struct connection *connection = container_of(turn, struct connection, turn);
	uint64_t end_ns = clock_now_ns() + connection->step_us * 1000ull;
	while (clock_now_ns() < end_ns) {
	}
	connection->n_served++;
	if (connection == &other) {
		n_served_before = 0;
		for (unsigned i = 0; i < N_BUSY; i++) {
			n_served_before += busy[i].n_served;
		}
	}
	return connection->n_served < connection->n_steps;
}

static void open_connection(struct connection *connection, uid_t uid, unsigned n_steps)
{
	*connection = (struct connection){.n_steps = n_steps, .step_us = uid == BUSY_UID ? 300 : 0};
	turn_init(&connection->turn, serve);
	ck_assert_int_eq(turn_enter(&connection->turn, uid), 0);
}

static void begin(unsigned n_steps)
{
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	turns_begin(&loop);
	for (unsigned i = 0; i < N_BUSY; i++) {
		open_connection(&busy[i], BUSY_UID, n_steps);
		turn_wait(&busy[i].turn);
	}
	open_connection(&other, OTHER_UID, 1);
}

static void end(void)
{
	for (unsigned i = 0; i < N_BUSY; i++) {
		turn_leave(&busy[i].turn);
		turn_leave(&busy[i].turn);
	}
	turn_leave(&other.turn);
	turns_end();
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

END_EACH(end)

START_TEST(who_comes_later_waits_for_one_slice)
{
	begin(1000);
	turn_wait(&other.turn);
	uv_run(&loop, UV_RUN_NOWAIT);
	ck_assert_uint_eq(other.n_served, 1);
	/* As many steps as fit a slice: with 300 us each, some four; far fewer than there are. */
	ck_assert_uint_lt(n_served_before, N_BUSY);
}
END_TEST

START_TEST(who_was_left_over_goes_last)
{
	begin(1000);
	uv_run(&loop, UV_RUN_NOWAIT);
	unsigned n_served = 0;
	for (unsigned i = 0; i < N_BUSY; i++) {
		n_served += busy[i].n_served;
	}
	ck_assert_uint_ge(n_served, 1);
	turn_wait(&other.turn);
	uv_run(&loop, UV_RUN_NOWAIT);
	ck_assert_uint_eq(other.n_served, 1);
	ck_assert_uint_eq(n_served_before, n_served);
}
END_TEST

/* Without anything else to wake the loop, which then has nothing left to do. */
START_TEST(what_is_left_over_is_served)
{
	begin(20);
	uv_run(&loop, UV_RUN_DEFAULT);
	for (unsigned i = 0; i < N_BUSY; i++) {
		ck_assert_uint_eq(busy[i].n_served, 20);
		ck_assert(!turn_is_waiting(&busy[i].turn));
	}
}
END_TEST

/* The last of a user's connections goes while it is served. */
static bool leave(struct turn *turn)
{
	turn_leave(turn);
	return false;
}

START_TEST(who_leaves_in_his_turn_is_gone)
{
	begin(1);
	other.turn.serve = leave;
	turn_wait(&other.turn);
	turn_wait(&other.turn);
	turn_leave(&busy[3].turn);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_uint_eq(busy[3].n_served, 0);
	ck_assert_uint_eq(busy[4].n_served, 1);
}
END_TEST
