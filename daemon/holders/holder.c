/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/holders/holder.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/holders/kept_step.h"
#include "daemon/holders/slept.h"
#include "daemon/holders/will.h"
#include "daemon/memory/reserve.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

static const bool moves[N_HOLDER_STATES][N_HOLDER_STATES] = {
	[HOLDER_NEW] = {[HOLDER_ATTACHED] = true, [HOLDER_DETACHED] = true, [HOLDER_ENDED] = true},
	[HOLDER_ATTACHED] = {[HOLDER_DETACHED] = true, [HOLDER_ENDED] = true},
	[HOLDER_DETACHED] = {[HOLDER_ATTACHED] = true, [HOLDER_ENDED] = true},
};

static void holder_set_state(struct holder *holder, enum holder_state state)
{
	assert(moves[holder->state][state]);
	holder->state = state;
}

void holders_init(struct holders *holders, uv_loop_t *loop, struct location *const *locations,
                  uint32_t n_locations, struct store *store, uint64_t last_id)
{
	*holders = (struct holders){.loop = loop,
	                            .locations = locations,
	                            .n_locations = n_locations,
	                            .store = store,
	                            .last_id = last_id};
	list_init(&holders->list);
	list_init(&holders->realms);
	list_init(&holders->refused.list);
	holders->refused.loop = loop;
	list_init(&holders->sleepers);
	list_init(&holders->reading);
	orders_init(&holders->orders);
	mistakes_init(&holders->mistakes);
}

struct holder *holder_new(struct holders *holders)
{
	struct holder *holder = calloc(1, sizeof(*holder) +
	                                          holders->n_locations * sizeof(holder->at[0]));
	if (!holder) {
		return NULL;
	}
	holder->all = holders;
	refused_init(&holder->refused);
	holder->n_refs = 2; /* the list's, and the caller's */
	holder->id = ++holders->last_id;
	holder->since_ms = uv_now(holders->loop);
	list_init(&holder->wills);
	list_insert(&holders->list, &holder->link);
	holders->n++;
	return holder;
}

static bool is_said(const char *label)
{
	return label && *label;
}

struct event_subject holder_subject(const struct holder *holder)
{
	return (struct event_subject){.realm = holder->realm->name,
	                              .session = holder->id,
	                              .pid = holder->peer.pid,
	                              .cgroup = holder->labels.cgroup};
}

void holder_note_refusal(struct holder *holder, const struct refusal *refusal)
{
	const struct holder_labels *labels = &holder->labels;
	if (holder->state != HOLDER_ENDED) {
		const struct event_subject who = holder_subject(holder);
		refused_note(&holder->all->refused, &holder->refused, &who,
		             is_said(labels->name)     ? labels->name
		             : is_said(labels->script) ? labels->script
		                                       : labels->program,
		             refusal);
	}
}

struct holder *holder_ref(struct holder *holder)
{
	holder->n_refs++;
	return holder;
}

void holder_unref(struct holder *holder)
{
	if (!holder || --holder->n_refs > 0) {
		return;
	}
	peer_deinit(&holder->peer);
	user_unref(holder->user);
	realm_unref(holder->realm);
	free(holder->labels.program);
	free(holder->labels.name);
	free(holder->labels.script);
	free(holder->labels.arguments);
	free(holder->labels.executable);
	free(holder->labels.cgroup);
	free(holder);
}

bool holder_is_of(const struct holder *holder, const struct peer *peer)
{
	return peer->pid > 0 && holder->peer.pid == peer->pid && holder->peer.uid == peer->uid;
}

/*
 * After exec() the process lives, but the program that had the memory mapped does not. A socket can outlive the process
 * that made it, and others of its number are another process.
 */
static void end_other_images(struct holder *holder, int socket)
{
	struct holder *other;
	struct holder *spare;
	list_for_each_safe (other, spare, &holder->all->list, link) {
		if (other->state == HOLDER_DETACHED && holder_is_of(other, &holder->peer) &&
		    other->image && holder->image && other->image != holder->image &&
		    !peer_has_ended(&holder->peer, socket)) {
			holder_end(other);
		}
	}
}

void holder_note_changed(const struct holder *holder)
{
	if (holder->all->watch && holder->state != HOLDER_NEW && holder->state != HOLDER_ENDED) {
		holder->all->watch->holder(holder->all->watcher, holder);
	}
}

static bool is_noted(const struct holder *holder, const struct held *held)
{
	return holder->all->watch && held->kind != HELD_DRAFT && held->kind != HELD_SLEPT;
}

void holder_note(const struct holder *holder, const struct held *held)
{
	if (is_noted(holder, held)) {
		holder->all->watch->held(holder->all->watcher, holder, held);
	}
}

void holders_note_all(const struct holders *holders)
{
	const struct holder *holder;
	const struct mistake *mistake;
	list_for_each (mistake, &holders->mistakes.list, link) {
		holders->watch->mistake(holders->watcher, mistake);
	}
	list_for_each (holder, &holders->list, link) {
		holder_note_changed(holder);
		for (const struct held *held = holder->held; held; held = held->hh.next) {
			holder_note(holder, held);
			if (held->kind == HELD_DRAFT) {
				store_note_draft(holders->store, held->model);
			}
			sleeper_note(held);
		}
		sleeper_note_asleep(holder);
	}
}

