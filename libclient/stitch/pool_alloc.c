/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A free returns memory before the GPU is done with it. So the memory is free at once for the stream that freed it, whose
 * later work runs behind; other streams get it after an event (order/order_parts.h). An allocation first takes free runs and
 * kept stitched ranges, without a driver call; only then pool_make.c works.
 */
#include "libclient/stitch/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "libclient/link/session.h"
#include "libclient/space/fill.h"
#include "libclient/space/grant.h"
#include "libclient/space/unsealed.h"
#include "libclient/stitch/pool_parts.h"
#include "proto/cleanup.h"
#include "proto/clock.h"

/* The home has this many bytes of addresses for each byte of the device: returned memory leaves holes of all sizes. */
#define HOME_TIMES 2u
/* Frees of a stream within this time wait for one mark. */
#define JOIN_NS 1000000u
/* This many pages of kept stitched ranges stay in any case. */
#define KEPT_MIN_PAGES 4096u
/* At most this many stitched ranges of the right size are looked at. */
#define MAX_LOOKS 64u

_Static_assert(RUN_TIED_STREAMS == GLAKE__GRAPH_STREAM, "memory of graphs is tied");

/* ---- numbers, with the lock held ---------------------------------------------------------------- */

static void raise(uint64_t *peak, uint64_t now)
{
	*peak = now > *peak ? now : *peak;
}

/* The pool's numbers leave out the sealed bytes of an allocation. */
static void count_taken(struct glake__pool *pool, struct glake__allocation *allocation)
{
	struct glake_pool_stats *stats = pool->stats;
	const uint64_t n_sealed = glake__pooled_of(allocation)->sealed_bytes;
	stats->n_allocs++;
	stats->live_bytes += allocation->n_bytes - n_sealed;
	stats->used_bytes += allocation->n_capacity - n_sealed;
	raise(&stats->peak_live_bytes, stats->live_bytes);
	raise(&pool->peak_bytes, stats->used_bytes);
	glake__books_add_live(&pool->device->session->books, allocation->n_capacity);
}

static void count_freed(struct glake__pool *pool, struct glake__allocation *allocation)
{
	const struct glake__pooled *pooled = glake__pooled_of(allocation);
	pool->stats->live_bytes -= allocation->n_bytes - pooled->sealed_bytes;
	pool->stats->used_bytes -= allocation->n_capacity - pooled->sealed_bytes;
	pool->device->session->books.live_bytes -= allocation->n_capacity;
	if (pooled->was_held) {
		struct glake__range *range = pooled->stitched ? pooled->stitched->range
		                                              : pool->home;
		glake__unsealed_forget_part_locked(range, allocation->address - range->ptr,
		                                   allocation->n_bytes);
	}
}

void glake__pool_count_reserved(struct glake__pool *pool, int64_t n_bytes)
{
	pool->stats->reserved_bytes += (uint64_t)n_bytes;
	raise(&pool->stats->peak_reserved_bytes, pool->stats->reserved_bytes);
}

void glake__pool_count_stitched(struct glake__pool *pool)
{
	pool->stats->n_kept = (uint32_t)pool->stitched.n;
	pool->stats->n_kept_live = (uint32_t)pool->stitched.n_live;
	pool->stats->kept_bytes = pool->stitched.n_pages * GLAKE__PAGE_BYTES;
}

/* ---- allocations ------------------------------------------------------------------------------- */

struct glake__pooled *glake__pooled_new(struct glake__pool *pool, uint64_t n_bytes,
                                        const struct glake__tag *tag)
{
	struct glake__pooled *pooled = malloc(sizeof(*pooled));
	if (pooled) {
		*pooled = (struct glake__pooled){
			.pool = pool,
			.allocation =
				{
					.n_bytes = n_bytes,
					.n_capacity = glake__units_of(n_bytes) * RUN_UNIT_BYTES,
					.ordinal = pool->device->public.ordinal,
					.is_pooled = true,
					.is_claimed = true, /* until it has an address */
					.tag = *tag,
				},
		};
	}
	return pooled;
}

