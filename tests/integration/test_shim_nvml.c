/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML under `glake run`, from outside: a program that knows nothing of glake, a real glaked, and a
 * libnvidia-ml.so.1 and a driver that are simulators.
 */
#include <signal.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/glake.h"
#include "proto/cleanup.h"
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

/* The simulated devices, as NVML writes them. */
#define GPU_0 "GPU-63756461-7369-6d2d-7575-69642d9a5e00"
#define GPU_1 "GPU-63756461-7369-6d2d-7575-69642d9a5e01"
/* Device 0: 256 MiB, of which 32 are reserved and 64 free. Device 1: half of that. */
#define DEVICES GPU_0 "=67108864 " GPU_1 "=33554432"
#define MEMORY_0 \
	"memory 0 total 268435456 free 67108864 used 201326592 " \
	"reserved 33554432 free 67108864 used 167772160\n"
#define MEMORY_1 \
	"memory 1 total 134217728 free 33554432 used 100663296 " \
	"reserved 16777216 free 33554432 used 83886080\n"
#define TENANT(rules) "pool = (); tenants = ( { name = \"us\"; gids = [ 0 ]; " rules " } );"
#define QUOTA TENANT("device_bytes = \"48MiB\";")

#define PROGRAM run_in_build("tests/shim/nvml")

static void use_nvmlsim(void)
{
	setenv("GLAKE_LIBNVML", run_in_build("nvmlsim/libnvidia-ml.so.1"), 1);
	setenv("NVMLSIM_DEVICES", DEVICES, 1);
}

static void begin(const char *config)
{
	world_begin(.config = config);
	use_nvmlsim();
}

