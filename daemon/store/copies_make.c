/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies are made in two ways. What may be wanted later is copied in the background, one block after the other; for that nothing
 * is taken back but other copies. What somebody waits for is ordered, and goes first: some at a time, and its owner
 * pays for the host memory, which pressure finds.
 */
#include "daemon/store/copies.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/store/copies_parts.h"
#include "daemon/store/store_parts.h"
#include "proto/cleanup.h"

/* Ordered ones that are under way. */
#define MAX_ORDERED 12u

/* A copy on its way. If a dead mover has it and cannot end, it is in no list any more. */
struct copying {
	struct digest_job job;
	struct list link; /* link: copies.copying */
	struct copies *copies;
	struct block
		*block; /* the store keeps it: store_begin_compare(). NULL: private memory, of: */
	const struct device *device;
	int fd;
	struct tenant *tenant; /* who pays */
	struct copy *copy;
	struct list orders;              /* of copy_order.link, that wait for it */
	struct list over;                /* of those that were told */
	bool is_ordered;                 /* else in the background */
	struct extents_request *request; /* while TAKING, unless: */
	bool is_waiting;                 /* for chunks that are being forgotten */
	size_t i_node;                   /* it was asked last */
};

static void take(struct copying *copying);

/* ---- the end ---------------------------------------------------------------------------------- */

/* Those who wait for it know how it ended: with @copy, or not. */
static void tell(struct copying *copying, struct copy *copy, enum status status, const char *error)
{
	while (!list_is_empty(&copying->orders)) {
		struct copy_order *order = list_first(&copying->orders, struct copy_order, link);
		list_remove(&order->link);
		list_insert(&copying->over, &order->link);
		if (!order->is_over) {
			order->is_over = true;
			if (copy) {
				copies_pin(copying->copies, copy);
			}
			order->done(order, copy, status, error);
		}
	}
}

static void let_orders(struct copying *copying)
{
	list_move(&copying->over, &copying->orders);
	while (!list_is_empty(&copying->over)) {
		struct copy_order *order = list_first(&copying->over, struct copy_order, link);
		list_remove(&order->link);
		order->gone(order);
	}
}

static void leave(struct copying *copying)
{
	if (!list_is_empty(&copying->link)) {
		list_remove(&copying->link);
		copying->copies->n_ordered -= copying->is_ordered;
	}
}

/* The mover has nothing of it any more, and those who wait for it know. */
static void end(struct copying *copying)
{
	struct copies *copies = copying->copies;
	leave(copying);
	if (copying->copy->state != COPY_THERE) {
		copy_free(copies, copying->copy);
	}
	if (copying->block) {
		store_end_compare(copies->store, copying->block);
	}
	let_orders(copying);
	free(copying);
	copies_copy_next(copies);
}

static void fail(struct copying *copying, enum status status, const char *error)
{
	tell(copying, NULL, status, error);
	end(copying);
}

/* ---- copying ---------------------------------------------------------------------------------- */

/* The patrol finds out which of the two it is. A client can write to its blocks. */
static void suspect(struct copying *copying)
{
	struct tenant *payer = copying->block->chunk.charge.tenant;
	log_limited(&payer->log_limit, LOG_LEVEL_WARNING,
	            "a copy of block %llu in host memory is not what was copied",
	            (unsigned long long)copying->block->id);
	copying->block->is_suspect = true;
}

static void on_written(struct digest_job *job, const struct digest *digest)
{
	struct copying *copying = container_of(job, struct copying, job);
	struct copies *copies = copying->copies;
	struct copy *copy = copying->copy;
	if (copy->is_private) {
		copy->key.digest = *digest;
	} else if (!digest_equal(digest, &copy->key.digest)) {
		suspect(copying);
		fail(copying, STATUS_MOVER_FAILED, "a copy in host memory is not what was copied");
		return;
	}
	extent_written(copy->extent);
	copy_set_state(copy, COPY_THERE);
	copies->bytes += copy->bytes;
	copies->store->stats->blocks_copied += !copy->is_private;
	/* A private one goes if nobody wants it any more. */
	copies_pin(copies, copy);
	copies_use(copies, copy);
	tell(copying, copy, STATUS_OK, "");
	copies_unpin(copies, copy);
	end(copying);
}

