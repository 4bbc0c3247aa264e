/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/memory/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/link/session.h"
#include "libclient/memory/backing.h"
#include "libclient/memory/reback.h"
#include "libclient/memory/stitched.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* Of addresses, for each byte of the device: memory that was given back leaves holes of all sizes. */
#define HOME_TIMES 2u
/* With less than this part of a request free, stitching would map much to save little. */
#define WORTH_PART 16u
/* Fresh memory starts on 2 MiB if no more than this part of it is wasted at its end. */
#define ALIGNED_PART 16u
/* So many stitched ranges of the right size are looked at. */
#define MAX_LOOKS 64u
/* What is kept of them: so many times the pool's memory, and at least so many pages. */
#define KEPT_TIMES 4u
#define KEPT_MIN_PAGES 4096u
/* A chunk is this part of the pool's memory, 2 MiB to 64 MiB: smaller ones are easier to stitch. */
#define CHUNK_PART 4096u
#define CHUNK_MAX_BYTES (64ull << 20)
/* Before memory has been used again, requests from here on get one chunk: most are weights. */
#define WHOLE_MIN_BYTES (32ull << 20)
/* Given back at a time by a call of the program that frees. */
#define SETTLE_BYTES (32ull << 20)
/* Between two looks at the clock. */
#define SETTLE_CALLS 64u
/* Memory above the peak of the last rounds that stays, as a part of that. */
#define SLACK_PART 8u

struct glake__pool {
	struct glake__device *device; /* borrowed from the session */
	struct glake__range *home;    /* owned */
	struct glake__runs runs;
	struct glake__stitched_set stitched;
	struct glake_pool_stats *stats; /* the heap's */
	bool is_reused;                 /* memory that was freed has served again */
	uint64_t owed_bytes;            /* to glaked, which has asked */
	uint64_t spare_bytes;           /* above what the last rounds have used */
	uint64_t round_ns;              /* when this one began */
	uint64_t peak_bytes;            /* used in this one */
	uint64_t last_peak_bytes;
	unsigned n_calls;
};

/* An allocation. The library and the shim know its first member. */
struct pooled {
	struct glake__allocation allocation;
	struct glake__pool *pool;
	struct glake__run *runs;          /* used ones, by next_in_bin; NULL while it is parked */
	struct glake__stitched *stitched; /* NULL: runs is one, where it lies */
	struct glake__line *line;         /* while it is parked */
	struct glake__waiting *waiting;
};

static struct pooled *pooled_of(struct glake__allocation *allocation)
{
	return (struct pooled *)allocation;
}

static uint64_t units_of(uint64_t n_bytes)
{
	return (n_bytes + RUN_UNIT_BYTES - 1) / RUN_UNIT_BYTES;
}

static uint64_t pages_of(uint64_t n_units)
{
	return (n_units + RUN_PAGE_UNITS - 1) / RUN_PAGE_UNITS;
}

static uint64_t page_up(uint64_t unit)
{
	return pages_of(unit) * RUN_PAGE_UNITS;
}

/* ---- numbers, with the lock held ---------------------------------------------------------------- */

static void raise(uint64_t *peak, uint64_t now)
{
	*peak = now > *peak ? now : *peak;
}

static void count_taken(struct glake__pool *pool, const struct glake__allocation *allocation)
{
	struct glake_pool_stats *stats = pool->stats;
	stats->n_allocs++;
	stats->live_bytes += allocation->n_bytes;
	stats->used_bytes += allocation->n_capacity;
	raise(&stats->peak_live_bytes, stats->live_bytes);
	raise(&pool->peak_bytes, stats->used_bytes);
	glake__books_add_live(&pool->device->session->books, allocation->n_capacity);
}

static void count_freed(struct glake__pool *pool, const struct glake__allocation *allocation)
{
	pool->stats->live_bytes -= allocation->n_bytes;
	pool->stats->used_bytes -= allocation->n_capacity;
	pool->device->session->books.live_bytes -= allocation->n_capacity;
}

static void count_reserved(struct glake__pool *pool, int64_t n_bytes)
{
	pool->stats->reserved_bytes += (uint64_t)n_bytes;
	raise(&pool->stats->peak_reserved_bytes, pool->stats->reserved_bytes);
}

