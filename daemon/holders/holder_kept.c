/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/kept_step.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/holders/holder.h"
#include "proto/cleanup.h"

void kept_steps_init(struct kept_steps *kept, uv_loop_t *loop, struct tenant *cache,
                     struct stats *stats, uint64_t max_bytes, uint64_t max_fds)
{
	*kept = (struct kept_steps){.loop = loop,
	                            .cache = cache,
	                            .stats = stats,
	                            .bytes = {.row = USER_KEPT_BYTES, .limit = max_bytes},
	                            .fds = {.row = USER_KEPT_FDS, .limit = max_fds}};
	list_init(&kept->list);
}

static const struct location *location_of(const struct kept_step *step)
{
	return step->chunks[0].at;
}

static uint64_t bytes_of(const struct kept_step *step)
{
	return step->chunks[0].bytes * step->will->n_chunks;
}

/* Free a step without its chunks and will. */
static void step_free(struct kept_step *step)
{
	list_remove(&step->link);
	user_refund_all(&step->bytes);
	user_refund_all(&step->fds);
	user_unref(step->user);
	realm_unref(step->realm);
	free(step);
}

/* ---- parked ------------------------------------------------------------------------------------ */

/* 1 / PARKED_PART of the fd store is for cache that nobody may ever ask for. */
#define PARKED_PART 4u

static struct parking *parking_of(const struct kept_steps *kept)
{
	return kept->holders ? kept->holders->store->parking : NULL;
}

static uint64_t chunk_id(const struct kept_step *step, size_t i)
{
	return step->id - step->will->n_chunks + 1 + i;
}

static void count_orders(struct kept_steps *kept, const struct kept_step *step, uint64_t last,
                         uint64_t n)
{
	orders_count(&kept->holders->orders, parking_of(kept), step->user, last, n);
}

/* The first @n chunks are no longer parked. Their memory is free when that has passed. */
static void remove_parked(struct kept_steps *kept, struct kept_step *step, size_t n)
{
	char name[HOLDER_PARKED_BYTES];
	struct parking *parking = parking_of(kept);
	uint64_t last = 0;
	for (size_t i = 0; parking && i < n; i++) {
		holder_parked_name(chunk_id(step, i), name);
		step->chunks[i].removed = parking_remove(parking, name);
		last = step->chunks[i].removed ? step->chunks[i].removed : last;
	}
	if (parking) {
		count_orders(kept, step, last, n);
	}
}

/* The step's chunks are about to be somebody's, or nobody's. */
static void unpark(struct kept_steps *kept, struct kept_step *step)
{
	const struct holders *holders = kept->holders;
	if (step->id == 0) {
		return;
	}
	if (holders->watch) {
		holders->watch->kept_gone(holders->watcher, step);
	}
	remove_parked(kept, step, step->will->n_chunks);
	user_refund_all(&step->places);
	kept->n_parked -= step->will->n_chunks;
	step->id = 0;
	if (parking_of(kept)) {
		store_use_room(holders->store);
	}
}

/* All chunks, or none. */
static bool park_chunks(struct kept_steps *kept, struct kept_step *step)
{
	char name[HOLDER_PARKED_BYTES];
	size_t n = step->will->n_chunks;
	uint64_t last = 0;
	size_t i = 0;
	for (uint64_t number = 1; number && i < n; i += number != 0) {
		holder_parked_name(chunk_id(step, i), name);
		number = parking_put(parking_of(kept), name, step->chunks[i].fd);
		last = number ? number : last;
	}
	count_orders(kept, step, last, i);
	if (i < n) {
		remove_parked(kept, step, i);
	}
	return i == n;
}

/* A step without room in the fd store is kept all the same, until glaked ends. */
static void park(struct kept_steps *kept, struct kept_step *step)
{
	struct holders *holders = kept->holders;
	struct parking *parking = parking_of(kept);
	size_t n = step->will->n_chunks;
	if (!parking || !holders->watch ||
	    kept->n_parked + n > parking_max(parking) / PARKED_PART ||
	    !orders_may(&holders->orders, step->user, n) ||
	    !user_charge(&step->places, &holders->store->places, step->user, n)) {
		return;
	}
	holders->last_id += n;
	step->id = holders->last_id;
	if (!park_chunks(kept, step)) {
		user_refund_all(&step->places);
		step->id = 0;
		return;
	}
	kept->n_parked += n;
	holders->watch->kept(holders->watcher, step);
}

void kept_steps_note_all(const struct kept_steps *kept)
{
	const struct kept_step *step;
	list_for_each (step, &kept->list, link) {
		if (step->id) {
			kept->holders->watch->kept(kept->holders->watcher, step);
		}
	}
}

/* Returns the bytes that become free. */
static uint64_t release(struct kept_steps *kept, struct kept_step *step)
{
	uint64_t bytes = bytes_of(step);
	unpark(kept, step);
	chunk_release_all(step->chunks, step->will->n_chunks);
	will_free(step->will);
	step_free(step);
	kept->stats->steps_dropped++;
	return bytes;
}

