/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that a program places itself: glake_reserve(), glake_map(), glake_unmap(),
 * glake_unreserve().
 *
 * A placed range lists its backings by address. One that a thread is mapping or unmapping stays in
 * the list, marked busy, so that its addresses are taken while no lock is held.
 *
 * Owner: the books list the ranges. Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_PLACED_H
#define GLAKE_LIBCLIENT_PLACED_H

#include "libclient/link/session.h"

struct glake__placed {
	struct glake__placed *next; /* link: books.placed */
	glake_ptr ptr;
	uint64_t n_bytes;
	struct glake__backing *backings; /* owned list, by address */
};

/* Drop everything: the session ends. */
void glake__placed_deinit(struct glake_session *session);

#endif
