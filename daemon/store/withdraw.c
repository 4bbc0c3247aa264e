/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/withdraw.h"

#include <assert.h>

#include "proto/cleanup.h"

void withdraw_begin(struct store *store, struct block *block)
{
	assert(block->n_compared > 0 && !store->withdrawal.block);
	store_take_out_block(store, block);
	store->withdrawal = (struct withdrawal){.block = block, .at = store->model_list.next};
}

static void go_on(struct withdrawal *withdrawal)
{
	withdrawal->at = withdrawal->at->next;
	withdrawal->place = 0;
}

/* Returns whether the places of @model that are left, or as many as there are steps for, have the block. */
static bool look_at(struct withdrawal *withdrawal, const struct model *model, size_t *n_steps)
{
	while (*n_steps > 0 && withdrawal->place < model->n_blocks) {
		--*n_steps;
		if (model->blocks[withdrawal->place++].block == withdrawal->block) {
			return true;
		}
	}
	return false;
}

static void tell(struct store *store, struct model *model, withdraw_fn on_model, void *user)
{
	on_model(user, model);
	if (model->n_holders == 0 && !model->is_pinned) {
		store_evict_model(store, model);
	}
}

bool withdraw_step(struct store *store, size_t *n_steps, withdraw_fn on_model, void *user)
{
	struct withdrawal *withdrawal = &store->withdrawal;
	while (*n_steps > 0 && withdrawal->at != &store->model_list) {
		struct model *model = container_of(withdrawal->at, struct model, link);
		--*n_steps;
		if (store_is_withdrawn(store, model) || look_at(withdrawal, model, n_steps)) {
			if (store_withdraw_model(store, model) < 0) {
				/* Later there may be memory. */
				withdrawal->place = 0;
				return false;
			}
			go_on(withdrawal);
			tell(store, model, on_model, user);
		} else if (withdrawal->place >= model->n_blocks) {
			go_on(withdrawal);
		}
	}
	return withdrawal->at == &store->model_list;
}

void withdraw_end(struct store *store)
{
	store->withdrawal.block = NULL;
}
