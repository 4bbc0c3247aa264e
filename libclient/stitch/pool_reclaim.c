/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a stream may still use must not go back to glaked. So only whole chunks in nobody's free runs, which every
 * stream has passed, are victims. They are marked as used under the lock and unmapped without it, so nobody takes them
 * meanwhile. A run that the driver does not unmap stays used.
 */
#include "libclient/link/session.h"
#include "libclient/space/grant.h"
#include "libclient/stitch/pool_parts.h"
#include "libclient/space/reback.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* Given back at a time by a call of the program that frees. */
#define SETTLE_BYTES (32ull << 20)
/* And by another thread: in the driver the program may wait for that. */
#define IDLE_BYTES (256ull << 20)
/* Other threads give back meanwhile. A thread that seals may hold their memory, and wait for the one that waits here. */
#define AWAIT_NS 1000000000u
#define AWAIT_PAUSE_NS 20000u
/* Calls between two looks at the clock. */
#define SETTLE_CALLS 64u
/* Memory above the peak of the last rounds that stays, as a part of that. */
#define SLACK_PART 8u
/* The pool remembers for this many rounds that memory went back. */
#define TRIMMED_ROUNDS 8u

/* Memory that goes back: used runs of whole chunks, by next_in_bin, and the stitched ranges that map some of them. */
struct victims {
	struct glake__run *runs;
	struct glake__run *stuck;         /* the driver has not unmapped them */
	struct glake__stitched *stitched; /* by newer */
	uint64_t n_bytes;
	uint64_t n_chunks; /* unmapped */
};

/* Is the chunk at @page in a stitched range that is live, or was for work that goes on? Also behind its end. */
static bool is_kept(const struct glake__pool *pool, uint64_t page)
{
	bool is_kept = false;
	for (const struct glake__piece *at = glake__pool_mappings_at(pool, page); !is_kept && at;
	     at = at->next_mapping) {
		const struct glake__stitched *stitched = at->range->user;
		is_kept = at->range->use == &glake__use_stitched &&
		          (stitched->is_live || !glake__pool_is_idle(pool, stitched));
	}
	return is_kept;
}

/* The stitched ranges that map the chunk at @page, which is not kept. Others may be dropping some of them already. */
static void take_stitched(struct glake__pool *pool, uint64_t page, struct victims *victims)
{
	for (const struct glake__piece *at = glake__pool_mappings_at(pool, page); at;
	     at = at->next_mapping) {
		struct glake__stitched *stitched = at->range->user;
		if (at->range->use == &glake__use_stitched && stitched->is_in_set) {
			glake__stitched_remove(&pool->stitched, stitched);
			pool->stats->n_unmapped += stitched->n_chunks;
			stitched->newer = victims->stitched;
			victims->stitched = stitched;
		}
	}
}

/* NULL without memory of the host. */
static struct glake__run *take_victim(struct glake__pool *pool, struct glake__run *run,
                                      const struct glake__stretch *stretch, struct victims *victims)
{
	run = glake__runs_use(&pool->runs, run, stretch->page * RUN_PAGE_UNITS,
	                      stretch->n_pages * RUN_PAGE_UNITS);
	if (run) {
		run->next_in_bin = victims->runs;
		victims->runs = run;
		victims->n_bytes += stretch->n_pages * GLAKE__PAGE_BYTES;
		uint64_t page = stretch->page;
		while (page < stretch->page + stretch->n_pages) {
			take_stitched(pool, page, victims);
			page += glake__pool_chunk_at(pool, page).n_pages;
		}
	}
	return run;
}

/* The last whole chunks in @run that may go, @n_pages or a little more; n_pages 0: there are none. */
static struct glake__stretch find_victim(const struct glake__pool *pool,
                                         const struct glake__run *run, uint64_t n_pages)
{
	struct glake__stretch victim = {.n_pages = 0};
	struct glake__stretch whole = {.n_pages = 0};
	if (run->state == GLAKE__RUN_FREE && run->line == &pool->runs.nobody) {
		whole = glake__pool_whole_chunks(pool, run);
	}
	uint64_t end = whole.page + whole.n_pages;
	while (end > whole.page && victim.n_pages < n_pages) {
		struct glake__stretch chunk = glake__pool_chunk_at(pool, end - 1);
		if (!is_kept(pool, chunk.page)) {
			victim.page = chunk.page;
			victim.n_pages += chunk.n_pages;
		} else if (victim.n_pages > 0) {
			break;
		}
		end = chunk.page;
	}
	return victim;
}

