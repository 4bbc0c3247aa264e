/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/layout.h"

#include <stdlib.h>

#include "proto/cleanup.h"

/* A block in the mover. If that has died and cannot end, the look outlives layout.look. */
struct layout_look {
	struct layout_job job;
	struct layout *layout;
	struct block *block; /* the store keeps it: store_begin_look() */
};

static void leave(struct layout_look *look)
{
	if (look->layout->look == look) {
		look->layout->look = NULL;
	}
}

static void end(struct layout_look *look)
{
	leave(look);
	store_end_look(look->layout->store, look->block);
	free(look);
}

static void on_prints(struct layout_job *job, const uint64_t *prints, size_t n_prints,
                      uint64_t varied_bytes, uint64_t ns)
{
	struct layout_look *look = container_of(job, struct layout_look, job);
	struct layout *layout = look->layout;
	const uint64_t took_ns = ns < LAYOUT_MAX_NS ? ns : LAYOUT_MAX_NS;
	layout->next_ms = uv_now(layout->timer.loop) + took_ns * LAYOUT_PART / 1000000;
	/* Nothing is told of the block if there is no memory. */
	prints_add(&layout->store->prints, look->block, prints, n_prints, varied_bytes);
	layout->store->stats->blocks_looked_at++;
	layout->store->stats->look_us += took_ns / 1000;
	end(look);
}

static void on_failed(struct mover_job *job, enum status status, const char *error)
{
	struct layout_look *look = container_of(job, struct layout_look, job.job);
	struct layout *layout = look->layout;
	(void)status;
	(void)error;
	layout->next_ms = uv_now(layout->timer.loop) + LAYOUT_RETRY_MS;
	if (job->id == 0) {
		end(look);
	} else {
		leave(look);
	}
}

static void on_gone(struct mover_job *job)
{
	end(container_of(job, struct layout_look, job.job));
}

/* ---- what to look at, and when --------------------------------------------------------------- */

/* Only published blocks are looked at: a block that glaked has loaded lies as in its file, and who loads it so shares it. */
static bool is_wanted(const struct block *block)
{
	return block->layout.state == LAYOUT_UNSEEN && block->n_users > 0 && block->is_published &&
	       block->state == BLOCK_SHARED;
}

/* The next block in the order of ids; one that has failed comes again behind the others. NULL: there is none. */
static struct block *next_block(const struct layout *layout)
{
	struct block *first = NULL;
	struct block *block;
	list_for_each (block, &layout->store->block_list, link) {
		if (is_wanted(block) && block->id > layout->last_id) {
			return block;
		}
		first = !first && is_wanted(block) ? block : first;
	}
	return first;
}

static bool may_look(const struct layout *layout)
{
	return layout->is_on && !layout->look && !layout->store->withdrawal.block &&
	       uv_now(layout->timer.loop) >= layout->next_ms && mover_link_pid(layout->mover) &&
	       !mover_is_busy(layout->mover);
}

static void look_at(struct layout *layout, struct block *block)
{
	const struct chunk *chunk = &block->chunk;
	struct layout_look *look = calloc(1, sizeof(*look));
	if (!look) {
		return;
	}
	*look = (struct layout_look){
		.job = {.job = {.on_failed = on_failed, .on_gone = on_gone, .is_aside = true},
	                .on_prints = on_prints},
		.layout = layout,
		.block = block,
	};
	layout->last_id = block->id;
	if (mover_layout(layout->mover, &look->job, location_device(chunk->at), chunk->fd,
	                 chunk->bytes, block->content_bytes) < 0) {
		layout->next_ms = uv_now(layout->timer.loop) + LAYOUT_RETRY_MS;
		free(look);
		return;
	}
	store_begin_look(block);
	layout->look = look;
}

static void on_timer(uv_timer_t *timer)
{
	struct layout *layout = container_of(timer, struct layout, timer);
	if (!may_look(layout)) {
		return;
	}
	struct block *block = next_block(layout);
	if (block) {
		look_at(layout, block);
	} else {
		layout->next_ms = uv_now(timer->loop) + LAYOUT_REST_MS;
	}
}

/* ---- from above ------------------------------------------------------------------------------ */

void layout_init(struct layout *layout, uv_loop_t *loop, struct store *store,
                 struct mover_link *mover)
{
	*layout = (struct layout){.store = store, .mover = mover};
	uv_timer_init(loop, &layout->timer);
	uv_timer_start(&layout->timer, on_timer, LAYOUT_MS, LAYOUT_MS);
}

void layout_close(struct layout *layout)
{
	uv_close((uv_handle_t *)&layout->timer, NULL);
	if (layout->look) {
		mover_cancel(layout->mover, &layout->look->job.job);
	}
}
