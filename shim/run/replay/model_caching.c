/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's caching allocator. Segments of cudaMalloc() are cut into blocks, and kept until the
 * device is full: then the ones that are free as a whole go back, and the request is tried again.
 */
#include "shim/run/replay/model.h"

#define MIN_WHOLE_BYTES (10 * MIB) /* from this on, a request gets a segment of its size */

static uint64_t segment_bytes(uint64_t n_bytes)
{
	if (n_bytes <= TORCH_SMALL_BYTES) {
		return TORCH_SMALL_SEGMENT_BYTES;
	}
	return n_bytes < MIN_WHOLE_BYTES ? TORCH_LARGE_SEGMENT_BYTES : round_up(n_bytes, 2 * MIB);
}

static struct block *make_segment(struct ledger *ledger, uint32_t line, uint64_t n_bytes)
{
	if (!ledger_reserve(ledger, n_bytes)) {
		return NULL;
	}
	ledger->n_made++;
	return ledger_add(ledger, line, n_bytes);
}

static void free_cached(struct ledger *ledger)
{
	struct block *next;
	for (struct block *block = ledger_first(ledger); block; block = next) {
		next = ledger_next(ledger, block);
		if (block_is_segment(block)) {
			ledger_take(ledger, block);
			ledger_unreserve(ledger, block->n_bytes);
			ledger->n_freed++;
			ledger_drop(block);
		}
	}
}

/* In the large pool, the rest must be large enough for a request of that pool. */
static bool may_split(const struct block *block, uint64_t n_bytes)
{
	uint64_t n_rest = block->n_bytes - n_bytes;
	return torch_line_is_small(block->line) ? n_rest >= TORCH_UNIT_BYTES
	                                        : n_rest > TORCH_SMALL_BYTES;
}

static struct block *caching_alloc(struct ledger *ledger, uint32_t stream, uint64_t n_asked)
{
	uint64_t n_bytes = round_up(n_asked, TORCH_UNIT_BYTES);
	uint32_t line = torch_line(stream, n_bytes);
	struct block *block = ledger_best(ledger, line, n_bytes);
	if (block) {
		ledger_take(ledger, block);
	} else {
		block = make_segment(ledger, line, segment_bytes(n_bytes));
	}
	if (!block) {
		free_cached(ledger);
		block = make_segment(ledger, line, segment_bytes(n_bytes));
	}
	if (block && may_split(block, n_bytes)) {
		ledger_put(ledger, ledger_split(ledger, block, n_bytes), BLOCK_FREE);
	}
	return block;
}

static void caching_free(struct ledger *ledger, struct block *block)
{
	ledger_put(ledger, block, BLOCK_FREE);
}

const struct model model_caching = {"caching", caching_alloc, caching_free};
