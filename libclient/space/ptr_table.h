/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table from a number that is not 0, a device address or a handle, to what has it. Open addressing,
 * at most half full.
 *
 * Owner: embedded in its user. The values are borrowed.
 * Lifetime: {0} is empty; glake__ptr_table_deinit().
 * Threads: none of its own.
 */
#ifndef GLAKE_LIBCLIENT_PTR_TABLE_H
#define GLAKE_LIBCLIENT_PTR_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct glake__ptr_slot {
	uint64_t key; /* 0 = empty */
	void *value;
};

struct glake__ptr_table {
	struct glake__ptr_slot *slots; /* owned; NULL while empty */
	size_t n_slots;                /* a power of two */
	size_t n_used;
};

void glake__ptr_table_deinit(struct glake__ptr_table *table);

/* @key is not 0 and not in the table. Returns 0 or -ENOMEM. Never fails right after a removal. */
int glake__ptr_table_add(struct glake__ptr_table *table, uint64_t key, void *value);

/* NULL if it is not there. */
void *glake__ptr_table_get(const struct glake__ptr_table *table, uint64_t key);
void *glake__ptr_table_remove(struct glake__ptr_table *table, uint64_t key);

#endif
