/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making copies. One at a time looks for room: the first that needs a large chunk has it made, and the next ones find
 * what it left. The mover has several, so that it can map one while it copies another.
 */
#include "daemon/store/copies_parts.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* Copies on order that the mover has. It maps the next while it copies one; its queue is for all. */
#define ORDERS_AT_ONCE 12

static void make_next(struct copies *copies);

/* ---- orders ----------------------------------------------------------------------------------- */

static void order_set_state(struct copy_order *order, enum copy_order_state state)
{
#define TO(name) (1u << COPY_ORDER_##name)
	static const unsigned legal[COPY_ORDER_N_STATES] = {
		[COPY_ORDER_NEW] = TO(QUEUED) | TO(OVER),
		[COPY_ORDER_QUEUED] = TO(WAITING) | TO(OVER),
		[COPY_ORDER_WAITING] = TO(OVER),
		[COPY_ORDER_OVER] = TO(NEW),
	};
#undef TO
	assert(legal[order->state] & 1u << state);
	order->state = state;
}

/* The owner may free it. */
static void order_go(struct copies *copies, struct copy_order *order)
{
	if (order->block) {
		store_end_compare(copies->store, order->block);
	}
	order_set_state(order, COPY_ORDER_NEW);
	order->gone(order);
}

/* Whether the mover may still have its chunk. */
static bool is_with_mover(const struct copy_order *order)
{
	return order->making && order->making->owner == order;
}

/* End the order with @copy; NULL: no copy, and @error says why. */
static void order_end(struct copies *copies, struct copy_order *order, struct copy *copy,
                      enum status status, const char *error)
{
	list_remove(&order->link);
	order_set_state(order, COPY_ORDER_OVER);
	if (copy) {
		copies_hold(copies, copy);
	}
	bool is_kept = is_with_mover(order);
	order->done(order, copy, status, error);
	if (!is_kept) {
		order_go(copies, order);
	}
}

static void end_all(struct copies *copies, struct list *waiting, struct copy *copy,
                    enum status status, const char *error)
{
	while (!list_is_empty(waiting)) {
		order_end(copies, list_first(waiting, struct copy_order, link), copy, status,
		          error);
	}
}

static void order_wait(struct copy_order *order, struct copy_making *making)
{
	list_remove(&order->link);
	order_set_state(order, COPY_ORDER_WAITING);
	order->making = making;
	list_insert(&making->waiting, &order->link);
}

/* ---- a copy that is made, or is not ------------------------------------------------------------ */

/* Nobody waits for room or the mover because of it any more. */
static void leave(struct copy_making *making)
{
	struct copies *copies = making->copies;
	if (copies->taking == making) {
		copies->taking = NULL;
	}
	if (!list_is_empty(&making->link)) {
		list_remove(&making->link);
		copies->n_writing--;
	}
}

static void let_others(struct copy_making *making)
{
	struct copy *same = ptr_steal(making->same);
	struct copy *past = ptr_steal(making->past);
	if (same) {
		copies_let(making->copies, same);
	}
	if (past) {
		copies_let(making->copies, past);
	}
}

/* The mover has nothing of it any more. */
static void making_drop(struct copy_making *making)
{
	struct copies *copies = making->copies;
	struct copy_order *owner = making->owner;
	leave(making);
	let_others(making);
	if (making->copy && making->copy->state != COPY_THERE) {
		copies_free(copies, making->copy);
	}
	if (making->block) {
		store_end_compare(copies->store, making->block);
	}
	free(making);
	if (owner) {
		order_go(copies, owner);
	}
}

/* Move the waiting orders to @waiting. Only the making's owner stays bound to it, since the mover may have his chunk. */
static void detach(struct copy_making *making, struct list *waiting)
{
	struct copy_order *order;
	list_init(waiting);
	list_move(waiting, &making->waiting);
	list_for_each (order, waiting, link) {
		order->making = order == making->owner ? making : NULL;
	}
}

void making_fail(struct copy_making *making, enum status status, const char *error)
{
	struct copies *copies = making->copies;
	struct list waiting;
	detach(making, &waiting);
	end_all(copies, &waiting, NULL, status, error);
	making_drop(making);
	make_next(copies);
}

static bool is_paid_by_who_waits(const struct copy_making *making, const struct tenant *tenant)
{
	const struct copy_order *order;
	list_for_each (order, &making->waiting, link) {
		if (order->tenant == tenant) {
			return true;
		}
	}
	return false;
}

