/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "libclient/link/session.h"
#include "libclient/memory/backing.h"
#include "libclient/memory/heap.h"
#include "libclient/memory/pool_parts.h"
#include "libclient/memory/reback.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* Given back at a time by a call of the program that frees. */
#define SETTLE_BYTES (32ull << 20)
/* And by another thread: in the driver the program may wait for that. */
#define IDLE_BYTES (256ull << 20)
/* Between two looks at the clock. */
#define SETTLE_CALLS 64u
/* Memory above the peak of the last rounds that stays, as a part of that. */
#define SLACK_PART 8u

/* What goes back: used runs of whole chunks, by next_in_bin, and the stitched ranges that map some of them. */
struct victims {
	struct glake__run *runs;
	struct glake__run *stuck;         /* the driver has not unmapped them */
	struct glake__stitched *stitched; /* by newer */
	uint64_t n_bytes;
	uint64_t n_chunks; /* unmapped */
	uint8_t *marks;    /* owned; by page of home: */
};
enum {
	VICTIM = 1, /* it goes */
	KEPT = 2,   /* a stitched range maps it that is live, or was for work that goes on */
};

/* Of those in use, with what they have behind the end of the allocation: nobody unmaps a part of one. */
static void mark_kept(const struct glake__pool *pool, uint8_t *marks)
{
	for (size_t i = 0; i < pool->stitched.n; i++) {
		const struct glake__stitched *stitched = pool->stitched.by_size[i];
		bool is_used = stitched->is_live || !glake__pool_is_idle(pool, stitched);
		for (size_t j = 0; is_used && j < stitched->n_stretches; j++) {
			const struct glake__stretch *stretch = &stitched->stretches[j];
			memset(marks + stretch->page, KEPT, stretch->n_pages);
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
		memset(victims->marks + stretch->page, VICTIM, stretch->n_pages);
	}
	return run;
}

/* The first whole chunks in @run that may go, @n_pages or a little more; n_pages 0: there are none. */
static struct glake__stretch find_victim(const struct glake__pool *pool,
                                         const struct glake__run *run, const uint8_t *marks,
                                         uint64_t n_pages)
{
	struct glake__stretch victim = {.n_pages = 0};
	struct glake__stretch whole = {.n_pages = 0};
	if (run->state == GLAKE__RUN_FREE && run->line == &pool->runs.nobody) {
		whole = glake__pool_whole_chunks(pool, run);
	}
	uint64_t page = whole.page;
	while (page < whole.page + whole.n_pages && victim.n_pages < n_pages) {
		struct glake__stretch chunk = glake__pool_chunk_at(pool, page);
		uint64_t end = chunk.page + chunk.n_pages;
		if (!memchr(marks + page, KEPT, end - page)) {
			victim.page = victim.n_pages > 0 ? victim.page : page;
			victim.n_pages += end - page;
		} else if (victim.n_pages > 0) {
			break;
		}
		page = end;
	}
	return victim;
}

static void take_victims_locked(struct glake__pool *pool, uint64_t n_bytes, struct victims *victims)
{
	glake__runs_unite(&pool->runs);
	struct glake__run *run = pool->runs.first;
	mark_kept(pool, victims->marks);
	while (run && victims->n_bytes < n_bytes) {
		uint64_t n_left = n_bytes - victims->n_bytes + GLAKE__PAGE_BYTES - 1;
		struct glake__stretch stretch = find_victim(pool, run, victims->marks,
		                                            n_left / GLAKE__PAGE_BYTES);
		struct glake__run *taken = NULL;
		if (stretch.n_pages > 0) {
			taken = take_victim(pool, run, &stretch, victims);
		}
		/* What is left behind it comes next. */
		run = taken ? taken->next : run->next;
	}
}

static bool maps_any(const struct glake__stitched *stitched, const uint8_t *marks)
{
	bool maps = false;
	for (size_t i = 0; !maps && i < stitched->n_stretches; i++) {
		const struct glake__stretch *stretch = &stitched->stretches[i];
		maps = memchr(marks + stretch->page, VICTIM, stretch->n_pages) != NULL;
	}
	return maps;
}

static void take_stitched_locked(struct glake__pool *pool, struct victims *victims)
{
	for (size_t i = 0; i < pool->stitched.n;) {
		struct glake__stitched *stitched = pool->stitched.by_size[i];
		if (stitched->is_live || !maps_any(stitched, victims->marks)) {
			i++;
			continue;
		}
		glake__stitched_remove(&pool->stitched, stitched);
		pool->stats->n_unmapped += stitched->n_chunks;
		stitched->newer = victims->stitched;
		victims->stitched = stitched;
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

static void end_victims_locked(struct glake__pool *pool, struct victims *victims)
{
	pool->stats->n_unmapped += victims->n_chunks;
	while (victims->runs) {
		struct glake__run *run = victims->runs;
		victims->runs = run->next_in_bin;
		glake__pool_count_reserved(pool, -(int64_t)(run->n_units * RUN_UNIT_BYTES));
		glake__runs_unmap(&pool->runs, run);
	}
	/* Those are never used again. */
	for (const struct glake__run *run = victims->stuck; run; run = run->next_in_bin) {
		pool->stats->used_bytes += run->n_units * RUN_UNIT_BYTES;
	}
}

static uint64_t lesser(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

uint64_t glake__pool_reclaim(struct glake__pool *pool, uint64_t n_bytes, bool is_owed)
{
	cleanup_cancel int cancel = cancel_disable();
	struct victims victims = {.marks = calloc(pool->runs.n_units / RUN_PAGE_UNITS, 1)};
	uint64_t *debt = &pool->device->heap->reclaim_debt;
	if (!victims.marks) {
		return 0;
	}
	glake__lock();
	take_victims_locked(pool, n_bytes, &victims);
	take_stitched_locked(pool, &victims);
	*debt -= is_owed ? lesser(*debt, victims.n_bytes) : 0;
	pool->lent_bytes += is_owed ? victims.n_bytes : 0;
	glake__unlock();
	if (victims.runs) {
		struct glake__chunk *dead = unmap(pool, &victims);
		glake__backing_return(pool->device->session, dead);
		glake__lock();
		end_victims_locked(pool, &victims);
		glake__unlock();
	}
	free(victims.marks);
	return victims.n_bytes;
}

/* A round is over: what is above the peak of the last two is spare. Called with the lock held. */
static void end_round(struct glake__pool *pool, uint64_t now_ns)
{
	uint64_t peak = pool->peak_bytes > pool->last_peak_bytes ? pool->peak_bytes
	                                                         : pool->last_peak_bytes;
	uint64_t keep = peak + peak / SLACK_PART;
	uint64_t reserved = pool->stats->reserved_bytes;
	pool->spare_bytes = reserved > keep ? reserved - keep : 0;
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
		uint64_t now_ns = clock_now_ns();
		pool->n_calls = 0;
		if (now_ns - pool->round_ns >= POOL_ROUND_NS) {
			end_round(pool, now_ns);
		}
	}
	bool keeps_any = pool->device->session->warm_bytes > 0;
	uint64_t free_bytes = looks ? glake__pool_free_bytes_locked(pool) : 0;
	uint64_t owed = lesser(pool->device->heap->reclaim_debt, free_bytes);
	uint64_t spare = lesser(pool->spare_bytes, most_bytes);
	pool->spare_bytes -= spare;
	glake__unlock();
	if (owed > 0) {
		glake__pool_reclaim(pool, owed, true);
	} else if (spare > 0 || (!keeps_any && free_bytes > 0)) {
		glake__pool_reclaim(pool, keeps_any ? spare : free_bytes, false);
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