void glake__pooled_add_run(struct glake__pooled *pooled, struct glake__run *run)
{
	run->user = pooled;
	run->next_in_bin = pooled->runs;
	pooled->runs = run;
}

/* They are free, for @line. */
static void give_runs(struct glake__pool *pool, struct glake__run *list, struct glake__line *line,
                      uint64_t number)
{
	while (list) {
		struct glake__run *run = list;
		list = run->next_in_bin;
		glake__runs_free(&pool->runs, run, line, number);
	}
}

void glake__pooled_give_up(struct glake__pooled *pooled)
{
	while (pooled->runs) {
		struct glake__run *run = pooled->runs;
		pooled->runs = run->next_in_bin;
		glake__runs_give_back(&pooled->pool->runs, run);
	}
}

struct glake__allocation *glake__pooled_begin(struct glake__pooled *pooled)
{
	struct glake__allocation *allocation = &pooled->allocation;
	struct glake__pool *pool = pooled->pool;
	allocation->address = pooled->stitched
	                              ? pooled->stitched->range->ptr +
	                                        pooled->stitched->n_skipped * RUN_UNIT_BYTES
	                              : pool->home->ptr + pooled->runs->first * RUN_UNIT_BYTES;
	allocation->id = glake__next_id_locked();
	allocation->is_claimed = false;
	glake__fill_reset(allocation->address, allocation->n_bytes);
	count_taken(pool, allocation);
	return allocation;
}

/* ---- what is free ------------------------------------------------------------------------------ */

bool glake__pool_is_free(const struct glake__pool *pool, const struct glake__line *line,
                         uint64_t unit, uint64_t n_units)
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
static bool carve(struct glake__pool *pool, struct glake__pooled *pooled, uint64_t unit,
                  uint64_t n_units)
{
	uint64_t end = unit + n_units;
	while (unit < end) {
		struct glake__run *run = glake__runs_at(&pool->runs, unit);
		uint64_t n = (glake__run_end(run) < end ? glake__run_end(run) : end) - unit;
		run = glake__runs_use(&pool->runs, run, unit, n);
		if (!run) {
			return false;
		}
		glake__pooled_add_run(pooled, run);
		unit += n;
	}
	return true;
}

/* Way 1. */
static bool take_run(struct glake__pool *pool, struct glake__pooled *pooled,
                     const struct glake__line *line)
{
	uint64_t n_units = glake__units_of(pooled->allocation.n_bytes);
	struct glake__run *run = glake__runs_find(&pool->runs, line, n_units);
	if (!run) {
		return false;
	}
	pool->is_reused |= run->number > 0 && n_units >= RUN_PAGE_UNITS;
	run = glake__runs_use(&pool->runs, run, run->first, n_units);
	if (run) {
		glake__pooled_add_run(pooled, run);
	}
	return run != NULL;
}

/* The first of @n_units of @stretch, behind @n_skipped; *n_out of them are in it. */
static uint64_t part_of(const struct glake__stretch *stretch, uint64_t n_skipped, uint64_t n_units,
                        uint64_t *n_out)
{
	uint64_t n = stretch->n_pages * RUN_PAGE_UNITS - n_skipped;
	*n_out = n < n_units ? n : n_units;
	return stretch->page * RUN_PAGE_UNITS + n_skipped;
}

/* The first @n_units of what it was made for. */
static bool is_kept_free(const struct glake__pool *pool, const struct glake__stitched *stitched,
                         const struct glake__line *line, uint64_t n_units)
{
	uint64_t n_skipped = stitched->n_skipped;
	bool is_all_free = n_skipped + n_units <= stitched->n_pages * RUN_PAGE_UNITS;
	for (size_t i = 0; is_all_free && n_units > 0; i++) {
		uint64_t n;
		uint64_t unit = part_of(&stitched->stretches[i], n_skipped, n_units, &n);
		is_all_free = glake__pool_is_free(pool, line, unit, n);
		n_units -= n;
		n_skipped = 0;
	}
	return is_all_free && glake__pool_is_true(pool, stitched);
}

