/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may be evicted, in the order of eviction: the lowest priority first and, within one, what has
 * been idle longest.
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
	struct list link; /* link: store.idle; hangs nowhere while in use or pinned */
	enum idle_kind kind;
	int32_t priority; /* of the last tenant that used it */
	uint64_t since_ms;
};

#endif
