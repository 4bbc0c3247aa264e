/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store_parts.h"

#include <assert.h>

#include "daemon/base/log.h"
#include "daemon/store/copies.h"
#include "proto/cleanup.h"

/* Keeps the list in the order of eviction. There are few priorities, so the place is near the tail. */
void store_enter_idle(struct store *store, struct idle *idle)
{
	struct list *next = &store->idle;
	while (next->prev != &store->idle &&
	       container_of(next->prev, struct idle, link)->priority > idle->priority) {
		next = next->prev;
	}
	list_insert(next, &idle->link);
}

void store_note_unused(struct store *store, struct idle *idle, int32_t priority)
{
	idle->priority = priority;
	idle->since_ms = uv_now(store->loop);
}

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
	uint64_t freed_bytes = store_remove_model(store, model);
	store->stats->models_evicted++;
	store->stats->blocks_evicted += n_blocks - store->n_blocks;
	store->stats->evicted_bytes += freed_bytes;
	return freed_bytes;
}

static uint64_t evict_block(struct store *store, struct block *block)
{
	uint64_t freed_bytes = store_free_block(store, block);
	store->stats->blocks_evicted++;
	store->stats->evicted_bytes += freed_bytes;
	return freed_bytes;
}

static const struct location *location_of(const struct idle *idle)
{
	return idle->kind == IDLE_MODEL ? &container_of(idle, struct model, idle)->device->at
	                                : container_of(idle, struct block, idle)->chunk.at;
}

uint64_t store_evict_idle(struct store *store, struct idle *idle)
{
	return idle->kind == IDLE_MODEL
	               ? store_evict_model(store, container_of(idle, struct model, idle))
	               : evict_block(store, container_of(idle, struct block, idle));
}

/* To host memory, if that has it. */
static uint64_t make_way(struct store *store, struct idle *idle)
{
	uint64_t freed_bytes;
	bool is_demoted = idle->kind == IDLE_MODEL &&
	                  store_demote(store, container_of(idle, struct model, idle), &freed_bytes);
	return is_demoted ? freed_bytes : store_evict_idle(store, idle);
}

static const struct realm *realm_of(const struct idle *idle)
{
	return idle->kind == IDLE_MODEL ? container_of(idle, struct model, idle)->realm
	                                : container_of(idle, struct block, idle)->realm;
}

const struct user *store_maker_of(const struct idle *idle)
{
	if (idle->kind != IDLE_MODEL) {
		return container_of(idle, struct block, idle)->maker;
	}
	const struct model *model = container_of(idle, struct model, idle);
	return model->n_blocks > 0 ? model->blocks[0].block->maker : NULL;
}

bool store_frees_nothing(const struct idle *idle)
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

/* A sweep says which idle things are evicted, in the order of the list, and when it stops. */
struct sweep {
	const struct location *at; /* NULL: any */
	const struct realm *realm; /* NULL: of any */
	uint64_t bytes;
	uint64_t n_blocks;
	bool all; /* also what frees nothing; and for good: from host memory, too */
};

static uint64_t evict(struct store *store, const struct sweep *sweep)
{
	uint64_t freed_bytes = 0;
	uint64_t n_blocks = store->n_blocks;
	struct list *link = store->idle.next;
	while (link != &store->idle && freed_bytes < sweep->bytes &&
	       n_blocks - store->n_blocks < sweep->n_blocks) {
		struct idle *idle = container_of(link, struct idle, link);
		if ((sweep->at && location_of(idle) != sweep->at) ||
		    (sweep->realm && realm_of(idle) != sweep->realm) ||
		    (!sweep->all && store_frees_nothing(idle))) {
			link = link->next;
			continue;
		}
		/*
		 * Published blocks of an evicted model become idle with its priority: they are
		 * still ahead.
		 */
		struct list *prev = link->prev;
		freed_bytes += sweep->all ? store_evict_idle(store, idle) : make_way(store, idle);
		link = prev->next;
	}
	return freed_bytes;
}

uint64_t store_evict(struct store *store, const struct location *at, uint64_t bytes)
{
	return evict(store, &(struct sweep){.at = at, .bytes = bytes, .n_blocks = UINT64_MAX});
}

void store_evict_fds(struct store *store, uint64_t n_fds)
{
	evict(store, &(struct sweep){.bytes = UINT64_MAX, .n_blocks = n_fds});
}

static struct model *of_more(struct model *first, struct model *model)
{
	return !first || model->realm->idle_manifest_bytes > first->realm->idle_manifest_bytes
	               ? model
	               : first;
}

/* The longest unused of the realm with most: those that only host memory has come first. NULL: there is none. */
static struct model *first_to_trim(struct store *store)
{
	struct model *first = NULL;
	struct model *model;
	struct idle *idle;
	list_for_each (model, &store->demoted, demoted) {
		first = of_more(first, model);
	}
	list_for_each (idle, &store->idle, link) {
		if (idle->kind == IDLE_MODEL) {
			first = of_more(first, container_of(idle, struct model, idle));
		}
	}
	return first;
}

void store_trim(struct store *store)
{
	struct model *model;
	while (store->cache->manifest_bytes > STORE_IDLE_MANIFEST_BYTES &&
	       (model = first_to_trim(store))) {
		store_evict_model(store, model);
	}
}

/* Evict everything that host memory has of @realm (NULL: of all realms). That frees nothing on the GPU. */
static void evict_host(struct store *store, const struct realm *realm)
{
	struct list *link = store->demoted.next;
	while (link != &store->demoted) {
		struct model *model = container_of(link, struct model, demoted);
		link = link->next;
		if (!realm || model->realm == realm) {
			store_evict_model(store, model);
		}
	}
	if (store->copies) {
		copies_evict(store->copies, realm);
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
	evict_host(store, realm);
	if (n_models_out) {
		*n_models_out = n_models - store->n_models;
	}
	return freed_bytes;
}
