/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/replay/id_map.h"

#include <stdbool.h>
#include <stdlib.h>

#define MIN_ENTRIES 1024u

struct id_map_entry {
	uint64_t id;
	uint32_t index;
	bool is_used;
};

void id_map_deinit(struct id_map *map)
{
	free(map->entries);
	*map = (struct id_map){0};
}

/* The entry of @id, or the free one where it belongs. */
static struct id_map_entry *probe(const struct id_map *map, uint64_t id)
{
	/* Ids are often addresses: the factor spreads their high bits. */
	size_t at = (size_t)((id * 0x9E3779B97F4A7C15u) >> 32);
	struct id_map_entry *entry;
	do {
		entry = &map->entries[at++ & (map->n_entries - 1)];
	} while (entry->is_used && entry->id != id);
	return entry;
}

static bool grow(struct id_map *map)
{
	struct id_map bigger = {.n_entries = map->n_entries ? 2 * map->n_entries : MIN_ENTRIES,
	                        .n_used = map->n_used};
	bigger.entries = calloc(bigger.n_entries, sizeof(*bigger.entries));
	if (!bigger.entries) {
		return false;
	}
	for (size_t i = 0; i < map->n_entries; i++) {
		if (map->entries[i].is_used) {
			*probe(&bigger, map->entries[i].id) = map->entries[i];
		}
	}
	free(map->entries);
	*map = bigger;
	return true;
}

uint32_t *id_map_at(struct id_map *map, uint64_t id)
{
	if (2 * map->n_used >= map->n_entries && !grow(map)) {
		return NULL;
	}
	struct id_map_entry *entry = probe(map, id);
	if (!entry->is_used) {
		*entry = (struct id_map_entry){.id = id, .index = UINT32_MAX, .is_used = true};
		map->n_used++;
	}
	return &entry->index;
}
