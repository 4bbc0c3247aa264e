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

enum dtype dtype_from_name(const char *name)
{
	for (uint32_t dtype = DTYPE_NONE + 1; dtype < DTYPE_COUNT; dtype++) {
		if (strcmp(table[dtype].name, name) == 0) {
			return (enum dtype)dtype;
		}
	}
	return DTYPE_NONE;
}
