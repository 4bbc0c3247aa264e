/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/mover/catalog.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/array.h"
#include "proto/limits.h"

#define PIECE_BYTES (64u * 1024)

struct arena_piece {
	struct arena_piece *next;
	size_t used_bytes;
	size_t capacity_bytes;
	uint64_t bytes[];
};

void catalog_init(struct catalog *catalog)
{
	*catalog = (struct catalog){0};
}

void catalog_deinit(struct catalog *catalog)
{
	while (catalog->pieces) {
		struct arena_piece *next = catalog->pieces->next;
		free(catalog->pieces);
		catalog->pieces = next;
	}
	free(catalog->tensors);
	catalog_init(catalog);
}

void *catalog_alloc(struct catalog *catalog, size_t n_bytes)
{
	struct arena_piece *piece = catalog->pieces;
	n_bytes = (n_bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t) * sizeof(uint64_t);
	if (!piece || piece->capacity_bytes - piece->used_bytes < n_bytes) {
		size_t capacity = n_bytes > PIECE_BYTES ? n_bytes : PIECE_BYTES;
		piece = malloc(sizeof(*piece) + capacity);
		if (!piece) {
			return NULL;
		}
		*piece = (struct arena_piece){.next = catalog->pieces, .capacity_bytes = capacity};
		catalog->pieces = piece;
		catalog->arena_bytes += sizeof(*piece) + capacity;
	}
	void *memory = (char *)piece->bytes + piece->used_bytes;
	piece->used_bytes += n_bytes;
	return memory;
}

int catalog_add(struct catalog *catalog, const struct tensor *tensor)
{
	if (catalog->n_tensors == GLAKE_MAX_TENSORS) {
		return -E2BIG;
	}
	if (array_grow(catalog->tensors, catalog->n_tensors, catalog->capacity, 256) < 0) {
		return -ENOMEM;
	}
	catalog->tensors[catalog->n_tensors++] = *tensor;
	return 0;
}

static int compare_names(const void *left, const void *right)
{
	const struct tensor *a = left;
	const struct tensor *b = right;
	return strcmp(a->name, b->name);
}

int catalog_finish(struct catalog *catalog, const char *const *files, struct fault *fault)
{
	if (catalog->n_tensors > 0) {
		qsort(catalog->tensors, catalog->n_tensors, sizeof(*catalog->tensors),
		      compare_names);
	}
	for (size_t i = 1; i < catalog->n_tensors; i++) {
		const struct tensor *a = &catalog->tensors[i - 1];
		const struct tensor *b = &catalog->tensors[i];
		if (compare_names(a, b) != 0) {
			continue;
		}
		if (a->file == b->file) {
			return fault_set(fault, FAULT_BAD_FILE, "%s: tensor %s: named twice",
			                 quote(files[a->file]).text, quote(a->name).text);
		}
		return fault_set(fault, FAULT_BAD_FILE, "%s: tensor %s: also in %s",
		                 quote(files[a->file]).text, quote(a->name).text,
		                 quote(files[b->file]).text);
	}
	return 0;
}

const struct tensor *catalog_find(const struct catalog *catalog, const char *name)
{
	struct tensor key = {.name = name};
	if (catalog->n_tensors == 0) {
		return NULL;
	}
	return bsearch(&key, catalog->tensors, catalog->n_tensors, sizeof(key), compare_names);
}
