/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept ranges that are made to fit, so that less has to be mapped than for a new one:
 *   - one that is free, but too short, gets more chunks at its end. Work may go on in it.
 *   - in one that would be dropped, other chunks take the places of those in use. No work uses its addresses.
 */
#include <stdlib.h>

#include "libclient/stitch/pool_parts.h"

/* At most this many kept ranges of each kind are looked at. */
#define MAX_LOOKS 64u
/* A kept range is changed if it has at most this many chunks in use for each four that the new one takes. */
#define USED_OF_FOUR 3u

/* A kept range, and what a request would find in it. */
struct fit {
	struct glake__stitched *stitched; /* NULL: none is found */
	uint64_t n_skipped;               /* units at the front that stay another allocation's */
	size_t n_used;                    /* chunks that the request needs, and others use */
};

/* The chunks of a kept range, in order. {.stitched} is before the first. */
struct walk {
	const struct glake__stitched *stitched;
	size_t n; /* stretches that are behind it */
	struct glake__stretch chunk;
	uint64_t begin; /* units before it in the range */
};

static bool walk_on(const struct glake__pool *pool, struct walk *walk)
{
	const struct glake__stretch *stretch = &walk->stitched->stretches[walk->n];
	uint64_t page = walk->chunk.page + walk->chunk.n_pages;
	if (walk->chunk.n_pages == 0 || page == stretch->page + stretch->n_pages) {
		walk->n += walk->chunk.n_pages > 0;
		if (walk->n == walk->stitched->n_stretches) {
			return false;
		}
		page = walk->stitched->stretches[walk->n].page;
	}
	walk->begin += walk->chunk.n_pages * RUN_PAGE_UNITS;
	walk->chunk = glake__pool_chunk_at(pool, page);
	return true;
}

/* Is the chunk's memory behind the units [begin, end) of the range free for @line? True also where there is none. */
static bool is_free(const struct glake__pool *pool, const struct walk *walk,
                    const struct glake__line *line, uint64_t begin, uint64_t end)
{
	uint64_t chunk_end = walk->begin + walk->chunk.n_pages * RUN_PAGE_UNITS;
	uint64_t first = begin > walk->begin ? begin : walk->begin;
	end = end < chunk_end ? end : chunk_end;
	uint64_t unit = walk->chunk.page * RUN_PAGE_UNITS + first - walk->begin;
	return first >= end || glake__pool_is_free(pool, line, unit, end - first);
}

/* Whether at most @most of the chunks that @n_units need of @stitched are in use. */
static bool look(const struct glake__pool *pool, struct glake__stitched *stitched,
                 const struct glake__line *line, uint64_t n_units, size_t most, struct fit *fit_out)
{
	struct fit fit = {.stitched = stitched, .n_skipped = stitched->n_skipped};
	struct walk walk = {.stitched = stitched};
	while (fit.n_used <= most && walk_on(pool, &walk)) {
		bool is_used = !is_free(pool, &walk, line, fit.n_skipped, fit.n_skipped + n_units);
		fit.n_used += is_used;
		if (is_used && walk.begin == 0) {
			/* This chunk goes, so none of it is skipped. */
			fit.n_skipped = 0;
		}
	}
	bool is_good = fit.n_used <= most;
	*fit_out = is_good ? fit : *fit_out;
	return is_good;
}

/* The longest that is free, but too short, with room for the rest. */
static struct fit find_short(const struct glake__pool *pool, const struct glake__line *line,
                             uint64_t n_units)
{
	struct fit fit = {.stitched = NULL};
	size_t at = glake__stitched_lower_bound(&pool->stitched, glake__pages_of(n_units) + 1);
	for (unsigned n = 0; at-- > 0 && n < MAX_LOOKS && !fit.stitched; n++) {
		struct glake__stitched *stitched = pool->stitched.by_size[at];
		uint64_t n_pages = glake__pages_of(stitched->n_skipped + n_units);
		if (!stitched->is_live && stitched->n_pages < n_pages &&
		    n_pages * GLAKE__PAGE_BYTES <= stitched->range->n_bytes &&
		    glake__pool_is_true(pool, stitched)) {
			look(pool, stitched, line, n_units, 0, &fit);
		}
	}
	return fit;
}

