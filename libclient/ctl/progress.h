/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Progress goes to stderr: a bar that is redrawn on a terminal, else a line per ten percent. With
 * --json there is none, unless stderr is a terminal.
 *
 * Owner: the command, on its stack. Threads: one.
 */
#ifndef GLAKE_CTL_PROGRESS_H
#define GLAKE_CTL_PROGRESS_H

#include "ctl/ctl.h"

struct progress {
	FILE *out; /* borrowed; NULL: be silent */
	bool is_terminal;
	bool is_drawn; /* a bar is on the screen */
	uint64_t begin_ns;
	uint64_t drawn_ns;
	unsigned next_percent; /* not a terminal: the next one that gets a line */
	uint32_t pid;          /* whose it is; 0: no program's. Set behind progress_begin() */
	uint32_t place;        /* not a terminal: in the queue, as was said last */
};

struct progress progress_begin(const struct ctl *ctl);
void progress_end(struct progress *progress);

/* Show progress of what is not counted in bytes. */
void progress_note(struct progress *progress, unsigned percent, const char *text);

/* A glake_progress_fn; @progress is a struct progress. */
void progress_show(void *progress, uint64_t done_bytes, uint64_t total_bytes);

/* A glake_waiting_fn; the same. What comes then begins anew: the speed is that of the copying. */
void progress_wait(void *progress, uint32_t place, uint64_t waiting_ms);

uint64_t progress_per_second(uint64_t bytes, uint64_t ns);

#endif
