/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making memory takes driver calls and requests to glaked, and both can fail halfway. The runs that a step needs are marked as
 * used under the lock first, so that no other thread takes them meanwhile; the slow step runs without the lock; a failure
 * gives the runs back.
 */
#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/link/session.h"
#include "libclient/space/grant.h"
#include "libclient/stitch/pool_parts.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/*
 * With less than this part of a request free, stitching would map much to save little. What is free then is lost at
 * the peak; and to map what has just come takes the driver half as long as getting it.
 */
#define WORTH_PART 32u
/* Fresh memory starts on 2 MiB if no more than this part of it is wasted at its end. */
#define ALIGNED_PART 16u
/* Kept stitched ranges have at most this many times the pool's memory. */
#define KEPT_TIMES 4u
/*
 * A chunk is this part of the pool's memory, 2 MiB to 64 MiB: the driver's time is by the chunk, and what lies
 * unused between allocations is a part of one.
 */
#define CHUNK_PART 512u
#define CHUNK_MAX_BYTES (64ull << 20)
/*
 * Requests from here on get one chunk while nothing needs to be stitched: before memory has been used again, when
 * most are weights, and after this many growths without a stitch.
 */
#define WHOLE_MIN_BYTES (32ull << 20)
#define PLAIN_GROWS 64u
/* Memory that went back comes again in chunks of this part of a request: it may go to and fro. */
#define LENT_PART 8u
/* glaked asks the others before it refuses: for this long after a refusal, a stream borrows before it asks again. */
#define REFUSED_NS 1000000000u
/*
 * A stream borrows once more than this part of what the pool needs at once, and these bytes, is freed and not passed:
 * memory is cheaper than a wait.
 */
#define WASTE_PART 64u
#define WASTE_MIN_BYTES (32ull << 20)
/* The longest wait for chunks that are held; and the longest if no other memory is left. */
#define HELD_NS 2000000u
#define HELD_SHORT_NS 1000000000u
/* Streams that one allocation may wait for. */
#define MAX_LOANS 3u

static uint64_t page_up(uint64_t unit)
{
	return glake__pages_of(unit) * RUN_PAGE_UNITS;
}

/* ---- growing ----------------------------------------------------------------------------------- */

static uint64_t chunk_bytes_for(const struct glake__pool *pool, uint64_t n_bytes)
{
	uint64_t chunk_bytes = GLAKE__PAGE_BYTES;
	bool is_plain = !pool->is_reused || pool->n_grows_plain >= PLAIN_GROWS;
	if (is_plain && n_bytes >= WHOLE_MIN_BYTES) {
		return glake__grant_chunk_bytes(n_bytes);
	}
	uint64_t wanted = pool->stats->reserved_bytes / CHUNK_PART;
	if (pool->lent_bytes > 0 && wanted < n_bytes / LENT_PART) {
		wanted = n_bytes / LENT_PART;
	}
	while (chunk_bytes < CHUNK_MAX_BYTES && 2 * chunk_bytes <= wanted) {
		chunk_bytes *= 2;
	}
	return chunk_bytes;
}

/* The pool grows. If memory that it trimmed would do, it trimmed too early. */
static void look_back(struct glake__pool *pool)
{
	if (pool->stats->reserved_bytes < pool->trimmed_bytes) {
		pool->trimmed_bytes = 0;
		if (pool->round_length_ns < POOL_ROUND_MAX_NS) {
			pool->round_length_ns *= 2;
		}
	}
}

/* Memory of glaked for the used @run, which is in a hole. No lock is held. */
static int fill(struct glake__pool *pool, const struct glake__run *run, struct glake__wait *wait)
{
	uint64_t n_bytes = run->n_units * RUN_UNIT_BYTES;
	glake__lock();
	uint64_t chunk_bytes = chunk_bytes_for(pool, n_bytes);
	glake__unlock();
	int r = glake__grant_fill(pool->device, pool->home, run->first * RUN_UNIT_BYTES, n_bytes,
	                          chunk_bytes, wait);
	glake__lock();
	if (r == 0) {
		pool->stats->n_grows++;
		pool->n_grows_plain++;
		pool->lent_bytes -= n_bytes < pool->lent_bytes ? n_bytes : pool->lent_bytes;
		pool->stats->grown_bytes += n_bytes;
		pool->stats->n_mapped += (n_bytes + chunk_bytes - 1) / chunk_bytes;
		pool->spare_bytes = 0;
		look_back(pool);
		glake__pool_count_reserved(pool, (int64_t)n_bytes);
	}
	glake__unlock();
	return r;
}

