/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replays a trace with glake's own allocator: a session of glaked, memory in stream order, on a
 * device. There is no work on the streams.
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_REPLAY_OURS_H
#define GLAKE_SHIM_RUN_REPLAY_OURS_H

#include "shim/run/replay/result.h"

struct ours {
	const char *name;        /* the result's */
	const char *socket_path; /* NULL: glake_connect()'s default */
	int ordinal;             /* the CUDA device's */
	int stitch;              /* option for glake_connect() */
};

/* Returns 0, or -1 with a line on stderr: there is no glaked or no device, or memory did not suffice. */
int ours_play(const struct ours *ours, const struct trace *trace, struct result *result_out);

#endif