static void count_stitched(struct glake__pool *pool)
{
	pool->stats->n_kept = (uint32_t)pool->stitched.n;
	pool->stats->n_kept_live = (uint32_t)pool->stitched.n_live;
	pool->stats->kept_bytes = pool->stitched.n_pages * GLAKE__PAGE_BYTES;
}

/* ---- allocations ------------------------------------------------------------------------------- */

static struct pooled *pooled_new(struct glake__pool *pool, uint64_t n_bytes,
                                 const struct glake__tag *tag)
{
	struct pooled *pooled = calloc(1, sizeof(*pooled));
	if (pooled) {
		pooled->pool = pool;
		pooled->allocation = (struct glake__allocation){
			.n_bytes = n_bytes,
			.n_capacity = units_of(n_bytes) * RUN_UNIT_BYTES,
			.ordinal = pool->device->public.ordinal,
			.is_pooled = true,
			.is_claimed = true, /* until it has an address */
			.tag = *tag,
		};
	}
	return pooled;
}

static void add_run(struct pooled *pooled, struct glake__run *run)
{
	run->user = pooled;
	run->next_in_bin = pooled->runs;
	pooled->runs = run;
}

/* Its memory is free again, for @line, as if it had never been taken. */
static void give_runs(struct glake__pool *pool, struct glake__run *list, struct glake__line *line,
                      uint64_t number)
{
	while (list) {
		struct glake__run *run = list;
		list = run->next_in_bin;
		glake__runs_free(&pool->runs, run, line, number);
	}
}

static void give_up(struct pooled *pooled, struct glake__line *line)
{
	give_runs(pooled->pool, pooled->runs, line, line->n_freed);
	pooled->runs = NULL;
}

static struct glake__allocation *begin(struct pooled *pooled)
{
	struct glake__allocation *allocation = &pooled->allocation;
	struct glake__pool *pool = pooled->pool;
	allocation->address = pooled->stitched
	                              ? pooled->stitched->range->ptr
	                              : pool->home->ptr + pooled->runs->first * RUN_UNIT_BYTES;
	allocation->id = glake__next_id_locked();
	allocation->is_claimed = false;
	count_taken(pool, allocation);
	return allocation;
}

/* ---- what is free ------------------------------------------------------------------------------ */

/* Free for @line, in all of [unit, unit + n_units)? */
static bool is_free(const struct glake__pool *pool, const struct glake__line *line, uint64_t unit,
                    uint64_t n_units)
{
	uint64_t end = unit + n_units;
	while (unit < end) {
		const struct glake__run *run = glake__runs_at(&pool->runs, unit);
		if (run->state != GLAKE__RUN_FREE || !glake__run_serves(run, line)) {
			return false;
		}
		unit = glake__run_end(run);
	}
	return true;
}

/* Take it, which is free. False: no memory of the host; what was taken is with @pooled. */
static bool carve(struct glake__pool *pool, struct pooled *pooled, uint64_t unit, uint64_t n_units)
{
	uint64_t end = unit + n_units;
	while (unit < end) {
		struct glake__run *run = glake__runs_at(&pool->runs, unit);
		uint64_t n = (glake__run_end(run) < end ? glake__run_end(run) : end) - unit;
		run = glake__runs_use(&pool->runs, run, unit, n);
		if (!run) {
			return false;
		}
		add_run(pooled, run);
		unit += n;
	}
	return true;
}

/* Way 1. */
static bool take_run(struct glake__pool *pool, struct pooled *pooled,
                     const struct glake__line *line)
{
	uint64_t n_units = units_of(pooled->allocation.n_bytes);
	struct glake__run *run = glake__runs_find(&pool->runs, line, n_units);
	if (!run) {
		return false;
	}
	pool->is_reused |= run->number > 0 && n_units >= RUN_PAGE_UNITS;
	run = glake__runs_use(&pool->runs, run, run->first, n_units);
	if (run) {
		add_run(pooled, run);
	}
	return run != NULL;
}

/* The first @n_units of what it maps. */
static bool is_kept_free(const struct glake__pool *pool, const struct glake__stitched *stitched,
                         const struct glake__line *line, uint64_t n_units)
{
	for (size_t i = 0; n_units > 0; i++) {
		const struct glake__stretch *stretch = &stitched->stretches[i];
		uint64_t n = stretch->n_pages * RUN_PAGE_UNITS;
		n = n < n_units ? n : n_units;
		if (!is_free(pool, line, stretch->page * RUN_PAGE_UNITS, n)) {
			return false;
		}
		n_units -= n;
	}
	return true;
}