int holder_attach(struct holder *holder, int socket, const struct holder_labels *labels,
                  uint64_t image, const uint8_t *key)
{
	holder->labels = *labels;
	holder->image = image;
	if (key) {
		memcpy(holder->key, key, sizeof(holder->key));
	} else if (getrandom(holder->key, sizeof(holder->key), GRND_NONBLOCK) !=
	           (ssize_t)sizeof(holder->key)) {
		return -EAGAIN;
	}
	end_other_images(holder, socket);
	if (holder->all->watch) {
		holder->started = peer_start_time(&holder->peer, socket);
	}
	holder_set_state(holder, HOLDER_ATTACHED);
	holder_enter_promises(holder);
	holder_note_changed(holder);
	return 0;
}

/* ---- without a connection -------------------------------------------------------------------- */

static void on_process_end(void *user)
{
	struct holder *holder = user;
	holder->has_process_ended = true;
	holder_end(holder);
}

static void stop_watch(struct holder *holder)
{
	process_watch_free(holder->watch);
	holder->watch = NULL;
}

/* Returns 0, or -errno: the process has ended, or cannot be watched. */
static int start_watch(struct holder *holder, int fd)
{
	cleanup_fd int pidfd = peer_open_process(&holder->peer, fd);
	if (pidfd < 0) {
		return pidfd;
	}
	int r = process_watch_new(holder->all->loop, pidfd, on_process_end, holder, &holder->watch);
	if (r == 0) {
		fd_steal(&pidfd);
	}
	return r;
}

bool holder_detach(struct holder *holder, int fd)
{
	if (holder->state != HOLDER_ATTACHED || holder->all->is_draining) {
		return false;
	}
	int r = start_watch(holder, fd);
	if (r < 0) {
		/* Only a process that is visible here is known to have ended. */
		holder->has_process_ended = r == -ESRCH && holder->peer.pid > 0;
		return false;
	}
	holder_set_state(holder, HOLDER_DETACHED);
	return true;
}

void holder_resume(struct holder *holder)
{
	stop_watch(holder);
	holder_set_state(holder, HOLDER_ATTACHED);
}

struct holder *holder_by_key(const struct holders *holders, const struct peer *peer,
                             const uint8_t *key)
{
	struct holder *holder;
	list_for_each (holder, &holders->list, link) {
		/* Only the process itself gets as far as the key. */
		if (holder->state != HOLDER_NEW && holder_is_of(holder, peer) &&
		    memcmp(holder->key, key, sizeof(holder->key)) == 0) {
			return holder;
		}
	}
	return NULL;
}

size_t holders_n_detached(const struct holders *holders, uid_t owner)
{
	struct holder *holder;
	size_t n = 0;
	list_for_each (holder, &holders->list, link) {
		n += holder->state == HOLDER_DETACHED && holder->peer.owner == owner;
	}
	return n;
}

static bool is_program(const struct holder *holder)
{
	return (holder->state == HOLDER_ATTACHED || holder->state == HOLDER_DETACHED) &&
	       !holder->only_looks;
}

uint32_t holders_n_programs(const struct holders *holders)
{
	const struct holder *holder;
	uint32_t n = 0;
	list_for_each (holder, &holders->list, link) {
		n += is_program(holder);
	}
	return n;
}

bool holder_has_program(const struct holder *holder)
{
	const struct holder *other;
	list_for_each (other, &holder->all->list, link) {
		if (is_program(other) && holder_is_of(other, &holder->peer)) {
			return true;
		}
	}
	return false;
}

void holders_drain(struct holders *holders)
{
	struct holder *holder;
	struct holder *spare;
	holders->is_draining = true;
	list_for_each_safe (holder, spare, &holders->list, link) {
		if (holder->state == HOLDER_DETACHED) {
			holder_end(holder);
		}
	}
}

struct holder *holder_by_id(const struct holders *holders, uint64_t id)
{
	struct holder *holder;
	list_for_each (holder, &holders->list, link) {
		if (holder->id == id) {
			return holder->state == HOLDER_NEW ? NULL : holder;
		}
	}
	return NULL;
}

/* ---- what it holds --------------------------------------------------------------------------- */

struct held *holder_find_any(const struct holder *holder, uint64_t id)
{
	struct held *held;
	HASH_FIND(hh, holder->held, &id, sizeof(id), held);
	return held;
}

struct held *holder_find(const struct holder *holder, enum held_kind kind, uint64_t id)
{
	struct held *held = holder_find_any(holder, id);
	return held && held->kind == kind ? held : NULL;
}

/* Add a thing as @as says. NULL: no memory. */
static struct held *add_as(struct holder *holder, const struct held *as, enum held_kind kind)
{
	struct held *held = calloc(1, sizeof(*held));
	if (!held) {
		return NULL;
	}
	held->id = as->id;
	held->kind = kind;
	held->request = as->request;
	held->ticket = as->ticket;
	held->was_chunk = as->was_chunk;
	held->was_known = as->was_known;
	held->origin = as->origin;
	held->was_alone = as->was_alone;
	HASH_ADD(hh, holder->held, id, sizeof(held->id), held);
	if (!hash_has(held)) {
		free(held);
		return NULL;
	}
	holder->n_held[kind]++;
	return held;
}

