/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/copies.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/store/store_parts.h"
#include "proto/cleanup.h"

/* A copy on its way. If a dead mover has it and cannot end, it outlives copies.copying. */
struct copying {
	struct digest_job job;
	struct copies *copies;
	struct block *block; /* the store keeps it: store_begin_compare() */
	struct copy *copy;
	struct extents_request *request; /* while TAKING, unless: */
	bool is_waiting;                 /* for chunks that are being forgotten */
	size_t i_node;                   /* it was asked last */
};

#define BIT(state) (1u << (state))

static void copy_set_state(struct copy *copy, enum copy_state state)
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

static struct copy *find(const struct copies *copies, const struct realm *realm,
                         const struct digest *digest)
{
	struct copy_key key = key_of(realm, digest);
	struct copy *copy;
	HASH_FIND(hh, copies->table, &key, sizeof(key), copy);
	return copy;
}

static bool is_in_table(const struct copies *copies, const struct copy *copy)
{
	return find(copies, copy->realm, &copy->key.digest) == copy;
}

/* NULL: no memory. */
static struct copy *copy_new(struct copies *copies, const struct block *block)
{
	struct copy *copy = calloc(1, sizeof(*copy));
	if (!copy) {
		return NULL;
	}
	copy->key = key_of(block->realm, &block->key.digest);
	copy->content_bytes = block->content_bytes;
	copy->bytes = block->chunk.bytes;
	list_init(&copy->link);
	HASH_ADD(hh, copies->table, key, sizeof(copy->key), copy);
	if (!hash_has(copy)) {
		free(copy);
		return NULL;
	}
	copy->realm = realm_ref(block->realm);
	return copy;
}

