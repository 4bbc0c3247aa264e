/* SPDX-License-Identifier: Apache-2.0 */
/* The public names of proto/dtype.h. The numbers are the same, which is asserted here. */
#include "proto/dtype.h"

#include "libclient/glake.h"

#define SAME_NUMBER(identifier, name, bits) \
	_Static_assert((int)GLAKE_##identifier == (int)DTYPE_##identifier, name);
DTYPE_LIST(SAME_NUMBER)
#undef SAME_NUMBER
_Static_assert((int)GLAKE_F6_E3M2 + 1 == (int)DTYPE_COUNT, "one side knows more types");

const char *glake_dtype_name(enum glake_dtype dtype)
{
	return dtype_name((uint32_t)dtype);
}

unsigned glake_dtype_bits(enum glake_dtype dtype)
{
	return dtype_bits((uint32_t)dtype);
}
