/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a program places itself: glake_reserve(), glake_map(), glake_unmap(),
 * glake_unreserve().
 *
 * Owner: the books list the ranges. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_PLACED_H
#define GLAKE_LIBCLIENT_PLACED_H

#include "libclient/link/session.h"
#include "libclient/space/range.h"

/* glake_reserve(): user is its struct glake__placed. */
extern const struct glake__use glake__use_placed;

struct glake__placed {
	struct glake__placed *next; /* link: books.placed */
	struct glake_session *session;
	struct glake__range *range; /* owned */
	bool is_held;               /* (space/held.h) */
};

/* Drop everything: the session ends. */
void glake__placed_deinit(struct glake_session *session);

#endif
