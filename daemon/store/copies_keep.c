/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/copies_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/cleanup.h"

#define BIT(state) (1u << (state))

void copies_set_state(struct copy *copy, enum copy_state state)
{
	static const unsigned legal[COPY_N_STATES] = {
		[COPY_TAKING] = BIT(COPY_WRITING),
		[COPY_WRITING] = BIT(COPY_THERE),
	};
	assert(legal[copy->state] & BIT(state));
	copy->state = state;
}

/* ---- what it is for --------------------------------------------------------------------------- */

static bool may_go(const struct copy *copy)
{
	return copy->n_held == copy->n_offered;
}

static enum copy_use use_of(const struct copy *copy)
{
	return copy->state != COPY_THERE || copy->is_zero ? COPY_USE_NONE
	       : copy->n_parked > 0                       ? COPY_USE_SLEEP
	       : !may_go(copy)                            ? COPY_USE_HELD
	       : copy->n_offered > 0                      ? COPY_USE_MODEL
	                                                  : COPY_USE_CACHE;
}

struct copies_use *copies_use_at(const struct copies *copies, const struct copy *copy)
{
	return &copies->use[copy->in - copies->nodes];
}

static void set_use(struct copies *copies, struct copy *copy, enum copy_use use)
{
	if (copy->use != COPY_USE_NONE) {
		copies_use_at(copies, copy)->bytes[copy->use] -= copy->bytes;
	}
	if (use != COPY_USE_NONE) {
		copies_use_at(copies, copy)->bytes[use] += copy->bytes;
	}
	copy->use = use;
}

void copies_count_use(struct copies *copies, struct copy *copy)
{
	set_use(copies, copy, use_of(copy));
}

/* ---- the table -------------------------------------------------------------------------------- */

static struct copy_key key_of(const struct realm *realm, const struct digest *digest)
{
	return (struct copy_key){.realm_id = realm->id, .digest = *digest};
}

struct copy *copies_find_any(const struct copies *copies, const struct realm *realm,
                             const struct digest *digest)
{
	struct copy_key key = key_of(realm, digest);
	struct copy *copy;
	HASH_FIND(hh, copies->table, &key, sizeof(key), copy);
	return copy;
}

struct copy *copies_find(const struct copies *copies, const struct realm *realm,
                         const struct digest *digest)
{
	struct copy *copy = copies_find_any(copies, realm, digest);
	return copy && copy->is_of_block && copy->state == COPY_THERE ? copy : NULL;
}

static bool enter(struct copies *copies, struct copy *copy)
{
	HASH_ADD(hh, copies->table, key, sizeof(copy->key), copy);
	copy->is_found = hash_has(copy);
	return copy->is_found;
}

void copies_hide(struct copies *copies, struct copy *copy)
{
	if (copy->is_found) {
		HASH_DEL(copies->table, copy);
		copy->is_found = false;
	}
}

struct copy *copies_new(struct copies *copies, const struct copy_wanted *wanted)
{
	static const struct digest unknown;
	struct copy *copy = calloc(1, sizeof(*copy));
	if (!copy) {
		return NULL;
	}
	copy->key = key_of(wanted->realm, wanted->digest ? wanted->digest : &unknown);
	copy->content_bytes = wanted->content_bytes;
	copy->bytes = wanted->bytes;
	copy->is_of_block = wanted->is_of_block;
	list_init(&copy->link);
	list_init(&copy->parked);
	list_init(&copy->pasts);
	if (wanted->is_found && !enter(copies, copy)) {
		free(copy);
		return NULL;
	}
	copy->realm = realm_ref(wanted->realm);
	return copy;
}

static void leave_past(struct copy_past *past)
{
	list_remove(&past->link);
	past->copy = NULL;
}

static void leave_pasts(struct copy *copy)
{
	while (!list_is_empty(&copy->pasts)) {
		leave_past(list_first(&copy->pasts, struct copy_past, link));
	}
}

void copies_free(struct copies *copies, struct copy *copy)
{
	assert(copy->n_held == 0 && copy->n_parked == 0);
	leave_pasts(copy);
	copies_hide(copies, copy);
	if (copy->state == COPY_THERE && copy->extent) {
		copies->bytes -= copy->bytes;
	}
	list_remove(&copy->link);
	set_use(copies, copy, COPY_USE_NONE);
	if (copy->extent) {
		extent_release(copy->in, copy->extent);
	}
	realm_unref(copy->realm);
	free(copy);
}

struct mover_host copies_place(const struct copy *copy, int fd)
{
	return (struct mover_host){.fd = fd,
	                           .chunk = extent_chunk_number(copy->extent),
	                           .chunk_bytes = extent_chunk_bytes(copy->extent),
	                           .offset = copy->extent->offset};
}

/* ---- who needs it ----------------------------------------------------------------------------- */

