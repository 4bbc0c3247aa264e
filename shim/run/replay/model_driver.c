/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain driver calls. The driver's memory comes in pages of 2 MiB. Allocations below that share
 * pages, in units of 512 bytes; a page goes back when all of it is free. All streams are alike.
 */
#include "shim/run/replay/model.h"

#define UNIT_BYTES 512u
#define PAGE_BYTES (2 * MIB)

static struct block *driver_alloc(struct ledger *ledger, uint32_t stream, uint64_t n_asked)
{
	uint64_t n_bytes = round_up(n_asked, UNIT_BYTES);
	struct block *block = n_bytes < PAGE_BYTES ? ledger_best(ledger, 0, n_bytes) : NULL;
	if (block) {
		ledger_take(ledger, block);
	} else if (ledger_reserve(ledger, round_up(n_bytes, PAGE_BYTES))) {
		block = ledger_add(ledger, 0, round_up(n_bytes, PAGE_BYTES));
	} else {
		return NULL;
	}
	ledger->n_made++;
	if (n_bytes < PAGE_BYTES && n_bytes < block->n_bytes) {
		ledger_put(ledger, ledger_split(ledger, block, n_bytes), BLOCK_FREE);
	}
	return block;
}

static void driver_free(struct ledger *ledger, struct block *block)
{
	ledger->n_freed++;
	block = ledger_put(ledger, block, BLOCK_FREE);
	if (block_is_segment(block)) {
		ledger_take(ledger, block);
		ledger_unreserve(ledger, block->n_bytes);
		ledger_drop(block);
	}
}

const struct model model_driver = {"driver", driver_alloc, driver_free};
