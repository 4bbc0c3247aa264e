/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/text.h"
#include "daemon/store/copies.h"
#include "proto/cleanup.h"

/*
 * Added to each manifest. It is more than a model takes, because walking through many models takes
 * time.
 */
#define MODEL_BYTES (16u * 1024u)

struct model_key store_model_key(const struct realm *realm, const struct device *device,
                                 const struct file_id *files, size_t n_files)
{
	return (struct model_key){.realm_id = realm->id,
	                          .device = device->index,
	                          .digest = digest_of(files, n_files * sizeof(files[0]))};
}

struct model_key store_published_key(const struct realm *realm, const struct device *device,
                                     const char *key)
{
	return (struct model_key){.realm_id = realm->id,
	                          .device = device->index,
	                          .is_published = true,
	                          .digest = digest_of(key, strlen(key))};
}

bool store_is_withdrawn(const struct store *store, const struct model *model)
{
	return model->withdrawn_block == store->withdrawal.block->id;
}

int store_withdraw_model(struct store *store, struct model *model)
{
	int r = model->reload_reason ? 0
	                             : store_hide_model(store, model, "a block of it is damaged");
	if (r == 0) {
		model->withdrawn_block = store->withdrawal.block->id;
	}
	return r;
}

/* @model was found, but has a block that is being withdrawn, and is hidden now. */
static bool hides(struct store *store, struct model *model)
{
	const struct block *block = store->withdrawal.block;
	return block && !store_is_withdrawn(store, model) && store_has_block(model, block) &&
	       store_withdraw_model(store, model) == 0;
}

/* @model leaves the list. */
static void skip_in_withdrawal(struct store *store, const struct model *model)
{
	struct withdrawal *withdrawal = &store->withdrawal;
	if (withdrawal->block && withdrawal->at == &model->link) {
		withdrawal->at = model->link.next;
		withdrawal->place = 0;
	}
}

struct model *store_find_model(struct store *store, const struct realm *realm,
                               const struct device *device, const struct file_id *files,
                               size_t n_files)
{
	struct model_key key = store_model_key(realm, device, files, n_files);
	struct model *model;
	HASH_FIND(hh, store->models, &key, sizeof(key), model);
	if (model && (model->n_files != n_files ||
	              memcmp(model->files, files, n_files * sizeof(files[0])) != 0)) {
		return NULL;
	}
	return model && !hides(store, model) ? model : NULL;
}

struct model *store_find_published(struct store *store, const struct realm *realm,
                                   const struct device *device, const char *name)
{
	struct model_key key = store_published_key(realm, device, name);
	struct model *model;
	HASH_FIND(hh, store->models, &key, sizeof(key), model);
	bool is_it = model && strcmp(model->name, name) == 0;
	return is_it && !hides(store, model) ? model : NULL;
}

int store_move_manifest(struct store *store, struct model *model, struct payer payer)
{
	if (model->charge.tenant == payer.tenant && model->charge.user == payer.user) {
		return 0;
	}
	int r = charge_move(&model->charge, payer);
	if (r == 0) {
		store_note_model(store, model);
	}
	return r;
}

void store_model_fall_idle(struct store *store, struct model *model)
{
	/* The cache has no limits, so the move cannot be refused. */
	store_move_manifest(store, model, payer_alone(store->cache));
	model->realm->idle_manifest_bytes += model->manifest_bytes;
	store_enter_idle(store, &model->idle);
}

void store_model_leave_idle(struct store *store, struct model *model)
{
	if (!list_is_empty(&model->idle.link)) {
		model->realm->idle_manifest_bytes -= model->manifest_bytes;
		list_remove(&model->idle.link);
	}
}

void store_free_model(struct store *store, struct model *model)
{
	store_note_model_gone(store, model);
	model_free_tensors(model, store->loop);
	charge_refund(&model->charge);
	free(model->blocks);
	free(model->files);
	free(model->reload_reason);
	free(model->name);
	realm_unref(model->realm);
	free(model);
}

