/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What glaked is told of a program under the shim: what it has of the driver itself, by kind, and its
 * calls. The program is tests/shim/driver_usage.c.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "libclient/glake.h"
#include "libclient/glake_admin.h"
#include "tests/check_glake.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define ARRAYS (8 * MIB + 40000 + 348160)

#define PROGRAM run_in_build("tests/shim/driver_usage")

/* One process's memory on device 0 and its calls, as glaked lists them. */
struct found {
	pid_t pid;
	bool is_there;
	struct glake_session_row row;
	struct glake_session_device device;
};

static int find_pid(void *user, const struct glake_session_row *row)
{
	struct found *found = user;
	if (row->pid != (uint32_t)found->pid) {
		return 0;
	}
	found->is_there = true;
	found->row = *row;
	for (uint32_t i = 0; i < row->n_devices; i++) {
		if (row->devices[i].device == 0) {
			found->device = row->devices[i];
		}
	}
	return 1;
}

static struct found look(pid_t pid)
{
	struct found found = {.pid = pid};
	ck_assert_int_ge(glake_list_sessions(eye, find_pid, &found), 0);
	return found;
}

/* Wait for the report that says so; the next one comes within seconds. */
static struct found wait_report(pid_t pid, uint64_t managed, uint64_t arrays, uint64_t graphs,
                                uint64_t other)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	for (;;) {
		struct found found = look(pid);
		const struct glake_session_device *device = &found.device;
		if (found.is_there && device->managed_bytes == managed &&
		    device->array_bytes == arrays && device->graph_bytes == graphs &&
		    device->other_bytes == other) {
			return found;
		}
		ck_assert_msg(harness_now_ms() < end_ms,
		              "there %d, managed %llu, arrays %llu, graphs %llu, other %llu",
		              found.is_there, (unsigned long long)device->managed_bytes,
		              (unsigned long long)device->array_bytes,
		              (unsigned long long)device->graph_bytes,
		              (unsigned long long)device->other_bytes);
		harness_sleep_ms(20);
	}
}

START_TEST(managed_memory_and_arrays_are_told)
{
	struct run run;
	world_begin(.config = "pool = ();", .speed = 5);
	/* The program has nothing of glaked, and is seen all the same. */
	run_until_ready(&run, NULL, PROGRAM, "managed", "arrays", "wait", "-managed", "-arrays",
	                "wait", NULL);
	struct found found = wait_report(run.pid, 3 * MIB, ARRAYS, 0, 0);
	ck_assert_uint_eq(found.row.reserved_bytes, 0);
	ck_assert_uint_eq(found.row.n_owned, 0);
	struct glake_device_status device = world_device(0);
	ck_assert_uint_eq(device.managed_bytes, 3 * MIB);
	ck_assert_uint_eq(device.array_bytes, ARRAYS);
	run_go_on(&run);
	wait_report(run.pid, 0, 0, 0, 0);
	run_finish(&run);
}
END_TEST

START_TEST(graphs_and_pools_are_asked_for)
{
	struct run run;
	world_begin(.config = "pool = ();", .speed = 5);
	run_until_ready(&run, NULL, PROGRAM, "plain", "graph", "pool", "wait", "-pool", "-plain",
	                "wait", NULL);
	struct found found = wait_report(run.pid, 0, 0, 2 * MIB, 6 * MIB);
	ck_assert_uint_eq(found.row.n_owned, 2);
	ck_assert_uint_eq(found.row.n_passed, 0);
	ck_assert_uint_eq(found.row.live_bytes, 6 * MIB);
	ck_assert_uint_eq(found.row.peak_bytes, 6 * MIB);
	run_go_on(&run);
	found = wait_report(run.pid, 0, 0, 2 * MIB, 0);
	ck_assert_uint_eq(found.row.peak_bytes, 6 * MIB);
	run_finish(&run);
}
END_TEST

