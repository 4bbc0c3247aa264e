/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A refusal: the bound that a request met, with the numbers of that moment. Who decides makes it, counts it once, and
 * hands it on; everybody who tells of it - the answer, the event, the log - says it with refusal_text().
 *
 * Owner: whoever embeds it. Lifetime: the tenant is borrowed, so it is for the turn of the loop in which it was made.
 * Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_REFUSAL_H
#define GLAKE_DAEMON_REFUSAL_H

#include <stddef.h>

#include "daemon/base/stats.h"
#include "daemon/base/status.h"
#include "daemon/memory/bound.h"
#include "daemon/memory/location.h"
#include "daemon/memory/promise.h"
#include "daemon/memory/tenant.h"

/* The longest text of a refusal: one line, with its end. */
#define REFUSAL_TEXT_BYTES 256u

/* Zeroed memory is none. */
struct refusal {
	enum bound bound;
	const struct location *at; /* where the memory was wanted */
	struct tenant *tenant;     /* who would have paid */
	/* Bytes; for TENANT_FDS and FDS, fds. */
	uint64_t wanted; /* more than is used */
	uint64_t used;
	uint64_t limit;
};

/* A tenant's own bound refuses: QUOTA or TENANT_FDS. @wanted: bytes or fds. */
struct refusal refusal_of_tenant(enum bound bound, struct tenant *tenant, const struct location *at,
                                 uint64_t wanted);
/* The request is for more than is left of what the process was promised. */
struct refusal refusal_of_promise(const struct promise *promise, struct tenant *tenant,
                                  uint64_t wanted);
/* The location is full; the reserve for unsealing is not in use. */
struct refusal refusal_of_room(struct tenant *tenant, const struct location *at, uint64_t wanted);
/*
 * A manifest, or the record of a thing that is open, was to grow by @more_bytes: the bound is MANIFESTS or USER_SHARE.
 */
struct refusal refusal_of_manifest(struct payer payer, const struct location *at,
                                   uint64_t more_bytes);

/* Add it to the sums of glaked and of the tenant at that location. Harmless for none. */
void refusal_count(const struct refusal *refusal, struct stats *stats);

/* The status of its answer. */
enum status refusal_status(const struct refusal *refusal);

/* "7.0 GiB more on device 0: tenant default uses 4.8 of 6.0 GiB". Not for none. */
void refusal_text(const struct refusal *refusal, char text[REFUSAL_TEXT_BYTES]);

#endif
