/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shim, from outside: programs of tests/shim that know nothing of glake, run with it preloaded
 * beside a real glaked, and a driver that is the simulator.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/harness.h"
#include "tests/harness/proxy.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

static void run_scenario(const char *program, const char *way, const char *scenario,
                         const char *argument, const char *want)
{
	struct run run;
	run_whole(&run, NULL, run_in_build(program), way, scenario, argument, NULL);
	if (want) {
		run_expect(&run, want);
	}
}

#define PROGRAM "tests/shim/program"
#define LINKED "tests/shim/linked"

/* ---- ways in ---------------------------------------------------------------------------------- */

START_TEST(all_ways_in_are_owned)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "basic", NULL,
	             "owned all passed 0 refused 0 connects 1 live 0");
	run_scenario(PROGRAM, "proc1", "basic", NULL,
	             "owned all passed 0 refused 0 connects 1 live 0");
	run_scenario(PROGRAM, "proc2", "basic", NULL,
	             "owned all passed 0 refused 0 connects 1 live 0");
	run_scenario(LINKED, "linked", "basic", NULL,
	             "owned all passed 0 refused 0 connects 1 live 0");
}
END_TEST

/*
 * The toolkit's stub library lacks the calls for graphics. libnvcuvid asks for two of them by dlsym() and
 * spins for ever when one is missing: nvJPEG hung in nvjpegCreateEx(). Submissions pass the shim's gate
 * however they were found; other calls that are not hooked go straight to the driver.
 */
START_TEST(calls_are_found)
{
	struct run run;
	world_begin();
	run_whole(&run, NULL, run_in_build(PROGRAM), "proc1", "look_ups", NULL);
	run_expect(&run, "cuMemAlloc_v2 libglake-shim.so");
	run_expect(&run, "cuGLGetDevices_v2 libglake-shim.so");
	run_expect(&run, "cuGraphicsGLRegisterImage libglake-shim.so");
	run_expect(&run, "asked cuLaunchKernel libglake-shim.so");
	run_expect(&run, "asked cuMemcpyHtoD libglake-shim.so");
	run_expect(&run, "asked cuCtxGetCurrent libcuda.so.1");
}
END_TEST

START_TEST(off_is_off)
{
	struct run run;
	world_begin();
	run_whole(&run, "GLAKE_SHIM=off", run_in_build(PROGRAM), "proc2", "basic", NULL);
	run_expect(&run, "owned 0 passed 0 refused 0 connects 0 live 0");
	run_whole(&run, "GLAKE_SHIM_OWN=none", run_in_build(PROGRAM), "dlsym", "basic", NULL);
	run_expect(&run, "owned 0 passed 0 refused 0 connects 0 live 0");
}
END_TEST

START_TEST(without_a_driver_there_is_no_device)
{
	struct run run;
	world_begin();
	run_whole(&run, "GLAKE_LIBCUDA=/nowhere/libcuda.so.1", run_in_build(PROGRAM), "dlsym",
	          "nothing", NULL);
	run_expect(&run, "init 100");
	/* Pointed at itself, it does not go round in circles. */
	char itself[PATH_MAX];
	snprintf(itself, sizeof(itself), "GLAKE_LIBCUDA=%s",
	         run_in_build("lib/glake/libglake-shim.so"));
	run_whole(&run, itself, run_in_build(PROGRAM), "dlsym", "nothing", NULL);
	run_expect(&run, "init 100");
}
END_TEST

#define PATCHER "tests/shim/patcher"

static const struct patcher {
	const char *find;
	const char *jump;
	const char *when; /* NULL: after the first calls */
	const char *counts;
} patchers[] = {
	{"soname", "near", NULL, "owned 14 freed 13\n"},
	{"soname", "far", NULL, "owned 14 freed 13\n"},
	{"soname", "far", "early", "owned 11 freed 10\n"},
	{"name", "near", NULL, "owned 14 freed 13\n"},
};