static struct held *add(struct holder *holder, uint64_t request, enum held_kind kind)
{
	const struct held as = {.id = ++holder->all->last_id, .request = request};
	return add_as(holder, &as, kind);
}

bool holder_pay_record(struct holder *holder, struct held *held)
{
	if (!held->record.tenant) {
		held->record = tenant_charge_manifest(holder_payer(holder));
	}
	return held->record.manifest_bytes > 0 ||
	       charge_grow_manifest(&held->record, HOLDER_RECORD_BYTES) == 0;
}

static void go_on_sharing(struct sharing_walk *walk)
{
	walk->at = walk->at->hh.next;
	walk->place = 0;
}

/* ---- who uses a block ------------------------------------------------------------------------ */

static void walk_to(struct holders *holders, struct list *at)
{
	bool is_end = at == &holders->list;
	holders->walk.at = at;
	holders->walk.held = is_end ? NULL : container_of(at, struct holder, link)->held;
}

void holders_begin_walk(struct holders *holders)
{
	walk_to(holders, holders->list.next);
}

static void leave_walk(const struct holder *holder)
{
	if (holder->all->walk.at == &holder->link) {
		walk_to(holder->all, holder->link.next);
	}
}

static bool is_of_block(const struct held *held, const struct block *block)
{
	return (held->kind == HELD_BLOCK && held->block == block) ||
	       (held->kind == HELD_MODEL && held->model->withdrawn_block == block->id);
}

/* Returns whether the things that are left of a holder, or as many as there are steps for, use the block. */
static bool walk_held(struct holder_walk *walk, const struct block *block, size_t *n_steps)
{
	while (*n_steps > 0 && walk->held) {
		const struct held *held = walk->held;
		walk->held = held->hh.next;
		--*n_steps;
		if (is_of_block(held, block)) {
			return true;
		}
	}
	return false;
}

bool holders_walk(struct holders *holders, const struct block *block, size_t *n_steps,
                  holder_fn on_user, void *user)
{
	struct holder_walk *walk = &holders->walk;
	while (*n_steps > 0 && walk->at != &holders->list) {
		const struct holder *holder = container_of(walk->at, struct holder, link);
		--*n_steps;
		if (walk_held(walk, block, n_steps)) {
			on_user(user, holder);
			walk->held = NULL;
		}
		if (!walk->held) {
			walk_to(holders, walk->at->next);
		}
	}
	return walk->at == &holders->list;
}

/* Whether others may open @held, but not after a restart. */
static bool is_unkept(const struct held *held)
{
	return held->kind == HELD_CHUNK && held->ticket && !held->is_parked;
}

/* @held goes, or has other blocks from now on. */
static void leave_sharing_walk(struct holder *holder, const struct held *held)
{
	if (holder->sharing_walk.at == held) {
		go_on_sharing(&holder->sharing_walk);
	}
}

static void drop(struct holder *holder, struct held *held)
{
	leave_sharing_walk(holder, held);
	if (holder->all->walk.held == held) {
		holder->all->walk.held = held->hh.next;
	}
	if (is_noted(holder, held)) {
		holder->all->watch->held_gone(holder->all->watcher, held);
	}
	sleeper_forget(held);
	will_void_of(held);
	HASH_DEL(holder->held, held);
	holder->n_held[held->kind]--;
	holder->all->n_unkept -= is_unkept(held);
	charge_refund(&held->record);
	user_refund_all(&held->place);
	free(held);
}

/* A model or a block, which is paid for. NULL: no memory, or the tenant cannot. */
static struct held *add_open(struct holder *holder, uint64_t request, enum held_kind kind)
{
	struct held *held = add(holder, request, kind);
	if (held && !holder_pay_record(holder, held)) {
		drop(holder, held);
		return NULL;
	}
	return held;
}

/* ---- counting ---------------------------------------------------------------------------------- */

static void count_private(struct holder *holder, const struct location *at, uint64_t bytes)
{
	holder->at[at->slot].reserved_bytes += bytes;
	promise_use(holder->at[at->slot].promise, bytes);
}

/* settle() follows when they are free. */
static void uncount_private(struct holder *holder, const struct location *at, uint64_t bytes)
{
	holder->at[at->slot].reserved_bytes -= bytes;
	promise_unuse(holder->at[at->slot].promise, bytes);
}

static void settle(const struct holder *holder, const struct location *at)
{
	promise_settle(holder->at[at->slot].promise);
}

/* ---- getting and giving ---------------------------------------------------------------------- */

static void put_chunk(struct holder *holder, struct held *held, struct chunk *chunk)
{
	count_private(holder, chunk->at, chunk->bytes);
	chunk_hand_over(chunk);
	chunk_move(&held->chunk, chunk);
}

int holder_add_chunks(struct holder *holder, uint64_t request, struct chunk *chunks,
                      size_t n_chunks, struct held **held_out)
{
	for (size_t i = 0; i < n_chunks; i++) {
		held_out[i] = add(holder, request, HELD_CHUNK);
		if (!held_out[i]) {
			while (i-- > 0) {
				drop(holder, held_out[i]);
			}
			return -ENOMEM;
		}
	}
	for (size_t i = 0; i < n_chunks; i++) {
		put_chunk(holder, held_out[i], &chunks[i]);
		holder_note(holder, held_out[i]);
	}
	return 0;
}