struct model *store_new_model(struct store *store, struct realm *realm, struct device *device,
                              struct payer payer, const char *name)
{
	struct model *model = calloc(1, sizeof(*model));
	if (!model) {
		return NULL;
	}
	model->realm = realm_ref(realm);
	model->device = device;
	model->charge = tenant_charge_manifest(payer);
	model->manifest_bytes = MODEL_BYTES + strlen(name);
	model->n_holders = 1;
	model->idle.kind = IDLE_MODEL;
	list_init(&model->idle.link);
	list_init(&model->link);
	list_init(&model->demoted);
	model->name = strdup(name);
	if (!model->name) {
		store_free_model(store, model);
		return NULL;
	}
	return model;
}

bool store_enter_key(struct store *store, struct model *model, enum model_state state)
{
	HASH_ADD(hh, store->models, key, sizeof(model->key), model);
	if (!hash_has(model)) {
		return false;
	}
	model_set_state(model, state);
	return true;
}

void store_list_model(struct store *store, struct model *model)
{
	list_insert(&store->model_list, &model->link);
	store->n_models++;
}

bool store_enter_model(struct store *store, struct model *model, enum model_state state)
{
	if (!store_enter_key(store, model, state)) {
		return false;
	}
	model->id = ++store->last_id;
	store_list_model(store, model);
	return true;
}

void store_leave_key(struct store *store, struct model *model, enum model_state state)
{
	if (model_is_found(model)) {
		HASH_DEL(store->models, model);
	}
	model_set_state(model, state);
}

struct model *store_add_model(struct store *store, struct realm *realm, struct device *device,
                              struct payer payer, const char *name, const struct file_id *files,
                              size_t n_files)
{
	struct model *model = store_new_model(store, realm, device, payer, name);
	if (!model) {
		return NULL;
	}
	model->key = store_model_key(realm, device, files, n_files);
	model->files = calloc(n_files, sizeof(files[0]));
	if (model->files) {
		memcpy(model->files, files, n_files * sizeof(files[0]));
		model->n_files = n_files;
		model->manifest_bytes += n_files * sizeof(files[0]);
	}
	if (!model->files || !store_enter_model(store, model, MODEL_LOADING)) {
		store_free_model(store, model);
		return NULL;
	}
	return model;
}

int store_hide_model(struct store *store, struct model *model, const char *reason)
{
	char *copy = text_clean_copy(reason);
	if (!copy) {
		return -ENOMEM;
	}
	store_leave_key(store, model, model->state == MODEL_LOADING ? MODEL_ASIDE : MODEL_HIDDEN);
	model->reload_reason = copy;
	store_note_model(store, model);
	return 0;
}

void store_ready(struct store *store, struct model *model)
{
	model_set_state(model, model->state == MODEL_ASIDE ? MODEL_HIDDEN : MODEL_READY);
	store_note_new_model(store, model);
	store_copy_model(store, model);
}

void store_place_block(struct store *store, struct model *model, size_t i, struct block *block)
{
	assert(!model_is_complete(model) && !model->blocks[i].block);
	model->blocks[i].block = block;
	block->n_manifests++;
}

/* All, or none. */
static int use_all(struct store *store, struct model *model, struct tenant *tenant)
{
	for (size_t i = 0; i < model->n_blocks; i++) {
		int r = store_use_block(store, model->blocks[i].block, tenant);
		if (r != 0) {
			while (i-- > 0) {
				store_unuse_block(store, model->blocks[i].block, 0);
			}
			return r;
		}
	}
	return 0;
}

int store_hold_model(struct store *store, struct model *model, struct payer payer)
{
	assert(model_is_complete(model));
	if (model->n_holders == 0) {
		int r = model->is_pinned ? 0 : store_move_manifest(store, model, payer);
		if (r != 0) {
			return r;
		}
		r = use_all(store, model, payer.tenant);
		if (r != 0) {
			if (!model->is_pinned) {
				store_move_manifest(store, model, payer_alone(store->cache));
			}
			return r;
		}
		store_model_leave_idle(store, model);
	}
	model->n_holders++;
	return 0;
}