bool glake__pooled_carve(struct glake__pool *pool, struct glake__pooled *pooled,
                         const struct glake__stretch *stretches, uint64_t n_skipped,
                         uint64_t n_units)
{
	bool is_done = true;
	for (size_t i = 0; is_done && n_units > 0; i++) {
		uint64_t n;
		uint64_t unit = part_of(&stretches[i], n_skipped, n_units, &n);
		is_done = carve(pool, pooled, unit, n);
		n_units -= n;
		n_skipped = 0;
	}
	return is_done;
}

/* Way 2. */
static bool take_kept(struct glake__pool *pool, struct glake__pooled *pooled,
                      struct glake__line *line)
{
	uint64_t n_units = glake__units_of(pooled->allocation.n_bytes);
	struct glake__stitched *found = NULL;
	size_t at = glake__stitched_lower_bound(&pool->stitched, glake__pages_of(n_units));
	for (unsigned n = 0; !found && at < pool->stitched.n && n < MAX_LOOKS; at++, n++) {
		struct glake__stitched *stitched = pool->stitched.by_size[at];
		if (!stitched->is_live && is_kept_free(pool, stitched, line, n_units)) {
			found = stitched;
		}
	}
	if (!found) {
		return false;
	}
	if (!glake__pooled_carve(pool, pooled, found->stretches, found->n_skipped, n_units)) {
		glake__pooled_give_up(pooled);
		return false;
	}
	glake__stitched_set_live(&pool->stitched, found);
	found->user = pooled;
	pooled->stitched = found;
	pool->stats->n_reuses++;
	glake__pool_count_stitched(pool);
	return true;
}

bool glake__pooled_take(struct glake__pool *pool, struct glake__pooled *pooled,
                        struct glake__line *line)
{
	return take_run(pool, pooled, line) ||
	       (pooled->allocation.n_bytes > GLAKE__PAGE_BYTES && take_kept(pool, pooled, line));
}

struct glake__allocation *glake__pool_take_locked(struct glake__pool *pool, uint64_t n_bytes,
                                                  const struct glake__tag *tag)
{
	struct glake__line *line = glake__runs_line(&pool->runs, tag->stream - 1);
	struct glake__pooled *pooled = line ? glake__pooled_new(pool, n_bytes, tag) : NULL;
	if (!pooled || !glake__pooled_take(pool, pooled, line)) {
		free(pooled);
		return NULL;
	}
	return glake__pooled_begin(pooled);
}

bool glake__pool_is_idle(const struct glake__pool *pool, const struct glake__stitched *stitched)
{
	const struct glake__line *line = glake__ptr_table_get(&pool->runs.by_stream,
	                                                      stitched->stream + 1);
	return (!line || stitched->number <= line->n_passed) &&
	       !glake__pool_is_busy(pool, stitched);
}

/* ---- chunks ------------------------------------------------------------------------------------ */

struct glake__stretch glake__pool_chunk_at(const struct glake__pool *pool, uint64_t page)
{
	const struct glake__piece *piece = glake__range_piece_locked(pool->home,
	                                                             page * GLAKE__PAGE_BYTES);
	return (struct glake__stretch){piece->offset / GLAKE__PAGE_BYTES,
	                               piece->n_bytes / GLAKE__PAGE_BYTES};
}

const struct glake__piece *glake__pool_mappings_at(const struct glake__pool *pool, uint64_t page)
{
	return glake__range_piece_locked(pool->home, page * GLAKE__PAGE_BYTES)->chunk->mappings;
}

