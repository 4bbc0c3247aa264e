/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/run/replay/progress.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "proto/clock.h"

#define REDRAW_NS UINT64_C(200000000)

static uint64_t drawn_ns; /* 0: before the first event */
static bool is_drawn;

void progress_show(const char *name, size_t n_done, size_t n_events)
{
	if (n_done % 1024 != 0 || !isatty(STDERR_FILENO)) {
		return;
	}
	uint64_t now = clock_now_ns();
	if (drawn_ns == 0) {
		drawn_ns = now;
	}
	if (now - drawn_ns >= REDRAW_NS) {
		fprintf(stderr, "\r%s: %zu %%\033[K", name, n_done * 100 / n_events);
		drawn_ns = now;
		is_drawn = true;
	}
}

void progress_end(void)
{
	if (is_drawn) {
		fputs("\r\033[K", stderr);
		is_drawn = false;
	}
}
