/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of elastic ranges have in common: one range of few steps on a small device, its content and states.
 *
 * Owner: the test that includes it. Threads: any, behind open_range().
 */
#ifndef GLAKE_TESTS_ELASTIC_H
#define GLAKE_TESTS_ELASTIC_H

#include "libclient/glake_elastic.h"
#include "libclient/space/range.h"
#include "tests/harness/words.h"

#define N_LANES 3u
#define CHUNK (2 * MIB)
#define STEP (N_LANES * CHUNK)
#define N_STEPS 8u
#define STRIDE (N_STEPS * CHUNK + 4 * MIB)

/* Room for 16 steps: 96 MiB. */
static inline void elastic_begin(void)
{
	world_begin(.config = WORLD_CONFIG "warm_bytes = 0;", .devices = "1x96MiB");
	words_open_driver();
}

static struct glake_session *session;
static struct glake_elastic *elastic;
static glake_ptr base;

static inline struct glake_elastic_desc desc_of(uint32_t floor_steps, uint32_t flags)
{
	return (struct glake_elastic_desc){
		.size = sizeof(struct glake_elastic_desc),
		.n_lanes = N_LANES,
		.lane_stride = STRIDE,
		.chunk_bytes = CHUNK,
		.n_steps = N_STEPS,
		.floor_steps = floor_steps,
		.flags = flags,
	};
}

static inline void open_range(uint32_t floor_steps, uint32_t flags)
{
	const struct glake_elastic_desc desc = desc_of(floor_steps, flags);
	session = world_connect();
	assert_ok(glake_elastic_open(session, &desc, &elastic, &base));
}

static inline glake_ptr place(uint32_t step, uint32_t lane)
{
	return base + lane * STRIDE + step * CHUNK;
}

static inline void write_step(uint32_t step, unsigned seed)
{
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		words_write(place(step, lane), CHUNK, seed * N_LANES + lane);
	}
}

static inline void check_step(uint32_t step, unsigned seed)
{
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		words_check(place(step, lane), CHUNK, seed * N_LANES + lane);
	}
}

static inline void check_zero(uint32_t step)
{
	static uint8_t bytes[CHUNK];
	static const uint8_t zeroes[CHUNK];
	for (uint32_t lane = 0; lane < N_LANES; lane++) {
		assert_ok(glake_read(session, 0, bytes, place(step, lane), CHUNK));
		ck_assert(memcmp(bytes, zeroes, CHUNK) == 0);
	}
}

static inline uint32_t state_of(uint32_t step)
{
	return __atomic_load_n(&glake_elastic_states(elastic)[step], __ATOMIC_ACQUIRE);
}

static inline bool are_states(const char *letters)
{
	uint32_t i = 0;
	while (letters[i] && "-cHLgxSR"[state_of(i)] == letters[i]) {
		i++;
	}
	return !letters[i];
}

/* The states of the first steps, a letter each. */
static inline void expect_states(const char *letters)
{
	for (uint32_t i = 0; letters[i]; i++) {
		char state = "-cHLgxSR"[state_of(i)];
		ck_assert_msg(state == letters[i], "step %u is '%c', not '%c'", i, state,
		              letters[i]);
	}
}

static inline struct glake_elastic_stats stats(void)
{
	struct glake_elastic_stats now = {.size = sizeof(now)};
	assert_ok(glake_elastic_stats(elastic, &now));
	return now;
}

static inline void commit(uint32_t first, uint32_t n)
{
	uint32_t n_got = 99;
	assert_ok(glake_elastic_commit(elastic, first, n, &n_got));
	ck_assert_uint_eq(n_got, n);
}

#endif
