/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "libclient/link/session.h"
#include "libclient/memory/backing.h"
#include "libclient/memory/pool_parts.h"
#include "libclient/memory/reback.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* Given back at a time by a call of the program that frees. */
#define SETTLE_BYTES (32ull << 20)
/* Between two looks at the clock. */
#define SETTLE_CALLS 64u
/* Memory above the peak of the last rounds that stays, as a part of that. */
#define SLACK_PART 8u

/* What goes back: used runs of whole chunks, by next_in_bin, and the stitched ranges that map some of them. */
struct victims {
	struct glake__run *runs;
	struct glake__stitched *stitched; /* by newer */
	uint64_t n_bytes;
	uint8_t *marks; /* owned; by page of home: */
};
enum {
	VICTIM = 1, /* it goes */
	KEPT = 2,   /* a live stitched range maps it, behind its end or not */
};

static void mark_live(const struct glake__pool *pool, uint8_t *marks)
{
	for (size_t i = 0; i < pool->stitched.n; i++) {
		const struct glake__stitched *stitched = pool->stitched.by_size[i];
		for (size_t j = 0; stitched->is_live && j < stitched->n_stretches; j++) {
			const struct glake__stretch *stretch = &stitched->stretches[j];
			memset(marks + stretch->page, KEPT, stretch->n_pages);
		}
	}
}

static void take_victim(struct glake__pool *pool, struct glake__run *run,
                        const struct glake__stretch *stretch, struct victims *victims)
{
	run = glake__runs_use(&pool->runs, run, stretch->page * RUN_PAGE_UNITS,
	                      stretch->n_pages * RUN_PAGE_UNITS);
	if (!run) {
		return;
	}
	run->next_in_bin = victims->runs;
	victims->runs = run;
	victims->n_bytes += stretch->n_pages * GLAKE__PAGE_BYTES;
	memset(victims->marks + stretch->page, VICTIM, stretch->n_pages);
}

/* The whole chunks at the start of @run that may go, @n_pages or a little more; n_pages 0: there are none. */
static struct glake__stretch find_victim(const struct glake__pool *pool,
                                         const struct glake__run *run, const uint8_t *marks,
                                         uint64_t n_pages)
{
	struct glake__stretch stretch = {.n_pages = 0};
	if (run->state == GLAKE__RUN_FREE && run->line == &pool->runs.nobody) {
		stretch = glake__pool_whole_chunks(pool, run);
		const uint8_t *first = marks + stretch.page;
		const uint8_t *kept = memchr(first, KEPT, stretch.n_pages);
		uint64_t n_free = kept ? (uint64_t)(kept - first) : stretch.n_pages;
		uint64_t page = 0;
		bool is_start;
		while (page < n_free && page < n_pages) {
			uint64_t end = glake__pool_chunk_end(pool, stretch.page + page, &is_start) -
			               stretch.page;
			if (end > n_free) {
				break;
			}
			page = end;
		}
		stretch.n_pages = page;
	}
	return stretch;
}

static void take_victims_locked(struct glake__pool *pool, uint64_t n_bytes, struct victims *victims)
{
	glake__runs_unite(&pool->runs);
	struct glake__run *run = pool->runs.first;
	mark_live(pool, victims->marks);
	while (run && victims->n_bytes < n_bytes) {
		struct glake__run *next = run->next;
		uint64_t n_left = n_bytes - victims->n_bytes + GLAKE__PAGE_BYTES - 1;
		struct glake__stretch stretch = find_victim(pool, run, victims->marks,
		                                            n_left / GLAKE__PAGE_BYTES);
		if (stretch.n_pages > 0) {
			take_victim(pool, run, &stretch, victims);
		}
		run = next;
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
		glake__stitched_drop(stitched);
	}
	for (struct glake__run *run = victims->runs; run; run = run->next_in_bin) {
		struct glake__chunk *dead = NULL;
		int r = glake__range_clear(pool->home, run->first * RUN_UNIT_BYTES,
		                           run->n_units * RUN_UNIT_BYTES, &dead);
		/* What the driver does not unmap is never used again: it stays used, by nobody. */
		run->number = r < 0;
		while (dead) {
			struct glake__chunk *next = dead->next;
			dead->next = all;
			all = dead;
			dead = next;
		}
	}
	return all;
}

static void end_victims_locked(struct glake__pool *pool, struct victims *victims)
{
	while (victims->runs) {
		struct glake__run *run = victims->runs;
		victims->runs = run->next_in_bin;
		if (run->number == 0) {
			uint64_t n_bytes = run->n_units * RUN_UNIT_BYTES;
			pool->stats->n_unmapped += n_bytes / GLAKE__PAGE_BYTES;
			glake__pool_count_reserved(pool, -(int64_t)n_bytes);
			glake__runs_unmap(&pool->runs, run);
		}
	}
}

uint64_t glake__pool_reclaim(struct glake__pool *pool, uint64_t n_bytes, bool is_owed)
{
	cleanup_cancel int cancel = cancel_disable();
	struct victims victims = {.marks = calloc(pool->runs.n_units / RUN_PAGE_UNITS, 1)};
	if (!victims.marks) {
		return 0;
	}
	glake__lock();
	take_victims_locked(pool, n_bytes, &victims);
	take_stitched_locked(pool, &victims);
	if (is_owed) {
		pool->owed_bytes = n_bytes > victims.n_bytes ? n_bytes - victims.n_bytes : 0;
	}
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

void glake__pool_settle(struct glake__pool *pool)
{
	glake__lock();
	if (++pool->n_calls >= SETTLE_CALLS) {
		uint64_t now_ns = clock_now_ns();
		pool->n_calls = 0;
		if (now_ns - pool->round_ns >= POOL_ROUND_NS) {
			end_round(pool, now_ns);
		}
	}
	uint64_t owed = pool->owed_bytes;
	uint64_t spare = pool->spare_bytes < SETTLE_BYTES ? pool->spare_bytes : SETTLE_BYTES;
	pool->spare_bytes -= spare;
	glake__unlock();
	if (owed > 0) {
		glake__pool_reclaim(pool, owed, true);
	} else if (spare > 0) {
		glake__pool_reclaim(pool, spare, false);
	}
}
