/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reserve for unsealing: programs that were sealed without being asked (tests/shim/auto.c) find memory of the GPU for their
 * private copies, though neighbours have taken all the rest.
 */

#include "tests/check_glake.h"
#include "tests/harness/connection.h"
#include "tests/harness/readers.h"
#include "tests/harness/run.h"
#include "tests/harness/world.h"

/* The weights of each program: six allocations of 32 MiB, each a block. */
#define LARGE (32 * MIB)
#define WEIGHTS (6 * LARGE)

/* Some of each GPU is the driver's: of that glaked's books know nothing. */
#define CONFIG \
	WORLD_CONFIG "warm_bytes = \"0\"; host_bytes = \"512MiB\"; reserve_bytes = \"32MiB\"; "
#define PART(part) CONFIG "dedup_reserve = " part ";"

static void begin_with(const char *config)
{
	world_begin(.config = config, .devices = "1x1GiB", .is_activated = true, .keeps_fds = true);
	readers_begin();
}

static int take_device(void *user, const struct glake_status *status)
{
	*(struct glake_device_status *)user = status->devices[0];
	return 0;
}

static struct glake_device_status device(void)
{
	struct glake_device_status status = {.index = 0};
	struct glake_session *session = world_connect_blind();
	assert_ok(glake_get_status(session, take_device, &status));
	world_disconnect(session);
	return status;
}

static void await_reserve(uint64_t n_bytes)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (device().unsealing_bytes != n_bytes) {
		ck_assert_msg(harness_now_ms() < end_ms, "the reserve has %llu MiB, not %llu",
		              (unsigned long long)(device().unsealing_bytes / MIB),
		              (unsigned long long)(n_bytes / MIB));
		harness_sleep_ms(5);
	}
}

/* Memory that the reserve keeps is not given to others, and is never more than there is. */
static void assert_fits(void)
{
	const struct glake_device_status status = device();
	ck_assert_uint_le(status.physical_bytes + status.unsealing_bytes, 1024 * MIB);
	ck_assert_uint_le(status.unsealing_bytes, status.unsealing_wanted_bytes);
	ck_assert_uint_le(status.unsealing_wanted_bytes, status.saved_alone_bytes);
}

struct seen {
	pid_t pid;
	uint64_t private_bytes;
	uint64_t host_bytes;
};

static int see(void *user, const struct glake_session_row *row)
{
	struct seen *seen = user;
	if ((pid_t)row->pid == seen->pid) {
		seen->private_bytes += row->reserved_bytes;
		seen->host_bytes += row->host_bytes;
	}
	return 0;
}

static struct seen look_at(const struct run *run)
{
	struct seen seen = {.pid = run->pid};
	struct glake_session *session = world_connect_blind();
	assert_ok(glake_list_sessions(session, see, &seen));
	world_disconnect(session);
	return seen;
}

static void start_sealed(struct run *runs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		run_start(&runs[i], "GLAKE_DEDUP=auto", run_in_build("tests/shim/auto"),
		          "told_to_write", NULL);
	}
	for (unsigned i = 0; i < n; i++) {
		run_read(&runs[i], "sealed");
	}
	/* The last one to be sealed says so before glaked has its chunk back. */
	while (device().saved_alone_bytes != (n - 1) * WEIGHTS) {
		harness_sleep_ms(5);
	}
}

static void tell(struct run *run, const char *line)
{
	run->text[0] = '\0';
	ck_assert_int_eq(write(run->input, line, strlen(line)), (ssize_t)strlen(line));
}

/* The program writes to @n more of its allocations. */
static void have_written(struct run *run, const char *n)
{
	tell(run, n);
	run_read(run, "written");
}

static void end_all(struct run *runs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		tell(&runs[i], "end\n");
		run_end_well(&runs[i]);
	}
}

/* Glaked with that config, and @n programs that share one copy, of which the reserve has @n_bytes. */
static void begin_sealed(const char *config, struct run *runs, unsigned n, uint64_t n_bytes)
{
	begin_with(config);
	start_sealed(runs, n);
	await_reserve(n_bytes);
}

static void start_neighbour(struct run *neighbour)
{
	run_start(neighbour, "GLAKE_SHIM_SAY=refused", run_in_build("tests/shim/auto"), "rest",
	          NULL);
	run_read(neighbour, "full");
}

