/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unmodified programs under one quota: what one keeps warm another gets, whatever the first one
 * does; who has to wait gets what is freed; and when it is not enough for all, each is served or
 * refused, and nothing hangs or stays behind. And what is left is said rightly.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/cleanup.h"
#include "proto/limits.h"
#include "proto/wire.h"
#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define PROGRAM "tests/shim/quota"
#define DEVICES "1x2GiB"
#define TENANT(bytes) \
	"warm_bytes = \"1GiB\"; pool = ();" \
	"tenants = ({ name = \"default\"; device_bytes = \"" bytes "\"; });"
/* Longer than any test may last: who is refused was not refused for its time. */
#define WAIT "pressure = \"wait\"; wait_ms = 3600000; "

static void begin(const char *config)
{
	world_begin(.config = config, .devices = DEVICES);
}

static void await(bool (*is_so)(uint64_t), uint64_t wanted)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (!is_so(wanted)) {
		ck_assert_msg(harness_now_ms() < end_ms, "it does not come about\n%s",
		              harness_log(&harness));
		harness_sleep_ms(5);
	}
}

static bool have_waited(uint64_t n_requests)
{
	return world_metric("quota_waits") >= n_requests;
}

static void say(struct run *run, const char *line)
{
	run->text[0] = '\0';
	ck_assert_int_eq(write(run->input, line, strlen(line)), (ssize_t)strlen(line));
}

/* Say it, and have it answered. */
static void ask(struct run *run, const char *line, const char *want)
{
	say(run, line);
	run_read(run, want);
}

static void run_program(struct run *run)
{
	run_start(run, NULL, run_in_build(PROGRAM), NULL);
}

/* ---- what a program says ------------------------------------------------------------------------ */

START_TEST(a_program_says_why_if_it_is_asked_to)
{
	static struct run run;
	begin(TENANT("1536MiB"));
	run_start(&run, "GLAKE_SHIM_SAY=refused", run_in_build(PROGRAM), NULL);
	ask(&run, "alloc 1073741824\n", "alloc 0\n");
	ask(&run, "alloc 1073741824\n", "alloc 2\n");
	run_expect(
		&run,
		"memory refused: 1.0 GiB more on device 0: tenant default uses 1.0 of 1.5 GiB\n");
	run_end_well(&run);
	run_program(&run);
	ask(&run, "alloc 2147483648\n", "alloc 2\n");
	run_end_well(&run);
	ck_assert_ptr_null(strstr(run.text, "refused"));
}
END_TEST

/* ---- two programs ----------------------------------------------------------------------------- */

static const struct {
	const char *alloc;
	const char *allocated;
	const char *free;
	const char *freed;
	const char *doing; /* NULL: it sleeps */
	const char *extra; /* for its environment */
} firsts[] = {
	{"alloc 1073741824\n", "alloc 0\n", "free\n", "free 0\n", NULL, NULL},
	{"alloc 1073741824\n", "alloc 0\n", "free\n", "free 0\n", "spin", NULL},
	{"alloc 1073741824\n", "alloc 0\n", "free\n", "free 0\n", "compute", NULL},
	{"alloc_async 1073741824\n", "alloc_async 0\n", "free_async\n", "free_async 0\n", "spin",
         "GLAKE_ALLOC=stitch"},
	{"alloc_async 1073741824\n", "alloc_async 0\n", "free_async\n", "free_async 0\n", NULL,
         NULL},
};

START_TEST_WITH(warm_memory_goes_to_who_needs_it, .n = n_elements(firsts))
{
	static struct run first;
	static struct run second;
	begin(TENANT("1536MiB"));
	run_start(&first, firsts[_i].extra, run_in_build(PROGRAM), NULL);
	ask(&first, firsts[_i].alloc, firsts[_i].allocated);
	ask(&first, firsts[_i].free, firsts[_i].freed);
	if (firsts[_i].doing) {
		char line[16];
		snprintf(line, sizeof(line), "%s\n", firsts[_i].doing);
		ask(&first, line, line);
	}
	run_program(&second);
	ask(&second, "alloc 1073741824\n", "alloc 0\n");
	ck_assert_uint_eq(world_metric("quota_refusals"), 0);
	/* Live memory stays, and the first program is as it was. */
	ask(&first, "alloc 1073741824\n", "alloc 2\n");
	ask(&first, "alloc 268435456\n", "alloc 0\n");
	run_end_well(&second);
	run_end_well(&first);
}
END_TEST