static void count_shared(struct holder *holder, struct location *at, uint64_t bytes)
{
	holder->at[at->slot].shared_bytes += bytes;
	at->logical_block_bytes += bytes;
	promise_use(holder->at[at->slot].promise, bytes);
}

static void uncount_shared(struct holder *holder, struct location *at, uint64_t bytes)
{
	holder->at[at->slot].shared_bytes -= bytes;
	at->logical_block_bytes -= bytes;
	promise_unuse(holder->at[at->slot].promise, bytes);
}

static size_t places_of(const struct model *model)
{
	return model->n_blocks + 1;
}

static void put_model(struct holder *holder, struct held *held, struct model *model)
{
	held->model = model;
	holder->n_places += places_of(model);
	for (size_t i = 0; i < model->n_blocks; i++) {
		model->blocks[i].block->n_mappings++;
	}
	count_shared(holder, &model->device->at, model->span_bytes);
}

uint64_t holder_add_model(struct holder *holder, uint64_t request, struct model *model)
{
	bool is_full = holder->n_places + places_of(model) > HOLDER_MAX_PLACES;
	struct held *held = is_full ? NULL : add_open(holder, request, HELD_MODEL);
	if (!held) {
		return 0;
	}
	put_model(holder, held, model);
	holder_note(holder, held);
	return held->id;
}

struct held *holder_add_draft(struct holder *holder, uint64_t request, struct model *draft)
{
	struct held *held = add(holder, request, HELD_DRAFT);
	if (held) {
		held->model = draft;
	}
	return held;
}

void holder_forget_draft(struct holder *holder, struct held *held)
{
	drop(holder, held);
}

/* The holder that found the block has set a chunk free, now or when that slept: the reserve has its part of that. */
static void count_alone(struct held *held, struct block *block)
{
	held->is_counted = held->was_alone && held->was_known;
	if (held->is_counted) {
		store_add_alone(block);
		reserve_keep(block->chunk.at, block->chunk.bytes);
	}
}

static void put_block(struct holder *holder, struct held *held, struct block *block)
{
	held->block = block;
	block->n_mappings++;
	count_shared(holder, block->chunk.at, block->chunk.bytes);
	count_alone(held, block);
}

static struct held *copy_of(const struct holder *holder, const struct held *block)
{
	struct held *chunk = block->copy ? holder_find(holder, HELD_CHUNK, block->copy) : NULL;
	return chunk && chunk->chunk.unsealing_bytes > 0 ? chunk : NULL;
}

bool holder_may_unseal(const struct holder *holder, uint64_t id, const struct location *at,
                       uint64_t bytes)
{
	const struct held *held = holder_find(holder, HELD_BLOCK, id);
	return held && held->was_alone && !held->own && held->block->chunk.at == at &&
	       held->block->chunk.bytes >= bytes && (held->was_known || held->block->was_shared) &&
	       !copy_of(holder, held);
}

void holder_note_copy(struct holder *holder, uint64_t id, const struct held *chunk)
{
	struct held *block = holder_find(holder, HELD_BLOCK, id);
	if (block && chunk->chunk.unsealing_bytes > 0) {
		block->copy = chunk->id;
	}
}

/*
 * The private copy that the reserve gave stays: it is a chunk like any other. If nobody has the block any more, its memory is
 * the reserve's in exchange.
 */
static void leave_for_copy(struct holder *holder, struct held *copy, struct block *block)
{
	struct location *at = block->chunk.at;
	copy->chunk.unsealing_bytes = 0;
	uint64_t bytes = store_leave_block(holder->all->store, block, holder->tenant->priority);
	reserve_keep(at, bytes);
}

uint64_t holder_add_block(struct holder *holder, uint64_t request, struct block *block)
{
	struct held *held = add_open(holder, request, HELD_BLOCK);
	if (!held) {
		return 0;
	}
	put_block(holder, held, block);
	holder_note(holder, held);
	return held->id;
}

/* If the tenant's quota has no room for it, whoever paid for the block until now goes on to pay for the chunk. */
static bool keep_own(struct holder *holder, struct held *held, struct chunk *own)
{
	held->own = own ? calloc(1, sizeof(*held->own)) : NULL;
	if (held->own) {
		chunk_move(held->own, own);
		charge_move(&held->own->charge, holder_payer(holder));
	}
	return held->own != NULL;
}

static void release_own(struct holder *holder, struct held *held)
{
	const struct location *at = held->own->at;
	uncount_private(holder, at, held->own->bytes);
	chunk_release(held->own);
	free(held->own);
	held->own = NULL;
	settle(holder, at);
}

void holder_drop_own(struct holder *holder, struct held *held)
{
	release_own(holder, held);
	put_block(holder, held, held->block);
}