/* All of them, on the GPU; what is beyond the reserve, in host memory. */
START_TEST_WITH(unsealing_gets_the_reserve_and_then_host_memory, .timeout_s = 120)
{
	struct run runs[3];
	struct run neighbour;
	begin_sealed(PART("0.5"), runs, 3, WEIGHTS);
	start_neighbour(&neighbour);
	assert_fits();
	ck_assert_uint_eq(device().unsealing_bytes, WEIGHTS);
	have_written(&runs[0], "6\n");
	ck_assert_uint_eq(look_at(&runs[0]).host_bytes, 0);
	ck_assert_uint_ge(look_at(&runs[0]).private_bytes, WEIGHTS);
	ck_assert_uint_eq(device().unsealing_bytes, 0);
	assert_fits();
	have_written(&runs[1], "1\n");
	ck_assert_uint_eq(look_at(&runs[1]).host_bytes, LARGE);
	assert_fits();
	run_finish(&neighbour);
	end_all(runs, 3);
	await_reserve(0);
}
END_TEST

START_TEST_WITH(two_that_unseal_at_once_both_get_it, .timeout_s = 120)
{
	struct run runs[3];
	struct run neighbour;
	begin_sealed(PART("1"), runs, 3, 2 * WEIGHTS);
	start_neighbour(&neighbour);
	tell(&runs[0], "6\n");
	tell(&runs[1], "6\n");
	run_read(&runs[0], "written");
	run_read(&runs[1], "written");
	ck_assert_uint_eq(look_at(&runs[0]).host_bytes + look_at(&runs[1]).host_bytes, 0);
	ck_assert_uint_eq(device().unsealing_bytes, 0);
	ck_assert_uint_eq(device().saved_alone_bytes, 0);
	assert_fits();
	run_finish(&neighbour);
	end_all(runs, 3);
}
END_TEST

/* The last one of a block needs its copy beside it for a moment; its memory is the reserve's again. */
START_TEST_WITH(the_last_one_leaves_as_much_as_it_took, .timeout_s = 120)
{
	struct run runs[2];
	struct run neighbour;
	begin_sealed(PART("0.5"), runs, 2, 128 * MIB); /* one block, though half of it is less */
	start_neighbour(&neighbour);
	have_written(&runs[0], "1\n");
	await_reserve(96 * MIB);
	have_written(&runs[1], "1\n");
	await_reserve(96 * MIB);
	ck_assert_uint_eq(look_at(&runs[0]).host_bytes + look_at(&runs[1]).host_bytes, 0);
	assert_fits();
	run_finish(&neighbour);
	end_all(runs, 2);
}
END_TEST

static int see_refused(void *user, const struct glake_event_row *row)
{
	char *text = user;
	if (strcmp(row->kind, "memory_refused") == 0 && strcmp(row->bound, "reserve") == 0) {
		snprintf(text, 512, "%s", row->text);
	}
	return 0;
}

static int see_tenant(void *user, const struct glake_tenant_row *row)
{
	if (strcmp(row->name, "default") == 0) {
		*(uint64_t *)user = row->devices[0].refused_reserve;
	}
	return 0;
}

START_TEST_WITH(a_neighbour_is_told_why, .timeout_s = 120)
{
	struct run runs[2];
	struct run neighbour;
	char text[512] = "";
	uint64_t n_refused = 0;
	begin_with(PART("1"));
	start_sealed(runs, 2);
	start_neighbour(&neighbour);
	run_expect(&neighbour, "192.0 MiB are kept for unsealing (dedup_reserve)");
	while (!text[0]) {
		harness_sleep_ms(5);
		assert_ok(glake_list_events(eye, see_refused, text));
	}
	ck_assert_ptr_nonnull(strstr(text, "are kept for unsealing"));
	assert_ok(glake_list_tenants(eye, see_tenant, &n_refused));
	ck_assert_uint_eq(n_refused, 1);
	run_finish(&neighbour);
	end_all(runs, 2);
}
END_TEST

START_TEST_WITH(without_a_reserve_all_is_as_it_was, .timeout_s = 120)
{
	struct run runs[2];
	struct run neighbour;
	begin_with(PART("0"));
	start_sealed(runs, 2);
	ck_assert_uint_eq(device().unsealing_bytes, 0);
	start_neighbour(&neighbour);
	ck_assert_ptr_null(strstr(neighbour.text, "kept for unsealing"));
	have_written(&runs[0], "1\n");
	ck_assert_uint_eq(look_at(&runs[0]).host_bytes, LARGE);
	run_finish(&neighbour);
	end_all(runs, 2);
}
END_TEST

START_TEST_WITH(it_goes_with_its_owner, .timeout_s = 120)
{
	struct run runs[3];
	begin_sealed(PART("1"), runs, 3, 2 * WEIGHTS);
	for (unsigned i = 0; i < 2; i++) {
		kill(runs[i].pid, SIGKILL);
		ck_assert_int_eq(WTERMSIG(run_end(&runs[i])), SIGKILL);
		await_reserve((1 - i) * WEIGHTS);
	}
	end_all(&runs[2], 1);
}
END_TEST