START_TEST_WITH(who_waits_gets_what_is_freed, .n = 2)
{
	static struct run first;
	static struct run second;
	begin(WAIT TENANT("1536MiB"));
	int how = _i == 0 ? 0 : (int)n_elements(firsts) - 1;
	run_program(&first);
	ask(&first, firsts[how].alloc, firsts[how].allocated);
	run_program(&second);
	say(&second, "alloc 1073741824\n");
	await(have_waited, 1);
	/* The first one would keep the freed memory warm, but the second one gets it. */
	ask(&first, firsts[how].free, firsts[how].freed);
	run_read(&second, "alloc 0\n");
	run_end_well(&second);
	run_end_well(&first);
}
END_TEST

START_TEST(who_waits_in_vain_is_out_of_memory)
{
	static struct run first;
	static struct run second;
	begin("pressure = \"wait\"; wait_ms = 1400;" TENANT("1536MiB"));
	run_program(&first);
	ask(&first, "alloc 1073741824\n", "alloc 0\n");
	run_program(&second);
	uint64_t since_ms = harness_now_ms();
	ask(&second, "alloc 1073741824\n", "alloc 2\n");
	ck_assert_uint_ge(harness_now_ms() - since_ms, 1390);
	/* More than the quota would never fit: nobody waits for that. */
	ask(&second, "alloc 1610612737\n", "alloc 2\n");
	ck_assert_uint_eq(world_metric("quota_waits"), 1);
	ask(&second, "alloc 268435456\n", "alloc 0\n");
	run_end_well(&second);
	run_end_well(&first);
}
END_TEST

/* Between one program and glaked: what each ChunkAlloc says of its waiting. */
static struct {
	int listening;
	pthread_t thread;
	_Atomic unsigned n_allocs;
	uint64_t waited_ms[16];
} tap;

static void hear(const uint8_t *bytes, size_t n_bytes)
{
	Glake__Wire__Request *request = glake__wire__request__unpack(NULL, n_bytes, bytes);
	ck_assert_ptr_nonnull(request);
	if (request->body_case == GLAKE__WIRE__REQUEST__BODY_CHUNK_ALLOC) {
		ck_assert_uint_lt(tap.n_allocs, n_elements(tap.waited_ms));
		tap.waited_ms[tap.n_allocs] = request->chunk_alloc->waited_ms;
		tap.n_allocs++;
	}
	glake__wire__request__free_unpacked(request, NULL);
}

/* Returns false at the end. */
static bool pass_on(int from, int to, bool is_heard)
{
	static uint8_t bytes[GLAKE_MAX_PACKET_BYTES];
	size_t n_bytes;
	cleanup_fdlist struct fdlist fds;
	fdlist_init(&fds);
	if (wire_recv(from, bytes, sizeof(bytes), &n_bytes, &fds, 0) != 0) {
		return false;
	}
	if (is_heard) {
		hear(bytes, n_bytes);
	}
	/* Who has gone does not hear it; what he said before is still to be passed on. */
	wire_send(to, bytes, n_bytes, fds.fds, fds.n_fds, 0);
	return true;
}

static void *tap_main(void *user)
{
	cleanup_fd int program = accept4(tap.listening, NULL, NULL, SOCK_CLOEXEC);
	int daemon = connection_open(&harness);
	struct pollfd ends[] = {{.fd = program, .events = POLLIN},
	                        {.fd = daemon, .events = POLLIN}};
	bool goes_on = true;
	while (goes_on && poll(ends, n_elements(ends), -1) > 0) {
		goes_on = (!ends[0].revents || pass_on(program, daemon, true)) &&
		          (!ends[1].revents || pass_on(daemon, program, false));
	}
	/* The program's end would end the session; this process lives. */
	connection_close(&daemon);
	return NULL;
}

