/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A run that is split or merged wrongly gives one page to two allocations, or to a stream whose work is not behind the last
 * use. So a run keeps the line that freed it and the highest number of the frees it was merged from, and only merges with runs
 * of its line or of nobody. Nobody's memory is free for every stream. All changes happen with the caller's lock held, without
 * a driver call: no half-changed row is ever seen.
 */
#include "libclient/stitch/runs.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/space/chain.h"
#include "libclient/space/fit.h"

/* At most this many runs of a bin are looked at for the smallest. */
#define MAX_LOOKS 16u
/* Lines without runs end when there are more lines than this. */
#define MANY_LINES 64u

/* ---- bins ------------------------------------------------------------------------------------- */

static struct glake__run_bins *bins_of(struct glake__runs *runs, const struct glake__run *run)
{
	return run->state == GLAKE__RUN_HOLE ? &runs->holes : &run->line->bins;
}

static void count_tied(const struct glake__run *run, uint64_t n_units)
{
	if (run->state == GLAKE__RUN_FREE && run->line->n_tied) {
		*run->line->n_tied += n_units;
	}
}

static void hang(struct glake__runs *runs, struct glake__run *run)
{
	struct glake__run_bins *bins = bins_of(runs, run);
	unsigned bin = glake__fit_bin_of(run->n_units);
	CHAIN_PUSH(bins->first[bin], run, previous_in_bin, next_in_bin);
	bins->filled[bin / 64] |= 1ull << (bin % 64);
	bins->n_runs++;
	bins->n_units += run->n_units;
	count_tied(run, run->n_units);
}

static void unhang(struct glake__runs *runs, struct glake__run *run)
{
	struct glake__run_bins *bins = bins_of(runs, run);
	unsigned bin = glake__fit_bin_of(run->n_units);
	CHAIN_REMOVE(bins->first[bin], run, previous_in_bin, next_in_bin);
	if (!bins->first[bin]) {
		bins->filled[bin / 64] &= ~(1ull << (bin % 64));
	}
	bins->n_runs--;
	bins->n_units -= run->n_units;
	count_tied(run, -run->n_units);
}

/* The first bin from @bin on with any; RUN_BINS: none. */
static unsigned next_filled(const struct glake__run_bins *bins, unsigned bin)
{
	for (unsigned word = bin / 64; word < RUN_BINS / 64; word++) {
		uint64_t filled = bins->filled[word];
		filled &= word == bin / 64 ? ~0ull << (bin % 64) : ~0ull;
		if (filled) {
			return word * 64 + (unsigned)__builtin_ctzll(filled);
		}
	}
	return RUN_BINS;
}

/* @line NULL: whoever wants it. */
static struct glake__run *smallest(struct glake__run *first, const struct glake__line *line,
                                   uint64_t n_units)
{
	struct glake__run *best = NULL;
	unsigned n_looks = 0;
	for (struct glake__run *at = first; at && n_looks < MAX_LOOKS; at = at->next_in_bin) {
		if (at->n_units >= n_units && (!best || at->n_units < best->n_units) &&
		    (!line || glake__run_serves(at, line))) {
			best = at;
		}
		n_looks++;
	}
	return best;
}

static struct glake__run *find_in(const struct glake__run_bins *bins,
                                  const struct glake__line *line, uint64_t n_units)
{
	struct glake__run *best = NULL;
	unsigned bin = glake__fit_bin_of(n_units);
	while (!best && (bin = next_filled(bins, bin)) < RUN_BINS) {
		best = smallest(bins->first[bin++], line, n_units);
	}
	return best;
}

/* ---- the row ---------------------------------------------------------------------------------- */

/* The pages whose first unit is in [first, end). */
static void enter_part(struct glake__runs *runs, struct glake__run *run, uint64_t first,
                       uint64_t end)
{
	for (uint64_t page = (first + RUN_PAGE_UNITS - 1) / RUN_PAGE_UNITS;
	     page * RUN_PAGE_UNITS < end; page++) {
		runs->pages[page] = run;
	}
}

static struct glake__run *run_new(struct glake__runs *runs)
{
	struct glake__run *run = runs->spares;
	if (!run) {
		return calloc(1, sizeof(*run));
	}
	runs->spares = run->next;
	*run = (struct glake__run){.first = 0};
	return run;
}

static void run_free(struct glake__runs *runs, struct glake__run *run)
{
	run->next = runs->spares;
	runs->spares = run;
}

/*
 * Cut @run, in no bin, at @unit: @spare becomes the smaller part, of the same kind, so that only its pages change.
 * Returns the part behind.
 */
