/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that was promised memory gets it, whatever others do, and no more; who cannot be promised any is told why, or
 * waits; and nothing of a promise is left behind.
 */
#include <sys/mman.h>

#include "glake_admin.h"
#include "tests/harness/models.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

#define TENANT(bytes) "tenants = ({ name = \"default\"; device_bytes = \"" bytes "\"; });"
/* Longer than any test may last: what is answered was not refused for its time. */
#define WAIT "pressure = \"wait\"; wait_ms = 3600000; "
#define N_MOST 4u

static void begin(const char *config)
{
	world_begin(.config = config, .devices = "1x512MiB");
}

static int connect_promised(const char *promise, struct glake_session **session_out)
{
	const struct glake_connect_options options = {
		.size = sizeof(options), .no_cuda = 1, .promise = promise};
	return glake_connect(&options, session_out);
}

static struct glake_session *connected(const char *promise)
{
	struct glake_session *session;
	assert_ok(connect_promised(promise, &session));
	return session;
}

static struct glake_device_view view_of(struct glake_session *session)
{
	struct glake_device_view view = {.size = sizeof(view)};
	assert_ok(glake_device_view(session, 0, &view));
	return view;
}

static void assert_left(struct glake_session *session, uint64_t promise_bytes, uint64_t left_bytes)
{
	struct glake_device_view view = view_of(session);
	ck_assert_uint_eq(view.promise_bytes, promise_bytes);
	ck_assert_uint_eq(view.left_bytes, left_bytes);
}

static int take(struct glake_session *session, uint64_t bytes, uint64_t *chunk_out)
{
	int fd = -1;
	int r = glake_chunk_new(session, 0, bytes, chunk_out, &fd);
	if (r == 0) {
		close(fd);
	}
	return r;
}

static uint64_t taken(struct glake_session *session, uint64_t bytes)
{
	uint64_t chunk = 0;
	assert_ok(take(session, bytes, &chunk));
	return chunk;
}

/* Returns how much a neighbour without a promise gets, in chunks of 16 MiB. */
static uint64_t take_all(struct glake_session *session)
{
	uint64_t bytes = 0;
	uint64_t chunk;
	while (take(session, 16 * MIB, &chunk) == 0) {
		bytes += 16 * MIB;
	}
	return bytes;
}

/* The process of the test has a session, too: who is to be promised something is another one. */
static void apart(world_fn fn)
{
	world_join(world_client(fn, NULL));
}

/* ---- neighbours ------------------------------------------------------------------------------- */

/* Takes all there is at stage 1, gives it back at stage 3, and ends at stage 5. */
static void greedy(void *user)
{
	uint64_t *most = user;
	world_await(1);
	struct glake_session *session = world_connect_blind();
	*most = take_all(session);
	world_reach(2);
	world_await(3);
	world_disconnect(session);
	world_reach(4);
	world_await(5);
}

