/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/store_parts.h"

#include <inttypes.h>
#include <stdio.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* Blocks that wait for room that are looked at at a time; and idle things, for one that a user may do without. */
#define ROOM_LOOKS 16
#define IDLE_LOOKS 256

#define PARKED_NAME_BYTES 24

static void parked_name(const struct block *block, char name[PARKED_NAME_BYTES])
{
	snprintf(name, PARKED_NAME_BYTES, "b%" PRIu64, block->id);
}

static void tell_of(struct block *block)
{
	if (!block->is_noted) {
		block->is_noted = true;
		store_note_block(block->store, block);
	}
}

/* @block serves without being kept. */
static void wait_for_room(struct block *block)
{
	block_set_keeping(block, BLOCK_ROOMLESS);
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
		wait_for_room(block);
	} else {
		block_set_keeping(block, BLOCK_PARKED);
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

/* Park the block. False: there is no room for its fd. */
static bool try_park(struct store *store, struct block *block)
{
	char name[PARKED_NAME_BYTES];
	parked_name(block, name);
	if (!store_charge_place(store, block->maker, &block->place)) {
		return false;
	}
	uint64_t number = parking_put(store->parking, name, block->chunk.fd);
	if (number) {
		block_set_keeping(block, BLOCK_PARKING);
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

/* An idle block that @user has made goes, so that its share suffices. False: nothing did. */
static bool evict_for_share(struct store *store, const struct user *user)
{
	uint64_t n_used = pot_used_by(&store->places, user);
	size_t n_looks = 0;
	struct idle *idle;
	list_for_each (idle, &store->idle, link) {
		if (++n_looks > IDLE_LOOKS) {
			return false;
		}
		if (store_maker_of(idle) == user && !store_frees_nothing(idle)) {
			store_evict_idle(store, idle);
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

static void make_room(struct store *store, const struct user *maker)
{
	while (parking_is_full(store->parking) && evict_for_room(store)) {
	}
	while (!may_park(store, maker) && evict_for_share(store, maker)) {
	}
}

bool store_make_place(struct store *store, struct user *user, struct user_charge *charge)
{
	make_room(store, user);
	return !parking_is_full(store->parking) && store_charge_place(store, user, charge);
}

void store_park(struct store *store, struct block *block)
{
	if (!store->parking) {
		return;
	}
	make_room(store, block->maker);
	if (!try_park(store, block)) {
		wait_for_room(block);
	}
}

/* A block that cannot have room now waits behind the others. */
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

void store_unpark(struct store *store, struct block *block)
{
	char name[PARKED_NAME_BYTES];
	bool is_there = block->keeping == BLOCK_PARKING || block->keeping == BLOCK_PARKED;
	list_remove(&block->parking.link);
	store->n_roomless -= block->keeping == BLOCK_ROOMLESS;
	if (block->is_noted && store->watch) {
		store->watch->block_gone(store->watcher, block);
	}
	user_refund_all(&block->place);
	if (store->parking && is_there) {
		parked_name(block, name);
		block->chunk.removed = parking_remove(store->parking, name);
		store_use_room(store);
	}
}

uint64_t store_unparked_block(const struct block *block)
{
	return block->keeping == BLOCK_PARKING ? block->parking.number : 0;
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