static void unuse_all(struct store *store, struct model *model, int32_t priority)
{
	for (size_t i = 0; i < model->n_blocks; i++) {
		if (model->blocks[i].block) {
			store_unuse_block(store, model->blocks[i].block, priority);
		}
	}
}

uint64_t store_leave_blocks(struct store *store, struct model *model)
{
	uint64_t freed_bytes = 0;
	for (size_t i = 0; i < model->n_blocks; i++) {
		struct block *block = ptr_steal(model->blocks[i].block);
		if (!block || --block->n_manifests > 0 || block->n_users > 0) {
			continue;
		}
		store_note_unused(store, &block->idle, model->idle.priority);
		freed_bytes += store_settle_block(store, block);
	}
	return freed_bytes;
}

uint64_t store_remove_model(struct store *store, struct model *model)
{
	if (model_is_found(model)) {
		HASH_DEL(store->models, model);
	}
	if (!list_is_empty(&model->link)) {
		skip_in_withdrawal(store, model);
		list_remove(&model->link);
		store->n_models--;
	}
	store_model_leave_idle(store, model);
	store_model_leave_demoted(model);
	uint64_t freed_bytes = store_leave_blocks(store, model);
	store_let_copies(store, model);
	store_free_model(store, model);
	return freed_bytes;
}

bool store_is_for_users_only(const struct model *model)
{
	return (model->key.is_published && !model_is_found(model)) || store_has_unparked(model);
}

void store_unhold_model(struct store *store, struct model *model, int32_t priority)
{
	assert(model->n_holders > 0);
	if (--model->n_holders > 0) {
		return;
	}
	unuse_all(store, model, priority);
	store_note_unused(store, &model->idle, priority);
	if (model->is_pinned) {
		store_note_model(store, model);
		return;
	}
	if (store_is_for_users_only(model)) {
		store_remove_model(store, model);
	} else {
		store_model_fall_idle(store, model);
	}
}

void store_drop_model(struct store *store, struct model *model)
{
	assert(!model_is_complete(model) && model->n_holders == 1);
	unuse_all(store, model, 0);
	store_remove_model(store, model);
}

bool store_has_block(const struct model *model, const struct block *block)
{
	for (size_t i = 0; i < model->n_blocks; i++) {
		if (model->blocks[i].block == block) {
			return true;
		}
	}
	return false;
}

bool store_has_unparked(const struct model *model)
{
	for (size_t i = 0; i < model->n_blocks; i++) {
		if (model->blocks[i].block->state == BLOCK_LOST) {
			return true;
		}
	}
	return false;
}

bool store_has_damaged(const struct model *model)
{
	for (size_t i = 0; i < model->n_blocks; i++) {
		const struct block *block = model->blocks[i].block;
		if (block && block->state == BLOCK_DAMAGED) {
			return true;
		}
	}
	return false;
}

static void add_part(const struct store *store, struct model_parts *parts,
                     const struct model_block *place)
{
	const struct block *block = place->block;
	const struct copy *copy = place->copy ? place->copy : store_copy_of(store, block);
	parts->copied_bytes += copy ? copy->bytes : 0;
	if (block) {
		parts->unique_bytes += block->n_manifests == 1 ? block->chunk.bytes : 0;
		parts->part_bytes += (double)block->chunk.bytes / block->n_manifests;
	}
}

bool store_look_at_parts(const struct store *store, struct model *model, size_t *n_steps)
{
	for (; model->parts_place<model->n_blocks && * n_steps> 0; --*n_steps) {
		add_part(store, &model->parts_so_far, &model->blocks[model->parts_place++]);
	}
	if (model->parts_place < model->n_blocks) {
		return false;
	}
	model->parts = model->parts_so_far;
	model->parts_so_far = (struct model_parts){0};
	model->parts_place = 0;
	return true;
}
