/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program gives up its GPU memory once it sleeps, so a copy that is missing or lost afterwards is lost data. A batch
 * therefore succeeds as a whole: all memory that one request names gets copies, or none does. glaked may be restarted while the
 * program sleeps, so the batch first waits until all its copies are parked; nobody hears of them before.
 *
 * The mover may read the memory for longer than anybody wants the copy, and memory that is released under it would be somebody
 * else's. Until the mover is done, a bed keeps the memory, also when its holder has ended. A bed has a transfer for each copy:
 * a model has one of each block.
 */
#include "daemon/holders/sleeper.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cleanup.h"

#define NOT_KEPT \
	"the fd store is full, or has its share of this user: a restart of glaked would lose " \
	"what sleeps"

struct bed {
	struct held *held;    /* NULL: its holder has given it up */
	struct chunk chunk;   /* taken over once held is NULL */
	struct charge record; /* of a model: for glaked's memory */
	size_t first;         /* of its transfers */
	size_t n_transfers;
	size_t n_left; /* transfers that the mover may have */
};

struct transfer {
	struct copy_order order;
	struct sleep_batch *batch;
	struct bed *bed;
	bool is_parked;
};

struct sleep_batch {
	struct holder *holder; /* borrowed; NULL: it is over */
	const struct sleep_context *context;
	struct sleep_batch **self; /* the caller's pointer, cleared at the end */
	sleep_done_fn done;
	void *user;
	uint64_t began_ns;
	struct parking_wait parking; /* all are there: until all are parked */
	size_t n_copied;
	size_t n_left;  /* transfers that the mover may have */
	size_t n_stays; /* functions under way that use it */
	size_t n_beds;
	size_t n_transfers;
	struct transfer *transfers; /* owned, as the next: by bed */
	struct copy **copies;       /* by transfer: held, until the batch is over; or NULL */
	struct bed beds[];
};

/* ---- the end ---------------------------------------------------------------------------------- */

static void keep(struct sleep_batch *batch)
{
	batch->n_stays++;
}

static void free_batch(struct sleep_batch *batch)
{
	free(batch->transfers);
	free(batch->copies);
	free(batch);
}

static void let(struct sleep_batch *batch)
{
	if (--batch->n_stays == 0 && batch->n_left == 0 && !batch->holder) {
		free_batch(batch);
	}
}

/* Nobody wants the batch any more. Copies that no sleeper took over are let go. */
static void leave(struct sleep_batch *batch)
{
	batch->holder = NULL;
	list_remove(&batch->parking.link);
	if (batch->self) {
		*batch->self = NULL;
	}
	for (size_t i = 0; i < batch->n_transfers; i++) {
		struct copy *copy = ptr_steal(batch->copies[i]);
		if (copy && batch->transfers[i].is_parked) {
			copies_unpark(batch->context->copies, copy);
		}
		if (copy) {
			copies_let(batch->context->copies, copy);
		}
	}
	for (size_t i = 0; i < batch->n_beds; i++) {
		charge_refund(&batch->beds[i].record);
	}
}

static void cancel_orders(struct sleep_batch *batch)
{
	for (size_t i = 0; i < batch->n_transfers; i++) {
		copies_cancel(batch->context->copies, &batch->transfers[i].order);
	}
}

static void fail(struct sleep_batch *batch, enum status status, const char *error)
{
	char text[SLEEP_ERROR_BYTES];
	snprintf(text, sizeof(text), "%s", error);
	keep(batch);
	leave(batch);
	cancel_orders(batch);
	batch->done(batch->user, status, text);
	let(batch);
}

void sleep_batch_cancel(struct sleep_batch *batch)
{
	if (batch) {
		keep(batch);
		leave(batch);
		cancel_orders(batch);
		let(batch);
	}
}

static struct location *location_of(const struct held *held)
{
	return held->kind == HELD_MODEL   ? &held->model->device->at
	       : held->kind == HELD_BLOCK ? held->block->chunk.at
	                                  : held->chunk.at;
}