static bool carve_stretches(struct glake__pool *pool, struct pooled *pooled,
                            const struct glake__stretch *stretches, size_t n_stretches,
                            uint64_t n_units)
{
	bool is_done = true;
	for (size_t i = 0; is_done && n_units > 0 && i < n_stretches; i++) {
		uint64_t n = stretches[i].n_pages * RUN_PAGE_UNITS;
		n = n < n_units ? n : n_units;
		is_done = carve(pool, pooled, stretches[i].page * RUN_PAGE_UNITS, n);
		n_units -= n;
	}
	return is_done;
}

/* Way 2. */
static bool take_kept(struct glake__pool *pool, struct pooled *pooled, struct glake__line *line)
{
	uint64_t n_units = units_of(pooled->allocation.n_bytes);
	struct glake__stitched *found = NULL;
	size_t at = glake__stitched_lower_bound(&pool->stitched, pages_of(n_units));
	for (unsigned n = 0; !found && at < pool->stitched.n && n < MAX_LOOKS; at++, n++) {
		struct glake__stitched *stitched = pool->stitched.by_size[at];
		if (!stitched->is_live && is_kept_free(pool, stitched, line, n_units)) {
			found = stitched;
		}
	}
	if (!found) {
		return false;
	}
	if (!carve_stretches(pool, pooled, found->stretches, found->n_stretches, n_units)) {
		give_up(pooled, line);
		return false;
	}
	glake__stitched_set_live(&pool->stitched, found);
	found->user = pooled;
	pooled->stitched = found;
	pool->stats->n_reuses++;
	count_stitched(pool);
	return true;
}

static bool take(struct glake__pool *pool, struct pooled *pooled, struct glake__line *line)
{
	return take_run(pool, pooled, line) ||
	       (pooled->allocation.n_bytes > GLAKE__PAGE_BYTES && take_kept(pool, pooled, line));
}

struct glake__allocation *glake__pool_take_locked(struct glake__pool *pool, uint64_t n_bytes,
                                                  const struct glake__tag *tag)
{
	struct glake__line *line = glake__runs_line(&pool->runs, tag->stream - 1);
	struct pooled *pooled = line ? pooled_new(pool, n_bytes, tag) : NULL;
	if (!pooled || !take(pool, pooled, line)) {
		free(pooled);
		return NULL;
	}
	return begin(pooled);
}

/* ---- whole chunks that are free ------------------------------------------------------------------ */

struct stretches {
	struct glake__stretch *list; /* owned */
	size_t n;
	size_t capacity;
	uint64_t n_pages;
};

static int add_stretch(struct stretches *stretches, uint64_t page, uint64_t n_pages)
{
	if (stretches->n == stretches->capacity) {
		size_t capacity = stretches->capacity ? 2 * stretches->capacity : 64;
		void *more = reallocarray(stretches->list, capacity, sizeof(*stretches->list));
		if (!more) {
			return glake__fail(-ENOMEM, "out of memory");
		}
		stretches->list = more;
		stretches->capacity = capacity;
	}
	stretches->list[stretches->n++] = (struct glake__stretch){page, n_pages};
	stretches->n_pages += n_pages;
	return 0;
}

/* The end of the chunk that page @page is in, in pages; is_start: it starts there. */
static uint64_t chunk_end(const struct glake__pool *pool, uint64_t page, bool *is_start_out)
{
	uint64_t offset = page * GLAKE__PAGE_BYTES;
	const struct glake__piece *piece = glake__range_piece_locked(pool->home, offset);
	*is_start_out = piece->offset == offset;
	return (piece->offset + piece->n_bytes) / GLAKE__PAGE_BYTES;
}