void kept_steps_deinit(struct kept_steps *kept)
{
	while (!list_is_empty(&kept->list)) {
		release(kept, list_first(&kept->list, struct kept_step, link));
	}
	pot_deinit(&kept->bytes);
	pot_deinit(&kept->fds);
}

/* ---- coming ------------------------------------------------------------------------------------ */

static bool charge(struct kept_steps *kept, struct kept_step *step, uint64_t bytes)
{
	if (!user_charge(&step->bytes, &kept->bytes, step->user, bytes)) {
		return false;
	}
	if (!user_charge(&step->fds, &kept->fds, step->user, step->will->n_chunks)) {
		user_refund_all(&step->bytes);
		return false;
	}
	return true;
}

/* Release the oldest step of @user. False: there is none. */
static bool release_oldest_of(struct kept_steps *kept, const struct user *user)
{
	struct kept_step *step;
	list_for_each (step, &kept->list, link) {
		if (step->user == user) {
			release(kept, step);
			return true;
		}
	}
	return false;
}

/* Make a step; the user's oldest ones go for it. NULL: his share is too small for this one alone, or there is no memory. */
static struct kept_step *new_step(struct kept_steps *kept, const struct holder *holder,
                                  struct will *will)
{
	struct kept_step *step = calloc(1,
	                                sizeof(*step) + will->n_chunks * sizeof(step->chunks[0]));
	if (!step) {
		return NULL;
	}
	uint64_t bytes = will->chunks[0]->chunk.bytes * will->n_chunks;
	list_init(&step->link);
	step->will = will;
	step->user = user_ref(holder->user);
	step->realm = realm_ref(holder->realm);
	step->since_ms = uv_now(kept->loop);
	bool has_room = charge(kept, step, bytes);
	while (!has_room && release_oldest_of(kept, step->user)) {
		has_room = charge(kept, step, bytes);
	}
	if (!has_room) {
		step_free(step);
		return NULL;
	}
	return step;
}

/* Hand chunks that are read over to @reader, with the will. */
static void hand_over(struct holder *holder, struct will *will, struct holder *reader)
{
	struct held *chunks[GLAKE_MAX_PACKET_FDS];
	assert(will->n_chunks <= n_elements(chunks));
	list_remove(&will->link);
	for (size_t i = 0; i < will->n_chunks; i++) {
		struct held *held = will->chunks[i];
		chunks[i] = holder_reading_of(held, reader);
		held->will = NULL;
		holder_hand_over(holder, held, chunks[i]);
	}
	if (charge_move(&will->cost, holder_payer(reader)) == 0) {
		will_move(will, reader, chunks);
	} else {
		will_free(will);
	}
}

static bool is_read(const struct will *will)
{
	size_t i = 0;
	while (i < will->n_chunks && !will->chunks[i]->readers) {
		i++;
	}
	return i < will->n_chunks;
}

void kept_steps_keep(struct kept_steps *kept, struct holder *holder, struct will *will)
{
	bool stands = will_stands(will);
	struct holder *reader = stands ? will_reader(will) : NULL;
	if (reader) {
		hand_over(holder, will, reader);
		return;
	}
	bool can_stay = stands && kept->keep_ms > 0 && !is_read(will);
	struct kept_step *step = can_stay ? new_step(kept, holder, will) : NULL;
	if (!step) {
		will_void(will);
		return;
	}
	list_remove(&will->link);
	for (size_t i = 0; i < will->n_chunks; i++) {
		struct held *held = will->chunks[i];
		struct chunk *chunk = &step->chunks[i];
		will->chunks[i] = NULL;
		held->will = NULL;
		holder_leave_chunk(holder, held, chunk);
		charge_move(&chunk->charge, payer_alone(kept->cache));
		chunk_set_use(chunk, CHUNK_KEPT);
	}
	list_insert(&kept->list, &step->link);
	park(kept, step);
	kept->stats->steps_kept++;
}

int kept_steps_restore(struct kept_steps *kept, const struct kept_adopted *as, struct will *will,
                       struct chunk *chunks)
{
	size_t n = will->n_chunks;
	struct kept_step *step = calloc(1, sizeof(*step) + n * sizeof(step->chunks[0]));
	if (!step) {
		return -ENOMEM;
	}
	list_init(&step->link);
	step->will = will;
	step->user = user_ref(as->user);
	step->realm = realm_ref(as->realm);
	step->since_ms = as->since_ms;
	step->id = as->id;
	for (size_t i = 0; i < n; i++) {
		chunk_move(&step->chunks[i], &chunks[i]);
	}
	user_charge_anyway(&step->bytes, &kept->bytes, step->user, bytes_of(step));
	user_charge_anyway(&step->fds, &kept->fds, step->user, n);
	user_charge_anyway(&step->places, &kept->holders->store->places, step->user, n);
	kept->n_parked += n;
	list_insert(&kept->list, &step->link);
	return 0;
}

void kept_steps_inherit(struct kept_steps *kept, struct holder *holder)
{
	while (!list_is_empty(&holder->wills)) {
		kept_steps_keep(kept, holder, list_first(&holder->wills, struct will, link));
	}
}

/* ---- going ------------------------------------------------------------------------------------- */