/* Give the copies of a bed to the sleeper. False: no memory. */
static bool hand_over_bed(struct sleep_batch *batch, struct bed *bed, struct sleeper *sleeper)
{
	const struct held *held = bed->held;
	bool is_model = held->kind == HELD_MODEL;
	const struct slept_from from = {.kind = held->kind,
	                                .at = location_of(held),
	                                .model = is_model ? held->model->id : 0,
	                                .name = is_model ? held->model->name : NULL,
	                                .record = bed->record,
	                                .copies = &batch->copies[bed->first],
	                                .n_copies = bed->n_transfers};
	if (!sleeper_add(sleeper, bed->held, &from)) {
		return false;
	}
	bed->record = (struct charge){.tenant = NULL};
	memset(&batch->copies[bed->first], 0, bed->n_transfers * sizeof(batch->copies[0]));
	return true;
}

/* Hand the beds over to the sleeper. False: no memory. */
static bool hand_over(struct sleep_batch *batch)
{
	struct sleeper *sleeper = sleeper_of(batch->holder, batch->context);
	for (size_t i = 0; sleeper && i < batch->n_beds; i++) {
		struct bed *bed = &batch->beds[i];
		if (bed->held && !hand_over_bed(batch, bed, sleeper)) {
			return false;
		}
	}
	if (sleeper) {
		sleeper->copy_ns += uv_hrtime() - batch->began_ns;
		sleeper_free_if_over(sleeper);
	}
	return sleeper != NULL;
}

static void succeed(struct sleep_batch *batch)
{
	if (!hand_over(batch)) {
		fail(batch, STATUS_NO_HOST_MEMORY, "glaked is out of host memory");
		return;
	}
	keep(batch);
	leave(batch);
	batch->done(batch->user, STATUS_OK, "");
	let(batch);
}

/* ---- for the next glaked ---------------------------------------------------------------------- */

static void on_parked(struct parking_wait *wait)
{
	struct sleep_batch *batch = container_of(wait, struct sleep_batch, parking);
	const struct parking *parking = batch->holder->all->store->parking;
	if (parking && parking_is_lost(parking)) {
		fail(batch, STATUS_NO_FDS, NOT_KEPT);
	} else {
		succeed(batch);
	}
}

/* Returns the last number that has not passed, as far as known; or 0. */
static uint64_t last_number(const struct sleep_batch *batch)
{
	uint64_t last = 0;
	for (size_t i = 0; i < batch->n_transfers; i++) {
		uint64_t number = batch->copies[i] ? copies_unparked(batch->copies[i]) : 0;
		last = number > last ? number : last;
	}
	return last;
}

/* Park all copies. False: the fd store has no room for some. */
static bool park_all(struct sleep_batch *batch)
{
	for (size_t i = 0; i < batch->n_transfers; i++) {
		struct transfer *transfer = &batch->transfers[i];
		transfer->is_parked = copies_park(batch->context->copies, batch->copies[i],
		                                  batch->holder->user) == 0;
		if (!transfer->is_parked) {
			return false;
		}
	}
	return true;
}

static void park(struct sleep_batch *batch)
{
	struct holders *all = batch->holder->all;
	struct parking *parking = all->store->parking;
	uint64_t before = parking ? parking_pending(parking) : 0;
	bool is_good = park_all(batch);
	uint64_t number = last_number(batch);
	if (parking && number > before) {
		orders_count(&all->orders, parking, batch->holder->user, number, 1);
	}
	if (!is_good) {
		fail(batch, STATUS_NO_FDS, NOT_KEPT);
	} else if (parking && parking_pending(parking) && number) {
		parking_await(parking, &batch->parking, number, on_parked);
	} else {
		succeed(batch);
	}
}

/* ---- orders ----------------------------------------------------------------------------------- */

static void on_copied(struct copy_order *order, struct copy *copy, enum status status,
                      const char *error)
{
	struct transfer *transfer = container_of(order, struct transfer, order);
	struct sleep_batch *batch = transfer->batch;
	batch->copies[transfer - batch->transfers] = copy;
	if (!copy) {
		fail(batch, status, error);
	} else if (++batch->n_copied == batch->n_transfers) {
		park(batch);
	}
}

static void on_gone(struct copy_order *order)
{
	struct transfer *transfer = container_of(order, struct transfer, order);
	struct bed *bed = transfer->bed;
	struct sleep_batch *batch = transfer->batch;
	copies_forget(&order->chunk.past);
	if (--bed->n_left == 0) {
		if (bed->held) {
			bed->held->bed = NULL;
		}
		chunk_release(&bed->chunk);
	}
	keep(batch);
	batch->n_left--;
	let(batch);
}

