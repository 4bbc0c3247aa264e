/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many small pieces of memory that live and die together and never move.
 *
 * Owner: embedded in its user. Lifetime: {0} is empty; glake__arena_deinit(). Threads: none of its
 * own.
 */
#ifndef GLAKE_LIBCLIENT_ARENA_H
#define GLAKE_LIBCLIENT_ARENA_H

#include <stddef.h>

struct glake__arena_page;

struct glake__arena {
	struct glake__arena_page *pages; /* owned list, newest first */
	size_t n_left;                   /* in the newest */
};

/* @n_bytes, aligned for a uint64_t, not initialised; NULL without memory. */
void *glake__arena_take(struct glake__arena *arena, size_t n_bytes);
void glake__arena_deinit(struct glake__arena *arena);

#endif
