/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types of tensors: the safetensors names, and the numbers that travel in messages.
 *
 * The numbers are enum glake_dtype of glake.h; libclient asserts that they agree.
 */
#ifndef GLAKE_PROTO_DTYPE_H
#define GLAKE_PROTO_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(identifier, safetensors name, bits of an element), in the order of their numbers from 1. */
#define DTYPE_LIST(X) \
	X(BOOL, "BOOL", 8) \
	X(U8, "U8", 8) \
	X(I8, "I8", 8) \
	X(F8_E5M2, "F8_E5M2", 8) \
	X(F8_E4M3, "F8_E4M3", 8) \
	X(F8_E8M0, "F8_E8M0", 8) \
	X(I16, "I16", 16) \
	X(U16, "U16", 16) \
	X(F16, "F16", 16) \
	X(BF16, "BF16", 16) \
	X(I32, "I32", 32) \
	X(U32, "U32", 32) \
	X(F32, "F32", 32) \
	X(C64, "C64", 64) \
	X(F64, "F64", 64) \
	X(I64, "I64", 64) \
	X(U64, "U64", 64) \
	X(F4, "F4", 4) \
	X(F6_E2M3, "F6_E2M3", 6) \
	X(F6_E3M2, "F6_E3M2", 6)

enum dtype {
	DTYPE_NONE = 0,
#define DTYPE_ENUM(identifier, name, bits) DTYPE_##identifier,
	DTYPE_LIST(DTYPE_ENUM)
#undef DTYPE_ENUM
		DTYPE_COUNT,
};

/* The safetensors name; "?" for a number that is none. Static. */
const char *dtype_name(uint32_t dtype);

/* Bits of an element; 0 for a number that is none. */
unsigned dtype_bits(uint32_t dtype);

/*
 * The bytes from a tensor's first element to the end of its last. @strides in elements; NULL: row-major,
 * without gaps. Returns false for an unknown dtype, and for sizes that do not fit 64 bits.
 */
bool dtype_extent(uint32_t dtype, const uint64_t *shape, const uint64_t *strides, size_t n_dims,
                  uint64_t *bytes_out);

/* DTYPE_NONE for an unknown name. */
enum dtype dtype_from_name(const char *name);

#endif