static void copy_free(struct copies *copies, struct copy *copy)
{
	assert(copy->n_models == 0);
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
static struct mover_host place_of(const struct copy *copy, int fd)
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

static void look_for_room(struct copies *copies);

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
	look_for_room(copies);
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
	look_for_room(copies);
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
static bool make_room(struct copies *copies, const struct location *at)
{
	struct copy *copy;
	list_for_each (copy, &copies->order, link) {
		if (at && copy->in->at != at) {
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
	       make_room(copies, at)) {
	}
}

/* ---- copying ---------------------------------------------------------------------------------- */

static void copy_next(struct copies *copies);

static void leave(struct copying *copying)
{
	if (copying->copies->copying == copying) {
		copying->copies->copying = NULL;
	}
}

/* The mover has nothing of it any more. */
static void end(struct copying *copying)
{
	struct copies *copies = copying->copies;
	leave(copying);
	if (copying->copy->state != COPY_THERE) {
		copy_free(copies, copying->copy);
	}
	store_end_compare(copies->store, copying->block);
	free(copying);
	copy_next(copies);
}

static void on_written(struct digest_job *job, const struct digest *digest)
{
	struct copying *copying = container_of(job, struct copying, job);
	struct copies *copies = copying->copies;
	struct copy *copy = copying->copy;
	if (!digest_equal(digest, &copy->key.digest)) {
		/* The patrol finds out which of the two it is. A client can write to its blocks. */
		struct tenant *payer = copying->block->chunk.charge.tenant;
		log_limited(&payer->log_limit, LOG_LEVEL_WARNING,
		            "a copy of block %llu in host memory is not what was copied",
		            (unsigned long long)copying->block->id);
		copying->block->is_suspect = true;
	} else {
		extent_written(copy->extent);
		copy_set_state(copy, COPY_THERE);
		list_insert(&copies->order, &copy->link);
		copies->bytes += copy->bytes;
		copies->store->stats->blocks_copied++;
	}
	end(copying);
}

static void on_not_written(struct mover_job *job, enum status status, const char *error)
{
	struct copying *copying = container_of(job, struct copying, job.job);
	log_debug("copying block %llu to host memory: %s", (unsigned long long)copying->block->id,
	          error);
	if (job->id == 0) {
		end(copying);
	} else {
		struct copies *copies = copying->copies;
		leave(copying);
		copy_next(copies);
	}
}

static void on_copier_gone(struct mover_job *job)
{
	end(container_of(job, struct copying, job.job));
}

static void write_copy(struct copying *copying)
{
	struct copies *copies = copying->copies;
	struct copy *copy = copying->copy;
	const struct block *block = copying->block;
	const struct mover_host host = place_of(copy, extent_target(copy->extent));
	copy_set_state(copy, COPY_WRITING);
	copying->job.job.is_aside = true;
	copying->job.job.on_failed = on_not_written;
	copying->job.job.on_gone = on_copier_gone;
	copying->job.on_digested = on_written;
	if (mover_copy(copies->mover, &copying->job, location_device(block->chunk.at),
	               block->chunk.fd, block->chunk.bytes, block->content_bytes, &host,
	               true) < 0) {
		end(copying);
	}
}

static void take(struct copying *copying);

static void on_taken(void *user, enum status status, struct list *extents)
{
	struct copying *copying = user;
	struct copies *copies = copying->copies;
	copying->request = NULL;
	if (status == STATUS_OK) {
		copying->copy->extent = list_first(extents, struct extent, link);
		copying->copy->in = &copies->nodes[copying->i_node];
		list_remove(&copying->copy->extent->link);
		write_copy(copying);
	} else if (copying->i_node + 1 < copies->n_nodes) {
		copying->i_node++;
		take(copying);
	} else if (copies->n_forgetting > 0) {
		copying->is_waiting = true;
	} else if (make_room(copies, NULL)) {
		copying->i_node = 0;
		take(copying);
	} else {
		end(copying);
	}
}

static void take(struct copying *copying)
{
	struct copies *copies = copying->copies;
	extents_take(&copies->nodes[copying->i_node], copies->store->cache, copying->copy->bytes,
	             on_taken, copying, &copying->request);
}

/* A chunk was forgotten, or will not be soon. */
static void look_for_room(struct copies *copies)
{
	struct copying *copying = copies->copying;
	if (copying && copying->is_waiting) {
		copying->is_waiting = false;
		copying->i_node = 0;
		take(copying);
	}
}

/* It has content that others may have, and no copy yet. */
static bool is_wanted(const struct copies *copies, const struct block *block)
{
	return block->state == BLOCK_SHARED && block->chunk.fd >= 0 &&
	       !find(copies, block->realm, &block->key.digest);
}

static void copy_one(struct copies *copies, struct block *block)
{
	struct copying *copying = calloc(1, sizeof(*copying));
	struct copy *copy = copying ? copy_new(copies, block) : NULL;
	if (!copy) {
		free(copying);
		return;
	}
	copying->copies = copies;
	copying->block = block;
	copying->copy = copy;
	copies->copying = copying;
	store_begin_compare(block);
	take(copying);
}

/* One that ends at once comes back here. */
static void copy_next(struct copies *copies)
{
	if (copies->is_looking) {
		return;
	}
	copies->is_looking = true;
	while (!copies->copying && !list_is_empty(&copies->wanted)) {
		struct block *block = list_first(&copies->wanted, struct block, wanted);
		list_remove(&block->wanted);
		if (copies->is_on && is_wanted(copies, block)) {
			copy_one(copies, block);
		}
	}
	copies->is_looking = false;
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
		copy_next(copies);
	}
}

struct copy *copies_find(const struct copies *copies, const struct realm *realm,
                         const struct digest *digest)
{
	struct copy *copy = find(copies, realm, digest);
	return copy && copy->state == COPY_THERE ? copy : NULL;
}

void copies_use(struct copies *copies, struct copy *copy)
{
	list_remove(&copy->link);
	list_insert(&copies->order, &copy->link);
}

void copies_hold(struct copies *copies, struct copy *copy)
{
	copy->n_models++;
	copies_use(copies, copy);
}

void copies_let(struct copies *copies, struct copy *copy)
{
	assert(copy->n_models > 0);
	if (--copy->n_models == 0 && !is_in_table(copies, copy)) {
		copy_free(copies, copy);
	}
}

int copies_read(struct copies *copies, struct copy *copy, struct digest_job *job,
                const struct device *device, int fd)
{
	const struct mover_host host = place_of(copy, extent_source(copy->extent));
	return mover_copy(copies->mover, job, device, fd, copy->bytes, copy->content_bytes, &host,
	                  false);
}

void copies_drop(struct copies *copies, struct copy *copy)
{
	if (is_in_table(copies, copy)) {
		HASH_DEL(copies->table, copy);
	}
	if (copy->n_models == 0) {
		copy_free(copies, copy);
	}
}

void copies_evict(struct copies *copies, const struct realm *realm)
{
	struct list *link = copies->order.next;
	while (link != &copies->order) {
		struct copy *copy = container_of(link, struct copy, link);
		link = link->next;
		if (copy->n_models == 0 && (!realm || copy->realm == realm)) {
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

void copies_close(struct copies *copies)
{
	struct copying *copying = copies->copying;
	copies->is_on = false;
	if (copying && copying->request) {
		extents_cancel(copying->request);
		end(copying);
	} else if (copying && copying->is_waiting) {
		end(copying);
	} else if (copying) {
		mover_cancel(copies->mover, &copying->job.job);
	}
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
