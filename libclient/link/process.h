/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The labels of this process for people who look at lists of processes: what its interpreter runs, and its
 * arguments. It reads its own /proc/self/cmdline, so a title that it gave itself counts.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_PROCESS_H
#define GLAKE_LIBCLIENT_PROCESS_H

#include <stddef.h>

#include "proto/limits.h"

struct glake__process {
	char script
		[GLAKE_MAX_LABEL_BYTES]; /* "serve.py", "-m vllm"; "": the program is no interpreter, or has nothing */
	char arguments[GLAKE_MAX_NAME_BYTES]; /* separated by blanks; cut */
};

/* Which file this process runs: "build-id HEX", or "file DEVICE INODE BYTES" if it has none. */
void glake__process_executable(char text_out[GLAKE_MAX_LABEL_BYTES]);

/* Without /proc both are empty. */
void glake__process_describe(struct glake__process *process_out);

/*
 * Describe a process by its command line @bytes, as /proc has it. Its program is called @program. @bytes ends with a zero that
 * does not count.
 */
void glake__process_parse(const char *program, const char *bytes, size_t n_bytes,
                          struct glake__process *process_out);

#endif
