/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed memory while the GPU is full: tests/shim/full.c, beside a real glaked. No call hangs. */
#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "1x1GiB",
	            .speed = 5);
}

BEGIN_EACH(begin)

static void run_scenario(const char *scenario)
{
	struct run run;
	run_whole(&run, NULL, run_in_build("tests/shim/full"), scenario, NULL);
}

START_TEST(a_write_comes_back)
{
	run_scenario("writes_come_back");
}
END_TEST

START_TEST(many_writes_come_back_together)
{
	run_scenario("crowds_come_back");
}
END_TEST

START_TEST(a_write_waits_for_work_that_ends)
{
	run_scenario("writes_wait");
}
END_TEST

START_TEST(a_write_finds_a_moment_between_work)
{
	run_scenario("writes_find_a_moment");
}
END_TEST

START_TEST(a_write_waits_for_another_thread_s_call)
{
	run_scenario("writes_wait_for_a_thread");
}
END_TEST

START_TEST(a_write_waits_for_the_gpu_to_copy)
{
	run_scenario("writes_wait_for_their_copy");
}
END_TEST

START_TEST(a_seal_comes_back)
{
	run_scenario("seals_come_back");
}
END_TEST

START_TEST(a_copy_that_is_given_up_harms_nobody)
{
	run_scenario("copies_given_up");
}
END_TEST

START_TEST(zeroes_that_are_given_up_harm_nobody)
{
	run_scenario("zeroes_given_up");
}
END_TEST

/* The library alone: with the shim switched off nothing holds the program's work back. */
START_TEST(unsealing_without_a_gate_comes_back)
{
	struct run run;
	run_whole(&run, "GLAKE_SHIM=off", run_in_build("tests/shim/full"), "without_a_gate", NULL);
}
END_TEST
