/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that sleep with equal bytes, which nobody has sealed: host memory has them once, and zeros not at all. Whatever
 * happens to one of them, the others have their bytes.
 */
#include "libclient/link/session.h"
#include "tests/harness/words.h"

#define CONFIG WORLD_CONFIG "warm_bytes = \"0\"; "
#define N_REPLICAS 8u
#define SMALL_BYTES (6 * MIB)
#define LARGE_BYTES (34 * MIB)

static void begin_with(const char *config)
{
	world_begin(.config = config, .devices = "1x4GiB");
	words_open_driver();
}

struct replica {
	struct glake_session *session;
	glake_ptr small;
	glake_ptr large;
};

static struct replica replica_begin(void)
{
	struct replica replica = {.session = world_connect()};
	replica.small = words_alloc(replica.session, SMALL_BYTES, 7);
	replica.large = words_alloc(replica.session, LARGE_BYTES, 8);
	return replica;
}

static void replica_check(const struct replica *replica)
{
	words_check(replica->small, SMALL_BYTES, 7);
	words_check(replica->large, LARGE_BYTES, 8);
}

static int sum_sleepers(void *user, const struct glake_sleeper_row *row)
{
	*(uint64_t *)user += row->private_bytes;
	return 0;
}

static uint64_t asleep_bytes(void)
{
	uint64_t bytes = 0;
	assert_ok(glake_list_sleepers(eye, sum_sleepers, &bytes));
	return bytes;
}

/* A session that is disconnected does not wait for glaked, which may be asked before it has heard of it. */
static void await_no_copies(void)
{
	while (world_copy_bytes() > 0) {
		harness_sleep_ms(2);
	}
}

START_TEST(replicas_asleep_take_one_copy)
{
	struct replica replicas[N_REPLICAS];
	begin_with(CONFIG);
	for (unsigned i = 0; i < N_REPLICAS; i++) {
		replicas[i] = replica_begin();
	}
	for (unsigned i = 0; i < N_REPLICAS; i++) {
		struct glake_slept slept = words_fall_asleep(replicas[i].session);
		ck_assert_uint_eq(slept.private_bytes, SMALL_BYTES + LARGE_BYTES);
		ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES + LARGE_BYTES);
		ck_assert_uint_eq(asleep_bytes(), (i + 1) * (SMALL_BYTES + LARGE_BYTES));
	}
	ck_assert_uint_eq(words_device_bytes(), 0);
	for (unsigned i = 0; i < N_REPLICAS; i++) {
		ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES + LARGE_BYTES);
		assert_ok(glake_wake(replicas[i].session, NULL));
		replica_check(&replicas[i]);
	}
	/* As cache, while somebody may need it again. */
	for (unsigned i = 0; i < N_REPLICAS; i++) {
		ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES + LARGE_BYTES);
		world_disconnect(replicas[i].session);
	}
	await_no_copies();
}
END_TEST

START_TEST(who_has_written_has_a_copy_of_its_own)
{
	begin_with(CONFIG);
	struct replica one = replica_begin();
	struct replica two = replica_begin();
	words_fall_asleep(one.session);
	words_fall_asleep(two.session);
	assert_ok(glake_wake(two.session, NULL));
	replica_check(&two);
	words_write(two.small, SMALL_BYTES, 9);
	words_fall_asleep(two.session);
	ck_assert_uint_eq(world_copy_bytes(), 2 * SMALL_BYTES + LARGE_BYTES);
	assert_ok(glake_wake(one.session, NULL));
	replica_check(&one);
	assert_ok(glake_wake(two.session, NULL));
	words_check(two.small, SMALL_BYTES, 9);
	words_check(two.large, LARGE_BYTES, 8);
	world_disconnect(one.session);
	world_disconnect(two.session);
	await_no_copies();
}
END_TEST

