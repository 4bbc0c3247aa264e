/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model.safetensors.index.json: which shard has which tensor.
 *
 * It decides which tensors must be there and where. A shard may hold more than it says.
 */
#ifndef GLAKE_MOVER_WEIGHT_INDEX_H
#define GLAKE_MOVER_WEIGHT_INDEX_H

#include <stddef.h>

#include "daemon/mover/catalog.h"

/* The bound is that of a header. */
#define WEIGHT_INDEX_MAX_BYTES 100000000ull

/* Check @text, named @name, against the finished @catalog of @files. */
int weight_index_check(const char *name, const char *text, size_t n_bytes,
                       const struct catalog *catalog, const char *const *files, size_t n_files,
                       struct fault *fault);

#endif
