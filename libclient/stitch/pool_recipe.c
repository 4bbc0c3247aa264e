/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which free memory an allocation is stitched of: a row of chunks, of which all is free but for the front of the
 * first and the rear of the last. Chunks are mapped whole, so those two have another allocation beside it.
 */
#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/stitch/pool_parts.h"

/* Less free memory than this in a chunk is not worth a mapping. */
#define PART_MIN_UNITS (RUN_PAGE_UNITS / 16)

/* Free memory, by where it can stand in the row. */
struct free_part {
	enum position { FIRST, BETWEEN, LAST } position;
	uint64_t n_units;
	struct glake__stretch stretch; /* the chunks it is in */
};

struct free_parts {
	struct free_part *list;
	size_t n;
};

/* ---- what is free ------------------------------------------------------------------------------ */

#define PARTS_OF_RUN 3u /* at most */

static bool is_held(const struct glake__pool *pool, uint64_t page)
{
	return glake__range_piece_locked(pool->home, page * GLAKE__PAGE_BYTES)->chunk->holder;
}

/* The rear of the chunk that @run begins in, the front of the one it ends in, and those between. */
static void add_run(const struct glake__pool *pool, const struct glake__run *run,
                    struct free_parts *parts)
{
	struct glake__stretch whole = glake__pool_whole_chunks(pool, run);
	uint64_t end = glake__run_end(run);
	struct glake__stretch first = glake__pool_chunk_at(pool, run->first / RUN_PAGE_UNITS);
	struct glake__stretch last = glake__pool_chunk_at(pool, (end - 1) / RUN_PAGE_UNITS);
	uint64_t first_end = (first.page + first.n_pages) * RUN_PAGE_UNITS;
	uint64_t last_start = last.page * RUN_PAGE_UNITS;
	struct free_part *next = &parts->list[parts->n];
	if (whole.n_pages > 0) {
		*next++ = (struct free_part){BETWEEN, whole.n_pages * RUN_PAGE_UNITS, whole};
	}
	/* Beside memory that is being sealed, chunks cannot be mapped once more. */
	if (first.page * RUN_PAGE_UNITS < run->first && first_end <= end &&
	    !is_held(pool, first.page) && first_end - run->first >= PART_MIN_UNITS) {
		*next++ = (struct free_part){FIRST, first_end - run->first, first};
	}
	if ((last.page + last.n_pages) * RUN_PAGE_UNITS > end && last_start >= run->first &&
	    !is_held(pool, last.page) && end - last_start >= PART_MIN_UNITS) {
		*next++ = (struct free_part){LAST, end - last_start, last};
	}
	parts->n = (size_t)(next - parts->list);
}

static bool is_free(const struct glake__run *run, const struct glake__line *line)
{
	return run && run->state == GLAKE__RUN_FREE && glake__run_serves(run, line) &&
	       (run->line == line || !glake__line_is_tied(run->line));
}

/* Add free runs: those of several lines that lie side by side count as one. Returns the run behind them. */
static const struct glake__run *add_runs(const struct glake__pool *pool,
                                         const struct glake__run *first,
                                         const struct glake__line *line, struct free_parts *parts)
{
	struct glake__run all = {.first = first->first};
	const struct glake__run *run = first;
	for (; is_free(run, line); run = run->next) {
		all.n_units += run->n_units;
	}
	add_run(pool, &all, parts);
	return run;
}

static int by_position_and_size(const void *one, const void *other)
{
	const struct free_part *a = one;
	const struct free_part *b = other;
	return a->position != b->position
	               ? (a->position > b->position) - (a->position < b->position)
	               : (a->n_units > b->n_units) - (a->n_units < b->n_units);
}

/* All that is free for @line, by its position, the smallest first. */
static int gather(struct glake__pool *pool, const struct glake__line *line,
                  struct free_parts *parts)
{
	glake__runs_unite(&pool->runs);
	size_t n_runs = pool->runs.nobody.bins.n_runs;
	for (const struct glake__line *at = pool->runs.lines; at; at = at->next) {
		n_runs += at->bins.n_runs;
	}
	parts->list = reallocarray(NULL, n_runs + 1, PARTS_OF_RUN * sizeof(*parts->list));
	if (!parts->list) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	const struct glake__run *run = pool->runs.first;
	while (run) {
		run = is_free(run, line) ? add_runs(pool, run, line, parts) : run->next;
	}
	qsort(parts->list, parts->n, sizeof(*parts->list), by_position_and_size);
	return 0;
}

/* ---- what is chosen ---------------------------------------------------------------------------- */

/*
 * The smallest for the end with @n_units. NULL: none, or none is needed. Not of the chunk of @first (may be NULL):
 * when all of it is free, what is kept would have some of its memory twice.
 */
static const struct free_part *find_last(const struct free_parts *parts,
                                         const struct free_part *first, uint64_t n_units)
{
	const struct free_part *found = NULL;
	for (size_t i = 0; n_units > 0 && !found && i < parts->n; i++) {
		const struct free_part *part = &parts->list[i];
		bool is_other = !first || part->stretch.page != first->stretch.page;
		if (part->position == LAST && part->n_units >= n_units && is_other) {
			found = part;
		}
	}
	return found;
}

