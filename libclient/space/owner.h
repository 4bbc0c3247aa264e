/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has the chunks of one cuMemCreate(): where they go when they are dead, wherever that is noticed.
 *
 * Each of the chunks has a reference, and one that takes the place of another inherits it: the owner ends with the
 * last of them. Chunks and blocks of glaked are returned to the session of the owner, and so to a connection that
 * may long be replaced; what the driver made goes back with its handle.
 *
 * Owner: its chunks. Threads: any. _locked: called with the lock of the space held.
 */
#ifndef GLAKE_LIBCLIENT_OWNER_H
#define GLAKE_LIBCLIENT_OWNER_H

#include <stdint.h>

#include "libclient/space/range.h"

struct glake__device;

struct glake__owner {
	struct glake__device
		*device;  /* glaked's, with the session; NULL: the driver made the chunk */
	uint64_t n_bytes; /* live, as the program asked for; counted as that by who made it */
	uint32_t n_refs;
	void (*end)(void *user); /* no lock is held */
	void *user;
};

/* With one reference, the caller's. NULL without memory. */
struct glake__owner *glake__owner_new(const struct glake__owner *values);

/* One reference less; NULL is fine. No lock is held. */
void glake__owner_put(struct glake__owner *owner);

/* @chunk is one of @owner's; NULL is fine. */
void glake__owner_join_locked(struct glake__owner *owner, struct glake__chunk *chunk);

#endif