/* Where fresh memory starts for @n_units, if free memory ends at a hole at @run. */
static uint64_t start_in(const struct glake__run *run, uint64_t n_units)
{
	uint64_t waste = page_up(n_units) - n_units;
	bool is_aligned = n_units >= RUN_PAGE_UNITS && waste <= n_units / ALIGNED_PART;
	return is_aligned ? page_up(run->first) : run->first;
}

/* The hole behind the most free memory of @line's that @n_units can begin in; NULL: there is none. */
static struct glake__run *find_frontier(struct glake__pool *pool, const struct glake__line *line,
                                        uint64_t n_units)
{
	struct glake__run *best = NULL;
	uint64_t most = 0;
	for (unsigned bin = 0; bin < RUN_BINS; bin++) {
		for (struct glake__run *at = pool->runs.holes.first[bin]; at;
		     at = at->next_in_bin) {
			const struct glake__run *before = at->previous;
			if (!before || before->state != GLAKE__RUN_FREE ||
			    !glake__run_serves(before, line)) {
				continue;
			}
			uint64_t start = start_in(before, n_units);
			uint64_t n_have = start < at->first ? at->first - start : 0;
			if (n_have > most && n_have < n_units &&
			    at->n_units >= page_up(n_units - n_have)) {
				best = at;
				most = n_have;
			}
		}
	}
	return best;
}

/* The place where an allocation can grow: free memory, if any, and the hole behind it. */
struct gap {
	struct glake__run *before; /* used; NULL: none */
	struct glake__run *fresh;  /* used; no memory yet */
};

static int find_gap_locked(struct glake__pool *pool, struct glake__line *line, uint64_t n_units,
                           struct gap *gap)
{
	struct glake__run *hole = find_frontier(pool, line, n_units);
	uint64_t n_have = 0;
	*gap = (struct gap){.before = NULL};
	if (hole) {
		struct glake__run *before = hole->previous;
		uint64_t start = start_in(before, n_units);
		n_have = hole->first - start;
		gap->before = glake__runs_use(&pool->runs, before, start, n_have);
	}
	if (!gap->before) {
		n_have = 0;
		hole = glake__runs_find_hole(&pool->runs, page_up(n_units));
	}
	gap->fresh = hole ? glake__runs_use(&pool->runs, hole, hole->first,
	                                    page_up(n_units - n_have))
	                  : NULL;
	if (!gap->fresh && gap->before) {
		glake__runs_give_back(&pool->runs, gap->before);
	}
	return gap->fresh ? 0 : glake__fail(-ENOMEM, "the pool has no addresses left");
}

/* Cuts the used @run behind @n_units; the rest becomes nobody's. Returns the used part. */
static struct glake__run *let_rest_locked(struct glake__pool *pool, struct glake__run *run,
                                          uint64_t n_units)
{
	struct glake__run *rest = NULL;
	if (run->n_units > n_units) {
		rest = glake__runs_split(&pool->runs, run, run->first + n_units);
	}
	if (rest) {
		run = rest->previous;
		glake__runs_free(&pool->runs, rest, &pool->runs.nobody, 0);
	}
	return run;
}

/* Way 4. */
static int grow(struct glake__pool *pool, struct glake__pooled *pooled, struct glake__line *line,
                struct glake__wait *wait)
{
	uint64_t n_units = glake__units_of(pooled->allocation.n_bytes);
	struct gap gap;
	glake__lock();
	int r = find_gap_locked(pool, line, n_units, &gap);
	glake__unlock();
	if (r < 0) {
		return r;
	}
	r = fill(pool, gap.fresh, wait);
	glake__lock();
	if (r == 0) {
		struct glake__run *run = gap.before ? glake__runs_join(&pool->runs, gap.before)
		                                    : gap.fresh;
		glake__pooled_add_run(pooled, let_rest_locked(pool, run, n_units));
	} else {
		glake__runs_unmap(&pool->runs, gap.fresh);
		if (gap.before) {
			glake__runs_give_back(&pool->runs, gap.before);
		}
	}
	glake__unlock();
	return r;
}

/* ---- stitching --------------------------------------------------------------------------------- */

/*
 * Is stitching worth it? Of a recipe that misses something, only if there is much of the rest, and if growing next to
 * free memory would not do with as little of glaked.
 */
static bool is_worth(struct glake__pool *pool, const struct glake__line *line, uint64_t n_units,
                     const struct glake__recipe *recipe)
{
	if (recipe->n_missing == 0) {
		return true;
	}
	const struct glake__run *hole = find_frontier(pool, line, n_units);
	uint64_t n_grown = n_units;
	if (hole) {
		n_grown -= hole->first - start_in(hole->previous, n_units);
	}
	return recipe->n_units >= n_units / WORTH_PART &&
	       glake__pages_of(recipe->n_missing) < glake__pages_of(n_grown);
}

