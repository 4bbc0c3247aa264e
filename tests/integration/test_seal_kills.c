/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL at each step of sealing and unsealing: of the program, of the mover, of glaked. A step is a call of the
 * driver, or a packet. Every other process has its bytes, the books are level, and a program that lives on has
 * its bytes, too.
 */
#include <sys/mman.h>
#include <sys/socket.h>

#include "libclient/link/socket.h"
#include "libclient/space/range.h"
#include "proto/glake.pb-c.h"
#include "tests/harness/proxy.h"
#include "tests/harness/run.h"
#include "tests/harness/words.h"

#define DEVICES "1x1GiB"
/* More than there are, questions whether work is over included: it is a mistake of the test. */
#define MAX_STEPS 2000

/* Under a sanitizer all takes much longer: then each seventh step. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STRIDE 7u
#else
#define STRIDE 1u
#endif

/* ---- the two sides --------------------------------------------------------------------------- */

/* Has sealed what the victim will seal, too. Between two stages it does nothing: calls are counted. */
static void keep(void *user)
{
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr ptr = words_alloc(session, 4 * MIB, 1);
	words_seal(ptr, 4 * MIB);
	int stage = atomic_load(world_stage);
	world_reach(stage + 1);
	for (;;) {
		world_await(stage + 2);
		words_check(ptr, 4 * MIB, 1);
		ck_assert(!words_can_write(ptr));
		stage += 2;
		world_reach(stage + 1);
	}
}

static pid_t begin_keeper(void)
{
	int stage = atomic_load(world_stage);
	pid_t keeper = world_client(keep, NULL);
	world_await(stage + 1);
	return keeper;
}

static void check_keeper(void)
{
	int stage = atomic_load(world_stage);
	world_reach(stage + 1);
	world_await(stage + 2);
}

/* Half of it is what the keeper has, in a chunk that must be cut; the other half is nobody's. */
struct victim {
	struct glake_session *session;
	glake_ptr ptr;
	int result; /* the first error */
};

static struct victim begin_victim(void)
{
	words_open_driver();
	struct victim victim = {.session = world_connect()};
	victim.ptr = words_alloc(victim.session, 6 * MIB, 1);
	words_write(victim.ptr + 4 * MIB, 2 * MIB, 2);
	return victim;
}

static void note(struct victim *victim, int r)
{
	victim->result = victim->result ? victim->result : r;
}

/* Cut, share, seal, copy. */
static void seal_and_unseal(struct victim *victim)
{
	const struct glake_span shared = {victim->ptr, 4 * MIB};
	const struct glake_span own = {victim->ptr + 4 * MIB, 2 * MIB};
	note(victim, when_let(glake_seal(&shared, 1, NULL)));
	note(victim, when_let(glake_seal(&own, 1, NULL)));
	note(victim, glake_unseal(victim->ptr, 1));
	note(victim, glake_unseal(victim->ptr + 4 * MIB, 1));
}

/*
 * The victim has its bytes, and the pages that it may write to are its own, as others will see. These are all pages, if it
 * was @is_unsealed without an error.
 */
static void check_victim(const struct victim *victim, bool is_unsealed)
{
	words_check(victim->ptr, 4 * MIB, 1);
	words_check(victim->ptr + 4 * MIB, 2 * MIB, 2);
	ck_assert(glake__space_is_valid());
	for (unsigned i = 0; i < 3; i++) {
		glake_ptr page = victim->ptr + i * 2 * MIB;
		if (words_can_write(page)) {
			words_write(page, 2 * MIB, 3);
			words_check(page, 2 * MIB, 3);
		} else {
			ck_assert(!is_unsealed || victim->result < 0);
		}
	}
}

/* ---- the program ----------------------------------------------------------------------------- */

static void die_at_call(void *user)
{
	char rule[32];
	struct victim victim = begin_victim();
	snprintf(rule, sizeof(rule), "*:%u:die", *(const unsigned *)user);
	world_set_own_faults(rule);
	seal_and_unseal(&victim);
	world_set_own_faults(NULL);
	ck_assert_int_eq(victim.result, 0);
	check_victim(&victim, true);
}

/* True: it was killed; false: it came to its end. */
static bool was_killed(pid_t victim)
{
	int status;
	ck_assert_int_eq(waitpid(victim, &status, 0), victim);
	bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	ck_assert_msg(is_killed || status == 0, "the victim ended with status 0x%x", status);
	return is_killed;
}