/* Under `glake run`, with @extra set for the program alone; then the arguments, ended by NULL. */
#define run_glake(run, extra, ...) \
	run_start(run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", "--optional", "env", \
	          extra, __VA_ARGS__)

static void must_say(const char *extra, const char *scenario, const char *then, const char *want)
{
	struct run run;
	run_glake(&run, extra, PROGRAM, "init", scenario, then, NULL);
	run_end_well(&run);
	run_expect(&run, want);
}

/* ---- how much there is ------------------------------------------------------------------------ */

START_TEST(the_quota_is_the_device)
{
	begin(QUOTA);
	/* Device 1 has less free than the quota leaves. */
	must_say("A=B", "memory", "connects",
	         "init 0\n"
	         "memory 0 total 50331648 free 50331648 used 0 reserved 0 free 50331648 used 0\n"
	         "wrong version 25\n"
	         "memory 1 total 50331648 free 33554432 used 16777216 "
	         "reserved 0 free 33554432 used 16777216\n"
	         "wrong version 25\n"
	         "connects 4\n");
	/* NVML says what the tenant has, whoever in it. */
	int connection = connection_hello(&harness);
	uint64_t ids[2];
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	ck_assert_int_eq(connection_alloc(connection, 0, 8 * MIB, 2, ids, &fds),
	                 GLAKE__WIRE__STATUS__OK);
	must_say("A=B", "memory", NULL,
	         "memory 0 total 50331648 free 33554432 used 16777216 "
	         "reserved 0 free 33554432 used 16777216\n");
}
END_TEST

START_TEST(without_a_quota_the_device_is)
{
	begin("pool = ();");
	must_say("A=B", "memory", "connects",
	         "init 0\n" MEMORY_0 "wrong version 25\n" MEMORY_1
	         "wrong version 25\nconnects 4\n");
}
END_TEST

/* Chunks that were made ahead are used on the device, and free to whoever asks. */
START_TEST(what_glaked_keeps_ready_is_free)
{
	begin("pool = ( { chunk_bytes = \"2MiB\"; n_chunks = 8; } );");
	struct glake_device_view view = {.size = sizeof(view)};
	for (unsigned i = 0; view.idle_bytes != 16 * MIB; i++) {
		ck_assert_uint_lt(i, 1000);
		ck_assert_int_eq(glake_device_view(eye, 0, &view), 0);
		harness_sleep_ms(5);
	}
	must_say("A=B", "memory", NULL,
	         "memory 0 total 268435456 free 83886080 used 184549376 "
	         "reserved 33554432 free 83886080 used 150994944\n");
}
END_TEST

/* 256 MiB, of which 200 are others' and 2 its own. */
START_TEST(what_glaked_leaves_to_others_is_not_free)
{
	begin("pool = (); reserve_bytes = \"200MiB\";");
	must_say("A=B", "memory", NULL,
	         "memory 0 total 268435456 free 56623104 used 211812352 "
	         "reserved 33554432 free 56623104 used 178257920\n");
}
END_TEST

START_TEST(the_driver_is_told_the_same)
{
	begin(QUOTA);
	/* 48 - 10, and the 20 that were freed are the program's again. */
	must_say("A=B", "agrees", NULL, "agree total 50331648 free 39845888\n");
}
END_TEST

/* As a quota of the program alone, whoever has the rest of the device. */
START_TEST(a_promise_is_the_device)
{
	begin("pool = ();");
	must_say("GLAKE_PROMISE=48MiB", "agrees", NULL, "agree total 50331648 free 39845888\n");
	must_say("GLAKE_PROMISE=48MiB", "memory", NULL,
	         "memory 0 total 50331648 free 50331648 used 0 reserved 0 free 50331648 used 0\n"
	         "wrong version 25\n"
	         "memory 1 total 50331648 free 50331648 used 0 reserved 0 free 50331648 used 0\n"
	         "wrong version 25\n");
}
END_TEST

/* ---- who has it ------------------------------------------------------------------------------- */

#define ROWS(list, rows) list " 0:" rows "\n" list "_v2 0:" rows "\n" list "_v3 0:" rows "\n"
#define ALL_ROWS(rows) \
	ROWS("nvmlDeviceGetComputeRunningProcesses", rows) \
	ROWS("nvmlDeviceGetGraphicsRunningProcesses", rows) \
	ROWS("nvmlDeviceGetMPSComputeRunningProcesses", rows) \
	"details 0:" rows "\n"

START_TEST(a_row_has_what_its_process_has)
{
	begin(QUOTA);
	setenv("NVMLSIM_PROCESSES", GPU_0 ":self=1000 " GPU_0 ":1=7 " GPU_1 ":self=2000", 1);
	must_say("A=B", "processes", NULL,
	         "init 0\n" ALL_ROWS(" self 1000 1 7") ALL_ROWS(" self 2000"));
	/* 10 MiB, on device 0. */
	must_say("A=B", "allocates", "processes",
	         "init 0\n" ALL_ROWS(" self 10486760 1 7") ALL_ROWS(" self 2000"));
	setenv("NVMLSIM_PROCESSES", GPU_0 ":self=-", 1);
	must_say("A=B", "allocates", "processes", "init 0\n" ALL_ROWS(" self -1") ALL_ROWS(""));
}
END_TEST

START_TEST(rows_of_processes_and_devices_are_their_own)
{
	struct run other;
	struct run run;
	char rows[160];
	begin(QUOTA);
	run_glake(&other, "A=B", PROGRAM, "allocates", "wait", NULL);
	run_read(&other, "ready");
	snprintf(rows, sizeof(rows), GPU_0 ":%d=1000 " GPU_0 ":self=7 " GPU_1 ":self=9",
	         (int)other.pid);
	setenv("NVMLSIM_PROCESSES", rows, 1);
	/* Each device's memory is in its own rows. */
	run_glake(&run, "A=B", PROGRAM, "init", "allocates", "elsewhere", "processes", NULL);
	run_end_well(&run);
	snprintf(rows, sizeof(rows), "details 0: %d 10486760 self 10485767\n", (int)other.pid);
	run_expect(&run, rows);
	run_expect(&run, ALL_ROWS(" self 6291465"));
	run_finish(&other);
}
END_TEST

/* glaked knows it by another number, and the others' numbers mean nothing to it. */
START_TEST(in_a_container_a_process_finds_itself)
{
	struct run other;
	struct run run;
	char rows[160];
	if (!harness_is_root()) {
		return;
	}
	if (system("unshare --pid --fork --mount-proc true") != 0) {
		puts("SKIP: no namespaces here");
		return;
	}
	begin(QUOTA);
	run_glake(&other, "A=B", PROGRAM, "allocates", "wait", NULL);
	run_read(&other, "ready");
	snprintf(rows, sizeof(rows), GPU_0 ":%d=1000 " GPU_0 ":self=7", (int)other.pid);
	setenv("NVMLSIM_PROCESSES", rows, 1);
	run_whole(&run, "LD_PRELOAD=", "/usr/bin/env", "unshare", "--pid", "--fork", "--mount-proc",
	          run_in_build("bin/glake"), "run", "--optional", PROGRAM, "init", "allocates",
	          "processes", NULL);
	snprintf(rows, sizeof(rows), "details 0: %d 1000 self 10485767\n", (int)other.pid);
	run_expect(&run, rows);
	run_finish(&other);
}
END_TEST

/* ---- where NVML's own answer stands ----------------------------------------------------------- */

START_TEST(it_can_be_switched_off)
{
	begin(QUOTA);
	must_say("GLAKE_SHIM=off", "memory", "connects", MEMORY_1 "wrong version 25\nconnects 0\n");
	must_say("GLAKE_SHIM_OWN=none", "memory", "connects",
	         MEMORY_1 "wrong version 25\nconnects 0\n");
	/* As it is set before `glake run`, for everything. */
	setenv("GLAKE_SHIM", "off", 1);
	must_say("A=B", "memory", "connects", MEMORY_1 "wrong version 25\nconnects 0\n");
	struct run run;
	run_glake(&run, "A=B", run_in_build("tests/shim/program"), "dlsym", "basic", NULL);
	run_end_well(&run);
	run_expect(&run, "owned 0 passed 0 refused 0 connects 0 live 0");
}
END_TEST

START_TEST(without_glaked_it_is_nvmls)
{
	struct run run;
	begin(QUOTA);
	setenv("NVMLSIM_PROCESSES", GPU_0 ":self=1000", 1);
	must_say("GLAKE_SOCKET=/nowhere", "memory", "processes",
	         "init 0\n" MEMORY_0 "wrong version 25\n" MEMORY_1
	         "wrong version 25\n" ALL_ROWS(" self 1000") ALL_ROWS(""));
	/* glaked may come and go. */
	run_glake(&run, "A=B", PROGRAM, "init", "memory", "wait", "memory", "wait", "memory", NULL);
	run_read(&run, "ready");
	run_expect(&run, "memory 0 total 50331648 ");
	harness_kill(&harness);
	run_go_on(&run);
	run_expect(&run, MEMORY_0);
	world_restart();
	run_finish(&run);
	run_expect(&run, "memory 0 total 50331648 ");
}
END_TEST

START_TEST(a_session_too_many_is_told_what_nvml_says)
{
	/* Each question is a session: that of the one before may not have ended yet. */
	world_begin_unseen(.config = TENANT("device_bytes = \"48MiB\"; max_sessions = 2;"));
	use_nvmlsim();
	must_say("A=B", "memory", NULL, "memory 0 total 50331648 ");
	connection_await_hello(&harness);
	connection_await_hello(&harness);
	must_say("A=B", "memory", "connects", MEMORY_1 "wrong version 25\nconnects 0\n");
}
END_TEST

START_TEST(devices_that_glaked_does_not_have_are_nvmls)
{
	begin(QUOTA);
	setenv("NVMLSIM_DEVICES",
	       "MIG-63756461-7369-6d2d-7575-69642d9a5e00=67108864 "
	       "GPU-00000000-7369-6d2d-7575-69642d9a5e00=33554432",
	       1);
	must_say("A=B", "memory", NULL,
	         "init 0\n" MEMORY_0 "wrong version 25\n" MEMORY_1 "wrong version 25\n");
}
END_TEST

/* ---- libraries -------------------------------------------------------------------------------- */

START_TEST(without_nvml_there_is_none)
{
	struct run run;
	char extra[PATH_MAX];
	static const char said[] = "init 12\ncount 12\nname 12\nshutdown 12\n"
				   "\"NVML Shared Library Not Found\", \"Unknown Error\"\n"
				   "connects 0\n";
	begin(NULL);
	setenv("GLAKE_LIBNVML", "/nowhere/libnvidia-ml.so.1", 1);
	/* As without us. */
	must_say("A=B", "memory", NULL, "no libnvidia-ml.so.1\n");
	/* Preloaded all the same, and pointed at itself. */
	snprintf(extra, sizeof(extra), "LD_PRELOAD=%s", run_in_build("lib/glake/libglake-nvml.so"));
	run_whole(&run, extra, PROGRAM, "absent", "connects", NULL);
	ck_assert_str_eq(run.text, said);
	setenv("GLAKE_LIBNVML", strchr(extra, '/'), 1);
	run_whole(&run, extra, PROGRAM, "absent", "connects", NULL);
	ck_assert_str_eq(run.text, said);
	/* One that does not have all calls: nvmlDeviceGetName, say. */
	setenv("GLAKE_LIBNVML", run_in_build("nvmlsim/libnvidia-ml.so.1"), 1);
	must_say("A=B", "absent", NULL, "count 0\nname 13\nshutdown 0\n");
}
END_TEST

/* One that does not answer is waited for once: what is asked next is NVML's to answer. */
START_TEST(a_hung_glaked_is_left_alone)
{
	struct run run;
	char preload[PATH_MAX + 16];
	world_begin(.config = QUOTA, .speed = 5);
	use_nvmlsim();
	setenv("NVMLSIM_PROCESSES", GPU_0 ":self=1000", 1);
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", run_in_build("clocksim.so"));
	run_until_ready(&run, preload, run_in_build("bin/glake"), "run", "--optional", PROGRAM,
	                "init", "wait", "memory", NULL);
	uint64_t n_sessions = world_metric("sessions_total");
	harness_signal(&harness, SIGSTOP);
	run_finish(&run);
	run_expect(&run, MEMORY_0);
	run_expect(&run, MEMORY_1);
	harness_signal(&harness, SIGCONT);
	world_wait_metric("sessions_total", n_sessions + 1);
}
END_TEST

/* A process tree in which nobody asks NVML: nothing is opened, nothing is said. */
START_TEST(programs_without_nvml_notice_nothing)
{
	static const char command[] = "ls /proc/self/fd && grep -c -e nvmlsim -e cudasim "
				      "/proc/self/maps; echo $LD_PRELOAD | grep -c libnvidia-ml";
	struct run with;
	struct run without;
	begin(NULL);
	run_start(&without, "LD_PRELOAD=", "/bin/sh", "-c", command, NULL);
	run_end(&without);
	run_glake(&with, "A=B", "/bin/sh", "-c", command, NULL);
	run_end_well(&with);
	run_expect(&with, "\n0\n1\n");
	with.text[strlen(with.text) - 2] = '0';
	ck_assert_str_eq(with.text, without.text);
}
END_TEST

/* ---- what programs do ------------------------------------------------------------------------- */

START_TEST(it_leaves_nothing_open_and_cuda_alone)
{
	begin(QUOTA);
	must_say("A=B", "leaves", "connects", "fds 0 driver 0\nconnects 10\n");
}
END_TEST

START_TEST(children_may_ask_and_use_cuda)
{
	begin(QUOTA);
	setenv("NVMLSIM_PROCESSES", GPU_0 ":self=1000", 1);
	struct run run;
	run_glake(&run, "A=B", PROGRAM, "init", "memory", "forks", "memory", NULL);
	run_end_well(&run);
	run_expect(&run, ALL_ROWS(" self 10486760"));
}
END_TEST

START_TEST(threads_ask_at_once)
{
	begin(QUOTA);
	setenv("NVMLSIM_PROCESSES", GPU_0 ":self=1000", 1);
	must_say("A=B", "threads", "connects", "connects 800\n");
}
END_TEST
