/* SPDX-License-Identifier: Apache-2.0 */
/* A condition that holds whatever a fuzzer tries. Where it does not, the fuzzer has found something. */
#ifndef GLAKE_TESTS_FUZZ_MUST_H
#define GLAKE_TESTS_FUZZ_MUST_H

#include <stdio.h>
#include <stdlib.h>

static inline void must_(int holds, const char *file, int line)
{
	if (!holds) {
		fprintf(stderr, "%s:%d does not hold\n", file, line);
		abort();
	}
}
#define must(holds) must_(holds, __FILE__, __LINE__)

#endif
