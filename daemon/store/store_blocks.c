/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store_parts.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/memory/reserve.h"

static struct block_key block_key(const struct realm *realm, const struct location *at,
                                  const struct digest *digest)
{
	return (struct block_key){.realm_id = realm->id, .slot = at->slot, .digest = *digest};
}

struct block *store_find_block(struct store *store, const struct realm *realm,
                               const struct location *at, const struct digest *digest)
{
	struct block_key key = block_key(realm, at, digest);
	struct block *block;
	HASH_FIND(hh, store->blocks, &key, sizeof(key), block);
	return block;
}

struct block *store_new_block(struct store *store, uint64_t id, struct realm *realm,
                              const struct digest *digest, uint64_t content_bytes,
                              struct chunk *chunk, enum block_state state)
{
	struct block *block = calloc(1, sizeof(*block));
	if (!block) {
		return NULL;
	}
	block->store = store;
	block->id = id;
	block->key = block_key(realm, chunk->at, digest);
	block->content_bytes = content_bytes;
	block->state = state;
	block->idle.kind = IDLE_BLOCK;
	list_init(&block->idle.link);
	list_init(&block->parking.link);
	list_init(&block->wanted);
	if (state == BLOCK_SHARED) {
		HASH_ADD(hh, store->blocks, key, sizeof(block->key), block);
		if (!hash_has(block)) {
			free(block);
			return NULL;
		}
	}
	block->realm = realm_ref(realm);
	chunk_move(&block->chunk, chunk);
	list_insert(&store->block_list, &block->link);
	store->n_blocks++;
	return block;
}

struct block *store_seal(struct store *store, struct realm *realm, struct user *maker,
                         const struct digest *digest, uint64_t content_bytes, struct chunk *chunk,
                         bool is_collision)
{
	struct block *block = store_new_block(store, store->last_id + 1, realm, digest,
	                                      content_bytes, chunk,
	                                      is_collision ? BLOCK_APART : BLOCK_SHARED);
	if (!block) {
		return NULL;
	}
	store->last_id++;
	block->maker = user_ref(maker);
	block->n_users = 1;
	if (block->chunk.use != CHUNK_BLOCK) {
		chunk_set_use(&block->chunk, CHUNK_BLOCK);
	}
	block->chunk.at->used_block_bytes += block->chunk.bytes;
	store->stats->blocks_sealed++;
	store_park(store, block);
	return block;
}

/* n_users or n_alone has changed. Its last user would leave it: for him nothing is saved. */
static void note_saved(struct block *block)
{
	uint64_t n = block->n_alone < block->n_users ? block->n_alone
	             : block->n_users > 0            ? block->n_users - 1
	                                             : 0;
	uint64_t saved_bytes = n * block->chunk.bytes;
	block->was_shared |= block->n_users > 1;
	reserve_note_saved(block->chunk.at, block->saved_alone_bytes, saved_bytes);
	block->saved_alone_bytes = saved_bytes;
}

void store_add_alone(struct block *block)
{
	block->n_alone++;
	note_saved(block);
}

void store_remove_alone(struct block *block)
{
	assert(block->n_alone > 0);
	block->n_alone--;
	note_saved(block);
}

void store_add_user(struct block *block)
{
	if (block->n_users++ == 0) {
		block->chunk.at->used_block_bytes += block->chunk.bytes;
		list_remove(&block->idle.link);
	}
	note_saved(block);
}

/* @tenant pays for it from now on. Returns 0, or TENANT_E_*: nothing has changed. */
static int move_charge(struct store *store, struct block *block, struct tenant *tenant)
{
	if (block->chunk.charge.tenant == tenant) {
		return 0;
	}
	int r = charge_move(&block->chunk.charge, payer_alone(tenant));
	if (r == 0) {
		store_note_block(store, block);
	}
	return r;
}

int store_use_block(struct store *store, struct block *block, struct tenant *tenant)
{
	int r = block->n_users == 0 && block->n_pins == 0 ? move_charge(store, block, tenant) : 0;
	if (r == 0) {
		store_add_user(block);
	}
	return r;
}