/* The whole chunks in @run, which is mapped, side by side. n_pages 0: there are none. */
static struct glake__stretch whole_chunks(const struct glake__pool *pool,
                                          const struct glake__run *run)
{
	uint64_t first = pages_of(run->first);
	uint64_t end = glake__run_end(run) / RUN_PAGE_UNITS;
	bool is_start;
	if (first < end) {
		uint64_t after = chunk_end(pool, first, &is_start);
		first = is_start ? first : after;
	}
	if (first < end && chunk_end(pool, end - 1, &is_start) > end) {
		const struct glake__piece *last = glake__range_piece_locked(
			pool->home, (end - 1) * GLAKE__PAGE_BYTES);
		end = last->offset / GLAKE__PAGE_BYTES;
	}
	return (struct glake__stretch){first, first < end ? end - first : 0};
}

/* @line NULL: what nobody's work uses. */
static int gather_in(struct glake__pool *pool, const struct glake__run_bins *bins,
                     const struct glake__line *line, struct stretches *stretches)
{
	int r = 0;
	for (unsigned bin = 0; bin < RUN_BINS; bin++) {
		const struct glake__run *run = bins->first[bin];
		for (; r == 0 && run; run = run->next_in_bin) {
			struct glake__stretch whole = whole_chunks(pool, run);
			if (whole.n_pages > 0 && glake__run_serves(run, line)) {
				r = add_stretch(stretches, whole.page, whole.n_pages);
			}
		}
	}
	return r;
}

static int by_pages(const void *one, const void *other)
{
	const struct glake__stretch *a = one;
	const struct glake__stretch *b = other;
	return (a->n_pages > b->n_pages) - (a->n_pages < b->n_pages);
}

/* All whole chunks that are free for @line, the smallest stretches first. */
static int gather(struct glake__pool *pool, const struct glake__line *line,
                  struct stretches *stretches)
{
	glake__runs_unite(&pool->runs);
	int r = gather_in(pool, &pool->runs.nobody.bins, line, stretches);
	for (const struct glake__line *at = pool->runs.lines; r == 0 && at; at = at->next) {
		r = gather_in(pool, &at->bins, line, stretches);
	}
	if (stretches->n > 1) {
		qsort(stretches->list, stretches->n, sizeof(*stretches->list), by_pages);
	}
	return r;
}

/* As many as @n_pages need, which leaves the large ones whole. The last one is cut where a chunk ends. */
static void choose(const struct glake__pool *pool, struct stretches *stretches, uint64_t n_pages)
{
	uint64_t n_chosen = 0;
	size_t n = 0;
	while (n < stretches->n && n_chosen < n_pages) {
		struct glake__stretch *stretch = &stretches->list[n++];
		if (n_chosen + stretch->n_pages > n_pages) {
			bool is_start;
			uint64_t last = stretch->page + (n_pages - n_chosen) - 1;
			stretch->n_pages = chunk_end(pool, last, &is_start) - stretch->page;
		}
		n_chosen += stretch->n_pages;
	}
	stretches->n = n;
	stretches->n_pages = n_chosen;
}

/* ---- growing ----------------------------------------------------------------------------------- */

static uint64_t chunk_bytes_for(const struct glake__pool *pool, uint64_t n_bytes)
{
	uint64_t chunk_bytes = GLAKE__PAGE_BYTES;
	if (!pool->is_reused && n_bytes >= WHOLE_MIN_BYTES) {
		return glake__backing_chunk_bytes(n_bytes);
	}
	while (chunk_bytes < CHUNK_MAX_BYTES &&
	       2 * chunk_bytes <= pool->stats->reserved_bytes / CHUNK_PART) {
		chunk_bytes *= 2;
	}
	return chunk_bytes;
}