static void on_not_written(struct mover_job *job, enum status status, const char *error)
{
	struct copying *copying = container_of(job, struct copying, job.job);
	struct copies *copies = copying->copies;
	log_debug("copying to host memory: %s", error);
	tell(copying, NULL, status, error);
	if (job->id == 0) {
		end(copying);
	} else {
		leave(copying);
		copies_copy_next(copies);
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
	const struct mover_host host = copy_place(copy, extent_target(copy->extent));
	copy_set_state(copy, COPY_WRITING);
	copying->job.job.is_aside = !copying->is_ordered;
	copying->job.job.on_failed = on_not_written;
	copying->job.job.on_gone = on_copier_gone;
	copying->job.on_digested = on_written;
	if (mover_copy(copies->mover, &copying->job, copying->device, copying->fd, copy->bytes,
	               copy->content_bytes, &host, true) < 0) {
		fail(copying, STATUS_BUSY, "glake-mover cannot copy to host memory now");
	}
}

/* ---- room ------------------------------------------------------------------------------------- */

static void refuse(struct copying *copying, enum status status)
{
	switch (status) {
	case STATUS_OVER_QUOTA:
		fail(copying, status, "the tenant's limit of host memory (host_bytes) is reached");
		break;
	case STATUS_NO_DEVICE_MEMORY:
	case STATUS_NO_HOST_MEMORY:
		fail(copying, STATUS_NO_HOST_MEMORY,
		     "the host memory for copies (host_bytes) is full");
		break;
	default:
		fail(copying, status, "host memory for copies could not be made");
	}
}

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
	} else if (copying->is_ordered) {
		refuse(copying, status);
	} else if (copies->n_forgetting > 0) {
		copying->is_waiting = true;
	} else if (copies_make_room(copies, NULL)) {
		copying->i_node = 0;
		take(copying);
	} else {
		refuse(copying, status);
	}
}

static void take(struct copying *copying)
{
	struct copies *copies = copying->copies;
	extents_take(&copies->nodes[copying->i_node], copying->tenant, copying->copy->bytes,
	             on_taken, copying, &copying->request);
}

void copies_look_for_room(struct copies *copies)
{
	struct copying *copying;
	list_for_each (copying, &copies->copying, link) {
		if (copying->is_waiting) {
			copying->is_waiting = false;
			copying->i_node = 0;
			take(copying);
			return;
		}
	}
}

/* ---- beginning -------------------------------------------------------------------------------- */

/* What is to be copied is entered. NULL: no memory. */
static struct copying *copying_new(struct copies *copies, struct copy *copy, bool is_ordered)
{
	struct copying *copying = copy ? calloc(1, sizeof(*copying)) : NULL;
	if (!copying) {
		if (copy) {
			copy_free(copies, copy);
		}
		return NULL;
	}
	list_init(&copying->orders);
	list_init(&copying->over);
	copying->copies = copies;
	copying->copy = copy;
	copying->is_ordered = is_ordered;
	copies->n_ordered += is_ordered;
	list_insert(&copies->copying, &copying->link);
	return copying;
}

static struct copying *copying_of_block(struct copies *copies, struct block *block,
                                        struct tenant *tenant, bool is_ordered)
{
	struct copy *copy = copy_new(copies, block->realm, &block->key.digest, block->chunk.bytes,
	                             block->content_bytes);
	struct copying *copying = copying_new(copies, copy, is_ordered);
	if (copying) {
		copying->block = block;
		copying->device = location_device(block->chunk.at);
		copying->fd = block->chunk.fd;
		copying->tenant = tenant;
		store_begin_compare(block);
	}
	return copying;
}

static struct copying *copying_of_chunk(struct copies *copies, const struct copy_order *order)
{
	struct copy *copy = copy_new(copies, order->realm, NULL, order->bytes, order->bytes);
	struct copying *copying = copying_new(copies, copy, true);
	if (copying) {
		copying->device = order->device;
		copying->fd = order->fd;
		copying->tenant = order->tenant;
	}
	return copying;
}

/* ---- in the background ------------------------------------------------------------------------ */

/* It has content that others may have, and no copy yet. */
static bool is_wanted(const struct copies *copies, const struct block *block)
{
	return block->state == BLOCK_SHARED && block->chunk.fd >= 0 &&
	       !copy_find(copies, block->realm, &block->key.digest);
}

static bool is_background_busy(const struct copies *copies)
{
	const struct copying *copying;
	list_for_each (copying, &copies->copying, link) {
		if (!copying->is_ordered) {
			return true;
		}
	}
	return false;
}

