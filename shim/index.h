/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Things by a number: a dense array, sorted, searched in halves. Putting one in costs a memmove of
 * 16 bytes for each above it, which for the few ten thousand that there can be is less than a tree
 * would cost to walk.
 *
 * Owner: embedded in its user; values are borrowed. Lifetime: {0} is empty; it only grows.
 * Threads: none of its own.
 */
#ifndef GLAKE_SHIM_INDEX_H
#define GLAKE_SHIM_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct index_entry {
	uint64_t key;
	void *value;
};

struct index {
	struct index_entry *entries; /* owned; by key */
	size_t n;
	size_t capacity;
};

/* How many keys are @key or less: so the last of them stands one before. */
size_t index_count(const struct index *index, uint64_t key);
/* Of the largest key that is @key or less; NULL if there is none. */
void *index_below(const struct index *index, uint64_t key);
/* Of exactly @key; NULL if there is none. */
void *index_get(const struct index *index, uint64_t key);

/* @key is new. False without memory. */
bool index_add(struct index *index, uint64_t key, void *value);
/* @key is there. */
void index_remove(struct index *index, uint64_t key);

#endif