static uint64_t *shared_number(void)
{
	uint64_t *number = mmap(NULL, sizeof(*number), PROT_READ | PROT_WRITE,
	                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(number, MAP_FAILED);
	return number;
}

static void use_while_others_take_all(void *user)
{
	uint64_t chunk;
	struct glake_session *session = connected("256MiB");
	assert_left(session, 256 * MIB, 256 * MIB);
	world_reach(1);
	world_await(2);
	assert_left(session, 256 * MIB, 256 * MIB);
	taken(session, 200 * MIB);
	assert_left(session, 256 * MIB, 56 * MIB);
	taken(session, 56 * MIB);
	assert_left(session, 256 * MIB, 0);
	world_reach(3);
	world_await(4);
	assert_left(session, 256 * MIB, 0);
	/* The device has room now. */
	assert_fails(GLAKE_E_OVER_QUOTA, "this process has 256.0 of 256.0 MiB that it was promised",
	             take(session, 2 * MIB, &chunk));
	world_reach(5);
}

START_TEST(neighbours_change_nothing_of_a_promise)
{
	uint64_t *most = shared_number();
	begin(WORLD_CONFIG "reserve_bytes = \"0\";");
	pid_t client = world_client(greedy, most);
	apart(use_while_others_take_all);
	world_join(client);
	/* All the rest, but for a chunk of glaked's own. */
	ck_assert_uint_le(*most, 256 * MIB);
	ck_assert_uint_ge(*most, 224 * MIB);
}
END_TEST

static void free_and_take(void *user)
{
	struct glake_session *session = connected("128MiB");
	for (unsigned i = 0; i < 3; i++) {
		uint64_t chunk = taken(session, 128 * MIB);
		if (i == 0) {
			world_reach(1);
			world_await(2);
		}
		assert_ok(glake_chunk_free(session, chunk, 128 * MIB));
		assert_left(session, 128 * MIB, 128 * MIB);
	}
	world_reach(3);
	world_await(4);
	world_reach(5);
}

START_TEST(what_is_freed_is_the_promised_ones_again)
{
	begin(WORLD_CONFIG);
	pid_t client = world_client(greedy, shared_number());
	apart(free_and_take);
	world_join(client);
}
END_TEST

static void take_beside_warm(void *user)
{
	world_await(1);
	taken(connected("384MiB"), 384 * MIB);
	world_reach(2);
}

/* Memory that another program keeps warm makes room for a promise. */
START_TEST(warm_memory_of_others_goes)
{
	glake_ptr ptr = 0;
	begin("pool = (); warm_bytes = \"1GiB\"; ");
	pid_t client = world_client(take_beside_warm, NULL);
	struct glake_session *session = world_connect();
	assert_ok(glake_alloc(session, 0, 384 * MIB, 0, &ptr));
	assert_ok(glake_free(session, ptr));
	world_reach(1);
	for (uint64_t since_ms = harness_now_ms(); atomic_load(world_stage) < 2;) {
		ck_assert_int_ge(glake_dispatch(session), 0);
		ck_assert_msg(harness_now_ms() - since_ms < HARNESS_TIMEOUT_MS,
		              "it has not got it");
		harness_sleep_ms(2);
	}
	world_join(client);
}
END_TEST

/* ---- who cannot be promised any --------------------------------------------------------------- */

static void want_more_than_the_quota(void *user)
{
	struct glake_session *session;
	assert_fails(GLAKE_E_OVER_QUOTA, "tenant default", connect_promised("258MiB", &session));
}

static void want_more_than_the_device(void *user)
{
	struct glake_session *session;
	assert_fails(GLAKE_E_NO_DEVICE_MEMORY, "device 0", connect_promised("600MiB", &session));
}

START_TEST(what_can_never_be_is_refused_at_once)
{
	begin(WORLD_CONFIG WAIT TENANT("256MiB"));
	apart(want_more_than_the_quota);
	harness_reload(&harness, WORLD_CONFIG WAIT);
	apart(want_more_than_the_device);
}
END_TEST

static void pay_once(void *user)
{
	uint64_t chunk;
	struct glake_session *session = connected("192MiB");
	ck_assert_uint_eq(view_of(session).used_bytes, 192 * MIB);
	taken(session, 100 * MIB);
	ck_assert_uint_eq(view_of(session).used_bytes, 192 * MIB);
	ck_assert_int_eq(take(session, 94 * MIB, &chunk), GLAKE_E_OVER_QUOTA);
	ck_assert_uint_eq(view_of(session).used_bytes, 192 * MIB);
	world_reach(1);
	world_await(2);
	/* A limit that is lower now takes nothing away. */
	taken(session, 92 * MIB);
	ck_assert_uint_eq(view_of(session).used_bytes, 192 * MIB);
}

static void share_the_quota(void *user)
{
	struct glake_session *session = world_connect_blind();
	uint64_t chunk;
	assert_fails(GLAKE_E_OVER_QUOTA, "uses 192.0 of 256.0 MiB",
	             take(session, 66 * MIB, &chunk));
	taken(session, 64 * MIB);
	world_disconnect(session);
}

START_TEST(a_promise_is_within_the_quota)
{
	begin(WORLD_CONFIG TENANT("256MiB"));
	pid_t client = world_client(pay_once, NULL);
	world_await(1);
	apart(share_the_quota);
	assert_ok(glake_set_quota(eye, "default", 0, 128 * MIB));
	world_reach(2);
	world_join(client);
}
END_TEST

START_TEST(what_is_no_size_is_refused)
{
	static const char *const wrong[] = {
		"0", "12GiBs", "a=1GiB", "0=", "1GiB,", "0=1GiB,x", "-1", "0==1GiB"};
	struct glake_session *session;
	begin(WORLD_CONFIG);
	for (size_t i = 0; i < n_elements(wrong); i++) {
		assert_fails(-EINVAL, "a promise of", connect_promised(wrong[i], &session));
	}
}
END_TEST

/* ---- together --------------------------------------------------------------------------------- */

struct crowd {
	const char *promise;
	uint64_t bytes;
};

/* The program takes what it was promised, at once or in pieces. */
static void use_promise(void *user)
{
	const struct crowd *crowd = user;
	uint64_t n_pieces = 1u << getpid() % 4;
	world_await(1);
	struct glake_session *session = connected(crowd->promise);
	for (uint64_t i = 0; i < n_pieces; i++) {
		assert_left(session, crowd->bytes, crowd->bytes / n_pieces * (n_pieces - i));
		taken(session, crowd->bytes / n_pieces);
	}
	assert_left(session, crowd->bytes, 0);
	glake_disconnect(session);
}

/* @n programs start at once, over and over, and each gets what it was promised. */
static void start_together(unsigned n, const struct crowd *crowd)
{
	pid_t clients[N_MOST];
	const char *more = getenv("GLAKE_PROMISE_ROUNDS");
	long n_rounds = more ? atol(more) : 20;
	for (long round = 0; round < n_rounds; round++) {
		atomic_store(world_stage, 0);
		for (unsigned i = 0; i < n; i++) {
			clients[i] = world_client(use_promise, (void *)crowd);
		}
		world_reach(1);
		for (unsigned i = 0; i < n; i++) {
			world_join(clients[i]);
		}
	}
}

static const struct {
	unsigned n;
	struct crowd crowd;
} crowds[] = {
	{2, {"192MiB", 192 * MIB}},
	{4, {"64MiB", 64 * MIB}},
	/* Two of four fit. */
	{4, {"192MiB", 192 * MIB}},
	/* One. */
	{4, {"320MiB", 320 * MIB}},
};

START_TEST_WITH(all_that_start_together_get_theirs, .n = n_elements(crowds))
{
	begin(WORLD_CONFIG WAIT);
	start_together(crowds[_i].n, &crowds[_i].crowd);
	ck_assert_uint_eq(world_metric("memory_refusals"), 0);
	ck_assert_uint_eq(world_metric("quota_refusals"), 0);
}
END_TEST

/* ---- bad days --------------------------------------------------------------------------------- */

static void hold_promise(void *user)
{
	struct glake_session *session = connected("400MiB");
	taken(session, 100 * MIB);
	world_reach(1);
	for (;;) {
		pause();
	}
}

static void want_as_much(void *user)
{
	taken(connected("400MiB"), 400 * MIB);
}

START_TEST(a_killed_process_gives_its_promise_back)
{
	begin(WORLD_CONFIG WAIT);
	pid_t client = world_client(hold_promise, NULL);
	world_await(1);
	pid_t next = world_client(want_as_much, NULL);
	world_kill(client);
	world_join(next);
}
END_TEST

static void want_in_vain(void *user)
{
	struct glake_session *session;
	world_reach(2);
	connect_promised("400MiB", &session);
	ck_abort_msg("it was let in");
}

START_TEST(who_is_killed_while_it_waits_leaves_nothing)
{
	begin(WORLD_CONFIG WAIT);
	pid_t client = world_client(hold_promise, NULL);
	world_await(1);
	struct books before = world_books();
	pid_t next = world_client(want_in_vain, NULL);
	world_await(2);
	harness_sleep_ms(20);
	world_kill(next);
	world_wait_books(&before);
	world_kill(client);
	apart(want_as_much);
}
END_TEST

static void have_several_sessions(void *user)
{
	struct glake_session *other;
	struct glake_session *first = connected("128MiB");
	struct glake_session *second = connected("128MiB");
	struct glake_session *plain = world_connect_blind();
	taken(second, 64 * MIB);
	taken(plain, 32 * MIB);
	assert_left(first, 128 * MIB, 32 * MIB);
	assert_left(plain, 128 * MIB, 32 * MIB);
	assert_fails(GLAKE_E_BAD_REQUEST, "was promised 134217728",
	             connect_promised("64MiB", &other));
	glake_disconnect(first);
	assert_left(second, 128 * MIB, 32 * MIB);
	glake_disconnect(second);
	assert_left(plain, 128 * MIB, 96 * MIB);
	world_disconnect(plain);
	/* The promise ended with the process's last session. */
	other = connected("64MiB");
	glake_disconnect(other);
}

START_TEST(sessions_of_a_process_have_a_promise_together)
{
	begin(WORLD_CONFIG);
	apart(have_several_sessions);
}
END_TEST

/* ---- asleep ----------------------------------------------------------------------------------- */

static void fall_asleep_and_wake(void *user)
{
	glake_ptr ptr = 0;
	const struct glake_connect_options options = {.size = sizeof(options), .promise = "256MiB"};
	struct glake_session *session;
	assert_ok(glake_connect(&options, &session));
	assert_ok(glake_alloc(session, 0, 100 * MIB, 0, &ptr));
	assert_left(session, 256 * MIB, 156 * MIB);
	assert_ok(glake_sleep(session, 10000, NULL));
	assert_fails(GLAKE_E_BUSY, "sleeps and needs 268435456 bytes",
	             glake_set_quota(session, "default", 0, 200 * MIB));
	world_reach(1);
	world_await(2);
	/* Others have all memory: the wake waits until the whole promise is there. */
	world_reach(3);
	assert_ok(glake_wake(session, NULL));
	assert_left(session, 256 * MIB, 156 * MIB);
	taken(session, 156 * MIB);
	glake_disconnect(session);
	world_await(4);
	world_reach(5);
}

START_TEST(a_sleeper_lends_its_promise_and_wakes_with_all_of_it)
{
	uint64_t *most = shared_number();
	begin(WORLD_CONFIG "warm_bytes = \"0\"; reserve_bytes = \"0\";");
	world_start_mover();
	pid_t client = world_client(greedy, most);
	apart(fall_asleep_and_wake);
	world_join(client);
	/* The mover has some. */
	ck_assert_uint_ge(*most, 384 * MIB);
}
END_TEST

/* ---- another glaked --------------------------------------------------------------------------- */

static void hold_through_restarts(void *user)
{
	struct glake_session *session = connected("256MiB");
	taken(session, 100 * MIB);
	world_reach(1);
	/* By then there is another glaked, and another program has all that it gives. */
	world_await(2);
	assert_left(session, 256 * MIB, 156 * MIB);
	taken(session, 156 * MIB);
	world_reach(3);
	world_await(4);
	world_reach(5);
}

START_TEST(a_restart_keeps_promises)
{
	uint64_t *most = shared_number();
	world_begin(.config = WORLD_CONFIG "reserve_bytes = \"0\";", .devices = "1x512MiB",
	            .is_activated = true, .keeps_fds = true);
	pid_t client = world_client(hold_through_restarts, NULL);
	world_await(1);
	harness_kill(&harness);
	harness_restart(&harness);
	pid_t other = world_client(greedy, most);
	world_join(client);
	world_join(other);
	ck_assert_uint_le(*most, 256 * MIB);
}
END_TEST

/* ---- programs under the shim ------------------------------------------------------------------ */

static void ask(struct run *run, const char *line, const char *want)
{
	run->text[0] = '\0';
	ck_assert_int_eq(write(run->input, line, strlen(line)), (ssize_t)strlen(line));
	run_read(run, want);
}

START_TEST(a_program_sees_its_promise_as_the_device)
{
	static struct run run;
	static struct run other;
	begin(WORLD_CONFIG);
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", "--promise=0=256MiB",
	          run_in_build("tests/shim/quota"), NULL);
	run_start(&other, NULL, run_in_build("tests/shim/quota"), NULL);
	ask(&run, "info\n", "info 268435456\n");
	ask(&run, "left\n", "left 268435456\n");
	ask(&other, "alloc 134217728\n", "alloc 0\n");
	ask(&other, "alloc 134217728\n", "alloc 2\n");
	ask(&run, "left\n", "left 268435456\n");
	ask(&run, "alloc 201326592\n", "alloc 0\n");
	ask(&run, "left\n", "left 67108864\n");
	ask(&other, "free\n", "free 0\n");
	ask(&run, "left\n", "left 67108864\n");
	/* A promise is a limit, too. */
	ask(&run, "alloc 69206016\n", "alloc 2\n");
	ask(&run, "alloc 67108864\n", "alloc 0\n");
	ask(&run, "left\n", "left 0\n");
	ask(&run, "free\n", "free 0\n");
	/* Warm or not, it may have it again. */
	ask(&run, "left\n", "left 67108864\n");
	run_end_well(&other);
	run_end_well(&run);
}
END_TEST

