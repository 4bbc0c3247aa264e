/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain driver calls. The driver's memory comes in pages of 2 MiB. Allocations below that share
 * pages, in units of 512 bytes; a page goes back when all of it is free. All streams are alike.
 */
#include "shim/run/replay/model.h"

#define UNIT_BYTES 512u
#define PAGE_BYTES (2 * MIB)

static struct block *driver_alloc(struct books *books, uint32_t stream, uint64_t n_asked)
{
	uint64_t n_bytes = round_up(n_asked, UNIT_BYTES);
	struct block *block = n_bytes < PAGE_BYTES ? books_best(books, 0, n_bytes) : NULL;
	if (block) {
		books_take(books, block);
	} else if (books_reserve(books, round_up(n_bytes, PAGE_BYTES))) {
		block = books_add(books, 0, round_up(n_bytes, PAGE_BYTES));
	} else {
		return NULL;
	}
	books->n_made++;
	if (n_bytes < PAGE_BYTES && n_bytes < block->n_bytes) {
		books_put(books, books_split(books, block, n_bytes), BLOCK_FREE);
	}
	return block;
}

static void driver_free(struct books *books, struct block *block)
{
	books->n_freed++;
	block = books_put(books, block, BLOCK_FREE);
	if (block_is_segment(block)) {
		books_take(books, block);
		books_unreserve(books, block->n_bytes);
		books_drop(block);
	}
}

const struct model model_driver = {"driver", driver_alloc, driver_free};