START_TEST_WITH(a_program_is_killed_at_each_call, .timeout_s = 100)
{
	world_begin(.config = WORLD_CONFIG, .devices = DEVICES);
	pid_t keeper = begin_keeper();
	const struct books books = world_books();
	unsigned n = 0;
	bool is_killed = true;
	while (is_killed) {
		ck_assert_uint_lt(n += STRIDE, MAX_STEPS);
		is_killed = was_killed(world_client(die_at_call, &n));
		world_set_own_faults(NULL);
		world_evict_until(&books);
		check_keeper();
	}
	printf("%u steps\n", n);
	ck_assert_uint_gt(n, 40);
	world_kill(keeper);
}
END_TEST

/* As the test above, under the shim: memory of cuMemAlloc() is sealed, and a write of the program copies. */
START_TEST_WITH(a_program_under_the_shim_is_killed_at_each_call, .timeout_s = 100)
{
	static struct run keeper;
	static struct run victim;
	const char *program = run_in_build("tests/shim/seal");
	world_begin(.config = WORLD_CONFIG, .devices = DEVICES);
	run_start(&keeper, NULL, program, "keep", NULL);
	run_read(&keeper, "ready");
	const struct books books = world_books();
	unsigned n = 0;
	int status = SIGKILL;
	while (status == SIGKILL) {
		char rule[32];
		ck_assert_uint_lt(n += STRIDE, MAX_STEPS);
		snprintf(rule, sizeof(rule), "victim/*:%u:die", n);
		run_start(&victim, NULL, program, "be_killed", NULL);
		run_read(&victim, "ready");
		world_set_own_faults(rule);
		run_continue(&victim);
		status = run_end(&victim);
		world_set_own_faults(NULL);
		ck_assert_msg(status == 0 || status == SIGKILL, "status 0x%x:\n%s", status,
		              victim.text);
		world_evict_until(&books);
		run_go_on(&keeper);
	}
	printf("%u steps\n", n);
	ck_assert_uint_gt(n, 60);
	kill(keeper.pid, SIGKILL);
	run_end(&keeper);
}
END_TEST

/* ---- the mover ------------------------------------------------------------------------------- */

static void seal_without_mover(void *user)
{
	struct victim victim = begin_victim();
	const struct glake_span shared = {victim.ptr, 4 * MIB};
	struct glake_sealed sealed = {.size = sizeof(sealed)};
	unsigned n = 0;
	unsigned n_failed = 0;
	unsigned n_well = 0;
	while (n_well < 3) {
		char rule[64];
		ck_assert_uint_lt(n += STRIDE, MAX_STEPS);
		snprintf(rule, sizeof(rule), "glake-mover/*:%u:die", n);
		victim.result = 0;
		world_set_faults(rule);
		seal_and_unseal(&victim);
		world_set_faults(NULL);
		ck_assert_msg(victim.result == 0 || victim.result == GLAKE_E_MOVER, "%d",
		              victim.result);
		n_failed += victim.result < 0;
		n_well = victim.result < 0 ? 0 : n_well + 1;
		check_victim(&victim, true);
		/* And afterwards it works. */
		assert_ok(glake_unseal(victim.ptr, 6 * MIB));
		words_write(victim.ptr, 4 * MIB, 1);
		words_write(victim.ptr + 4 * MIB, 2 * MIB, 2);
		assert_ok(when_let(glake_seal(&shared, 1, &sealed)));
		ck_assert_uint_eq(sealed.shared_bytes, 4 * MIB);
		assert_ok(glake_unseal(victim.ptr, 6 * MIB));
		check_keeper();
	}
	printf("%u of %u killed\n", n_failed, n);
	ck_assert_uint_gt(n_failed * STRIDE, 20);
}

/* One that works already, or has to start for each job. */
START_TEST_WITH(the_mover_is_killed_at_each_call, .n = 2, .timeout_s = 200)
{
	world_begin(.config = _i ? "pool = (); drain_ms = 300; mover_idle_ms = 1; " : WORLD_CONFIG,
	            .devices = DEVICES);
	pid_t keeper = begin_keeper();
	const struct books books = world_books();
	world_join(world_client(seal_without_mover, NULL));
	world_evict_until(&books);
	world_kill(keeper);
}
END_TEST

/* ---- glaked ---------------------------------------------------------------------------------- */

/* No other glaked comes before the victim's end, so it need not wait for one. */
static void expect_no_other(void)
{
	glake__patience.hello_ms = 100;
}

static void check_result(const struct victim *victim)
{
	ck_assert_msg(victim->result == 0 || victim->result == GLAKE_E_GONE, "%d", victim->result);
}

