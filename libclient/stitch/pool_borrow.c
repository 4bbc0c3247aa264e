/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "libclient/order/order.h"
#include "libclient/stitch/pool_parts.h"

/* A lender that has less than this part of a request is left alone. */
#define WORTH_PART 16u

/* ---- which ------------------------------------------------------------------------------------- */

/* Whole chunks that a line has freed. */
struct offer {
	uint64_t number;
	uint64_t n_pages;
};

struct offers {
	struct offer *list; /* owned */
	size_t n;
};

static int by_number(const void *one, const void *other)
{
	const struct offer *a = one;
	const struct offer *b = other;
	return (a->number > b->number) - (a->number < b->number);
}

/* Lists free runs of @lender that do not serve @line, the oldest first. False: no memory of the host. */
static bool list_offers(const struct glake__pool *pool, const struct glake__line *lender,
                        const struct glake__line *line, struct offers *offers)
{
	offers->n = 0;
	offers->list = calloc(lender->bins.n_runs + 1, sizeof(*offers->list));
	for (unsigned bin = 0; offers->list && bin < RUN_BINS; bin++) {
		const struct glake__run *run = lender->bins.first[bin];
		for (; run; run = run->next_in_bin) {
			struct glake__stretch whole = glake__pool_whole_chunks(pool, run);
			if (whole.n_pages > 0 && !glake__run_serves(run, line)) {
				offers->list[offers->n++] = (struct offer){run->number,
				                                           whole.n_pages};
			}
		}
	}
	if (offers->list && offers->n > 1) {
		qsort(offers->list, offers->n, sizeof(*offers->list), by_number);
	}
	return offers->list != NULL;
}

/* The oldest of them that are @n_pages, or all; returns how many those are. */
static uint64_t take_offers(const struct offers *offers, uint64_t n_pages, uint64_t *number_out)
{
	uint64_t n_taken = 0;
	for (size_t i = 0; i < offers->n && n_taken < n_pages; i++) {
		n_taken += offers->list[i].n_pages;
		*number_out = offers->list[i].number;
	}
	return n_taken < n_pages ? n_taken : n_pages;
}

/* All pieces come from one lender: a stream that waits for several is bound to all of them. */
static bool find_pieces(struct glake__pool *pool, const struct glake__line *line, uint64_t n_pages,
                        struct glake__loan *loan_out)
{
	uint64_t most = n_pages / WORTH_PART;
	for (struct glake__line *lender = pool->runs.lines; lender; lender = lender->next) {
		struct offers offers;
		uint64_t number = 0;
		if (lender == line || glake__line_is_tied(lender) ||
		    !list_offers(pool, lender, line, &offers)) {
			continue;
		}
		uint64_t n_taken = take_offers(&offers, n_pages, &number);
		if (n_taken > most) {
			most = n_taken;
			*loan_out = (struct glake__loan){pool, lender, number};
		}
		free(offers.list);
	}
	return loan_out->lender != NULL;
}

bool glake__pool_find_loan(struct glake__pool *pool, const struct glake__line *line,
                           uint64_t n_units, uint64_t n_missing, struct glake__loan *loan_out)
{
	const struct glake__run *run = glake__runs_find_early(&pool->runs, line, n_units);
	*loan_out = (struct glake__loan){.pool = pool};
	if (run) {
		*loan_out = (struct glake__loan){pool, run->line, run->number};
	} else if (n_units > RUN_PAGE_UNITS) {
		find_pieces(pool, line, glake__pages_of(n_missing), loan_out);
	}
	if (loan_out->lender) {
		loan_out->lender->n_holders++;
	}
	return loan_out->lender != NULL;
}

/* ---- waiting ----------------------------------------------------------------------------------- */

/* Is its mark, which may still have to be recorded, behind the loan? */
static bool is_enough(const void *parked, void *user)
{
	const struct glake__allocation *allocation = parked;
	const struct glake__pooled *pooled = parked;
	const struct glake__loan *loan = user;
	return allocation->is_pooled && allocation->is_parked && pooled->pool == loan->pool &&
	       (!pooled->is_closed || pooled->number >= loan->number);
}

bool glake__pool_borrow(struct glake__loan *loan, struct glake__line *line,
                        const struct glake__wait *wait)
{
	int r = glake__order_follow(wait->order, wait->stream, wait->flags, loan->lender->stream,
	                            is_enough, loan);
	glake__lock();
	if (r == 0) {
		glake__line_follow(line, loan->lender, loan->number);
	}
	loan->lender->n_holders--;
	glake__unlock();
	return r == 0;
}