/* Killed in the middle: what it drew, and what it did not, is there for others. */
START_TEST_WITH(who_is_killed_while_it_unseals_leaves_nothing_behind, .timeout_s = 120)
{
	struct run runs[3];
	struct run neighbour;
	begin_with(PART("1"));
	start_sealed(runs, 3);
	start_neighbour(&neighbour);
	tell(&runs[0], "6\n");
	harness_sleep_ms(20);
	kill(runs[0].pid, SIGKILL);
	ck_assert_int_eq(WTERMSIG(run_end(&runs[0])), SIGKILL);
	while (device().saved_alone_bytes != WEIGHTS) {
		harness_sleep_ms(5);
	}
	assert_fits();
	have_written(&runs[1], "6\n");
	ck_assert_uint_eq(look_at(&runs[1]).host_bytes, 0);
	run_finish(&neighbour);
	end_all(&runs[1], 2);
}
END_TEST

START_TEST_WITH(the_next_glaked_has_it_too, .timeout_s = 120)
{
	struct run runs[3];
	struct run neighbour;
	begin_sealed(PART("0.5"), runs, 3, WEIGHTS);
	start_neighbour(&neighbour);
	harness_kill(&harness);
	harness_restart(&harness);
	await_reserve(WEIGHTS);
	assert_fits();
	have_written(&runs[0], "6\n");
	ck_assert_uint_eq(look_at(&runs[0]).host_bytes, 0);
	run_finish(&neighbour);
	end_all(runs, 3);
}
END_TEST

START_TEST_WITH(another_part_holds_at_once, .timeout_s = 120)
{
	struct run runs[3];
	begin_sealed(PART("1"), runs, 3, 2 * WEIGHTS);
	harness_reload(&harness, PART("0.5"));
	await_reserve(WEIGHTS);
	harness_reload(&harness, PART("0"));
	await_reserve(0);
	harness_reload(&harness, PART("0.75"));
	await_reserve(288 * MIB);
	end_all(runs, 3);
	await_reserve(0);
}
END_TEST

static int note_sleep(void *user, const struct glake_sleep_report *report)
{
	(void)user;
	(void)report;
	return 0;
}

/* Who sleeps has nothing to unseal; who wakes has, and his memory comes before the reserve. */
START_TEST_WITH(it_goes_and_comes_with_a_sleeper, .timeout_s = 120)
{
	struct run runs[3];
	begin_sealed(PART("1"), runs, 3, 2 * WEIGHTS);
	/* One of them has made the blocks, and the others have found them. */
	for (unsigned i = 0; i < 3; i++) {
		const uint64_t session = world_session_of(runs[i].pid);
		struct glake_sleep_options options = {.size = sizeof(options)};
		assert_ok(glake_sleep_session(eye, session, &options, note_sleep, NULL));
		await_reserve(WEIGHTS);
		options.wakes = 1;
		assert_ok(glake_sleep_session(eye, session, &options, note_sleep, NULL));
		await_reserve(2 * WEIGHTS);
	}
	have_written(&runs[0], "6\n");
	end_all(runs, 3);
}
END_TEST

/* Other programs of the tenant have taken what the sealing saved: the reserve is beside that. */
START_TEST_WITH(a_full_quota_does_not_keep_it_from_the_reserve, .timeout_s = 120)
{
	struct run runs[2];
	struct run neighbour;
	begin_with(PART("1") "tenants = ( { name = \"default\"; device_bytes = \"512MiB\"; } );");
	start_sealed(runs, 2);
	await_reserve(WEIGHTS);
	start_neighbour(&neighbour);
	ck_assert_ptr_null(strstr(neighbour.text, "kept for unsealing"));
	have_written(&runs[0], "6\n");
	ck_assert_uint_eq(look_at(&runs[0]).host_bytes, 0);
	assert_fits();
	run_finish(&neighbour);
	end_all(runs, 2);
}
END_TEST

/* ---- programs that say what is not so --------------------------------------------------------- */

static Glake__Wire__Status ask_for(int connection, uint64_t unseals, uint64_t *id_out)
{
	Glake__Wire__Answer *answer = connection_call(connection,
	                                              REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc,
	                                                      .chunk_bytes = LARGE, .n_chunks = 1,
	                                                      .unseals = unseals),
	                                              NULL, 0, NULL);
	Glake__Wire__Status status = answer->status;
	if (status == GLAKE__WIRE__STATUS__OK) {
		*id_out = answer->chunk_alloc->ids[0];
	}
	connection_free(answer);
	return status;
}