static void seal_without_glaked(void *user)
{
	char rule[32];
	struct victim victim = begin_victim();
	snprintf(rule, sizeof(rule), "glaked/*:%u:die", *(const unsigned *)user);
	world_set_faults(rule);
	expect_no_other();
	seal_and_unseal(&victim);
	world_set_faults(NULL);
	check_result(&victim);
	check_victim(&victim, true);
	glake_free(victim.session, victim.ptr);
}

/* Returns whether glaked was killed; there is another one then. */
static bool restart_if_killed(void)
{
	bool is_killed = world_is_killed();
	if (is_killed) {
		world_restart();
	}
	return is_killed;
}

/* Both sides, one step. Returns whether glaked was killed; there is another one then. */
static bool kill_glaked(world_fn victim, unsigned n)
{
	pid_t keeper = begin_keeper();
	world_join(world_client(victim, &n));
	world_set_faults(NULL);
	check_keeper();
	world_kill(keeper);
	return restart_if_killed();
}

START_TEST_WITH(glaked_is_killed_at_each_call, .timeout_s = 100)
{
	world_begin(.config = WORLD_CONFIG, .devices = DEVICES);
	unsigned n = 0;
	do {
		ck_assert_uint_lt(n += STRIDE, MAX_STEPS);
	} while (kill_glaked(seal_without_glaked, n));
	printf("%u steps\n", n);
	ck_assert_uint_gt(n, 5);
}
END_TEST

/* The fate of the n-th packet, and of those behind it. All processes of a test see it. */
enum fate { LOST, LOST_WITH_GLAKED, LAST_OF_GLAKED };

static struct {
	enum fate how;
	atomic_bool is_armed;
	atomic_uint n_left;
	pid_t glaked;
} * fate;