/* Whoever ordered it first may have gone. Then the next pays, or nobody does. */
static void settle_payer(struct copy_making *making)
{
	struct copies *copies = making->copies;
	if (making->copy->is_zero) {
		return;
	}
	struct charge *charge = &making->copy->extent->charge;
	if (charge->tenant == copies->store->cache || list_is_empty(&making->waiting) ||
	    is_paid_by_who_waits(making, charge->tenant)) {
		return;
	}
	const struct copy_order *next = list_first(&making->waiting, struct copy_order, link);
	if (charge_move(charge, payer_alone(next->tenant)) != 0) {
		charge_move(charge, payer_alone(copies->store->cache));
	}
}

void making_end(struct copy_making *making, struct copy *copy)
{
	struct copies *copies = making->copies;
	struct list waiting;
	detach(making, &waiting);
	end_all(copies, &waiting, copy, STATUS_OK, NULL);
	copies_let(copies, copy);
	making_drop(making);
	make_next(copies);
}

void making_succeed(struct copy_making *making)
{
	struct copies *copies = making->copies;
	struct copy *copy = making->copy;
	settle_payer(making);
	copy->making = NULL;
	making->copy = NULL;
	copies_written(copies, copy, &making->digest);
	if (!making->block && !copy->is_zero) {
		copies_show(copies, copy);
	}
	copies->store->stats->blocks_copied += making->block != NULL;
	making_end(making, copy);
}

static void suspect(struct copy_making *making)
{
	/* The patrol finds out which of the two it is. A client can write to its blocks. */
	struct tenant *payer = making->block->chunk.charge.tenant;
	log_limited(&payer->log_limit, LOG_LEVEL_WARNING,
	            "a copy of block %llu in host memory is not what was copied",
	            (unsigned long long)making->block->id);
	making->block->is_suspect = true;
}

static void on_written(struct digest_job *job, const struct digest *digest)
{
	struct copy_making *making = container_of(job, struct copy_making, job);
	making->is_written = true;
	if (making->has_digest && !digest_equal(digest, &making->copy->key.digest)) {
		suspect(making);
		making_fail(making, STATUS_MOVER_FAILED, "the copy is not what was copied");
		return;
	}
	making->digest = *digest;
	if (making->block) {
		making_succeed(making);
	} else if (list_is_empty(&making->waiting)) {
		making_gone(making);
	} else if (job->is_zero) {
		making_is_zero(making);
	} else {
		making_meet(making);
	}
}

void making_lose(struct copy_making *making, const struct mover_job *job, enum status status,
                 const char *error)
{
	struct copies *copies = making->copies;
	log_debug("copying to host memory: %s", error);
	status = status == STATUS_BUSY ? STATUS_BUSY : STATUS_MOVER_FAILED;
	if (job->id == 0) {
		making_fail(making, status, error);
		return;
	}
	/* A dead mover may write to the extent still. Others need not wait for it. */
	struct list waiting;
	leave(making);
	let_others(making);
	copies_hide(copies, making->copy);
	detach(making, &waiting);
	end_all(copies, &waiting, NULL, status, error);
	make_next(copies);
}

static void on_not_written(struct mover_job *job, enum status status, const char *error)
{
	making_lose(container_of(job, struct copy_making, job.job), job, status, error);
}

static void on_mover_gone(struct mover_job *job)
{
	making_gone(container_of(job, struct copy_making, job.job));
}

void making_gone(struct copy_making *making)
{
	struct copies *copies = making->copies;
	making_drop(making);
	make_next(copies);
}

/* ---- its place -------------------------------------------------------------------------------- */

void making_hand_over(struct copy_making *making, enum making_state state)
{
	struct copies *copies = making->copies;
	making->state = state;
	if (copies->taking == making) {
		copies->taking = NULL;
	}
	if (list_is_empty(&making->link)) {
		list_insert(&copies->writing, &making->link);
		copies->n_writing++;
	}
}

static void write_copy(struct copy_making *making)
{
	struct copies *copies = making->copies;
	struct copy *copy = making->copy;
	const struct mover_host host = copies_place(copy, extent_target(copy->extent));
	copies_set_state(copy, COPY_WRITING);
	making->job.job.is_aside = !making->is_ordered;
	making->job.job.on_failed = on_not_written;
	making->job.job.on_gone = on_mover_gone;
	making->job.on_digested = on_written;
	int r = mover_copy(copies->mover, &making->job, making->device, making->fd, copy->bytes,
	                   copy->content_bytes, &host, true);
	if (r < 0) {
		making_fail(making, r == -EBUSY ? STATUS_BUSY : STATUS_MOVER_FAILED,
		            "glake-mover cannot copy to host memory now");
		return;
	}
	making_hand_over(making, MAKING_WRITING);
	make_next(copies);
}