START_TEST(what_is_left_to_the_driver_is_told)
{
	struct run run;
	world_begin(.config = "pool = ();", .speed = 5);
	/* 4 MiB, 1 MiB of rows, 2 MiB by handle; managed memory makes a session. */
	run_until_ready(&run, "GLAKE_SHIM_OWN=none", PROGRAM, "managed", "plain", "vmm", "pool",
	                "wait", "-managed", "-plain", "-vmm", "-pool", "wait", NULL);
	struct found found = wait_report(run.pid, 3 * MIB, 0, 0, 13 * MIB);
	ck_assert_uint_eq(found.row.n_owned, 0);
	run_go_on(&run);
	wait_report(run.pid, 0, 0, 0, 0);
	run_finish(&run);
}
END_TEST

static void go_with_context(const char *step)
{
	struct run run;
	world_begin(.config = "pool = ();", .speed = 5);
	run_until_ready(&run, "GLAKE_SHIM_OWN=none", PROGRAM, step, "managed", "arrays", "plain",
	                "vmm", "wait", "reset", "wait", NULL);
	wait_report(run.pid, 3 * MIB, ARRAYS, 0, 7 * MIB);
	run_go_on(&run);
	/* Memory that was made by handle is no context's. */
	wait_report(run.pid, 0, 0, 0, 2 * MIB);
	run_finish(&run);
}

START_TEST(what_goes_with_its_context_is_gone)
{
	go_with_context("nothing");
}
END_TEST

/* Memory that a green context made is the primary context's. */
START_TEST(what_a_green_context_made_goes_with_the_primary)
{
	go_with_context("green");
}
END_TEST

START_TEST(without_glaked_all_works_as_before)
{
	struct run run;
	world_begin(.config = "pool = ();", .speed = 5);
	run_whole(&run, "GLAKE_SOCKET=/nonexistent/glaked.sock", PROGRAM, "managed", "arrays",
	          "plain", "vmm", "pool", "graph", "-managed", "-arrays", "-plain", "-vmm", "-pool",
	          "managed", "arrays", "reset", NULL);
	ck_assert_str_eq(run.text, "");
}
END_TEST

/* The shim's thread has begun to ask the driver, which takes long, when a capture begins. */
START_TEST(asking_the_driver_ends_no_capture)
{
	struct run run;
	world_begin(.config = "pool = ();", .speed = 5);
	run_until_ready(&run, "CUDASIM_FAULT=cuDeviceGetGraphMemAttribute:*:slow=3000", PROGRAM,
	                "pool", "managed", "capture", "wait", NULL);
	wait_report(run.pid, 3 * MIB, 0, 0, 6 * MIB);
	run_finish(&run);
}
END_TEST

/* glakectl, which is what people see, shows it as well. */
START_TEST(glakectl_shows_it)
{
	struct run run;
	char command[1024];
	char text[8192];
	world_begin(.config = "pool = ();", .speed = 5);
	run_until_ready(&run, NULL, PROGRAM, "plain", "managed", "arrays", "wait", NULL);
	wait_report(run.pid, 3 * MIB, ARRAYS, 0, 0);
	snprintf(command, sizeof(command), "%s --socket %s sessions --json",
	         run_in_build("bin/glakectl"), harness.socket_path);
	FILE *pipe = popen(command, "r");
	ck_assert_ptr_nonnull(pipe);
	text[fread(text, 1, sizeof(text) - 1, pipe)] = '\0';
	ck_assert_int_eq(pclose(pipe), 0);
	json_t *document = json_loads(text, 0, NULL);
	size_t i;
	json_t *row;
	json_t *found = NULL;
	json_array_foreach(json_object_get(document, "sessions"), i, row)
	{
		if (json_integer_value(json_object_get(row, "pid")) == run.pid) {
			found = row;
		}
	}
	ck_assert_msg(found != NULL, "%s", text);
	ck_assert_str_eq(json_string_value(json_object_get(found, "program")), "driver_usage");
	ck_assert_int_eq(json_integer_value(json_object_get(found, "n_owned")), 2);
	ck_assert_int_eq(json_integer_value(json_object_get(found, "driver_bytes")), ARRAYS);
	json_t *device = json_array_get(json_object_get(found, "devices"), 0);
	ck_assert_int_eq(json_integer_value(json_object_get(device, "array_bytes")), ARRAYS);
	ck_assert_int_eq(json_integer_value(json_object_get(device, "managed_bytes")), 3 * MIB);
	json_decref(document);
	run_finish(&run);
}
END_TEST