void sleeper_leave_bed(struct held *held, struct chunk *chunk)
{
	struct bed *bed = held->bed;
	held->bed = NULL;
	bed->held = NULL;
	if (chunk) {
		chunk_move(&bed->chunk, chunk);
	}
}

/* ---- what can have a copy --------------------------------------------------------------------- */

static const char *check_chunk(const struct held *held)
{
	return held->admit    ? "is being published"
	       : held->ticket ? "is named for other processes"
	       : held->chunk.is_unparked
	               ? "has no fd since glaked was restarted: the program sleeps no more"
	       : held->chunk.fd < 0                   ? "has no fd: the fd budget was spent"
	       : held->chunk.at->kind != LOCATION_GPU ? "is no memory of a GPU"
	                                              : NULL;
}

static const char *check_block(const struct block *block)
{
	return block->state != BLOCK_SHARED ? "cannot be shared"
	       : block->chunk.fd < 0        ? "has no fd"
	                                    : NULL;
}

static const char *check_model(const struct model *model)
{
	const char *why = NULL;
	for (size_t i = 0; !why && i < model->n_blocks; i++) {
		why = check_block(model->blocks[i].block);
	}
	return model->n_blocks == 0 ? "has no memory"
	       : why                ? "has a block that cannot be shared"
	                            : NULL;
}

/* Returns why @held cannot have a copy; NULL: it can. */
static const char *check(const struct held *held)
{
	if (held->bed || held->slept) {
		return held->bed ? "is being copied" : "has a copy already";
	}
	return held->kind == HELD_CHUNK   ? check_chunk(held)
	       : held->kind == HELD_MODEL ? check_model(held->model)
	       : held->own                ? "is not mapped yet"
	                                  : check_block(held->block);
}

/* The status for a thing that check() refuses. */
static enum status status_of(const struct held *held)
{
	const struct chunk *chunk = held->kind == HELD_CHUNK   ? &held->chunk
	                            : held->kind == HELD_BLOCK ? &held->block->chunk
	                                                       : NULL;
	return held->bed || held->admit || held->own ? STATUS_BUSY
	       : chunk && !held->slept && chunk->at->kind == LOCATION_GPU && chunk->fd < 0
	               ? STATUS_NO_FDS
	               : STATUS_BAD_REQUEST;
}

static struct held *find(const struct holder *holder, uint64_t id)
{
	struct held *held = holder_find_any(holder, id);
	bool may_sleep = held && (held->kind == HELD_CHUNK || held->kind == HELD_BLOCK ||
	                          held->kind == HELD_MODEL);
	return may_sleep ? held : NULL;
}

static void order_chunk(struct copy_order *order, const struct holder *holder,
                        const struct chunk *chunk, const struct copy_past *past)
{
	order->chunk.device = location_device(chunk->at);
	order->chunk.fd = chunk->fd;
	order->chunk.bytes = chunk->bytes;
	order->chunk.realm = holder->realm;
	if (past && past->copy) {
		copies_remember(past->copies, past->copy, &order->chunk.past);
	}
}

/* Set up transfer @i of @bed. */
static void set_transfer(struct sleep_batch *batch, struct bed *bed, size_t i)
{
	struct transfer *transfer = &batch->transfers[bed->first + i];
	const struct held *held = bed->held;
	transfer->batch = batch;
	transfer->bed = bed;
	transfer->order.tenant = batch->holder->tenant;
	transfer->order.done = on_copied;
	transfer->order.gone = on_gone;
	if (held->kind == HELD_CHUNK) {
		order_chunk(&transfer->order, batch->holder, &held->chunk, held->past);
	} else {
		transfer->order.block = held->kind == HELD_MODEL ? held->model->blocks[i].block
		                                                 : held->block;
	}
}

/* Set up all transfers. False: no memory. */
static bool set_transfers(struct sleep_batch *batch)
{
	batch->n_left = batch->n_transfers;
	batch->transfers = calloc(batch->n_transfers, sizeof(batch->transfers[0]));
	batch->copies = calloc(batch->n_transfers, sizeof(batch->copies[0]));
	for (size_t i = 0; batch->transfers && batch->copies && i < batch->n_beds; i++) {
		for (size_t k = 0; k < batch->beds[i].n_transfers; k++) {
			set_transfer(batch, &batch->beds[i], k);
		}
	}
	return batch->transfers && batch->copies;
}

