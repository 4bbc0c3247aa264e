/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams that wait for what the program does next (tests/shim/waits.c): neither the GPU nor a thread of the program may
 * hang because memory comes from glaked.
 */
#include <stdlib.h>

#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define TIGHT "tenants = ({ name = \"default\"; device_bytes = \"64MiB\"; });"

static const char *const scenarios[] = {
	"another_stream_waits",
	"streams_that_block",
	"the_default_stream_lends",
	"a_threads_own_stream_lends",
	"the_lender_waits",
	"a_stream_that_ended_lends",
	"memory_waits_for_the_receive",
	"memory_waits_for_a_batch",
	"threads_go_on",
	"a_waiting_thread_holds_up_nobody",
	"a_free_that_waits",
	"questions",
	"rows",
	"behind_a_capture",
	"memory_of_a_graph",
	"a_lender_is_captured",
	"carved_segments",
	"a_full_gpu",
	"a_full_gpu_and_new_memory",
	"facts",
};

static void run_one(const char *setting, const char *scenario)
{
	struct run run;
	run_whole(&run, setting, run_in_build("tests/shim/waits"), scenario, NULL);
}

/* The driver alone: what the scenario wants is no more than that. */
START_TEST_WITH(the_driver_waits_for_nothing, .n = n_elements(scenarios))
{
	world_begin(.devices = "1x1GiB");
	run_one("GLAKE_SHIM=off", scenarios[_i]);
}
END_TEST

static void run_both(const char *setting, const char *scenario)
{
	world_begin(.config = TIGHT, .devices = "1x1GiB", .speed = 2);
	setenv("TIGHT", "1", 1);
	run_one(setting, scenario);
	unsetenv("TIGHT");
}

START_TEST_WITH(the_shim_waits_for_nothing, .n = n_elements(scenarios))
{
	run_both(NULL, scenarios[_i]);
}
END_TEST

START_TEST_WITH(a_session_that_stitches_waits_for_nothing, .n = n_elements(scenarios))
{
	run_both("GLAKE_ALLOC=stitch", scenarios[_i]);
}
END_TEST

/* Where there is memory enough, nothing has to be out of it. */
START_TEST_WITH(with_memory_enough_nothing_fails, .n = n_elements(scenarios))
{
	world_begin(.devices = "1x1GiB", .speed = 2);
	run_one(NULL, scenarios[_i]);
	run_one("GLAKE_ALLOC=stitch", scenarios[_i]);
}
END_TEST