/* The number of pages of stitched ranges that are kept. */
static uint64_t most_kept_pages(const struct glake__pool *pool)
{
	uint64_t n_pages = KEPT_TIMES * (pool->stats->reserved_bytes / GLAKE__PAGE_BYTES);
	return n_pages > pool->kept_min_pages ? n_pages : pool->kept_min_pages;
}

/* Gives @pooled the free memory of @recipe. An empty recipe: none is free, or stitching is not worth it. */
static int take_recipe_locked(struct glake__pool *pool, struct glake__pooled *pooled,
                              struct glake__line *line, bool is_tight, struct glake__recipe *recipe)
{
	uint64_t n_units = glake__units_of(pooled->allocation.n_bytes);
	int r = glake__recipe_make(pool, line, n_units, recipe);
	if (r == 0 && !is_tight && !is_worth(pool, line, n_units, recipe)) {
		recipe->n = 0;
	}
	if (r < 0 || recipe->n == 0) {
		return r;
	}
	bool is_full = pool->stitched.n_kept_pages + glake__pages_of(n_units) >
	               most_kept_pages(pool);
	glake__recipe_change(pool, line, n_units, is_full, recipe);
	if (!glake__pooled_carve(pool, pooled, recipe->list, recipe->n_skipped, recipe->n_units)) {
		glake__pooled_give_up(pooled);
		return glake__fail(-ENOMEM, "out of memory");
	}
	return 0;
}

/* Fresh memory for what is missing. Some of its last page may be left over. */
static int add_missing(struct glake__pool *pool, struct glake__pooled *pooled,
                       struct glake__recipe *recipe, struct glake__wait *wait)
{
	uint64_t n_units = page_up(recipe->n_missing);
	glake__lock();
	struct glake__run *hole = glake__runs_find_hole(&pool->runs, n_units);
	struct glake__run *run = hole ? glake__runs_use(&pool->runs, hole, hole->first, n_units)
	                              : NULL;
	glake__unlock();
	if (!run) {
		return glake__fail(-ENOMEM, "the pool has no addresses left");
	}
	struct glake__stretch fresh = {run->first / RUN_PAGE_UNITS, n_units / RUN_PAGE_UNITS};
	int r = fill(pool, run, wait);
	glake__lock();
	if (r == 0) {
		glake__pooled_add_run(pooled, let_rest_locked(pool, run, recipe->n_missing));
		recipe->list[recipe->n++] = fresh;
	} else {
		glake__runs_unmap(&pool->runs, run);
	}
	glake__unlock();
	if (r == 0 && recipe->has_last) {
		recipe->list[recipe->n - 1] = recipe->list[recipe->n - 2];
		recipe->list[recipe->n - 2] = fresh;
	}
	return r;
}

/* The oldest kept range that no work uses, if there are too many; it is the caller's to drop. */
static struct glake__stitched *take_oldest_locked(struct glake__pool *pool)
{
	struct glake__stitched *oldest = pool->stitched.oldest;
	if (pool->stitched.n_kept_pages <= most_kept_pages(pool)) {
		return NULL;
	}
	while (oldest && !glake__pool_is_idle(pool, oldest)) {
		oldest = oldest->newer;
	}
	if (!oldest) {
		return NULL;
	}
	glake__stitched_remove(&pool->stitched, oldest);
	pool->stats->n_unmapped += oldest->n_chunks;
	glake__pool_count_stitched(pool);
	return oldest;
}

static void drop_oldest(struct glake__pool *pool)
{
	struct glake__stitched *oldest;
	do {
		glake__lock();
		oldest = take_oldest_locked(pool);
		glake__unlock();
		if (oldest) {
			glake__stitched_drop(pool->device->session, oldest);
		}
	} while (oldest);
}

/* @stitched, in the set and live, is @pooled's; @n_mapped chunks of it were not there before. */
static void begin_stitched_locked(struct glake__pool *pool, struct glake__pooled *pooled,
                                  struct glake__stitched *stitched, size_t n_mapped)
{
	stitched->user = pooled;
	pooled->stitched = stitched;
	pool->is_reused = true;
	pool->n_grows_plain = 0;
	pool->stats->n_stitches++;
	pool->stats->stitched_bytes += stitched->n_pages * GLAKE__PAGE_BYTES;
	pool->stats->n_mapped += n_mapped;
}

