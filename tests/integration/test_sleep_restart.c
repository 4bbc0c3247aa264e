/* SPDX-License-Identifier: Apache-2.0 */
/*
 * glaked ends, in any way and at any step, while programs sleep, fall asleep or wake: every byte is there afterwards, and
 * nothing is left behind.
 */
#include <sys/mman.h>

#include <xxhash.h>

#include "daemon/books/kinds.h"
#include "libclient/link/socket.h"
#include "libclient/space/range.h"
#include "proto/glake.pb-c.h"
#include "proto/state.pb-c.h"
#include "tests/harness/models.h"
#include "tests/harness/proxy.h"
#include "tests/harness/run.h"
#include "tests/harness/words.h"

#define CONFIG WORLD_CONFIG "warm_bytes = \"0\"; trust_file_times = true; "
#define DEVICES "1x1GiB"
#define MAX_STEPS 300u

#define PRIVATE_BYTES (6 * MIB)
#define SEALED_BYTES (4 * MIB)
#define SHARED_BYTES (SEALED_BYTES + MODEL_BYTES)
/* Two blocks. */
#define LAYER_BYTES (2 * MIB)
#define MODEL_BYTES (2 * LAYER_BYTES)

static void begin(void)
{
	world_begin(.config = CONFIG, .devices = DEVICES, .is_activated = true, .keeps_fds = true);
}

static void kill_glaked(void)
{
	harness_kill(&harness);
}

static void end_glaked(void)
{
	harness_leave(&harness);
}

static void (*const ends[])(void) = {kill_glaked, end_glaked};

static void assert_nothing_is_left(void)
{
	world_evict_until(&books_before);
	/* Only the mark of the books is kept. */
	fdkeeper_forget(&harness.fdkeeper, "fs");
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	while (fdkeeper_n_kept(&harness.fdkeeper) != 1) {
		ck_assert_uint_lt(harness_now_ms(), end_ms);
		harness_sleep_ms(1);
	}
}

/* ---- a program -------------------------------------------------------------------------------- */

struct victim {
	struct glake_session *session;
	glake_ptr private;
	glake_ptr sealed;
	struct glake_model *model;
	uint64_t content;
};

static const struct model_tensor layers[] = {
	{"a", "U8", 1, {LAYER_BYTES}, 11},
	{"b", "U8", 1, {LAYER_BYTES}, 12},
};

static struct glake_model *open_model(struct glake_session *session)
{
	struct glake_model *model = NULL;
	const char *path = world_path("m.safetensors");
	if (access(path, F_OK) != 0) {
		model_file_write(path, layers, n_elements(layers));
	}
	assert_ok(glake_model_open(session, path, NULL, &model));
	return model;
}

static void check_model(struct glake_session *session, const struct glake_model *model)
{
	for (size_t i = 0; i < n_elements(layers); i++) {
		glake_ptr ptr = world_tensor(model, layers[i].name).ptr;
		ck_assert(world_is_content(session, ptr, LAYER_BYTES, layers[i].seed, 0));
		ck_assert(!words_can_write(ptr));
	}
}

static struct victim begin_victim(void)
{
	words_open_driver();
	struct victim victim = {.session = world_connect(), .content = 7};
	victim.private = words_alloc(victim.session, PRIVATE_BYTES, victim.content);
	victim.sealed = words_alloc(victim.session, SEALED_BYTES, 5);
	words_seal(victim.sealed, SEALED_BYTES);
	victim.model = open_model(victim.session);
	return victim;
}

static void check_victim(struct victim *victim)
{
	words_check(victim->private, PRIVATE_BYTES, victim->content);
	words_check(victim->sealed, SEALED_BYTES, 5);
	check_model(victim->session, victim->model);
	ck_assert(glake__space_is_valid());
	/* The private memory is the program's own, to write to. */
	words_write(victim->private, PRIVATE_BYTES, ++victim->content);
	words_check(victim->private, PRIVATE_BYTES, victim->content);
}

