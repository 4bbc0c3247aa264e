/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/replay/books.h"

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

static struct block **root_of(struct books *books, enum block_state state)
{
	return state == BLOCK_HOLE ? &books->holes : &books->free;
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

/* The first that is not less than @key. */
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

void books_deinit(struct books *books)
{
	tree_free(books->free);
	tree_free(books->holes);
	*books = (struct books){0};
}

/* ---- memory ----------------------------------------------------------------------------------- */

bool books_reserve(struct books *books, uint64_t n_bytes)
{
	if (n_bytes > books->limit_bytes - books->reserved_bytes) {
		return false;
	}
	books->reserved_bytes += n_bytes;
	if (books->reserved_bytes > books->peak_reserved_bytes) {
		books->peak_reserved_bytes = books->reserved_bytes;
	}
	return true;
}

void books_unreserve(struct books *books, uint64_t n_bytes)
{
	books->reserved_bytes -= n_bytes;
}

/* ---- blocks ----------------------------------------------------------------------------------- */

/* A used block with the facts of @like. */
static struct block *new_block(struct books *books, const struct block *like)
{
	struct block *block = must_calloc(1, sizeof(*block));
	*block = *like;
	/* The constants of Knuth's MMIX; the high half is the random one. */
	books->random = books->random * 6364136223846793005u + 1442695040888963407u;
	block->weight = (uint32_t)(books->random >> 32);
	return block;
}

struct block *books_add(struct books *books, uint32_t line, uint64_t n_bytes)
{
	const struct block like = {
		.line = line, .segment = books->n_segments++, .n_bytes = n_bytes};
	return new_block(books, &like);
}

void books_drop(struct block *block)
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

struct block *books_put(struct books *books, struct block *block, enum block_state state)
{
	struct block *before = block->before;
	struct block *after = block->after;
	if (after && after->state == state) {
		tree_remove(root_of(books, state), after);
		swallow(block, after);
	}
	if (before && before->state == state) {
		tree_remove(root_of(books, state), before);
		swallow(before, block);
		block = before;
	}
	block->state = state;
	tree_add(root_of(books, state), block);
	return block;
}

void books_take(struct books *books, struct block *block)
{
	tree_remove(root_of(books, block->state), block);
	block->state = BLOCK_USED;
}

struct block *books_split(struct books *books, struct block *block, uint64_t n_bytes)
{
	const struct block like = {
		.line = block->line,
		.segment = block->segment,
		.address = block->address + n_bytes,
		.n_bytes = block->n_bytes - n_bytes,
		.before = block,
		.after = block->after,
	};
	struct block *rest = new_block(books, &like);
	if (rest->after) {
		rest->after->before = rest;
	}
	block->after = rest;
	block->n_bytes = n_bytes;
	return rest;
}

/* ---- looking ---------------------------------------------------------------------------------- */

struct block *books_best(const struct books *books, uint32_t line, uint64_t n_bytes)
{
	const struct block key = {.line = line, .n_bytes = n_bytes, .state = BLOCK_FREE};
	struct block *found = tree_find(books->free, &key);
	return found && found->line == line ? found : NULL;
}

struct block *books_hole(const struct books *books, uint32_t line)
{
	const struct block key = {.line = line, .state = BLOCK_HOLE};
	struct block *found = tree_find(books->holes, &key);
	return found && found->line == line ? found : NULL;
}

struct block *books_first(const struct books *books)
{
	const struct block key = {.state = BLOCK_FREE};
	return tree_find(books->free, &key);
}

struct block *books_next(const struct books *books, const struct block *block)
{
	struct block key = *block;
	key.address++;
	return tree_find(block->state == BLOCK_HOLE ? books->holes : books->free, &key);
}
