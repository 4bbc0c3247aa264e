/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies that the next glaked is to have, because nothing else has the content. Each is on record, and so is the large
 * chunk in which it lies, whose fd is parked as long as there is such a copy in it.
 *
 * A chunk has copies of several users. Who needed it first pays for its place in the fd store, until nobody needs it.
 */
#include "daemon/store/copies_parts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "proto/cleanup.h"

void copies_parked_name(uint64_t id, char name[COPIES_PARKED_BYTES])
{
	snprintf(name, COPIES_PARKED_BYTES, "h%" PRIu64, id);
}

static void note_chunk(const struct store *store, const struct copy *copy)
{
	const struct extent_parking *parking = extent_chunk_parking(copy->extent);
	if (store->watch && parking->id) {
		store->watch->host_chunk(store->watcher, parking, extent_chunk(copy->extent));
	}
}

static void note_copy(const struct store *store, const struct copy *copy)
{
	if (store->watch && copy->id) {
		store->watch->copy(store->watcher, copy);
	}
}

/* Returns 0 or COPIES_E_NOT_PARKED. */
static int park_chunk(struct store *store, struct copy *copy, struct user *user)
{
	char name[COPIES_PARKED_BYTES];
	struct extent_parking *parking = extent_chunk_parking(copy->extent);
	if (!store_make_place(store, user, &parking->place)) {
		return COPIES_E_NOT_PARKED;
	}
	uint64_t id = ++store->last_id;
	copies_parked_name(id, name);
	parking->number = parking_put(store->parking, name, extent_chunk(copy->extent)->fd);
	if (!parking->number) {
		user_refund_all(&parking->place);
		return COPIES_E_NOT_PARKED;
	}
	parking->id = id;
	parking->user = user_ref(user);
	note_chunk(store, copy);
	return 0;
}

static int park_extent(struct store *store, struct copy *copy, struct user *user)
{
	struct extent_parking *parking = extent_chunk_parking(copy->extent);
	int r = store->parking && !parking->id ? park_chunk(store, copy, user) : 0;
	parking->n_copies += r == 0;
	return r;
}

static void unpark_chunk(struct store *store, struct copy *copy)
{
	char name[COPIES_PARKED_BYTES];
	uint64_t id = extent_chunk_parking(copy->extent)->id;
	uint64_t number = 0;
	if (id && store->watch) {
		store->watch->host_chunk_gone(store->watcher, id);
	}
	if (id && store->parking) {
		copies_parked_name(id, name);
		number = parking_remove(store->parking, name);
	}
	extent_chunk_unparked(copy->extent, number);
	if (number) {
		store_use_room(store);
	}
}

int copies_park(struct copies *copies, struct copy *copy, struct user *user)
{
	struct store *store = copies->store;
	assert(copy->state == COPY_THERE && copy->n_held > 0);
	if (copy->n_parked == 0) {
		int r = copy->extent ? park_extent(store, copy, user) : 0;
		if (r != 0) {
			return r;
		}
		copy->id = store->parking ? ++store->last_id : 0;
		list_insert(&copies->parked, &copy->parked);
		note_copy(store, copy);
	}
	copy->n_parked++;
	copies_use_at(copies, copy)->slept_bytes += copy->bytes;
	copies_count_use(copies, copy);
	return 0;
}

void copies_unpark(struct copies *copies, struct copy *copy)
{
	struct store *store = copies->store;
	assert(copy->n_parked > 0);
	copies_use_at(copies, copy)->slept_bytes -= copy->bytes;
	if (--copy->n_parked > 0) {
		return;
	}
	copies_count_use(copies, copy);
	list_remove(&copy->parked);
	if (copy->id && store->watch) {
		store->watch->copy_gone(store->watcher, copy);
	}
	copy->id = 0;
	if (copy->extent && --extent_chunk_parking(copy->extent)->n_copies == 0) {
		unpark_chunk(store, copy);
	}
}

uint64_t copies_unparked(const struct copy *copy)
{
	return copy->extent ? extent_chunk_parking(copy->extent)->number : 0;
}

void copies_note(const struct copies *copies, const struct copy *copy)
{
	note_copy(copies->store, copy);
}

void copies_note_all(const struct copies *copies)
{
	const struct copy *copy;
	list_for_each (copy, &copies->parked, parked) {
		if (copy->extent) {
			note_chunk(copies->store, copy);
		}
		note_copy(copies->store, copy);
	}
}

/* ---- from an earlier glaked ------------------------------------------------------------------- */

struct extents *copies_at(struct copies *copies, const struct location *at)
{
	for (size_t i = 0; i < copies->n_nodes; i++) {
		if (copies->nodes[i].at == at) {
			return &copies->nodes[i];
		}
	}
	return NULL;
}

/* Adopt the extent of @copy. False: it cannot be there. */
static bool adopt_extent(struct copies *copies, struct copy *copy, const struct copy_adopted *as)
{
	if (as->is_zero) {
		copies_empty(copies, copy);
		return true;
	}
	copy->in = as->in;
	copy->extent = extents_adopt(as->in, as->chunk, as->offset, as->bytes, as->tenant);
	if (copy->extent) {
		copies->bytes += copy->bytes;
		extent_chunk_parking(copy->extent)->n_copies++;
	}
	return copy->extent != NULL;
}

struct copy *copies_adopt(struct copies *copies, uint64_t id, const struct copy_adopted *as)
{
	const struct copy_wanted wanted = {.realm = as->realm,
	                                   .digest = &as->digest,
	                                   .content_bytes = as->content_bytes,
	                                   .bytes = as->bytes,
	                                   .is_found = as->is_found && !as->is_zero,
	                                   .is_of_block = as->is_of_block};
	if (as->content_bytes > as->bytes ||
	    (as->is_found && copies_find_any(copies, as->realm, &as->digest))) {
		return NULL;
	}
	struct copy *copy = copies_new(copies, &wanted);
	if (!copy || !adopt_extent(copies, copy, as)) {
		if (copy) {
			copies_free(copies, copy);
		}
		return NULL;
	}
	copy->id = id;
	copies_set_state(copy, COPY_WRITING);
	copies_set_state(copy, COPY_THERE);
	copy->n_held = 1;
	copy->n_parked = 1;
	copies_use_at(copies, copy)->slept_bytes += copy->bytes;
	copies_count_use(copies, copy);
	list_insert(&copies->parked, &copy->parked);
	return copy;
}

void copies_settle_adopted(struct copies *copies)
{
	struct copy *copy;
	struct copy *next;
	list_for_each_safe (copy, next, &copies->parked, parked) {
		copies_unpark(copies, copy);
		copies_let(copies, copy);
	}
}
