/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log limits by user or realm, where no object that lives long enough has one. Zeroed memory is ready for use.
 *
 * Owner: who embeds it. Threads: one at a time.
 */
#ifndef GLAKE_DAEMON_LOG_LIMITS_H
#define GLAKE_DAEMON_LOG_LIMITS_H

#include "daemon/base/log.h"

/* Beyond this many keys the one that was used longest ago begins anew. */
#define LOG_LIMITS_KEPT 64u

struct log_limits {
	struct {
		struct log_limit limit;
		uint64_t key;
		uint64_t used; /* n at its last use; 0: never */
	} list[LOG_LIMITS_KEPT];
	uint64_t n; /* uses */
};

/* Valid until the next call. */
struct log_limit *log_limits_of(struct log_limits *limits, uint64_t key);

#endif