static void note_refusal(struct copy_making *making, enum status status)
{
	if (status == STATUS_NO_DEVICE_MEMORY &&
	    making->copy->bytes <= copies_room_bytes(making->copies, making->i_node)) {
		making->full_nodes |= 1ull << making->i_node;
	}
	/* The refusal of a full node counts before that of a node where the tenant has its share. */
	if (making->refusal == STATUS_OK || status == STATUS_NO_DEVICE_MEMORY) {
		making->refusal = status;
		making->i_refused = making->i_node;
	}
}

static void fail_refused(struct copy_making *making)
{
	char error[REFUSAL_TEXT_BYTES] = "no fds are left for a copy in host memory";
	const struct location *at = making->copies->nodes[making->i_refused].at;
	struct refusal refusal = refusal_of_room(making->payer, at, making->copy->bytes);
	if (making->refusal == STATUS_OVER_QUOTA) {
		refusal = refusal_of_tenant(BOUND_QUOTA, making->payer, at, making->copy->bytes);
	}
	if (making->refusal != STATUS_NO_FDS) {
		alloc_explain(making->refusal, &refusal, error);
	}
	making_fail(making,
	            making->refusal == STATUS_NO_DEVICE_MEMORY ? STATUS_NO_HOST_MEMORY
	                                                       : making->refusal,
	            error);
}

/* A private chunk that reads zero, or has its bytes in another copy, needs no room. */
static void refuse_place(struct copy_making *making)
{
	struct copies *copies = making->copies;
	if (making->block || making->has_looked) {
		fail_refused(making);
	} else {
		making_look(making);
		make_next(copies);
	}
}

static void on_taken(void *user, enum status status, struct extent *extent);

static void ask_node(struct copy_making *making)
{
	struct extents *node = &making->copies->nodes[making->i_node];
	if (making->is_ordered) {
		copies_spare_making(making->copies, node, making->copy->bytes);
	}
	extents_take(node, making->payer, making->copy->bytes, on_taken, making, &making->request);
}

static void take(struct copy_making *making)
{
	making->state = MAKING_TAKING;
	making->copies->taking = making;
	making->i_node = 0;
	making->full_nodes = 0;
	making->refusal = STATUS_OK;
	ask_node(making);
}

static void on_taken(void *user, enum status status, struct extent *extent)
{
	struct copy_making *making = user;
	struct copies *copies = making->copies;
	making->request = NULL;
	if (status == STATUS_OK) {
		making->copy->extent = extent;
		making->copy->in = &copies->nodes[making->i_node];
		write_copy(making);
		return;
	}
	note_refusal(making, status);
	if (making->i_node + 1 < copies->n_nodes) {
		making->i_node++;
		ask_node(making);
	} else if (making->full_nodes && copies->n_forgetting > 0) {
		making->state = MAKING_SHORT;
	} else if (making->full_nodes && copies_make_room(copies, making->full_nodes)) {
		take(making);
	} else {
		refuse_place(making);
	}
}

void copies_look_for_room(struct copies *copies)
{
	struct copy_making *making = copies->taking;
	if (making && making->state == MAKING_SHORT) {
		take(making);
	}
}

/* ---- what is next ----------------------------------------------------------------------------- */

/* Make a making, in which nothing has begun. NULL: no memory. */
static struct copy_making *making_new(struct copies *copies, const struct copy_wanted *wanted,
                                      struct tenant *payer)
{
	struct copy_making *making = calloc(1, sizeof(*making));
	struct copy *copy = making ? copies_new(copies, wanted) : NULL;
	if (!copy) {
		free(making);
		return NULL;
	}
	making->copies = copies;
	making->copy = copy;
	making->has_digest = wanted->digest != NULL;
	making->digest = copy->key.digest;
	making->payer = payer;
	list_init(&making->link);
	list_init(&making->waiting);
	copy->making = making;
	return making;
}

/* Find any copy for @block; NULL: there is none. */
static struct copy *find_any_for(const struct copies *copies, const struct block *block)
{
	return block && block->state == BLOCK_SHARED
	               ? copies_find_any(copies, block->realm, &block->key.digest)
	               : NULL;
}

/* A copy of a private chunk with the digest of the block. NULL: there is none. */
static struct copy *find_private(const struct copies *copies, const struct block *block)
{
	struct copy *copy = find_any_for(copies, block);
	return copy && !copy->is_of_block ? copy : NULL;
}

