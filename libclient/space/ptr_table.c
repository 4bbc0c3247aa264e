/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/space/ptr_table.h"

#include <errno.h>
#include <stdlib.h>

#define MIN_SLOTS 64u

static size_t home_of(const struct glake__ptr_table *table, uint64_t key)
{
	/* Addresses are multiples of 2 MiB: the high bits of a product spread them. */
	return (size_t)((key * 0x9E3779B97F4A7C15ull) >> 32) & (table->n_slots - 1);
}

static struct glake__ptr_slot *find(const struct glake__ptr_table *table, uint64_t key)
{
	size_t i = home_of(table, key);
	while (table->slots[i].key != 0 && table->slots[i].key != key) {
		i = (i + 1) & (table->n_slots - 1);
	}
	return &table->slots[i];
}

static int grow(struct glake__ptr_table *table)
{
	struct glake__ptr_table larger = {
		.n_slots = table->n_slots ? table->n_slots * 2 : MIN_SLOTS,
		.n_used = table->n_used,
	};
	larger.slots = calloc(larger.n_slots, sizeof(*larger.slots));
	if (!larger.slots) {
		return -ENOMEM;
	}
	for (size_t i = 0; i < table->n_slots; i++) {
		if (table->slots[i].key != 0) {
			*find(&larger, table->slots[i].key) = table->slots[i];
		}
	}
	free(table->slots);
	*table = larger;
	return 0;
}

void glake__ptr_table_deinit(struct glake__ptr_table *table)
{
	free(table->slots);
	*table = (struct glake__ptr_table){0};
}

int glake__ptr_table_add(struct glake__ptr_table *table, uint64_t key, void *value)
{
	if ((table->n_used + 1) * 2 > table->n_slots) {
		int r = grow(table);
		if (r < 0) {
			return r;
		}
	}
	*find(table, key) = (struct glake__ptr_slot){key, value};
	table->n_used++;
	return 0;
}

void *glake__ptr_table_get(const struct glake__ptr_table *table, uint64_t key)
{
	return table->n_used && key ? find(table, key)->value : NULL;
}

/* Close the gap at @hole: what probed past it moves back, so no tombstone is needed. */
static void close_gap(struct glake__ptr_table *table, size_t hole)
{
	size_t mask = table->n_slots - 1;
	for (size_t i = (hole + 1) & mask; table->slots[i].key != 0; i = (i + 1) & mask) {
		size_t home = home_of(table, table->slots[i].key);
		if (((i - home) & mask) >= ((i - hole) & mask)) {
			table->slots[hole] = table->slots[i];
			hole = i;
		}
	}
	table->slots[hole] = (struct glake__ptr_slot){0};
}

void *glake__ptr_table_remove(struct glake__ptr_table *table, uint64_t key)
{
	if (!table->n_used || !key) {
		return NULL;
	}
	struct glake__ptr_slot *slot = find(table, key);
	void *value = slot->value;
	if (slot->key != 0) {
		table->n_used--;
		close_gap(table, (size_t)(slot - table->slots));
	}
	return value;
}