/* The holder pays for glaked's memory for a model, since the model may have many blocks, and be open often. */
static bool pay_record(struct bed *bed, const struct holder *holder)
{
	if (bed->held->kind != HELD_MODEL) {
		return true;
	}
	bed->record = tenant_charge_manifest(holder_payer(holder));
	return charge_grow_manifest(&bed->record, bed->n_transfers * HOLDER_RECORD_BYTES) == 0;
}

/* Add a bed for the thing @id. STATUS_OK, or *error_out says why not. */
static enum status add_bed(struct sleep_batch *batch, struct holder *holder, uint64_t id,
                           char *error_out)
{
	struct held *held = find(holder, id);
	const char *why = held ? check(held) : "is none of this session's";
	if (why) {
		snprintf(error_out, SLEEP_ERROR_BYTES, "chunk, block or model %" PRIu64 " %s", id,
		         why);
		return held ? status_of(held) : STATUS_BAD_REQUEST;
	}
	struct bed *bed = &batch->beds[batch->n_beds++];
	bed->held = held;
	held->bed = bed;
	bed->first = batch->n_transfers;
	bed->n_transfers = held->kind == HELD_MODEL ? held->model->n_blocks : 1;
	bed->n_left = bed->n_transfers;
	batch->n_transfers += bed->n_transfers;
	if (!pay_record(bed, holder)) {
		snprintf(error_out, SLEEP_ERROR_BYTES,
		         "the copies of model %" PRIu64
		         " do not fit the manifests of tenant %s, or "
		         "this user's share of them",
		         id, holder->tenant->name);
		return STATUS_OVER_QUOTA;
	}
	return STATUS_OK;
}

static void drop_beds(struct sleep_batch *batch)
{
	for (size_t i = 0; i < batch->n_beds; i++) {
		batch->beds[i].held->bed = NULL;
		charge_refund(&batch->beds[i].record);
	}
	free_batch(batch);
}

static void start(struct sleep_batch *batch)
{
	keep(batch);
	for (size_t i = 0; i < batch->n_transfers; i++) {
		if (batch->holder) {
			copies_order(batch->context->copies, &batch->transfers[i].order);
		} else {
			on_gone(&batch->transfers[i].order);
		}
	}
	let(batch);
}

enum status sleeper_copy(struct holder *holder, const struct sleep_context *context,
                         const uint64_t *ids, size_t n_ids, sleep_done_fn done, void *user,
                         struct sleep_batch **batch_out, char *error_out)
{
	assert(n_ids > 0);
	if (holder->sleeper && holder->sleeper->state != SLEEPER_COPIED) {
		snprintf(error_out, SLEEP_ERROR_BYTES, "the session sleeps already");
		return STATUS_BUSY;
	}
	if (!orders_may(&holder->all->orders, holder->user, 1)) {
		snprintf(error_out, SLEEP_ERROR_BYTES, "the user falls asleep too often");
		return STATUS_BUSY;
	}
	struct sleep_batch *batch = calloc(1, sizeof(*batch) + n_ids * sizeof(batch->beds[0]));
	if (!batch) {
		snprintf(error_out, SLEEP_ERROR_BYTES, "glaked is out of host memory");
		return STATUS_NO_HOST_MEMORY;
	}
	batch->holder = holder;
	batch->context = context;
	batch->self = batch_out;
	batch->done = done;
	batch->user = user;
	batch->began_ns = uv_hrtime();
	list_init(&batch->parking.link);
	for (size_t i = 0; i < n_ids; i++) {
		enum status status = add_bed(batch, holder, ids[i], error_out);
		if (status != STATUS_OK) {
			drop_beds(batch);
			return status;
		}
	}
	if (!set_transfers(batch)) {
		drop_beds(batch);
		snprintf(error_out, SLEEP_ERROR_BYTES, "glaked is out of host memory");
		return STATUS_NO_HOST_MEMORY;
	}
	*batch_out = batch;
	start(batch);
	return STATUS_OK;
}