void holder_turn_block(struct holder *holder, struct held *held, struct block *block,
                       bool was_known, struct chunk *own)
{
	struct location *at = block->chunk.at;
	will_void_of(held);
	holder->n_held[HELD_CHUNK]--;
	holder->n_held[HELD_BLOCK]++;
	held->kind = HELD_BLOCK;
	held->admit = NULL;
	held->was_chunk = true;
	held->was_known = was_known;
	held->block = block;
	if (!keep_own(holder, held, own)) {
		uncount_private(holder, at, block->chunk.bytes);
		put_block(holder, held, block);
	}
}

/* Short, since there is little room for names. */
void holder_parked_name(uint64_t id, char name[HOLDER_PARKED_BYTES])
{
	snprintf(name, HOLDER_PARKED_BYTES, "c%" PRIx64, id);
}

/* Named memory is parked if there is an fd of it, and is so once. */
static bool is_to_be_parked(const struct holder *holder, const struct held *held)
{
	return holder->all->store->parking && !held->is_parked && held->chunk.fd >= 0;
}

bool holder_may_share(const struct holder *holder, struct held *const *chunks, size_t n_chunks)
{
	size_t n_orders = 0;
	for (size_t i = 0; i < n_chunks; i++) {
		n_orders += is_to_be_parked(holder, chunks[i]);
	}
	return orders_may(&holder->all->orders, holder->user, n_orders);
}

/* Returns the number of the order; 0: it is not parked. */
static uint64_t park(struct holder *holder, struct held *held)
{
	char name[HOLDER_PARKED_BYTES];
	struct store *store = holder->all->store;
	if (!store_charge_place(store, holder->user, &held->place)) {
		return 0;
	}
	holder_parked_name(held->id, name);
	uint64_t number = parking_put(store->parking, name, held->chunk.fd);
	held->is_parked = number != 0;
	if (!held->is_parked) {
		user_refund_all(&held->place);
	}
	return number;
}

bool holder_share_chunks(struct holder *holder, struct held *const *chunks, size_t n_chunks,
                         uint64_t ticket)
{
	uint64_t last = 0;
	uint64_t n_orders = 0;
	bool are_kept = true;
	for (size_t i = 0; i < n_chunks; i++) {
		struct held *held = chunks[i];
		holder->all->n_unkept -= is_unkept(held);
		uint64_t number = is_to_be_parked(holder, held) ? park(holder, held) : 0;
		held->ticket = ticket;
		will_void_of(held);
		holder->all->n_unkept += is_unkept(held);
		are_kept = are_kept && held->is_parked;
		last = number ? number : last;
		n_orders += number != 0;
		holder_note(holder, held);
	}
	orders_count(&holder->all->orders, holder->all->store->parking, holder->user, last,
	             n_orders);
	return are_kept;
}

/* The chunk of @held is about to be released. */
static void unpark(const struct holder *holder, struct held *held)
{
	char name[HOLDER_PARKED_BYTES];
	struct parking *parking = holder->all->store->parking;
	user_refund_all(&held->place);
	if (parking && held->is_parked) {
		holder_parked_name(held->id, name);
		held->chunk.removed = parking_remove(parking, name);
		orders_count(&holder->all->orders, parking, holder->user, held->chunk.removed, 1);
		store_use_room(holder->all->store);
	}
}

static void set_kind(struct holder *holder, struct held *held, enum held_kind kind)
{
	holder->n_held[held->kind]--;
	holder->n_held[kind]++;
	held->kind = kind;
}

/* ---- readers ----------------------------------------------------------------------------------- */

struct held *holder_reading_of(const struct held *source, const struct holder *holder)
{
	struct held *reader = source->readers;
	while (reader && reader->owner != holder) {
		reader = reader->next_reader;
	}
	return reader;
}

static void begin_reading(struct holder *holder, struct held *held, struct holder *owner,
                          struct held *source)
{
	struct held **end = &source->readers;
	while (*end) {
		end = &(*end)->next_reader;
	}
	*end = held;
	held->chunk = (struct chunk){.at = NULL, .fd = -1};
	held->owner = holder;
	held->source = source;
	source->owner = owner;
	count_shared(holder, source->chunk.at, source->chunk.bytes);
}

struct held *holder_add_reading(struct holder *holder, uint64_t request, struct holder *owner,
                                struct held *source)
{
	struct held *held = add_open(holder, request, HELD_READ);
	if (held) {
		begin_reading(holder, held, owner, source);
		holder_note(holder, held);
	}
	return held;
}

/* Out of the list; the source is as it was. */
static void leave_source(struct held *held)
{
	struct held **at = &held->source->readers;
	while (*at != held) {
		at = &(*at)->next_reader;
	}
	*at = held->next_reader;
	held->next_reader = NULL;
	uncount_shared(held->owner, held->source->chunk.at, held->source->chunk.bytes);
}

static void release_reading(struct holder *holder, struct held *held)
{
	const struct location *at = held->source->chunk.at;
	leave_source(held);
	held->source = NULL;
	settle(holder, at);
}

/* The heir pays, whatever its limits are: it has the memory mapped, and nobody can take that away. */
static void pay(const struct holder *heir, struct chunk *chunk)
{
	struct charge charge = tenant_charge_adopted(holder_payer(heir), chunk->at->slot,
	                                             chunk->bytes, chunk->charge.n_fds, 0);
	charge_refund(&chunk->charge);
	chunk->charge = charge;
}