static void end_victim(struct victim *victim)
{
	check_victim(victim);
	assert_ok(glake_free(victim->session, victim->private));
	assert_ok(glake_free(victim->session, victim->sealed));
	glake_model_close(victim->model);
	world_disconnect(victim->session);
}

static int find_sleeper(void *user, const struct glake_sleeper_row *row)
{
	struct glake_sleeper_row *found = user;
	*found = *row;
	ck_assert_str_eq(row->state, "asleep");
	return 0;
}

static struct glake_sleeper_row sleeper(void)
{
	struct glake_sleeper_row found = {.session = 0};
	assert_ok(glake_list_sleepers(eye, find_sleeper, &found));
	return found;
}

static void sleep_until_told(void *user)
{
	struct victim victim = begin_victim();
	assert_ok(glake_sleep(victim.session, 1000, NULL));
	world_reach(1);
	world_await(2);
	assert_ok(glake_wake(victim.session, NULL));
	check_victim(&victim);
	/* And again, now with chunks of this glaked. */
	assert_ok(glake_sleep(victim.session, 1000, NULL));
	assert_ok(glake_wake(victim.session, NULL));
	end_victim(&victim);
}

/* ---- while it sleeps -------------------------------------------------------------------------- */

/* With its block and its model, which are cache, or without. */
START_TEST_WITH(a_sleeper_survives, .n = 4)
{
	begin();
	pid_t client = world_client(sleep_until_told, NULL);
	world_await(1);
	if (_i >= 2) {
		assert_ok(glake_evict(eye, NULL, NULL, NULL));
		ck_assert_uint_eq(world_books().block_bytes, 0);
	}
	const struct books before = world_books();
	const struct glake_sleeper_row row = sleeper();
	ck_assert_uint_ne(row.session, 0);
	ck_assert_uint_ge(before.charged_host_bytes, PRIVATE_BYTES + SHARED_BYTES);
	for (int i = 0; i < 3; i++) {
		ends[_i % 2]();
		harness_restart(&harness);
		world_wait_books(&before);
		const struct glake_sleeper_row now = sleeper();
		ck_assert_uint_eq(now.session, row.session);
		ck_assert_uint_eq(now.private_bytes, PRIVATE_BYTES);
		ck_assert_uint_eq(now.shared_bytes, SHARED_BYTES);
		ck_assert_uint_eq(now.n_sleeps, row.n_sleeps);
		ck_assert_uint_ge(now.asleep_ms, row.asleep_ms);
	}
	ck_assert_uint_eq(harness_n_log_lines(&harness, "lost:"), 0);
	world_reach(2);
	world_join(client);
	assert_nothing_is_left();
}
END_TEST

static void sleep_with_a_large_chunk(void *user)
{
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr large = words_alloc(session, GIB + 2 * MIB, 7);
	assert_ok(glake_sleep(session, 1000, NULL));
	world_reach(1);
	world_await(2);
	assert_ok(glake_wake(session, NULL));
	words_check(large, GIB + 2 * MIB, 7);
	world_disconnect(session);
}

/* Its host memory is one chunk, which is kept like those that many copies share. */
START_TEST_WITH(one_with_a_chunk_larger_than_1_gib_survives, .n = 2)
{
	world_begin(.config = CONFIG, .devices = "1x2GiB", .is_activated = true, .keeps_fds = true);
	pid_t client = world_client(sleep_with_a_large_chunk, NULL);
	world_await(1);
	const struct books before = world_books();
	ck_assert_uint_eq(sleeper().private_bytes, GIB + 2 * MIB);
	ends[_i]();
	harness_restart(&harness);
	world_wait_books(&before);
	ck_assert_uint_eq(sleeper().private_bytes, GIB + 2 * MIB);
	ck_assert_uint_eq(harness_n_log_lines(&harness, "lost:"), 0);
	world_reach(2);
	world_join(client);
	assert_nothing_is_left();
}
END_TEST

