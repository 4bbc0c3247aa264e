/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs of tests/shim say when something is not as it must be: a line on stderr, and the end
 * with 1.
 */
#ifndef GLAKE_TESTS_SHIM_MUST_H
#define GLAKE_TESTS_SHIM_MUST_H

#include <stdio.h>
#include <unistd.h>

#define must(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			_exit(1); \
		} \
	} while (0)
#define must_be(call, expected) \
	do { \
		int got_ = (int)(call); \
		if (got_ != (int)(expected)) { \
			fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, got_); \
			_exit(1); \
		} \
	} while (0)
#define must_ok(call) must_be(call, CUDA_SUCCESS)

#endif