void store_set_published(struct store *store, struct block *block, bool is_published)
{
	if (block->is_published != is_published) {
		block->is_published = is_published;
		store_note_block(store, block);
	}
}

uint64_t store_free_block(struct store *store, struct block *block)
{
	uint64_t freed_bytes = block->chunk.bytes;
	assert(block->n_users == 0 && block->n_compared == 0 && block->n_manifests == 0 &&
	       block->n_pins == 0 && block->n_mappings == 0 && block->n_alone == 0);
	if (block->state == BLOCK_SHARED) {
		HASH_DEL(store->blocks, block);
	}
	guess_forget(&store->guess, block);
	prints_drop(&store->prints, block);
	store_unpark(store, block);
	list_remove(&block->link);
	list_remove(&block->idle.link);
	list_remove(&block->wanted);
	store->n_blocks--;
	chunk_release(&block->chunk);
	realm_unref(block->realm);
	user_unref(block->maker);
	free(block);
	return freed_bytes;
}

void store_take_out_block(struct store *store, struct block *block)
{
	if (block->state == BLOCK_SHARED) {
		HASH_DEL(store->blocks, block);
	}
	block_set_state(block, BLOCK_DAMAGED);
	/* The block goes with its last user. */
	block->is_published = false;
	store_note_block(store, block);
}

void store_pay_from_cache(struct store *store, struct block *block)
{
	if (block->n_users == 0 && block->n_pins == 0) {
		/* The built-in tenant has no limits, so this cannot be refused. */
		move_charge(store, block, store->cache);
	}
}

uint64_t store_settle_block(struct store *store, struct block *block)
{
	if (block->n_users > 0 || block->n_compared > 0 || block->n_manifests > 0) {
		return 0;
	}
	if (!block->is_published || block->state == BLOCK_LOST) {
		return store_free_block(store, block);
	}
	store_enter_idle(store, &block->idle);
	return 0;
}

void store_unuse_block(struct store *store, struct block *block, int32_t priority)
{
	assert(block->n_users > 0);
	--block->n_users;
	note_saved(block);
	if (block->n_users > 0) {
		return;
	}
	block->chunk.at->used_block_bytes -= block->chunk.bytes;
	store_note_unused(store, &block->idle, priority);
	store_pay_from_cache(store, block);
	store_settle_block(store, block);
}

uint64_t store_leave_block(struct store *store, struct block *block, int32_t priority)
{
	bool is_last = block->n_users == 1 && block->n_pins == 0 && block->n_compared == 0 &&
	               block->n_manifests == 0;
	uint64_t bytes = is_last ? block->chunk.bytes : 0;
	bool stays = block->is_published && block->state != BLOCK_LOST;
	store_unuse_block(store, block, priority);
	if (is_last && stays) {
		store_evict_idle(store, &block->idle);
	}
	return bytes;
}

void store_begin_compare(struct block *block)
{
	block->n_compared++;
	list_remove(&block->idle.link);
}

void store_end_compare(struct store *store, struct block *block)
{
	assert(block->n_compared > 0);
	block->n_compared--;
	store_settle_block(store, block);
}

void store_begin_look(struct block *block)
{
	store_begin_compare(block);
	block->chunk.at->looked_at_bytes += block->chunk.bytes;
}

void store_end_look(struct store *store, struct block *block)
{
	assert(block->chunk.at->looked_at_bytes >= block->chunk.bytes);
	block->chunk.at->looked_at_bytes -= block->chunk.bytes;
	store_end_compare(store, block);
}

void store_use_compared(struct store *store, struct block *block, struct charge *charge)
{
	struct charge *paid = &block->chunk.charge;
	assert(block->n_compared > 0 && charge->slot == paid->slot &&
	       charge->bytes == paid->bytes && charge->n_fds == paid->n_fds);
	block->n_compared--;
	block->n_users++;
	note_saved(block);
	if (block->n_users > 1) {
		return;
	}
	block->chunk.at->used_block_bytes += block->chunk.bytes;
	if (block->n_pins == 0) {
		struct charge of_cache = *paid;
		assert(of_cache.tenant == store->cache);
		*paid = *charge;
		*charge = of_cache;
		store_note_block(store, block);
	}
}
