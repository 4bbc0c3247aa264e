/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small allocations inside pieces of 2 MiB.
 *
 * A slab is a row of 4096 units of 512 bytes, cut into blocks, used and free. Free neighbours are
 * always one block. Free blocks of a device hang in bins by size (fit.h), so alloc and free cost
 * the same however many there are.
 *
 * Invariants: the blocks of a slab lie side by side and fill it; blocks[u] is not NULL, and bit u
 * of starts is set, exactly where a block starts; a free block hangs in exactly one bin.
 *
 * Owner: the caller owns the slab and the memory in it.
 * Threads: none of its own (the lock of the space).
 */
#ifndef GLAKE_LIBCLIENT_SLAB_H
#define GLAKE_LIBCLIENT_SLAB_H

#include <stdbool.h>
#include <stdint.h>

#include "libclient/space/allocation.h"

#define SLAB_BYTES (2ull * 1024 * 1024)
#define SLAB_UNIT_BYTES 512u
#define SLAB_UNITS (SLAB_BYTES / SLAB_UNIT_BYTES)
#define SLAB_BINS 48u

struct glake__slab;

struct glake__slab_block {
	struct glake__slab *slab; /* borrowed */
	uint16_t first;           /* unit */
	uint16_t n_units;         /* SLAB_UNITS fits: 4096 */
	bool is_used;
	struct glake__slab_block *next; /* link: a bin; free blocks only */
	struct glake__slab_block *previous;
	struct glake__allocation allocation; /* the heap's, of a used block */
};

struct glake__slab_bins {
	uint64_t filled; /* bit per bin */
	struct glake__slab_block *first[SLAB_BINS];
};

struct glake__slab {
	struct glake__backing *backing; /* borrowed: the heap's */
	uint64_t base;
	uint32_t n_used; /* blocks */
	uint64_t starts[SLAB_UNITS / 64];
	struct glake__slab_block *blocks[SLAB_UNITS]; /* owned */
};

/* One free block, which hangs in @bins. NULL without memory. */
struct glake__slab *glake__slab_new(struct glake__slab_bins *bins, uint64_t base);
/* The slab's blocks leave @bins. Used blocks are forgotten. */
void glake__slab_free(struct glake__slab_bins *bins, struct glake__slab *slab);

/* A used block of at least @n_bytes (1 .. SLAB_BYTES), or NULL: no slab has room, or no memory. */
struct glake__slab_block *glake__slab_take(struct glake__slab_bins *bins, uint64_t n_bytes);
/* The block is gone afterwards. */
void glake__slab_give(struct glake__slab_bins *bins, struct glake__slab_block *block);

/* The block, used or free, that @address lies in. */
struct glake__slab_block *glake__slab_find(const struct glake__slab *slab, uint64_t address);

static inline uint64_t glake__slab_block_address(const struct glake__slab_block *block)
{
	return block->slab->base + (uint64_t)block->first * SLAB_UNIT_BYTES;
}

/* For tests: the invariants above. */
bool glake__slab_is_valid(const struct glake__slab *slab);

#endif
