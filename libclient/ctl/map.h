/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory map: who holds what on each GPU now, who shares it, and what it was used for over time; what host memory is used
 * for, and who has his memory there. One JSON document (docs/status.md says what is in it), which a page shows.
 *
 * Owner: whoever has the struct. Lifetime: {0} is empty; map_deinit(). Threads: one at a time.
 */
#ifndef GLAKE_CTL_MAP_H
#define GLAKE_CTL_MAP_H

#include <jansson.h>

#include "ctl/identity.h"
#include "ctl/rows.h"
#include "ctl/snapshot.h"

/* When there are this many samples, every second of the older ones goes. */
#define MAP_MAX_SAMPLES 400u

/* The version grows when something is taken away or means something else; what is new does not change it. */
#define MAP_DOCUMENT_VERSION 1

struct map {
	struct rows samples; /* struct map_sample: per time and device */
	size_t n_times;
};

/* Note what each device's memory is used for. Returns 0 or -ENOMEM. */
int map_add(struct map *map, const struct snapshot *snapshot);
void map_deinit(struct map *map);

/* New documents, the caller's. Short of memory they lack something. */
json_t *map_document(const struct map *map, const struct snapshot *snapshot,
                     struct identities *identities);
/* While there is nothing to tell, @why. */
json_t *map_no_document(const char *why);

/* The page with the document in it. Returns 0 or CTL_E_OUTPUT. Errors of @out stay there. */
int map_write(const struct map *map, const struct snapshot *snapshot, FILE *out);

#endif
