/* SPDX-License-Identifier: Apache-2.0 */
/* The states that blocks and models may go to. */
#include <signal.h>

#include "daemon/store/model.h"
#include "tests/check_glake.h"

/* ---- blocks ------------------------------------------------------------------------------------ */

START_TEST(a_block_becomes_damaged_and_nothing_else)
{
	for (unsigned from = 0; from < BLOCK_N_STATES; from++) {
		for (unsigned to = 0; to < BLOCK_N_STATES; to++) {
			bool may = (from == BLOCK_SHARED || from == BLOCK_APART) &&
			           to == BLOCK_DAMAGED;
			ck_assert_msg(block_may_become(from, to) == may, "%u to %u", from, to);
		}
	}
}
END_TEST

START_TEST(a_block_is_kept_as_its_header_draws)
{
	static const bool may[BLOCK_N_KEEPINGS][BLOCK_N_KEEPINGS] = {
		[BLOCK_UNKEPT] =
			{[BLOCK_ROOMLESS] = true, [BLOCK_PARKING] = true, [BLOCK_PARKED] = true},
		[BLOCK_ROOMLESS] = {[BLOCK_PARKING] = true},
		[BLOCK_PARKING] = {[BLOCK_ROOMLESS] = true, [BLOCK_PARKED] = true},
	};
	for (unsigned from = 0; from < BLOCK_N_KEEPINGS; from++) {
		for (unsigned to = 0; to < BLOCK_N_KEEPINGS; to++) {
			ck_assert_msg(block_may_be_kept(from, to) == may[from][to], "%u to %u",
			              from, to);
		}
	}
}
END_TEST

START_TEST_WITH(a_block_is_damaged_once, .signal = SIGABRT)
{
	struct block block = {.state = BLOCK_SHARED};
	block_set_state(&block, BLOCK_DAMAGED);
	block_set_state(&block, BLOCK_DAMAGED);
}
END_TEST

START_TEST_WITH(a_parked_block_stays_parked, .signal = SIGABRT)
{
	struct block block = {.keeping = BLOCK_UNKEPT};
	block_set_keeping(&block, BLOCK_PARKING);
	block_set_keeping(&block, BLOCK_PARKED);
	block_set_keeping(&block, BLOCK_ROOMLESS);
}
END_TEST

/* ---- models ------------------------------------------------------------------------------------ */

START_TEST(a_model_moves_as_its_header_draws)
{
	static const bool may[MODEL_N_STATES][MODEL_N_STATES] = {
		[MODEL_DRAFT] = {[MODEL_LOADING] = true,
	                         [MODEL_READY] = true,
	                         [MODEL_HIDDEN] = true,
	                         [MODEL_REPLACED] = true},
		[MODEL_LOADING] =
			{[MODEL_ASIDE] = true, [MODEL_DEMOTED] = true, [MODEL_READY] = true},
		[MODEL_ASIDE] = {[MODEL_HIDDEN] = true},
		[MODEL_DEMOTED] = {[MODEL_LOADING] = true},
		[MODEL_READY] =
			{[MODEL_HIDDEN] = true, [MODEL_REPLACED] = true, [MODEL_DEMOTED] = true},
		[MODEL_REPLACED] = {[MODEL_HIDDEN] = true},
	};
	for (unsigned from = 0; from < MODEL_N_STATES; from++) {
		for (unsigned to = 0; to < MODEL_N_STATES; to++) {
			ck_assert_msg(model_may_become(from, to) == may[from][to], "%u to %u", from,
			              to);
		}
	}
}
END_TEST

START_TEST(a_model_is_found_while_it_is_loaded_demoted_or_ready)
{
	for (unsigned state = 0; state < MODEL_N_STATES; state++) {
		struct model model = {.state = state};
		ck_assert_int_eq(model_is_found(&model), state == MODEL_LOADING ||
		                                                 state == MODEL_DEMOTED ||
		                                                 state == MODEL_READY);
		ck_assert_int_eq(model_is_complete(&model), state == MODEL_READY ||
		                                                    state == MODEL_HIDDEN ||
		                                                    state == MODEL_REPLACED);
	}
}
END_TEST

START_TEST_WITH(a_hidden_model_is_not_found_again, .signal = SIGABRT)
{
	struct model model = {.state = MODEL_LOADING};
	model_set_state(&model, MODEL_ASIDE);
	model_set_state(&model, MODEL_HIDDEN);
	model_set_state(&model, MODEL_READY);
}
END_TEST