/* Memory of glaked for the used @run, which is in a hole. No lock is held. */
static int fill(struct glake__pool *pool, const struct glake__run *run, struct glake__wait *wait)
{
	uint64_t n_bytes = run->n_units * RUN_UNIT_BYTES;
	glake__lock();
	uint64_t chunk_bytes = chunk_bytes_for(pool, n_bytes);
	glake__unlock();
	int r = glake__backing_fill(pool->device, pool->home, run->first * RUN_UNIT_BYTES, n_bytes,
	                            chunk_bytes, wait);
	glake__lock();
	if (r == 0) {
		pool->stats->n_grows++;
		pool->stats->grown_bytes += n_bytes;
		pool->stats->n_mapped += (n_bytes + chunk_bytes - 1) / chunk_bytes;
		pool->spare_bytes = 0;
		count_reserved(pool, (int64_t)n_bytes);
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

/* What an allocation is to grow in: free memory, if any, and the hole behind it. */
struct site {
	struct glake__run *before; /* used; NULL: none */
	struct glake__run *fresh;  /* used; no memory yet */
};

static int find_site_locked(struct glake__pool *pool, struct glake__line *line, uint64_t n_units,
                            struct site *site)
{
	struct glake__run *hole = find_frontier(pool, line, n_units);
	uint64_t n_have = 0;
	*site = (struct site){.before = NULL};
	if (hole) {
		struct glake__run *before = hole->previous;
		uint64_t start = start_in(before, n_units);
		n_have = hole->first - start;
		site->before = glake__runs_use(&pool->runs, before, start, n_have);
	}
	if (!site->before) {
		n_have = 0;
		hole = glake__runs_find_hole(&pool->runs, page_up(n_units));
	}
	site->fresh = hole ? glake__runs_use(&pool->runs, hole, hole->first,
	                                     page_up(n_units - n_have))
	                   : NULL;
	if (!site->fresh && site->before) {
		glake__runs_free(&pool->runs, site->before, line, line->n_freed);
	}
	return site->fresh ? 0 : glake__fail(-ENOMEM, "the pool has no addresses left");
}

/* What is not needed of the used @run, behind @n_units, is nobody's. */
static void let_rest_locked(struct glake__pool *pool, struct glake__run *run, uint64_t n_units)
{
	if (run->n_units > n_units) {
		struct glake__run *rest = glake__runs_split(&pool->runs, run, run->first + n_units);
		if (rest) {
			glake__runs_free(&pool->runs, rest, &pool->runs.nobody, 0);
		}
	}
}

/* Way 4. */
static int grow(struct glake__pool *pool, struct pooled *pooled, struct glake__line *line,
                struct glake__wait *wait)
{
	uint64_t n_units = units_of(pooled->allocation.n_bytes);
	struct site site;
	glake__lock();
	int r = find_site_locked(pool, line, n_units, &site);
	glake__unlock();
	if (r < 0) {
		return r;
	}
	r = fill(pool, site.fresh, wait);
	glake__lock();
	if (r == 0) {
		struct glake__run *run = site.before ? glake__runs_join(&pool->runs, site.before)
		                                     : site.fresh;
		let_rest_locked(pool, run, n_units);
		add_run(pooled, run);
	} else {
		glake__runs_unmap(&pool->runs, site.fresh);
		if (site.before) {
			glake__runs_free(&pool->runs, site.before, line, line->n_freed);
		}
	}
	glake__unlock();
	return r;
}

/* ---- stitching --------------------------------------------------------------------------------- */

/*
 * Free memory of at most @n_units is @pooled's, by @stretches; *n_missing_out pages are missing. None, if what is
 * free is not worth it.
 */
static int take_stretches_locked(struct glake__pool *pool, struct pooled *pooled,
                                 struct glake__line *line, struct stretches *stretches,
                                 bool is_tight, uint64_t *n_missing_out)
{
	uint64_t n_units = units_of(pooled->allocation.n_bytes);
	uint64_t n_pages = pages_of(n_units);
	int r = gather(pool, line, stretches);
	if (r == 0 && !is_tight && stretches->n_pages < n_pages / WORTH_PART) {
		stretches->n = 0;
		stretches->n_pages = 0;
	}
	if (r < 0 || stretches->n == 0) {
		return r;
	}
	choose(pool, stretches, n_pages);
	*n_missing_out = stretches->n_pages < n_pages ? n_pages - stretches->n_pages : 0;
	if (!carve_stretches(pool, pooled, stretches->list, stretches->n, n_units)) {
		give_up(pooled, line);
		return glake__fail(-ENOMEM, "out of memory");
	}
	return 0;
}

/* Fresh memory for what is missing, the last stretch. Some of its last page may be left over. */
static int add_missing(struct glake__pool *pool, struct pooled *pooled, struct stretches *stretches,
                       uint64_t n_units, struct glake__wait *wait)
{
	glake__lock();
	struct glake__run *hole = glake__runs_find_hole(&pool->runs, page_up(n_units));
	struct glake__run *run = hole ? glake__runs_use(&pool->runs, hole, hole->first,
	                                                page_up(n_units))
	                              : NULL;
	glake__unlock();
	if (!run) {
		return glake__fail(-ENOMEM, "the pool has no addresses left");
	}
	uint64_t page = run->first / RUN_PAGE_UNITS;
	int r = fill(pool, run, wait);
	glake__lock();
	if (r == 0) {
		let_rest_locked(pool, run, n_units);
		add_run(pooled, run);
		r = add_stretch(stretches, page, pages_of(n_units));
	} else {
		glake__runs_unmap(&pool->runs, run);
	}
	glake__unlock();
	return r;
}

/* Has the work that used it last been done? Called with the lock held. */
static bool is_idle(const struct glake__pool *pool, const struct glake__stitched *stitched)
{
	const struct glake__line *line = glake__ptr_table_get(&pool->runs.by_stream,
	                                                      stitched->stream + 1);
	return !line || stitched->number <= line->n_passed;
}

/* The oldest kept range, if there are too many; it is the caller's to drop. */
static struct glake__stitched *take_oldest_locked(struct glake__pool *pool)
{
	struct glake__stitched *oldest = pool->stitched.oldest;
	uint64_t n_pages = KEPT_TIMES * (pool->stats->reserved_bytes / GLAKE__PAGE_BYTES);
	n_pages = n_pages > KEPT_MIN_PAGES ? n_pages : KEPT_MIN_PAGES;
	if (!oldest || pool->stitched.n_pages <= n_pages || !is_idle(pool, oldest)) {
		return NULL;
	}
	glake__stitched_remove(&pool->stitched, oldest);
	pool->stats->n_unmapped += oldest->n_chunks;
	count_stitched(pool);
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
			glake__stitched_drop(oldest);
		}
	} while (oldest);
}