/* The chunk of @held, which has none afterwards, is that of @heir, who has read it; the others read it there. */
static void pass_on(struct holder *holder, struct held *held, struct held *heir)
{
	const struct location *at = held->chunk.at;
	struct chunk chunk;
	unpark(holder, held);
	if (held->bed) {
		sleeper_leave_bed(held, NULL);
	}
	uncount_private(holder, at, held->chunk.bytes);
	leave_source(heir);
	chunk_move(&chunk, &held->chunk);
	pay(heir->owner, &chunk);
	charge_refund(&heir->record);
	set_kind(heir->owner, heir, HELD_CHUNK);
	heir->source = NULL;
	put_chunk(heir->owner, heir, &chunk);
	heir->readers = ptr_steal(held->readers);
	holder_note(heir->owner, heir);
	for (struct held *other = heir->readers; other; other = other->next_reader) {
		other->source = heir;
		holder_note(other->owner, other);
	}
	settle(holder, at);
	settle(heir->owner, at);
}

void holder_hand_over(struct holder *holder, struct held *held, struct held *reader)
{
	pass_on(holder, held, reader);
	drop(holder, held);
}

static void release_chunk(struct holder *holder, struct held *held)
{
	if (held->readers) {
		pass_on(holder, held, held->readers);
		return;
	}
	struct chunk *chunk = held->admit ? &held->admit->chunk : &held->chunk;
	const struct location *at = chunk->at;
	unpark(holder, held);
	uncount_private(holder, at, chunk->bytes);
	if (held->admit) {
		admit_cancel(held->admit);
	} else if (held->bed) {
		sleeper_leave_bed(held, chunk);
	} else {
		chunk_release(chunk);
	}
	settle(holder, at);
}

void holder_leave_chunk(struct holder *holder, struct held *held, struct chunk *chunk_out)
{
	const struct location *at = held->chunk.at;
	unpark(holder, held);
	uncount_private(holder, at, held->chunk.bytes);
	chunk_move(chunk_out, &held->chunk);
	drop(holder, held);
	settle(holder, at);
}

static void release_block(struct holder *holder, struct held *held)
{
	struct block *block = held->block;
	struct held *copy = copy_of(holder, held);
	const struct location *at = block->chunk.at;
	if (held->is_counted) {
		held->is_counted = false;
		store_remove_alone(block);
	}
	held->copy = 0;
	if (held->own) {
		release_own(holder, held);
	} else {
		block->n_mappings--;
		uncount_shared(holder, block->chunk.at, block->chunk.bytes);
	}
	if (held->bed) {
		sleeper_leave_bed(held, NULL);
	}
	if (copy) {
		leave_for_copy(holder, copy, block);
	} else {
		store_unuse_block(holder->all->store, block, holder->tenant->priority);
	}
	settle(holder, at);
}

static void release_model(struct holder *holder, struct held *held)
{
	struct model *model = held->model;
	const struct location *at = &model->device->at;
	holder->n_places -= places_of(model);
	for (size_t i = 0; i < model->n_blocks; i++) {
		model->blocks[i].block->n_mappings--;
	}
	uncount_shared(holder, &model->device->at, model->span_bytes);
	if (held->bed) {
		sleeper_leave_bed(held, NULL);
	}
	store_unhold_model(holder->all->store, model, holder->tenant->priority);
	settle(holder, at);
}

void holder_put_to_sleep(struct holder *holder, struct held *held)
{
	if (is_noted(holder, held)) {
		holder->all->watch->held_gone(holder->all->watcher, held);
	}
	leave_sharing_walk(holder, held);
	will_void_of(held);
	if (held->kind == HELD_CHUNK) {
		release_chunk(holder, held);
	} else {
		(held->kind == HELD_MODEL ? release_model : release_block)(holder, held);
		held->chunk = (struct chunk){.at = NULL, .fd = -1};
	}
	set_kind(holder, held, HELD_SLEPT);
}

void holder_wake_chunk(struct holder *holder, struct held *held, struct chunk *chunk)
{
	set_kind(holder, held, HELD_CHUNK);
	put_chunk(holder, held, chunk);
	holder_note(holder, held);
}

void holder_wake_block(struct holder *holder, struct held *held, struct block *block)
{
	set_kind(holder, held, HELD_BLOCK);
	put_block(holder, held, block);
	/* Whoever had made the block, not found it, gave way to the others' part of the reserve when he fell asleep. */
	if (held->was_alone && !held->is_counted) {
		reserve_keep(block->chunk.at, block->chunk.bytes);
	}
	holder_note(holder, held);
}

void holder_wake_model(struct holder *holder, struct held *held, struct model *model)
{
	set_kind(holder, held, HELD_MODEL);
	put_model(holder, held, model);
	holder_note(holder, held);
}

void holder_release(struct holder *holder, struct held *held)
{
	switch (held->kind) {
	case HELD_CHUNK:
		release_chunk(holder, held);
		break;
	case HELD_MODEL:
		release_model(holder, held);
		break;
	case HELD_DRAFT:
		store_drop_model(holder->all->store, held->model);
		break;
	case HELD_READ:
		release_reading(holder, held);
		break;
	case HELD_SLEPT:
		break;
	default:
		release_block(holder, held);
	}
	drop(holder, held);
}

