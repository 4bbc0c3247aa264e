/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `glake-keeper -- glaked ...`: the service manager of one glaked, where there is no systemd, or one
 * that keeps no fds. It keeps the fds that glaked stores, and starts another glaked with them when one
 * has died. It speaks sd_notify(3), so glaked has one code path.
 *
 * It must not die: with it the store is gone. So it is small, looks into nothing but the few words of
 * sd_notify(3), and hears only its own child. glaked dies with it.
 */
#ifndef GLAKE_DAEMON_SUPERVISOR_H
#define GLAKE_DAEMON_SUPERVISOR_H

#include <stdint.h>

struct supervisor_options {
	char **command;       /* ended by NULL */
	uint64_t watchdog_ms; /* 0: none */
	uint64_t max_fds;     /* the most kept fds; 0: what the limit on open files allows */
};

/* Returns the exit status of the program: glaked's, 128 + the signal that killed it, or 1. */
int supervisor_run(const struct supervisor_options *options);

#endif
