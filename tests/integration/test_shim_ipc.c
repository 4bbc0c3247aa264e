/* SPDX-License-Identifier: Apache-2.0 */
/* Legacy IPC between two programs under the shim: tests/shim/ipc.c, beside a real glaked. */
#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static void begin(void)
{
	world_begin();
}
BEGIN_EACH(begin)

static void run_scenario(const char *scenario)
{
	struct run run;
	run_whole(&run, NULL, run_in_build("tests/shim/ipc"), scenario, NULL);
}

START_TEST(opened_memory_has_its_facts)
{
	run_scenario("facts");
}
END_TEST

START_TEST(what_is_opened_is_what_was_given)
{
	run_scenario("pieces");
	run_scenario("neighbours");
}
END_TEST

START_TEST(what_is_opened_is_nobody_elses_again)
{
	run_scenario("freed");
}
END_TEST

START_TEST(each_device_has_its_own)
{
	run_scenario("devices");
}
END_TEST

START_TEST(a_forged_handle_leads_nowhere_else)
{
	run_scenario("forged");
}
END_TEST

START_TEST(opened_memory_is_where_it_was_made_while_its_user_sleeps)
{
	struct run run;
	run_until_ready(&run, NULL, run_in_build("tests/shim/ipc"), "asleep", NULL);
	world_put_to_sleep(run.pid);
	run_go_on(&run);
	run_finish(&run);
}
END_TEST

START_TEST(cancelled_threads_hold_up_no_handles)
{
	run_scenario("cancelled");
}
END_TEST
