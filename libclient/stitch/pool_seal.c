/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocations of a pool that are sealed: how they are held, what the numbers say of them, and what becomes of
 * them when they are freed.
 *
 * A block is read-only and others have it, too. So it serves nobody after its allocation: its runs are doomed, and
 * stay used until the work of the stream is done that freed it. Then they are unmapped, and holes. A block never has
 * memory of two allocations, since what is sealed is rounded inward.
 *
 * A stitched range that maps what home has no more is not true: it serves nobody again, and is dropped.
 */
#include <errno.h>

#include "libclient/link/session.h"
#include "libclient/space/grant.h"
#include "libclient/space/held.h"
#include "libclient/space/reback.h"
#include "libclient/stitch/pool_parts.h"
#include "proto/cleanup.h"

/* A used run's number while it is being unmapped. */
#define CONDEMNED UINT64_MAX

/* ---- holding ----------------------------------------------------------------------------------- */

static int hold(struct glake__range *range, glake_ptr address, struct glake__held *held_out)
{
	struct glake__allocation *found = glake__pool_find_locked(range, address);
	if (!found || found->is_claimed || address - found->address >= found->n_bytes) {
		return -ENOENT;
	}
	/* A graph writes to it whenever it is launched. */
	if (found->tag.stream > GLAKE__GRAPH_STREAM) {
		return -ENOTSUP;
	}
	struct glake__pooled *pooled = glake__pooled_of(found);
	if (pooled->is_held) {
		return -EBUSY;
	}
	pooled->is_held = true;
	pooled->was_held = true;
	pooled->pool->was_held = true;
	pooled->pool->n_held++;
	*held_out = (struct glake__held){
		.begin = found->address,
		.end = found->address + found->n_bytes,
		/* The memory behind the allocation is another's. */
		.tail = found->address + found->n_bytes,
		.device = pooled->pool->device,
		.has_neighbours = true,
		.user = pooled,
	};
	return 0;
}

static uint64_t count_sealed(const struct glake__pooled *pooled)
{
	uint64_t n_units = 0;
	for (const struct glake__run *run = pooled->runs; run; run = run->next_in_bin) {
		n_units += glake__pool_count_sealed(pooled->pool, run);
	}
	return n_units * RUN_UNIT_BYTES;
}

/* Blocks may have come or gone. */
static void let(struct glake__held *held)
{
	struct glake__pooled *pooled = held->user;
	struct glake_pool_stats *stats = pooled->pool->stats;
	const uint64_t n_sealed = count_sealed(pooled);
	const uint64_t n_more = n_sealed - pooled->sealed_bytes;
	pooled->sealed_bytes = n_sealed;
	stats->live_bytes -= n_more;
	stats->used_bytes -= n_more;
	glake__pool_count_reserved(pooled->pool, -(int64_t)n_more);
	pooled->is_held = false;
	pooled->pool->n_held--;
}

static struct glake_session *session_of(const struct glake__range *range)
{
	const struct glake__pool *pool = range->user;
	return pool ? pool->device->session : NULL;
}

const struct glake__use glake__use_pool = {
	.name = "pool",
	.kind = GLAKE__HEAP,
	.is_private = true,
	.keeps_handles = true,
	.hold = hold,
	.let = let,
	.session = session_of,
};

const struct glake__use glake__use_stitched = {
	.name = "stitched",
	.kind = GLAKE__HEAP,
	.is_private = true,
	.hold = hold,
	.let = let,
};

bool glake__pool_is_held_locked(struct glake__allocation *allocation)
{
	return glake__pooled_of(allocation)->is_held;
}

bool glake__pool_has_held_locked(const struct glake__pool *pool)
{
	return pool->n_held > 0;
}

/* ---- what is a block ---------------------------------------------------------------------------- */

/* Or was one, and is in host memory now: that serves nobody else either. */
static bool is_block(const struct glake__piece *piece)
{
	return piece->chunk && piece->chunk->kind != GLAKE__PAGE_CHUNK;
}

/* A block, or lost: the driver has it mapped no more. */
static bool is_gone(const struct glake__piece *piece)
{
	return !piece->chunk || is_block(piece);
}

