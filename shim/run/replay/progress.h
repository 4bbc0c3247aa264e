/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line on the terminal while a long trace is replayed. Nothing is written to anything but a terminal.
 *
 * Threads: one.
 */
#ifndef GLAKE_SHIM_RUN_REPLAY_PROGRESS_H
#define GLAKE_SHIM_RUN_REPLAY_PROGRESS_H

#include <stddef.h>

/* Call it often: it looks at the clock once in a thousand events. */
void progress_show(const char *name, size_t n_done, size_t n_events);
/* Take the line away. */
void progress_end(void);

#endif
