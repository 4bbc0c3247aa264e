/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls from the lower layers to a session's elastic ranges. Programs without such ranges need not link their code.
 */
#ifndef GLAKE_LIBCLIENT_ELASTIC_CALLS_H
#define GLAKE_LIBCLIENT_ELASTIC_CALLS_H

#include "libclient/link/session.h"

/* Set with the first range. */
struct glake__elastic_calls {
	/* The lent bytes of @device. Called with the lock held. */
	uint64_t (*lent_bytes_locked)(const struct glake__device *device);
	/* Give up to @n_bytes of lent steps, rounded up to whole ones, back to glaked. Returns how many went. Nobody is waited for. */
	uint64_t (*give)(struct glake__device *device, uint64_t n_bytes);
	/* The threads of the session have ended behind this. */
	void (*stop)(struct glake_session *session);
	/* All ranges end, with the session. */
	void (*end)(struct glake_session *session);
};

#endif
