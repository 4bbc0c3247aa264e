/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each random test has: a seed that is printed, a choice, and memory whose words are all the same. Tests that
 * run programs of tests/shim at random start them with churn_start().
 *
 * $GLAKE_RANDOM_SEED repeats a run, as far as threads and timing allow; $GLAKE_RANDOM_SECONDS makes it longer.
 *
 * Programs of tests/shim get nothing of ours, so all that they use is inline. Threads: any, each with a state of its own.
 */
#ifndef GLAKE_TESTS_HARNESS_CHURN_H
#define GLAKE_TESTS_HARNESS_CHURN_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/bytes.h"

struct run;

/* One of [0, n): n is not 0. @state is of rand_r(). */
static inline unsigned churn_pick(unsigned *state, unsigned n)
{
	return (unsigned)rand_r(state) % n;
}

/* In these and in churn_wrong_at() n_bytes is a multiple of 4. ThreadSanitizer need not see each word. */
TEST_BYTE_LOOP static inline void churn_fill(uint32_t *words, size_t n_bytes, uint32_t value)
{
	for (size_t i = 0; i < n_bytes / 4; i++) {
		words[i] = value;
	}
}

/* The offset of the first word that is not @value; n_bytes if there is none. */
TEST_BYTE_LOOP static inline size_t churn_wrong_at(const uint32_t *words, size_t n_bytes,
                                                   uint32_t value)
{
	size_t i = 0;
	while (i < n_bytes / 4 && words[i] == value) {
		i++;
	}
	return i * 4;
}

/* $GLAKE_RANDOM_SEED, or the time. Printed. */
unsigned churn_seed(void);

/* $GLAKE_RANDOM_SECONDS, or @otherwise. */
unsigned churn_seconds(unsigned otherwise);

/* Run a program of tests/shim with the arguments SEED NUMBER. @extra: as for run_start(). */
void churn_start(struct run *run, const char *extra, const char *program, unsigned seed,
                 unsigned number);

/* Kill it; it may have ended well just before. */
void churn_kill(struct run *run);

/* All of them must end well; what they say is printed. */
void churn_end(struct run *runs, size_t n_runs);

#endif
