/* SPDX-License-Identifier: Apache-2.0 */
/* A program of scenarios, of which its argument names one. */
#ifndef GLAKE_TESTS_SHIM_SCENARIO_H
#define GLAKE_TESTS_SHIM_SCENARIO_H

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/shim/must.h"

struct scenario {
	const char *name;
	void (*run)(void);
};

/* Returns what main() returns. */
static inline int run_scenario(int argc, char **argv, const struct scenario *scenarios, size_t n)
{
	must(argc == 2);
	for (size_t i = 0; i < n; i++) {
		if (strcmp(scenarios[i].name, argv[1]) == 0) {
			scenarios[i].run();
			return 0;
		}
	}
	fprintf(stderr, "no scenario %s\n", argv[1]);
	return 1;
}

#endif
