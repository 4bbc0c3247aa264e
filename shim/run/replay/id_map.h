/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers of a trace (ids, streams) to indices of ours.
 *
 * Owner: the embedder; id_map_deinit() frees it. A map of zeroes is empty. Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_REPLAY_ID_MAP_H
#define GLAKE_SHIM_RUN_REPLAY_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

struct id_map {
	struct id_map_entry *entries; /* owned; a power of two of them, at most half of them used */
	size_t n_entries;
	size_t n_used;
};

void id_map_deinit(struct id_map *map);

/*
 * The place of @id's index: UINT32_MAX in it for an id that is new. Valid until the next call.
 * NULL: no memory.
 */
uint32_t *id_map_at(struct id_map *map, uint64_t id);

#endif
