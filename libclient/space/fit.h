/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule by which free memory serves a request, of all parts that keep some.
 *
 * Bins are for what is cut from free pieces (addresses of the window, units of a slab): a size has one
 * bin, sizes 1 to 15 have one each, then four to every doubling. A request takes from the first bin all
 * of whose pieces are large enough.
 */
#ifndef GLAKE_LIBCLIENT_FIT_H
#define GLAKE_LIBCLIENT_FIT_H

#include <stdbool.h>
#include <stdint.h>

/* Whole pieces: @have serves @want, and wastes no more than an eighth of it. */
static inline bool glake__fits(uint64_t have, uint64_t want)
{
	return have >= want && have - want <= want / 8;
}

static inline unsigned glake__fit_log2(uint64_t n)
{
	return 63u - (unsigned)__builtin_clzll(n);
}

/* The bin that a free piece of @n units is in; @n is not 0. */
static inline unsigned glake__fit_bin_of(uint64_t n)
{
	if (n < 16) {
		return (unsigned)n - 1;
	}
	unsigned log = glake__fit_log2(n);
	return 15 + (log - 4) * 4 + ((n >> (log - 2)) & 3);
}

/* The first bin all of whose pieces have @n units. */
static inline unsigned glake__fit_bin_for(uint64_t n)
{
	if (n < 16) {
		return (unsigned)n - 1;
	}
	uint64_t step = 1ull << (glake__fit_log2(n) - 2);
	return glake__fit_bin_of((n + step - 1) & ~(step - 1));
}

#endif
