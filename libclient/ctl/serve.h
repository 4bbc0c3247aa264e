/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics and the memory map over HTTP. glaked is asked when somebody asks, at most once a second, and each five seconds for
 * what the map shows over time.
 *
 * Threads: the caller's takes samples until there is a signal; one of the HTTP library's answers.
 */
#ifndef GLAKE_CTL_SERVE_H
#define GLAKE_CTL_SERVE_H

#include <stdbool.h>

#include "ctl/ctl.h"

struct serve_options {
	const char *address;    /* listen_parse() understands it */
	const char *token_file; /* see token.h; NULL: who can connect may ask */
	bool has_models;        /* see metrics_write() */
};

/* Until SIGINT or SIGTERM. Returns 0, or CTL_E_SAID: it cannot listen, or the token is no good, and it was said why. */
int serve_run(struct ctl *ctl, const struct serve_options *options);

#endif