struct glake__stretch glake__pool_whole_chunks(const struct glake__pool *pool,
                                               const struct glake__run *run)
{
	uint64_t first = glake__pages_of(run->first);
	uint64_t end = glake__run_end(run) / RUN_PAGE_UNITS;
	if (first < end) {
		struct glake__stretch chunk = glake__pool_chunk_at(pool, first);
		first = chunk.page == first ? first : chunk.page + chunk.n_pages;
	}
	if (first < end) {
		struct glake__stretch chunk = glake__pool_chunk_at(pool, end - 1);
		end = chunk.page + chunk.n_pages == end ? end : chunk.page;
	}
	return (struct glake__stretch){first, first < end ? end - first : 0};
}

/* ---- freeing ----------------------------------------------------------------------------------- */

/* Cheap, and exact to a few milliseconds. */
static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void set_user(struct glake__run *runs, struct glake__stitched *stitched,
                     struct glake__pooled *user)
{
	for (struct glake__run *run = runs; run; run = run->next_in_bin) {
		run->user = user;
	}
	if (stitched) {
		stitched->user = user;
	}
}

static void keep(struct glake__pool *pool, struct glake__stitched *stitched)
{
	if (stitched) {
		glake__stitched_set_kept(&pool->stitched, stitched);
		pool->is_dirty |= !glake__pool_is_true(pool, stitched);
		glake__pool_count_stitched(pool);
	}
}

static void keep_behind(struct glake__pool *pool, struct glake__stitched *stitched, uint64_t stream,
                        uint64_t number)
{
	if (stitched) {
		stitched->stream = stream;
		stitched->number = number;
	}
	keep(pool, stitched);
}

/* The number is given out before anybody looks whether it is too late: glake__pool_close() does the reverse. */
bool glake__pool_join_locked(struct glake__allocation *allocation, uint64_t stream)
{
	struct glake__pooled *pooled = glake__pooled_of(allocation);
	struct glake__pool *pool = pooled->pool;
	struct glake__line *line = glake__runs_line(&pool->runs, stream);
	const struct glake__pooled *waiting = line ? line->waiting : NULL;
	if (pooled->was_held || !waiting || now_ns() - waiting->parked_ns >= JOIN_NS) {
		return false;
	}
	uint64_t number = ++line->n_freed;
	if (waiting->is_closed) {
		return false;
	}
	count_freed(pool, allocation);
	keep_behind(pool, pooled->stitched, stream, number);
	give_runs(pool, pooled->runs, line, number);
	free(pooled);
	return true;
}

void glake__pool_close(struct glake__allocation *allocation)
{
	struct glake__pooled *pooled = glake__pooled_of(allocation);
	if (!pooled->is_closed) {
		pooled->is_closed = true;
		pooled->number = pooled->line->n_freed;
	}
}

bool glake__pool_detach_locked(struct glake__allocation *allocation, uint64_t stream,
                               struct glake__parking *parking)
{
	struct glake__pooled *pooled = glake__pooled_of(allocation);
	struct glake__line *line = glake__runs_line(&pooled->pool->runs, stream);
	if (!line) {
		return false;
	}
	count_freed(pooled->pool, allocation);
	glake__pooled_doom(pooled);
	*parking = (struct glake__parking){
		.pool = pooled->pool,
		.waiting = pooled,
		.number = ++line->n_freed,
		.runs = pooled->runs,
		.stitched = pooled->stitched,
	};
	line->n_holders++;
	line->n_waiting++;
	set_user(pooled->runs, pooled->stitched, NULL);
	set_user(pooled->doomed, NULL, NULL);
	pooled->line = line;
	pooled->parked_ns = now_ns();
	pooled->is_closed = false;
	pooled->is_in_parking = true;
	pooled->is_passed = false;
	pooled->runs = NULL;
	pooled->stitched = NULL;
	allocation->is_parked = true;
	return true;
}

static void end_waiting(struct glake__pooled *pooled)
{
	if (pooled->line->waiting == pooled) {
		pooled->line->waiting = NULL;
	}
	pooled->line->n_holders--;
	free(pooled);
}