/* There is nobody whose memory it is. */
START_TEST(one_that_ends_without_glaked_leaves_nothing)
{
	begin();
	pid_t client = world_client(sleep_until_told, NULL);
	world_await(1);
	kill_glaked();
	world_kill(client);
	harness_restart(&harness);
	assert_nothing_is_left();
}
END_TEST

/* Nobody has the copies any more. glaked says so, and goes on. */
START_TEST(copies_that_were_not_kept_are_said_to_be_lost)
{
	begin();
	pid_t client = world_client(sleep_until_told, NULL);
	world_await(1);
	kill_glaked();
	fdkeeper_forget(&harness.fdkeeper, "h");
	harness_restart(&harness);
	harness_wait_log(&harness, "lost: 3 chunks and blocks of programs that sleep");
	world_kill(client);
	assert_nothing_is_left();
}
END_TEST

static void sleep_no_more(void *user)
{
	struct victim victim = begin_victim();
	world_reach(1);
	world_await(2);
	assert_fails(GLAKE_E_NO_FDS, "no fd since glaked was restarted",
	             glake_sleep(victim.session, 1000, NULL));
	ck_assert(!glake_is_asleep(victim.session));
	/* Memory that the program gets from now on could sleep. */
	assert_ok(glake_free(victim.session, victim.private));
	victim.private = words_alloc(victim.session, PRIVATE_BYTES, victim.content);
	assert_ok(glake_sleep(victim.session, 1000, NULL));
	assert_ok(glake_wake(victim.session, NULL));
	end_victim(&victim);
}

/* Nobody but it has its private memory mapped. */
START_TEST(who_was_awake_during_a_restart_does_not_sleep_with_that_memory)
{
	begin();
	pid_t client = world_client(sleep_no_more, NULL);
	world_await(1);
	kill_glaked();
	harness_restart(&harness);
	world_reach(2);
	world_join(client);
	assert_nothing_is_left();
}
END_TEST

/* ---- places in the fd store ------------------------------------------------------------------- */

static void stay_awake(void *user)
{
	struct victim victim = begin_victim();
	assert_fails(GLAKE_E_NO_FDS, "the fd store is full",
	             glake_sleep(victim.session, 1000, NULL));
	end_victim(&victim);
}

START_TEST(without_a_place_in_the_fd_store_nothing_sleeps)
{
	/* The books' mark, the file system's, and the block. */
	world_begin(.config = CONFIG, .devices = DEVICES, .has_keeper = true, .max_kept = "2");
	world_join(world_client(stay_awake, NULL));
	world_evict_until(&books_before);
}
END_TEST

static void sleep_for_nobody(void *user)
{
	struct victim victim = begin_victim();
	assert_ok(glake_sleep(victim.session, 1000, NULL));
	assert_ok(glake_wake(victim.session, NULL));
	end_victim(&victim);
}

START_TEST(where_nobody_keeps_fds_programs_sleep_all_the_same)
{
	world_begin(.config = CONFIG, .devices = DEVICES);
	world_join(world_client(sleep_for_nobody, NULL));
	world_evict_until(&books_before);
}
END_TEST

/* ---- at each step ----------------------------------------------------------------------------- */

/* The fate of the n-th packet. All processes of a test see it. */
static struct {
	bool is_delivered;
	atomic_bool is_armed;
	atomic_uint n_left;
	atomic_int glaked;
	unsigned n;
} * fate;

static bool on_packet(void *user, struct proxy_packet *packet)
{
	if (!fate->is_armed || --fate->n_left > 0) {
		return true;
	}
	fate->is_armed = false;
	if (fate->is_delivered) {
		/* glaked may begin something or answer something else meanwhile: it dies at no particular moment. */
		usleep(fate->n * 613 % 3000);
	}
	kill(fate->glaked, SIGKILL);
	return fate->is_delivered;
}

