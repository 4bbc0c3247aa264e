/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structs of dlpack.h, version 0.8 and before: the ABI that every consumer takes.
 *
 * Owner: who has a DLManagedTensor ends it, with its deleter.
 * Lifetime: until then.
 * Threads: the deleter may be called on any, also on one that the program's interpreter does not know.
 */
#ifndef GLAKE_LIBCLIENT_DLPACK_H
#define GLAKE_LIBCLIENT_DLPACK_H

#include <stdint.h>

struct dl_type {
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
};

struct DLManagedTensor {
	void *data;
	int32_t device_type;
	int32_t device_id;
	int32_t n_dims;
	struct dl_type type;
	int64_t *shape;
	int64_t *strides; /* NULL: contiguous, the last dimension fastest */
	uint64_t byte_offset;
	void *context;
	void (*deleter)(struct DLManagedTensor *self);
};

#endif