static int map_stretches(struct glake__pool *pool, struct pooled *pooled,
                         struct stretches *stretches)
{
	struct glake__stitched *stitched;
	int r = glake__stitched_new(pool->home, pool->device->handle, stretches->list, stretches->n,
	                            &stitched);
	if (r < 0) {
		return r;
	}
	stretches->list = NULL;
	glake__lock();
	r = glake__stitched_add(&pool->stitched, stitched);
	if (r == 0) {
		stitched->user = pooled;
		pooled->stitched = stitched;
		pool->stats->n_stitches++;
		pool->stats->stitched_bytes += stitched->n_pages * GLAKE__PAGE_BYTES;
		pool->stats->n_mapped += stitched->n_chunks;
		count_stitched(pool);
	}
	glake__unlock();
	if (r < 0) {
		glake__stitched_drop(stitched);
	}
	return r;
}

/* Way 3, with @stretches already @pooled's. */
static int stitch(struct glake__pool *pool, struct pooled *pooled, struct glake__line *line,
                  struct stretches *stretches, uint64_t n_missing, struct glake__wait *wait)
{
	uint64_t n_units = units_of(pooled->allocation.n_bytes);
	int r = 0;
	if (n_missing > 0) {
		r = add_missing(pool, pooled, stretches,
		                n_units - stretches->n_pages * RUN_PAGE_UNITS, wait);
	}
	if (r == 0) {
		r = map_stretches(pool, pooled, stretches);
	}
	if (r < 0) {
		glake__lock();
		give_up(pooled, line);
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

/* Ways 1 to 4. If @is_tight, the least free memory is worth stitching. */
static int make_once(struct glake__pool *pool, struct pooled *pooled, struct glake__line *line,
                     bool is_tight, struct glake__wait *wait)
{
	uint64_t n_missing = 0;
	struct stretches stretches = {.n = 0};
	glake__lock();
	bool is_taken = take(pool, pooled, line);
	int r = 0;
	if (!is_taken && pooled->allocation.n_bytes > GLAKE__PAGE_BYTES) {
		r = take_stretches_locked(pool, pooled, line, &stretches, is_tight, &n_missing);
	}
	glake__unlock();
	if (r == 0 && !is_taken) {
		r = stretches.n > 0 ? stitch(pool, pooled, line, &stretches, n_missing, wait)
		                    : grow(pool, pooled, line, wait);
	}
	free(stretches.list);
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
	glake__unlock();
	struct pooled *pooled = line ? pooled_new(pool, n_bytes, tag) : NULL;
	int r = pooled ? make_once(pool, pooled, line, false, wait)
	               : glake__fail(-ENOMEM, "out of memory");
	if (lacks_memory(r)) {
		r = make_once(pool, pooled, line, true, wait);
	}
	glake__lock();
	if (r == 0) {
		*allocation_out = begin(pooled);
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

/* ---- freeing ----------------------------------------------------------------------------------- */

static void set_user(struct glake__run *runs, struct glake__stitched *stitched, struct pooled *user)
{
	for (struct glake__run *run = runs; run; run = run->next_in_bin) {
		run->user = user;
	}
	if (stitched) {
		stitched->user = user;
	}
}

bool glake__pool_detach_locked(struct glake__allocation *allocation, uint64_t stream,
                               struct glake__parking *parking)
{
	struct pooled *pooled = pooled_of(allocation);
	struct glake__line *line = glake__runs_line(&pooled->pool->runs, stream);
	struct glake__waiting *waiting = line ? glake__line_wait(line) : NULL;
	if (!waiting) {
		return false;
	}
	*parking = (struct glake__parking){
		.pool = pooled->pool,
		.line = line,
		.number = waiting->number,
		.waiting = waiting,
		.runs = pooled->runs,
		.stitched = pooled->stitched,
	};
	set_user(pooled->runs, pooled->stitched, NULL);
	pooled->line = line;
	pooled->waiting = waiting;
	pooled->runs = NULL;
	pooled->stitched = NULL;
	allocation->is_parked = true;
	count_freed(pooled->pool, allocation);
	return true;
}

static void keep(struct glake__pool *pool, struct glake__stitched *stitched, uint64_t stream,
                 uint64_t number)
{
	if (stitched) {
		stitched->stream = stream;
		stitched->number = number;
		glake__stitched_set_kept(&pool->stitched, stitched);
		count_stitched(pool);
	}
}

void glake__pool_attach_free_locked(struct glake__parking *parking)
{
	struct glake__pool *pool = parking->pool;
	keep(pool, parking->stitched, parking->line->stream, parking->number);
	give_runs(pool, parking->runs, parking->line, parking->number);
}

void glake__pool_undo_locked(struct glake__allocation *allocation, struct glake__parking *parking)
{
	struct pooled *pooled = pooled_of(allocation);
	glake__line_pass(parking->line, parking->waiting);
	pooled->runs = parking->runs;
	pooled->stitched = parking->stitched;
	set_user(pooled->runs, pooled->stitched, pooled);
	allocation->is_parked = false;
	pooled->pool->stats->n_allocs--;
	count_taken(pooled->pool, allocation);
}

void glake__pool_release_locked(struct glake__allocation *allocation)
{
	struct pooled *pooled = pooled_of(allocation);
	struct glake__pool *pool = pooled->pool;
	if (allocation->is_parked) {
		glake__line_pass(pooled->line, pooled->waiting);
	} else {
		count_freed(pool, allocation);
		keep(pool, pooled->stitched, 0, 0);
		give_runs(pool, pooled->runs, &pool->runs.nobody, 0);
	}
	free(pooled);
}

/* ---- giving back ------------------------------------------------------------------------------- */

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
		stretch = whole_chunks(pool, run);
		const uint8_t *first = marks + stretch.page;
		const uint8_t *kept = memchr(first, KEPT, stretch.n_pages);
		uint64_t n_free = kept ? (uint64_t)(kept - first) : stretch.n_pages;
		uint64_t page = 0;
		bool is_start;
		while (page < n_free && page < n_pages) {
			uint64_t end = chunk_end(pool, stretch.page + page, &is_start) -
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
	count_stitched(pool);
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
		/* What the driver does not unmap is never used again. */
		run->user = r == 0 ? NULL : pool;
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
		if (!run->user) {
			uint64_t n_bytes = run->n_units * RUN_UNIT_BYTES;
			pool->stats->n_unmapped += n_bytes / GLAKE__PAGE_BYTES;
			count_reserved(pool, -(int64_t)n_bytes);
			glake__runs_unmap(&pool->runs, run);
		} else {
			run->user = NULL;
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

/* ---- looking ----------------------------------------------------------------------------------- */

struct glake__pool *glake__pool_of(const struct glake__allocation *allocation)
{
	return ((const struct pooled *)allocation)->pool;
}

struct glake__device *glake__pool_device_of(const struct glake__allocation *allocation)
{
	return glake__pool_of(allocation)->device;
}

struct glake__allocation *glake__pool_find_locked(const struct glake__range *range,
                                                  glake_ptr address)
{
	const struct pooled *pooled = NULL;
	if (range->use == GLAKE__RANGE_STITCHED) {
		const struct glake__stitched *stitched = range->user;
		pooled = stitched->user;
	} else {
		const struct glake__pool *pool = range->user;
		const struct glake__run *run = glake__runs_at(&pool->runs, (address - range->ptr) /
		                                                                   RUN_UNIT_BYTES);
		pooled = run->state == GLAKE__RUN_USED ? run->user : NULL;
	}
	return pooled ? (struct glake__allocation *)&pooled->allocation : NULL;
}

void glake__pool_visit_locked(const struct glake__pool *pool,
                              void (*visit)(struct glake__allocation *allocation, void *user),
                              void *user)
{
	for (const struct glake__run *run = pool->runs.first; run; run = run->next) {
		struct pooled *pooled = run->state == GLAKE__RUN_USED ? run->user : NULL;
		if (pooled && pooled->runs == run) {
			visit(&pooled->allocation, user);
		}
	}
}

uint64_t glake__pool_free_bytes_locked(const struct glake__pool *pool)
{
	return pool->stats->reserved_bytes - pool->stats->used_bytes;
}

/* ---- beginning and end -------------------------------------------------------------------------- */

int glake__pool_new(struct glake__device *device, struct glake_pool_stats *stats,
                    struct glake__pool **pool_out)
{
	cleanup_free struct glake__pool *pool = calloc(1, sizeof(*pool));
	uint64_t n_pages = HOME_TIMES * (device->public.total_bytes / GLAKE__PAGE_BYTES);
	if (!pool || glake__runs_init(&pool->runs, n_pages * RUN_PAGE_UNITS) < 0) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	int r = glake__range_reserve(GLAKE__RANGE_POOL, pool, device->handle,
	                             n_pages * GLAKE__PAGE_BYTES, 0, 0, &pool->home);
	if (r < 0) {
		glake__runs_deinit(&pool->runs);
		return r;
	}
	pool->device = device;
	pool->stats = stats;
	pool->round_ns = clock_now_ns();
	*pool_out = ptr_steal(pool);
	return 0;
}

static void free_pooled(struct glake__allocation *allocation, void *user)
{
	(void)user;
	free(pooled_of(allocation));
}

void glake__pool_end(struct glake__pool *pool)
{
	if (!pool) {
		return;
	}
	struct glake_session *session = pool->device->session;
	for (size_t i = 0; i < pool->stitched.n; i++) {
		struct glake__stitched *stitched = pool->stitched.by_size[i];
		glake__range_drop_all(session, stitched->range);
		free(stitched->stretches);
		free(stitched);
	}
	free(pool->stitched.by_size);
	glake__range_drop_all(session, pool->home);
	glake__pool_visit_locked(pool, free_pooled, NULL);
	glake__runs_deinit(&pool->runs);
	free(pool);
}

static bool is_stitched_valid(const struct glake__stitched *stitched)
{
	const struct pooled *pooled = stitched->user;
	return !pooled || (stitched->is_live && pooled->stitched == stitched);
}

bool glake__pool_is_valid(struct glake__pool *pool)
{
	uint64_t n_used = 0;
	uint64_t n_mapped = 0;
	glake__lock();
	bool is_valid = glake__runs_are_valid(&pool->runs);
	for (const struct glake__run *run = pool->runs.first; run; run = run->next) {
		n_used += run->state == GLAKE__RUN_USED ? run->n_units : 0;
		n_mapped += run->state != GLAKE__RUN_HOLE ? run->n_units : 0;
	}
	for (size_t i = 0; i < pool->stitched.n; i++) {
		is_valid &= is_stitched_valid(pool->stitched.by_size[i]);
	}
	is_valid &= n_used * RUN_UNIT_BYTES == pool->stats->used_bytes &&
	            n_mapped * RUN_UNIT_BYTES == pool->stats->reserved_bytes;
	glake__unlock();
	return is_valid;
}