START_TEST(a_program_that_cannot_be_promised_anything_gets_nothing)
{
	static struct run run;
	begin(WORLD_CONFIG TENANT("128MiB"));
	run_start(&run, "GLAKE_PROMISE=256MiB", run_in_build("tests/shim/quota"), NULL);
	ask(&run, "alloc 2097152\n", "alloc 2\n");
	/* Nor is it told that anything is free. */
	ck_assert_int_eq(write(run.input, "info\n", 5), 5);
	int status = run_end(&run);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 1, "0x%x\n%s", status, run.text);
}
END_TEST

START_TEST_WITH(glake_run_refuses_what_is_no_size, .n = 2)
{
	static struct run run;
	begin(WORLD_CONFIG);
	/* Whoever does without glaked has not asked for something that is no size. */
	run_start(&run, "LD_PRELOAD=", run_in_build("bin/glake"), "run", "--promise=much",
	          _i == 0 ? "--" : "--optional", "true", NULL);
	int status = run_end(&run);
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 125 &&
	                      strstr(run.text, "a promise of \"much\""),
	              "0x%x\n%s", status, run.text);
}
END_TEST

/* One environment for all: who uses no GPU takes nothing. */
START_TEST(a_program_without_work_takes_nothing)
{
	static struct run first;
	static struct run second;
	begin(WORLD_CONFIG);
	run_start(&first, "GLAKE_PROMISE=384MiB", run_in_build("tests/shim/quota"), NULL);
	run_start(&second, "GLAKE_PROMISE=384MiB", run_in_build("tests/shim/quota"), NULL);
	ask(&second, "alloc 402653184\n", "alloc 0\n");
	run_end_well(&second);
	ask(&first, "alloc 402653184\n", "alloc 0\n");
	run_end_well(&first);
}
END_TEST

