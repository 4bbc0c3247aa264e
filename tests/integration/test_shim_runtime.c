/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CUDA 13 runtime calls of the driver for memory, streams, events, pools and contexts: tests/shim/
 * runtime.c with the simulated driver alone, and with the shim before it.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define RUNTIME "tests/shim/runtime"

static void compute_with_and_without(const char *argument)
{
	static struct run with;
	static struct run without;
	char counts[PATH_MAX];
	char variable[PATH_MAX + 16];
	char alone[PATH_MAX + 16];
	unsigned n_owned = 0;
	unsigned n_passed = 1;
	world_begin(.config = "pool = ();");
	snprintf(alone, sizeof(alone), "LD_PRELOAD=%s", run_in_build("cudasim/libcuda.so.1"));
	run_start(&without, alone, run_in_build(RUNTIME), argument, NULL);
	run_end_well(&without);
	run_expect(&without, "created ");
	snprintf(counts, sizeof(counts), "%s/counts", harness.folder);
	snprintf(variable, sizeof(variable), "SHIM_COUNTS=%s", counts);
	run_start(&with, variable, run_in_build(RUNTIME), argument, NULL);
	run_end_well(&with);
	ck_assert_str_eq(with.text, without.text);
	FILE *file = fopen(counts, "re");
	ck_assert_ptr_nonnull(file);
	ck_assert_int_eq(fscanf(file, "{\"owned\": %u, \"passed\": %u", &n_owned, &n_passed), 2);
	fclose(file);
	ck_assert_uint_ge(n_owned, 15);
	ck_assert_uint_eq(n_passed, 0);
}

START_TEST(what_the_runtime_calls_computes_the_same)
{
	compute_with_and_without(NULL);
}
END_TEST

START_TEST(default_streams_of_threads_compute_the_same)
{
	compute_with_and_without("own");
}
END_TEST
