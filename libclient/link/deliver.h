/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Delivery of notices. call.c receives them.
 *
 * Threads: one thread at a time delivers, so notices keep their order. A handler that calls the
 * library does not recurse: notices that arrive meanwhile are delivered after it has returned.
 */
#ifndef GLAKE_LIBCLIENT_DELIVER_H
#define GLAKE_LIBCLIENT_DELIVER_H

#include "libclient/link/link.h"

/*
 * Deliver queued notices, unless another thread does so. Returns how many. No lock is held. Keeps
 * errno and the error text, because they belong to the caller's work.
 */
int glake__deliver(struct glake__link *link);

/* The program's handler. The old one does not run any more on return, unless it is the caller. */
void glake__deliver_to(struct glake__link *link, glake_notice_fn handler, void *user);

#endif