/* Memory that has not changed has its copy still: a mover that can only digest is enough. */
START_TEST(what_has_not_changed_is_not_copied_again)
{
	begin_with(CONFIG);
	struct replica replica = replica_begin();
	words_fall_asleep(replica.session);
	for (unsigned round = 0; round < 3; round++) {
		assert_ok(glake_wake(replica.session, NULL));
		world_set_faults("glake-mover/cuMemcpyDtoDAsync:*:fail=1");
		words_fall_asleep(replica.session);
		world_set_faults(NULL);
		ck_assert_uint_eq(words_device_bytes(), 0);
		ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES + LARGE_BYTES);
	}
	assert_ok(glake_wake(replica.session, NULL));
	replica_check(&replica);
	words_write(replica.small, SMALL_BYTES, 9);
	world_set_faults("glake-mover/cuMemcpyDtoDAsync:*:fail=1");
	assert_fails(GLAKE_E_MOVER, "", glake_sleep(replica.session, 1000, NULL));
	world_set_faults(NULL);
	words_fall_asleep(replica.session);
	assert_ok(glake_wake(replica.session, NULL));
	words_check(replica.small, SMALL_BYTES, 9);
	words_check(replica.large, LARGE_BYTES, 8);
	/* Freed memory needs no copy. */
	ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES + LARGE_BYTES);
	assert_ok(glake_free(replica.session, replica.small));
	ck_assert_uint_eq(world_copy_bytes(), LARGE_BYTES);
}
END_TEST

/* Who wakes keeps its copies only as long as nobody needs the room. */
START_TEST(copies_of_those_who_are_awake_make_room)
{
	begin_with(CONFIG "host_bytes = \"40MiB\"; ");
	struct replica replica = replica_begin();
	struct glake_session *other = world_connect();
	glake_ptr ptr = words_alloc(other, LARGE_BYTES, 9);
	words_fall_asleep(replica.session);
	assert_ok(glake_wake(replica.session, NULL));
	words_fall_asleep(other);
	assert_fails(GLAKE_E_NO_HOST_MEMORY, "", glake_sleep(replica.session, 1000, NULL));
	assert_ok(glake_wake(other, NULL));
	words_fall_asleep(replica.session);
	assert_ok(glake_wake(replica.session, NULL));
	replica_check(&replica);
	words_check(ptr, LARGE_BYTES, 9);
}
END_TEST

/* Chunks of one program, too. */
START_TEST(equal_chunks_of_one_program_are_held_once)
{
	glake_ptr ptrs[6];
	begin_with(CONFIG);
	struct glake_session *session = world_connect();
	for (unsigned i = 0; i < 6; i++) {
		ptrs[i] = words_alloc(session, SMALL_BYTES, i % 2);
	}
	for (unsigned round = 0; round < 2; round++) {
		words_fall_asleep(session);
		ck_assert_uint_eq(world_copy_bytes(), 2 * SMALL_BYTES);
		assert_ok(glake_wake(session, NULL));
		for (unsigned i = 0; i < 6; i++) {
			words_check(ptrs[i], SMALL_BYTES, i % 2);
		}
	}
}
END_TEST

/* In either order. */
START_TEST_WITH(sealed_and_private_bytes_are_one_copy, .n = 2)
{
	begin_with(CONFIG);
	struct glake_session *sealed = world_connect();
	struct glake_session *private = world_connect();
	glake_ptr first = words_alloc(sealed, SMALL_BYTES, 7);
	glake_ptr second = words_alloc(private, SMALL_BYTES, 7);
	words_seal(first, SMALL_BYTES);
	words_fall_asleep(_i == 0 ? sealed : private);
	words_fall_asleep(_i == 0 ? private : sealed);
	ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(words_device_bytes(), 0);
	assert_ok(glake_wake(private, NULL));
	words_check(second, SMALL_BYTES, 7);
	words_write(second, SMALL_BYTES, 8);
	assert_ok(glake_wake(sealed, NULL));
	words_check(first, SMALL_BYTES, 7);
	ck_assert(!words_can_write(first));
	/* The block's is cache. */
	ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES);
	assert_ok(glake_evict(eye, NULL, NULL, NULL));
	ck_assert_uint_eq(world_copy_bytes(), 0);
}
END_TEST