static void run_patcher(const struct patcher *patcher)
{
	struct run with;
	run_whole(&with, "LD_PRELOAD=", run_in_build("bin/glake"), "run", run_in_build(PATCHER),
	          patcher->find, patcher->jump, patcher->when, NULL);
	run_expect(&with, patcher->counts);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	/* A sanitizer's calls stand first in the simulator's functions, and cannot be moved. */
	struct run without;
	run_whole(&without, "LD_PRELOAD=", run_in_build(PATCHER), patcher->find, patcher->jump,
	          patcher->when, NULL);
	ck_assert_int_eq(strncmp(with.text, without.text, strlen(without.text)), 0);
#endif
}

/* Who patches the driver in place sees all calls of the program, and the program is served. */
START_TEST(entries_are_patched_as_the_drivers)
{
	world_begin();
	setenv("LD_LIBRARY_PATH", run_in_build("cudasim"), 1);
	for (size_t i = 0; i < n_elements(patchers); i++) {
		run_patcher(&patchers[i]);
	}
}
END_TEST

/* A process tree in which nothing uses CUDA: nothing is opened, nothing is said. */
START_TEST(programs_without_cuda_notice_nothing)
{
	static const char command[] =
		"/bin/true && ls /proc/self/fd && (cat /proc/self/maps | grep -c cudasim)";
	struct run with;
	struct run without;
	world_begin();
	run_start(&without, "LD_PRELOAD=", "/bin/sh", "-c", command, NULL);
	run_end(&without);
	run_start(&with, NULL, "/bin/sh", "-c", command, NULL);
	run_end(&with);
	ck_assert_str_eq(with.text, without.text);
	run_expect(&with, "\n0\n");
}
END_TEST

/* ---- what programs do ------------------------------------------------------------------------- */

START_TEST(errors_are_the_drivers)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "errors", NULL, "owned all passed 0");
}
END_TEST

START_TEST(threads_share_it)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "threads", NULL, "passed 0 refused 0 connects 1 live 0");
}
END_TEST

START_TEST(children_start_afresh)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "forks", NULL,
	             "owned all passed 0 refused 0 connects 1 live 0");
	run_scenario(PROGRAM, "dlsym", "storm", NULL, "passed 0 refused 0 connects 1 live 0");
}
END_TEST

START_TEST(a_free_waits_for_the_gpu)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "waits", NULL, NULL);
}
END_TEST

START_TEST(captures_forbid_what_they_do)
{
	struct run run;
	world_begin();
	run_scenario(PROGRAM, "dlsym", "captures", NULL, "owned all passed 0 refused 0");
	run_whole(&run, "GLAKE_SHIM=off", run_in_build(PROGRAM), "proc2", "captures", NULL);
}
END_TEST

START_TEST(memory_goes_with_its_context)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "resets", NULL,
	             "owned all passed 0 refused 0 connects 1 live 0");
}
END_TEST

START_TEST(peers_reach_it)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "peers", NULL, NULL);
}
END_TEST

START_TEST(peers_that_fail_may_try_again)
{
	struct run run;
	world_begin();
	/* The first call is the allocation's own. */
	run_whole(&run, "CUDASIM_FAULT=program/cuMemSetAccess:2:fail=2", run_in_build(PROGRAM),
	          "dlsym", "peers_again", NULL);
}
END_TEST

/* ---- the program's own virtual memory management ---------------------------------------------- */

START_TEST(a_chunk_may_be_most_of_a_gpu)
{
	struct run run;
	world_begin(.devices = "1x100GiB");
	run_whole(&run, NULL, run_in_build(PROGRAM), "dlsym", "vmm_large", NULL);
	run_expect(&run, "owned all passed 0");
}
END_TEST

/* To an older glaked, more than 64 GiB is no size. */
static bool refuse_large(void *user, struct proxy_packet *packet)
{
	Glake__Wire__Request *request = packet->is_answer
	                                        ? NULL
	                                        : glake__wire__request__unpack(
							  NULL, packet->n_bytes, packet->bytes);
	if (request && request->body_case == GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC &&
	    request->chunk_alloc->chunk_bytes > 64 * GIB) {
		request->chunk_alloc->chunk_bytes = 1;
		packet->n_bytes = glake__wire__request__pack(request, packet->bytes);
	}
	if (request) {
		glake__wire__request__free_unpacked(request, NULL);
	}
	return true;
}

