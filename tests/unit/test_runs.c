/* SPDX-License-Identifier: Apache-2.0 */
/* The books of split and merged memory (libclient/stitch/runs.h). */
#include <stdlib.h>

#include "libclient/stitch/runs.h"
#include "tests/check_glake.h"

#define PAGE RUN_PAGE_UNITS

static struct glake__runs runs;

static void begin(uint64_t n_pages)
{
	ck_assert_int_eq(glake__runs_init(&runs, n_pages * PAGE), 0);
}

static void end(void)
{
	ck_assert(glake__runs_are_valid(&runs));
	glake__runs_deinit(&runs);
}

END_EACH(end)

/* Memory for the first @n_units, nobody's. */
static void grow(uint64_t n_units)
{
	struct glake__run *hole = glake__runs_find_hole(&runs, n_units);
	struct glake__run *run = glake__runs_use(&runs, hole, hole->first, n_units);
	glake__runs_free(&runs, run, &runs.nobody, 0);
}

static struct glake__run *take(struct glake__line *line, uint64_t n_units)
{
	struct glake__run *run = glake__runs_find(&runs, line, n_units);
	return run ? glake__runs_use(&runs, run, run->first, n_units) : NULL;
}

START_TEST(what_is_tied_is_nobodys_when_all_frees_were_passed)
{
	begin(8);
	grow(4 * PAGE);
	struct glake__line *graph = glake__runs_line(&runs, RUN_TIED_STREAMS + 5);
	struct glake__line *line = glake__runs_line(&runs, 7);
	struct glake__run *all = take(graph, 3 * PAGE);
	glake__runs_free(&runs, all, graph, ++graph->n_freed);
	ck_assert_uint_eq(runs.n_tied, 3 * PAGE);
	ck_assert_ptr_null(glake__runs_find(&runs, line, 2 * PAGE));
	/* The page beside the tied run is nobody's all the time. */
	ck_assert_ptr_nonnull(glake__runs_find(&runs, line, PAGE));
	glake__runs_free(&runs, take(graph, 2 * PAGE), graph, ++graph->n_freed);
	ck_assert(glake__runs_are_valid(&runs));
	ck_assert_uint_eq(runs.n_tied, 3 * PAGE);
	glake__line_pass(graph, 1);
	ck_assert_uint_eq(runs.n_tied, 3 * PAGE);
	ck_assert_ptr_null(glake__runs_find(&runs, line, 2 * PAGE));
	glake__line_pass(graph, 2);
	ck_assert_uint_eq(runs.n_tied, 0);
	ck_assert_ptr_nonnull(glake__runs_find(&runs, line, 3 * PAGE));
	glake__runs_unite(&runs);
	ck_assert_ptr_nonnull(glake__runs_find(&runs, line, 4 * PAGE));
}
END_TEST

START_TEST(the_best_fit_is_taken_and_neighbours_merge)
{
	begin(8);
	grow(4 * PAGE);
	struct glake__line *line = glake__runs_line(&runs, 7);
	struct glake__run *a = take(line, 100);
	struct glake__run *b = take(line, 50);
	struct glake__run *c = take(line, 200);
	struct glake__run *d = take(line, 10);
	ck_assert_uint_eq(d->first, 350);
	glake__runs_free(&runs, a, line, 1);
	glake__runs_free(&runs, c, line, 2);
	ck_assert(glake__runs_are_valid(&runs));
	/* The smaller of the two holes between, not the large rest. */
	struct glake__run *e = take(line, 90);
	ck_assert_uint_eq(e->first, 0);
	ck_assert_uint_eq(glake__runs_at(&runs, 95)->n_units, 10);
	glake__runs_free(&runs, b, line, 3);
	ck_assert_uint_eq(glake__runs_at(&runs, 95)->n_units, 10 + 50 + 200);
	glake__runs_free(&runs, e, line, 4);
	glake__runs_free(&runs, d, line, 5);
	ck_assert_uint_eq(runs.first->n_units, 4 * PAGE);
	ck_assert_uint_eq(runs.first->number, 5);
}
END_TEST