/* The largest for the beginning of @n_units, if it saves a page, alone or with one for the end. */
static const struct free_part *find_first(const struct free_parts *parts, uint64_t n_units)
{
	const struct free_part *found = NULL;
	for (size_t i = 0; i < parts->n && parts->list[i].position == FIRST; i++) {
		found = parts->list[i].n_units < n_units ? &parts->list[i] : found;
	}
	uint64_t n_left = found ? n_units - found->n_units : 0;
	bool saves = found && (glake__pages_of(n_left) < glake__pages_of(n_units) ||
	                       find_last(parts, found, n_left % RUN_PAGE_UNITS));
	return saves ? found : NULL;
}

/* @stretch is free, and more than the last @n_units of the row: it ends in a chunk of which some is left over. */
static void add_rest(const struct glake__pool *pool, const struct free_parts *parts,
                     const struct free_part *first, struct glake__stretch stretch, uint64_t n_units,
                     struct glake__recipe *recipe)
{
	struct glake__stretch chunk = glake__pool_chunk_at(
		pool, stretch.page + glake__pages_of(n_units) - 1);
	uint64_t n_before = chunk.page - stretch.page;
	const struct free_part *last = NULL;
	if (n_units - n_before * RUN_PAGE_UNITS < chunk.n_pages * RUN_PAGE_UNITS) {
		last = find_last(parts, first, n_units - n_before * RUN_PAGE_UNITS);
	}
	stretch.n_pages = last ? n_before : n_before + chunk.n_pages;
	if (stretch.n_pages > 0) {
		recipe->list[recipe->n++] = stretch;
	}
	if (last) {
		recipe->list[recipe->n++] = last->stretch;
	}
}

/* Parts of chunks are left alone, to merge when what is beside them is freed, where whole ones suffice. */
static struct free_parts those_needed(const struct free_parts *all, uint64_t n_units)
{
	struct free_parts whole = {.n = 0};
	uint64_t n_whole = 0;
	for (size_t i = 0; i < all->n; i++) {
		if (all->list[i].position == BETWEEN) {
			whole.list = whole.list ? whole.list : &all->list[i];
			whole.n++;
			n_whole += all->list[i].n_units;
		}
	}
	return n_whole < n_units ? *all : whole;
}

static void choose(const struct glake__pool *pool, const struct free_parts *parts, uint64_t n_units,
                   struct glake__recipe *recipe)
{
	const struct free_part *first = find_first(parts, n_units);
	if (first) {
		recipe->list[recipe->n++] = first->stretch;
		recipe->n_units = first->n_units;
		recipe->n_skipped = first->stretch.n_pages * RUN_PAGE_UNITS - first->n_units;
	}
	for (size_t i = 0; recipe->n_units < n_units && i < parts->n; i++) {
		const struct free_part *part = &parts->list[i];
		uint64_t n_left = n_units - recipe->n_units;
		if (part->position == BETWEEN && part->n_units < n_left) {
			recipe->list[recipe->n++] = part->stretch;
			recipe->n_units += part->n_units;
		} else if (part->position == BETWEEN) {
			add_rest(pool, parts, first, part->stretch, n_left, recipe);
			recipe->n_units = n_units;
		}
	}
	uint64_t n_missing = n_units - recipe->n_units;
	const struct free_part *last = find_last(parts, first, n_missing % RUN_PAGE_UNITS);
	if (last) {
		recipe->list[recipe->n++] = last->stretch;
		recipe->has_last = true;
		recipe->n_units += n_missing % RUN_PAGE_UNITS;
	}
	recipe->n_missing = n_units - recipe->n_units;
}

int glake__recipe_make(struct glake__pool *pool, const struct glake__line *line, uint64_t n_units,
                       struct glake__recipe *recipe)
{
	struct free_parts parts = {.n = 0};
	*recipe = (struct glake__recipe){.n = 0};
	int r = gather(pool, line, &parts);
	if (r < 0) {
		return r;
	}
	/* Each is used once, and some fresh memory. */
	recipe->list = reallocarray(NULL, parts.n + 1, sizeof(*recipe->list));
	if (recipe->list) {
		const struct free_parts needed = those_needed(&parts, n_units);
		choose(pool, &needed, n_units, recipe);
		void *less = reallocarray(recipe->list, recipe->n + 1, sizeof(*recipe->list));
		recipe->list = less ? less : recipe->list;
	}
	free(parts.list);
	return recipe->list ? 0 : glake__fail(-ENOMEM, "out of memory");
}

int glake__recipe_list_free(struct glake__pool *pool, const struct glake__line *line,
                            struct glake__stretch **list_out, size_t *n_out)
{
	struct free_parts parts = {.n = 0};
	int r = gather(pool, line, &parts);
	if (r < 0) {
		return r;
	}
	struct glake__stretch *list = reallocarray(NULL, parts.n + 1, sizeof(*list));
	size_t n = 0;
	for (size_t i = 0; list && i < parts.n; i++) {
		if (parts.list[i].position == BETWEEN) {
			list[n++] = parts.list[i].stretch;
		}
	}
	free(parts.list);
	*list_out = list;
	*n_out = n;
	return list ? 0 : glake__fail(-ENOMEM, "out of memory");
}