/* To glaked, the program's session is this process's, and ends with it. */
static void run_large(void *user)
{
	struct run run;
	proxy_start(refuse_large, NULL);
	run_whole(&run, NULL, run_in_build(PROGRAM), "dlsym", "vmm_large", NULL);
	run_expect(&run, "owned 0 passed 0 refused 0");
}

START_TEST(what_is_too_large_for_an_older_glaked_is_the_drivers)
{
	world_begin(.devices = "1x100GiB");
	world_join(world_client(run_large, NULL));
}
END_TEST

START_TEST(chunks_go_with_their_last_use)
{
	struct run run;
	world_begin();
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "vmm", NULL);
	run_expect(&run, "owned all passed 0");
	int connection = connection_hello(&harness);
	/* All are unmapped and released but one, which is mapped. */
	ck_assert_uint_eq(connection_private_bytes(connection), 4u << 20);
	run_go_on(&run);
	ck_assert_uint_eq(connection_private_bytes(connection), 0);
	connection_close(&connection);
	run_finish(&run);
	/* Without the shim it says the same. */
	run_until_ready(&run, "GLAKE_SHIM=off", run_in_build(PROGRAM), "dlsym", "vmm", NULL);
	run_go_on(&run);
	run_finish(&run);
	run_until_ready(&run, "GLAKE_SOCKET=/nowhere", run_in_build(PROGRAM), "proc2", "vmm", NULL);
	run_expect(&run, "owned 0 passed all");
	run_go_on(&run);
	run_finish(&run);
}
END_TEST

/* ---- in stream order -------------------------------------------------------------------------- */

static void await_private_bytes(uint64_t n_bytes)
{
	int connection = connection_hello(&harness);
	connection_await_private(connection, n_bytes);
	connection_close(&connection);
}

START_TEST(a_stream_has_its_own_memory_again)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "async", NULL,
	             "owned all passed 0 refused 0 connects 1 live 0");
	run_scenario(PROGRAM, "proc2", "async", NULL, "owned all passed 0");
}
END_TEST

START_TEST(streams_may_go)
{
	struct run run;
	world_begin(.config = "warm_bytes = \"0\";", .speed = 5);
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "async_streams", NULL);
	run_expect(&run, "owned all passed 0 refused 0 connects 1 live 0");
	/* Nobody asks for more: what was parked comes back all the same, but for an empty slab. */
	await_private_bytes(2u << 20);
	run_finish(&run);
}
END_TEST

START_TEST(errors_in_stream_order_are_the_drivers)
{
	struct run run;
	world_begin();
	run_scenario(PROGRAM, "proc1", "async_errors", NULL, "owned 4 passed 0 refused 2");
	run_whole(&run, "GLAKE_SHIM=off", run_in_build(PROGRAM), "dlsym", "async_errors", NULL);
	run_whole(&run, "GLAKE_SHIM_OWN=alloc", run_in_build(PROGRAM), "dlsym", "async_errors",
	          NULL);
	run_expect(&run, "owned 2 passed 0 refused 0");
}
END_TEST

START_TEST(captured_streams_are_the_drivers)
{
	struct run run;
	world_begin();
	run_scenario(PROGRAM, "dlsym", "async_captures", NULL,
	             "owned 2 passed 0 refused 0 connects 1 live 0");
	run_whole(&run, "GLAKE_SHIM=off", run_in_build(PROGRAM), "dlsym", "async_captures", "off",
	          NULL);
}
END_TEST

START_TEST(small_allocations_share_what_a_pool_has)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "async_small", NULL, "owned all passed 0");
}
END_TEST

