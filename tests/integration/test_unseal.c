/* SPDX-License-Identifier: Apache-2.0 */
/* Unsealing many blocks at once: the program is held back once, and every block is private or as it was. */
#include "libclient/glake_admin.h"
#include "libclient/glake_shim.h"
#include "libclient/link/session.h"
#include "libclient/space/range.h"
#include "tests/harness/words.h"

#define N 40u
#define BLOCK (2 * MIB)

static void begin_blind(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"0\";", .devices = "1x4GiB");
}

static void begin(void)
{
	begin_blind();
	words_open_driver();
}
BEGIN_EACH(begin)

/* ---- a gate that counts ------------------------------------------------------------------------- */

static struct {
	unsigned n_closings;
	unsigned n_tries;
	bool is_closed;
} gate;

static int close_gate(void *user, uint64_t patience_ns)
{
	(void)user;
	(void)patience_ns;
	gate.n_closings++;
	gate.is_closed = true;
	return 0;
}

static void open_gate(void *user)
{
	(void)user;
	gate.is_closed = false;
}

/* A busy GPU may not have copied in time: what it has not is asked for again. */
static unsigned closings_of(const struct glake_span *spans, size_t n, int expected)
{
	int r;
	gate = (__typeof__(gate)){.n_closings = 0};
	glake__space.gate = (struct glake__gate){.close = close_gate, .open = open_gate};
	do {
		gate.n_tries++;
		r = glake_unseal_spans(spans, n);
	} while (r == -EBUSY && r != expected);
	glake__space.gate = (struct glake__gate){.close = NULL};
	ck_assert_msg(r == expected, "%d: %s", r, glake_error());
	ck_assert(!gate.is_closed);
	ck_assert(glake__space_is_valid());
	return gate.n_closings;
}

/* ---- what two sessions have --------------------------------------------------------------------- */

/* Sealed, each an allocation, with the contents 0, 1, 2 ... */
static void seal_blocks(struct glake_session *session, struct glake_span *spans)
{
	for (unsigned i = 0; i < N; i++) {
		spans[i] = (struct glake_span){words_alloc(session, BLOCK, i), BLOCK};
	}
	assert_ok(glake_seal(spans, N, NULL));
}

/* Returns how many are private; the content of all is as it was. */
static unsigned count_private(const struct glake_span *spans)
{
	unsigned n = 0;
	for (unsigned i = 0; i < N; i++) {
		words_check(spans[i].ptr, BLOCK, i);
		if (words_can_write(spans[i].ptr)) {
			n++;
			words_write(spans[i].ptr, BLOCK, i);
		}
	}
	return n;
}

START_TEST(many_become_private_while_the_program_is_held_back_once)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	struct glake_span first[N];
	struct glake_span second[N];
	struct glake_span asked[N + 2];
	seal_blocks(one, first);
	seal_blocks(two, second);
	/* In any order, one twice, and one that was never sealed. */
	for (unsigned i = 0; i < N; i++) {
		asked[i] = second[N - 1 - i];
	}
	asked[N] = (struct glake_span){second[3].ptr + MIB, MIB};
	asked[N + 1] = (struct glake_span){words_alloc(two, BLOCK, 99), BLOCK};
	ck_assert_uint_eq(closings_of(asked, N + 2, 0), gate.n_tries);
	ck_assert_uint_eq(count_private(second), N);
	ck_assert_uint_eq(count_private(first), 0);
	words_check(asked[N + 1].ptr, BLOCK, 99);
	ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
	/* There is nothing to do any more. */
	ck_assert_uint_eq(closings_of(second, N, 0), 0);
	ck_assert_uint_eq(closings_of(NULL, 0, 0), 0);
}
END_TEST

START_TEST(what_is_no_allocation_changes_nothing)
{
	struct glake_session *session = world_connect();
	struct glake_span spans[N];
	seal_blocks(session, spans);
	spans[7].bytes++;
	ck_assert_uint_eq(closings_of(spans, N, -EINVAL), 0);
	spans[7] = (struct glake_span){4096, 4096};
	ck_assert_uint_eq(closings_of(spans, N, -EINVAL), 0);
	spans[7] = spans[6];
	for (unsigned i = 0; i < N; i++) {
		ck_assert(!words_can_write(spans[i].ptr));
	}
}
END_TEST

/* ---- little memory ------------------------------------------------------------------------------ */

