/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The results of replays, as a table or as JSON.
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_REPLAY_RESULT_H
#define GLAKE_SHIM_RUN_REPLAY_RESULT_H

#include <stdint.h>
#include <stdio.h>

#include "shim/run/replay/trace.h"

struct result {
	const char *name; /* the allocator's */
	uint64_t peak_reserved_bytes;
	uint64_t n_made;         /* calls that got memory, by the driver's allocator or by VMM */
	uint64_t n_freed;        /* calls that gave it back */
	uint64_t time_ns;        /* 0: a model */
	uint64_t smallest_bytes; /* the smallest GPU that the trace fits, in whole MiB */
};

void result_print(FILE *out, const struct trace *trace, const struct result *results, size_t n);
void result_print_json(FILE *out, const struct trace *trace, const struct result *results,
                       size_t n);

#endif