/* A tied line passes all at once, when nothing waits any more. */
static void pass(const struct glake__pooled *pooled)
{
	struct glake__line *line = pooled->line;
	line->n_waiting--;
	if (!glake__line_is_tied(line)) {
		glake__line_pass(line, pooled->is_closed ? pooled->number : line->n_freed);
	} else if (line->n_waiting == 0) {
		glake__line_pass(line, line->n_freed);
	}
}

/* Another thread may have released it meanwhile. */
void glake__pool_attach_free_locked(struct glake__parking *parking)
{
	struct glake__pool *pool = parking->pool;
	struct glake__pooled *pooled = parking->waiting;
	struct glake__line *line = pooled->line;
	keep_behind(pool, parking->stitched, line->stream, parking->number);
	give_runs(pool, parking->runs, line, parking->number);
	line->waiting = pooled;
	pooled->is_in_parking = false;
	if (pooled->is_passed) {
		end_waiting(pooled);
	}
}

void glake__pool_undo_locked(struct glake__allocation *allocation, struct glake__parking *parking)
{
	struct glake__pooled *pooled = glake__pooled_of(allocation);
	pooled->line->n_holders--;
	pooled->line->n_waiting--;
	pooled->runs = parking->runs;
	pooled->stitched = parking->stitched;
	glake__pooled_spare(pooled);
	set_user(pooled->runs, pooled->stitched, pooled);
	allocation->is_parked = false;
	pooled->pool->stats->n_allocs--;
	count_taken(pooled->pool, allocation);
}

void glake__pool_release_locked(struct glake__allocation *allocation)
{
	struct glake__pooled *pooled = glake__pooled_of(allocation);
	struct glake__pool *pool = pooled->pool;
	if (allocation->is_parked) {
		pass(pooled);
		glake__pooled_condemn(pooled);
		pooled->is_passed = true;
		if (!pooled->is_in_parking) {
			end_waiting(pooled);
		}
	} else {
		count_freed(pool, allocation);
		glake__pooled_doom(pooled);
		set_user(pooled->doomed, NULL, NULL);
		glake__pooled_condemn(pooled);
		/* Streams may still use what was there before it. */
		keep(pool, pooled->stitched);
		glake__pooled_give_up(pooled);
		free(pooled);
	}
}

/* ---- looking ----------------------------------------------------------------------------------- */

struct glake__pool *glake__pool_of(const struct glake__allocation *allocation)
{
	return ((const struct glake__pooled *)allocation)->pool;
}

struct glake__device *glake__pool_device_of(const struct glake__allocation *allocation)
{
	return glake__pool_of(allocation)->device;
}

struct glake__allocation *glake__pool_find_locked(const struct glake__range *range,
                                                  glake_ptr address)
{
	const struct glake__pooled *pooled = NULL;
	if (range->use == &glake__use_stitched) {
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
		struct glake__pooled *pooled = run->state == GLAKE__RUN_USED ? run->user : NULL;
		if (pooled && pooled->runs == run) {
			visit(&pooled->allocation, user);
		}
	}
}

/* Describes a run that is used or being freed. */
static void describe_used(const struct glake__pooled *pooled, struct glake_pool_range *range)
{
	range->state = GLAKE_POOL_USED;
	range->is_stitched = pooled->stitched != NULL;
	range->allocation = pooled->allocation.address;
	range->stream = pooled->allocation.tag.stream - 1;
}

