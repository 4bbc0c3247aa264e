/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/replay/ledger.h"

#include <stdlib.h>

#include "shim/run/replay/must.h"

/* ---- tree ------------------------------------------------------------------------------------- */

static uint64_t rank(const struct block *block)
{
	return block->state == BLOCK_HOLE ? 0 : block->n_bytes;
}

static bool is_less(const struct block *one, const struct block *other)
{
	if (one->line != other->line) {
		return one->line < other->line;
	}
	if (rank(one) != rank(other)) {
		return rank(one) < rank(other);
	}
	return one->segment != other->segment ? one->segment < other->segment
	                                      : one->address < other->address;
}

static struct block **root_of(struct ledger *ledger, enum block_state state)
{
	return state == BLOCK_HOLE ? &ledger->holes : &ledger->free;
}

/* Part the tree at @key, which is not in it. */
static void part(struct block *tree, const struct block *key, struct block **less,
                 struct block **more)
{
	while (tree) {
		if (is_less(tree, key)) {
			*less = tree;
			less = &tree->right;
			tree = tree->right;
		} else {
			*more = tree;
			more = &tree->left;
			tree = tree->left;
		}
	}
	*less = NULL;
	*more = NULL;
}

static struct block *join(struct block *less, struct block *more)
{
	struct block *root = NULL;
	struct block **at = &root;
	while (less && more) {
		if (less->weight > more->weight) {
			*at = less;
			at = &less->right;
			less = less->right;
		} else {
			*at = more;
			at = &more->left;
			more = more->left;
		}
	}
	*at = less ? less : more;
	return root;
}

static void tree_add(struct block **at, struct block *block)
{
	while (*at && (*at)->weight >= block->weight) {
		at = is_less(*at, block) ? &(*at)->right : &(*at)->left;
	}
	part(*at, block, &block->left, &block->right);
	*at = block;
}

static void tree_remove(struct block **at, const struct block *block)
{
	while (*at != block) {
		at = is_less(*at, block) ? &(*at)->right : &(*at)->left;
	}
	*at = join(block->left, block->right);
}

/* The first block that is not less than @key. */
static struct block *tree_find(struct block *tree, const struct block *key)
{
	struct block *found = NULL;
	while (tree) {
		if (is_less(tree, key)) {
			tree = tree->right;
		} else {
			found = tree;
			tree = tree->left;
		}
	}
	return found;
}

static void tree_free(struct block *tree)
{
	while (tree) {
		struct block *right = tree->right;
		tree_free(tree->left);
		free(tree);
		tree = right;
	}
}

void ledger_deinit(struct ledger *ledger)
{
	tree_free(ledger->free);
	tree_free(ledger->holes);
	*ledger = (struct ledger){0};
}

/* ---- memory ----------------------------------------------------------------------------------- */

bool ledger_reserve(struct ledger *ledger, uint64_t n_bytes)
{
	if (n_bytes > ledger->limit_bytes - ledger->reserved_bytes) {
		return false;
	}
	ledger->reserved_bytes += n_bytes;
	if (ledger->reserved_bytes > ledger->peak_reserved_bytes) {
		ledger->peak_reserved_bytes = ledger->reserved_bytes;
	}
	return true;
}

void ledger_unreserve(struct ledger *ledger, uint64_t n_bytes)
{
	ledger->reserved_bytes -= n_bytes;
}

/* ---- blocks ----------------------------------------------------------------------------------- */

/* A used block with the facts of @like. */
static struct block *new_block(struct ledger *ledger, const struct block *like)
{
	struct block *block = must_calloc(1, sizeof(*block));
	*block = *like;
	/* The constants of Knuth's MMIX; the high half is the random one. */
	ledger->random = ledger->random * 6364136223846793005u + 1442695040888963407u;
	block->weight = (uint32_t)(ledger->random >> 32);
	return block;
}

struct block *ledger_add(struct ledger *ledger, uint32_t line, uint64_t n_bytes)
{
	const struct block like = {
		.line = line, .segment = ledger->n_segments++, .n_bytes = n_bytes};
	return new_block(ledger, &like);
}

void ledger_drop(struct block *block)
{
	free(block);
}

/* @second, behind @first, becomes a part of it. */
static void swallow(struct block *first, struct block *second)
{
	first->n_bytes += second->n_bytes;
	first->after = second->after;
	if (first->after) {
		first->after->before = first;
	}
	free(second);
}

struct block *ledger_put(struct ledger *ledger, struct block *block, enum block_state state)
{
	struct block *before = block->before;
	struct block *after = block->after;
	if (after && after->state == state) {
		tree_remove(root_of(ledger, state), after);
		swallow(block, after);
	}
	if (before && before->state == state) {
		tree_remove(root_of(ledger, state), before);
		swallow(before, block);
		block = before;
	}
	block->state = state;
	tree_add(root_of(ledger, state), block);
	return block;
}

void ledger_take(struct ledger *ledger, struct block *block)
{
	tree_remove(root_of(ledger, block->state), block);
	block->state = BLOCK_USED;
}

struct block *ledger_split(struct ledger *ledger, struct block *block, uint64_t n_bytes)
{
	const struct block like = {
		.line = block->line,
		.segment = block->segment,
		.address = block->address + n_bytes,
		.n_bytes = block->n_bytes - n_bytes,
		.before = block,
		.after = block->after,
	};
	struct block *rest = new_block(ledger, &like);
	if (rest->after) {
		rest->after->before = rest;
	}
	block->after = rest;
	block->n_bytes = n_bytes;
	return rest;
}

/* ---- looking ---------------------------------------------------------------------------------- */

struct block *ledger_best(const struct ledger *ledger, uint32_t line, uint64_t n_bytes)
{
	const struct block key = {.line = line, .n_bytes = n_bytes, .state = BLOCK_FREE};
	struct block *found = tree_find(ledger->free, &key);
	return found && found->line == line ? found : NULL;
}

struct block *ledger_hole(const struct ledger *ledger, uint32_t line)
{
	const struct block key = {.line = line, .state = BLOCK_HOLE};
	struct block *found = tree_find(ledger->holes, &key);
	return found && found->line == line ? found : NULL;
}

struct block *ledger_first(const struct ledger *ledger)
{
	const struct block key = {.state = BLOCK_FREE};
	return tree_find(ledger->free, &key);
}

struct block *ledger_next(const struct ledger *ledger, const struct block *block)
{
	struct block key = *block;
	key.address++;
	return tree_find(block->state == BLOCK_HOLE ? ledger->holes : ledger->free, &key);
}
