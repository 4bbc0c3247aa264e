/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/text.h"
#include "proto/cleanup.h"

/*
 * Added to each manifest. It is more than a model takes, because walking through many models takes
 * time.
 */
#define MODEL_BYTES (16u * 1024u)
/* Blocks that wait for room that are looked at at a time; and idle things, for one that a user may do without. */
#define ROOM_LOOKS 16
#define IDLE_LOOKS 256

void store_init(struct store *store, uv_loop_t *loop, struct tenant *cache, struct stats *stats)
{
	*store = (struct store){
		.loop = loop, .cache = cache, .stats = stats, .places = {.row = USER_PLACES}};
	list_init(&store->block_list);
	list_init(&store->model_list);
	list_init(&store->idle);
	list_init(&store->roomless);
}

void store_deinit(struct store *store)
{
	struct model *model;
	list_for_each (model, &store->model_list, link) {
		store_unpin_model(store, model);
		/* It is not evicted, but all ends, or is the next glaked's. */
		model->is_in_log = false;
	}
	store->on_evicted = NULL;
	store_evict_all(store, NULL, NULL);
	assert(list_is_empty(&store->model_list) && list_is_empty(&store->block_list));
	pot_deinit(&store->places);
}

static bool frees_nothing(const struct idle *idle);
static uint64_t evict_idle(struct store *store, struct idle *idle);
static const struct user *maker_of(const struct idle *idle);

/* Keeps the list in the order of eviction. There are few priorities, so the place is near the tail. */
static void enter_idle(struct store *store, struct idle *idle)
{
	struct list *next = &store->idle;
	while (next->prev != &store->idle &&
	       container_of(next->prev, struct idle, link)->priority > idle->priority) {
		next = next->prev;
	}
	list_insert(next, &idle->link);
}

/* It is unused from now on. */
static void note_unused(struct store *store, struct idle *idle, int32_t priority)
{
	idle->priority = priority;
	idle->since_ms = uv_now(store->loop);
}

/* ---- being watched --------------------------------------------------------------------------- */

static void note_block(const struct store *store, const struct block *block)
{
	if (store->watch && block->is_noted) {
		store->watch->block(store->watcher, block);
	}
}