static void begin_fate(enum fate how)
{
	fate = mmap(NULL, sizeof(*fate), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert_ptr_ne(fate, MAP_FAILED);
	fate->how = how;
}

static void arm(unsigned n)
{
	fate->n_left = n;
	fate->glaked = harness.pid;
	fate->is_armed = true;
}

static bool on_packet(void *user, struct proxy_packet *packet)
{
	if (!fate->is_armed || --fate->n_left > 0) {
		return true;
	}
	fate->is_armed = false;
	if (fate->how == LAST_OF_GLAKED) {
		/* glaked may begin something or answer something else meanwhile: it dies at no particular moment. */
		usleep(2000);
	}
	if (fate->how != LOST) {
		kill(fate->glaked, SIGKILL);
	}
	return fate->how == LAST_OF_GLAKED;
}

static void lose_packet(void *user)
{
	proxy_start(on_packet, NULL);
	struct victim victim = begin_victim();
	arm(*(const unsigned *)user);
	expect_no_other();
	seal_and_unseal(&victim);
	fate->is_armed = false;
	check_result(&victim);
	check_victim(&victim, true);
	glake_free(victim.session, victim.ptr);
}

START_TEST_WITH(glaked_is_killed_at_each_packet, .n = 2, .timeout_s = 100)
{
	world_begin(.config = WORLD_CONFIG, .devices = DEVICES);
	begin_fate(_i == 1 ? LAST_OF_GLAKED : LOST_WITH_GLAKED);
	unsigned n = 0;
	do {
		ck_assert_uint_lt(n += STRIDE, MAX_STEPS);
	} while (kill_glaked(lose_packet, n));
	printf("%u steps\n", n);
	ck_assert_uint_gt(n, 10);
}
END_TEST

/* Under the shim a program does not notice. Returns whether glaked was killed; there is another one then. */
static bool endure(const char *socket, const char *rule, unsigned n)
{
	static struct run run;
	pid_t keeper = begin_keeper();
	run_start(&run, socket, run_in_build("tests/shim/seal"), "endure", NULL);
	run_read(&run, "ready");
	if (!rule) {
		arm(n);
	}
	world_set_faults(rule);
	run_finish(&run);
	world_set_faults(NULL);
	fate->is_armed = false;
	check_keeper();
	world_kill(keeper);
	return restart_if_killed();
}

static void be_between(void *user)
{
	proxy_start(on_packet, NULL);
	world_reach(1);
	pause();
}

START_TEST_WITH(a_program_under_the_shim_does_not_notice, .n = 3, .timeout_s = 100)
{
	world_begin(.config = WORLD_CONFIG, .devices = DEVICES);
	begin_fate(_i == 1 ? LAST_OF_GLAKED : LOST_WITH_GLAKED);
	/* To glaked, the program is this process, and ends with it. */
	pid_t between = _i > 0 ? world_client(be_between, NULL) : 0;
	if (between) {
		world_await(1);
		world_reach(0);
	}
	unsigned n = 0;
	char rule[32];
	char socket[300];
	snprintf(socket, sizeof(socket), "GLAKE_SOCKET=%s", world_path("proxy.sock"));
	do {
		/* Not each step: the shim waits 5 s for the next glaked. */
		ck_assert_uint_lt(n += 7, MAX_STEPS);
		snprintf(rule, sizeof(rule), "glaked/*:%u:die", n);
	} while (endure(between ? socket : NULL, between ? NULL : rule, n));
	printf("%u steps\n", n);
	ck_assert_uint_gt(n, 5);
	if (between) {
		world_kill(between);
	}
}
END_TEST

/* ---- the connection -------------------------------------------------------------------------- */

/* Seals without unsealing; then others may have what it had. */
static void lose_connection(void *user)
{
	proxy_start(on_packet, NULL);
	struct victim victim = begin_victim();
	const struct glake_span shared = {victim.ptr, 4 * MIB};
	const struct glake_span own = {victim.ptr + 4 * MIB, 2 * MIB};
	arm(*(const unsigned *)user);
	note(&victim, glake_seal(&shared, 1, NULL));
	note(&victim, glake_seal(&own, 1, NULL));
	bool is_over = fate->is_armed;
	fate->is_armed = false;
	/* Memory without a block, or whose block it could not be told of, stays private or read-only. */
	world_reach(1);
	world_await(2);
	check_victim(&victim, false);
	assert_ok(glake_free(victim.session, victim.ptr));
	ck_assert_uint_eq(world_usage(victim.session).reserved_bytes, 0);
	ck_assert_uint_eq(world_usage(victim.session).shared_bytes, 0);
	world_reach(is_over ? 4 : 3);
}

/* Has what the victim sealed, if it did. */
static void share_with_victim(void *user)
{
	words_open_driver();
	struct glake_session *session = world_connect();
	glake_ptr shared = words_alloc(session, 4 * MIB, 1);
	glake_ptr own = words_alloc(session, 2 * MIB, 2);
	words_seal(shared, 4 * MIB);
	words_seal(own, 2 * MIB);
	world_reach(2);
	world_await(3);
	words_check(shared, 4 * MIB, 1);
	words_check(own, 2 * MIB, 2);
}

START_TEST_WITH(a_connection_is_lost_at_each_packet, .timeout_s = 100)
{
	world_begin(.config = WORLD_CONFIG, .devices = DEVICES);
	begin_fate(LOST);
	unsigned n = 0;
	do {
		ck_assert_uint_lt(n += STRIDE, MAX_STEPS);
		world_reach(0);
		pid_t victim = world_client(lose_connection, &n);
		world_await(1);
		world_join(world_client(share_with_victim, NULL));
		world_join(victim);
		world_evict_until(&books_before);
	} while (atomic_load(world_stage) < 4);
	printf("%u steps\n", n);
	ck_assert_uint_gt(n, 8);
}
END_TEST

static atomic_bool loses_publications;
static atomic_bool has_lost_release;

static bool lose_by_kind(void *user, struct proxy_packet *packet)
{
	Glake__Wire__Request *request = packet->is_answer
	                                        ? NULL
	                                        : glake__wire__request__unpack(
							  NULL, packet->n_bytes, packet->bytes);
	bool is_lost = false;
	if (request && request->body_case == GLAKE__WIRE__REQUEST__BODY_BLOCK_PUBLISH) {
		is_lost = loses_publications;
	} else if (request && request->body_case == GLAKE__WIRE__REQUEST__BODY_BLOCK_RELEASE) {
		is_lost = !atomic_exchange(&has_lost_release, true);
	}
	if (request) {
		glake__wire__request__free_unpacked(request, NULL);
	}
	return !is_lost;
}

/* The library does not know if it is a block, and tells glaked with the next connection. */
START_TEST(memory_whose_publication_was_lost_is_given_back)
{
	world_begin(.config = WORLD_CONFIG, .devices = DEVICES);
	loses_publications = true;
	proxy_start(lose_by_kind, NULL);
	words_open_driver();
	struct glake_session *session = world_connect();
	const struct glake_span span = {words_alloc(session, 4 * MIB, 1), 4 * MIB};
	ck_assert_int_eq(glake_seal(&span, 1, NULL), GLAKE_E_GONE);
	loses_publications = false;
	words_check(span.ptr, 4 * MIB, 1);
	assert_ok(glake_free(session, span.ptr));
	ck_assert_uint_eq(world_row(session).reserved_bytes, 0);
}
END_TEST
