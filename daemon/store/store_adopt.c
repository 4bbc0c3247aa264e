/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store_parts.h"

#include <errno.h>
#include <string.h>

#include "proto/cleanup.h"

struct block *store_adopt_block(struct store *store, uint64_t id, struct realm *realm,
                                const struct digest *digest, uint64_t content_bytes,
                                struct chunk *chunk, enum block_state state)
{
	state = chunk->is_unparked ? BLOCK_LOST : state;
	if (state == BLOCK_SHARED && store_find_block(store, realm, chunk->at, digest)) {
		return NULL;
	}
	struct block *block = store_new_block(store, id, realm, digest, content_bytes, chunk,
	                                      state);
	if (block) {
		block->is_noted = true;
		if (state != BLOCK_LOST) {
			block_set_keeping(block, BLOCK_PARKED);
		}
	}
	return block;
}

void store_set_adopted_maker(struct store *store, struct block *block, struct user *maker)
{
	block->maker = user_ref(maker);
	if (block->keeping == BLOCK_PARKED) {
		user_charge_anyway(&block->place, &store->places, maker, 1);
	}
}

struct model *store_adopt_model(struct store *store, uint64_t id, struct realm *realm,
                                struct device *device, const char *name)
{
	struct model *model = store_new_model(store, realm, device, payer_alone(store->cache),
	                                      name);
	if (model) {
		model->id = id;
		model->n_holders = 0;
	}
	return model;
}

void store_drop_adopted(struct store *store, struct model *model)
{
	model->manifest = 0;
	store_free_model(store, model);
}

/* Make the adopted model ready to be HIDDEN. Returns 0 or -ENOMEM. */
static int hide_adopted(struct model *model)
{
	model->is_pinned = false;
	if (!model->reload_reason) {
		model->reload_reason = strdup(
			"a block of it was not kept when glaked was restarted");
	}
	return model->reload_reason ? 0 : -ENOMEM;
}

static bool are_parked(struct block *const *blocks, size_t n_blocks)
{
	size_t i = 0;
	while (i < n_blocks && blocks[i]->state != BLOCK_LOST) {
		i++;
	}
	return i == n_blocks;
}

int store_finish_adopted(struct store *store, struct model *model, struct block *const *blocks,
                         struct payer payer, enum model_state state)
{
	int r = 0;
	struct model *other = NULL;
	if (!are_parked(blocks, model->n_blocks)) {
		r = hide_adopted(model);
		state = MODEL_HIDDEN;
	}
	model->key = model->key.is_published
	                     ? store_published_key(model->realm, model->device, model->name)
	                     : store_model_key(model->realm, model->device, model->files,
	                                       model->n_files);
	if (state == MODEL_READY) {
		HASH_FIND(hh, store->models, &model->key, sizeof(model->key), other);
	}
	if (r < 0 || other ||
	    (state == MODEL_READY && !store_enter_key(store, model, MODEL_READY))) {
		store_drop_adopted(store, model);
		return other ? -EEXIST : -ENOMEM;
	}
	if (state != MODEL_READY) {
		model_set_state(model, state);
	}
	charge_refund(&model->charge);
	model->charge = tenant_charge_adopted(payer, 0, 0, 0, model->manifest_bytes);
	model->n_noted = model->n_tensors;
	for (size_t i = 0; i < model->n_blocks; i++) {
		model->blocks[i].block = blocks[i];
		blocks[i]->n_manifests++;
		blocks[i]->n_pins += model->is_pinned;
	}
	store_list_model(store, model);
	return 0;
}

void store_use_adopted(struct store *store, struct block *block)
{
	store_add_user(block);
}

void store_hold_adopted(struct store *store, struct model *model)
{
	if (model->n_holders++ == 0) {
		for (size_t i = 0; i < model->n_blocks; i++) {
			store_add_user(model->blocks[i].block);
		}
	}
}

static int by_age(const struct list *a, const struct list *b)
{
	const struct idle *one = container_of(a, struct idle, link);
	const struct idle *other = container_of(b, struct idle, link);
	return one->since_ms < other->since_ms ? -1 : one->since_ms > other->since_ms;
}

/* Priorities are in order already. */
static void sort_idle(struct store *store)
{
	struct list sorted = LIST_INIT(sorted);
	while (!list_is_empty(&store->idle)) {
		struct list *link = store->idle.next;
		struct list *next = &sorted;
		list_remove(link);
		while (next->prev != &sorted && by_age(link, next->prev) < 0) {
			next = next->prev;
		}
		list_insert(next, link);
	}
	while (!list_is_empty(&sorted)) {
		struct idle *idle = list_first(&sorted, struct idle, link);
		list_remove(&idle->link);
		store_enter_idle(store, idle);
	}
}

void store_settle_adopted(struct store *store)
{
	struct model *model;
	struct model *next_model;
	struct block *block;
	struct block *next_block;
	list_for_each_safe (model, next_model, &store->model_list, link) {
		if (model->n_holders > 0 || model->is_pinned) {
			continue;
		}
		if (store_is_for_users_only(model)) {
			store_remove_model(store, model);
		} else {
			store_model_fall_idle(store, model);
		}
	}
	list_for_each_safe (block, next_block, &store->block_list, link) {
		if (block->n_users > 0) {
			continue;
		}
		store_pay_from_cache(store, block);
		/* The block may be idle already, since a model went that had it. */
		if (list_is_empty(&block->idle.link)) {
			store_settle_block(store, block);
		}
	}
	sort_idle(store);
}
