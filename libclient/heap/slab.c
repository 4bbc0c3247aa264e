/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/heap/slab.h"

#include <stdlib.h>

#include "libclient/space/chain.h"
#include "libclient/space/fit.h"

/* ---- bins -------------------------------------------------------------------------------------- */

static void hang(struct glake__slab_bins *bins, struct glake__slab_block *block)
{
	unsigned bin = glake__fit_bin_of(block->n_units);
	CHAIN_PUSH(bins->first[bin], block, previous, next);
	bins->filled |= 1ull << bin;
}

static void unhang(struct glake__slab_bins *bins, struct glake__slab_block *block)
{
	unsigned bin = glake__fit_bin_of(block->n_units);
	CHAIN_REMOVE(bins->first[bin], block, previous, next);
	if (!bins->first[bin]) {
		bins->filled &= ~(1ull << bin);
	}
}

/* ---- blocks ----------------------------------------------------------------------------------- */

static void enter(struct glake__slab_block *block)
{
	block->slab->blocks[block->first] = block;
	block->slab->starts[block->first / 64] |= 1ull << (block->first % 64);
}

static void leave(struct glake__slab_block *block)
{
	block->slab->blocks[block->first] = NULL;
	block->slab->starts[block->first / 64] &= ~(1ull << (block->first % 64));
}

static struct glake__slab_block *block_new(struct glake__slab *slab, unsigned first,
                                           unsigned n_units)
{
	struct glake__slab_block *block = calloc(1, sizeof(*block));
	if (block) {
		block->slab = slab;
		block->first = (uint16_t)first;
		block->n_units = (uint16_t)n_units;
		enter(block);
	}
	return block;
}

/* The block that starts at or before @unit. */
static struct glake__slab_block *block_at(const struct glake__slab *slab, unsigned unit)
{
	unsigned word = unit / 64;
	uint64_t bits = slab->starts[word] & (~0ull >> (63 - unit % 64));
	while (!bits) {
		/* Unit 0 always starts a block. */
		bits = slab->starts[--word];
	}
	return slab->blocks[word * 64 + 63 - (unsigned)__builtin_clzll(bits)];
}

struct glake__slab_block *glake__slab_find(const struct glake__slab *slab, uint64_t address)
{
	return block_at(slab, (unsigned)((address - slab->base) / SLAB_UNIT_BYTES));
}

struct glake__slab_block *glake__slab_take(struct glake__slab_bins *bins, uint64_t n_bytes)
{
	unsigned n_units = (unsigned)((n_bytes + SLAB_UNIT_BYTES - 1) / SLAB_UNIT_BYTES);
	uint64_t filled = bins->filled & (~0ull << glake__fit_bin_for(n_units));
	if (!filled) {
		return NULL;
	}
	struct glake__slab_block *block = bins->first[__builtin_ctzll(filled)];
	struct glake__slab *slab = block->slab;
	unhang(bins, block);
	if (block->n_units > n_units) {
		struct glake__slab_block *rest = block_new(slab, block->first + n_units,
		                                           block->n_units - n_units);
		if (!rest) {
			hang(bins, block);
			return NULL;
		}
		block->n_units = (uint16_t)n_units;
		hang(bins, rest);
	}
	block->is_used = true;
	slab->n_used++;
	return block;
}

void glake__slab_give(struct glake__slab_bins *bins, struct glake__slab_block *block)
{
	struct glake__slab *slab = block->slab;
	unsigned end = (unsigned)block->first + block->n_units;
	struct glake__slab_block *next = end < SLAB_UNITS ? slab->blocks[end] : NULL;
	struct glake__slab_block *previous = block->first ? block_at(slab, block->first - 1u)
	                                                  : NULL;
	block->is_used = false;
	slab->n_used--;
	if (next && !next->is_used) {
		unhang(bins, next);
		leave(next);
		block->n_units = (uint16_t)(block->n_units + next->n_units);
		free(next);
	}
	if (previous && !previous->is_used) {
		unhang(bins, previous);
		leave(block);
		previous->n_units = (uint16_t)(previous->n_units + block->n_units);
		free(block);
		block = previous;
	}
	hang(bins, block);
}

/* ---- slabs ------------------------------------------------------------------------------------ */

struct glake__slab *glake__slab_new(struct glake__slab_bins *bins, uint64_t base)
{
	struct glake__slab *slab = calloc(1, sizeof(*slab));
	if (!slab) {
		return NULL;
	}
	slab->base = base;
	struct glake__slab_block *block = block_new(slab, 0, SLAB_UNITS);
	if (!block) {
		free(slab);
		return NULL;
	}
	hang(bins, block);
	return slab;
}

void glake__slab_free(struct glake__slab_bins *bins, struct glake__slab *slab)
{
	for (unsigned unit = 0; unit < SLAB_UNITS;) {
		struct glake__slab_block *block = slab->blocks[unit];
		unit += block->n_units;
		if (!block->is_used) {
			unhang(bins, block);
		}
		free(block);
	}
	free(slab);
}

bool glake__slab_is_valid(const struct glake__slab *slab)
{
	unsigned n_used = 0;
	bool was_free = false;
	for (unsigned unit = 0; unit < SLAB_UNITS;) {
		const struct glake__slab_block *block = slab->blocks[unit];
		if (!block || block->first != unit || block->n_units == 0 ||
		    unit + block->n_units > SLAB_UNITS || (was_free && !block->is_used) ||
		    !(slab->starts[unit / 64] >> (unit % 64) & 1)) {
			return false;
		}
		for (unsigned inner = unit + 1; inner < unit + block->n_units; inner++) {
			if (slab->blocks[inner]) {
				return false;
			}
		}
		n_used += block->is_used;
		was_free = !block->is_used;
		unit += block->n_units;
	}
	return n_used == slab->n_used;
}