/* False: there is none that can begin. */
static bool begin_wanted(struct copies *copies)
{
	if (list_is_empty(&copies->wanted) || copies->n_ordered > 0 || is_background_busy(copies)) {
		return false;
	}
	struct block *block = list_first(&copies->wanted, struct block, wanted);
	list_remove(&block->wanted);
	if (copies->is_on && is_wanted(copies, block)) {
		struct copying *copying = copying_of_block(copies, block, copies->store->cache,
		                                           false);
		if (copying) {
			take(copying);
		}
	}
	return true;
}

/* ---- orders ----------------------------------------------------------------------------------- */

static void finish_order(struct copy_order *order, struct copy *copy, enum status status,
                         const char *error)
{
	order->is_over = true;
	order->done(order, copy, status, error);
	order->gone(order);
}

static struct copying *copying_with(const struct copies *copies, const struct copy *copy)
{
	struct copying *copying;
	list_for_each (copying, &copies->copying, link) {
		if (copying->copy == copy) {
			return copying;
		}
	}
	return NULL;
}

/* What the copy, not there yet, is made by; it begins if nothing does. NULL: no memory, or a dead mover has it. */
static struct copying *find_or_begin(struct copies *copies, struct copy_order *order,
                                     const struct copy *copy, bool *begins_out)
{
	*begins_out = !copy;
	return copy           ? copying_with(copies, copy)
	       : order->block ? copying_of_block(copies, order->block, order->tenant, true)
	                      : copying_of_chunk(copies, order);
}

static void begin_order(struct copies *copies, struct copy_order *order)
{
	bool begins;
	struct copy *copy = order->block ? copy_find(copies, order->block->realm,
	                                             &order->block->key.digest)
	                                 : NULL;
	if (copy && copy->state == COPY_THERE) {
		copies_pin(copies, copy);
		finish_order(order, copy, STATUS_OK, "");
		return;
	}
	struct copying *copying = find_or_begin(copies, order, copy, &begins);
	if (!copying) {
		finish_order(order, NULL, copy ? STATUS_BUSY : STATUS_NO_HOST_MEMORY,
		             copy ? "a mover that has died still has the copy"
		                  : "glaked is out of host memory");
		return;
	}
	order->copying = copying;
	list_insert(&copying->orders, &order->link);
	if (begins) {
		take(copying);
	}
}

/* False: there is none that can begin. */
static bool begin_ordered(struct copies *copies)
{
	if (list_is_empty(&copies->orders) || copies->n_ordered >= MAX_ORDERED) {
		return false;
	}
	struct copy_order *order = list_first(&copies->orders, struct copy_order, link);
	list_remove(&order->link);
	begin_order(copies, order);
	return true;
}

/* One that ends at once comes back here. */
void copies_copy_next(struct copies *copies)
{
	if (copies->is_looking) {
		return;
	}
	copies->is_looking = true;
	while (begin_ordered(copies) || begin_wanted(copies)) {
		/* And the next. */
	}
	copies->is_looking = false;
}

void copies_order(struct copies *copies, struct copy_order *order)
{
	uint64_t bytes = order->block ? order->block->chunk.bytes : order->bytes;
	list_init(&order->link);
	if (copies->n_nodes == 0) {
		finish_order(order, NULL, STATUS_NO_HOST_MEMORY,
		             "glaked has no host memory for copies (host_bytes)");
	} else if (bytes > copies->nodes[0].large_bytes) {
		finish_order(order, NULL, STATUS_NO_HOST_MEMORY,
		             "a chunk is too large to be copied to host memory");
	} else {
		list_insert(&copies->orders, &order->link);
		copies_copy_next(copies);
	}
}

/* Nobody waits for it any more. */
static void give_up(struct copying *copying)
{
	if (copying->request) {
		extents_cancel(copying->request);
		copying->request = NULL;
		end(copying);
	} else if (copying->is_waiting) {
		end(copying);
	} else {
		mover_cancel(copying->copies->mover, &copying->job.job);
	}
}

static bool is_awaited(const struct copying *copying)
{
	const struct copy_order *order;
	list_for_each (order, &copying->orders, link) {
		if (!order->is_over) {
			return true;
		}
	}
	return false;
}

void copies_cancel(struct copies *copies, struct copy_order *order)
{
	struct copying *copying = order->copying;
	if (order->is_over) {
		return;
	}
	order->is_over = true;
	if (!copying) {
		list_remove(&order->link);
		order->gone(order);
	} else if (copying->is_ordered && !is_awaited(copying)) {
		give_up(copying);
	}
}

void copies_close(struct copies *copies)
{
	struct copying *copying;
	struct copying *spare;
	copies->is_on = false;
	list_for_each_safe (copying, spare, &copies->copying, link) {
		give_up(copying);
	}
}