/* ---- zeros ------------------------------------------------------------------------------------ */

static void check_zero(glake_ptr ptr, uint64_t n_bytes)
{
	uint8_t *bytes = malloc(n_bytes);
	ck_assert_ptr_nonnull(bytes);
	ck_assert_int_eq(drv.cuMemcpyDtoH(bytes, ptr, n_bytes), CUDA_SUCCESS);
	ck_assert(bytes[0] == 0 && memcmp(bytes, bytes + 1, n_bytes - 1) == 0);
	free(bytes);
}

/* Without a shim nobody else waits for that. */
static void set(glake_ptr ptr, uint8_t byte, uint64_t n_bytes)
{
	ck_assert_int_eq(drv.cuMemsetD8(ptr, byte, n_bytes), CUDA_SUCCESS);
	ck_assert_int_eq(drv.cuCtxSynchronize(), CUDA_SUCCESS);
}

static glake_ptr alloc_zeros(struct glake_session *session, uint64_t n_bytes)
{
	glake_ptr ptr;
	assert_ok(glake_alloc(session, 0, n_bytes, 0, &ptr));
	set(ptr, 0, n_bytes);
	return ptr;
}

START_TEST(zeros_take_no_host_memory)
{
	glake_ptr zeros[4];
	begin_with(CONFIG);
	struct glake_session *session = world_connect();
	uint64_t n_before = world_books().charged_host_bytes;
	for (unsigned i = 0; i < 4; i++) {
		zeros[i] = alloc_zeros(session, LARGE_BYTES);
	}
	for (unsigned round = 0; round < 2; round++) {
		struct glake_slept slept = words_fall_asleep(session);
		ck_assert_uint_eq(slept.private_bytes, 4 * LARGE_BYTES);
		ck_assert_uint_eq(words_device_bytes(), 0);
		ck_assert_uint_eq(world_copy_bytes(), 0);
		while (world_books().charged_host_bytes != n_before) {
			/* The first one was copied to host memory before it was known to be zeros. */
			harness_sleep_ms(1);
		}
		/* Others write where it was. */
		struct glake_session *other = world_connect();
		words_alloc(other, 4 * LARGE_BYTES, 5);
		world_disconnect(other);
		assert_ok(glake_wake(session, NULL));
		for (unsigned i = 0; i < 4; i++) {
			check_zero(zeros[i], LARGE_BYTES);
		}
	}
	/* The last byte of one. */
	set(zeros[2] + LARGE_BYTES - 1, 1, 1);
	words_fall_asleep(session);
	ck_assert_uint_eq(world_copy_bytes(), LARGE_BYTES);
	assert_ok(glake_wake(session, NULL));
	check_zero(zeros[1], LARGE_BYTES);
	check_zero(zeros[2], LARGE_BYTES - 1);
	uint8_t last = 0;
	ck_assert_int_eq(drv.cuMemcpyDtoH(&last, zeros[2] + LARGE_BYTES - 1, 1), CUDA_SUCCESS);
	ck_assert_uint_eq(last, 1);
}
END_TEST

/* ---- bad days --------------------------------------------------------------------------------- */