static int by_number(const void *a, const void *b)
{
	uint64_t one = *(const uint64_t *)a;
	uint64_t other = *(const uint64_t *)b;
	return (one > other) - (one < other);
}

/* One request brought all chunks of an adopted will. The client does not know of them, so it has not written to them. */
static void return_adopted(struct holder *holder, const uint64_t *sorted, size_t n_requests)
{
	struct will *will;
	struct will *spare;
	list_for_each_safe (will, spare, &holder->wills, link) {
		if (bsearch(&will->chunks[0]->request, sorted, n_requests, sizeof(sorted[0]),
		            by_number)) {
			kept_steps_keep(holder->all->kept, holder, will);
		}
	}
}

/* One walk for all requests, because the holder may have a million things. */
void holder_release_unanswered(struct holder *holder, const uint64_t *requests, size_t n_requests)
{
	uint64_t sorted[GLAKE_MAX_UNANSWERED];
	struct held *held;
	struct held *spare;
	if (n_requests == 0) {
		return;
	}
	assert(n_requests <= n_elements(sorted));
	memcpy(sorted, requests, n_requests * sizeof(sorted[0]));
	qsort(sorted, n_requests, sizeof(sorted[0]), by_number);
	return_adopted(holder, sorted, n_requests);
	HASH_ITER(hh, holder->held, held, spare)
	{
		if (bsearch(&held->request, sorted, n_requests, sizeof(sorted[0]), by_number)) {
			holder_release(holder, held);
		}
	}
}

void holder_release_ids(struct holder *holder, const uint64_t *ids, size_t n_ids)
{
	struct held *held;
	for (size_t i = 0; i < n_ids; i++) {
		HASH_FIND(hh, holder->held, &ids[i], sizeof(ids[i]), held);
		if (held) {
			holder_release(holder, held);
		}
	}
}

/* A chunk of the holder alone is sealed, and saves no copy. */
static void add_own(struct holder_sharing *sharing, const struct chunk *own)
{
	sharing->part_bytes += (double)own->bytes;
	sharing->sealed_bytes += own->bytes;
}

static void add_sharing(struct holder *holder, const struct block *block, bool is_sealed)
{
	struct holder_sharing *sharing = &holder->sharing_walk.so_far;
	uint64_t n_bytes = block->chunk.bytes;
	double part_bytes = (double)n_bytes / block->n_mappings;
	sharing->part_bytes += part_bytes;
	holder->at[block->chunk.at->slot].part_so_far += part_bytes;
	sharing->sealed_bytes += is_sealed ? n_bytes : 0;
	sharing->sealed_common_bytes += is_sealed && block->n_mappings > 1 ? n_bytes : 0;
}

/* Returns whether all of the thing was looked at. */
static bool look_at_held(struct holder *holder, size_t *n_steps)
{
	struct sharing_walk *walk = &holder->sharing_walk;
	const struct held *held = walk->at;
	size_t n_blocks = held->kind == HELD_MODEL ? held->model->n_blocks : 0;
	--*n_steps;
	if (held->own) {
		add_own(&walk->so_far, held->own);
	} else if (held->kind == HELD_BLOCK) {
		add_sharing(holder, held->block, held->was_chunk);
	}
	while (*n_steps > 0 && walk->place < n_blocks) {
		add_sharing(holder, held->model->blocks[walk->place].block, false);
		walk->place++;
		--*n_steps;
	}
	return walk->place >= n_blocks;
}

static void begin_sharing_walk(struct holder *holder)
{
	holder->sharing_walk = (struct sharing_walk){.at = holder->held};
	for (uint32_t i = 0; i < holder->all->n_locations; i++) {
		holder->at[i].part_so_far = 0;
	}
}

static void end_sharing_walk(struct holder *holder)
{
	holder->sharing = holder->sharing_walk.so_far;
	for (uint32_t i = 0; i < holder->all->n_locations; i++) {
		holder->at[i].part_bytes = holder->at[i].part_so_far;
	}
}

bool holder_look_at_sharing(struct holder *holder, size_t *n_steps)
{
	struct sharing_walk *walk = &holder->sharing_walk;
	if (!walk->at) {
		begin_sharing_walk(holder);
	}
	while (walk->at && *n_steps > 0) {
		if (look_at_held(holder, n_steps)) {
			go_on_sharing(walk);
		}
	}
	if (!walk->at) {
		end_sharing_walk(holder);
	}
	return !walk->at;
}

/* ---- of an earlier glaked -------------------------------------------------------------------- */

struct holder *holder_adopt(struct holders *holders, uint64_t id, struct peer *peer, int pidfd,
                            struct realm *realm, struct tenant *tenant)
{
	struct holder *holder = holder_new(holders);
	if (!holder) {
		peer_deinit(peer);
		return NULL;
	}
	holder->id = id;
	holder->peer = *peer;
	*peer = (struct peer){0};
	holder->user = user_ref(user_get(holder->peer.owner));
	holder->realm = realm_ref(realm);
	holder->tenant = tenant;
	tenant_session_adopt(tenant);
	int r = process_watch_new(holders->loop, pidfd, on_process_end, holder, &holder->watch);
	if (r == 0) {
		holder_set_state(holder, HOLDER_DETACHED);
	} else {
		holder_end(holder);
	}
	holder_unref(holder);
	return r == 0 ? holder : NULL;
}