static void free_chunk(int connection, uint64_t id)
{
	ck_assert_int_eq(connection_free_chunks(connection, &id, 1), GLAKE__WIRE__STATUS__OK);
}

static void release_block(int connection, uint64_t id)
{
	ck_assert_int_eq(connection_release(connection, id), GLAKE__WIRE__STATUS__OK);
}

/* A block of zeros, as all of these are. Returns its id, which was the chunk's. */
static uint64_t publish(int connection, bool is_alone)
{
	uint64_t id = 0;
	ck_assert_int_eq(ask_for(connection, 0, &id), GLAKE__WIRE__STATUS__OK);
	Glake__Wire__Answer *answer = connection_call(
		connection,
		REQUEST(BLOCK_PUBLISH, BlockPublish, block_publish, .chunk = id,
	                .content_bytes = LARGE, .confirms = true, .is_alone = is_alone),
		NULL, 0, NULL);
	ck_assert_int_eq(answer->status, GLAKE__WIRE__STATUS__OK);
	bool is_kept = answer->block->is_kept;
	connection_free(answer);
	if (is_kept) {
		free_chunk(connection, id);
	}
	return id;
}

#define NONE GLAKE__WIRE__STATUS__NO_DEVICE_MEMORY

START_TEST(only_who_has_saved_something_gets_it_and_once)
{
	struct run neighbour;
	uint64_t copy = 0;
	begin_with(PART("1"));
	int liar = connection_hello(&harness);
	int owner = connection_hello(&harness);
	uint64_t first = publish(owner, true);
	ck_assert_uint_eq(device().unsealing_bytes, 0);
	ck_assert_uint_eq(ask_for(owner, first, &copy), GLAKE__WIRE__STATUS__OK);
	free_chunk(owner, copy);
	uint64_t asked = publish(owner, false);
	ck_assert_uint_eq(device().unsealing_bytes, 0);
	uint64_t alone = publish(owner, true);
	await_reserve(LARGE);
	start_neighbour(&neighbour);
	/* Another's block, none, one that its program was asked to seal; none of these is an error. */
	ck_assert_int_eq(ask_for(liar, alone, &copy), NONE);
	ck_assert_int_eq(ask_for(owner, alone + 1000, &copy), NONE);
	ck_assert_int_eq(ask_for(owner, asked, &copy), NONE);
	ck_assert_int_eq(ask_for(owner, 0, &copy), NONE);
	ck_assert_uint_eq(device().unsealing_bytes, LARGE);
	ck_assert_int_eq(ask_for(owner, alone, &copy), GLAKE__WIRE__STATUS__OK);
	ck_assert_uint_eq(device().unsealing_bytes, 0);
	ck_assert_int_eq(ask_for(owner, alone, &copy), NONE);
	/* The owner did not want the copy after all. */
	free_chunk(owner, copy);
	ck_assert_uint_eq(device().unsealing_bytes, LARGE);
	ck_assert_int_eq(ask_for(owner, alone, &copy), GLAKE__WIRE__STATUS__OK);
	release_block(owner, alone);
	ck_assert_uint_eq(device().saved_alone_bytes, 0);
	/* Now it is a chunk as any other. */
	free_chunk(owner, copy);
	ck_assert_uint_eq(device().unsealing_bytes, 0);
	assert_fits();
	run_finish(&neighbour);
	release_block(owner, first);
	release_block(owner, asked);
	connection_close(&owner);
	connection_close(&liar);
}
END_TEST

/* The answer is lost with the connection: nobody has the copy, and the reserve has its memory again. */
START_TEST(an_answer_that_is_lost_costs_nothing)
{
	struct connection_identity identity = {0};
	uint64_t unanswered;
	begin_with(PART("1"));
	int owner = connection_hello_as(&harness, &identity);
	publish(owner, true);
	uint64_t alone = publish(owner, true);
	await_reserve(LARGE);
	struct run neighbour;
	start_neighbour(&neighbour);
	unanswered = connection_send(owner,
	                             REQUEST(CHUNK_ALLOC, ChunkAlloc, chunk_alloc,
	                                     .chunk_bytes = LARGE, .n_chunks = 1, .unseals = alone),
	                             NULL, 0);
	await_reserve(0);
	connection_drop(&owner);
	identity.unanswered = &unanswered;
	identity.n_unanswered = 1;
	owner = connection_hello_as(&harness, &identity);
	await_reserve(LARGE);
	assert_fits();
	run_finish(&neighbour);
	connection_close(&owner);
}
END_TEST