static struct glake__run *cut(struct glake__runs *runs, struct glake__run *run, uint64_t unit,
                              struct glake__run *spare)
{
	uint64_t n_before = unit - run->first;
	uint64_t n_behind = glake__run_end(run) - unit;
	bool is_before = n_before < n_behind;
	spare->first = is_before ? run->first : unit;
	spare->n_units = is_before ? n_before : n_behind;
	spare->state = run->state;
	spare->line = run->line;
	spare->number = run->number;
	spare->stream = run->stream;
	spare->user = run->user;
	run->first = is_before ? unit : run->first;
	run->n_units -= spare->n_units;
	struct glake__run *before = is_before ? run->previous : run;
	CHAIN_LINK(runs->first, spare, before, previous, next);
	enter_part(runs, spare, spare->first, glake__run_end(spare));
	return is_before ? run : spare;
}

/* Neighbours, in no bin, become one. Only the smaller one's pages are entered anew. */
static struct glake__run *merge(struct glake__runs *runs, struct glake__run *left,
                                struct glake__run *right)
{
	struct glake__run *larger = left->n_units < right->n_units ? right : left;
	struct glake__run *smaller = larger == left ? right : left;
	enter_part(runs, larger, smaller->first, glake__run_end(smaller));
	larger->first = left->first;
	larger->n_units += smaller->n_units;
	if (smaller->number > larger->number) {
		larger->number = smaller->number;
	}
	CHAIN_REMOVE(runs->first, smaller, previous, next);
	run_free(runs, smaller);
	return larger;
}

struct glake__run *glake__runs_at(const struct glake__runs *runs, uint64_t unit)
{
	struct glake__run *run = runs->pages[unit / RUN_PAGE_UNITS];
	while (unit >= glake__run_end(run)) {
		run = run->next;
	}
	return run;
}

/* ---- lines ------------------------------------------------------------------------------------ */

static void end_lines(struct glake__runs *runs)
{
	struct glake__line **link = &runs->lines;
	while (*link) {
		struct glake__line *line = *link;
		if (line->n_holders > 0 || line->bins.n_runs > 0) {
			link = &line->next;
			continue;
		}
		*link = line->next;
		runs->n_ended = line->n_freed > runs->n_ended ? line->n_freed : runs->n_ended;
		glake__ptr_table_remove(&runs->by_stream, line->stream + 1);
		runs->n_lines--;
		free(line);
	}
}

struct glake__line *glake__runs_line(struct glake__runs *runs, uint64_t stream)
{
	struct glake__line *line = glake__ptr_table_get(&runs->by_stream, stream + 1);
	if (line) {
		return line;
	}
	if (runs->n_lines >= MANY_LINES) {
		end_lines(runs);
	}
	line = calloc(1, sizeof(*line));
	if (!line || glake__ptr_table_add(&runs->by_stream, stream + 1, line) < 0) {
		free(line);
		return NULL;
	}
	line->stream = stream;
	line->n_tied = stream >= RUN_TIED_STREAMS ? &runs->n_tied : NULL;
	line->n_freed = runs->n_ended;
	line->n_passed = runs->n_ended;
	line->next = runs->lines;
	runs->lines = line;
	runs->n_lines++;
	return line;
}

void glake__line_follow(struct glake__line *line, const struct glake__line *other, uint64_t number)
{
	unsigned i = 0;
	while (i < RUN_FOLLOWED && line->followed[i].stream != other->stream) {
		i++;
	}
	if (i == RUN_FOLLOWED) {
		i = line->n_followed++ % RUN_FOLLOWED;
		line->followed[i] = (struct glake__followed){.stream = other->stream};
	}
	struct glake__followed *followed = &line->followed[i];
	followed->number = number > followed->number ? number : followed->number;
}

void glake__line_pass(struct glake__line *line, uint64_t number)
{
	line->n_passed = number > line->n_passed ? number : line->n_passed;
	if (line->n_tied && line->n_passed == line->n_freed) {
		*line->n_tied -= line->bins.n_units;
		line->n_tied = NULL;
	}
}

/* ---- finding ---------------------------------------------------------------------------------- */

struct glake__run *glake__runs_find(struct glake__runs *runs, const struct glake__line *line,
                                    uint64_t n_units)
{
	struct glake__run *run = find_in(&line->bins, NULL, n_units);
	/* A line's own run may be most of the memory, joined to what it has just freed: not to be cut for little. */
	bool is_own = run && (run->n_units == n_units || line == &runs->nobody ||
	                      glake__line_is_tied(line));
	struct glake__run *free = is_own ? NULL : find_in(&runs->nobody.bins, NULL, n_units);
	if (free && (!run || free->n_units < run->n_units)) {
		run = free;
	}
	for (const struct glake__line *other = runs->lines; !run && other; other = other->next) {
		bool may_serve = other != line && !glake__line_is_tied(other);
		run = may_serve ? find_in(&other->bins, line, n_units) : NULL;
	}
	return run;
}

