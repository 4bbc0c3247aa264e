/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed memory of programs under the shim: tests/shim/seal.c, beside a real glaked. */
#include <stdlib.h>

#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static void begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "2x1GiB");
}

/* Ten seconds of patience are two. */
static void begin_fast(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\";", .devices = "2x1GiB",
	            .speed = 5);
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

START_TEST(a_session_of_the_program_uses_the_real_driver)
{
	struct run run;
	setenv("LD_LIBRARY_PATH", run_in_build("cudasim"), 1);
	run_start(&run, "GLAKE_LIBCUDA=", run_in_build("tests/shim/seal"), "own_session", NULL);
	run_end_well(&run);
}
END_TEST

START_TEST(memory_of_the_driver_is_published)
{
	run_scenario("weights");
}
END_TEST

START_TEST(stitched_memory_is_sealed_beside_other_work)
{
	struct run run;
	run_start(&run, "GLAKE_ALLOC=stitch", run_in_build("tests/shim/seal"), "stitched", NULL);
	run_end_well(&run);
}
END_TEST

START_TEST(every_write_by_the_api_gets_its_copy)
{
	run_scenario("all_writes");
}
END_TEST

START_TEST(writes_of_graphs_get_their_copies)
{
	run_scenario("graphs");
}
END_TEST

START_TEST(nodes_may_be_told_to_write_to_sealed_memory)
{
	run_scenario("sealed_destinations");
}
END_TEST

START_TEST(names_of_sealed_memory_end_the_sealing)
{
	run_scenario("names");
}
END_TEST

START_TEST(memory_of_the_driver_that_a_program_maps_stays_private)
{
	struct run run;
	run_start(&run, "GLAKE_SHIM_OWN=alloc,async", run_in_build("tests/shim/seal"),
	          "own_mappings", NULL);
	run_end_well(&run);
}
END_TEST

START_TEST(a_sealed_number_that_is_exported_is_private)
{
	run_scenario("numbers_given");
}
END_TEST

START_TEST(a_call_for_two_reservations_finds_sealed_memory_in_both)
{
	run_scenario("side_by_side");
}
END_TEST

START_TEST(a_thread_is_not_cancelled_within_a_change)
{
	struct run run;
	run_start(&run,
	          "CUDASIM_FAULT=cuMemMap:*:slow=10,cuMemSetAccess:*:slow=10,cuMemUnmap:*:slow=10",
	          run_in_build("tests/shim/seal"), "cancelled", NULL);
	run_end_well(&run);
}
END_TEST

START_TEST(what_a_number_names_is_sealed_wherever_it_is_mapped)
{
	run_scenario("numbers");
}
END_TEST

START_TEST(a_peer_reads_sealed_memory)
{
	run_scenario("peers");
}
END_TEST

START_TEST(writes_to_sealed_memory_are_captured)
{
	run_scenario("captures");
}
END_TEST

START_TEST_WITH(a_captured_copy_beside_other_work_says_so, .begin = begin_fast)
{
	run_scenario("captures_beside_work");
}
END_TEST

START_TEST_WITH(a_captured_copy_waits_for_earlier_work, .begin = begin_fast)
{
	run_scenario("captures_behind_work");
}
END_TEST

START_TEST_WITH(a_write_does_not_wait_for_ever, .begin = begin_fast)
{
	run_scenario("work_under_way");
}
END_TEST

START_TEST(sealing_says_how_long_it_held_work_back)
{
	run_scenario("held_back");
}
END_TEST

START_TEST(work_is_held_back_for_milliseconds_at_a_time)
{
	struct run run;
	run_start(&run, "CUDASIM_FAULT=cuMemSetAccess:*:slow=1", run_in_build("tests/shim/seal"),
	          "in_pieces", NULL);
	run_end_well(&run);
}
END_TEST

START_TEST(sealing_of_idle_memory_waits_for_nothing)
{
	run_scenario("idle");
}
END_TEST

START_TEST(many_threads_write_at_once)
{
	run_scenario("crowd");
}
END_TEST

START_TEST(two_threads_write_while_a_third_seals)
{
	run_scenario("two_writers");
}
END_TEST

/* Each copy takes a while, and whoever ends a context comes between two of them. */
START_TEST(a_write_gets_its_copies_while_contexts_end)
{
	struct run run;
	run_start(&run, "CUDASIM_FAULT=cuMemcpyDtoDAsync:*:slow=10,cuCtxDestroy:*:slow=100",
	          run_in_build("tests/shim/seal"), "contexts_end", NULL);
	run_end_well(&run);
}
END_TEST

