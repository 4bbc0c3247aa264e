/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/block.h"

#include <assert.h>

#define BIT(state) (1u << (state))

bool block_may_become(enum block_state from, enum block_state to)
{
	static const unsigned legal[BLOCK_N_STATES] = {
		[BLOCK_SHARED] = BIT(BLOCK_DAMAGED),
		[BLOCK_APART] = BIT(BLOCK_DAMAGED),
	};
	return legal[from] & BIT(to);
}

void block_set_state(struct block *block, enum block_state state)
{
	assert(block_may_become(block->state, state));
	block->state = state;
}

bool block_may_be_kept(enum block_keeping from, enum block_keeping to)
{
	static const unsigned legal[BLOCK_N_KEEPINGS] = {
		[BLOCK_UNKEPT] = BIT(BLOCK_ROOMLESS) | BIT(BLOCK_PARKING) | BIT(BLOCK_PARKED),
		[BLOCK_ROOMLESS] = BIT(BLOCK_PARKING),
		[BLOCK_PARKING] = BIT(BLOCK_ROOMLESS) | BIT(BLOCK_PARKED),
	};
	return legal[from] & BIT(to);
}

void block_set_keeping(struct block *block, enum block_keeping keeping)
{
	assert(block_may_be_kept(block->keeping, keeping));
	block->keeping = keeping;
}
