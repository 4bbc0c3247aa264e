/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory for a command that can do nothing without it. Threads: any. */
#ifndef GLAKE_SHIM_RUN_REPLAY_MUST_H
#define GLAKE_SHIM_RUN_REPLAY_MUST_H

#include <stdio.h>
#include <stdlib.h>

/* calloc(); without memory it ends the program. */
static inline void *must_calloc(size_t n, size_t element_bytes)
{
	void *memory = calloc(n ? n : 1, element_bytes);
	if (!memory) {
		fputs("glake: no memory\n", stderr);
		exit(EXIT_FAILURE);
	}
	return memory;
}

#endif
