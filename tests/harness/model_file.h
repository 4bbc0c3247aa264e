/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors files made up for tests. Their content follows from a seed, so that a test knows
 * every byte without keeping it.
 *
 * Threads: any. Failures are failed Check assertions.
 */
#ifndef GLAKE_TESTS_HARNESS_MODEL_FILE_H
#define GLAKE_TESTS_HARNESS_MODEL_FILE_H

#include <stddef.h>
#include <stdint.h>

#define MODEL_FILE_MAX_DIMS 4u

struct model_tensor {
	const char *name;
	const char *dtype; /* "F32", "BF16", ... */
	unsigned n_dims;   /* 0 = a scalar */
	uint64_t shape[MODEL_FILE_MAX_DIMS];
	uint64_t seed; /* equal seeds and sizes: equal contents */
};

uint64_t model_tensor_bytes(const struct model_tensor *tensor);

/* Write the @n_bytes bytes of a content from @offset on to @bytes_out. */
void model_tensor_fill(const struct model_tensor *tensor, uint64_t offset, void *bytes_out,
                       size_t n_bytes);

/* Write @path, tensors in that order. */
void model_file_write(const char *path, const struct model_tensor *tensors, size_t n_tensors);

/*
 * Write @path with @n_tensors tensors of one byte, whose content follows from @seed, and names of a thousand bytes each: what the
 * file costs glaked is its manifest, of about @n_tensors * 1000 bytes.
 */
void model_file_write_wordy(const char *path, unsigned n_tensors, unsigned seed);

/* Open the file for reading, close-on-exec. */
int model_file_open(const char *path);

#endif
