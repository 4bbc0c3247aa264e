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

static struct block *make_segment(struct books *books, uint32_t line, uint64_t n_bytes)
{
	if (!books_reserve(books, n_bytes)) {
		return NULL;
	}
	books->n_made++;
	return books_add(books, line, n_bytes);
}

static void free_cached(struct books *books)
{
	struct block *next;
	for (struct block *block = books_first(books); block; block = next) {
		next = books_next(books, block);
		if (block_is_segment(block)) {
			books_take(books, block);
			books_unreserve(books, block->n_bytes);
			books->n_freed++;
			books_drop(block);
		}
	}
}

/* Of the large pool, what is left over must be able to serve a request of that pool. */
static bool may_split(const struct block *block, uint64_t n_bytes)
{
	uint64_t n_rest = block->n_bytes - n_bytes;
	return torch_line_is_small(block->line) ? n_rest >= TORCH_UNIT_BYTES
	                                        : n_rest > TORCH_SMALL_BYTES;
}

static struct block *caching_alloc(struct books *books, uint32_t stream, uint64_t n_asked)
{
	uint64_t n_bytes = round_up(n_asked, TORCH_UNIT_BYTES);
	uint32_t line = torch_line(stream, n_bytes);
	struct block *block = books_best(books, line, n_bytes);
	if (block) {
		books_take(books, block);
	} else {
		block = make_segment(books, line, segment_bytes(n_bytes));
	}
	if (!block) {
		free_cached(books);
		block = make_segment(books, line, segment_bytes(n_bytes));
	}
	if (block && may_split(block, n_bytes)) {
		books_put(books, books_split(books, block, n_bytes), BLOCK_FREE);
	}
	return block;
}

static void caching_free(struct books *books, struct block *block)
{
	books_put(books, block, BLOCK_FREE);
}

const struct model model_caching = {"caching", caching_alloc, caching_free};
