/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/slab.h"

#include <stdlib.h>

/* ---- bins: sizes 1 to 15 have one each, then four to every doubling ------------------------- */

static unsigned log2_of(unsigned n)
{
	return 31u - (unsigned)__builtin_clz(n);
}

/* The bin that a block of @n_units hangs in. */
static unsigned bin_of(unsigned n_units)
{
	if (n_units < 16) {
		return n_units - 1;
	}
	unsigned log = log2_of(n_units);
	return 15 + (log - 4) * 4 + ((n_units >> (log - 2)) & 3);
}

/* The first bin whose blocks all have @n_units. */
static unsigned bin_for(unsigned n_units)
{
	if (n_units < 16) {
		return n_units - 1;
	}
	unsigned step = 1u << (log2_of(n_units) - 2);
	return bin_of((n_units + step - 1) & ~(step - 1));
}

static void hang(struct slab_bins *bins, struct slab_block *block)
{
	unsigned bin = bin_of(block->n_units);
	block->previous = NULL;
	block->next = bins->first[bin];
	if (block->next) {
		block->next->previous = block;
	}
	bins->first[bin] = block;
	bins->filled |= 1ull << bin;
}

static void unhang(struct slab_bins *bins, struct slab_block *block)
{
	unsigned bin = bin_of(block->n_units);
	if (block->previous) {
		block->previous->next = block->next;
	} else {
		bins->first[bin] = block->next;
	}
	if (block->next) {
		block->next->previous = block->previous;
	}
	if (!bins->first[bin]) {
		bins->filled &= ~(1ull << bin);
	}
}

/* ---- blocks ----------------------------------------------------------------------------------- */

static void enter(struct slab_block *block)
{
	block->slab->blocks[block->first] = block;
	block->slab->starts[block->first / 64] |= 1ull << (block->first % 64);
}

static void leave(struct slab_block *block)
{
	block->slab->blocks[block->first] = NULL;
	block->slab->starts[block->first / 64] &= ~(1ull << (block->first % 64));
}

static struct slab_block *block_new(struct slab *slab, unsigned first, unsigned n_units)
{
	struct slab_block *block = calloc(1, sizeof(*block));
	if (block) {
		block->slab = slab;
		block->first = (uint16_t)first;
		block->n_units = (uint16_t)n_units;
		enter(block);
	}
	return block;
}

/* The block that starts at or before @unit. */
static struct slab_block *block_at(const struct slab *slab, unsigned unit)
{
	unsigned word = unit / 64;
	uint64_t bits = slab->starts[word] & (~0ull >> (63 - unit % 64));
	while (!bits) {
		/* Unit 0 always starts a block. */
		bits = slab->starts[--word];
	}
	return slab->blocks[word * 64 + 63 - (unsigned)__builtin_clzll(bits)];
}

struct slab_block *slab_find(const struct slab *slab, uint64_t address)
{
	return block_at(slab, (unsigned)((address - slab->base) / SLAB_UNIT_BYTES));
}

struct slab_block *slab_take(struct slab_bins *bins, uint64_t n_bytes)
{
	unsigned n_units = (unsigned)((n_bytes + SLAB_UNIT_BYTES - 1) / SLAB_UNIT_BYTES);
	uint64_t filled = bins->filled & (~0ull << bin_for(n_units));
	if (!filled) {
		return NULL;
	}
	struct slab_block *block = bins->first[__builtin_ctzll(filled)];
	struct slab *slab = block->slab;
	unhang(bins, block);
	if (block->n_units > n_units) {
		struct slab_block *rest = block_new(slab, block->first + n_units,
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

void slab_give(struct slab_bins *bins, struct slab_block *block)
{
	struct slab *slab = block->slab;
	unsigned end = (unsigned)block->first + block->n_units;
	struct slab_block *next = end < SLAB_UNITS ? slab->blocks[end] : NULL;
	struct slab_block *previous = block->first ? block_at(slab, block->first - 1u) : NULL;
	block->is_used = false;
	block->user = NULL;
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

struct slab *slab_new(struct slab_bins *bins, uint64_t base, void *user)
{
	struct slab *slab = calloc(1, sizeof(*slab));
	if (!slab) {
		return NULL;
	}
	slab->base = base;
	slab->user = user;
	struct slab_block *block = block_new(slab, 0, SLAB_UNITS);
	if (!block) {
		free(slab);
		return NULL;
	}
	hang(bins, block);
	return slab;
}

void slab_free(struct slab_bins *bins, struct slab *slab)
{
	for (unsigned unit = 0; unit < SLAB_UNITS;) {
		struct slab_block *block = slab->blocks[unit];
		unit += block->n_units;
		if (!block->is_used) {
			unhang(bins, block);
		}
		free(block);
	}
	free(slab);
}

bool slab_is_valid(const struct slab *slab)
{
	unsigned n_used = 0;
	bool was_free = false;
	for (unsigned unit = 0; unit < SLAB_UNITS;) {
		const struct slab_block *block = slab->blocks[unit];
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