struct kept_step *kept_steps_find(struct kept_steps *kept, const struct holder *holder,
                                  const struct will_wanted *wanted)
{
	struct kept_step *found = NULL;
	struct kept_step *step;
	list_for_each (step, &kept->list, link) {
		if (step->user == holder->user && step->realm == holder->realm &&
		    location_of(step) == wanted->at &&
		    step->chunks[0].bytes == wanted->chunk_bytes &&
		    will_has_key(step->will, wanted)) {
			found = step;
		}
	}
	return found;
}

/* Charge the heir's tenant, or what was promised to his process. Returns 0 or TENANT_E_*. */
static int charge_heir(const struct kept_step *step, struct holder *holder, struct promise *promise,
                       struct charge *charges)
{
	uint64_t sizes[GLAKE_MAX_PACKET_FDS];
	uint64_t taken_bytes;
	for (size_t i = 0; i < step->will->n_chunks; i++) {
		sizes[i] = step->chunks[i].bytes;
	}
	return promise_charge(promise, holder->tenant, location_of(step)->slot, sizes,
	                      step->will->n_chunks, charges, &taken_bytes);
}

static void refund_all(struct charge *charges, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		charge_refund(&charges[i]);
	}
}

/* Bytes that were taken from a promise are reserved again when the caller draws no more. */
static enum status move(struct kept_steps *kept, struct kept_step *step, struct holder *holder,
                        struct promise *promise, uint64_t request, struct held **held_out,
                        struct refusal *refusal_out)
{
	struct charge charges[GLAKE_MAX_PACKET_FDS];
	struct will *will = step->will;
	size_t n = will->n_chunks;
	assert(n <= n_elements(charges));
	int r = charge_heir(step, holder, promise, charges);
	if (r != 0) {
		bool is_fds = r == TENANT_E_FDS;
		*refusal_out = refusal_of_tenant(is_fds ? BOUND_TENANT_FDS : BOUND_QUOTA,
		                                 holder->tenant, location_of(step),
		                                 is_fds ? n : bytes_of(step));
		return refusal_status(refusal_out);
	}
	if (charge_move(&will->cost, holder_payer(holder)) != 0) {
		refund_all(charges, n);
		*refusal_out = refusal_of_manifest(holder_payer(holder), location_of(step),
		                                   will->cost.manifest_bytes);
		return refusal_status(refusal_out);
	}
	unpark(kept, step);
	if (holder_add_chunks(holder, request, step->chunks, n, held_out) < 0) {
		refund_all(charges, n);
		return STATUS_NO_HOST_MEMORY;
	}
	for (size_t i = 0; i < n; i++) {
		struct chunk *chunk = &held_out[i]->chunk;
		charge_refund(&chunk->charge);
		chunk->charge = charges[i];
		chunk_set_use(chunk, CHUNK_PRIVATE);
	}
	will_move(will, holder, held_out);
	step_free(step);
	return STATUS_OK;
}

enum status kept_step_adopt(struct kept_steps *kept, struct kept_step *step, struct holder *holder,
                            uint64_t request, struct held **held_out, struct refusal *refusal_out)
{
	const struct location *at = location_of(step);
	uint64_t bytes = bytes_of(step);
	struct promise *promise = holder->at[at->slot].promise;
	*refusal_out = (struct refusal){.bound = BOUND_NONE};
	if (promise && !promise_draw(promise, bytes)) {
		*refusal_out = refusal_of_promise(promise, holder->tenant, bytes);
		return refusal_status(refusal_out);
	}
	enum status status = move(kept, step, holder, promise, request, held_out, refusal_out);
	if (promise) {
		promise_undraw(promise, bytes);
	}
	kept->stats->steps_adopted += status == STATUS_OK;
	return status;
}

void kept_steps_take_bytes(struct kept_steps *kept, const struct location *at, uint64_t bytes)
{
	uint64_t freed = 0;
	struct kept_step *step;
	struct kept_step *spare;
	list_for_each_safe (step, spare, &kept->list, link) {
		if (freed < bytes && location_of(step) == at) {
			freed += release(kept, step);
		}
	}
}

void kept_steps_take_fds(struct kept_steps *kept, uint64_t n_fds)
{
	uint64_t freed = 0;
	while (freed < n_fds && !list_is_empty(&kept->list)) {
		struct kept_step *step = list_first(&kept->list, struct kept_step, link);
		freed += step->will->n_chunks;
		release(kept, step);
	}
}

uint64_t kept_steps_evict(struct kept_steps *kept, const struct realm *realm)
{
	uint64_t freed = 0;
	struct kept_step *step;
	struct kept_step *spare;
	list_for_each_safe (step, spare, &kept->list, link) {
		freed += !realm || step->realm == realm ? release(kept, step) : 0;
	}
	return freed;
}

/* The list is in the order of their times. */
void kept_steps_tick(struct kept_steps *kept)
{
	uint64_t now = uv_now(kept->loop);
	while (!list_is_empty(&kept->list)) {
		struct kept_step *step = list_first(&kept->list, struct kept_step, link);
		if (now - step->since_ms < kept->keep_ms) {
			return;
		}
		release(kept, step);
	}
}
