/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The display of glake-top, on a terminal, by ncurses: GPUs with bars, below them sessions, models or tenants.
 *
 * Threads: one.
 */
#ifndef GLAKE_TOP_SCREEN_H
#define GLAKE_TOP_SCREEN_H

#include "ctl/top.h"

/* Until the user or a signal ends it; the terminal is as before then. Returns 0, CTL_E_OUTPUT, or CTL_E_USAGE: no such terminal. */
int screen_run(struct top *top);

#endif
