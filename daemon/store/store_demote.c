/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model that is evicted while host memory has copies of all of its blocks keeps its manifest, with the copies in the
 * places of the blocks. The books do not have it: a restart of glaked forgets it, and its copies with it.
 */
#include "daemon/store/store_parts.h"

#include <assert.h>

#include "daemon/base/log.h"
#include "daemon/store/copies.h"
#include "proto/cleanup.h"

static bool may_be_demoted(const struct store *store, const struct model *model)
{
	return store->copies && store->copies->is_on && model->state == MODEL_READY &&
	       model->n_blocks > 0 && model->span_bytes <= copies_most_bytes(store->copies);
}

void store_copy_model(struct store *store, struct model *model)
{
	for (size_t i = 0; may_be_demoted(store, model) && i < model->n_blocks; i++) {
		copies_want(store->copies, model->blocks[i].block);
	}
}

/* The built-in tenant pays for its manifest. */
static void enter_demoted(struct store *store, struct model *model)
{
	model_set_state(model, MODEL_DEMOTED);
	model->realm->idle_manifest_bytes += model->manifest_bytes;
	list_insert(&store->demoted, &model->demoted);
	for (size_t i = 0; i < model->n_blocks; i++) {
		copies_offer(store->copies, model->blocks[i].copy);
	}
}

void store_model_leave_demoted(struct model *model)
{
	if (!list_is_empty(&model->demoted)) {
		model->realm->idle_manifest_bytes -= model->manifest_bytes;
		list_remove(&model->demoted);
	}
}

struct copy *store_copy_of(const struct store *store, const struct block *block)
{
	return block && store->copies && block->state == BLOCK_SHARED
	               ? copies_find(store->copies, block->realm, &block->key.digest)
	               : NULL;
}

bool store_demote(struct store *store, struct model *model, uint64_t *freed_bytes_out)
{
	bool is_there = may_be_demoted(store, model);
	for (size_t i = 0; is_there && i < model->n_blocks; i++) {
		is_there = store_copy_of(store, model->blocks[i].block) != NULL;
	}
	if (!is_there) {
		return false;
	}
	for (size_t i = 0; i < model->n_blocks; i++) {
		struct model_block *place = &model->blocks[i];
		place->copy = store_copy_of(store, place->block);
		copies_hold(store->copies, place->copy);
	}
	log_info("moved model '%s' of realm %s from device %u to host memory", model->name,
	         model->realm->name, model->device->index);
	store_note_model_gone(store, model);
	model->manifest = 0;
	model->n_noted = 0;
	store_model_leave_idle(store, model);
	enter_demoted(store, model);
	*freed_bytes_out = store_leave_blocks(store, model);
	store->stats->models_demoted++;
	return true;
}

void store_let_copies(struct store *store, struct model *model)
{
	for (size_t i = 0; i < model->n_blocks; i++) {
		struct copy *copy = ptr_steal(model->blocks[i].copy);
		if (copy && model->state == MODEL_DEMOTED) {
			copies_let_offered(store->copies, copy);
		} else if (copy) {
			copies_let(store->copies, copy);
		}
	}
}

int store_begin_promotion(struct store *store, struct model *model, struct payer payer)
{
	int r = store_move_manifest(store, model, payer);
	if (r == 0) {
		store_model_leave_demoted(model);
		model_set_state(model, MODEL_LOADING);
		model->n_holders = 1;
		for (size_t i = 0; i < model->n_blocks; i++) {
			copies_keep(store->copies, model->blocks[i].copy);
		}
	}
	return r;
}

void store_end_promotion(struct store *store, struct model *model)
{
	store_let_copies(store, model);
	store->stats->models_promoted++;
}

void store_cancel_promotion(struct store *store, struct model *model)
{
	assert(model->state == MODEL_LOADING && model->n_holders == 1);
	model->n_holders = 0;
	for (size_t i = 0; i < model->n_blocks; i++) {
		if (model->blocks[i].block) {
			store_unuse_block(store, model->blocks[i].block, model->idle.priority);
		}
	}
	store_leave_blocks(store, model);
	/* The built-in tenant has no limits, so this cannot be refused. */
	store_move_manifest(store, model, payer_alone(store->cache));
	enter_demoted(store, model);
}

static bool has_copy(const struct model *model, const struct copy *copy)
{
	size_t i = 0;
	while (i < model->n_blocks && model->blocks[i].copy != copy) {
		i++;
	}
	return i < model->n_blocks;
}

bool store_forget_demoted(struct store *store, const struct copy *copy)
{
	struct model *model;
	list_for_each (model, &store->demoted, demoted) {
		if (has_copy(model, copy)) {
			store_evict_model(store, model);
			return true;
		}
	}
	return false;
}
