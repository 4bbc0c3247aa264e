/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PyTorch's caching allocator with expandable segments. Each pool of each stream has one segment of
 * addresses, which gets its memory in pages: where it ends, or in holes. When the device is full,
 * the pages that are free as a whole go back and leave holes.
 *
 * PyTorch's segment has 9/8 of the device's size, and there is a second one when its addresses are
 * used up. Here it never ends.
 */
#include "shim/run/replay/model.h"

#define SEGMENT_BYTES (UINT64_C(1) << 46)

static uint64_t page_bytes(uint32_t line)
{
	return torch_line_is_small(line) ? TORCH_SMALL_SEGMENT_BYTES : TORCH_LARGE_SEGMENT_BYTES;
}

/* ---- finding ---------------------------------------------------------------------------------- */

/* The size that a free block can grow to without moving. */
static uint64_t expandable_bytes(const struct block *block)
{
	bool has_hole = block->after && block->after->state == BLOCK_HOLE;
	return block->n_bytes + (has_hole ? block->after->n_bytes : 0);
}

/* Best fit. The last block with memory counts as very large, because it can grow: it is the last choice. */
static struct block *find_mapped(const struct ledger *ledger, uint32_t line, uint64_t n_bytes)
{
	struct block *block = ledger_best(ledger, line, n_bytes);
	struct block *next = block ? ledger_next(ledger, block) : NULL;
	while (next && next->line == line && !block_is_segment(block) &&
	       expandable_bytes(next) < expandable_bytes(block)) {
		block = next;
		next = ledger_next(ledger, block);
	}
	return block;
}

static bool has_room(const struct block *block, uint64_t n_bytes)
{
	uint64_t n_room = 0;
	while (block && block->state != BLOCK_USED && n_room < n_bytes) {
		n_room += block->n_bytes;
		block = block->after;
	}
	return n_room >= n_bytes;
}

/* The lowest hole with room for @n_bytes, together with the free block before it and all behind. */
static struct block *find_hole(struct ledger *ledger, uint32_t line, uint64_t n_bytes)
{
	struct block *hole = ledger_hole(ledger, line);
	if (!hole) {
		return ledger_put(ledger, ledger_add(ledger, line, SEGMENT_BYTES), BLOCK_HOLE);
	}
	for (; hole && hole->line == line; hole = ledger_next(ledger, hole)) {
		bool is_behind_free = hole->before && hole->before->state == BLOCK_FREE;
		struct block *first = is_behind_free ? hole->before : hole;
		if (has_room(first, n_bytes)) {
			return first;
		}
	}
	return NULL;
}

/* ---- pages ------------------------------------------------------------------------------------ */

/* Map pages for the first @n_bytes of @hole, or all of it. Returns the free block. NULL: the limit. */
static struct block *map_pages(struct ledger *ledger, struct block *hole, uint64_t n_bytes)
{
	uint64_t n_page = page_bytes(hole->line);
	uint64_t n_mapped = round_up(n_bytes < hole->n_bytes ? n_bytes : hole->n_bytes, n_page);
	if (!ledger_reserve(ledger, n_mapped)) {
		return NULL;
	}
	ledger->n_made += n_mapped / n_page;
	ledger_take(ledger, hole);
	if (n_mapped < hole->n_bytes) {
		ledger_put(ledger, ledger_split(ledger, hole, n_mapped), BLOCK_HOLE);
	}
	return ledger_put(ledger, hole, BLOCK_FREE);
}

/* Pages that were mapped before the limit was reached stay, free, as in PyTorch. */
static struct block *grow(struct ledger *ledger, uint32_t line, uint64_t n_bytes)
{
	struct block *block = find_hole(ledger, line, n_bytes);
	if (block && block->state == BLOCK_HOLE) {
		block = map_pages(ledger, block, n_bytes);
	}
	while (block && block->n_bytes < n_bytes) {
		block = map_pages(ledger, block->after, n_bytes - block->n_bytes);
	}
	return block;
}

static void unmap_pages(struct ledger *ledger, struct block *block)
{
	uint64_t n_page = page_bytes(block->line);
	uint64_t begin = round_up(block->address, n_page);
	uint64_t end = (block->address + block->n_bytes) / n_page * n_page;
	if (begin >= end) {
		return;
	}
	ledger_take(ledger, block);
	if (end < block->address + block->n_bytes) {
		ledger_put(ledger, ledger_split(ledger, block, end - block->address), BLOCK_FREE);
	}
	if (begin > block->address) {
		struct block *middle = ledger_split(ledger, block, begin - block->address);
		ledger_put(ledger, block, BLOCK_FREE);
		block = middle;
	}
	ledger_unreserve(ledger, end - begin);
	ledger->n_freed += (end - begin) / n_page;
	ledger_put(ledger, block, BLOCK_HOLE);
}

static void free_cached(struct ledger *ledger)
{
	struct block *next;
	for (struct block *block = ledger_first(ledger); block; block = next) {
		next = ledger_next(ledger, block);
		unmap_pages(ledger, block);
	}
}

/* ---- the model -------------------------------------------------------------------------------- */

static struct block *expandable_alloc(struct ledger *ledger, uint32_t stream, uint64_t n_asked)
{
	uint64_t n_bytes = round_up(n_asked, TORCH_UNIT_BYTES);
	uint32_t line = torch_line(stream, n_bytes);
	struct block *block = find_mapped(ledger, line, n_bytes);
	if (!block) {
		block = grow(ledger, line, n_bytes);
	}
	if (!block) {
		free_cached(ledger);
		block = grow(ledger, line, n_bytes);
	}
	if (!block) {
		return NULL;
	}
	ledger_take(ledger, block);
	if (block->n_bytes > n_bytes) {
		ledger_put(ledger, ledger_split(ledger, block, n_bytes), BLOCK_FREE);
	}
	return block;
}

static void expandable_free(struct ledger *ledger, struct block *block)
{
	ledger_put(ledger, block, BLOCK_FREE);
}

const struct model model_expandable = {"expandable", expandable_alloc, expandable_free};