/* While there is no glaked, a proxy closes each connection at once. */
static int wake_at_last(struct glake_session *session)
{
	uint64_t end_ms = harness_now_ms() + HARNESS_TIMEOUT_MS;
	int r = glake_wake(session, NULL);
	while (r < 0 && harness_now_ms() < end_ms) {
		harness_sleep_ms(1);
		r = glake_wake(session, NULL);
	}
	return r;
}

/* Whatever glake_sleep() says, nothing is lost. If @has_host, host memory alone has it then, if glaked hears of that. */
static void fall_asleep_and_wake(struct victim *victim, bool has_host)
{
	int r = glake_sleep(victim->session, 1000, NULL);
	ck_assert_msg(r == 0 || !glake_is_asleep(victim->session), "%d: %s", r, glake_error());
	if (has_host) {
		glake_evict(victim->session, NULL, NULL, NULL);
	}
	if (glake_is_asleep(victim->session)) {
		r = wake_at_last(victim->session);
	}
	ck_assert_msg(!glake_is_asleep(victim->session), "%d: %s", r, glake_error());
	check_victim(victim);
}

static void endure(void *user)
{
	const bool *has_proxy = user;
	char rule[32];
	if (*has_proxy) {
		proxy_start(on_packet, NULL);
	}
	struct victim victim = begin_victim();
	if (*has_proxy) {
		fate->n_left = fate->n;
		fate->is_armed = true;
	} else {
		snprintf(rule, sizeof(rule), "glaked/*:%u:die", fate->n);
		world_set_faults(rule);
	}
	fall_asleep_and_wake(&victim, true);
	fall_asleep_and_wake(&victim, false);
	fate->is_armed = false;
	world_set_faults(NULL);
	end_victim(&victim);
}

static bool has_ended(pid_t pid)
{
	return world_state_of(pid, &(pid_t){0}) == 'Z';
}

static void go_on(void)
{
	world_set_faults(NULL);
	harness_restart(&harness);
}

/* Returns whether glaked was killed. */
static bool step(bool has_proxy)
{
	bool is_killed = false;
	fate->glaked = harness.pid;
	pid_t client = world_client(endure, &has_proxy);
	while (!has_ended(client)) {
		if (has_ended(harness.pid)) {
			is_killed = true;
			harness_wait_exit(&harness);
			go_on();
		}
		harness_sleep_ms(1);
	}
	world_join(client);
	if (!is_killed && world_is_killed()) {
		is_killed = true;
		go_on();
	}
	assert_nothing_is_left();
	return is_killed;
}

