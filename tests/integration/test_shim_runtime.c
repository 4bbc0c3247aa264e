/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CUDA 13 runtime calls of the driver for memory, streams, events, pools and contexts: tests/shim/
 * runtime.c with the simulated driver alone, and with the shim before it.
 */
#include <limits.h>
#include <stdio.h>

#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define RUNTIME "tests/shim/runtime"

static void compute_with_and_without(const char *argument)
{
	static struct run with;
	static struct run without;
	char alone[PATH_MAX + 16];
	world_begin(.config = "pool = ();");
	snprintf(alone, sizeof(alone), "LD_PRELOAD=%s", run_in_build("cudasim/libcuda.so.1"));
	run_whole(&without, alone, run_in_build(RUNTIME), argument, NULL);
	run_expect(&without, "created ");
	run_whole(&with, run_counting(), run_in_build(RUNTIME), argument, NULL);
	ck_assert_str_eq(with.text, without.text);
	run_expect_owned(15);
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
