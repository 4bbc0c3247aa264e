/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of processes over time, as one HTML file that needs nothing else: an area of what is reserved, in
 * front of it what is live, the utilization below, and a table of the numbers.
 *
 * Owner: whoever has the struct. Lifetime: picture_init() to picture_deinit(). Threads: one.
 */
#ifndef GLAKE_CTL_PICTURE_H
#define GLAKE_CTL_PICTURE_H

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "ctl/memory.h"
#include "ctl/rows.h"

struct picture {
	time_t begin; /* of the first sample */
	size_t max_samples;
	size_t n_samples;
	uint64_t *at_ms;    /* owned: of each sample, since the first */
	struct rows series; /* struct series: one per session */
};

/* Returns 0 or -ENOMEM; either way it is to be ended. */
int picture_init(struct picture *picture, size_t max_samples);
void picture_deinit(struct picture *picture);

/* One more sample, at most max_samples. Returns 0 or -ENOMEM: then the picture is as before. */
int picture_add(struct picture *picture, uint64_t at_ms, const struct memory *memory);

/* Errors of @out are left there. Returns 0 or -ENOMEM. */
int picture_write(const struct picture *picture, FILE *out);

#endif