static int map_new(struct glake__pool *pool, struct glake__pooled *pooled,
                   struct glake__recipe *recipe)
{
	struct glake__stitched *stitched;
	int r = glake__stitched_new(pool->device->session, pool->home, pool->device->handle,
	                            recipe->list, recipe->n, &stitched);
	if (r < 0) {
		return r;
	}
	recipe->list = NULL;
	stitched->n_skipped = recipe->n_skipped;
	glake__lock();
	r = glake__stitched_add(&pool->stitched, stitched);
	if (r == 0) {
		begin_stitched_locked(pool, pooled, stitched, stitched->n_chunks);
	}
	glake__pool_count_stitched(pool);
	glake__unlock();
	if (r < 0) {
		glake__stitched_drop(pool->device->session, stitched);
	}
	return r;
}

/* After an error its kept range is as it was, and kept, or it is gone. */
static int map_changed(struct glake__pool *pool, struct glake__pooled *pooled,
                       struct glake__recipe *recipe)
{
	struct glake__stitched_change change;
	struct glake__stitched *stitched = recipe->kept;
	int r = glake__stitched_change(pool->device->session, pool->home, stitched, recipe->list,
	                               recipe->n, &change);
	bool is_broken = r < 0 && change.n_unmapped + change.n_mapped > 0;
	glake__lock();
	pool->stats->n_unmapped += change.n_unmapped;
	if (r == 0) {
		glake__stitched_set_row(&pool->stitched, stitched, ptr_steal(recipe->list),
		                        recipe->n, change.n_chunks);
		stitched->n_skipped = recipe->n_skipped;
		begin_stitched_locked(pool, pooled, stitched, change.n_mapped);
	} else {
		glake__stitched_set_kept(&pool->stitched, stitched);
	}
	if (is_broken) {
		glake__stitched_remove(&pool->stitched, stitched);
	}
	glake__pool_count_stitched(pool);
	glake__unlock();
	if (is_broken) {
		char *text = glake__error_save();
		glake__stitched_drop(pool->device->session, stitched);
		glake__error_restore(text);
	}
	return r;
}

/* Way 3, with what is free of @recipe already @pooled's, and its kept range live. */
static int stitch(struct glake__pool *pool, struct glake__pooled *pooled,
                  struct glake__recipe *recipe, struct glake__wait *wait)
{
	int r = recipe->n_missing > 0 ? add_missing(pool, pooled, recipe, wait) : 0;
	if (r < 0 && recipe->kept) {
		glake__lock();
		glake__stitched_set_kept(&pool->stitched, recipe->kept);
		glake__unlock();
	} else if (r == 0) {
		r = recipe->kept ? map_changed(pool, pooled, recipe)
		                 : map_new(pool, pooled, recipe);
	}
	if (r < 0) {
		glake__lock();
		glake__pooled_give_up(pooled);
		glake__unlock();
	} else {
		drop_oldest(pool);
	}
	return r;
}

/* ---- making ------------------------------------------------------------------------------------ */

static bool lacks_memory(int r)
{
	return r == GLAKE_E_OVER_QUOTA || r == GLAKE_E_NO_DEVICE_MEMORY || r == GLAKE_E_NO_FDS;
}

/*
 * Has the pool, with @n_pages more, clearly more than it needed at once lately? Then streams have freed too much that
 * they have not passed. Called with the lock held.
 */
static bool is_wasteful(const struct glake__pool *pool, uint64_t n_bytes, uint64_t n_pages)
{
	uint64_t peak = pool->stats->used_bytes + n_bytes;
	peak = peak > pool->peak_bytes ? peak : pool->peak_bytes;
	peak = peak > pool->last_peak_bytes ? peak : pool->last_peak_bytes;
	uint64_t slack = peak / WASTE_PART > WASTE_MIN_BYTES ? peak / WASTE_PART : WASTE_MIN_BYTES;
	return pool->stats->reserved_bytes + n_pages * GLAKE__PAGE_BYTES > peak + slack;
}

/* How hard one try to make an allocation is. */
struct effort {
	bool is_short; /* of memory: the least that is free is worth stitching, and borrowing comes before asking */
	bool is_plain; /* nothing is stitched: a thread that seals holds chunks */
};