/* The number of frees that must be passed first. */
static uint64_t distance(const struct glake__run *run)
{
	return run->number - run->line->n_passed;
}

static struct glake__run *soonest(struct glake__run *best, struct glake__run *first,
                                  const struct glake__line *line, uint64_t n_units, uint64_t most)
{
	unsigned n_looks = 0;
	for (struct glake__run *at = first; at && n_looks < MAX_LOOKS; at = at->next_in_bin) {
		if (at->n_units >= n_units && at->n_units <= most && !glake__run_serves(at, line) &&
		    (!best || distance(at) < distance(best))) {
			best = at;
		}
		n_looks++;
	}
	return best;
}

static struct glake__run *find_soonest(struct glake__runs *runs, const struct glake__line *line,
                                       uint64_t n_units, uint64_t most)
{
	struct glake__run *best = NULL;
	unsigned last = glake__fit_bin_of(most);
	for (const struct glake__line *other = runs->lines; other; other = other->next) {
		bool may_lend = other != line && !glake__line_is_tied(other);
		unsigned bin = next_filled(&other->bins, glake__fit_bin_of(n_units));
		while (may_lend && bin <= last) {
			best = soonest(best, other->bins.first[bin], line, n_units, most);
			bin = next_filled(&other->bins, bin + 1);
		}
	}
	return best;
}

struct glake__run *glake__runs_find_early(struct glake__runs *runs, const struct glake__line *line,
                                          uint64_t n_units)
{
	struct glake__run *run = find_soonest(runs, line, n_units, n_units + n_units / 8);
	return run ? run : find_soonest(runs, line, n_units, runs->n_units);
}

struct glake__run *glake__runs_find_hole(struct glake__runs *runs, uint64_t n_units)
{
	return find_in(&runs->holes, NULL, n_units);
}

/* ---- changing --------------------------------------------------------------------------------- */

struct glake__run *glake__runs_use(struct glake__runs *runs, struct glake__run *run, uint64_t first,
                                   uint64_t n_units)
{
	uint64_t end = first + n_units;
	bool has_before = run->first < first;
	bool has_behind = glake__run_end(run) > end;
	struct glake__run *before = has_before ? run_new(runs) : NULL;
	struct glake__run *behind = has_behind ? run_new(runs) : NULL;
	if ((has_before && !before) || (has_behind && !behind)) {
		if (before || behind) {
			run_free(runs, before ? before : behind);
		}
		return NULL;
	}
	unhang(runs, run);
	if (has_before) {
		run = cut(runs, run, first, before);
		hang(runs, run->previous);
	}
	if (has_behind) {
		behind = cut(runs, run, end, behind);
		hang(runs, behind);
		run = behind->previous;
	}
	bool is_passed = !run->line || run->number <= run->line->n_passed;
	run->stream = is_passed ? 0 : run->line->stream + 1;
	run->number = is_passed ? 0 : run->number;
	run->state = GLAKE__RUN_USED;
	run->line = NULL;
	run->user = NULL;
	return run;
}

struct glake__run *glake__runs_join(struct glake__runs *runs, struct glake__run *run)
{
	void *user = run->user;
	uint64_t stream = run->stream ? run->stream : run->next->stream;
	run = merge(runs, run, run->next);
	run->user = user;
	run->stream = stream;
	return run;
}

struct glake__run *glake__runs_split(struct glake__runs *runs, struct glake__run *run,
                                     uint64_t first)
{
	struct glake__run *spare = run_new(runs);
	return spare ? cut(runs, run, first, spare) : NULL;
}

/* A hole merges with holes, a free run with those of its line, and unless it is tied with nobody's. */
static bool is_mergeable(const struct glake__runs *runs, const struct glake__run *run,
                         const struct glake__run *neighbour)
{
	return neighbour && neighbour->state == run->state &&
	       (run->state == GLAKE__RUN_HOLE || neighbour->line == run->line ||
	        (neighbour->line == &runs->nobody && !glake__line_is_tied(run->line)));
}

/* @run, in no bin, has its new state. */
static struct glake__run *settle(struct glake__runs *runs, struct glake__run *run)
{
	struct glake__line *line = run->line;
	run->user = NULL;
	/* Behind nobody's memory may lie another one of the line. */
	while (is_mergeable(runs, run, run->previous)) {
		unhang(runs, run->previous);
		run = merge(runs, run->previous, run);
		run->line = line;
	}
	while (is_mergeable(runs, run, run->next)) {
		unhang(runs, run->next);
		run = merge(runs, run, run->next);
		run->line = line;
	}
	hang(runs, run);
	return run;
}

