/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of one model, by position and by name.
 *
 * Owner: embedded in a model. Lifetime: {0} is empty; filled page by page, then sorted once, then
 * only read. Threads: none of its own; reading is free once sorted.
 */
#ifndef GLAKE_LIBCLIENT_TENSOR_TABLE_H
#define GLAKE_LIBCLIENT_TENSOR_TABLE_H

#include <stdint.h>

#include "libclient/model/arena.h"
#include "libclient/glake.h"

struct glake__tensor {
	const char *name;        /* owned by the table */
	const uint64_t *shape;   /* owned by the table, as is the next */
	const uint64_t *strides; /* NULL: row-major, without gaps */
	uint32_t n_dims;
	uint32_t dtype;
	uint64_t offset; /* in the model's span */
	uint64_t n_bytes;
};

struct glake__tensor_table {
	struct glake__tensor *tensors; /* owned */
	uint64_t n_tensors;
	size_t capacity;
	struct glake__arena arena;
};

void glake__tensor_table_deinit(struct glake__tensor_table *table);

/* Append a copy of @tensor, its name, shape and strides included. Returns 0 or -ENOMEM. */
int glake__tensor_table_add(struct glake__tensor_table *table, const struct glake__tensor *tensor);

/* By name, for find. Returns 0, or -EEXIST when two have one name. */
int glake__tensor_table_sort(struct glake__tensor_table *table);

/* NULL if there is none. */
const struct glake__tensor *glake__tensor_table_find(const struct glake__tensor_table *table,
                                                     const char *name);

#endif
