/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where each tensor goes: blocks, and the pieces of files they are made of.
 *
 * Tensors of PLAN_LARGE_BYTES and more begin a block of their own, in name order, cut into blocks of
 * GLAKE_MAX_BLOCK_BYTES. The smaller ones follow, packed in name order into shared blocks, each at a
 * multiple of PLAN_ALIGN_BYTES and whole in one block; the gaps are zero. The span is the blocks'
 * chunks side by side: contents rounded up to the granularity.
 *
 * The layout depends on names and sizes alone, never on where a file has the bytes, so that equal
 * tensors in different files become equal blocks.
 *
 * Owner: the load. Lifetime: plan_make() to plan_deinit(); it borrows from the catalog.
 * Threads: read-only once made.
 */
#ifndef GLAKE_MOVER_PLAN_H
#define GLAKE_MOVER_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/mover/catalog.h"

#define PLAN_LARGE_BYTES (2ull * 1024 * 1024)
#define PLAN_ALIGN_BYTES 256u

/* Bytes of one file that go to one place of one block. */
struct plan_piece {
	uint64_t file_offset;
	uint64_t block_offset;
	uint64_t bytes; /* not 0 */
	uint32_t file;
};

struct plan_block {
	uint64_t content_bytes; /* not 0 */
	uint64_t span_offset;
	size_t first_piece; /* pieces in the order of their block offsets */
	size_t n_pieces;
};

struct plan {
	const struct catalog *catalog; /* borrowed */
	uint64_t *offsets;             /* owned: of each tensor in the span; 0 for empty ones */
	struct plan_block *blocks;     /* owned */
	size_t n_blocks;
	struct plan_piece *pieces; /* owned */
	size_t n_pieces;
	uint64_t content_bytes; /* sum over blocks */
	uint64_t span_bytes;
};

/* @catalog is finished and outlives the plan. */
int plan_make(struct plan *plan, const struct catalog *catalog, struct fault *fault);
/* Accepts a zeroed one. */
void plan_deinit(struct plan *plan);

/* Every byte of every tensor is at its place exactly once. For tests. */
bool plan_is_valid(const struct plan *plan);

#endif
