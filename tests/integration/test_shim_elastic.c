/* SPDX-License-Identifier: Apache-2.0 */
/* Elastic ranges of programs under the shim: tests/shim/elastic.c, beside a real glaked. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG, .devices = "1x256MiB");
}

BEGIN_EACH(begin)

static void run_scenario(const char *scenario)
{
	struct run run;
	run_whole(&run, NULL, run_in_build("tests/shim/elastic"), scenario, NULL);
}

START_TEST(what_others_know_is_not_kept_for_an_heir)
{
	struct run run;
	run_start(&run, NULL, run_in_build("tests/shim/elastic"), "what_others_know_is_not_kept",
	          NULL);
	ck_assert_int_eq(WTERMSIG(run_end(&run)), SIGKILL);
	run_scenario("what_nobody_knows_is_kept");
}
END_TEST

START_TEST(what_others_know_is_not_given)
{
	run_scenario("what_others_know_is_not_given");
}
END_TEST

START_TEST(what_others_know_is_not_given_for_a_guard)
{
	run_scenario("what_others_know_is_not_given_for_a_guard");
}
END_TEST

START_TEST(nobody_is_given_a_guard)
{
	run_scenario("nobody_is_given_a_guard");
}
END_TEST

START_TEST(a_second_place_has_no_name)
{
	run_scenario("a_second_place_beside_holes");
	run_scenario("a_second_place_beside_guards");
}
END_TEST

START_TEST(what_others_own_has_no_name)
{
	run_scenario("what_others_own_has_no_name");
}
END_TEST