/* Host memory has room for one copy of the small part. */
START_TEST(full_host_memory_is_not_in_the_way_of_what_it_has)
{
	begin_with(CONFIG "host_bytes = \"6MiB\"; ");
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	struct glake_session *three = world_connect();
	glake_ptr first = words_alloc(one, SMALL_BYTES, 7);
	glake_ptr second = words_alloc(two, SMALL_BYTES, 7);
	glake_ptr zeros = alloc_zeros(two, LARGE_BYTES);
	glake_ptr third = words_alloc(three, SMALL_BYTES, 9);
	words_fall_asleep(one);
	words_fall_asleep(two);
	ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES);
	assert_fails(GLAKE_E_NO_HOST_MEMORY, "", glake_sleep(three, 1000, NULL));
	ck_assert(!glake_is_asleep(three));
	words_check(third, SMALL_BYTES, 9);
	assert_ok(glake_wake(one, NULL));
	words_check(first, SMALL_BYTES, 7);
	assert_ok(glake_wake(two, NULL));
	words_check(second, SMALL_BYTES, 7);
	check_zero(zeros, LARGE_BYTES);
	words_fall_asleep(three);
	assert_ok(glake_wake(three, NULL));
	words_check(third, SMALL_BYTES, 9);
}
END_TEST

/* Whoever has it asleep finds that out; who falls asleep then does not share it. */
START_TEST(a_damaged_copy_is_found_by_each)
{
	struct glake_session *sessions[3];
	begin_with(CONFIG);
	glake_ptr ptr = 0;
	for (unsigned i = 0; i < 3; i++) {
		sessions[i] = world_connect();
		ptr = words_alloc(sessions[i], SMALL_BYTES, 7);
	}
	words_fall_asleep(sessions[0]);
	words_fall_asleep(sessions[1]);
	world_damage_copies();
	words_fall_asleep(sessions[2]);
	ck_assert_uint_eq(world_copy_bytes(), 2 * SMALL_BYTES);
	for (unsigned i = 0; i < 2; i++) {
		assert_fails(GLAKE_E_MOVER, "damaged", glake_wake(sessions[i], NULL));
		ck_assert(glake_is_asleep(sessions[i]));
	}
	assert_ok(glake_wake(sessions[2], NULL));
	words_check(ptr, SMALL_BYTES, 7);
	words_fall_asleep(sessions[2]);
	assert_ok(glake_wake(sessions[2], NULL));
	words_check(ptr, SMALL_BYTES, 7);
}
END_TEST

/* Returns whether the mover has died. */
static bool mover_dies_at(unsigned n, struct glake_session *session, glake_ptr ptr)
{
	char rule[48];
	uint64_t n_deaths = world_metric("mover_deaths");
	snprintf(rule, sizeof(rule), "glake-mover/*:%u:die", n);
	world_set_faults(rule);
	int r = when_let(glake_sleep(session, 1000, NULL));
	ck_assert_msg(r == 0 || r == GLAKE_E_MOVER, "%u: %d: %s", n, r, glake_error());
	ck_assert_int_eq(glake_is_asleep(session), r == 0);
	bool has_died = world_metric("mover_deaths") > n_deaths;
	world_set_faults(NULL);
	if (r == 0) {
		ck_assert_uint_eq(asleep_bytes(), 2 * SMALL_BYTES);
		assert_ok(glake_wake(session, NULL));
	}
	words_check(ptr, SMALL_BYTES, 7);
	return has_died;
}

/* Copying, comparing: at each of its calls. Nobody's bytes are lost, and the other has the copy still. */
START_TEST_WITH(the_mover_dies_at_each_call, .timeout_s = 200)
{
	unsigned n = 0;
	begin_with(CONFIG);
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = words_alloc(one, SMALL_BYTES, 7);
	glake_ptr second = words_alloc(two, SMALL_BYTES, 7);
	words_fall_asleep(one);
	do {
		ck_assert_uint_lt(++n, 300);
	} while (mover_dies_at(n, two, second));
	printf("%u calls\n", n);
	ck_assert_uint_gt(n, 10);
	words_fall_asleep(two);
	ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES);
	assert_ok(glake_wake(one, NULL));
	words_check(first, SMALL_BYTES, 7);
	assert_ok(glake_wake(two, NULL));
	words_check(second, SMALL_BYTES, 7);
}
END_TEST

/* ---- other processes -------------------------------------------------------------------------- */

/* Stages: for each process one when it sleeps; then this. */
#define STAGE_WAKE 100