/* ---- shared weights --------------------------------------------------------------------------- */

#define SHARED_BYTES (32 * MIB)

/* Has the model open from stage *@user on, and takes the rest of its promise a stage later. */
static void open_model(void *user)
{
	const int *stage = user;
	struct glake_model *model;
	world_await(*stage - 1);
	struct glake_session *session = connected("128MiB");
	assert_ok(world_open_unmapped(session, world_path("m.safetensors"), &model));
	assert_left(session, 128 * MIB, 128 * MIB - SHARED_BYTES);
	world_reach(*stage);
	world_await(4);
	assert_left(session, 128 * MIB, 128 * MIB - SHARED_BYTES);
	glake_model_close(model);
	assert_left(session, 128 * MIB, 128 * MIB);
	glake_disconnect(session);
}

static uint64_t promised_and_used(uint64_t room_before)
{
	return room_before - view_of(eye).room_bytes;
}

/* Each has them, and they are on the GPU once. */
START_TEST(shared_weights_count_in_each_promise_and_are_there_once)
{
	static int stages[] = {1, 2};
	begin(WORLD_CONFIG);
	world_start_mover();
	world_write_model("m.safetensors", SHARED_BYTES, 1);
	uint64_t room = view_of(eye).room_bytes;
	pid_t first = world_client(open_model, &stages[0]);
	world_await(1);
	ck_assert_uint_eq(promised_and_used(room), 128 * MIB);
	pid_t second = world_client(open_model, &stages[1]);
	world_await(2);
	ck_assert_uint_eq(promised_and_used(room), 2 * 128 * MIB - SHARED_BYTES);
	world_reach(4);
	world_join(first);
	world_join(second);
}
END_TEST
