/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/copies.h"
#include "daemon/store/store_parts.h"

void store_note_block(const struct store *store, const struct block *block)
{
	if (store->watch && block->is_noted) {
		store->watch->block(store->watcher, block);
	}
}

void store_note_model(const struct store *store, const struct model *model)
{
	if (store->watch && model_is_complete(model)) {
		store->watch->model(store->watcher, model, false);
	}
}

bool store_has_room(const struct store *store)
{
	return !store->watch || store->watch->has_room(store->watcher);
}

void store_note_tensors(struct store *store, struct model *model)
{
	if (!store->watch || model->n_noted == model->n_tensors) {
		return;
	}
	if (!model->manifest) {
		model->manifest = ++store->last_id;
	}
	store->watch->tensors(store->watcher, model, model->n_noted);
	model->n_noted = model->n_tensors;
}

void store_note_new_model(struct store *store, struct model *model)
{
	if (!store->watch) {
		return;
	}
	store_note_tensors(store, model);
	if (!model->manifest) {
		model->manifest = ++store->last_id;
	}
	store->watch->model(store->watcher, model, true);
}

void store_note_draft(struct store *store, struct model *draft)
{
	if (draft->manifest) {
		draft->n_noted = 0;
		store_note_tensors(store, draft);
	}
}

void store_note_all(struct store *store)
{
	struct block *block;
	struct model *model;
	list_for_each (block, &store->block_list, link) {
		store_note_block(store, block);
	}
	list_for_each (model, &store->model_list, link) {
		store_note_draft(store, model);
		if (model_is_complete(model)) {
			store->watch->model(store->watcher, model, true);
		}
	}
	if (store->copies) {
		copies_note_all(store->copies);
	}
}

void store_note_model_gone(const struct store *store, const struct model *model)
{
	if (store->watch && model->manifest) {
		store->watch->model_gone(store->watcher, model);
	}
}
