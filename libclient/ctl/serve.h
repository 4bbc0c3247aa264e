/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics and the memory map over HTTP, on a Unix socket or a loopback port. glaked is asked when somebody asks, and each
 * five seconds for what the map shows over time.
 *
 * Threads: the caller's takes samples until there is a signal; one of the HTTP library's answers.
 */
#ifndef GLAKE_CTL_SERVE_H
#define GLAKE_CTL_SERVE_H

#include "ctl/ctl.h"

/* Is @address one that can be served: "unix:PATH", "127.0.0.1:PORT" or "[::1]:PORT"? */
bool serve_is_address(const char *address);

/* Until SIGINT or SIGTERM. Returns 0, or CTL_E_SAID: it cannot listen, and it was said why. */
int serve_run(struct ctl *ctl, const char *address);

#endif