/* Its own are often large: what it frees joins what lies beside it. */
START_TEST(a_line_does_not_cut_its_own_where_nobodys_fits_better)
{
	begin(16);
	grow(12 * PAGE);
	struct glake__line *line = glake__runs_line(&runs, 7);
	struct glake__run *fitting = take(line, 300);
	struct glake__run *between = take(line, 10);
	struct glake__run *large = take(line, 8 * PAGE);
	struct glake__run *behind = take(line, 10);
	glake__runs_free(&runs, fitting, &runs.nobody, 0);
	glake__runs_free(&runs, large, line, ++line->n_freed);
	struct glake__run *found = take(line, 290);
	ck_assert_uint_eq(found->first, 0);
	/* Where one of its own fits as well, the line takes that: no other can have it. */
	struct glake__run *own = take(line, 8 * PAGE);
	ck_assert_uint_eq(own->first, 310);
	glake__runs_free(&runs, found, line, 1);
	glake__runs_free(&runs, own, line, 1);
	glake__runs_free(&runs, between, line, 1);
	glake__runs_free(&runs, behind, line, 1);
}
END_TEST

/* Stitched ranges that were kept for work of the line remember its numbers (stitched.h). */
START_TEST(a_line_that_comes_again_has_passed_what_it_had)
{
	begin(2);
	struct glake__line *line = glake__runs_line(&runs, 5);
	uint64_t number = 0;
	for (unsigned i = 0; i < 3; i++) {
		number = ++line->n_freed;
		glake__line_pass(line, number);
	}
	for (uint64_t stream = 100; stream < 200; stream++) {
		glake__runs_line(&runs, stream);
	}
	ck_assert_ptr_null(glake__ptr_table_get(&runs.by_stream, 6));
	ck_assert_uint_ge(glake__runs_line(&runs, 5)->n_passed, number);
}
END_TEST

START_TEST(who_follows_a_line_has_what_was_freed_before)
{
	begin(4);
	grow(3 * PAGE);
	struct glake__line *one = glake__runs_line(&runs, 1);
	struct glake__line *two = glake__runs_line(&runs, 2);
	struct glake__run *first = take(one, PAGE);
	take(one, PAGE);
	struct glake__run *third = take(one, PAGE);
	glake__runs_free(&runs, first, one, ++one->n_freed);
	glake__runs_free(&runs, third, one, ++one->n_freed);
	ck_assert_uint_eq(glake__runs_find_early(&runs, two, PAGE / 2)->number, 1);
	glake__line_follow(two, one, 1);
	struct glake__run *borrowed = take(two, PAGE / 2);
	ck_assert_uint_eq(borrowed->first, 0);
	/* Line two gets what is left over, and not what was freed later. */
	ck_assert_ptr_null(glake__runs_find(&runs, two, PAGE));
	ck_assert_uint_eq(glake__runs_find(&runs, two, PAGE / 2)->first, PAGE / 2);
	ck_assert_ptr_null(glake__runs_find(&runs, glake__runs_line(&runs, 3), 1));
	/* Given back unused, it is the lender's: all of it again, and nobody's when that has passed it. */
	glake__runs_give_back(&runs, borrowed);
	ck_assert_uint_eq(glake__runs_at(&runs, 0)->n_units, PAGE);
	ck_assert_ptr_eq(glake__runs_at(&runs, 0)->line, one);
	borrowed = take(two, PAGE);
	glake__line_pass(one, 1);
	glake__runs_give_back(&runs, borrowed);
	ck_assert_ptr_eq(glake__runs_at(&runs, 0)->line, &runs.nobody);
}
END_TEST

/* A line remembers the last few, and has to wait again for those that it has forgotten. */
START_TEST(a_line_follows_several)
{
	begin(8);
	grow(6 * PAGE);
	struct glake__line *line = glake__runs_line(&runs, 9);
	struct glake__run *taken[RUN_FOLLOWED + 1];
	for (unsigned i = 0; i <= RUN_FOLLOWED; i++) {
		taken[i] = take(glake__runs_line(&runs, i), PAGE);
	}
	for (unsigned i = 0; i <= RUN_FOLLOWED; i++) {
		struct glake__line *other = glake__runs_line(&runs, i);
		glake__runs_free(&runs, taken[i], other, ++other->n_freed);
		glake__line_follow(line, other, 1);
	}
	for (unsigned i = 0; i <= RUN_FOLLOWED; i++) {
		ck_assert(glake__run_serves(glake__runs_at(&runs, i * PAGE), line) == (i > 0));
	}
}
END_TEST

