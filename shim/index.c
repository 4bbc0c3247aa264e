/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/index.h"

#include <stdlib.h>
#include <string.h>

size_t index_count(const struct index *index, uint64_t key)
{
	size_t low = 0;
	size_t high = index->n;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (index->entries[middle].key <= key) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

void *index_below(const struct index *index, uint64_t key)
{
	size_t n = index_count(index, key);
	return n ? index->entries[n - 1].value : NULL;
}

void *index_get(const struct index *index, uint64_t key)
{
	size_t n = index_count(index, key);
	return n && index->entries[n - 1].key == key ? index->entries[n - 1].value : NULL;
}

bool index_add(struct index *index, uint64_t key, void *value)
{
	if (index->n == index->capacity) {
		size_t capacity = index->capacity ? index->capacity * 2 : 256;
		struct index_entry *entries = reallocarray(index->entries, capacity,
		                                           sizeof(*entries));
		if (!entries) {
			return false;
		}
		index->entries = entries;
		index->capacity = capacity;
	}
	size_t at = index_count(index, key);
	memmove(&index->entries[at + 1], &index->entries[at],
	        (index->n - at) * sizeof(index->entries[0]));
	index->entries[at] = (struct index_entry){.key = key, .value = value};
	index->n++;
	return true;
}

void index_remove(struct index *index, uint64_t key)
{
	size_t at = index_count(index, key) - 1;
	index->n--;
	memmove(&index->entries[at], &index->entries[at + 1],
	        (index->n - at) * sizeof(index->entries[0]));
}
