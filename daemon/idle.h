/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may be evicted, in the order in which it fell idle.
 *
 * Embedded in models and in published blocks. Eviction takes the lowest priority first and, within
 * one, who has been idle longest: the list is kept in the order of time and searched by priority.
 *
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_IDLE_H
#define GLAKE_DAEMON_IDLE_H

#include <stdint.h>

#include "daemon/list.h"

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