static void begin_fate(bool is_delivered)
{
	fate = mmap(NULL, sizeof(*fate), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(fate, MAP_FAILED);
	fate->is_delivered = is_delivered;
}

START_TEST_WITH(glaked_is_killed_at_each_packet, .n = 2, .timeout_s = 200)
{
	begin();
	begin_fate(_i > 0);
	do {
		ck_assert_uint_lt(++fate->n, MAX_STEPS);
	} while (step(true));
	printf("%u steps\n", fate->n);
	ck_assert_uint_gt(fate->n, 20);
}
END_TEST

START_TEST_WITH(glaked_is_killed_at_each_call, .timeout_s = 200)
{
	begin();
	begin_fate(false);
	do {
		ck_assert_uint_lt(++fate->n, MAX_STEPS);
	} while (step(false));
	printf("%u steps\n", fate->n);
	ck_assert_uint_gt(fate->n, 5);
}
END_TEST

/* ---- glaked is away for long ------------------------------------------------------------------ */

static bool on_enter(void *user, struct proxy_packet *packet)
{
	Glake__Wire__Request *request = packet->is_answer
	                                        ? NULL
	                                        : glake__wire__request__unpack(
							  NULL, packet->n_bytes, packet->bytes);
	bool is_enter = request && request->body_case == GLAKE__WIRE__REQUEST__BODY_SLEEP_ENTER;
	if (request) {
		glake__wire__request__free_unpacked(request, NULL);
	}
	if (is_enter && fate->is_armed) {
		fate->is_armed = false;
		kill(fate->glaked, SIGKILL);
		return false;
	}
	return true;
}

/* The program has unmapped all, and glaked never heard of it. What then is to be mapped again has copies only. */
static void enter_in_vain(void *user)
{
	proxy_start(on_enter, NULL);
	struct victim victim = begin_victim();
	fate->is_armed = true;
	glake__patience.hello_ms = 100;
	ck_assert_int_eq(glake_sleep(victim.session, 1000, NULL), GLAKE_E_GONE);
	ck_assert(glake_is_asleep(victim.session));
	world_reach(1);
	world_await(2);
	glake__patience.hello_ms = 5000;
	assert_ok(wake_at_last(victim.session));
	end_victim(&victim);
}

/* Memory that an earlier wake has mapped is of the glaked that has gone, and the driver does not unmap it at first. */
static void wake_in_halves(void *user)
{
	struct victim victim = begin_victim();
	glake_ptr more = words_alloc(victim.session, PRIVATE_BYTES, 9);
	assert_ok(glake_sleep(victim.session, 1000, NULL));
	world_set_own_faults("cuMemMap:2:fail=999");
	ck_assert_int_eq(glake_wake(victim.session, NULL), GLAKE_E_CUDA);
	world_reach(1);
	world_await(2);
	world_set_own_faults("cuMemUnmap:1:fail=999");
	ck_assert_int_eq(glake_wake(victim.session, NULL), GLAKE_E_CUDA);
	ck_assert(glake_is_asleep(victim.session));
	world_set_own_faults("");
	assert_ok(glake_wake(victim.session, NULL));
	/* Words that the program writes now sleep next: so this is the memory that glaked knows. */
	check_victim(&victim);
	assert_ok(glake_sleep(victim.session, 1000, NULL));
	assert_ok(glake_wake(victim.session, NULL));
	words_check(more, PRIVATE_BYTES, 9);
	assert_ok(glake_free(victim.session, more));
	end_victim(&victim);
}

START_TEST(what_an_earlier_wake_has_mapped_goes_before_all_comes_anew)
{
	begin();
	pid_t client = world_client(wake_in_halves, NULL);
	world_await(1);
	kill_glaked();
	harness_restart(&harness);
	world_reach(2);
	world_join(client);
	assert_nothing_is_left();
}
END_TEST

START_TEST(a_program_that_could_not_say_that_it_sleeps_wakes_with_all_its_bytes)
{
	begin();
	begin_fate(false);
	fate->glaked = harness.pid;
	pid_t client = world_client(enter_in_vain, NULL);
	world_await(1);
	harness_wait_exit(&harness);
	harness_restart(&harness);
	world_reach(2);
	world_join(client);
	assert_nothing_is_left();
}
END_TEST

/* ---- half a step ------------------------------------------------------------------------------ */

/* As keep/journal.c has it. */
struct header {
	char magic[8];
	uint32_t version;
	uint32_t n_bytes;
	char boot[40];
	uint64_t serial;
	uint64_t checksum;
	uint64_t end;
};

struct record {
	uint32_t n_bytes;
	uint16_t kind;
	uint16_t verb;
	uint64_t id;
	uint64_t checksum;
};

#define PUT 1u
#define DELETE 3u

static uint8_t file[1 << 20];
static size_t end_of_file;

static void append(unsigned verb, unsigned kind, uint64_t id, const void *body, size_t n_bytes)
{
	struct record record = {.n_bytes = (uint32_t)n_bytes,
	                        .kind = (uint16_t)kind,
	                        .verb = (uint16_t)verb,
	                        .id = id};
	const uint64_t seed[2] = {(uint64_t)verb << 48 | (uint64_t)kind << 32 | n_bytes, id};
	record.checksum = XXH3_64bits_withSeed(body, n_bytes, XXH3_64bits(seed, sizeof(seed)));
	memcpy(file + end_of_file, &record, sizeof(record));
	memcpy(file + end_of_file + sizeof(record), body, n_bytes);
	end_of_file += sizeof(record) + ((n_bytes + 7) & ~(size_t)7);
	ck_assert_uint_lt(end_of_file, sizeof(file));
}

static void append_held(uint64_t id, const Glake__State__Slept *slept, uint64_t block)
{
	uint8_t body[256];
	Glake__State__Held held = GLAKE__STATE__HELD__INIT;
	held.holder = slept->holder;
	held.request = slept->request;
	held.was_chunk = slept->was_chunk;
	held.was_known = slept->was_known;
	if (slept->is_block) {
		held.kind = GLAKE__STATE__HELD_KIND__BLOCK;
		held.thing = block;
	} else {
		held.device = slept->device;
		held.bytes = slept->bytes;
	}
	append(PUT, BOOKS_HELD, id, body, glake__state__held__pack(&held, body));
}

/* The program's own, not of its model. */
static bool is_sealed(const uint8_t *body, size_t n_bytes)
{
	Glake__State__Block *block = glake__state__block__unpack(NULL, n_bytes, body);
	ck_assert_ptr_nonnull(block);
	bool is_it = block->bytes == SEALED_BYTES;
	glake__state__block__free_unpacked(block, NULL);
	return is_it;
}

static void append_model(uint64_t id, const uint8_t *record, size_t n_bytes)
{
	uint8_t body[256];
	Glake__State__Held held = GLAKE__STATE__HELD__INIT;
	Glake__State__SleptModel *slept = glake__state__slept_model__unpack(NULL, n_bytes, record);
	ck_assert_ptr_nonnull(slept);
	held.holder = slept->holder;
	held.request = slept->request;
	held.kind = GLAKE__STATE__HELD_KIND__MODEL;
	held.thing = slept->model;
	append(PUT, BOOKS_HELD, id, body, glake__state__held__pack(&held, body));
	glake__state__slept_model__free_unpacked(slept, NULL);
}

/* A chunk, or a block and its model, that sleep are on the GPU as well; and perhaps it is not said to sleep. */
static void write_half_a_step(bool has_chunk, bool has_block, bool is_asleep)
{
	struct header header;
	uint64_t block = 0;
	cleanup_fd int fd = open(world_path("glaked.sock.state"), O_RDWR | O_CLOEXEC);
	ssize_t n_bytes = pread(fd, file, sizeof(file), 0);
	ck_assert_int_gt(n_bytes, (ssize_t)sizeof(header));
	memcpy(&header, file, sizeof(header));
	size_t end = end_of_file = header.end;
	for (size_t at = sizeof(header); at < end;) {
		struct record record;
		memcpy(&record, file + at, sizeof(record));
		const uint8_t *body = file + at + sizeof(record);
		if (record.kind == BOOKS_BLOCK && record.verb == PUT &&
		    is_sealed(body, record.n_bytes)) {
			block = record.id;
		}
		if (record.kind == BOOKS_SLEPT && record.verb == PUT) {
			Glake__State__Slept *slept = glake__state__slept__unpack(
				NULL, record.n_bytes, body);
			ck_assert_ptr_nonnull(slept);
			if (slept->is_block ? has_block : has_chunk) {
				append_held(record.id, slept, block);
			}
			glake__state__slept__free_unpacked(slept, NULL);
		} else if (record.kind == BOOKS_SLEPT_MODEL && record.verb != DELETE && has_block) {
			append_model(record.id, body, record.n_bytes);
		} else if (record.kind == BOOKS_SLEEPER && record.verb == PUT && !is_asleep) {
			append(DELETE, BOOKS_SLEEPER, record.id, "", 0);
		}
		at += sizeof(record) + ((record.n_bytes + 7) & ~(size_t)7);
	}
	header.end = end_of_file;
	memcpy(file, &header, sizeof(header));
	ck_assert_int_eq(ftruncate(fd, 0), 0);
	ck_assert_int_eq(pwrite(fd, file, end_of_file, 0), (ssize_t)end_of_file);
}

/* SleepEnter had begun; a wake was about to end; it had ended, and nothing was mapped. */
static const struct {
	bool has_chunk;
	bool has_block;
	bool is_asleep;
} halves[] = {
	{false, false, true}, {true, false, true},  {true, true, true},    {false, true, true},
	{true, false, false}, {false, true, false}, {false, false, false}, {true, true, false},
};

START_TEST_WITH(half_a_step_is_ended, .n = n_elements(halves))
{
	bool is_copied = halves[_i].has_chunk && halves[_i].has_block && !halves[_i].is_asleep;
	begin();
	pid_t client = world_client(sleep_until_told, NULL);
	world_await(1);
	const struct books before = world_books();
	kill_glaked();
	write_half_a_step(halves[_i].has_chunk, halves[_i].has_block, halves[_i].is_asleep);
	for (int i = 0; i < 2; i++) {
		harness_restart(&harness);
		if (is_copied) {
			ck_assert_uint_eq(sleeper().session, 0);
			ck_assert_uint_eq(world_books().private_bytes, PRIVATE_BYTES);
			ck_assert_uint_eq(world_books().host_bytes, before.host_bytes);
		} else {
			world_wait_books(&before);
			ck_assert_uint_eq(sleeper().private_bytes, PRIVATE_BYTES);
		}
		if (i == 0) {
			kill_glaked();
		}
	}
	world_reach(2);
	world_join(client);
	assert_nothing_is_left();
}
END_TEST

/* ---- under the shim --------------------------------------------------------------------------- */

START_TEST_WITH(a_program_under_the_shim_does_not_notice, .n = 2)
{
	static struct run run;
	begin();
	run_start(&run, NULL, run_in_build("tests/shim/sleep"), "everything", NULL);
	run_read(&run, "ready");
	world_put_to_sleep(run.pid);
	ends[_i]();
	harness_restart(&harness);
	/* The program asks about its memory; then it uses it. */
	run_go_on(&run);
	ck_assert_uint_eq(world_books().private_bytes, 0);
	run_go_on(&run);
	ck_assert_uint_gt(world_books().private_bytes, 48 * MIB);
	world_put_to_sleep(run.pid);
	ends[_i]();
	harness_restart(&harness);
	run_finish(&run);
	assert_nothing_is_left();
}
END_TEST

/* Whether the session sleeps then is not of interest. */
static int pass_over(void *user, const struct glake_sleep_report *report)
{
	return 0;
}

static void ask_to_sleep(void *user)
{
	struct glake_session *session = world_connect_blind();
	glake_sleep_session(session, *(const uint64_t *)user, NULL, pass_over, NULL);
	world_disconnect(session);
}

/* After a while, in which glaked is in the middle of something. */
static void kill_soon(unsigned ms)
{
	harness_sleep_ms(ms);
	kill_glaked();
	harness_restart(&harness);
}

/* At some moment of falling asleep, and of waking. */
START_TEST_WITH(a_program_under_the_shim_loses_nothing_whenever_glaked_dies, .n = 16)
{
	static struct run run;
	begin();
	run_start(&run, NULL, run_in_build("tests/shim/sleep"), "everything", NULL);
	run_read(&run, "ready");
	uint64_t session = world_session_of(run.pid);
	pid_t asker = world_client(ask_to_sleep, &session);
	kill_soon(60 + (unsigned)_i * 8);
	world_join(asker);
	run_go_on(&run);
	run_continue(&run);
	kill_soon((unsigned)_i * 4);
	run_read(&run, "ready");
	run_finish(&run);
	assert_nothing_is_left();
}
END_TEST
