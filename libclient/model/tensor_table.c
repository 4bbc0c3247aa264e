/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/model/tensor_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/array.h"

void glake__tensor_table_deinit(struct glake__tensor_table *table)
{
	free(table->tensors);
	glake__arena_deinit(&table->arena);
	*table = (struct glake__tensor_table){0};
}

int glake__tensor_table_add(struct glake__tensor_table *table, const struct glake__tensor *tensor)
{
	size_t name_bytes = strlen(tensor->name) + 1;
	size_t shape_bytes = tensor->n_dims * sizeof(uint64_t);
	size_t stride_bytes = tensor->strides ? shape_bytes : 0;
	char *name = glake__arena_take(&table->arena, name_bytes);
	uint64_t *shape = glake__arena_take(&table->arena, shape_bytes);
	uint64_t *strides = glake__arena_take(&table->arena, stride_bytes);
	if (!name || !shape || !strides ||
	    array_grow(table->tensors, table->n_tensors, table->capacity, 512) < 0) {
		return -ENOMEM;
	}
	memcpy(name, tensor->name, name_bytes);
	if (shape_bytes > 0) {
		memcpy(shape, tensor->shape, shape_bytes);
	}
	if (stride_bytes > 0) {
		memcpy(strides, tensor->strides, stride_bytes);
	}
	struct glake__tensor *copy = &table->tensors[table->n_tensors++];
	*copy = *tensor;
	copy->name = name;
	copy->shape = shape;
	copy->strides = tensor->strides ? strides : NULL;
	return 0;
}

static int compare(const void *a, const void *b)
{
	return strcmp(((const struct glake__tensor *)a)->name,
	              ((const struct glake__tensor *)b)->name);
}

int glake__tensor_table_sort(struct glake__tensor_table *table)
{
	struct glake__tensor *tensors = table->tensors;
	uint64_t i = 1;
	while (i < table->n_tensors && compare(&tensors[i - 1], &tensors[i]) < 0) {
		i++;
	}
	if (i >= table->n_tensors) {
		return 0;
	}
	qsort(tensors, table->n_tensors, sizeof(*tensors), compare);
	for (i = 1; i < table->n_tensors; i++) {
		if (compare(&tensors[i - 1], &tensors[i]) == 0) {
			return -EEXIST;
		}
	}
	return 0;
}

const struct glake__tensor *glake__tensor_table_find(const struct glake__tensor_table *table,
                                                     const char *name)
{
	struct glake__tensor key = {.name = name};
	if (table->n_tensors == 0) {
		return NULL;
	}
	return bsearch(&key, table->tensors, table->n_tensors, sizeof(*table->tensors), compare);
}
