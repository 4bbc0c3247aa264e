/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of what clients do to each other: a glaked, and a witness, a session that asks for
 * little and must be served in time whatever the others do.
 *
 *     start_with(&quiet);
 *     ... whatever the others do ...
 *     witness_is_served();
 *     stop();
 *
 * stop() wants as many fds as there were at the start, and that glaked ends well.
 *
 * Owner: one Check test, in its forked process. Threads: one.
 */
#ifndef GLAKE_TESTS_WITNESS_H
#define GLAKE_TESTS_WITNESS_H

#include <stdint.h>
#include <sys/resource.h>

#include "tests/check_glake.h"
#include "tests/harness/connection.h"

#define CHUNK_BYTES (2u * 1024 * 1024)
/* What an allocator may keep or place otherwise from one round to the next. */
#define RSS_SLACK_BYTES (4u * 1024 * 1024)
/* How long a session may wait for an answer while others misbehave. */
#define PATIENCE_MS 2000u

/* No pool, and a mover that stays: then the number of fds is a matter of clients alone. */
static const struct harness_options quiet = {
	.config = "pool = (); mover_idle_ms = 0; drain_ms = 200; max_sessions = 10000;",
};

static struct harness harness;
static int witness = -1;
static size_t n_fds_before;

/* Test and glaked may open as many files as the hard limit lets them, unless @options say less. */
static inline void start_with(const struct harness_options *options)
{
	struct rlimit limit;
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	harness_start(&harness, options);
	witness = connection_hello(&harness);
	n_fds_before = harness_settle_n_fds(&harness);
}

static inline void stop(void)
{
	connection_ping(witness);
	harness_wait_n_fds(&harness, n_fds_before);
	connection_close(&witness);
	harness_stop(&harness);
}

/* The witness is answered in time. */
static inline void witness_is_served(void)
{
	uint64_t start_ms = harness_now_ms();
	connection_ping(witness);
	uint64_t took_ms = harness_now_ms() - start_ms;
	ck_assert_msg(took_ms < PATIENCE_MS, "a Ping took %llu ms", (unsigned long long)took_ms);
}

/* Do it twice to fill all caches, then twice more: the memory must not grow with each. */
static inline void repeated_without_growth(void (*round)(void))
{
	for (unsigned i = 0; i < 2; i++) {
		round();
		harness_wait_n_fds(&harness, n_fds_before);
	}
	uint64_t before = harness_rss_bytes(&harness);
	for (unsigned i = 0; i < 2; i++) {
		round();
		harness_wait_n_fds(&harness, n_fds_before);
	}
	uint64_t after = harness_rss_bytes(&harness);
	ck_assert_msg(TEST_SANITIZED || after <= before + RSS_SLACK_BYTES,
	              "resident %llu KiB, then %llu KiB", (unsigned long long)before / 1024,
	              (unsigned long long)after / 1024);
}

#endif
