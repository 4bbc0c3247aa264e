/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of graphs from glaked (shim/graphmem.h): programs that capture, in sessions that stitch and in others. */
#include <stdlib.h>

#include "tests/check_glake.h"
#include "tests/harness/churn.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define CONFIG "tenants = ({ name = \"default\"; device_bytes = \"64MiB\"; });"

static void run_one(const char *setting, const char *scenario)
{
	struct run run;
	run_whole(&run, setting, run_in_build("tests/shim/graphmem"), scenario, NULL);
}

static void stitching(const char *scenario)
{
	world_begin(.config = CONFIG, .devices = "1x1GiB");
	run_one("GLAKE_ALLOC=stitch", scenario);
}

/* As stitching(), and with the driver's own memory of graphs. */
static void both(const char *scenario)
{
	stitching(scenario);
	run_one("PLAIN=1", scenario);
}

START_TEST(the_memory_of_a_graph_comes_from_glaked)
{
	stitching("memory_is_ours");
}
END_TEST

START_TEST(streams_of_one_capture_do_not_share_memory)
{
	both("streams_of_a_capture_share_nothing");
}
END_TEST

START_TEST(a_graph_gets_no_memory_that_work_uses)
{
	both("work_that_runs_keeps_its_memory");
}
END_TEST

START_TEST(a_launch_writes_to_memory_of_its_graph_only)
{
	both("others_keep_their_bytes");
}
END_TEST

START_TEST(memory_of_a_graph_is_freed_behind_each_launch)
{
	both("it_is_freed_behind_each_launch");
}
END_TEST

START_TEST(memory_of_a_graph_outlives_it)
{
	both("it_outlives_its_graph");
}
END_TEST

START_TEST(memory_of_a_graph_lives_as_long_as_its_copies)
{
	stitching("all_that_is_made_of_it_holds_it");
}
END_TEST

START_TEST(captures_that_fail_give_their_memory_back)
{
	stitching("captures_fail");
}
END_TEST

START_TEST(memory_of_a_graph_is_freed_by_another_one)
{
	both("another_graph_frees_it");
}
END_TEST

START_TEST(memory_of_no_graph_is_served_as_before)
{
	both("other_memory_is_as_before");
}
END_TEST

START_TEST(memory_of_a_graph_ends_with_its_context)
{
	stitching("contexts_end");
}
END_TEST

/* Sizes, streams, captures that are lost, launches, frees in and outside of captures. */
START_TEST_WITH(random_graphs_keep_every_byte, .timeout_s = 300)
{
	struct run run;
	world_begin(.config = "tenants = ({ name = \"default\"; device_bytes = \"20MiB\"; });",
	            .devices = "1x1GiB");
	churn_start(&run, "GLAKE_ALLOC=stitch", "tests/shim/graphmem_random", churn_seed(), 3000);
	churn_end(&run, 1);
}
END_TEST
