/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed memory of programs under the shim: tests/shim/seal.c, beside a real glaked. */
#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "2x1GiB");
}

BEGIN_EACH(begin)

static void run_scenario(const char *scenario)
{
	struct run run;
	run_start(&run, NULL, run_in_build("tests/shim/seal"), scenario, NULL);
	run_end_well(&run);
}

START_TEST(a_linked_program_seals_memory_of_the_driver)
{
	run_scenario("one_library");
}
END_TEST

START_TEST(every_write_by_the_api_gets_its_copy)
{
	run_scenario("all_writes");
}
END_TEST
