/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/copies.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/store/copies_parts.h"
#include "daemon/store/store_parts.h"
#include "proto/cleanup.h"

#define BIT(state) (1u << (state))

void copy_set_state(struct copy *copy, enum copy_state state)
{
	static const unsigned legal[COPY_N_STATES] = {
		[COPY_TAKING] = BIT(COPY_WRITING),
		[COPY_WRITING] = BIT(COPY_THERE),
	};
	assert(legal[copy->state] & BIT(state));
	copy->state = state;
}

static struct copy_key key_of(const struct realm *realm, const struct digest *digest)
{
	return (struct copy_key){.realm_id = realm->id, .digest = *digest};
}

struct copy *copy_find(const struct copies *copies, const struct realm *realm,
                       const struct digest *digest)
{
	struct copy_key key = key_of(realm, digest);
	struct copy *copy;
	HASH_FIND(hh, copies->table, &key, sizeof(key), copy);
	return copy;
}

static bool is_in_table(const struct copies *copies, const struct copy *copy)
{
	return copy_find(copies, copy->realm, &copy->key.digest) == copy;
}

struct copy *copy_new(struct copies *copies, struct realm *realm, const struct digest *digest,
                      uint64_t bytes, uint64_t content_bytes)
{
	struct copy *copy = calloc(1, sizeof(*copy));
	if (!copy) {
		return NULL;
	}
	copy->is_private = !digest;
	copy->content_bytes = content_bytes;
	copy->bytes = bytes;
	list_init(&copy->link);
	if (digest) {
		copy->key = key_of(realm, digest);
		HASH_ADD(hh, copies->table, key, sizeof(copy->key), copy);
		if (!hash_has(copy)) {
			free(copy);
			return NULL;
		}
	}
	copy->realm = realm_ref(realm);
	return copy;
}

static bool is_held(const struct copy *copy)
{
	return copy->n_models > 0 || copy->n_pins > 0;
}

void copy_free(struct copies *copies, struct copy *copy)
{
	assert(!is_held(copy));
	if (is_in_table(copies, copy)) {
		HASH_DEL(copies->table, copy);
	}
	if (copy->state == COPY_THERE) {
		copies->bytes -= copy->bytes;
	}
	list_remove(&copy->link);
	if (copy->extent) {
		extent_release(copy->in, copy->extent);
	}
	realm_unref(copy->realm);
	free(copy);
}

/* @fd: of its large chunk. */
struct mover_host copy_place(const struct copy *copy, int fd)
{
	return (struct mover_host){.fd = fd,
	                           .chunk = extent_chunk_number(copy->extent),
	                           .chunk_bytes = extent_chunk_bytes(copy->extent),
	                           .offset = copy->extent->offset};
}

/* ---- what the mover has mapped ---------------------------------------------------------------- */

struct forgetting {
	struct forget_job job;
	struct copies *copies;
	struct extents *extents;
	uint64_t number;
};

static void end_forgetting(struct forgetting *forgetting)
{
	extents_forgotten(forgetting->extents, forgetting->number);
	free(forgetting);
}

static void on_forgotten(struct forget_job *job)
{
	struct forgetting *forgetting = container_of(job, struct forgetting, job);
	struct copies *copies = forgetting->copies;
	end_forgetting(forgetting);
	copies->n_forgetting--;
	copies_look_for_room(copies);
}

/* The mover has ended, or ends. If it cannot, nobody waits for it. */
static void on_not_forgotten(struct mover_job *job, enum status status, const char *error)
{
	struct forgetting *forgetting = container_of(job, struct forgetting, job.job);
	struct copies *copies = forgetting->copies;
	if (job->id == 0) {
		end_forgetting(forgetting);
	}
	copies->n_forgetting--;
	copies_look_for_room(copies);
}

static void on_empty(void *user, struct extents *extents, uint64_t number);

/* The next mover may have it mapped by now. */
static void on_forgetter_gone(struct mover_job *job)
{
	struct forgetting *forgetting = container_of(job, struct forgetting, job.job);
	on_empty(forgetting->copies, forgetting->extents, forgetting->number);
	free(forgetting);
}

/* Of extents: nothing is in chunk @number any more, or there was nothing in it for a while. */
static void on_empty(void *user, struct extents *extents, uint64_t number)
{
	struct copies *copies = user;
	struct forgetting *forgetting = NULL;
	if (mover_link_pid(copies->mover)) {
		forgetting = calloc(1, sizeof(*forgetting));
	}
	if (forgetting) {
		forgetting->job.job.on_failed = on_not_forgotten;
		forgetting->job.job.on_gone = on_forgetter_gone;
		forgetting->job.on_forgotten = on_forgotten;
		forgetting->copies = copies;
		forgetting->extents = extents;
		forgetting->number = number;
	}
	if (!forgetting || mover_forget(copies->mover, &forgetting->job, number) < 0) {
		free(forgetting);
		extents_forgotten(extents, number);
	} else {
		copies->n_forgetting++;
	}
}

