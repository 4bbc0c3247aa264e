/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

/* Charge @tenant for the blocks that are not pinned yet: all, or none. */
static int charge_for_pin(struct store *store, struct model *model, struct tenant *tenant,
                          struct charge *charges)
{
	size_t n = 0;
	int r = 0;
	while (n < model->n_blocks && r == 0) {
		struct block *block = model->blocks[n].block;
		const struct charge *paid = &block->chunk.charge;
		/* A block may have several places in one model; only the first is charged. */
		if (block->n_pins++ == 0 && paid->tenant != tenant) {
			r = tenant_charge(tenant, paid->slot, paid->bytes, paid->n_fds,
			                  &charges[n]);
		}
		n++;
	}
	for (size_t i = 0; i < n; i++) {
		struct block *block = model->blocks[i].block;
		if (r != 0) {
			block->n_pins--;
			charge_refund(&charges[i]);
		} else if (charges[i].tenant) {
			charge_refund(&block->chunk.charge);
			block->chunk.charge = charges[i];
			store_note_block(store, block);
		}
	}
	return r;
}

int store_pin_model(struct store *store, struct model *model, struct payer payer)
{
	assert(model_is_complete(model) || model->state == MODEL_DRAFT);
	if (model->is_pinned) {
		return 0;
	}
	bool is_other = model->charge.tenant != payer.tenant || model->charge.user != payer.user;
	struct charge manifest = tenant_charge_manifest(payer);
	cleanup_free struct charge *charges = calloc(model->n_blocks + 1, sizeof(charges[0]));
	int r = charges ? 0 : -ENOMEM;
	if (r == 0 && is_other) {
		r = charge_grow_manifest(&manifest, model->manifest_bytes);
	}
	if (r == 0) {
		r = charge_for_pin(store, model, payer.tenant, charges);
	}
	if (r != 0) {
		charge_refund(&manifest);
		return r;
	}
	if (is_other) {
		charge_refund(&model->charge);
		model->charge = manifest;
	} else {
		charge_refund(&manifest);
	}
	model->is_pinned = true;
	store_note_model(store, model);
	if (model->n_holders == 0) {
		store_model_leave_idle(store, model);
	}
	if (model->state == MODEL_HIDDEN) {
		store_drop_left_over(store, model);
	}
	return 0;
}

void store_unpin_model(struct store *store, struct model *model)
{
	if (!model->is_pinned) {
		return;
	}
	model->is_pinned = false;
	store_note_model(store, model);
	for (size_t i = 0; i < model->n_blocks; i++) {
		struct block *block = model->blocks[i].block;
		block->n_pins--;
		store_pay_from_cache(store, block);
	}
	if (model->n_holders == 0) {
		model->idle.since_ms = uv_now(store->loop);
		store_model_fall_idle(store, model);
	}
}

static bool is_left_over(const struct model *model, const struct model *successor)
{
	return model != successor && model->state == MODEL_HIDDEN && model->n_holders == 0 &&
	       (!model->is_pinned || successor->is_pinned) && model->realm == successor->realm &&
	       model->device == successor->device && strcmp(model->name, successor->name) == 0;
}

void store_drop_left_over(struct store *store, const struct model *successor)
{
	struct model *model;
	struct model *next;
	list_for_each_safe (model, next, &store->model_list, link) {
		if (is_left_over(model, successor)) {
			store_unpin_model(store, model);
			store_remove_model(store, model);
		}
	}
}