void glake__runs_free(struct glake__runs *runs, struct glake__run *run, struct glake__line *line,
                      uint64_t number)
{
	run->state = GLAKE__RUN_FREE;
	run->line = line;
	run->number = number;
	settle(runs, run);
}

void glake__runs_give_back(struct glake__runs *runs, struct glake__run *run)
{
	struct glake__line *line = run->stream ? glake__ptr_table_get(&runs->by_stream, run->stream)
	                                       : NULL;
	bool is_passed = !line || run->number <= line->n_passed;
	glake__runs_free(runs, run, is_passed ? &runs->nobody : line, is_passed ? 0 : run->number);
}

void glake__runs_unite(struct glake__runs *runs)
{
	struct glake__run *run = runs->first;
	while (run) {
		if (run->state == GLAKE__RUN_FREE && run->line != &runs->nobody &&
		    run->number <= run->line->n_passed) {
			unhang(runs, run);
			run->line = &runs->nobody;
			run->number = 0;
			run = settle(runs, run);
		}
		run = run->next;
	}
}

void glake__runs_unmap(struct glake__runs *runs, struct glake__run *run)
{
	run->state = GLAKE__RUN_HOLE;
	run->line = NULL;
	run->number = 0;
	settle(runs, run);
}

/* ---- beginning and end ------------------------------------------------------------------------ */

int glake__runs_init(struct glake__runs *runs, uint64_t n_units)
{
	*runs = (struct glake__runs){.n_units = n_units};
	runs->pages = calloc(n_units / RUN_PAGE_UNITS, sizeof(struct glake__run *));
	struct glake__run *hole = run_new(runs);
	if (!runs->pages || !hole) {
		free(runs->pages);
		free(hole);
		*runs = (struct glake__runs){.n_units = 0};
		return -ENOMEM;
	}
	hole->n_units = n_units;
	CHAIN_PUSH(runs->first, hole, previous, next);
	enter_part(runs, hole, 0, n_units);
	hang(runs, hole);
	return 0;
}

static void free_list(struct glake__run *run)
{
	while (run) {
		struct glake__run *next = run->next;
		free(run);
		run = next;
	}
}

void glake__runs_deinit(struct glake__runs *runs)
{
	free_list(runs->first);
	free_list(runs->spares);
	while (runs->lines) {
		struct glake__line *line = runs->lines;
		runs->lines = line->next;
		free(line);
	}
	glake__ptr_table_deinit(&runs->by_stream);
	free(runs->pages);
	*runs = (struct glake__runs){.n_units = 0};
}

/* ---- for tests -------------------------------------------------------------------------------- */

static bool hangs(const struct glake__run_bins *bins, const struct glake__run *run)
{
	const struct glake__run *at = bins->first[glake__fit_bin_of(run->n_units)];
	while (at && at != run) {
		at = at->next_in_bin;
	}
	return at != NULL;
}

static bool is_valid(const struct glake__runs *runs, const struct glake__run *run)
{
	const struct glake__run *next = run->next;
	bool is_in_place = run->n_units > 0 && (!next || next->previous == run) &&
	                   (next ? next->first : runs->n_units) == glake__run_end(run);
	bool has_twin = next && run->state == next->state &&
	                (run->state == GLAKE__RUN_HOLE ||
	                 (run->state == GLAKE__RUN_FREE && run->line == next->line));
	bool does_hang = run->state == GLAKE__RUN_USED ||
	                 hangs(run->state == GLAKE__RUN_HOLE ? &runs->holes : &run->line->bins,
	                       run);
	return is_in_place && !has_twin && does_hang;
}

bool glake__runs_are_valid(const struct glake__runs *runs)
{
	uint64_t n_hanging = 0;
	uint64_t n_tied = 0;
	for (const struct glake__run *run = runs->first; run; run = run->next) {
		if (!is_valid(runs, run)) {
			return false;
		}
		n_hanging += run->state != GLAKE__RUN_USED;
	}
	uint64_t n_hung = runs->holes.n_runs + runs->nobody.bins.n_runs;
	for (const struct glake__line *line = runs->lines; line; line = line->next) {
		n_hung += line->bins.n_runs;
		n_tied += line->n_tied ? line->bins.n_units : 0;
	}
	for (uint64_t unit = 0; unit < runs->n_units; unit += RUN_PAGE_UNITS) {
		const struct glake__run *run = runs->pages[unit / RUN_PAGE_UNITS];
		if (unit < run->first || unit >= glake__run_end(run)) {
			return false;
		}
	}
	return n_hanging == n_hung && n_tied == runs->n_tied;
}