/* Ways 1 and 2, else 3: what is free of @recipe is @pooled's. An empty recipe: nothing is worth it. */
static int take_locked(struct glake__pool *pool, struct glake__pooled *pooled,
                       struct glake__line *line, struct effort effort, struct glake__recipe *recipe,
                       bool *is_taken_out)
{
	uint64_t n_units = glake__units_of(pooled->allocation.n_bytes);
	free(recipe->list);
	*recipe = (struct glake__recipe){.n_missing = n_units};
	*is_taken_out = glake__pooled_take(pool, pooled, line);
	int r = 0;
	if (!*is_taken_out && n_units > RUN_PAGE_UNITS && !effort.is_plain) {
		r = take_recipe_locked(pool, pooled, line, effort.is_short, recipe);
		recipe->n_missing = recipe->n > 0 ? recipe->n_missing : n_units;
	}
	return r;
}

/* Is it time for way 5? Called with the lock held. */
static bool find_loan_locked(struct glake__pool *pool, const struct glake__pooled *pooled,
                             const struct glake__line *line, bool is_short, uint64_t n_missing,
                             struct glake__loan *loan_out)
{
	uint64_t n_bytes = pooled->allocation.n_capacity;
	bool is_time = n_missing > 0 &&
	               (is_short || is_wasteful(pool, n_bytes, glake__pages_of(n_missing)));
	return is_time &&
	       glake__pool_find_loan(pool, line, n_bytes / RUN_UNIT_BYTES, n_missing, loan_out);
}

static int make_once(struct glake__pool *pool, struct glake__pooled *pooled,
                     struct glake__line *line, struct effort effort, struct glake__wait *wait)
{
	struct glake__recipe recipe = {.n = 0};
	struct glake__loan loan;
	bool is_taken;
	unsigned n_left = wait->order ? MAX_LOANS : 0;
	glake__lock();
	int r = take_locked(pool, pooled, line, effort, &recipe, &is_taken);
	while (r == 0 && !is_taken && n_left-- > 0 &&
	       find_loan_locked(pool, pooled, line, effort.is_short, recipe.n_missing, &loan)) {
		glake__pooled_give_up(pooled);
		glake__unlock();
		n_left = glake__pool_borrow(&loan, line, wait) ? n_left : 0;
		glake__lock();
		effort.is_short = true;
		r = take_locked(pool, pooled, line, effort, &recipe, &is_taken);
	}
	if (r == 0 && recipe.kept) {
		glake__stitched_set_live(&pool->stitched, recipe.kept);
	}
	glake__unlock();
	if (r == 0 && !is_taken) {
		r = recipe.n > 0 ? stitch(pool, pooled, &recipe, wait)
		                 : grow(pool, pooled, line, wait);
	}
	free(recipe.list);
	return r;
}

/*
 * Chunks that it would map may be held, to seal what lies beside free memory in them. That takes as long as glaked
 * needs, and the holder may wait for this thread to leave the driver. So only a moment is waited for it.
 */
static int make(struct glake__pool *pool, struct glake__pooled *pooled, struct glake__line *line,
                bool is_short, struct glake__wait *wait)
{
	struct effort effort = {.is_short = is_short};
	uint64_t until_ns = clock_now_ns() + (is_short ? HELD_SHORT_NS : HELD_NS);
	int r = make_once(pool, pooled, line, effort, wait);
	while ((r == -EBUSY || r == -ESTALE) && clock_now_ns() < until_ns) {
		glake__busy_pause();
		r = make_once(pool, pooled, line, effort, wait);
	}
	if (r == -EBUSY || r == -ESTALE) {
		effort.is_plain = true;
		r = make_once(pool, pooled, line, effort, wait);
	}
	return r;
}

int glake__pool_make(struct glake__pool *pool, uint64_t n_bytes, const struct glake__tag *tag,
                     struct glake__wait *wait, struct glake__allocation **allocation_out)
{
	cleanup_cancel int cancel = cancel_disable();
	glake__lock();
	struct glake__line *line = glake__runs_line(&pool->runs, tag->stream - 1);
	if (line) {
		line->n_holders++;
	}
	bool is_refused = pool->refused_ns > 0 && clock_now_ns() - pool->refused_ns < REFUSED_NS;
	glake__unlock();
	struct glake__pooled *pooled = line ? glake__pooled_new(pool, n_bytes, tag) : NULL;
	int r = pooled ? 0 : glake__fail(-ENOMEM, "out of memory");
	if (r == 0) {
		r = make(pool, pooled, line, is_refused, wait);
	}
	if (lacks_memory(r)) {
		glake__lock();
		pool->refused_ns = clock_now_ns();
		glake__unlock();
		r = make(pool, pooled, line, true, wait);
	}
	glake__lock();
	if (r == 0) {
		*allocation_out = glake__pooled_begin(pooled);
	}
	if (line) {
		line->n_holders--;
	}
	glake__unlock();
	if (r < 0) {
		free(pooled);
	}
	return r;
}