/* Where the part of [unit, end) ends that is gone, or is not. */
static uint64_t end_of_part(const struct glake__pool *pool, uint64_t unit, uint64_t end,
                            bool *is_gone_out)
{
	const struct glake__piece *piece = glake__range_piece_locked(pool->home,
	                                                             unit * RUN_UNIT_BYTES);
	*is_gone_out = is_gone(piece);
	do {
		unit = (piece->offset + piece->n_bytes) / RUN_UNIT_BYTES;
		piece = piece->next;
	} while (piece && unit < end && is_gone(piece) == *is_gone_out);
	return unit < end ? unit : end;
}

uint64_t glake__pool_count_sealed(const struct glake__pool *pool, const struct glake__run *run)
{
	const uint64_t begin = run->first * RUN_UNIT_BYTES;
	const uint64_t end = glake__run_end(run) * RUN_UNIT_BYTES;
	const struct glake__piece *piece = glake__range_piece_locked(pool->home, begin);
	uint64_t n_bytes = 0;
	for (; piece && piece->offset < end; piece = piece->next) {
		const uint64_t piece_end = piece->offset + piece->n_bytes;
		const uint64_t first = piece->offset > begin ? piece->offset : begin;
		n_bytes += is_block(piece) ? (piece_end < end ? piece_end : end) - first : 0;
	}
	return n_bytes / RUN_UNIT_BYTES;
}

bool glake__pool_is_true(const struct glake__pool *pool, const struct glake__stitched *stitched)
{
	uint64_t at = 0;
	bool is_true = true;
	for (size_t i = 0; pool->was_held && is_true && i < stitched->n_stretches; i++) {
		const struct glake__stretch *stretch = &stitched->stretches[i];
		is_true = glake__stitched_is_at(stitched, at, pool->home, stretch);
		at += stretch->n_pages * GLAKE__PAGE_BYTES;
	}
	return is_true;
}

bool glake__pool_is_busy(const struct glake__pool *pool, const struct glake__stitched *stitched)
{
	const struct glake__piece *piece = pool->n_held > 0 ? stitched->range->first : NULL;
	while (piece && !piece->holder) {
		piece = piece->next;
	}
	return piece != NULL;
}

/* ---- freeing ------------------------------------------------------------------------------------ */

static void push(struct glake__run **list, struct glake__run *run)
{
	run->next_in_bin = *list;
	*list = run;
}

static struct glake__run *pop(struct glake__run **list)
{
	struct glake__run *run = *list;
	*list = run ? run->next_in_bin : NULL;
	return run;
}

/* The parts of the used @run to the two lists. Without memory of the host, what cannot be cut counts as gone. */
static void part(struct glake__pool *pool, struct glake__run *run, struct glake__run **there,
                 struct glake__run **gone)
{
	while (run) {
		bool is_part_gone;
		uint64_t run_end = glake__run_end(run);
		uint64_t end = end_of_part(pool, run->first, run_end, &is_part_gone);
		struct glake__run *behind = NULL;
		if (end < run_end) {
			behind = glake__runs_split(&pool->runs, run, end);
			run = behind ? behind->previous : run;
			is_part_gone |= !behind;
		}
		push(is_part_gone ? gone : there, run);
		run = behind;
	}
}

void glake__pooled_doom(struct glake__pooled *pooled)
{
	struct glake__run *there = NULL;
	struct glake__run *run;
	if (!pooled->was_held) {
		return;
	}
	while ((run = pop(&pooled->runs))) {
		part(pooled->pool, run, &there, &pooled->doomed);
	}
	pooled->runs = there;
}

void glake__pooled_spare(struct glake__pooled *pooled)
{
	struct glake__run *run;
	while ((run = pop(&pooled->doomed))) {
		push(&pooled->runs, run);
	}
}

void glake__pooled_condemn(struct glake__pooled *pooled)
{
	struct glake__run *run;
	while ((run = pop(&pooled->doomed))) {
		push(&pooled->pool->doomed, run);
	}
}

/* ---- unmapping ---------------------------------------------------------------------------------- */

/* Retries the cuts that failed when runs were freed. No work uses a doomed run that is no block. */
static struct glake__run *take_doomed_locked(struct glake__pool *pool)
{
	struct glake__run *there = NULL;
	struct glake__run *gone = NULL;
	struct glake__run *list = NULL;
	struct glake__run *run;
	while ((run = pop(&pool->doomed))) {
		part(pool, run, &there, &gone);
	}
	while ((run = pop(&there))) {
		glake__runs_free(&pool->runs, run, &pool->runs.nobody, 0);
	}
	while ((run = pop(&gone))) {
		bool is_part_gone;
		const uint64_t end = glake__run_end(run);
		const bool is_one = end_of_part(pool, run->first, end, &is_part_gone) == end;
		const bool is_all_gone = is_one && is_part_gone;
		if (is_all_gone) {
			uint64_t n_lost = run->n_units - glake__pool_count_sealed(pool, run);
			glake__pool_count_reserved(pool, -(int64_t)(n_lost * RUN_UNIT_BYTES));
			run->number = CONDEMNED;
		}
		push(is_all_gone ? &list : &pool->doomed, run);
	}
	return list;
}