/* From the highest address down, so that what stays lies together. */
static void take_victims_locked(struct glake__pool *pool, uint64_t n_bytes, struct victims *victims)
{
	glake__runs_unite(&pool->runs);
	struct glake__run *run = glake__runs_at(&pool->runs, pool->runs.n_units - 1);
	while (run && victims->n_bytes < n_bytes) {
		uint64_t n_left = n_bytes - victims->n_bytes + GLAKE__PAGE_BYTES - 1;
		struct glake__stretch stretch = find_victim(pool, run, n_left / GLAKE__PAGE_BYTES);
		struct glake__run *taken = NULL;
		if (stretch.n_pages > 0) {
			taken = take_victim(pool, run, &stretch, victims);
		}
		/* The run before it comes next. */
		run = taken ? taken->previous : run->previous;
	}
	glake__pool_count_stitched(pool);
}

/* Returns the chunks that are free now. */
static struct glake__chunk *unmap(struct glake__pool *pool, struct victims *victims)
{
	struct glake__chunk *all = NULL;
	while (victims->stitched) {
		struct glake__stitched *stitched = victims->stitched;
		victims->stitched = stitched->newer;
		glake__stitched_drop(pool->device->session, stitched);
	}
	struct glake__run *runs = victims->runs;
	victims->runs = NULL;
	while (runs) {
		struct glake__run *run = runs;
		runs = run->next_in_bin;
		struct glake__chunk *dead = NULL;
		int r = glake__range_clear(pool->home, run->first * RUN_UNIT_BYTES,
		                           run->n_units * RUN_UNIT_BYTES, &dead);
		struct glake__run **list = r == 0 ? &victims->runs : &victims->stuck;
		run->next_in_bin = *list;
		*list = run;
		while (dead) {
			struct glake__chunk *next = dead->next;
			dead->next = all;
			all = dead;
			dead = next;
			victims->n_chunks++;
		}
	}
	return all;
}

/* Returns the bytes that have gone. */
static uint64_t end_victims_locked(struct glake__pool *pool, struct victims *victims)
{
	uint64_t n_gone = victims->n_bytes;
	pool->stats->n_unmapped += victims->n_chunks;
	while (victims->runs) {
		struct glake__run *run = victims->runs;
		victims->runs = run->next_in_bin;
		glake__pool_count_reserved(pool, -(int64_t)(run->n_units * RUN_UNIT_BYTES));
		glake__runs_unmap(&pool->runs, run);
	}
	/* Stuck runs are never used again. */
	for (const struct glake__run *run = victims->stuck; run; run = run->next_in_bin) {
		pool->stats->used_bytes += run->n_units * RUN_UNIT_BYTES;
		n_gone -= run->n_units * RUN_UNIT_BYTES;
	}
	return n_gone;
}