int holder_adopt_chunk(struct holder *holder, const struct held *as, struct chunk *chunk)
{
	struct held *held = add_as(holder, as, HELD_CHUNK);
	if (held) {
		held->is_parked = !chunk->is_unparked;
		if (held->is_parked) {
			user_charge_anyway(&held->place, &holder->all->store->places, holder->user,
			                   1);
		}
		holder->all->n_unkept += is_unkept(held);
		put_chunk(holder, held, chunk);
	}
	return held ? 0 : -ENOMEM;
}

struct held *holders_find_origin(const struct holders *holders, uint64_t origin,
                                 struct holder **owner_out)
{
	struct holder *holder;
	list_for_each (holder, &holders->list, link) {
		for (struct held *held = holder->held; held; held = held->hh.next) {
			if (held->kind == HELD_CHUNK && held->origin == origin) {
				*owner_out = holder;
				return held;
			}
		}
	}
	return NULL;
}

/* Whatever the limit is. */
static struct held *adopt_open(struct holder *holder, const struct held *as, enum held_kind kind)
{
	struct held *held = add_as(holder, as, kind);
	if (held) {
		held->record = tenant_charge_adopted(holder_payer(holder), 0, 0, 0,
		                                     HOLDER_RECORD_BYTES);
	}
	return held;
}

int holder_adopt_model(struct holder *holder, const struct held *as, struct model *model)
{
	struct held *held = adopt_open(holder, as, HELD_MODEL);
	if (held) {
		store_hold_adopted(holder->all->store, model);
		put_model(holder, held, model);
	}
	return held ? 0 : -ENOMEM;
}

int holder_adopt_block(struct holder *holder, const struct held *as, struct block *block)
{
	struct held *held = adopt_open(holder, as, HELD_BLOCK);
	if (held) {
		store_use_adopted(holder->all->store, block);
		put_block(holder, held, block);
	}
	return held ? 0 : -ENOMEM;
}

int holder_adopt_reading(struct holder *holder, const struct held *as, struct holder *owner,
                         struct held *source)
{
	struct held *held = adopt_open(holder, as, HELD_READ);
	if (held) {
		begin_reading(holder, held, owner, source);
	}
	return held ? 0 : -ENOMEM;
}

struct held *holder_adopt_slept(struct holder *holder, const struct held *as, bool is_open)
{
	struct held *held = is_open ? adopt_open(holder, as, HELD_SLEPT)
	                            : add_as(holder, as, HELD_SLEPT);
	if (held) {
		held->chunk = (struct chunk){.fd = -1};
	}
	return held;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* A location's chunks go to its worker together. */
static void release_chunks(struct holder *holder, const struct location *at)
{
	enum { BATCH = 64 };
	struct chunk chunks[BATCH];
	struct held *held;
	struct held *spare;
	size_t n = 0;
	HASH_ITER(hh, holder->held, held, spare)
	{
		if (held->kind != HELD_CHUNK || held->chunk.at != at || held->bed ||
		    held->readers) {
			continue;
		}
		uncount_private(holder, at, held->chunk.bytes);
		unpark(holder, held);
		chunk_move(&chunks[n++], &held->chunk);
		drop(holder, held);
		if (n == BATCH) {
			chunk_release_all(chunks, n);
			n = 0;
		}
	}
	chunk_release_all(chunks, n);
	settle(holder, at);
}

static void release_all(struct holder *holder)
{
	struct held *held;
	struct held *spare;
	for (uint32_t i = 0; i < holder->all->n_locations; i++) {
		release_chunks(holder, holder->all->locations[i]);
	}
	HASH_ITER(hh, holder->held, held, spare)
	{
		holder_release(holder, held);
	}
	for (uint32_t i = 0; i < N_HELD_KINDS; i++) {
		assert(holder->n_held[i] == 0);
	}
	for (uint32_t i = 0; i < holder->all->n_locations; i++) {
		assert(holder->at[i].reserved_bytes == 0 && holder->at[i].shared_bytes == 0);
	}
}

void holder_end(struct holder *holder)
{
	if (holder->state == HOLDER_ENDED) {
		return;
	}
	if (holder->all->watch && holder->state != HOLDER_NEW) {
		holder->all->watch->holder_gone(holder->all->watcher, holder);
	}
	refused_end(&holder->all->refused, &holder->refused);
	holder_set_state(holder, HOLDER_ENDED);
	stop_watch(holder);
	leave_walk(holder);
	list_remove(&holder->link);
	holder->all->n--;
	sleeper_end(holder);
	if (holder->has_process_ended) {
		kept_steps_inherit(holder->all->kept, holder);
	}
	release_all(holder);
	holder_leave_promises(holder);
	if (holder->tenant) {
		tenant_session_leave(holder->tenant);
		holder->tenant = NULL;
	}
	if (holder->refusal) {
		holder->all->n_refused--;
	}
	holder_unref(holder);
}