/* The holders of @copy have changed: it is cache, or somebody needs it. */
static void settle(struct copies *copies, struct copy *copy)
{
	if (!may_go(copy)) {
		list_remove(&copy->link);
	} else if (list_is_empty(&copy->link)) {
		/* The built-in tenant has no limits, so this cannot be refused. */
		charge_move(&copy->extent->charge, payer_alone(copies->store->cache));
		list_insert(&copies->order, &copy->link);
	}
	copies_count_use(copies, copy);
}

void copies_empty(struct copies *copies, struct copy *copy)
{
	struct extent *extent = ptr_steal(copy->extent);
	if (extent) {
		extent_release(copy->in, extent);
	}
	copy->is_zero = true;
	copy->in = &copies->nodes[0];
}

void copies_written(struct copies *copies, struct copy *copy, const struct digest *digest)
{
	copy->key.digest = *digest;
	copies_set_state(copy, COPY_THERE);
	copy->n_held = 1;
	if (copy->extent) {
		extent_written(copy->extent);
		copies->bytes += copy->bytes;
	}
	copies_count_use(copies, copy);
}

void copies_show(struct copies *copies, struct copy *copy)
{
	if (!copies_find_any(copies, copy->realm, &copy->key.digest)) {
		/* Nobody finds the copy if there is no memory for its entry. */
		enter(copies, copy);
	}
}

/* Nobody holds it: it is of no use, not even as cache. */
static bool is_over(const struct copy *copy)
{
	return copy->n_held == 0 && list_is_empty(&copy->pasts) &&
	       !(copy->is_found && copy->is_of_block);
}

void copies_hold(struct copies *copies, struct copy *copy)
{
	assert(copy->state == COPY_THERE);
	copy->n_held++;
	settle(copies, copy);
}

void copies_let(struct copies *copies, struct copy *copy)
{
	assert(copy->n_held > copy->n_offered);
	copy->n_held--;
	if (is_over(copy)) {
		copies_free(copies, copy);
	} else {
		settle(copies, copy);
	}
}

/* Zeros take nothing, and are known as such. */
void copies_remember(struct copies *copies, struct copy *copy, struct copy_past *past)
{
	*past = (struct copy_past){.copies = copies};
	list_init(&past->link);
	if (!copy->is_zero) {
		past->copy = copy;
		list_insert(&copy->pasts, &past->link);
	}
}

void copies_forget(struct copy_past *past)
{
	struct copy *copy = past->copy;
	if (copy) {
		leave_past(past);
		if (is_over(copy)) {
			copies_free(past->copies, copy);
		}
	}
}

void copies_offer(struct copies *copies, struct copy *copy)
{
	assert(copy->n_held > copy->n_offered);
	copy->n_offered++;
	settle(copies, copy);
}

void copies_keep(struct copies *copies, struct copy *copy)
{
	assert(copy->n_offered > 0);
	copy->n_offered--;
	settle(copies, copy);
}

void copies_let_offered(struct copies *copies, struct copy *copy)
{
	assert(copy->n_offered > 0);
	copy->n_offered--;
	copy->n_held--;
	if (is_over(copy)) {
		copies_free(copies, copy);
	} else {
		copies_count_use(copies, copy);
	}
}