void glake__pool_visit_ranges_locked(const struct glake__pool *pool,
                                     void (*visit)(const struct glake_pool_range *range,
                                                   void *user),
                                     void *user)
{
	for (const struct glake__run *run = pool->runs.first; run; run = run->next) {
		uint64_t offset = run->first * RUN_UNIT_BYTES;
		const struct glake__piece *piece = glake__range_piece_locked(pool->home, offset);
		if (!piece->chunk) {
			/* A hole, or on its way from or to glaked. */
			continue;
		}
		struct glake_pool_range range = {
			.ptr = pool->home->ptr + offset,
			.bytes = run->n_units * RUN_UNIT_BYTES,
			.state = GLAKE_POOL_PARKED,
			.stream = GLAKE_POOL_NO_STREAM,
			.chunk_bytes = piece->chunk->n_bytes,
		};
		if (run->state == GLAKE__RUN_FREE) {
			bool is_passed = run->number <= run->line->n_passed;
			range.state = is_passed ? GLAKE_POOL_FREE : GLAKE_POOL_PARKED;
			range.stream = run->line == &pool->runs.nobody ? GLAKE_POOL_NO_STREAM
			                                               : run->line->stream;
		} else if (run->user) {
			describe_used(run->user, &range);
		}
		visit(&range, user);
	}
}

uint64_t glake__pool_free_bytes_locked(const struct glake__pool *pool)
{
	return pool->stats->reserved_bytes - pool->stats->used_bytes -
	       pool->runs.n_tied * RUN_UNIT_BYTES;
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
	int r = glake__range_reserve(&glake__use_pool, pool, device->handle,
	                             n_pages * GLAKE__PAGE_BYTES, 0, 0, &pool->home);
	if (r < 0) {
		glake__runs_deinit(&pool->runs);
		return r;
	}
	pool->device = device;
	pool->stats = stats;
	pool->kept_min_pages = KEPT_MIN_PAGES;
	pool->round_ns = clock_now_ns();
	pool->round_length_ns = POOL_ROUND_NS;
	*pool_out = ptr_steal(pool);
	return 0;
}

static void free_pooled(struct glake__allocation *allocation, void *user)
{
	struct glake__pooled *pooled = glake__pooled_of(allocation);
	(void)user;
	set_user(pooled->runs, NULL, NULL);
	free(pooled);
}

void glake__pool_end(struct glake__pool *pool)
{
	if (!pool) {
		return;
	}
	struct glake_session *session = pool->device->session;
	for (size_t i = 0; i < pool->stitched.n; i++) {
		struct glake__stitched *stitched = pool->stitched.by_size[i];
		glake__grant_drop(session, stitched->range);
		free(stitched->stretches);
		free(stitched);
	}
	free(pool->stitched.by_size);
	glake__grant_drop(session, pool->home);
	glake__pool_visit_locked(pool, free_pooled, NULL);
	glake__runs_deinit(&pool->runs);
	free(pool);
}

/* No page is in it twice. */
static bool is_stitched_valid(const struct glake__stitched *stitched)
{
	const struct glake__pooled *pooled = stitched->user;
	bool is_valid = !pooled || (stitched->is_live && pooled->stitched == stitched);
	for (size_t i = 0; i < stitched->n_stretches; i++) {
		const struct glake__stretch *one = &stitched->stretches[i];
		for (size_t j = 0; j < i; j++) {
			const struct glake__stretch *other = &stitched->stretches[j];
			is_valid &= one->page + one->n_pages <= other->page ||
			            other->page + other->n_pages <= one->page;
		}
	}
	return is_valid;
}

bool glake__pool_is_valid(struct glake__pool *pool)
{
	uint64_t n_used = 0;
	uint64_t n_mapped = 0;
	glake__lock();
	bool is_valid = glake__runs_are_valid(&pool->runs);
	for (const struct glake__run *run = pool->runs.first; run; run = run->next) {
		uint64_t n_sealed = glake__pool_count_sealed(pool, run);
		n_used += run->state == GLAKE__RUN_USED ? run->n_units - n_sealed : 0;
		n_mapped += run->state != GLAKE__RUN_HOLE ? run->n_units - n_sealed : 0;
	}
	for (size_t i = 0; i < pool->stitched.n; i++) {
		is_valid &= is_stitched_valid(pool->stitched.by_size[i]);
	}
	is_valid &= n_used * RUN_UNIT_BYTES == pool->stats->used_bytes &&
	            n_mapped * RUN_UNIT_BYTES == pool->stats->reserved_bytes;
	glake__unlock();
	return is_valid;
}