/* ---- room ------------------------------------------------------------------------------------- */

/*
 * The copy at @at (NULL: anywhere) that nobody has used for longest goes, and a model that only host memory has with it.
 * False: none is left.
 */
bool copies_make_room(struct copies *copies, const struct location *at)
{
	struct copy *copy;
	list_for_each (copy, &copies->order, link) {
		if ((at && copy->in->at != at) || copy->n_pins > 0) {
			continue;
		}
		if (copy->n_models > 0) {
			return store_forget_demoted(copies->store, copy);
		}
		copy_free(copies, copy);
		return true;
	}
	return false;
}

void copies_make_way(struct copies *copies, const struct location *at, uint64_t bytes)
{
	uint64_t room = location_room_bytes(at);
	while (location_room_bytes(at) + at->forgetting_bytes < room + bytes &&
	       copies_make_room(copies, at)) {
	}
}

/* ---- from above ------------------------------------------------------------------------------- */

uint64_t copies_most_bytes(const struct copies *copies)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < copies->n_nodes; i++) {
		bytes += location_most_bytes(copies->nodes[i].at);
	}
	return bytes;
}

void copies_want(struct copies *copies, struct block *block)
{
	if (copies->is_on && list_is_empty(&block->wanted)) {
		list_insert(&copies->wanted, &block->wanted);
		copies_copy_next(copies);
	}
}

struct copy *copies_find(const struct copies *copies, const struct realm *realm,
                         const struct digest *digest)
{
	struct copy *copy = copy_find(copies, realm, digest);
	return copy && copy->state == COPY_THERE ? copy : NULL;
}

void copies_use(struct copies *copies, struct copy *copy)
{
	if (!copy->is_private) {
		list_remove(&copy->link);
		list_insert(&copies->order, &copy->link);
	}
}

void copies_hold(struct copies *copies, struct copy *copy)
{
	copy->n_models++;
	copies_use(copies, copy);
}

/* Nobody finds it, and nobody holds it. */
static void free_if_lost(struct copies *copies, struct copy *copy)
{
	if (!is_held(copy) && !is_in_table(copies, copy)) {
		copy_free(copies, copy);
	}
}

void copies_let(struct copies *copies, struct copy *copy)
{
	assert(copy->n_models > 0);
	copy->n_models--;
	free_if_lost(copies, copy);
}

void copies_pin(struct copies *copies, struct copy *copy)
{
	copy->n_pins++;
	copies_use(copies, copy);
}

void copies_unpin(struct copies *copies, struct copy *copy)
{
	assert(copy->n_pins > 0);
	copy->n_pins--;
	free_if_lost(copies, copy);
}

int copies_read(struct copies *copies, struct copy *copy, struct digest_job *job,
                const struct device *device, int fd)
{
	const struct mover_host host = copy_place(copy, extent_source(copy->extent));
	return mover_copy(copies->mover, job, device, fd, copy->bytes, copy->content_bytes, &host,
	                  false);
}

void copies_drop(struct copies *copies, struct copy *copy)
{
	if (is_in_table(copies, copy)) {
		HASH_DEL(copies->table, copy);
	}
	free_if_lost(copies, copy);
}

void copies_evict(struct copies *copies, const struct realm *realm)
{
	struct list *link = copies->order.next;
	while (link != &copies->order) {
		struct copy *copy = container_of(link, struct copy, link);
		link = link->next;
		if (!is_held(copy) && (!realm || copy->realm == realm)) {
			copy_free(copies, copy);
		}
	}
}

void copies_set(struct copies *copies, bool is_on)
{
	copies->is_on = is_on && copies->n_nodes > 0;
}

int copies_init(struct copies *copies, struct store *store, struct mover_link *mover,
                struct allocator *allocator, struct location *nodes, size_t n_nodes)
{
	*copies = (struct copies){.store = store, .mover = mover, .n_nodes = n_nodes};
	list_init(&copies->order);
	list_init(&copies->wanted);
	list_init(&copies->orders);
	list_init(&copies->copying);
	copies->nodes = calloc(n_nodes ? n_nodes : 1, sizeof(copies->nodes[0]));
	if (!copies->nodes) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < n_nodes; i++) {
		extents_init(&copies->nodes[i], allocator, &nodes[i], store->cache);
		copies->nodes[i].on_empty = on_empty;
		copies->nodes[i].user = copies;
	}
	return 0;
}

void copies_deinit(struct copies *copies)
{
	struct copy *copy;
	struct copy *next;
	HASH_ITER(hh, copies->table, copy, next)
	{
		copy_free(copies, copy);
	}
	for (size_t i = 0; i < copies->n_nodes; i++) {
		extents_deinit(&copies->nodes[i]);
	}
	free(copies->nodes);
}
