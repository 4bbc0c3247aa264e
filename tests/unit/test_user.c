/* SPDX-License-Identifier: Apache-2.0 */
/* A user's part of a thing that is limited, and that it is paid back. */
#include "daemon/net/user.h"

#include <signal.h>

#include "tests/check_glake.h"

#define ALICE 1001
#define BOB 1002
#define CAROL 1003
#define N 16

static struct pot pot = {.row = USER_LOADS, .limit = N};
static struct user_charge charges[4 * N];
static unsigned n_charges;

/* One at a time, until it is refused. Returns how many. */
static unsigned take_all(uid_t uid)
{
	unsigned n = 0;
	while (user_charge(&charges[n_charges], &pot, user_get(uid), 1)) {
		n_charges++;
		n++;
	}
	return n;
}

static void give_all_back(void)
{
	while (n_charges > 0) {
		user_refund_all(&charges[--n_charges]);
	}
	pot_deinit(&pot);
}

START_TEST(each_has_half_of_what_the_others_leave)
{
	ck_assert_uint_eq(take_all(ALICE), N / 2);
	ck_assert_uint_eq(take_all(BOB), N / 4);
	ck_assert_uint_eq(take_all(CAROL), N / 8);
	ck_assert_uint_eq(take_all(ALICE), 0);
	ck_assert_uint_eq(pot.used, N / 2 + N / 4 + N / 8);
	ck_assert_uint_eq(pot_used_by(&pot, user_get(BOB)), N / 4);
	give_all_back();
	ck_assert_uint_eq(user_get(ALICE)->n_shares, 0);
}
END_TEST

/* There is always one for the next one, as long as there is any, and never more than there are. */
START_TEST(the_last_ones_go_one_by_one)
{
	uid_t uid = ALICE;
	while (pot.used < pot.limit) {
		ck_assert_uint_gt(take_all(uid++), 0);
	}
	ck_assert_uint_eq(take_all(uid), 0);
	give_all_back();
}
END_TEST

START_TEST(what_comes_back_is_there_for_others)
{
	take_all(ALICE);
	ck_assert_uint_eq(take_all(BOB), N / 4);
	while (n_charges > N / 2) {
		user_refund_all(&charges[--n_charges]);
	}
	ck_assert_uint_eq(take_all(CAROL), N / 4);
	give_all_back();
}
END_TEST

/* Glaked itself takes nothing of the users'; and a limit of 0 is none. */
START_TEST(what_is_not_limited_is_not_refused)
{
	struct user_charge charge = {0};
	ck_assert(user_charge(&charge, &pot, NULL, 2 * N));
	ck_assert_uint_eq(pot.used, 0);
	user_refund_all(&charge);
	pot.limit = 0;
	ck_assert(user_charge(&charge, &pot, user_get(ALICE), 100 * N));
	ck_assert_uint_eq(pot.used, 100 * N);
	/* Below what is used nothing is taken away. */
	pot.limit = N;
	ck_assert(!user_charge(&charge, &pot, user_get(ALICE), 1));
	ck_assert(!user_charge(&charge, &pot, user_get(BOB), 1));
	user_charge_set(&charge, &pot, user_get(ALICE), 1);
	ck_assert_uint_eq(take_all(BOB), (N - 1) / 2);
	user_refund_all(&charge);
	give_all_back();
}
END_TEST

START_TEST_WITH(what_is_not_paid_back_is_noticed, .signal = SIGABRT)
{
	ck_assert_uint_gt(take_all(ALICE), 0);
	pot_deinit(&pot);
}
END_TEST