static uint64_t lesser(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

void glake__reclaim_begin(struct glake__pool *pool, struct glake__reclaim *reclaim)
{
	reclaim->number = ++pool->n_reclaims;
	reclaim->next = pool->reclaims;
	pool->reclaims = reclaim;
}

void glake__reclaim_end(struct glake__pool *pool, const struct glake__reclaim *reclaim)
{
	struct glake__reclaim **at = &pool->reclaims;
	while (*at != reclaim) {
		at = &(*at)->next;
	}
	*at = reclaim->next;
}

/* Does one of the first @n go on? */
static bool is_any_of(struct glake__pool *pool, uint64_t n)
{
	glake__lock();
	const struct glake__reclaim *at = pool->reclaims;
	while (at && at->number > n) {
		at = at->next;
	}
	glake__unlock();
	return at != NULL;
}

void glake__pool_await_reclaims(struct glake__pool *pool)
{
	cleanup_cancel int cancel = cancel_disable();
	const uint64_t until_ns = clock_now_ns() + AWAIT_NS;
	glake__lock();
	const uint64_t n = pool->n_reclaims;
	glake__unlock();
	while (is_any_of(pool, n) && clock_now_ns() < until_ns) {
		clock_sleep_ns(AWAIT_PAUSE_NS);
	}
}

uint64_t glake__pool_reclaim(struct glake__pool *pool, uint64_t n_bytes, bool is_owed)
{
	cleanup_cancel int cancel = cancel_disable();
	struct victims victims = {.n_bytes = 0};
	struct glake__reclaim reclaim;
	uint64_t *debt = &pool->device->reclaim_debt;
	glake__pool_purge(pool);
	glake__lock();
	take_victims_locked(pool, n_bytes, &victims);
	/* At once, or another thread would pay it, too. */
	uint64_t n_paid = is_owed ? lesser(*debt, victims.n_bytes) : 0;
	*debt -= n_paid;
	pool->trimmed_bytes = is_owed ? 0 : pool->trimmed_bytes;
	glake__reclaim_begin(pool, &reclaim);
	glake__unlock();
	struct glake__chunk *dead = unmap(pool, &victims);
	glake__grant_return(pool->device->session, dead);
	glake__lock();
	uint64_t n_gone = end_victims_locked(pool, &victims);
	*debt += n_paid - lesser(n_paid, n_gone);
	pool->lent_bytes += is_owed ? n_gone : 0;
	glake__reclaim_end(pool, &reclaim);
	glake__unlock();
	return n_gone;
}

/* A round is over: what is above the peak of the last two is spare. Called with the lock held. */
static void end_round(struct glake__pool *pool, uint64_t now_ns)
{
	uint64_t peak = pool->peak_bytes > pool->last_peak_bytes ? pool->peak_bytes
	                                                         : pool->last_peak_bytes;
	uint64_t keep = peak + peak / SLACK_PART;
	uint64_t reserved = pool->stats->reserved_bytes;
	pool->spare_bytes = reserved > keep ? reserved - keep : 0;
	pool->n_calm_rounds = pool->spare_bytes > 0 ? 0 : pool->n_calm_rounds + 1;
	if (pool->spare_bytes > 0) {
		pool->trimmed_bytes = reserved;
	} else if (pool->n_calm_rounds > TRIMMED_ROUNDS) {
		pool->trimmed_bytes = 0;
	}
	pool->last_peak_bytes = pool->peak_bytes;
	pool->peak_bytes = pool->stats->used_bytes;
	pool->round_ns = now_ns;
}

/* Small frees seldom leave a whole chunk free, and looking for one reads all runs. */
static void settle(struct glake__pool *pool, unsigned n_calls, uint64_t n_freed,
                   uint64_t most_bytes)
{
	glake__lock();
	pool->n_calls += n_calls;
	bool looks = n_freed >= GLAKE__PAGE_BYTES;
	if (pool->n_calls >= SETTLE_CALLS) {
		looks = true;
		pool->is_spare_busy = false;
		uint64_t now_ns = clock_now_ns();
		pool->n_calls = 0;
		if (now_ns - pool->round_ns >= pool->round_length_ns) {
			end_round(pool, now_ns);
		}
	}
	bool keeps_any = pool->device->session->warm_bytes > 0;
	uint64_t free_bytes = looks ? glake__pool_free_bytes_locked(pool) : 0;
	uint64_t owed = lesser(pool->device->reclaim_debt, free_bytes);
	uint64_t spare = pool->is_spare_busy ? 0 : lesser(pool->spare_bytes, most_bytes);
	bool needs_purge = pool->doomed || pool->is_dirty;
	glake__unlock();
	if (needs_purge) {
		glake__pool_purge(pool);
	}
	if (owed > 0) {
		glake__pool_reclaim(pool, owed, true);
	} else if (spare > 0 || (!keeps_any && free_bytes > 0)) {
		uint64_t n_gone = glake__pool_reclaim(pool, keeps_any ? spare : free_bytes, false);
		glake__lock();
		pool->spare_bytes -= lesser(pool->spare_bytes, n_gone);
		pool->lent_bytes += n_gone;
		pool->is_spare_busy = n_gone == 0;
		glake__unlock();
	}
}

void glake__pool_settle(struct glake__pool *pool, uint64_t n_freed)
{
	settle(pool, 1, n_freed, SETTLE_BYTES);
}

void glake__pool_settle_idle(struct glake__pool *pool)
{
	settle(pool, SETTLE_CALLS, 0, IDLE_BYTES);
}
