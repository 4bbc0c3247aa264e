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

/* Best fit, in which the end of what has memory counts as very large: it is the last choice. */
static struct block *find_mapped(const struct books *books, uint32_t line, uint64_t n_bytes)
{
	struct block *block = books_best(books, line, n_bytes);
	struct block *next = block ? books_next(books, block) : NULL;
	while (next && next->line == line && !block_is_segment(block) &&
	       expandable_bytes(next) < expandable_bytes(block)) {
		block = next;
		next = books_next(books, block);
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
static struct block *find_hole(struct books *books, uint32_t line, uint64_t n_bytes)
{
	struct block *hole = books_hole(books, line);
	if (!hole) {
		return books_put(books, books_add(books, line, SEGMENT_BYTES), BLOCK_HOLE);
	}
	for (; hole && hole->line == line; hole = books_next(books, hole)) {
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
static struct block *map_pages(struct books *books, struct block *hole, uint64_t n_bytes)
{
	uint64_t n_page = page_bytes(hole->line);
	uint64_t n_mapped = round_up(n_bytes < hole->n_bytes ? n_bytes : hole->n_bytes, n_page);
	if (!books_reserve(books, n_mapped)) {
		return NULL;
	}
	books->n_made += n_mapped / n_page;
	books_take(books, hole);
	if (n_mapped < hole->n_bytes) {
		books_put(books, books_split(books, hole, n_mapped), BLOCK_HOLE);
	}
	return books_put(books, hole, BLOCK_FREE);
}

/* Pages that were mapped before the limit was reached stay, free, as in PyTorch. */
static struct block *grow(struct books *books, uint32_t line, uint64_t n_bytes)
{
	struct block *block = find_hole(books, line, n_bytes);
	if (block && block->state == BLOCK_HOLE) {
		block = map_pages(books, block, n_bytes);
	}
	while (block && block->n_bytes < n_bytes) {
		block = map_pages(books, block->after, n_bytes - block->n_bytes);
	}
	return block;
}

static void unmap_pages(struct books *books, struct block *block)
{
	uint64_t n_page = page_bytes(block->line);
	uint64_t begin = round_up(block->address, n_page);
	uint64_t end = (block->address + block->n_bytes) / n_page * n_page;
	if (begin >= end) {
		return;
	}
	books_take(books, block);
	if (end < block->address + block->n_bytes) {
		books_put(books, books_split(books, block, end - block->address), BLOCK_FREE);
	}
	if (begin > block->address) {
		struct block *middle = books_split(books, block, begin - block->address);
		books_put(books, block, BLOCK_FREE);
		block = middle;
	}
	books_unreserve(books, end - begin);
	books->n_freed += (end - begin) / n_page;
	books_put(books, block, BLOCK_HOLE);
}

static void free_cached(struct books *books)
{
	struct block *next;
	for (struct block *block = books_first(books); block; block = next) {
		next = books_next(books, block);
		unmap_pages(books, block);
	}
}

/* ---- the model -------------------------------------------------------------------------------- */

static struct block *expandable_alloc(struct books *books, uint32_t stream, uint64_t n_asked)
{
	uint64_t n_bytes = round_up(n_asked, TORCH_UNIT_BYTES);
	uint32_t line = torch_line(stream, n_bytes);
	struct block *block = find_mapped(books, line, n_bytes);
	if (!block) {
		block = grow(books, line, n_bytes);
	}
	if (!block) {
		free_cached(books);
		block = grow(books, line, n_bytes);
	}
	if (!block) {
		return NULL;
	}
	books_take(books, block);
	if (block->n_bytes > n_bytes) {
		books_put(books, books_split(books, block, n_bytes), BLOCK_FREE);
	}
	return block;
}

static void expandable_free(struct books *books, struct block *block)
{
	books_put(books, block, BLOCK_FREE);
}

const struct model model_expandable = {"expandable", expandable_alloc, expandable_free};