START_TEST(pools_count_what_is_ours)
{
	struct run run;
	world_begin();
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "async_pools", NULL);
	run_expect(&run, "owned all passed 0");
	await_private_bytes(0);
	run_finish(&run);
	run_expect(&run, "owned all passed 0 refused 0 connects 1 live 0 served 3\n"
	                 "owned 3 passed 0 refused 0 connects 1 live 0 served 3\n"
	                 "owned 4 passed 0 refused 0 connects 1 live 0 served 4\n");
}
END_TEST

START_TEST(free_memory_that_is_stitched_from_is_reserved)
{
	struct run run;
	world_begin();
	run_whole(&run, "GLAKE_ALLOC=stitch", run_in_build(PROGRAM), "dlsym", "async_stitched",
	          NULL);
	run_expect(&run, "owned all passed 0");
}
END_TEST

/* Also while another thread gives back what was freed, however long the driver takes. */
START_TEST_WITH(a_pool_is_trimmed_at_once, .n = 2)
{
	struct run run;
	world_begin();
	setenv("CUDASIM_FAULT", "program/cuMemUnmap:%3:slow=5", true);
	run_whole(&run, _i ? "GLAKE_ALLOC=stitch" : NULL, run_in_build(PROGRAM), "dlsym",
	          "async_trimmed", NULL);
}
END_TEST

START_TEST(threads_have_streams)
{
	world_begin();
	run_scenario(PROGRAM, "dlsym", "async_threads", NULL,
	             "passed 0 refused 0 connects 1 live 0");
}
END_TEST

START_TEST(contexts_take_what_is_parked)
{
	struct run run;
	world_begin(.config = "warm_bytes = \"0\";");
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "async_resets", NULL);
	run_expect(&run, "owned all passed 0 refused 0 connects 1 live 0");
	await_private_bytes(2u << 20);
	run_finish(&run);
}
END_TEST

/* ---- glaked comes and goes: programs that take steps ------------------------------------------ */

#define N_STEPS 30
#define N_STEPS_TEXT "30"
/* A sanitizer's glaked needs its time to answer. */
#define SPEED (TEST_SANITIZED ? 1 : 5)

/* The number behind @name in the last line of counts. */
static unsigned run_count(const struct run *run, const char *name)
{
	const char *found = NULL;
	for (const char *at = run->text; (at = strstr(at, name)); at += strlen(name)) {
		found = at + strlen(name);
	}
	ck_assert_msg(found, "no \"%s\" in:\n%s", name, run->text);
	return (unsigned)strtoul(found, NULL, 10);
}

/*
 * The next steps, until glaked has served @n. The shim looks for it once a second, and on a busy machine it
 * may look in vain; the driver serves then.
 */
static void step_until_owned(struct run *run, unsigned n, int *n_steps_left)
{
	run_read(run, "ready");
	while (run_count(run, "served") < n) {
		ck_assert_int_gt((*n_steps_left)--, 0);
		harness_sleep_ms(1100 / SPEED);
		run_go_on(run);
	}
}

/* The rest of its steps, and its end. */
static void run_end_steps(struct run *run, int n_steps_left)
{
	for (; n_steps_left > 0; n_steps_left--) {
		run_go_on(run);
	}
	run_finish(run);
}

START_TEST(streams_outlive_glaked)
{
	struct run run;
	int n_left = N_STEPS;
	world_begin(.speed = SPEED);
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "async_steps", N_STEPS_TEXT,
	                NULL);
	run_expect(&run, "owned all passed 0 refused 0 connects 1");
	harness_kill(&harness);
	run_go_on(&run);
	run_expect(&run, "owned 2 passed 1 refused 0 connects 1");
	world_restart();
	step_until_owned(&run, 3, &n_left);
	run_end_steps(&run, n_left);
	run_expect(&run, "live 0");
}
END_TEST

/* ---- between processes ------------------------------------------------------------------------ */

/* The two handles that ipc_give prints, side by side. */
static void take_handles(const struct run *run, char handles_out[257])
{
	ck_assert_uint_ge(strlen(run->text), 258);
	memcpy(handles_out, run->text, 128);
	memcpy(handles_out + 128, run->text + 129, 128);
	handles_out[256] = '\0';
}

