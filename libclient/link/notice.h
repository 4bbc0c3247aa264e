/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices: messages of the daemon that answer no request. call.c receives them, this delivers them.
 *
 * Owner: a notice belongs to the link's queue, then to the delivering thread. Threads: one thread
 * at a time delivers, so notices keep their order. A handler that calls the library does not
 * recurse: notices that arrive meanwhile are delivered after it has returned.
 */
#ifndef GLAKE_LIBCLIENT_NOTICE_H
#define GLAKE_LIBCLIENT_NOTICE_H

#include "libclient/link/session.h"

struct glake__notice {
	struct glake__notice *next; /* link: link.notices */
	struct glake_notice public; /* public.name is owned */
	uint64_t reclaim;           /* its id with the daemon; 0 = another kind */
};

/* Queue a notice; @name is copied, may be NULL. Called with link.lock held. Dropped without memory. */
void glake__notice_queue(struct glake__link *link, enum glake_notice_kind kind, const char *name);
/* The same, for GLAKE_NOTICE_RECLAIM. */
void glake__notice_queue_reclaim(struct glake__link *link, uint32_t device, uint64_t bytes,
                                 uint64_t id);

void glake__notice_free(struct glake__notice *notice);

/*
 * Deliver queued notices, unless another thread does so. No lock is held. Keeps errno and the error
 * text, because they belong to the caller's work.
 */
int glake__notice_deliver(struct glake_session *session);

/*
 * The last step of every public function that talked to the daemon, with no lock held: report usage
 * if that is due, deliver notices. Returns @result; keeps errno and the error text.
 */
int glake__leave(struct glake_session *session, int result);

#endif