void copies_drop(struct copies *copies, struct copy *copy)
{
	copies_hide(copies, copy);
	leave_pasts(copy);
	copies_note(copies, copy);
	if (copy->n_held == 0) {
		copies_free(copies, copy);
	}
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

/* The extents call this: chunk @number is empty now, or was empty for a while. */
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

static bool is_on_one_of(const struct copies *copies, const struct copy *copy, uint64_t nodes)
{
	return nodes >> (copy->in - copies->nodes) & 1;
}

/* A copy that is larger than a large chunk has one of its own, for another of that size. */
static bool makes_place(const struct extents *node, const struct copy *copy, uint64_t bytes)
{
	bool is_whole = copy->bytes > node->large_bytes || bytes > node->large_bytes;
	return copy->in == node && (!is_whole || copy->bytes == bytes);
}

void copies_spare_making(struct copies *copies, struct extents *node, uint64_t bytes)
{
	struct copy *copy;
	struct copy *spare;
	bool has = extents_have(node, bytes);
	list_for_each_safe (copy, spare, &copies->order, link) {
		if (has) {
			return;
		}
		if (makes_place(node, copy, bytes) && copy->n_held == 0 && !copy->is_of_block) {
			copies_free(copies, copy);
			extents_want_more(node);
			has = extents_have(node, bytes);
		}
	}
}

/* Give back one chunk that is kept ready. */
static bool give_ready(struct copies *copies, uint64_t nodes)
{
	for (size_t i = 0; i < copies->n_nodes; i++) {
		if ((nodes >> i & 1) && extents_give_ready(&copies->nodes[i])) {
			return true;
		}
	}
	return false;
}

bool copies_make_room(struct copies *copies, uint64_t nodes)
{
	struct copy *copy;
	if (give_ready(copies, nodes)) {
		return true;
	}
	list_for_each (copy, &copies->order, link) {
		if (!is_on_one_of(copies, copy, nodes)) {
			continue;
		}
		if (copy->n_held > 0) {
			return store_forget_demoted(copies->store, copy);
		}
		copies_free(copies, copy);
		return true;
	}
	return false;
}

static uint64_t nodes_at(const struct copies *copies, const struct location *at)
{
	uint64_t nodes = 0;
	for (size_t i = 0; i < copies->n_nodes; i++) {
		nodes |= (uint64_t)(copies->nodes[i].at == at) << i;
	}
	return nodes;
}

void copies_make_way(struct copies *copies, const struct location *at, uint64_t bytes)
{
	uint64_t nodes = nodes_at(copies, at);
	uint64_t room = location_room_bytes(at);
	while (location_room_bytes(at) + at->forgetting_bytes < room + bytes &&
	       copies_make_room(copies, nodes)) {
	}
}

void copies_evict(struct copies *copies, const struct realm *realm)
{
	struct list *link = copies->order.next;
	while (link != &copies->order) {
		struct copy *copy = container_of(link, struct copy, link);
		link = link->next;
		if (copy->n_held == 0 && (!realm || copy->realm == realm)) {
			copies_free(copies, copy);
		}
	}
}

/* ---- from above ------------------------------------------------------------------------------- */

uint64_t copies_room_bytes(const struct copies *copies, size_t i_node)
{
	const struct extents *node = &copies->nodes[i_node];
	const struct copies_use *use = &copies->use[i_node];
	return location_room_bytes(node->at) + node->at->use_bytes[CHUNK_COPIES] -
	       node->used_bytes + use->bytes[COPY_USE_MODEL] + use->bytes[COPY_USE_CACHE];
}

uint64_t copies_most_bytes(const struct copies *copies)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < copies->n_nodes; i++) {
		bytes += location_most_bytes(copies->nodes[i].at);
	}
	return bytes;
}

int copies_read(struct copies *copies, struct copy *copy, struct digest_job *job,
                const struct device *device, int fd)
{
	if (copy->is_zero) {
		return mover_zero(copies->mover, job, device, fd, copy->bytes, copy->content_bytes);
	}
	const struct mover_host host = copies_place(copy, extent_source(copy->extent));
	return mover_copy(copies->mover, job, device, fd, copy->bytes, copy->content_bytes, &host,
	                  false);
}

void copies_set(struct copies *copies, bool is_on)
{
	copies->is_on = is_on && copies->n_nodes > 0;
}

void copies_keep_ready(struct copies *copies, const struct config_sizes *bytes)
{
	for (size_t i = 0; i < copies->n_nodes; i++) {
		extents_want_ready(&copies->nodes[i], config_sizes_at(bytes, i));
	}
}

void copies_tick(struct copies *copies)
{
	for (size_t i = 0; i < copies->n_nodes && !copies->is_closing; i++) {
		extents_tick(&copies->nodes[i]);
	}
}

int copies_init(struct copies *copies, struct store *store, struct mover_link *mover,
                struct allocator *allocator, struct location *nodes, size_t n_nodes)
{
	*copies = (struct copies){.store = store, .mover = mover, .n_nodes = n_nodes};
	list_init(&copies->order);
	list_init(&copies->parked);
	list_init(&copies->wanted);
	list_init(&copies->orders);
	list_init(&copies->looked);
	list_init(&copies->writing);
	copies->nodes = calloc(n_nodes ? n_nodes : 1, sizeof(copies->nodes[0]));
	copies->use = calloc(n_nodes ? n_nodes : 1, sizeof(copies->use[0]));
	if (!copies->nodes || !copies->use) {
		free(copies->nodes);
		free(copies->use);
		return -ENOMEM;
	}
	for (size_t i = 0; i < n_nodes; i++) {
		extents_init(&copies->nodes[i], allocator, &nodes[i], store->cache);
		copies->nodes[i].on_empty = on_empty;
		copies->nodes[i].user = copies;
	}
	return 0;
}

void copies_close(struct copies *copies)
{
	copies->is_on = false;
	copies->is_closing = true;
	for (size_t i = 0; i < copies->n_nodes; i++) {
		extents_want_ready(&copies->nodes[i], 0);
	}
	copies_close_makings(copies);
}

void copies_deinit(struct copies *copies)
{
	struct copy *copy;
	struct copy *next;
	assert(!copies->taking && list_is_empty(&copies->writing));
	HASH_ITER(hh, copies->table, copy, next)
	{
		copies_free(copies, copy);
	}
	for (size_t i = 0; i < copies->n_nodes; i++) {
		extents_deinit(&copies->nodes[i]);
	}
	free(copies->nodes);
	free(copies->use);
}
