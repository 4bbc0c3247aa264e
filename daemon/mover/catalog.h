/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a set of files: what a load is planned from.
 *
 * Owner: the load. Names and shapes live in the catalog's arena, so they are freed with it at once.
 * Lifetime: catalog_init(), files added (safetensors.h), catalog_finish() sorts, catalog_deinit().
 * Threads: one at a time.
 */
#ifndef GLAKE_MOVER_CATALOG_H
#define GLAKE_MOVER_CATALOG_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/mover/fault.h"

struct tensor {
	const char *name;      /* in the arena */
	const uint64_t *shape; /* in the arena; NULL for no dimensions */
	uint32_t n_dims;
	uint32_t dtype; /* enum dtype */
	uint32_t file;  /* number of the file */
	uint64_t begin; /* in the file */
	uint64_t bytes;
};

struct arena_piece;

struct catalog {
	struct tensor *tensors; /* owned */
	size_t n_tensors;
	size_t capacity;
	struct arena_piece *pieces; /* owned: the arena, newest first */
	size_t arena_bytes;
};

void catalog_init(struct catalog *catalog);
/* Accepts a half-built one. */
void catalog_deinit(struct catalog *catalog);

/* Memory that lives as long as the catalog; aligned for uint64_t. NULL when there is none. */
void *catalog_alloc(struct catalog *catalog, size_t n_bytes);

/* Append a copy of @tensor. -ENOMEM, or -E2BIG beyond GLAKE_MAX_TENSORS. */
int catalog_add(struct catalog *catalog, const struct tensor *tensor);

/*
 * After the last file: sort by name (bytewise) and refuse a name that is there twice.
 * @files are the names for the error text.
 */
int catalog_finish(struct catalog *catalog, const char *const *files, struct fault *fault);

/* After catalog_finish(): the tensor named @name, or NULL. */
const struct tensor *catalog_find(const struct catalog *catalog, const char *name);

#endif
