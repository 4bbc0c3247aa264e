/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An allocation trace, read from its text (glake.1 describes the format).
 *
 * Owner: the caller of trace_read(); trace_deinit() frees it. Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_REPLAY_TRACE_H
#define GLAKE_SHIM_RUN_REPLAY_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct trace_event {
	uint32_t allocation; /* the allocation's index, in the order of the trace */
	uint32_t stream;     /* the stream's index; the first of the trace is 0 */
	uint64_t n_bytes;    /* 0: a free */
	uint64_t line;       /* of the text, from 1 */
};

struct trace {
	struct trace_event *events; /* owned */
	size_t n_events;
	uint32_t n_allocations;
	uint32_t n_streams;
	uint64_t peak_live_bytes; /* as asked for */
};

#define TRACE_ERROR_BYTES 160u

/*
 * Read @file to its end. Returns 0; -EINVAL (the text is wrong), -ENOMEM or the file's -errno, with one
 * line in @error_out, which begins with the number of the wrong line if there is one.
 */
int trace_read(struct trace *trace, FILE *file, char error_out[TRACE_ERROR_BYTES]);
void trace_deinit(struct trace *trace);

#endif
