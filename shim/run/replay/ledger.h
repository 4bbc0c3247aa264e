/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger of a modelled allocator: segments that the model has made, cut into blocks.
 *
 * A block lies in a segment between its neighbours. It is used, free, or a hole, which has
 * addresses but no memory. Free blocks and holes are in trees, by line: the stream and pool that
 * may have them. Free blocks are in the order of their size, holes in that of their place.
 *
 * Owner: the embedder; ledger_deinit() frees the blocks in the trees. Used blocks are the caller's. Ledgers
 * of zeroes with a limit are ready. Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_REPLAY_LEDGER_H
#define GLAKE_SHIM_RUN_REPLAY_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum block_state {
	BLOCK_USED,
	BLOCK_FREE,
	BLOCK_HOLE,
};

struct block {
	uint64_t segment; /* the segment's number, in the order of ledger_add() */
	uint64_t address; /* in the segment */
	uint64_t n_bytes;
	struct block *before; /* neighbours in the segment */
	struct block *after;
	struct block *left; /* in the tree of its state */
	struct block *right;
	uint32_t weight; /* random: the tree is a heap by weight, and therefore flat */
	uint32_t line;
	enum block_state state;
};

struct ledger {
	uint64_t limit_bytes; /* of memory; UINT64_MAX: none */
	uint64_t reserved_bytes;
	uint64_t peak_reserved_bytes;
	uint64_t n_made; /* requests for memory, as the model counts them, and returns of it */
	uint64_t n_freed;
	struct block *free;  /* tree */
	struct block *holes; /* tree */
	uint64_t n_segments;
	uint64_t random; /* state of the weights */
};

void ledger_deinit(struct ledger *ledger);

/* Count memory in or out. False: the limit is reached, and nothing was counted. */
bool ledger_reserve(struct ledger *ledger, uint64_t n_bytes);
void ledger_unreserve(struct ledger *ledger, uint64_t n_bytes);

/* A segment of one used block, without memory as yet. */
struct block *ledger_add(struct ledger *ledger, uint32_t line, uint64_t n_bytes);
/* Forget a segment, which is one used block. */
void ledger_drop(struct block *block);
static inline bool block_is_segment(const struct block *block)
{
	return !block->before && !block->after;
}

/* Put a used block into the tree of @state, one with its neighbours of that state. Returns the whole. */
struct block *ledger_put(struct ledger *ledger, struct block *block, enum block_state state);
/* Take a block out of its tree: it is used. */
void ledger_take(struct ledger *ledger, struct block *block);
/* Cut a used block at @n_bytes, which are fewer than it has. Returns the rest, used and not put. */
struct block *ledger_split(struct ledger *ledger, struct block *block, uint64_t n_bytes);

/* The first block of @line with @n_bytes or more of free memory (best fit). NULL: none. */
struct block *ledger_best(const struct ledger *ledger, uint32_t line, uint64_t n_bytes);
/* The first hole of @line. NULL: none. */
struct block *ledger_hole(const struct ledger *ledger, uint32_t line);
/* The first free block of all, and the next one of a block's tree, of any line. NULL: none. */
struct block *ledger_first(const struct ledger *ledger);
struct block *ledger_next(const struct ledger *ledger, const struct block *block);

#endif
