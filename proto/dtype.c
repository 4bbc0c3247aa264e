/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/dtype.h"

#include <string.h>

static const struct {
	const char *name;
	unsigned bits;
} table[DTYPE_COUNT] = {[DTYPE_NONE] = {"?", 0},
#define DTYPE_ROW(identifier, name, bits) [DTYPE_##identifier] = {name, bits},
                        DTYPE_LIST(DTYPE_ROW)
#undef DTYPE_ROW
};

const char *dtype_name(uint32_t dtype)
{
	return table[dtype < DTYPE_COUNT ? dtype : DTYPE_NONE].name;
}

unsigned dtype_bits(uint32_t dtype)
{
	return table[dtype < DTYPE_COUNT ? dtype : DTYPE_NONE].bits;
}

static bool has_elements(const uint64_t *shape, size_t n_dims)
{
	for (size_t i = 0; i < n_dims; i++) {
		if (shape[i] == 0) {
			return false;
		}
	}
	return true;
}

bool dtype_extent(uint32_t dtype, const uint64_t *shape, const uint64_t *strides, size_t n_dims,
                  uint64_t *bytes_out)
{
	uint64_t n = 1;
	uint64_t bits = dtype_bits(dtype);
	bool fits = bits != 0;
	if (!has_elements(shape, n_dims)) {
		*bytes_out = 0;
		return fits;
	}
	for (size_t i = 0; fits && i < n_dims; i++) {
		uint64_t more;
		fits = strides ? !__builtin_mul_overflow(shape[i] - 1, strides[i], &more) &&
		                         !__builtin_add_overflow(n, more, &n)
		               : !__builtin_mul_overflow(n, shape[i], &n);
	}
	fits = fits && !__builtin_mul_overflow(n, bits, &bits) && bits <= UINT64_MAX - 7;
	if (fits) {
		*bytes_out = (bits + 7) / 8;
	}
	return fits;
}

enum dtype dtype_from_name(const char *name)
{
	for (uint32_t dtype = DTYPE_NONE + 1; dtype < DTYPE_COUNT; dtype++) {
		if (strcmp(table[dtype].name, name) == 0) {
			return (enum dtype)dtype;
		}
	}
	return DTYPE_NONE;
}
