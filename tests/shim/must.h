/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every program of tests/shim needs. When something is not as it must be, it says a line on stderr,
 * and ends with 1.
 */
#ifndef GLAKE_TESTS_SHIM_MUST_H
#define GLAKE_TESTS_SHIM_MUST_H

#include <stdio.h>
#include <unistd.h>

#include "tests/bytes.h"

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

static inline void say(const char *line)
{
	puts(line);
	fflush(stdout);
}

/* The test has it go on. */
static inline void wait_for_line(void)
{
	char line[64];
	say("ready");
	must(fgets(line, sizeof(line), stdin));
}

#endif