/* The one of the right size with the fewest chunks in use, @most of them, that no work uses. */
static struct fit find_used(const struct glake__pool *pool, const struct glake__line *line,
                            uint64_t n_units, size_t most)
{
	struct fit fit = {.stitched = NULL};
	size_t at = glake__stitched_lower_bound(&pool->stitched, glake__pages_of(n_units));
	for (unsigned n = 0; at < pool->stitched.n && n < MAX_LOOKS; at++, n++) {
		struct glake__stitched *stitched = pool->stitched.by_size[at];
		bool is_long = glake__pages_of(stitched->n_skipped + n_units) <= stitched->n_pages;
		if (is_long && !stitched->is_live && glake__pool_is_idle(pool, stitched) &&
		    glake__pool_is_true(pool, stitched) &&
		    look(pool, stitched, line, n_units, most, &fit)) {
			if (fit.n_used == 0) {
				break;
			}
			most = fit.n_used - 1;
		}
	}
	return fit;
}

/* ---- the row ----------------------------------------------------------------------------------- */

/* Free chunks, the largest first, of equal ones those that lie among few. */
struct spare {
	struct glake__stretch chunk;
	uint64_t n_beside; /* pages of the free chunks side by side that it is one of */
	bool is_taken;
};

struct spares {
	struct spare *list; /* owned */
	size_t n;
};

static int by_size(const void *one, const void *other)
{
	const struct spare *a = one;
	const struct spare *b = other;
	int order = (a->chunk.n_pages < b->chunk.n_pages) - (a->chunk.n_pages > b->chunk.n_pages);
	if (order == 0) {
		order = (a->n_beside > b->n_beside) - (a->n_beside < b->n_beside);
	}
	return order ? order : (a->chunk.page > b->chunk.page) - (a->chunk.page < b->chunk.page);
}

static bool is_mapped_in(const struct glake__pool *pool, uint64_t page,
                         const struct glake__stitched *stitched)
{
	const struct glake__piece *at = glake__pool_mappings_at(pool, page);
	while (at && at->range != stitched->range) {
		at = at->next_mapping;
	}
	return at != NULL;
}

/* Gathers free chunks that @stitched does not map: no page stands in it twice. False: no memory of the host. */
static bool gather(struct glake__pool *pool, const struct glake__line *line,
                   const struct glake__stitched *stitched, struct spares *spares)
{
	struct glake__stretch *stretches;
	size_t n;
	if (glake__recipe_list_free(pool, line, &stretches, &n) < 0) {
		return false;
	}
	uint64_t n_pages = 0;
	for (size_t i = 0; i < n; i++) {
		n_pages += stretches[i].n_pages;
	}
	spares->list = reallocarray(NULL, n_pages + 1, sizeof(*spares->list));
	for (size_t i = 0; spares->list && i < n; i++) {
		uint64_t end = stretches[i].page + stretches[i].n_pages;
		for (uint64_t page = stretches[i].page; page < end;) {
			struct glake__stretch chunk = glake__pool_chunk_at(pool, page);
			if (!is_mapped_in(pool, page, stitched)) {
				spares->list[spares->n++] = (struct spare){
					.chunk = chunk, .n_beside = stretches[i].n_pages};
			}
			page += chunk.n_pages;
		}
	}
	free(stretches);
	if (spares->list) {
		qsort(spares->list, spares->n, sizeof(*spares->list), by_size);
	}
	return spares->list != NULL;
}

static void add_chunk(struct glake__recipe *recipe, struct glake__stretch chunk)
{
	struct glake__stretch *last = recipe->n > 0 ? &recipe->list[recipe->n - 1] : NULL;
	if (last && last->page + last->n_pages == chunk.page) {
		last->n_pages += chunk.n_pages;
	} else {
		recipe->list[recipe->n++] = chunk;
	}
}

