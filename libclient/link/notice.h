/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue of notices: messages of the daemon that answer no request.
 *
 * Owner: embedded in a link. It owns the notices in it. Threads: none of its own (link.lock), but
 * n_notices may be read at any time.
 */
#ifndef GLAKE_LIBCLIENT_NOTICE_H
#define GLAKE_LIBCLIENT_NOTICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "libclient/glake.h"

struct glake__notice {
	struct glake__notice *next; /* link: notices.first */
	struct glake_notice public; /* public.name is owned */
	uint64_t reclaim;           /* its id with the daemon; 0 = another kind */
	uint64_t seal;              /* the same; the program's handler does not get it */
	uint32_t what;              /* enum glake__seal_what */
	uint64_t sleep;             /* as seal; with the next two */
	bool wakes;
	uint32_t why;  /* SleepWhy of glake.proto */
	bool is_doubt; /* as seal; public.name says why */
};

struct glake__notices {
	struct glake__notice *first; /* owned list, oldest first */
	struct glake__notice **last;
	_Atomic unsigned n_notices;
};

void glake__notices_init(struct glake__notices *notices);
void glake__notices_deinit(struct glake__notices *notices);

/* Append an empty notice, to be filled in. NULL without memory: then it is dropped. */
struct glake__notice *glake__notices_add(struct glake__notices *notices,
                                         enum glake_notice_kind kind);
/* The oldest, which is then the caller's; NULL if there is none. */
struct glake__notice *glake__notices_pop(struct glake__notices *notices);

void glake__notice_free(struct glake__notice *notice);

#endif
