/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory map: who holds what on each GPU now, who shares it, and what it was used for over time; what host memory is used
 * for, and who has his memory there. One page of HTML.
 *
 * Owner: whoever has the struct. Lifetime: {0} is empty; map_deinit(). Threads: one at a time.
 */
#ifndef GLAKE_CTL_MAP_H
#define GLAKE_CTL_MAP_H

#include "ctl/rows.h"
#include "ctl/snapshot.h"

/* Of older ones every second goes when there are so many. */
#define MAP_MAX_SAMPLES 400u

struct map {
	struct rows samples; /* struct map_sample: per time and device */
	size_t n_times;
};

/* Note what each device's memory is used for. Returns 0 or -ENOMEM. */
int map_add(struct map *map, const struct snapshot *snapshot);
void map_deinit(struct map *map);

/* The page of @snapshot; @refresh_s: the browser asks again after so long, 0 = never. Errors of @out stay there. */
void map_write(const struct map *map, const struct snapshot *snapshot, unsigned refresh_s,
               FILE *out);

#endif
