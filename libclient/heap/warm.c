/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/heap/warm.h"

#include <stdlib.h>
#include <string.h>

#include "libclient/space/chain.h"
#include "libclient/space/fit.h"
#include "proto/array.h"

/* The first bin of at least @n_bytes; n_bins if there is none. */
static size_t lower_bound(const struct glake__warm *warm, uint64_t n_bytes)
{
	size_t low = 0;
	size_t high = warm->n_bins;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (warm->bins[middle].n_bytes < n_bytes) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

static void remove_bin(struct glake__warm *warm, size_t i_bin)
{
	warm->n_bins--;
	memmove(&warm->bins[i_bin], &warm->bins[i_bin + 1],
	        (warm->n_bins - i_bin) * sizeof(warm->bins[0]));
}

/* @backing is in the bin @i_bin, which goes away with its last one. */
static void take_out(struct glake__warm *warm, size_t i_bin, struct glake__backing *backing)
{
	CHAIN_REMOVE(warm->bins[i_bin].first, backing, previous, next);
	if (!warm->bins[i_bin].first) {
		remove_bin(warm, i_bin);
	}
	backing->next = NULL;
	backing->previous = NULL;
	CHAIN_REMOVE_OF(warm->oldest, warm->newest, backing, older, newer);
	warm->n_bytes -= backing->n_bytes;
}

void glake__warm_deinit(struct glake__warm *warm)
{
	free(warm->bins);
	*warm = (struct glake__warm){0};
}

int glake__warm_give(struct glake__warm *warm, struct glake__backing *backing)
{
	size_t i_bin = lower_bound(warm, backing->n_bytes);
	if (i_bin == warm->n_bins || warm->bins[i_bin].n_bytes != backing->n_bytes) {
		int r = array_grow(warm->bins, warm->n_bins, warm->capacity, 32);
		if (r < 0) {
			return r;
		}
		memmove(&warm->bins[i_bin + 1], &warm->bins[i_bin],
		        (warm->n_bins - i_bin) * sizeof(warm->bins[0]));
		warm->bins[i_bin] = (struct glake__warm_bin){.n_bytes = backing->n_bytes};
		warm->n_bins++;
	}
	CHAIN_PUSH(warm->bins[i_bin].first, backing, previous, next);
	CHAIN_APPEND(warm->oldest, warm->newest, backing, older, newer);
	warm->n_bytes += backing->n_bytes;
	return 0;
}

struct glake__backing *glake__warm_take(struct glake__warm *warm, uint64_t n_bytes)
{
	size_t i_bin = lower_bound(warm, n_bytes);
	if (i_bin == warm->n_bins || !glake__fits(warm->bins[i_bin].n_bytes, n_bytes)) {
		return NULL;
	}
	struct glake__backing *backing = warm->bins[i_bin].first;
	take_out(warm, i_bin, backing);
	return backing;
}

struct glake__backing *glake__warm_evict(struct glake__warm *warm, uint64_t keep_bytes)
{
	struct glake__backing *list = NULL;
	while (warm->n_bytes > keep_bytes) {
		struct glake__backing *backing = warm->oldest;
		take_out(warm, lower_bound(warm, backing->n_bytes), backing);
		backing->next = list;
		list = backing;
	}
	return list;
}