/* A block whose digest is another's, too, or whose content has changed, stays with its users. Nobody finds it, nor its copy. */
static struct copy_making *make_block(struct copies *copies, struct block *block,
                                      struct tenant *payer)
{
	bool is_damaged = block->state == BLOCK_DAMAGED;
	const struct copy_wanted wanted = {
		.realm = block->realm,
		.digest = is_damaged ? NULL : &block->key.digest,
		.content_bytes = is_damaged ? block->chunk.bytes : block->content_bytes,
		.bytes = block->chunk.bytes,
		.is_found = block->state == BLOCK_SHARED && !find_private(copies, block),
		.is_of_block = true,
	};
	struct copy_making *making = making_new(copies, &wanted, payer);
	if (making) {
		making->block = block;
		making->device = location_device(block->chunk.at);
		making->fd = block->chunk.fd;
		store_begin_compare(block);
	}
	return making;
}

/* Held for the making. */
static struct copy *past_of(struct copies *copies, const struct copy_order *order)
{
	struct copy *past = order->chunk.past.copy;
	if (past) {
		copies_hold(copies, past);
	}
	return past;
}

static struct copy_making *make_chunk(struct copies *copies, struct copy_order *order)
{
	const struct copy_wanted wanted = {.realm = order->chunk.realm,
	                                   .content_bytes = order->chunk.bytes,
	                                   .bytes = order->chunk.bytes};
	struct copy_making *making = making_new(copies, &wanted, order->tenant);
	if (making) {
		making->owner = order;
		making->past = past_of(copies, order);
		making->device = order->chunk.device;
		making->fd = order->chunk.fd;
	}
	return making;
}

/* The copy of a block that is there, or on its way; NULL: there is none. */
static struct copy *find_for(const struct copies *copies, const struct block *block)
{
	struct copy *copy = find_any_for(copies, block);
	return copy && copy->is_of_block ? copy : NULL;
}

/* Returns whether it need not be made. */
static bool find_or_refuse(struct copies *copies, struct copy_order *order)
{
	const struct block *block = order->block;
	struct copy *copy = find_for(copies, block);
	if (copy && copy->state == COPY_THERE) {
		order_end(copies, order, copy, STATUS_OK, NULL);
	} else if (copy) {
		order_wait(order, copy->making);
	} else if (block && block->chunk.fd < 0) {
		order_end(copies, order, NULL, STATUS_BUSY,
		          "a block is left to its users by an earlier glaked");
	} else {
		return false;
	}
	return true;
}

static void start(struct copy_making *making)
{
	struct copies *copies = making->copies;
	if (making->block && find_private(copies, making->block)) {
		making_meet(making);
	} else if (!making->block &&
	           (copies->expects_same || (making->past && !copies->expects_new))) {
		/* The chunk probably needs no copy of its own. */
		making_look(making);
	} else {
		take(making);
	}
}

static void start_order(struct copies *copies, struct copy_order *order)
{
	if (find_or_refuse(copies, order)) {
		return;
	}
	struct copy_making *making = order->block ? make_block(copies, order->block, order->tenant)
	                                          : make_chunk(copies, order);
	if (!making) {
		order_end(copies, order, NULL, STATUS_NO_HOST_MEMORY, "out of host memory");
		return;
	}
	making->is_ordered = true;
	order_wait(order, making);
	start(making);
}

/* Whether @block has content that others may have, and no copy yet. */
static bool is_wanted(const struct copies *copies, const struct block *block)
{
	return copies->is_on && block->state == BLOCK_SHARED && block->chunk.fd >= 0 &&
	       !find_for(copies, block);
}

static void start_wanted(struct copies *copies, struct block *block)
{
	list_remove(&block->wanted);
	struct copy_making *making = is_wanted(copies, block)
	                                     ? make_block(copies, block, copies->store->cache)
	                                     : NULL;
	if (making) {
		start(making);
	}
}

void making_is_new(struct copy_making *making)
{
	struct copies *copies = making->copies;
	if (!making->block) {
		copies->expects_same = false;
	}
	if (making->is_written) {
		making_succeed(making);
	} else if (copies->is_closing) {
		making_fail(making, STATUS_SHUTTING_DOWN, "glaked ends");
	} else if (making->refusal != STATUS_OK) {
		fail_refused(making);
	} else {
		/* Whoever wants the same block finds this copy, and waits for it. */
		if (making->block) {
			copies_show(copies, making->copy);
		}
		leave(making);
		making->state = MAKING_QUEUED;
		list_insert(&copies->looked, &making->link);
		copies->n_writing++;
		make_next(copies);
	}
}

