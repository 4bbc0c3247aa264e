/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store_parts.h"

#include <assert.h>
#include <errno.h>

struct model *store_new_draft(struct store *store, struct realm *realm, struct device *device,
                              struct payer payer, const char *key)
{
	struct model *draft = store_new_model(store, realm, device, payer, key);
	if (draft) {
		draft->key = store_published_key(realm, device, key);
	}
	return draft;
}

int store_add_used_block(struct store *store, struct model *draft, struct block *block)
{
	assert(block->n_users > 0);
	int r = model_add_block(draft, block->chunk.bytes);
	if (r == 0) {
		store_add_user(block);
		store_place_block(store, draft, draft->n_blocks - 1, block);
	}
	return r;
}

/* The next holder finds another one. */
static void replace_model(struct store *store, struct model *model)
{
	if (model->state == MODEL_DEMOTED) {
		store_remove_model(store, model);
		return;
	}
	store_leave_key(store, model, MODEL_REPLACED);
	store_note_model(store, model);
	store_unpin_model(store, model);
	if (model->n_holders == 0) {
		store_remove_model(store, model);
	}
}

int store_publish(struct store *store, struct model *draft, struct payer payer, bool pin)
{
	struct model *earlier;
	HASH_FIND(hh, store->models, &draft->key, sizeof(draft->key), earlier);
	if (draft->content_bytes > draft->span_bytes) {
		draft->content_bytes = draft->span_bytes;
	}
	int r = 0;
	if (pin || (earlier && earlier->is_pinned)) {
		r = store_pin_model(store, draft, payer);
	}
	if (r == 0 && earlier && earlier->state == MODEL_LOADING) {
		/* Whoever waits for the earlier model, which comes from host memory, gets it. */
		r = store_hide_model(store, earlier, "another model has its key");
		earlier = NULL;
	}
	if (r == 0 && !store_enter_model(store, draft, MODEL_READY)) {
		r = -ENOMEM;
	}
	if (r != 0) {
		store_unpin_model(store, draft);
		return r;
	}
	store_note_new_model(store, draft);
	if (earlier) {
		replace_model(store, earlier);
	}
	for (size_t i = 0; i < draft->n_blocks; i++) {
		store_set_published(store, draft->blocks[i].block, false);
	}
	store->stats->models_published++;
	store_copy_model(store, draft);
	store_unhold_model(store, draft, payer.tenant->priority);
	return 0;
}