struct program {
	int stage;
	unsigned content;
};

static void sleep_and_wake(void *user)
{
	const struct program *program = user;
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, SMALL_BYTES, program->content);
	glake_ptr zeros = alloc_zeros(session, SMALL_BYTES);
	words_fall_asleep(session);
	world_reach(program->stage);
	world_await(STAGE_WAKE);
	assert_ok(glake_wake(session, NULL));
	words_check(ptr, SMALL_BYTES, program->content);
	check_zero(zeros, SMALL_BYTES);
	words_write(ptr, SMALL_BYTES, 77);
	words_write(zeros, SMALL_BYTES, 78);
	words_fall_asleep(session);
	assert_ok(glake_wake(session, NULL));
	words_check(ptr, SMALL_BYTES, 77);
	words_check(zeros, SMALL_BYTES, 78);
	world_disconnect(session);
}

static pid_t start(int stage, unsigned content)
{
	static struct program programs[8];
	programs[stage] = (struct program){.stage = stage, .content = content};
	pid_t pid = world_client(sleep_and_wake, &programs[stage]);
	world_await(stage);
	return pid;
}

/* The one that was first, who pays, and another. */
START_TEST_WITH(one_is_killed_and_the_others_keep_their_bytes, .n = 2)
{
	pid_t pids[3];
	world_begin(.config = CONFIG, .devices = "1x1GiB");
	for (int i = 0; i < 3; i++) {
		pids[i] = start(i + 1, 7);
	}
	ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES);
	world_kill(pids[_i]);
	while (asleep_bytes() != 4 * SMALL_BYTES) {
		harness_sleep_ms(1);
	}
	ck_assert_uint_eq(world_copy_bytes(), SMALL_BYTES);
	world_reach(STAGE_WAKE);
	for (int i = 0; i < 3; i++) {
		if (i != _i) {
			world_join(pids[i]);
		}
	}
	ck_assert_uint_eq(world_copy_bytes(), 0);
	world_evict_until(&books_before);
}
END_TEST

static void end_glaked(void)
{
	harness_signal(&harness, SIGTERM);
	harness_wait_exit(&harness);
}

static void kill_glaked(void)
{
	harness_kill(&harness);
}

static void (*const ends[])(void) = {kill_glaked, end_glaked};

/* The next glaked has one copy, finds it for others, and needs it until the last of them has woken. */
START_TEST_WITH(shared_copies_survive_a_restart, .n = 2)
{
	pid_t pids[5];
	world_begin(.config = CONFIG, .devices = "1x1GiB", .is_activated = true, .keeps_fds = true);
	for (int i = 0; i < 4; i++) {
		pids[i] = start(i + 1, i < 3 ? 7 : 8);
	}
	ck_assert_uint_eq(world_copy_bytes(), 2 * SMALL_BYTES);
	for (int round = 0; round < 2; round++) {
		const struct books before = world_books();
		ends[_i]();
		harness_restart(&harness);
		world_wait_books(&before);
		ck_assert_uint_eq(world_copy_bytes(), 2 * SMALL_BYTES);
		ck_assert_uint_eq(asleep_bytes(), 8 * SMALL_BYTES);
	}
	ck_assert_uint_eq(harness_n_log_lines(&harness, "lost:"), 0);
	pids[4] = start(5, 7);
	ck_assert_uint_eq(world_copy_bytes(), 2 * SMALL_BYTES);
	world_kill(pids[0]);
	while (asleep_bytes() != 8 * SMALL_BYTES) {
		harness_sleep_ms(1);
	}
	ends[_i]();
	harness_restart(&harness);
	ck_assert_uint_eq(world_copy_bytes(), 2 * SMALL_BYTES);
	world_reach(STAGE_WAKE);
	for (int i = 1; i < 5; i++) {
		world_join(pids[i]);
	}
	ck_assert_uint_eq(world_copy_bytes(), 0);
	world_evict_until(&books_before);
}
END_TEST