START_TEST(a_write_without_memory_fails_as_an_allocation)
{
	struct run run;
	run_start(&run, NULL, run_in_build("tests/shim/seal"), "poor", NULL);
	run_read(&run, "ready");
	assert_ok(glake_set_quota(eye, "default", 0, 4 * MIB));
	assert_ok(glake_set_host_quota(eye, "default", 0, 1));
	run_go_on(&run);
	assert_ok(glake_set_quota(eye, "default", 0, 512 * MIB));
	run_finish(&run);
}
END_TEST

static int add_host_bytes(void *user, const struct glake_session_row *row)
{
	*(uint64_t *)user += row->host_bytes;
	return 0;
}

static uint64_t host_bytes(void)
{
	uint64_t n_bytes = 0;
	assert_ok(glake_list_sessions(eye, add_host_bytes, &n_bytes));
	return n_bytes;
}

/* Memory that has gone to the host is at the same addresses, also after a sleep, and comes back by itself. */
START_TEST_WITH(a_write_while_the_gpu_is_full_goes_to_host_memory, .n = 3)
{
	struct run run;
	setenv("GLAKE_SHIM_SAY", "refused", 1);
	run_start(&run, _i == 1 ? "GLAKE_ALLOC=stitch" : NULL, run_in_build("tests/shim/seal"),
	          "refuge", NULL);
	run_read(&run, "ready");
	assert_ok(glake_set_quota(eye, "default", 0, 4 * MIB));
	run_continue(&run);
	run_read(&run, "in host memory, and slow");
	run_read(&run, "ready");
	ck_assert_uint_eq(host_bytes(), 4 * MIB);
	if (_i == 2) {
		world_put_to_sleep(run.pid);
	}
	/* The program reads the memory, and wakes if it sleeps. */
	run_go_on(&run);
	ck_assert_uint_eq(host_bytes(), 4 * MIB);
	assert_ok(glake_set_quota(eye, "default", 0, 512 * MIB));
	run_read(&run, "is on the GPU again");
	ck_assert_uint_eq(host_bytes(), 0);
	run_finish(&run);
}
END_TEST

/* Take all that the driver has free of device 0, as somebody of whom glaked knows nothing. */
static CUmemGenericAllocationHandle take_the_rest(void)
{
	const CUmemAllocationProp plain = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
	};
	CUmemGenericAllocationHandle handle;
	size_t n_bytes = 1024 * MIB;
	while (drv.cuMemCreate(&handle, n_bytes, &plain, 0) != CUDA_SUCCESS) {
		ck_assert_uint_gt(n_bytes -= 2 * MIB, 0);
	}
	return handle;
}

/* What the driver has given out of device 0 beside glaked's chunks: the mover's. */
static uint64_t bytes_of_others(void)
{
	return world_used_bytes(0) - world_device(0).physical_bytes;
}

/* The first block waits, as the books have room: another program's memory might be on its way. */
START_TEST(a_write_to_many_blocks_waits_for_room_once)
{
	struct run runs[2];
	uint64_t n_bytes = 0;
	world_open_driver();
	for (unsigned i = 0; i < 2; i++) {
		run_start(&runs[i], NULL, run_in_build("tests/shim/seal"), "one_refuge", NULL);
		run_read(&runs[i], "ready");
		n_bytes = i == 0 ? bytes_of_others() : n_bytes;
	}
	/* Memory that was equal goes a moment after the answer. */
	while (bytes_of_others() != n_bytes) {
		harness_sleep_ms(1);
	}
	CUmemGenericAllocationHandle rest = take_the_rest();
	uint64_t n_waits = world_metric("memory_waits");
	run_go_on(&runs[0]);
	ck_assert_uint_eq(host_bytes(), 16 * MIB);
	ck_assert_uint_eq(world_metric("memory_waits"), n_waits + 1);
	ck_assert_int_eq(drv.cuMemRelease(rest), CUDA_SUCCESS);
	run_finish(&runs[0]);
	run_go_on(&runs[1]);
	run_finish(&runs[1]);
}
END_TEST

START_TEST(a_program_writes_to_sealed_memory_of_a_dead_glaked)
{
	struct run run;
	run_start(&run, NULL, run_in_build("tests/shim/seal"), "orphaned", NULL);
	run_read(&run, "ready");
	harness_kill(&harness);
	run_go_on(&run);
	world_restart();
	run_finish(&run);
}
END_TEST

START_TEST(sealed_memory_ends_as_any)
{
	struct run run;
	run_start(&run, NULL, run_in_build("tests/shim/seal"), "ends", NULL);
	for (unsigned i = 0; i < 6; i++) {
		run_read(&run, "ready");
		struct books want = world_books();
		ck_assert_uint_eq(want.used_block_bytes, 0);
		run_continue(&run);
	}
	run_end_well(&run);
}
END_TEST
