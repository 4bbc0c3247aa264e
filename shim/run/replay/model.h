/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of other allocators: what they would reserve for a trace, by their own rules.
 *
 * Threads: one per struct ledger.
 */
#ifndef GLAKE_SHIM_RUN_REPLAY_MODEL_H
#define GLAKE_SHIM_RUN_REPLAY_MODEL_H

#include "shim/run/replay/ledger.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

struct model {
	const char *name;
	/* A block of @n_bytes (not 0) or more, used. NULL: the limit is reached. */
	struct block *(*alloc)(struct ledger *ledger, uint32_t stream, uint64_t n_bytes);
	void (*free)(struct ledger *ledger, struct block *block);
};

/* PyTorch's caching allocator, as it is without options (c10/cuda/CUDACachingAllocator.cpp, 2.11). */
extern const struct model model_caching;
/* PyTorch's caching allocator with expandable_segments:True. */
extern const struct model model_expandable;
/* cuMemAlloc() and cuMemFree() for each allocation. */
extern const struct model model_driver;

static inline uint64_t round_up(uint64_t n, uint64_t multiple)
{
	return (n + multiple - 1) / multiple * multiple;
}

/* Constants of both of PyTorch's allocators. */
#define TORCH_UNIT_BYTES 512u
#define TORCH_SMALL_BYTES MIB /* up to this, a request is of the small pool */
#define TORCH_SMALL_SEGMENT_BYTES (2 * MIB)
#define TORCH_LARGE_SEGMENT_BYTES (20 * MIB)

/* A line is a pool of a stream. */
static inline uint32_t torch_line(uint32_t stream, uint64_t n_bytes)
{
	return 2 * stream + (n_bytes <= TORCH_SMALL_BYTES);
}

static inline bool torch_line_is_small(uint32_t line)
{
	return line % 2 != 0;
}

#endif