START_TEST(other_lines_wait_until_it_has_been_passed)
{
	begin(2);
	grow(PAGE);
	struct glake__line *one = glake__runs_line(&runs, 1);
	struct glake__line *two = glake__runs_line(&runs, 2);
	struct glake__run *run = take(one, PAGE);
	glake__runs_free(&runs, run, one, ++one->n_freed);
	ck_assert_ptr_null(glake__runs_find(&runs, two, 1));
	ck_assert_ptr_null(glake__runs_find(&runs, &runs.nobody, 1));
	ck_assert_ptr_nonnull(glake__runs_find(&runs, one, PAGE));
	glake__line_pass(one, 1);
	ck_assert_ptr_nonnull(glake__runs_find(&runs, two, PAGE));
	ck_assert_ptr_nonnull(glake__runs_find(&runs, &runs.nobody, PAGE));
}
END_TEST

/* Threads may tell of an earlier event later. */
START_TEST(a_number_that_was_passed_stays_so)
{
	begin(1);
	struct glake__line *line = glake__runs_line(&runs, 1);
	line->n_freed = 3;
	glake__line_pass(line, 2);
	ck_assert_uint_eq(line->n_passed, 2);
	glake__line_pass(line, 1);
	ck_assert_uint_eq(line->n_passed, 2);
	glake__line_pass(line, 3);
	ck_assert_uint_eq(line->n_passed, 3);
}
END_TEST

START_TEST(many_streams_come_and_go)
{
	begin(2);
	grow(PAGE);
	struct glake__line *kept = glake__runs_line(&runs, 1000);
	glake__runs_free(&runs, take(kept, 1), kept, 1);
	for (uint64_t stream = 0; stream < 500; stream++) {
		ck_assert_ptr_nonnull(glake__runs_line(&runs, stream));
	}
	ck_assert_uint_lt(runs.n_lines, 100);
	ck_assert_ptr_eq(glake__runs_line(&runs, 1000), kept);
}
END_TEST

/* A plain model: which units are used, and which are mapped. */
#define N_PAGES 32u
#define N_UNITS (N_PAGES * PAGE)
#define N_USED 300u
static unsigned char is_used[N_UNITS];
static unsigned char is_mapped[N_UNITS];

static void set(unsigned char *map, const struct glake__run *run, unsigned char now)
{
	bool is_other = true;
	for (uint64_t unit = run->first; unit < glake__run_end(run); unit++) {
		is_other &= map[unit] != now;
		map[unit] = now;
	}
	ck_assert(is_other);
}

/* A random place inside a run, or its start. */
static struct glake__run *take_random(struct glake__run *run, uint64_t n_units)
{
	uint64_t room = run->n_units - n_units;
	uint64_t first = run->first + (random() % 3 && room ? 0 : (uint64_t)random() % (room + 1));
	return glake__runs_use(&runs, run, first, n_units);
}

START_TEST(random_splits_and_merges_keep_every_unit)
{
	struct glake__run *used[N_USED] = {NULL};
	begin(N_PAGES);
	for (unsigned step = 0; step < 60000; step++) {
		unsigned at = (unsigned)random() % N_USED;
		struct glake__line *line = random() % 5
		                                   ? glake__runs_line(&runs, (uint64_t)random() % 3)
		                                   : &runs.nobody;
		uint64_t n_units = 1 + (uint64_t)random() % (random() % 2 ? 64 : 2 * PAGE);
		if (used[at]) {
			set(is_used, used[at], 0);
			if (random() % 10 == 0) {
				set(is_mapped, used[at], 0);
				glake__runs_unmap(&runs, used[at]);
			} else {
				uint64_t number = line == &runs.nobody ? 0 : ++line->n_freed;
				glake__runs_free(&runs, used[at], line, number);
				line->n_passed = random() % 2 ? line->n_freed : line->n_passed;
			}
			used[at] = NULL;
			continue;
		}
		struct glake__run *run = glake__runs_find(&runs, line, n_units);
		if (run) {
			ck_assert(glake__run_serves(run, line));
			used[at] = take_random(run, n_units);
			set(is_used, used[at], 1);
		} else if ((run = glake__runs_find_hole(&runs, n_units))) {
			used[at] = take_random(run, n_units);
			set(is_used, used[at], 1);
			set(is_mapped, used[at], 1);
		}
		if (step % 64 == 0) {
			ck_assert(glake__runs_are_valid(&runs));
		}
	}
}
END_TEST
