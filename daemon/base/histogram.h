/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long something took, many times: a count for each of some ranges of durations.
 *
 * Owner: whoever has the struct. Zeroed memory is ready. Threads: one.
 */
#ifndef GLAKE_DAEMON_HISTOGRAM_H
#define GLAKE_DAEMON_HISTOGRAM_H

#include <stdint.h>

/* Upper bounds, those included: 1, 3, 10, 30 ... from 10 us to 300 s. What is above has a bucket, too. */
#define HISTOGRAM_N_BOUNDS 16u
#define HISTOGRAM_N_BUCKETS (HISTOGRAM_N_BOUNDS + 1)

extern const uint64_t histogram_bounds_ns[HISTOGRAM_N_BOUNDS];

struct histogram {
	uint64_t counts[HISTOGRAM_N_BUCKETS];
	uint64_t sum_ns;
};

void histogram_add(struct histogram *histogram, uint64_t ns);

#endif