/* Programs that are started from now on connect through the tap. */
static void start_tap(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	ck_assert_int_lt(
		snprintf(address.sun_path, sizeof(address.sun_path), "%s/tap", harness.folder),
		sizeof(address.sun_path));
	tap.listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(tap.listening, (struct sockaddr *)&address, sizeof(address)), 0);
	ck_assert_int_eq(listen(tap.listening, 1), 0);
	ck_assert_int_eq(pthread_create(&tap.thread, NULL, tap_main, NULL), 0);
	setenv("GLAKE_SOCKET", address.sun_path, 1);
}

/*
 * A program that is refused, gets memory of its own back from a stream, and tries again says how long it has
 * waited for this allocation.
 */
START_TEST(who_tries_again_says_how_long_it_has_waited)
{
	enum { WAIT_MS = 200 };
	static struct run run;
	begin("pressure = \"wait\"; wait_ms = 200;" TENANT("1536MiB"));
	uint64_t held;
	int holder = connection_hello(&harness);
	ck_assert_int_eq(connection_alloc(holder, 0, 1024 * MIB, 1, &held, NULL),
	                 GLAKE__WIRE__STATUS__OK);
	start_tap();
	run_program(&run);
	ask(&run, "alloc_async 67108864\n", "alloc_async 0\n");
	say(&run, "exchange 1073741824\n");
	world_wait_metric("quota_refusals", 1);
	say(&run, "info\n");
	run_read(&run, "exchange 2\n");
	run_end_well(&run);
	pthread_join(tap.thread, NULL);
	close(tap.listening);
	ck_assert_uint_ge(tap.n_allocs, 3);
	ck_assert_uint_eq(tap.waited_ms[0], 0);
	ck_assert_uint_eq(tap.waited_ms[1], 0);
	for (unsigned i = 2; i < tap.n_allocs; i++) {
		ck_assert_uint_ge(tap.waited_ms[i], WAIT_MS);
	}
}
END_TEST

/* More threads than may ask at a time, and the memory that they wait for is the program's own. */
START_TEST(others_do_not_wait_behind_allocations)
{
	static struct run run;
	begin(WAIT TENANT("256MiB"));
	run_program(&run);
	ask(&run, "alloc 268435456\n", "alloc 0\n");
	ask(&run, "threads 12 20971520\n", "threads\n");
	await(have_waited, 8);
	ask(&run, "info\n", "info 268435456\n");
	ask(&run, "free\n", "free 0\n");
	ask(&run, "join\n", "join 12 0\n");
	run_end_well(&run);
}
END_TEST

/* ---- what is said to be left ------------------------------------------------------------------ */

/* "left" or "release". */
static uint64_t left_by(struct run *run, const char *line)
{
	ask(run, line, "\n");
	ck_assert_int_eq(strncmp(run->text, line, strlen(line) - 1), 0);
	return strtoull(run->text + strlen(line), NULL, 10);
}

static uint64_t left(struct run *run)
{
	return left_by(run, "left\n");
}

/* With and without a quota, with and without stitching. */
static void begin_left(struct run *run, int i)
{
	begin(i & 1 ? TENANT("1GiB") : "pool = ();");
	run_start(run, i & 2 ? "GLAKE_ALLOC=stitch" : NULL, run_in_build(PROGRAM), NULL);
}

START_TEST_WITH(what_was_freed_is_left, .n = 4)
{
	static struct run run;
	begin_left(&run, _i);
	ask(&run, "alloc 2097152\n", "alloc 0\n");
	uint64_t before = left(&run);
	ask(&run, "alloc 402653184\n", "alloc 0\n");
	ck_assert_uint_eq(left(&run), before - 384 * MIB);
	ask(&run, "alloc_async 134217728\n", "alloc_async 0\n");
	ck_assert_uint_eq(left(&run), before - 512 * MIB);
	ask(&run, "free_async\n", "free_async 0\n");
	ask(&run, "sync\n", "sync\n");
	ck_assert_uint_eq(left(&run), before - 384 * MIB);
	ask(&run, "free\n", "free 0\n");
	ck_assert_uint_eq(left(&run), before);
	run_end_well(&run);
}
END_TEST

