/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/patrol.h"

#include <stdlib.h>

#include "daemon/base/log.h"
#include "proto/cleanup.h"

/* A block in the mover. If that has died and cannot end, the look outlives patrol.look. */
struct visit {
	struct digest_job job;
	struct patrol *patrol;
	struct block *block; /* the store keeps it: store_begin_look() */
};

/* ---- the result ------------------------------------------------------------------------------ */

static void leave(struct visit *visit)
{
	if (visit->patrol->visit == visit) {
		visit->patrol->visit = NULL;
	}
}

static void end(struct visit *visit)
{
	leave(visit);
	store_end_look(visit->patrol->store, visit->block);
	free(visit);
}

static void find_damaged(struct visit *visit)
{
	struct patrol *patrol = visit->patrol;
	patrol->store->stats->blocks_damaged++;
	patrol->on_damaged(patrol->user, visit->block);
}

static void on_digested(struct digest_job *job, const struct digest *digest)
{
	struct visit *visit = container_of(job, struct visit, job);
	visit->patrol->store->stats->blocks_verified++;
	if (!digest_equal(digest, &visit->block->key.digest)) {
		find_damaged(visit);
	}
	end(visit);
}

static void on_failed(struct mover_job *job, enum status status, const char *error)
{
	struct visit *visit = container_of(job, struct visit, job.job);
	struct patrol *patrol = visit->patrol;
	/* The order is right, so this is about the chunk: it is not zero behind its content. */
	if (status == STATUS_BAD_REQUEST) {
		patrol->store->stats->blocks_verified++;
		find_damaged(visit);
	} else {
		log_warning("could not digest a block again: %s; the next try is in %u s", error,
		            PATROL_RETRY_MS / 1000);
		patrol->next_ms = uv_now(patrol->timer.loop) + PATROL_RETRY_MS;
	}
	if (job->id == 0) {
		end(visit);
	} else {
		leave(visit);
	}
}

static void on_gone(struct mover_job *job)
{
	end(container_of(job, struct visit, job.job));
}

/* ---- what to look at, and when --------------------------------------------------------------- */

/* A suspect; else the next one in the order of ids, and the first behind the last. NULL: there is none. */
static struct block *next_block(const struct patrol *patrol)
{
	struct block *first = NULL;
	struct block *next = NULL;
	struct block *block;
	list_for_each (block, &patrol->store->block_list, link) {
		if (block->state == BLOCK_DAMAGED || block->state == BLOCK_LOST) {
			continue;
		}
		if (block->is_suspect) {
			return block;
		}
		first = first ? first : block;
		next = !next && block->id > patrol->last_id ? block : next;
	}
	return next ? next : first;
}

/* A mover that runs for the patrol alone must not take the memory that a program is about to need. */
static bool has_room(const struct patrol *patrol)
{
	for (uint32_t i = 0; i < patrol->n_devices; i++) {
		uint64_t free_bytes = device_free_bytes(&patrol->devices[i]);
		if (free_bytes > 0 && free_bytes < PATROL_FREE_BYTES) {
			return false;
		}
	}
	return true;
}

static bool may_look(struct patrol *patrol, uint64_t now_ms)
{
	if (patrol->visit || patrol->store->withdrawal.block || now_ms < patrol->next_ms ||
	    mover_is_busy(patrol->mover)) {
		return false;
	}
	if (patrol->mode == CONFIG_VERIFY_ALWAYS) {
		return true;
	}
	if (mover_link_pid(patrol->mover)) {
		return now_ms - patrol->mover->last_begun_ms >= PATROL_QUIET_MS;
	}
	return now_ms >= patrol->start_ms && has_room(patrol);
}

static void look_at(struct patrol *patrol, struct block *block)
{
	struct visit *visit = calloc(1, sizeof(*visit));
	if (!visit) {
		return;
	}
	const struct chunk *chunk = &block->chunk;
	visit->job = (struct digest_job){
		.job.on_failed = on_failed,
		.job.on_gone = on_gone,
		.job.is_aside = patrol->mode == CONFIG_VERIFY_SAMPLE,
		.on_digested = on_digested,
	};
	visit->patrol = patrol;
	visit->block = block;
	if (mover_digest(patrol->mover, &visit->job, location_device(chunk->at), chunk->fd, -1,
	                 chunk->bytes, block->content_bytes) < 0) {
		patrol->next_ms = uv_now(patrol->timer.loop) + PATROL_RETRY_MS;
		free(visit);
		return;
	}
	store_begin_look(block);
	block->is_suspect = false;
	patrol->visit = visit;
	patrol->last_id = block->id;
}

static void on_timer(uv_timer_t *timer)
{
	struct patrol *patrol = container_of(timer, struct patrol, timer);
	uint64_t now_ms = uv_now(timer->loop);
	struct block *block = may_look(patrol, now_ms) ? next_block(patrol) : NULL;
	if (!block) {
		return;
	}
	if (!mover_link_pid(patrol->mover)) {
		patrol->start_ms = now_ms + PATROL_START_MS;
	}
	look_at(patrol, block);
}

/* ---- from above ------------------------------------------------------------------------------ */

void patrol_init(struct patrol *patrol, uv_loop_t *loop, struct store *store,
                 struct mover_link *mover, const struct device *devices, uint32_t n_devices)
{
	*patrol = (struct patrol){
		.store = store,
		.mover = mover,
		.devices = devices,
		.n_devices = n_devices,
		.mode = CONFIG_VERIFY_OFF,
		.start_ms = uv_now(loop) + PATROL_START_MS,
	};
	uv_timer_init(loop, &patrol->timer);
}

void patrol_set_mode(struct patrol *patrol, enum config_verify mode)
{
	uint64_t period_ms = mode == CONFIG_VERIFY_ALWAYS ? PATROL_ALWAYS_MS : PATROL_SAMPLE_MS;
	if (mode == patrol->mode) {
		return;
	}
	patrol->mode = mode;
	patrol->next_ms = 0;
	if (mode == CONFIG_VERIFY_OFF) {
		uv_timer_stop(&patrol->timer);
	} else {
		uv_timer_start(&patrol->timer, on_timer, period_ms, period_ms);
	}
}

void patrol_close(struct patrol *patrol)
{
	uv_close((uv_handle_t *)&patrol->timer, NULL);
	if (patrol->visit) {
		mover_cancel(patrol->mover, &patrol->visit->job.job);
	}
}