/* Begin the next makings. One that ends at once comes back here. */
static void make_next(struct copies *copies)
{
	if (copies->is_looking) {
		return;
	}
	copies->is_looking = true;
	makings_meet(copies);
	while (!copies->taking) {
		if (!list_is_empty(&copies->looked)) {
			struct copy_making *making = list_first(&copies->looked, struct copy_making,
			                                        link);
			leave(making);
			take(making);
		} else if (!list_is_empty(&copies->orders) && copies->n_writing < ORDERS_AT_ONCE) {
			start_order(copies, list_first(&copies->orders, struct copy_order, link));
		} else if (copies->n_writing == 0 && !list_is_empty(&copies->wanted)) {
			start_wanted(copies, list_first(&copies->wanted, struct block, wanted));
		} else {
			break;
		}
	}
	copies->is_looking = false;
}

/* ---- from above ------------------------------------------------------------------------------- */

void copies_want(struct copies *copies, struct block *block)
{
	if (copies->is_on && list_is_empty(&block->wanted)) {
		list_insert(&copies->wanted, &block->wanted);
		make_next(copies);
	}
}

/* Returns whether it was, since no copy of it can be made. */
static bool refuse(struct copies *copies, struct copy_order *order)
{
	if (copies->is_closing) {
		order_end(copies, order, NULL, STATUS_SHUTTING_DOWN, "glaked ends");
	} else if (copies->n_nodes == 0) {
		order_end(copies, order, NULL, STATUS_NO_HOST_MEMORY,
		          "glaked has no host memory to give out");
	} else {
		return false;
	}
	return true;
}

void copies_order(struct copies *copies, struct copy_order *order)
{
	list_init(&order->link);
	order->state = COPY_ORDER_NEW;
	order->making = NULL;
	if (order->block) {
		store_begin_compare(order->block);
	}
	if (refuse(copies, order)) {
		return;
	}
	order_set_state(order, COPY_ORDER_QUEUED);
	list_insert(&copies->orders, &order->link);
	if (!find_or_refuse(copies, order)) {
		make_next(copies);
	}
}

/* Nobody waits for it any more. */
static void give_up(struct copy_making *making)
{
	struct copies *copies = making->copies;
	if (making->request) {
		extents_cancel(making->request);
	}
	switch (making->state) {
	case MAKING_TAKING:
	case MAKING_SHORT:
	case MAKING_BEHIND:
	case MAKING_QUEUED:
		making_drop(making);
		make_next(copies);
		break;
	case MAKING_WRITING:
		/* A block's copy is cache then. */
		if (!making->block) {
			mover_cancel(copies->mover, &making->job.job);
		}
		break;
	case MAKING_LOOKING:
		mover_cancel(copies->mover, &making->job.job);
		break;
	case MAKING_COMPARING:
		mover_cancel(copies->mover, &making->compare.job);
		break;
	}
}

/* Some wait for it still. */
static void change_payer(struct copy_making *making)
{
	if (making->is_ordered && !is_paid_by_who_waits(making, making->payer)) {
		making->payer = list_first(&making->waiting, struct copy_order, link)->tenant;
	}
}

void copies_cancel(struct copies *copies, struct copy_order *order)
{
	struct copy_making *making = order->making;
	if (order->state == COPY_ORDER_NEW || order->state == COPY_ORDER_OVER) {
		return;
	}
	list_remove(&order->link);
	order_set_state(order, COPY_ORDER_OVER);
	/* Otherwise it goes with the making. */
	bool is_kept = is_with_mover(order);
	if (making && !list_is_empty(&making->waiting)) {
		change_payer(making);
	} else if (making && making->is_ordered) {
		give_up(making);
	}
	if (!is_kept) {
		order_go(copies, order);
	}
}

/* ---- the end ---------------------------------------------------------------------------------- */

/* Find a making that the mover has nothing of. NULL: there is none. */
static struct copy_making *find_waiting(const struct copies *copies)
{
	struct copy_making *making;
	if (copies->taking || !list_is_empty(&copies->looked)) {
		return copies->taking ? copies->taking
		                      : list_first(&copies->looked, struct copy_making, link);
	}
	list_for_each (making, &copies->writing, link) {
		if (making->state == MAKING_BEHIND) {
			return making;
		}
	}
	return NULL;
}

void copies_close_makings(struct copies *copies)
{
	struct copy_making *making;
	end_all(copies, &copies->orders, NULL, STATUS_SHUTTING_DOWN, "glaked ends");
	while ((making = find_waiting(copies))) {
		if (making->request) {
			extents_cancel(making->request);
		}
		making_fail(making, STATUS_SHUTTING_DOWN, "glaked ends");
	}
	list_for_each (making, &copies->writing, link) {
		mover_cancel(copies->mover, &making->job.job);
		mover_cancel(copies->mover, &making->compare.job);
	}
}
