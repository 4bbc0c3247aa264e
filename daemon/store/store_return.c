/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of programs that slept. While all who have a model open sleep, nobody holds it, and it is cache as any other: it may
 * have been evicted, demoted, or replaced when one of them wakes. His blocks are there again then, and this finds, or
 * makes, the model that has them.
 *
 * If it was forgotten, he alone gets a model of his blocks, REPLACED: nobody else finds it, and it goes with him. Its
 * tensors are not known any more; he knows them.
 */
#include "daemon/store/store_parts.h"

#include <errno.h>

#include "daemon/store/copies.h"

static struct model *find(const struct store *store, uint64_t id)
{
	struct model *model;
	list_for_each (model, &store->model_list, link) {
		if (model->id == id) {
			return model;
		}
	}
	return NULL;
}

static bool is_of_blocks(const struct model *model, struct block *const *blocks, size_t n_blocks)
{
	size_t i = 0;
	if (!model_is_complete(model) || model->n_blocks != n_blocks) {
		return false;
	}
	while (i < n_blocks && model->blocks[i].block == blocks[i]) {
		i++;
	}
	return i == n_blocks;
}

/* Whether @model is DEMOTED with the copies of @blocks, which everybody may have. */
static bool is_demoted_from(const struct model *model, struct block *const *blocks, size_t n_blocks)
{
	size_t i = 0;
	if (model->state != MODEL_DEMOTED || model->n_blocks != n_blocks ||
	    &model->device->at != blocks[0]->chunk.at) {
		return false;
	}
	while (i < n_blocks && blocks[i]->state == BLOCK_SHARED &&
	       digest_equal(&model->blocks[i].copy->key.digest, &blocks[i]->key.digest)) {
		i++;
	}
	return i == n_blocks;
}

static void unuse_all(struct store *store, struct block *const *blocks, size_t n_blocks)
{
	for (size_t i = 0; i < n_blocks; i++) {
		store_unuse_block(store, blocks[i], 0);
	}
}

/* Promote a model whose blocks are on the GPU already. */
static int promote(struct store *store, struct model *model, struct block *const *blocks,
                   struct payer payer)
{
	int r = store_begin_promotion(store, model, payer);
	for (size_t i = 0; r == 0 && i < model->n_blocks; i++) {
		store_place_block(store, model, i, blocks[i]);
	}
	if (r == 0) {
		store_end_promotion(store, model);
		store_ready(store, model);
	}
	return r;
}

static int add_blocks(struct store *store, struct model *model, struct block *const *blocks,
                      size_t n_blocks)
{
	for (size_t i = 0; i < n_blocks; i++) {
		/* A block may have less content than fills its last 2 MiB. */
		if (model_add_block(model, blocks[i]->chunk.bytes) < 0) {
			return -ENOMEM;
		}
		model->content_bytes += blocks[i]->content_bytes;
	}
	return charge_grow_manifest(&model->charge, model->manifest_bytes);
}

static int make(struct store *store, const struct returning *as, struct block *const *blocks,
                struct payer payer, struct model **model_out)
{
	struct block *first = blocks[0];
	struct model *model = store_new_draft(store, first->realm, as->device, payer, as->name);
	int r = model ? add_blocks(store, model, blocks, as->n_blocks) : -ENOMEM;
	if (r != 0) {
		if (model) {
			store_free_model(store, model);
		}
		return r;
	}
	for (size_t i = 0; i < as->n_blocks; i++) {
		store_place_block(store, model, i, blocks[i]);
	}
	model_set_state(model, MODEL_REPLACED);
	model->id = ++store->last_id;
	store_list_model(store, model);
	store_note_new_model(store, model);
	*model_out = model;
	return 0;
}

int store_return_model(struct store *store, const struct returning *as, struct block *const *blocks,
                       struct payer payer, struct model **model_out)
{
	struct model *model = find(store, as->model);
	int r;
	if (model && is_of_blocks(model, blocks, as->n_blocks)) {
		r = store_hold_model(store, model, payer);
		if (r == 0) {
			unuse_all(store, blocks, as->n_blocks);
		}
	} else if (model && is_demoted_from(model, blocks, as->n_blocks)) {
		r = promote(store, model, blocks, payer);
	} else {
		return make(store, as, blocks, payer, model_out);
	}
	if (r == 0) {
		*model_out = model;
	}
	return r;
}