START_TEST(ipc_shares_it)
{
	struct run giver;
	struct run taker;
	char handles[257];
	world_begin();
	run_until_ready(&giver, NULL, run_in_build(PROGRAM), "dlsym", "ipc_give", "written", NULL);
	take_handles(&giver, handles);
	run_whole(&taker, NULL, run_in_build(PROGRAM), "proc2", "ipc_take", handles, NULL);
	run_go_on(&giver);
	/* Freed, the large one is nobody's to open, though its process lives; then all are. */
	run_whole(&taker, NULL, run_in_build(PROGRAM), "dlsym", "ipc_dead", handles + 128, NULL);
	run_finish(&giver);
	run_whole(&taker, NULL, run_in_build(PROGRAM), "dlsym", "ipc_dead", handles, NULL);
}
END_TEST

/* A chunk of another session, as ChunkOpen names it. */
struct chunk_name {
	uint64_t session;
	uint64_t id;
	uint64_t ticket;
};

static Glake__Wire__Status open_chunk(int connection, const struct chunk_name *name)
{
	uint64_t id = name->id;
	return connection_status(connection,
	                         REQUEST(CHUNK_OPEN, ChunkOpen, chunk_open,
	                                 .session = name->session, .ids = &id, .n_ids = 1,
	                                 .ticket = name->ticket),
	                         NULL, 0);
}

/* Another realm, and so another user, gets nothing by a name. */
static void take_elsewhere(struct harness *there, void *user)
{
	int connection = connection_hello(there);
	ck_assert_int_eq(open_chunk(connection, user), GLAKE__WIRE__STATUS__NOT_FOUND);
	connection_close(&connection);
}

