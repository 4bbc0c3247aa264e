/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices: what the daemon says unasked. call.c takes them in, this delivers them.
 *
 * Owner: a notice belongs to the link's queue, then to the delivering thread.
 * Threads: one thread at a time delivers, so they keep their order. A handler that calls the library
 * does not recurse: what arrives meanwhile is delivered after it has returned.
 */
#ifndef GLAKE_LIBCLIENT_NOTICE_H
#define GLAKE_LIBCLIENT_NOTICE_H

#include "libclient/session.h"

struct glake__notice {
	struct glake__notice *next; /* link: link.notices */
	struct glake_notice public; /* public.name is owned */
};

/* Queue a notice; @name is copied, may be NULL. Called with link.lock held. Dropped without memory. */
void glake__notice_queue(struct glake__link *link, enum glake_notice_kind kind, uint32_t device,
                         uint64_t bytes, const char *name);

void glake__notice_free(struct glake__notice *notice);

/*
 * The last step of every public function that talked to the daemon, with no lock held: deliver what
 * came in, report usage if that is due. Returns @result; keeps errno and the error text.
 */
int glake__leave(struct glake_session *session, int result);

#endif