/* An allocation that needs it waits for the stream, and gets it: so it is free. */
START_TEST_WITH(what_a_stream_is_not_done_with_is_left, .n = 4)
{
	static struct run run;
	begin_left(&run, _i);
	ask(&run, "alloc 2097152\n", "alloc 0\n");
	uint64_t before = left(&run);
	for (int i = 0; i < 2; i++) {
		ask(&run, "alloc_async 134217728\n", "alloc_async 0\n");
		ck_assert_uint_eq(left(&run), before - 128 * MIB);
		ck_assert_uint_eq(left_by(&run, "release\n"), before);
		if (i == 0) {
			/* The freed memory can be had again while the stream is not done with it. */
			ask(&run, "alloc_async 134217728\n", "alloc_async 0\n");
			ck_assert_uint_eq(left(&run), before - 128 * MIB);
			ask(&run, "free_async\n", "free_async 0\n");
		}
		ask(&run, "sync\n", "sync\n");
		ck_assert_uint_eq(left(&run), before);
	}
	run_end_well(&run);
}
END_TEST

/*
 * The driver is asked, and glaked: memory that glaked closes in between is in neither answer. It may be
 * missing where the driver's number does not come to rest.
 */
START_TEST(what_glaked_closes_meanwhile_is_left)
{
	static struct run run;
	begin("pool = (); warm_bytes = \"0\";");
	run_program(&run);
	ask(&run, "alloc 2097152\n", "alloc 0\n");
	ask(&run, "churn 100 33554432\n", "\n");
	ck_assert_int_eq(strncmp(run.text, "churn ", 6), 0);
	ck_assert_uint_lt(strtoul(run.text + 6, NULL, 10), 5);
	run_end_well(&run);
}
END_TEST

static void set_faults(const char *path, const char *rules)
{
	FILE *file = fopen(path, "w");
	ck_assert_ptr_nonnull(file);
	fputs(rules, file);
	fclose(file);
}