/* Sessions of a realm know of each other's memory only what they tell each other. */
START_TEST(chunks_open_with_their_ticket)
{
	uint64_t ids[2];
	world_begin();
	struct connection_identity identity = {0};
	int connection = connection_hello_as(&harness, &identity);
	ck_assert_int_eq(connection_alloc(connection, 0, 2u << 20, 2, ids, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	struct chunk_name name = {.session = identity.session, .id = ids[0]};
	int other = connection_hello(&harness);
	ck_assert_int_eq(open_chunk(other, &name), GLAKE__WIRE__STATUS__NOT_FOUND);
	ck_assert_int_eq(connection_share(connection, &ids[0], 1, &name.ticket),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_ne(name.ticket, 0);
	ck_assert_int_eq(open_chunk(other, &name), GLAKE__WIRE__STATUS__OK);
	if (harness_is_root()) {
		harness_as(&harness, 4711, 4711, take_elsewhere, &name);
	}
	/* Its neighbour was not named, or has another ticket. */
	const struct chunk_name neighbour = {name.session, ids[1], name.ticket};
	ck_assert_int_eq(open_chunk(other, &neighbour), GLAKE__WIRE__STATUS__NOT_FOUND);
	uint64_t ticket;
	ck_assert_int_eq(connection_share(connection, &ids[1], 1, &ticket),
	                 GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_ne(ticket, name.ticket);
	ck_assert_int_eq(open_chunk(other, &neighbour), GLAKE__WIRE__STATUS__NOT_FOUND);
	connection_close(&connection);
	/* The ticket ends with the session that had the chunk. */
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (open_chunk(other, &name) != GLAKE__WIRE__STATUS__NOT_FOUND) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(10);
	}
}
END_TEST

/* ---- quota ------------------------------------------------------------------------------------ */

#define TENANT(bytes) \
	"tenants = ( { name = \"us\"; gids = [ 0 ]; device_bytes = \"" bytes "\"; } );"

START_TEST(the_quota_is_the_device)
{
	world_begin(.config = TENANT("64MiB"));
	/* 64 MiB = 6 * 10 MiB + 4 MiB */
	run_scenario(PROGRAM, "dlsym", "greedy", "10485760",
	             "free 67108864 total 67108864 device 67108864\n"
	             "got 62914560 free 4194304\n");
	run_scenario(PROGRAM, "dlsym", "greedy", "1048576", "got 67108864 free 0\n");
}
END_TEST

START_TEST(the_quota_waits_for_streams)
{
	world_begin(.config = TENANT("64MiB"));
	run_scenario(PROGRAM, "dlsym", "async_greedy", "10485760",
	             "got 62914560\nowned all passed 0 refused 1 connects 1 live 0");
}
END_TEST

START_TEST(without_a_quota_the_device_is)
{
	/* But for the 2 MiB that glaked holds on to. */
	world_begin(.config = "pool = ();");
	run_scenario(PROGRAM, "dlsym", "greedy", "20971520",
	             "free 266338304 total 268435456 device 268435456\n"
	             "got 251658240 free 14680064\n");
}
END_TEST

START_TEST(a_session_too_many_gets_nothing)
{
	struct run first;
	struct run second;
	world_begin_unseen(.config = "tenants = ( { name = \"us\"; gids = [ 0 ]; max_sessions = 1; "
	                             "} );");
	run_until_ready(&first, NULL, run_in_build(PROGRAM), "dlsym", "steps", "1", NULL);
	run_until_ready(&second, NULL, run_in_build(PROGRAM), "dlsym", "steps", "1", NULL);
	run_expect(&first, "result 0 owned all passed 0");
	run_expect(&second, "result 2 owned 0 passed 0 refused 1");
	run_continue(&first);
	run_continue(&second);
	run_end_well(&first);
	run_end_well(&second);
}
END_TEST

/* A program that sleeps on warm memory does not keep it from one that needs it. */
START_TEST(warm_memory_comes_back_on_demand)
{
	struct run sleeper;
	world_begin(.config = "pool = (); pressure = \"wait\"; wait_ms = 3600000;");
	run_until_ready(&sleeper, NULL, run_in_build(PROGRAM), "dlsym", "idle", "104857600", NULL);
	run_scenario(PROGRAM, "dlsym", "greedy", "20971520/251658240", "got 251658240 ");
	run_finish(&sleeper);
}
END_TEST

/* ---- glaked comes and goes -------------------------------------------------------------------- */

START_TEST(without_glaked_the_driver_serves)
{
	struct run run;
	world_begin();
	run_whole(&run, "GLAKE_SOCKET=/nowhere", run_in_build(PROGRAM), "proc2", "basic", NULL);
	run_expect(&run, "owned 0 passed all refused 0 connects 0");
	run_whole(&run, "GLAKE_SHIM_ABSENT=refuse", run_in_build(PROGRAM), "dlsym", "basic", NULL);
	run_expect(&run, "owned all");
}
END_TEST

START_TEST(strictly_nothing_without_glaked)
{
	struct run run;
	world_begin();
	harness_kill(&harness);
	run_until_ready(&run, "GLAKE_SHIM_ABSENT=refuse", run_in_build(PROGRAM), "dlsym", "steps",
	                "1", NULL);
	run_expect(&run, "result 2 owned 0 passed 0 refused 1");
	run_finish(&run);
}
END_TEST

START_TEST(glaked_dies_and_comes_back)
{
	struct run run;
	int n_left = N_STEPS - 1;
	world_begin(.speed = SPEED);
	run_start(&run, NULL, run_in_build(PROGRAM), "dlsym", "steps", N_STEPS_TEXT, NULL);
	step_until_owned(&run, 1, &n_left);
	unsigned n_passed = run_count(&run, "passed");
	harness_kill(&harness);
	run_continue(&run);
	n_left--;
	run_read(&run, "ready");
	run_expect(&run, "result 0 owned 1 passed");
	ck_assert_uint_eq(run_count(&run, "passed"), n_passed + 1);
	world_restart();
	/* The next glaked is found, and stays. */
	step_until_owned(&run, 3, &n_left);
	ck_assert_uint_ge(run_count(&run, "connects"), 2);
	/* All contents are checked at its end. */
	run_end_steps(&run, n_left);
	run_expect(&run, "refused 0");
	run_expect(&run, "live 0");
}
END_TEST

START_TEST(what_a_killed_program_held_comes_back)
{
	struct run run;
	world_begin();
	run_until_ready(&run, NULL, run_in_build(PROGRAM), "dlsym", "steps", "2", NULL);
	int connection = connection_hello(&harness);
	ck_assert_uint_ge(connection_private_bytes(connection), 6u << 20);
	kill(run.pid, SIGKILL);
	ck_assert_int_eq(WTERMSIG(run_end(&run)), SIGKILL);
}
END_TEST

/* The shim in /etc/ld.so.preload, say: glaked and its mover are programs like any other then. */
START_TEST(glaked_does_not_serve_itself)
{
	char preload[PATH_MAX + 16];
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s",
	         run_in_build("lib/glake/libglake-shim.so"));
	const char *env[] = {preload, "ASAN_OPTIONS=verify_asan_link_order=0", NULL};
	world_begin(.env = env);
	run_scenario(PROGRAM, "dlsym", "basic", NULL, "owned all passed 0");
}
END_TEST

/* ---- glake run -------------------------------------------------------------------------------- */

static void run_refused(struct run *run, int status, const char *why)
{
	int ended = run_end(run);
	ck_assert_msg(WIFEXITED(ended) && WEXITSTATUS(ended) == status, "status 0x%x, after:\n%s",
	              ended, run->text);
	run_expect(run, why);
	/* One line. */
	ck_assert_ptr_eq(strchr(run->text, '\n'), run->text + strlen(run->text) - 1);
}

START_TEST(glake_run_runs)
{
	struct run run;
	world_begin();
	run_whole(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", "--strict", "--",
	          run_in_build(PROGRAM), "proc2", "basic", NULL);
	run_expect(&run, "owned all passed 0");
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", "sh", "-c", "exit 42",
	          NULL);
	ck_assert_int_eq(WEXITSTATUS(run_end(&run)), 42);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	run_whole(&run, "LD_PRELOAD=libm.so.6", run_in_build("bin/glake"), "run", "sh", "-c",
	          "echo $LD_PRELOAD", NULL);
	ck_assert_int_eq(strncmp(run.text, "libm.so.6:/", 11), 0);
#endif
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* The settings of PyTorch's allocator, as the user has them, and as the program gets them. */
static const struct {
	const char *option;
	const char *before;
	const char *
		after; /* PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|GLAKE_ALLOC, after a line or none */
} settings[] = {
	{"--alloc=plain", "A=", "||plain\n"},
	{"--optional", "GLAKE_ALLOC=stitch", "backend:cudaMallocAsync||stitch\n"},
	{"--alloc=plain", "GLAKE_ALLOC=stitch", "||plain\n"},
	{"--alloc=stitch", "GLAKE_SHIM=off", "||stitch\n"},
	{"--alloc=stitch", "A=", "backend:cudaMallocAsync||stitch\n"},
	{"--alloc=stitch", "PYTORCH_CUDA_ALLOC_CONF=", "backend:cudaMallocAsync||stitch\n"},
	{"--alloc=stitch", "PYTORCH_ALLOC_CONF=a:[1,2]",
         "|a:[1,2],backend:cudaMallocAsync|stitch\n"},
	{"--alloc=stitch", "PYTORCH_ALLOC_CONF=a:1 , backend : cudaMallocAsync",
         "|a:1 , backend : cudaMallocAsync|stitch\n"},
	{"--alloc=stitch", "PYTORCH_CUDA_ALLOC_CONF=backend:native,a:1",
         "glake: PYTORCH_CUDA_ALLOC_CONF names a backend, which stays; --alloc=stitch is for "
         "backend:cudaMallocAsync\nbackend:native,a:1||stitch\n"},
	{"--alloc=stitch", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
         "glake: PYTORCH_CUDA_ALLOC_CONF: expandable_segments has no effect with --alloc=stitch\n"
         "expandable_segments:True,backend:cudaMallocAsync||stitch\n"},
	{"--alloc=stitch", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
         "expandable_segments:False,backend:cudaMallocAsync||stitch\n"},
};

START_TEST_WITH(glake_run_tells_pytorch, .n = n_elements(settings))
{
	struct run run;
	world_begin();
	run_whole(&run, "LD_PRELOAD=", "/usr/bin/env", settings[_i].before,
	          run_in_build("bin/glake"), "run", settings[_i].option, "sh", "-c",
	          "echo \"$PYTORCH_CUDA_ALLOC_CONF|$PYTORCH_ALLOC_CONF|$GLAKE_ALLOC\"", NULL);
	ck_assert_str_eq(run.text, settings[_i].after);
}
END_TEST

/* PyTorch takes the older name where both are set. */
START_TEST(glake_run_tells_pytorch_by_the_name_that_it_reads)
{
	struct run run;
	world_begin();
	run_whole(&run, "PYTORCH_ALLOC_CONF=backend:native", "/usr/bin/env",
	          "LD_PRELOAD=", "PYTORCH_CUDA_ALLOC_CONF=a:1", run_in_build("bin/glake"), "run",
	          "--alloc=stitch", "sh", "-c",
	          "echo \"$PYTORCH_CUDA_ALLOC_CONF|$PYTORCH_ALLOC_CONF\"", NULL);
	ck_assert_str_eq(run.text, "a:1,backend:cudaMallocAsync|backend:native\n");
}
END_TEST
#endif

static const struct {
	const char *first;
	const char *second;
	int status;
	const char *why;
} refusals[] = {
	{"no-such-program", NULL, 127, "no-such-program: No such file or directory"},
	{"/etc/passwd", NULL, 126, "Permission denied"},
	{"--socket=/nowhere", "sh", 125,
         "cannot connect to glaked at /nowhere: No such file or directory (--optional starts"},
	{"--libcuda=/nowhere/x", "sh", 125, "/nowhere/x: no CUDA driver library"},
	{"--libcuda=/bin/true", "sh", 125, "/bin/true: no CUDA driver library"},
	{"--shim=/nowhere/x", "sh", 125, "/nowhere/x: not found"},
	{"--shim=/etc/passwd", "sh", 125, "/etc/passwd: not glake's preload library"},
	{"--own=vmm,aloc", "sh", 125, "vmm,aloc: must be a list of alloc, async and vmm, or none"},
	{"--alloc=stich", "sh", 125, "stich: must be stitch or plain"},
};

START_TEST(glake_run_says_why_not)
{
	struct run run;
	char path[HARNESS_PATH_BYTES + 16];
	world_begin();
	for (size_t i = 0; i < n_elements(refusals); i++) {
		run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", refusals[i].first,
		          refusals[i].second, NULL);
		run_refused(&run, refusals[i].status, refusals[i].why);
	}
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", "--nope", "sh", NULL);
	ck_assert_int_eq(WEXITSTATUS(run_end(&run)), 125);
	run_expect(&run, "glake: unrecognized option '--nope'\n");
	run_start(&run, "GLAKE_ALLOC=", run_in_build("bin/glake"), "run", "sh", NULL);
	run_refused(&run, 125, ": must be stitch or plain");
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", "--alloc=stitch",
	          "--own=alloc,vmm", "sh", NULL);
	run_refused(&run, 125, "--alloc=stitch: GLAKE_SHIM_OWN lacks async");
	run_start(&run, "GLAKE_SHIM=off", run_in_build("bin/glake"), "run", "--strict", "sh", NULL);
	run_refused(&run, 125, "--strict: GLAKE_SHIM=off is set");

	snprintf(path, sizeof(path), "%s/privileged", harness.folder);
	char copy[PATH_MAX];
	snprintf(copy, sizeof(copy), "cp /bin/true %s && chmod 4755 %s", path, path);
	ck_assert_int_eq(system(copy), 0);
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", path, NULL);
	run_refused(&run, 125, "gains privileges");

	snprintf(path, sizeof(path), "%s/static", harness.folder);
	snprintf(copy, sizeof(copy), "echo 'int main(void){return 0;}' | gcc -x c -static -o %s -",
	         path);
	if (system(copy) == 0) {
		run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", path, NULL);
		run_refused(&run, 125, "statically linked");
	}
}
END_TEST
