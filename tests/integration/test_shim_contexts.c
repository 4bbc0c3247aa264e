/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contexts, captures and peers under the shim: tests/shim/contexts.c and green_contexts.c, beside a
 * real glaked.
 */

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define DEVICES "3x256MiB"
#define GREEN "tests/shim/green_contexts"

static void begin(void)
{
	world_begin(.devices = DEVICES, .config = "warm_bytes = \"0\";");
}
BEGIN_EACH(begin)

static void run_scenario(const char *environment, const char *scenario)
{
	struct run run;
	run_whole(&run, environment, run_in_build("tests/shim/contexts"), scenario, NULL);
}

START_TEST(contexts_of_all_versions_are_seen)
{
	run_scenario(NULL, "made_by_hand");
}
END_TEST

START_TEST(captures_end_with_streams_and_contexts)
{
	run_scenario(NULL, "captures_end");
}
END_TEST

START_TEST(calls_that_fail_end_no_capture)
{
	run_scenario(NULL, "captures_stay");
}
END_TEST

START_TEST(a_free_during_captures_waits_for_its_context)
{
	run_scenario(NULL, "captures_wait");
}
END_TEST

/* All memory is the driver's, so the next of it has the place of what asked. */
START_TEST(what_asked_the_driver_goes_with_its_context)
{
	run_scenario("GLAKE_SOCKET=/nowhere", "captures_forget");
}
END_TEST

START_TEST(memory_comes_back_during_captures)
{
	struct run run;
	run_until_ready(&run, NULL, run_in_build("tests/shim/contexts"), "captures_go_on", NULL);
	int connection = connection_hello(&harness);
	connection_await_private(connection, 0);
	connection_close(&connection);
	run_finish(&run);
}
END_TEST

START_TEST(all_readers_are_waited_for)
{
	run_scenario(NULL, "readers_count");
}
END_TEST

START_TEST(copies_reach_the_memory_of_all_devices)
{
	run_scenario(NULL, "copies_reach");
}
END_TEST

/* The thread that ends a context learns of it late. */
START_TEST(what_is_of_the_next_context_stays)
{
	run_scenario("CUDASIM_FAULT=cuDevicePrimaryCtxGetState:*:slow=500", "lives_follow");
}
END_TEST

START_TEST(a_context_that_stays_is_used_on)
{
	run_scenario(NULL, "uses_go");
}
END_TEST

static void await_nothing_private(void)
{
	int connection = connection_hello(&harness);
	connection_await_private(connection, 0);
	connection_close(&connection);
}

START_TEST(green_contexts_compute_the_same)
{
	static struct run with;
	static struct run without;
	run_whole(&without, "GLAKE_SHIM=off", run_in_build(GREEN), NULL);
	run_expect(&without, "outlived ");
	run_whole(&with, run_counting(), run_in_build(GREEN), NULL);
	ck_assert_str_eq(with.text, without.text);
	run_expect_owned(80);
	await_nothing_private();
}
END_TEST

START_TEST(memory_of_green_contexts_that_end_comes_back)
{
	struct run run;
	run_whole(&run, NULL, run_in_build(GREEN), "rounds", NULL);
	await_nothing_private();
}
END_TEST

START_TEST(a_free_waits_for_all_green_contexts)
{
	run_scenario(NULL, "green_waits");
}
END_TEST

START_TEST(memory_goes_with_the_last_context)
{
	run_scenario(NULL, "green_last");
}
END_TEST

START_TEST(nothing_is_allocated_in_an_ended_green_context)
{
	run_scenario(NULL, "green_ended");
}
END_TEST

START_TEST(a_reset_under_a_green_context_changes_nothing)
{
	run_scenario(NULL, "green_reset");
}
END_TEST

START_TEST(captures_end_with_green_contexts)
{
	run_scenario(NULL, "green_captures");
}
END_TEST

START_TEST(peers_read_memory_of_green_contexts)
{
	run_scenario(NULL, "green_peers");
}
END_TEST