/* The blocks that @run touches: they are all condemned. */
static int clear_run(struct glake__pool *pool, const struct glake__run *run,
                     struct glake__chunk **dead)
{
	uint64_t offset = run->first * RUN_UNIT_BYTES;
	const uint64_t end = glake__run_end(run) * RUN_UNIT_BYTES;
	int r = 0;
	while (r == 0 && offset < end) {
		glake__lock();
		const struct glake__piece *piece = glake__range_piece_locked(pool->home, offset);
		const uint64_t begin = piece->offset;
		const uint64_t n_bytes = piece->n_bytes;
		const bool is_there = is_block(piece);
		glake__unlock();
		if (is_there) {
			r = glake__range_clear(pool->home, begin, n_bytes, dead);
		}
		offset = begin + n_bytes;
	}
	return r;
}

static bool is_condemned(const struct glake__run *run)
{
	return run && run->state == GLAKE__RUN_USED && run->number == CONDEMNED;
}

/* Is @run one of condemned ones, side by side, that are whole pages together? A hole must be. */
static bool is_of_pages(const struct glake__run *run)
{
	const struct glake__run *first = run;
	const struct glake__run *last = run;
	while (is_condemned(first->previous)) {
		first = first->previous;
	}
	while (is_condemned(last->next)) {
		last = last->next;
	}
	return first->first % RUN_PAGE_UNITS == 0 && glake__run_end(last) % RUN_PAGE_UNITS == 0;
}

/* A run that the driver has not unmapped, or has lost in part of a page, stays used for ever. */
static void end_doomed_locked(struct glake__pool *pool, struct glake__run *list)
{
	struct glake__run *holes = NULL;
	struct glake__run *run;
	while ((run = pop(&list))) {
		if (is_condemned(run) && is_of_pages(run)) {
			push(&holes, run);
		}
	}
	while ((run = pop(&holes))) {
		glake__runs_unmap(&pool->runs, run);
	}
}

/* Take the kept ranges that are not true and that no work uses, as a list by `newer`. */
static struct glake__stitched *take_untrue_locked(struct glake__pool *pool)
{
	struct glake__stitched *list = NULL;
	struct glake__stitched *at = pool->is_dirty ? pool->stitched.oldest : NULL;
	pool->is_dirty = false;
	while (at) {
		struct glake__stitched *next = at->newer;
		bool is_true = glake__pool_is_true(pool, at);
		if (!is_true && glake__pool_is_idle(pool, at)) {
			glake__stitched_remove(&pool->stitched, at);
			pool->stats->n_unmapped += at->n_chunks;
			at->newer = list;
			list = at;
		} else if (!is_true) {
			pool->is_dirty = true;
		}
		at = next;
	}
	glake__pool_count_stitched(pool);
	return list;
}

void glake__pool_purge(struct glake__pool *pool)
{
	cleanup_cancel int cancel = cancel_disable();
	struct glake__chunk *dead = NULL;
	struct glake__reclaim reclaim;
	glake__lock();
	struct glake__run *doomed = take_doomed_locked(pool);
	pool->is_dirty |= doomed != NULL;
	glake__reclaim_begin(pool, &reclaim);
	glake__unlock();
	for (struct glake__run *run = doomed; run; run = run->next_in_bin) {
		if (clear_run(pool, run, &dead) < 0) {
			glake__lock();
			run->number = 0;
			glake__unlock();
		}
	}
	glake__grant_return(pool->device->session, dead);
	glake__lock();
	end_doomed_locked(pool, doomed);
	glake__reclaim_end(pool, &reclaim);
	struct glake__stitched *untrue = take_untrue_locked(pool);
	glake__unlock();
	while (untrue) {
		struct glake__stitched *next = untrue->newer;
		glake__stitched_drop(pool->device->session, untrue);
		untrue = next;
	}
}