/* Nobody else has these blocks: what became private leaves its block as cache, which makes room for the next. */
START_TEST(without_room_for_all_they_follow_each_other)
{
	struct glake_span spans[N];
	struct glake_session *session = world_connect();
	seal_blocks(session, spans);
	assert_ok(glake_set_quota(session, "default", 0, (N + 6) * BLOCK));
	unsigned n_closings = closings_of(spans, N, 0);
	ck_assert_uint_gt(n_closings, 1);
	ck_assert_uint_lt(n_closings, gate.n_tries * N / 2);
	ck_assert_uint_eq(count_private(spans), N);
}
END_TEST

/* Another session has them, too, so that no room comes: what there was room for is private, the rest sealed. */
START_TEST(without_more_room_the_rest_stays_sealed)
{
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	struct glake_span first[N];
	struct glake_span second[N];
	seal_blocks(one, first);
	seal_blocks(two, second);
	assert_ok(glake_set_quota(one, "default", 0, (N + 6) * BLOCK));
	closings_of(second, N, GLAKE_E_OVER_QUOTA);
	ck_assert_uint_eq(count_private(second), 6);
	ck_assert_uint_eq(count_private(first), 0);
	ck_assert_uint_eq(world_usage(two).shared_bytes, (N - 6) * BLOCK);
}
END_TEST

static void begin_small(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = \"64MiB\"; reserve_bytes = \"0\";",
	            .devices = "1x192MiB");
}

/* Has warm memory, and gives it when it is asked. */
static void keep_warm(void *user)
{
	(void)user;
	words_open_driver();
	struct glake_session *session = world_connect();
	assert_ok(glake_free(session, words_alloc(session, 60 * MIB, 1)));
	ck_assert_uint_eq(world_usage(session).warm_bytes, 60 * MIB);
	world_reach(1);
	while (atomic_load(world_stage) < 2) {
		ck_assert_int_ge(glake_dispatch(session), 0);
		usleep(1000);
	}
	ck_assert_uint_eq(world_usage(session).warm_bytes, 60 * MIB);
}

/* Beyond the first block only free memory is wanted: no other program gives its warm memory for it. */
START_TEST_WITH(nobody_else_makes_room_for_more_than_one, .begin = begin_small)
{
	struct glake_span spans[N];
	pid_t other = world_client(keep_warm, NULL);
	world_await(1);
	words_open_driver();
	struct glake_session *session = world_connect();
	seal_blocks(session, spans);
	ck_assert_uint_gt(closings_of(spans, N, 0), 1);
	ck_assert_uint_eq(count_private(spans), N);
	world_reach(2);
	world_join(other);
}
END_TEST

/* ---- faults ------------------------------------------------------------------------------------- */

/* The driver fails once, at each call in turn. */
static void unseal_with_faults(void *user)
{
	(void)user;
	words_open_driver();
	struct glake_session *one = world_connect();
	struct glake_session *two = world_connect();
	glake_ptr first = words_alloc(one, 2 * BLOCK, 1);
	words_seal(first, 2 * BLOCK);
	unsigned n_failed = 0;
	for (unsigned n = 1; n < 60 || (n_failed <= 20 && n < 1000); n++) {
		struct glake_span spans[2];
		char rule[64];
		for (unsigned i = 0; i < 2; i++) {
			spans[i] = (struct glake_span){words_alloc(two, 2 * BLOCK, 1), 2 * BLOCK};
		}
		assert_ok(glake_seal(spans, 2, NULL));
		snprintf(rule, sizeof(rule), "*:%u:fail=1", n);
		world_set_own_faults(rule);
		n_failed += glake_unseal_spans(spans, 2) < 0;
		world_set_own_faults(NULL);
		for (unsigned i = 0; i < 2; i++) {
			words_check(spans[i].ptr, 2 * BLOCK, 1);
		}
		words_check(first, 2 * BLOCK, 1);
		assert_ok(glake_unseal_spans(spans, 2));
		for (unsigned i = 0; i < 2; i++) {
			words_write(spans[i].ptr, 2 * BLOCK, 3);
		}
		words_check(first, 2 * BLOCK, 1);
		for (unsigned i = 0; i < 2; i++) {
			assert_ok(glake_free(two, spans[i].ptr));
		}
		assert_ok(glake_trim(two, 0, 0));
		ck_assert_uint_eq(world_usage(two).reserved_bytes, 0);
		ck_assert_uint_eq(world_usage(two).shared_bytes, 0);
		ck_assert_uint_eq(world_row(two).n_chunks, 0);
		ck_assert(glake__space_is_valid());
	}
	ck_assert_uint_gt(n_failed, 20);
}

/* In a process of its own: handles that the driver does not release go with it. */
START_TEST_WITH(no_byte_is_lost_when_the_driver_fails, .begin = begin_blind)
{
	world_join(world_client(unseal_with_faults, NULL));
}
END_TEST
