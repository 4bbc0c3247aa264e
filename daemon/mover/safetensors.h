/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a .safetensors file: 8 bytes with its length, little endian; that many bytes of
 * JSON, an object of {name: {dtype, shape, data_offsets}}; then the tensors' bytes, which must fill
 * the rest of the file without holes and without overlaps.
 *
 * Everything the safetensors library refuses is refused, and some more: fields it does not know,
 * a name twice, names and ranks beyond our limits. The texts name file, tensor and cause.
 *
 * Threads: any; a catalog belongs to one at a time.
 */
#ifndef GLAKE_MOVER_SAFETENSORS_H
#define GLAKE_MOVER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/mover/catalog.h"

#define SAFETENSORS_PREFIX_BYTES 8u

struct safetensors_file {
	const char *name; /* for texts */
	uint32_t number;  /* the file number of the tensors */
	uint64_t bytes;   /* of the whole file */
};

/* Check the length in @prefix (the file's first bytes, of which there may be fewer than 8). */
int safetensors_header_bytes(const struct safetensors_file *file, const uint8_t *prefix,
                             size_t n_prefix_bytes, uint64_t *header_bytes_out,
                             struct fault *fault);

/* Add the tensors of the header that follows the prefix. On failure the catalog is only good for
 * catalog_deinit(). */
int safetensors_parse(const struct safetensors_file *file, const char *header, size_t header_bytes,
                      struct catalog *catalog, struct fault *fault);

#endif
