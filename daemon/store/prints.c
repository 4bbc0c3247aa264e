/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/prints.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/store/realm.h"

static bool is_with(const struct block *a, const struct block *b)
{
	return a->realm == b->realm && a->key.slot == b->key.slot;
}

static struct block_print **chain_of(const struct prints *prints, const struct block *block,
                                     uint64_t print)
{
	uint64_t mixed = (print ^ prints->secret[0]) + block->key.realm_id * 0x9e3779b97f4a7c15u +
	                 block->key.slot;
	mixed *= prints->secret[1] | 1;
	mixed ^= mixed >> 32;
	mixed *= 0xff51afd7ed558ccdu;
	return &prints->chains[mixed >> 48];
}

_Static_assert(PRINTS_CHAINS == 1u << 16, "the chain's number is 16 bits");

static int need_chains(struct prints *prints)
{
	if (prints->chains) {
		return 0;
	}
	if (getrandom(prints->secret, sizeof(prints->secret), 0) != sizeof(prints->secret)) {
		return -EIO;
	}
	prints->chains = calloc(PRINTS_CHAINS, sizeof(struct block_print *));
	return prints->chains ? 0 : -ENOMEM;
}

void prints_deinit(struct prints *prints)
{
	free(prints->chains);
	prints->chains = NULL;
}

/* How many more the realm may have. */
static uint64_t room_for(const struct prints *prints, const struct realm *realm)
{
	const uint64_t share = (PRINTS_MAX - (prints->n - realm->n_prints)) / 2;
	return share > realm->n_prints ? share - realm->n_prints : 0;
}

static bool is_everywhere(const struct block *block, const struct block_print *chain,
                          uint64_t value)
{
	unsigned n = 0;
	for (; chain && n < PRINTS_SAME; chain = chain->next) {
		n += chain->print == value && is_with(chain->block, block);
	}
	return n >= PRINTS_SAME;
}

int prints_add(struct prints *prints, struct block *block, const uint64_t *values, size_t n,
               uint64_t varied_bytes)
{
	struct block_layout *layout = &block->layout;
	const uint64_t room = room_for(prints, block->realm);
	layout->state = n > 0 ? LAYOUT_LEFT_OUT : LAYOUT_SEEN;
	n = n < room ? n : (size_t)room;
	layout->varied_bytes = varied_bytes < block->content_bytes ? varied_bytes
	                                                           : block->content_bytes;
	if (n == 0) {
		return 0;
	}
	layout->prints = need_chains(prints) == 0 ? calloc(n, sizeof(*layout->prints)) : NULL;
	if (!layout->prints) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		struct block_print **chain = chain_of(prints, block, values[i]);
		struct block_print *print = &layout->prints[i];
		print->print = values[i];
		if (!is_everywhere(block, *chain, values[i])) {
			print->block = block;
			print->next = *chain;
			*chain = print;
		}
	}
	layout->n_prints = (uint32_t)n;
	layout->state = LAYOUT_SEEN;
	prints->n += layout->n_prints;
	block->realm->n_prints += layout->n_prints;
	return 0;
}

void prints_drop(struct prints *prints, struct block *block)
{
	struct block_layout *layout = &block->layout;
	for (uint32_t i = 0; i < layout->n_prints; i++) {
		struct block_print **link = chain_of(prints, block, layout->prints[i].print);
		while (*link && *link != &layout->prints[i]) {
			link = &(*link)->next;
		}
		if (*link) {
			*link = layout->prints[i].next;
		}
	}
	prints->n -= layout->n_prints;
	block->realm->n_prints -= layout->n_prints;
	free(layout->prints);
	*layout = (struct block_layout){.prints = NULL};
}

uint64_t prints_mark(struct prints *prints)
{
	return ++prints->last_mark;
}

static bool is_elsewhere(const struct block_print *chain, const struct block *block, uint64_t value,
                         uint64_t mark, bool marked)
{
	for (; chain; chain = chain->next) {
		const struct block *other = chain->block;
		if (chain->print == value && other != block && is_with(other, block) &&
		    other->n_users > 0 && (other->layout.mark == mark) == marked) {
			return true;
		}
	}
	return false;
}

uint32_t prints_count(const struct prints *prints, const struct block *block, uint64_t mark,
                      bool marked)
{
	const struct block_layout *layout = &block->layout;
	uint32_t n = 0;
	for (uint32_t i = 0; i < layout->n_prints; i++) {
		const uint64_t value = layout->prints[i].print;
		n += is_elsewhere(*chain_of(prints, block, value), block, value, mark, marked);
	}
	return n;
}
