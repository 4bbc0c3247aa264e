/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small allocations inside pieces of 2 MiB.
 *
 * A slab is a row of 4096 units of 512 bytes, cut into blocks, used and free. Free neighbours are
 * always one block. Free blocks of a device hang in bins by size; a request takes from the first bin
 * all of whose blocks are large enough, so alloc and free cost the same however many there are.
 *
 * Invariants: the blocks of a slab lie side by side and fill it; blocks[u] is not NULL, and bit u of
 * starts is set, exactly where a block starts; a free block hangs in exactly one bin.
 *
 * Owner: whoever made the slab; the memory itself is none of our business.
 * Threads: none of its own: heap.c locks.
 */
#ifndef GLAKE_SHIM_SLAB_H
#define GLAKE_SHIM_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#define SLAB_BYTES (2ull * 1024 * 1024)
#define SLAB_UNIT_BYTES 512u
#define SLAB_UNITS (SLAB_BYTES / SLAB_UNIT_BYTES)
#define SLAB_BINS 48u

struct slab;

struct slab_block {
	struct slab *slab; /* borrowed */
	uint16_t first;    /* unit */
	uint16_t n_units;  /* SLAB_UNITS fits: 4096 */
	bool is_used;
	struct slab_block *next; /* link: a bin; free blocks only */
	struct slab_block *previous;
	void *user; /* the caller's, of a used block */
};

struct slab_bins {
	uint64_t filled; /* bit per bin */
	struct slab_block *first[SLAB_BINS];
};

struct slab {
	void *user; /* the caller's */
	uint64_t base;
	uint32_t n_used; /* blocks */
	uint64_t starts[SLAB_UNITS / 64];
	struct slab_block *blocks[SLAB_UNITS]; /* owned */
};

/* One free block, which hangs in @bins. NULL without memory. */
struct slab *slab_new(struct slab_bins *bins, uint64_t base, void *user);
/* Its blocks leave @bins. Used blocks are forgotten. */
void slab_free(struct slab_bins *bins, struct slab *slab);

/* A used block of at least @n_bytes (1 .. SLAB_BYTES), or NULL: no slab has room, or no memory. */
struct slab_block *slab_take(struct slab_bins *bins, uint64_t n_bytes);
/* The block is gone afterwards. */
void slab_give(struct slab_bins *bins, struct slab_block *block);

/* The block, used or free, that @address lies in. */
struct slab_block *slab_find(const struct slab *slab, uint64_t address);

static inline uint64_t slab_block_address(const struct slab_block *block)
{
	return block->slab->base + (uint64_t)block->first * SLAB_UNIT_BYTES;
}

/* For tests: the invariants above. */
bool slab_is_valid(const struct slab *slab);

#endif
