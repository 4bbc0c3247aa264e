/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects that may be evicted, in the order of eviction: the lowest priority first, and within one
 * priority the longest idle first.
 *
 * Embedded in models and in published blocks.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_IDLE_H
#define GLAKE_DAEMON_IDLE_H

#include <stdint.h>

#include "daemon/base/list.h"

enum idle_kind {
	IDLE_MODEL,
	IDLE_BLOCK,
};

struct idle {
	struct list link; /* link: store.idle; in no list while in use or pinned */
	enum idle_kind kind;
	int32_t priority; /* of the last tenant that used it */
	uint64_t since_ms;
};

#endif