static void note_model(const struct store *store, const struct model *model)
{
	if (store->watch && model->is_noted) {
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

/* It is READY, and has an id. */
static void note_new_model(struct store *store, struct model *model)
{
	if (!store->watch) {
		return;
	}
	store_note_tensors(store, model);
	if (!model->manifest) {
		model->manifest = ++store->last_id;
	}
	model->is_noted = true;
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
		note_block(store, block);
	}
	list_for_each (model, &store->model_list, link) {
		store_note_draft(store, model);
		if (model->is_noted) {
			store->watch->model(store->watcher, model, true);
		}
	}
}

static void note_model_gone(const struct store *store, const struct model *model)
{
	if (store->watch && model->manifest) {
		store->watch->model_gone(store->watcher, model);
	}
}

/* ---- parking --------------------------------------------------------------------------------- */

#define PARKED_NAME_BYTES 24

static void parked_name(const struct block *block, char name[PARKED_NAME_BYTES])
{
	snprintf(name, PARKED_NAME_BYTES, "b%" PRIu64, block->id);
}

static void tell_of(struct block *block)
{
	if (!block->is_noted) {
		block->is_noted = true;
		note_block(block->store, block);
	}
}

/* It serves without being kept. */
static void add_roomless(struct block *block)
{
	block->parking.number = 0;
	list_insert(&block->store->roomless, &block->parking.link);
	block->store->n_roomless++;
	tell_of(block);
}

static void on_parked(struct parking_wait *wait)
{
	struct block *block = container_of(wait, struct block, parking);
	const struct parking *parking = block->store->parking;
	if (parking && parking_is_lost(parking)) {
		user_refund_all(&block->place);
		add_roomless(block);
	} else {
		block->is_parked = true;
		tell_of(block);
	}
}

bool store_charge_place(struct store *store, struct user *user, struct user_charge *charge)
{
	static struct log_limit limit;
	store->places.limit = parking_max(store->parking);
	if (user_charge(charge, &store->places, user, 1)) {
		return true;
	}
	log_limited(&limit, LOG_LEVEL_WARNING,
	            "uid %u has its share of the fd store, %" PRIu64 " of %" PRIu64
	            " fds: more of its memory is not kept",
	            user ? (unsigned)user->uid : 0, pot_used_by(&store->places, user),
	            store->places.limit);
	return false;
}

/* False: there is no room for its fd. */
static bool try_park(struct store *store, struct block *block)
{
	char name[PARKED_NAME_BYTES];
	parked_name(block, name);
	if (!store_charge_place(store, block->maker, &block->place)) {
		return false;
	}
	uint64_t number = parking_put(store->parking, name, block->chunk.fd);
	if (number) {
		parking_await(store->parking, &block->parking, number, on_parked);
	} else {
		user_refund_all(&block->place);
	}
	return number;
}

/* Something idle goes for the sake of a block that is used. False: nothing did. */
static bool evict_for_room(struct store *store)
{
	uint64_t n_blocks = store->n_blocks;
	store_evict_fds(store, 1);
	return store->n_blocks < n_blocks;
}

/* The same, of what @user has made, for its share. */
static bool evict_for_share(struct store *store, const struct user *user)
{
	uint64_t n_used = pot_used_by(&store->places, user);
	size_t n_looks = 0;
	struct idle *idle;
	list_for_each (idle, &store->idle, link) {
		if (++n_looks > IDLE_LOOKS) {
			return false;
		}
		if (maker_of(idle) == user && !frees_nothing(idle)) {
			evict_idle(store, idle);
			return pot_used_by(&store->places, user) < n_used;
		}
	}
	return false;
}

static bool may_park(struct store *store, const struct user *maker)
{
	store->places.limit = parking_max(store->parking);
	return pot_has_room(&store->places, maker, 1);
}

static void park(struct store *store, struct block *block)
{
	if (!store->parking) {
		return;
	}
	while (parking_is_full(store->parking) && evict_for_room(store)) {
	}
	while (!may_park(store, block->maker) && evict_for_share(store, block->maker)) {
	}
	if (!try_park(store, block)) {
		add_roomless(block);
	}
}

/* Who cannot have room now waits behind the others. */
void store_use_room(struct store *store)
{
	for (unsigned n = 0; n < ROOM_LOOKS && !list_is_empty(&store->roomless); n++) {
		struct block *block = list_first(&store->roomless, struct block, parking.link);
		if (parking_is_full(store->parking)) {
			return;
		}
		list_remove(&block->parking.link);
		if (may_park(store, block->maker) && try_park(store, block)) {
			store->n_roomless--;
		} else {
			list_insert(&store->roomless, &block->parking.link);
		}
	}
}

static void unpark(struct store *store, struct block *block)
{
	char name[PARKED_NAME_BYTES];
	bool is_waiting = !list_is_empty(&block->parking.link);
	bool is_roomless = is_waiting && block->parking.number == 0;
	list_remove(&block->parking.link);
	store->n_roomless -= is_roomless;
	if (block->is_noted && store->watch) {
		store->watch->block_gone(store->watcher, block);
	}
	user_refund_all(&block->place);
	if (store->parking && (block->is_parked || (is_waiting && !is_roomless))) {
		parked_name(block, name);
		block->chunk.removed = parking_remove(store->parking, name);
		store_use_room(store);
	}
}

uint64_t store_unparked_block(const struct block *block)
{
	return list_is_empty(&block->parking.link) ? 0 : block->parking.number;
}

uint64_t store_unparked(const struct model *model)
{
	uint64_t last = 0;
	for (size_t i = 0; i < model->n_blocks; i++) {
		uint64_t number = store_unparked_block(model->blocks[i].block);
		last = number > last ? number : last;
	}
	return last;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* It has a place in the table. */
static bool is_found(const struct block *block)
{
	return !block->is_collision && !block->is_damaged && !block->chunk.is_unparked;
}

static struct block_key block_key(const struct realm *realm, const struct device *device,
                                  const struct digest *digest)
{
	return (struct block_key){
		.realm_id = realm->id, .device = device->index, .digest = *digest};
}

struct block *store_find_block(struct store *store, const struct realm *realm,
                               const struct device *device, const struct digest *digest)
{
	struct block_key key = block_key(realm, device, digest);
	struct block *block;
	HASH_FIND(hh, store->blocks, &key, sizeof(key), block);
	return block;
}

/* In the table, unless !@is_found. NULL: no memory. */
static struct block *new_block(struct store *store, uint64_t id, struct realm *realm,
                               const struct digest *digest, uint64_t content_bytes,
                               struct chunk *chunk, bool is_found)
{
	struct block *block = calloc(1, sizeof(*block));
	if (!block) {
		return NULL;
	}
	block->store = store;
	block->id = id;
	block->key = block_key(realm, chunk->device, digest);
	block->content_bytes = content_bytes;
	block->idle.kind = IDLE_BLOCK;
	list_init(&block->idle.link);
	list_init(&block->parking.link);
	if (is_found) {
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
	struct block *block = new_block(store, store->last_id + 1, realm, digest, content_bytes,
	                                chunk, !is_collision);
	if (!block) {
		return NULL;
	}
	store->last_id++;
	block->maker = user_ref(maker);
	block->n_users = 1;
	block->is_collision = is_collision;
	if (block->chunk.use != CHUNK_BLOCK) {
		chunk_set_use(&block->chunk, CHUNK_BLOCK);
	}
	block->chunk.device->used_block_bytes += block->chunk.bytes;
	store->stats->blocks_sealed++;
	park(store, block);
	return block;
}

static void add_user(struct block *block)
{
	if (block->n_users++ == 0) {
		block->chunk.device->used_block_bytes += block->chunk.bytes;
		list_remove(&block->idle.link);
	}
}

/* @tenant pays for it from now on. Returns 0, or TENANT_E_*: nothing has changed. */
static int move_charge(struct store *store, struct block *block, struct tenant *tenant)
{
	if (block->chunk.charge.tenant == tenant) {
		return 0;
	}
	int r = charge_move(&block->chunk.charge, payer_alone(tenant));
	if (r == 0) {
		note_block(store, block);
	}
	return r;
}

int store_use_block(struct store *store, struct block *block, struct tenant *tenant)
{
	int r = block->n_users == 0 && block->n_pins == 0 ? move_charge(store, block, tenant) : 0;
	if (r == 0) {
		add_user(block);
	}
	return r;
}

void store_set_published(struct store *store, struct block *block, bool is_published)
{
	if (block->is_published != is_published) {
		block->is_published = is_published;
		note_block(store, block);
	}
}

static uint64_t free_block(struct store *store, struct block *block)
{
	uint64_t freed_bytes = block->chunk.bytes;
	assert(block->n_users == 0 && block->n_compared == 0 && block->n_manifests == 0 &&
	       block->n_pins == 0 && block->n_mappings == 0);
	if (is_found(block)) {
		HASH_DEL(store->blocks, block);
	}
	guess_forget(&store->guess, block);
	unpark(store, block);
	list_remove(&block->link);
	list_remove(&block->idle.link);
	store->n_blocks--;
	chunk_release(&block->chunk);
	realm_unref(block->realm);
	user_unref(block->maker);
	free(block);
	return freed_bytes;
}

/* The built-in tenant pays for a block without users and pins. */
static void pay_from_cache(struct store *store, struct block *block)
{
	if (block->n_users == 0 && block->n_pins == 0) {
		/* The built-in tenant has no limits, so this cannot be refused. */
		move_charge(store, block, store->cache);
	}
}

/* A count has dropped: the block may be cache now, or gone. Returns the bytes that become free. */
static uint64_t settle_block(struct store *store, struct block *block)
{
	if (block->n_users > 0 || block->n_compared > 0 || block->n_manifests > 0) {
		return 0;
	}
	if (!block->is_published || block->chunk.is_unparked) {
		return free_block(store, block);
	}
	enter_idle(store, &block->idle);
	return 0;
}

void store_unuse_block(struct store *store, struct block *block, int32_t priority)
{
	assert(block->n_users > 0);
	if (--block->n_users > 0) {
		return;
	}
	block->chunk.device->used_block_bytes -= block->chunk.bytes;
	note_unused(store, &block->idle, priority);
	pay_from_cache(store, block);
	settle_block(store, block);
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
	settle_block(store, block);
}

void store_use_compared(struct store *store, struct block *block, struct charge *charge)
{
	struct charge *paid = &block->chunk.charge;
	assert(block->n_compared > 0 && charge->device == paid->device &&
	       charge->bytes == paid->bytes && charge->n_fds == paid->n_fds);
	block->n_compared--;
	if (block->n_users++ > 0) {
		return;
	}
	block->chunk.device->used_block_bytes += block->chunk.bytes;
	if (block->n_pins == 0) {
		struct charge of_cache = *paid;
		assert(of_cache.tenant == store->cache);
		*paid = *charge;
		*charge = of_cache;
		note_block(store, block);
	}
}

/* ---- models ---------------------------------------------------------------------------------- */

static struct model_key model_key(const struct realm *realm, const struct device *device,
                                  const struct file_id *files, size_t n_files)
{
	return (struct model_key){.realm_id = realm->id,
	                          .device = device->index,
	                          .digest = digest_of(files, n_files * sizeof(files[0]))};
}

static struct model_key published_key(const struct realm *realm, const struct device *device,
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

/* It leaves the list. */
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
	struct model_key key = model_key(realm, device, files, n_files);
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
	struct model_key key = published_key(realm, device, name);
	struct model *model;
	HASH_FIND(hh, store->models, &key, sizeof(key), model);
	bool is_it = model && strcmp(model->name, name) == 0;
	return is_it && !hides(store, model) ? model : NULL;
}

static int move_manifest(struct store *store, struct model *model, struct payer payer)
{
	if (model->charge.tenant == payer.tenant && model->charge.user == payer.user) {
		return 0;
	}
	int r = charge_move(&model->charge, payer);
	if (r == 0) {
		note_model(store, model);
	}
	return r;
}

static void model_fall_idle(struct store *store, struct model *model)
{
	/* Without limits, so this cannot be refused. */
	move_manifest(store, model, payer_alone(store->cache));
	model->realm->idle_manifest_bytes += model->manifest_bytes;
	enter_idle(store, &model->idle);
}

static void model_leave_idle(struct store *store, struct model *model)
{
	if (!list_is_empty(&model->idle.link)) {
		model->realm->idle_manifest_bytes -= model->manifest_bytes;
		list_remove(&model->idle.link);
	}
}

static void free_model(struct store *store, struct model *model)
{
	note_model_gone(store, model);
	model_free_tensors(model, store->loop);
	charge_refund(&model->charge);
	free(model->blocks);
	free(model->files);
	free(model->reload_reason);
	free(model->name);
	realm_unref(model->realm);
	free(model);
}

/* LOADING, held once, and not in the table. NULL: no memory. */
static struct model *new_model(struct store *store, struct realm *realm, struct device *device,
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
	model->is_hidden = true;
	model->name = strdup(name);
	if (!model->name) {
		free_model(store, model);
		return NULL;
	}
	return model;
}

/* Enter it under its key. False: no memory. */
static bool find_by_key(struct store *store, struct model *model)
{
	HASH_ADD(hh, store->models, key, sizeof(model->key), model);
	if (!hash_has(model)) {
		return false;
	}
	model->is_hidden = false;
	return true;
}

static void list_model(struct store *store, struct model *model)
{
	list_insert(&store->model_list, &model->link);
	store->n_models++;
}

static bool enter_model(struct store *store, struct model *model)
{
	if (!find_by_key(store, model)) {
		return false;
	}
	model->id = ++store->last_id;
	list_model(store, model);
	return true;
}

static void hide_model(struct store *store, struct model *model)
{
	HASH_DEL(store->models, model);
	model->is_hidden = true;
}

struct model *store_add_model(struct store *store, struct realm *realm, struct device *device,
                              struct payer payer, const char *name, const struct file_id *files,
                              size_t n_files)
{
	struct model *model = new_model(store, realm, device, payer, name);
	if (!model) {
		return NULL;
	}
	model->key = model_key(realm, device, files, n_files);
	model->files = calloc(n_files, sizeof(files[0]));
	if (model->files) {
		memcpy(model->files, files, n_files * sizeof(files[0]));
		model->n_files = n_files;
		model->manifest_bytes += n_files * sizeof(files[0]);
	}
	if (!model->files || !enter_model(store, model)) {
		free_model(store, model);
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
	if (!model->is_hidden) {
		hide_model(store, model);
	}
	model->reload_reason = copy;
	note_model(store, model);
	return 0;
}

void store_ready(struct store *store, struct model *model)
{
	model->state = MODEL_READY;
	note_new_model(store, model);
}

void store_place_block(struct store *store, struct model *model, size_t i, struct block *block)
{
	assert(model->state == MODEL_LOADING && !model->blocks[i].block);
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
	assert(model->state == MODEL_READY);
	if (model->n_holders == 0) {
		int r = model->is_pinned ? 0 : move_manifest(store, model, payer);
		if (r != 0) {
			return r;
		}
		r = use_all(store, model, payer.tenant);
		if (r != 0) {
			if (!model->is_pinned) {
				move_manifest(store, model, payer_alone(store->cache));
			}
			return r;
		}
		model_leave_idle(store, model);
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

/* The model is unused. Its references to blocks go with it. */
static uint64_t remove_model(struct store *store, struct model *model)
{
	uint64_t freed_bytes = 0;
	if (!model->is_hidden) {
		hide_model(store, model);
	}
	if (!list_is_empty(&model->link)) {
		skip_in_withdrawal(store, model);
		list_remove(&model->link);
		store->n_models--;
	}
	model_leave_idle(store, model);
	for (size_t i = 0; i < model->n_blocks; i++) {
		struct block *block = model->blocks[i].block;
		if (!block || --block->n_manifests > 0 || block->n_users > 0) {
			continue;
		}
		note_unused(store, &block->idle, model->idle.priority);
		freed_bytes += settle_block(store, block);
	}
	free_model(store, model);
	return freed_bytes;
}

/* Nobody can open it any more. */
static bool is_for_users_only(const struct model *model)
{
	return (model->is_published && model->is_hidden) || store_has_unparked(model);
}

void store_unhold_model(struct store *store, struct model *model, int32_t priority)
{
	assert(model->n_holders > 0);
	if (--model->n_holders > 0) {
		return;
	}
	unuse_all(store, model, priority);
	note_unused(store, &model->idle, priority);
	if (model->is_pinned) {
		note_model(store, model);
		return;
	}
	if (is_for_users_only(model)) {
		remove_model(store, model);
	} else {
		model_fall_idle(store, model);
	}
}

void store_drop_model(struct store *store, struct model *model)
{
	assert(model->state == MODEL_LOADING && model->n_holders == 1);
	unuse_all(store, model, 0);
	remove_model(store, model);
}

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
			r = tenant_charge(tenant, paid->device, paid->bytes, paid->n_fds,
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
			note_block(store, block);
		}
	}
	return r;
}

int store_pin_model(struct store *store, struct model *model, struct payer payer)
{
	assert(model->state == MODEL_READY);
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
	note_model(store, model);
	if (model->n_holders == 0) {
		model_leave_idle(store, model);
	}
	if (model->reload_reason) {
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
	note_model(store, model);
	for (size_t i = 0; i < model->n_blocks; i++) {
		struct block *block = model->blocks[i].block;
		block->n_pins--;
		pay_from_cache(store, block);
	}
	if (model->n_holders == 0) {
		model->idle.since_ms = uv_now(store->loop);
		model_fall_idle(store, model);
	}
}

static bool is_left_over(const struct model *model, const struct model *successor)
{
	return model != successor && model->reload_reason && model->n_holders == 0 &&
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
			remove_model(store, model);
		}
	}
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
		if (model->blocks[i].block->chunk.is_unparked) {
			return true;
		}
	}
	return false;
}

bool store_has_damaged(const struct model *model)
{
	for (size_t i = 0; i < model->n_blocks; i++) {
		if (model->blocks[i].block && model->blocks[i].block->is_damaged) {
			return true;
		}
	}
	return false;
}

/* ---- published models ------------------------------------------------------------------------- */

struct model *store_new_draft(struct store *store, struct realm *realm, struct device *device,
                              struct payer payer, const char *key)
{
	struct model *draft = new_model(store, realm, device, payer, key);
	if (draft) {
		draft->is_published = true;
		draft->key = published_key(realm, device, key);
	}
	return draft;
}

int store_add_used_block(struct store *store, struct model *draft, struct block *block)
{
	assert(block->n_users > 0);
	int r = model_add_block(draft, block->chunk.bytes);
	if (r == 0) {
		block->n_users++;
		store_place_block(store, draft, draft->n_blocks - 1, block);
	}
	return r;
}

/* The next holder finds another one. */
static void replace_model(struct store *store, struct model *model)
{
	hide_model(store, model);
	note_model(store, model);
	store_unpin_model(store, model);
	if (model->n_holders == 0) {
		remove_model(store, model);
	}
}

int store_publish(struct store *store, struct model *draft, struct payer payer, bool pin)
{
	struct model *earlier;
	HASH_FIND(hh, store->models, &draft->key, sizeof(draft->key), earlier);
	draft->state = MODEL_READY;
	if (draft->content_bytes > draft->span_bytes) {
		draft->content_bytes = draft->span_bytes;
	}
	int r = 0;
	if (pin || (earlier && earlier->is_pinned)) {
		r = store_pin_model(store, draft, payer);
	}
	if (r == 0 && !enter_model(store, draft)) {
		r = -ENOMEM;
	}
	if (r != 0) {
		store_unpin_model(store, draft);
		draft->state = MODEL_LOADING;
		return r;
	}
	note_new_model(store, draft);
	if (earlier) {
		replace_model(store, earlier);
	}
	for (size_t i = 0; i < draft->n_blocks; i++) {
		store_set_published(store, draft->blocks[i].block, false);
	}
	store->stats->models_published++;
	store_unhold_model(store, draft, payer.tenant->priority);
	return 0;
}

static void add_part(struct model_parts *parts, const struct block *block)
{
	parts->unique_bytes += block->n_manifests == 1 ? block->chunk.bytes : 0;
	parts->part_bytes += (double)block->chunk.bytes / block->n_manifests;
}

bool store_look_at_parts(struct model *model, size_t *n_steps)
{
	for (; model->parts_place<model->n_blocks && * n_steps> 0; --*n_steps) {
		const struct block *block = model->blocks[model->parts_place++].block;
		if (block) {
			add_part(&model->parts_so_far, block);
		}
	}
	if (model->parts_place < model->n_blocks) {
		return false;
	}
	model->parts = model->parts_so_far;
	model->parts_so_far = (struct model_parts){0};
	model->parts_place = 0;
	return true;
}

/* ---- from an earlier glaked ------------------------------------------------------------------ */

struct block *store_adopt_block(struct store *store, uint64_t id, struct realm *realm,
                                const struct digest *digest, uint64_t content_bytes,
                                struct chunk *chunk, bool is_found)
{
	bool is_parked = !chunk->is_unparked;
	is_found = is_found && is_parked;
	if (is_found && store_find_block(store, realm, chunk->device, digest)) {
		return NULL;
	}
	struct block *block = new_block(store, id, realm, digest, content_bytes, chunk, is_found);
	if (block) {
		block->is_parked = is_parked;
		block->is_noted = true;
	}
	return block;
}

void store_set_adopted_maker(struct store *store, struct block *block, struct user *maker)
{
	block->maker = user_ref(maker);
	if (block->is_parked) {
		user_charge_anyway(&block->place, &store->places, maker, 1);
	}
}

struct model *store_adopt_model(struct store *store, uint64_t id, struct realm *realm,
                                struct device *device, const char *name)
{
	struct model *model = new_model(store, realm, device, payer_alone(store->cache), name);
	if (model) {
		model->id = id;
		model->n_holders = 0;
	}
	return model;
}

void store_drop_adopted(struct store *store, struct model *model)
{
	model->manifest = 0;
	free_model(store, model);
}

/* Returns 0 or -ENOMEM. */
static int hide_adopted(struct model *model)
{
	model->is_hidden = true;
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
	while (i < n_blocks && !blocks[i]->chunk.is_unparked) {
		i++;
	}
	return i == n_blocks;
}

int store_finish_adopted(struct store *store, struct model *model, struct block *const *blocks,
                         struct payer payer)
{
	int r = are_parked(blocks, model->n_blocks) ? 0 : hide_adopted(model);
	bool is_found = !model->is_hidden;
	struct model *other = NULL;
	model->key = model->is_published
	                     ? published_key(model->realm, model->device, model->name)
	                     : model_key(model->realm, model->device, model->files, model->n_files);
	if (is_found) {
		HASH_FIND(hh, store->models, &model->key, sizeof(model->key), other);
	}
	if (r < 0 || other || (is_found && !find_by_key(store, model))) {
		store_drop_adopted(store, model);
		return other ? -EEXIST : -ENOMEM;
	}
	charge_refund(&model->charge);
	model->charge = tenant_charge_adopted(payer, 0, 0, 0, model->manifest_bytes);
	model->state = MODEL_READY;
	model->is_noted = true;
	model->n_noted = model->n_tensors;
	for (size_t i = 0; i < model->n_blocks; i++) {
		model->blocks[i].block = blocks[i];
		blocks[i]->n_manifests++;
		blocks[i]->n_pins += model->is_pinned;
	}
	list_model(store, model);
	return 0;
}

void store_use_adopted(struct store *store, struct block *block)
{
	add_user(block);
}

void store_hold_adopted(struct store *store, struct model *model)
{
	if (model->n_holders++ == 0) {
		for (size_t i = 0; i < model->n_blocks; i++) {
			add_user(model->blocks[i].block);
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
		enter_idle(store, idle);
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
		if (is_for_users_only(model)) {
			remove_model(store, model);
		} else {
			model_fall_idle(store, model);
		}
	}
	list_for_each_safe (block, next_block, &store->block_list, link) {
		if (block->n_users > 0) {
			continue;
		}
		pay_from_cache(store, block);
		/* Not if it is idle already, since a model went that had it. */
		if (list_is_empty(&block->idle.link)) {
			settle_block(store, block);
		}
	}
	sort_idle(store);
}

/* ---- eviction -------------------------------------------------------------------------------- */

uint64_t store_evict_model(struct store *store, struct model *model)
{
	assert(model->n_holders == 0);
	if (model->is_in_log) {
		log_info("evicted model '%s' of realm %s on device %u", model->name,
		         model->realm->name, model->device->index);
	}
	if (store->on_evicted) {
		store->on_evicted(store->user, model);
	}
	uint64_t n_blocks = store->n_blocks;
	uint64_t freed_bytes = remove_model(store, model);
	store->stats->models_evicted++;
	store->stats->blocks_evicted += n_blocks - store->n_blocks;
	store->stats->evicted_bytes += freed_bytes;
	return freed_bytes;
}

void store_take_out_block(struct store *store, struct block *block)
{
	assert(!block->is_damaged);
	if (!block->is_collision) {
		HASH_DEL(store->blocks, block);
	}
	block->is_damaged = true;
	/* Then it goes with its last user. */
	block->is_published = false;
	note_block(store, block);
}

static uint64_t evict_block(struct store *store, struct block *block)
{
	uint64_t freed_bytes = free_block(store, block);
	store->stats->blocks_evicted++;
	store->stats->evicted_bytes += freed_bytes;
	return freed_bytes;
}

static const struct device *device_of(const struct idle *idle)
{
	return idle->kind == IDLE_MODEL ? container_of(idle, struct model, idle)->device
	                                : container_of(idle, struct block, idle)->chunk.device;
}

static uint64_t evict_idle(struct store *store, struct idle *idle)
{
	return idle->kind == IDLE_MODEL
	               ? store_evict_model(store, container_of(idle, struct model, idle))
	               : evict_block(store, container_of(idle, struct block, idle));
}

static const struct realm *realm_of(const struct idle *idle)
{
	return idle->kind == IDLE_MODEL ? container_of(idle, struct model, idle)->realm
	                                : container_of(idle, struct block, idle)->realm;
}

/* Of a model: of its first block, as a rule of all. */
static const struct user *maker_of(const struct idle *idle)
{
	if (idle->kind != IDLE_MODEL) {
		return container_of(idle, struct block, idle)->maker;
	}
	const struct model *model = container_of(idle, struct model, idle);
	return model->n_blocks > 0 ? model->blocks[0].block->maker : NULL;
}

/* Nothing becomes free with it, now or later: others keep all of its blocks. */
static bool frees_nothing(const struct idle *idle)
{
	if (idle->kind != IDLE_MODEL) {
		return false;
	}
	const struct model *model = container_of(idle, struct model, idle);
	size_t i = 0;
	while (i < model->n_blocks &&
	       (model->blocks[i].block->n_users > 0 || model->blocks[i].block->n_pins > 0)) {
		i++;
	}
	return model->n_blocks > 0 && i == model->n_blocks;
}

/* What to evict, in the order of the list, and when to stop. */
struct sweep {
	const struct device *device; /* NULL: of any */
	const struct realm *realm;   /* NULL: of any */
	uint64_t bytes;
	uint64_t n_blocks;
	bool all; /* also what frees nothing */
};

static uint64_t evict(struct store *store, const struct sweep *sweep)
{
	uint64_t freed_bytes = 0;
	uint64_t n_blocks = store->n_blocks;
	struct list *link = store->idle.next;
	while (link != &store->idle && freed_bytes < sweep->bytes &&
	       n_blocks - store->n_blocks < sweep->n_blocks) {
		struct idle *idle = container_of(link, struct idle, link);
		if ((sweep->device && device_of(idle) != sweep->device) ||
		    (sweep->realm && realm_of(idle) != sweep->realm) ||
		    (!sweep->all && frees_nothing(idle))) {
			link = link->next;
			continue;
		}
		/*
		 * Published blocks of an evicted model become idle with its priority: they are
		 * still ahead.
		 */
		struct list *prev = link->prev;
		freed_bytes += evict_idle(store, idle);
		link = prev->next;
	}
	return freed_bytes;
}

uint64_t store_evict(struct store *store, const struct device *device, uint64_t bytes)
{
	return evict(store,
	             &(struct sweep){.device = device, .bytes = bytes, .n_blocks = UINT64_MAX});
}

void store_evict_fds(struct store *store, uint64_t n_fds)
{
	evict(store, &(struct sweep){.bytes = UINT64_MAX, .n_blocks = n_fds});
}

/* The first in the order of eviction of the realm with most. NULL: no model is idle. */
static struct model *first_to_trim(struct store *store)
{
	struct model *first = NULL;
	struct idle *idle;
	list_for_each (idle, &store->idle, link) {
		if (idle->kind != IDLE_MODEL) {
			continue;
		}
		struct model *model = container_of(idle, struct model, idle);
		uint64_t bytes = model->realm->idle_manifest_bytes;
		uint64_t most_bytes = first ? first->realm->idle_manifest_bytes : 0;
		if (!first || bytes > most_bytes) {
			first = model;
		}
	}
	return first;
}

void store_trim(struct store *store)
{
	while (store->cache->manifest_bytes > STORE_IDLE_MANIFEST_BYTES) {
		store_evict_model(store, first_to_trim(store));
	}
}

uint64_t store_evict_all(struct store *store, const struct realm *realm, uint64_t *n_models_out)
{
	uint64_t n_models = store->n_models;
	uint64_t freed_bytes = evict(store, &(struct sweep){
						    .realm = realm,
						    .bytes = UINT64_MAX,
						    .n_blocks = UINT64_MAX,
						    .all = true,
					    });
	if (n_models_out) {
		*n_models_out = n_models - store->n_models;
	}
	return freed_bytes;
}