/* glaked makes memory for another program, slowly, and comes to no closing meanwhile. */
START_TEST(what_glaked_has_yet_to_close_is_left)
{
	static struct run first;
	static struct run second;
	char path[HARNESS_PATH_BYTES];
	char variable[HARNESS_PATH_BYTES + 32];
	const char *env[] = {variable, NULL};
	snprintf(path, sizeof(path), "%s/faults", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	snprintf(variable, sizeof(variable), "CUDASIM_FAULT_FILE=%s", path);
	set_faults(path, "");
	const struct harness_options options = {
		.config = "pool = (); warm_bytes = \"0\";", .devices = DEVICES, .env = env};
	world_begin_as(&options);

	run_program(&first);
	ask(&first, "alloc 536870912\n", "alloc 0\n");
	uint64_t before = left(&first);
	set_faults(path, "glaked/cuMemCreate:*:slow=2000");
	run_program(&second);
	say(&second, "alloc 33554432\n");
	/* However long that takes: the sum is the same when all is done. */
	while (left(&first) > before - 32 * MIB) {
		harness_sleep_ms(5);
	}
	ask(&first, "free\n", "free 0\n");
	ck_assert_uint_eq(left(&first), before + 480 * MIB);
	set_faults(path, "");
	run_read(&second, "alloc 0\n");
	run_end_well(&second);
	run_end_well(&first);
	unlink(path);
}
END_TEST

/* ---- programs that stitch --------------------------------------------------------------------- */

static void run_stitching(struct run *run)
{
	run_start(run, "GLAKE_ALLOC=stitch", run_in_build(PROGRAM), NULL);
}

/* A phase needs 1 GiB in four pieces. */
#define N_PIECES 4

static void begin_phase(struct run *run)
{
	for (unsigned i = 0; i < N_PIECES; i++) {
		ask(run, "alloc_async 268435456\n", "alloc_async 0\n");
	}
}

static void end_phase(struct run *run)
{
	for (unsigned i = 0; i < N_PIECES; i++) {
		ask(run, "free_async\n", "free_async 0\n");
	}
	ask(run, "sync\n", "sync\n");
}

START_TEST(the_peak_of_one_is_the_trough_of_the_other)
{
	static struct run programs[2];
	begin(TENANT("1280MiB"));
	for (unsigned i = 0; i < 2; i++) {
		run_stitching(&programs[i]);
		/* That it has all the time. */
		ask(&programs[i], "alloc_async 33554432\n", "alloc_async 0\n");
	}
	for (unsigned round = 0; round < 4; round++) {
		begin_phase(&programs[round % 2]);
		end_phase(&programs[round % 2]);
	}
	ck_assert_uint_eq(world_metric("quota_refusals"), 0);
	run_end_well(&programs[0]);
	run_end_well(&programs[1]);
}
END_TEST

/* Nor does it call the driver any more: what its streams finish is found by the shim. */
START_TEST(work_that_ends_later_pays_then)
{
	static struct run first;
	static struct run second;
	begin(WAIT TENANT("1280MiB"));
	run_stitching(&first);
	run_stitching(&second);
	for (unsigned round = 0; round < 2; round++) {
		struct run *from = round == 0 ? &first : &second;
		struct run *to = round == 0 ? &second : &first;
		ask(from, "alloc_async 1073741824\n", "alloc_async 0\n");
		ask(from, "release\n", "release");
		uint64_t n_waits = world_metric("quota_waits");
		say(to, "alloc_async 1073741824\n");
		await(have_waited, n_waits + 1);
		ask(from, "sync\n", "sync\n");
		run_read(to, "alloc_async 0\n");
		ask(to, "free_async\n", "free_async 0\n");
		ask(to, "sync\n", "sync\n");
	}
	ck_assert_uint_eq(world_metric("quota_refusals"), 0);
	run_end_well(&second);
	run_end_well(&first);
}
END_TEST

static uint64_t n_used(void)
{
	struct glake_device_view view = {.size = sizeof(view)};
	assert_ok(glake_device_view(eye, 0, &view));
	return view.used_bytes - view.idle_bytes;
}

static bool is_used(uint64_t n_bytes)
{
	return n_used() == n_bytes;
}

/* With and without stitching; the program does nothing more than wait for its stream. */
START_TEST_WITH(warm_bytes_of_zero_keeps_nothing, .n = 2)
{
	static struct run run;
	begin("warm_bytes = \"0\"; pool = ();");
	run_start(&run, _i ? "GLAKE_ALLOC=stitch" : NULL, run_in_build(PROGRAM), NULL);
	for (unsigned i = 0; i < 3; i++) {
		ask(&run, "alloc_async 134217728\n", "alloc_async 0\n");
	}
	uint64_t before = n_used();
	ask(&run, "free_async\n", "free_async 0\n");
	ask(&run, "free_async\n", "free_async 0\n");
	ask(&run, "sync\n", "sync\n");
	await(is_used, before - 256 * MIB);
	run_end_well(&run);
}
END_TEST

/* The driver has no addresses for the window, nor for the home of the pool, and then it has. */
START_TEST(a_stream_has_its_memory_at_once_without_a_home)
{
	enum { N_WINDOW = 15 }; /* tries, from 32 GiB to 2 MiB */
	static struct run run;
	char faults[1024] = "CUDASIM_FAULT=";
	for (unsigned i = 1; i <= N_WINDOW + 1; i++) {
		size_t n = strlen(faults);
		snprintf(faults + n, sizeof(faults) - n, "%squota/cuMemAddressReserve:%u:fail=2",
		         i > 1 ? "," : "", i);
	}
	setenv("GLAKE_ALLOC", "stitch", 1);
	begin(TENANT("192MiB"));
	run_start(&run, faults, run_in_build(PROGRAM), NULL);
	ask(&run, "alloc_async 134217728\n", "alloc_async 0\n");
	ask(&run, "exchange_async 134217728\n", "exchange_async 0\n");
	run_end_well(&run);
}
END_TEST

/* ---- eight programs --------------------------------------------------------------------------- */

#define N_PROGRAMS 8

static struct run runs[N_PROGRAMS];

static void start_all(const char *n, const char *n_bytes, const char *n_rounds)
{
	for (unsigned i = 0; i < N_PROGRAMS; i++) {
		run_start(&runs[i], NULL, run_in_build(PROGRAM), "work", n, n_bytes, n_rounds,
		          i % 2 ? "async" : NULL, NULL);
	}
}

/* They are done, and keep what they have warm. */
static void await_all(void)
{
	for (unsigned i = 0; i < N_PROGRAMS; i++) {
		run_read(&runs[i], " refused ");
	}
}

/* The programs' numbers, summed up from their last lines. */
static void end_all(unsigned *n_done_out, unsigned *n_refused_out)
{
	*n_done_out = *n_refused_out = 0;
	for (unsigned i = 0; i < N_PROGRAMS; i++) {
		unsigned n_done;
		unsigned n_refused;
		run_end_well(&runs[i]);
		const char *line = strstr(runs[i].text, "done ");
		ck_assert_msg(line && sscanf(line, "done %u refused %u", &n_done, &n_refused) == 2,
		              "program %u said:\n%s", i, runs[i].text);
		*n_done_out += n_done;
		*n_refused_out += n_refused;
	}
}

/* Room for three of them: five wait, with nothing in their hands, until all are served. */
START_TEST(eight_take_turns)
{
	unsigned n_done;
	unsigned n_refused;
	begin(WAIT TENANT("200MiB"));
	start_all("1", "62914560", "10");
	await_all();
	end_all(&n_done, &n_refused);
	ck_assert_uint_eq(n_done, N_PROGRAMS * 10);
	ck_assert_uint_eq(n_refused, 0);
	ck_assert_uint_gt(world_metric("reclaims_sent"), 0);
}
END_TEST

/* Each wants three pieces while it holds some: at worst nobody has all. Then it is one's alone. */
START_TEST_WITH(eight_that_do_not_fit_are_served_or_refused, .n = 2)
{
	static struct run late;
	unsigned n_done;
	unsigned n_refused;
	begin(_i == 0 ? TENANT("200MiB") : "pressure = \"wait\"; wait_ms = 100; " TENANT("200MiB"));
	start_all("3", "31457280", "10");
	await_all();
	run_program(&late);
	ask(&late, "alloc 209715200\n", "alloc 0\n");
	run_end_well(&late);
	end_all(&n_done, &n_refused);
	ck_assert_uint_eq(n_done + n_refused, N_PROGRAMS * 10);
	/* Each refusal was for the quota, and the driver gave nothing in its place. */
	ck_assert_uint_ge(world_metric("quota_refusals"), n_refused);
	ck_assert_uint_eq(world_metric("memory_refusals"), 0);
}
END_TEST

/* Half of them are killed, whatever they are at: the others go on, with what those had. */
START_TEST(the_dead_are_not_waited_for)
{
	begin(WAIT TENANT("200MiB"));
	start_all("1", "62914560", "100000");
	run_read(&runs[0], "working");
	for (unsigned i = 1; i < N_PROGRAMS; i++) {
		kill(runs[i].pid, SIGKILL);
		ck_assert_int_eq(WTERMSIG(run_end(&runs[i])), SIGKILL);
		if (i == N_PROGRAMS / 2) {
			static struct run late;
			run_program(&late);
			ask(&late, "alloc 62914560\n", "alloc 0\n");
			run_end_well(&late);
		}
	}
	kill(runs[0].pid, SIGKILL);
	ck_assert_int_eq(WTERMSIG(run_end(&runs[0])), SIGKILL);
}
END_TEST