/* For a place of @n_pages. Returns how many have none. */
static uint64_t add_spares(struct spares *spares, uint64_t n_pages, struct glake__recipe *recipe)
{
	for (size_t i = 0; n_pages > 0 && i < spares->n; i++) {
		struct spare *spare = &spares->list[i];
		if (!spare->is_taken && spare->chunk.n_pages <= n_pages) {
			spare->is_taken = true;
			n_pages -= spare->chunk.n_pages;
			add_chunk(recipe, spare->chunk);
		}
	}
	return n_pages;
}

/* add_spares() at the end of the row, where the last chunk may be too large, up to @n_room pages. */
static uint64_t add_end(struct spares *spares, uint64_t n_pages, uint64_t n_room,
                        struct glake__recipe *recipe)
{
	uint64_t n_left = add_spares(spares, n_pages, recipe);
	n_room -= n_pages - n_left;
	for (size_t i = spares->n; n_left > 0 && i-- > 0;) {
		const struct spare *spare = &spares->list[i];
		if (!spare->is_taken && spare->chunk.n_pages > n_left &&
		    spare->chunk.n_pages <= n_room) {
			add_chunk(recipe, spare->chunk);
			n_left = 0;
		}
	}
	return n_left;
}

/* The row of @fit, with what is free. False: chunks do not fill a place. */
static bool lay(const struct glake__pool *pool, const struct glake__line *line, uint64_t n_units,
                const struct fit *fit, struct spares *spares, struct glake__recipe *recipe)
{
	struct walk walk = {.stitched = fit->stitched};
	uint64_t end = fit->n_skipped + n_units;
	uint64_t n_open = 0; /* pages of chunks in use, behind the row so far */
	while (walk_on(pool, &walk)) {
		if (!is_free(pool, &walk, line, fit->n_skipped, end)) {
			n_open += walk.chunk.n_pages;
			continue;
		}
		if (add_spares(spares, n_open, recipe) > 0) {
			return false;
		}
		n_open = 0;
		add_chunk(recipe, walk.chunk);
	}
	if (add_spares(spares, n_open, recipe) > 0) {
		return false;
	}
	uint64_t n_pages = fit->stitched->n_pages;
	uint64_t n_short = glake__pages_of(end) > n_pages ? glake__pages_of(end) - n_pages : 0;
	uint64_t n_room = fit->stitched->range->n_bytes / GLAKE__PAGE_BYTES - n_pages;
	uint64_t n_left = add_end(spares, n_short, n_room, recipe);
	uint64_t covered = (n_pages + n_short - n_left) * RUN_PAGE_UNITS;
	recipe->kept = fit->stitched;
	recipe->n_skipped = fit->n_skipped;
	recipe->n_missing = n_left > 0 ? end - covered : 0;
	recipe->n_units = n_units - recipe->n_missing;
	return true;
}

static size_t count_chunks(const struct glake__pool *pool, const struct glake__recipe *recipe)
{
	const struct glake__stitched row = {.stretches = recipe->list, .n_stretches = recipe->n};
	struct walk walk = {.stitched = &row};
	size_t n = 0;
	while (walk_on(pool, &walk)) {
		n++;
	}
	return n;
}

void glake__recipe_change(struct glake__pool *pool, const struct glake__line *line,
                          uint64_t n_units, bool is_full, struct glake__recipe *recipe)
{
	struct fit fit = find_short(pool, line, n_units);
	if (!fit.stitched && is_full) {
		size_t most = count_chunks(pool, recipe) * USED_OF_FOUR / 4;
		fit = find_used(pool, line, n_units, most);
	}
	struct spares spares = {.n = 0};
	if (!fit.stitched || !gather(pool, line, fit.stitched, &spares)) {
		return;
	}
	struct glake__recipe changed = {.n = 0};
	/* The range's chunks may have been cut since it was mapped. */
	changed.list = reallocarray(NULL, fit.stitched->n_pages + spares.n + 1,
	                            sizeof(*changed.list));
	if (changed.list && lay(pool, line, n_units, &fit, &spares, &changed) &&
	    glake__pages_of(changed.n_missing) <= glake__pages_of(recipe->n_missing)) {
		free(recipe->list);
		*recipe = changed;
	} else {
		free(changed.list);
	}
	free(spares.list);
}
