/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A promise: so many bytes of a location are a process's, whatever others do, and no more.
 *
 *     |<--------------------- bytes --------------------->|
 *     |<- used ->|<- drawn ->|<------ reserved ------>|owed|
 *
 * used      what its sessions have there: private chunks, and blocks as often as they have them mapped
 * drawn     what their requests under way will have, or have made and not handed over
 * reserved  nobody's chunks: taken off the room of the location, and charged to the tenant
 * owed      what is not there at the moment. Shared memory that the process has given back, and others still use, leaves
 *           no room behind; and a quota may have been lowered. It is reserved as soon as there is room, before others
 *           get any. While nothing is owed no request of the process waits for room or quota
 *
 * What the driver has made for the process itself (`driver`) is no chunk: it lies within what is reserved, and cannot be drawn.
 *
 * A process that sleeps lends all that is reserved; its wake begins with a promise_request for all of it.
 *
 * Owner: the sessions of the process together: the last that leaves ends it. Requests and chunks that are not handed over
 * have references. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_PROMISE_H
#define GLAKE_DAEMON_PROMISE_H

#include "daemon/base/list.h"
#include "daemon/memory/location.h"
#include "daemon/memory/tenant.h"

struct promise {
	struct list link;    /* link: promises.all */
	struct location *at; /* borrowed */
	uint64_t bytes;      /* 0: not granted yet, or over */
	uint64_t used_bytes;
	uint64_t drawn_bytes;
	uint64_t reserved_bytes;
	uint64_t driver_bytes; /* as the process reports */
	bool is_lent;
	struct charge charge; /* of what is reserved */
	unsigned n_users;     /* sessions */
	unsigned n_refs;
};

/* All promises of this glaked. */
struct promises {
	struct list all;
};

/* @all is empty. The caller has a reference, and it has no bytes yet. NULL: no memory. */
struct promise *promise_new(struct promises *promises, struct location *at, struct tenant *tenant);
struct promise *promise_ref(struct promise *promise);
/* NULL is fine. */
void promise_unref(struct promise *promise);

/* A session with @used_bytes there comes, or goes; with the last one the promise is over. */
void promise_enter(struct promise *promise, uint64_t used_bytes);
void promise_leave(struct promise *promise);

/* Reserve what is owed if there is room, and give back what is too much. NULL is fine, as for the next. */
void promise_settle(struct promise *promise);
/* A session has more. */
void promise_use(struct promise *promise, uint64_t bytes);
/* A session has less: promise_settle() follows when that is free. */
void promise_unuse(struct promise *promise, uint64_t bytes);

/* Settle all promises that are owed something. */
void promises_settle(struct promises *promises);

/* The bytes that the process may still have. */
uint64_t promise_left_bytes(const struct promise *promise);
/* A request for @bytes begins. False: that is more than is left. */
bool promise_draw(struct promise *promise, uint64_t bytes);
/* The request is over, and its memory is free, or is handed over. */
void promise_undraw(struct promise *promise, uint64_t bytes);
/* @bytes that promise_charge() took are reserved again. */
void promise_put(struct promise *promise, uint64_t bytes);

/*
 * Charge chunks of these sizes to @tenant at @slot, all or none; what @promise (NULL: none) has reserved for them comes first:
 * *taken_out bytes of it, no more reserved, but the caller's to count as coming. Without a limit of bytes, if that is all.
 * Returns 0 or TENANT_E_*.
 */
int promise_charge(struct promise *promise, struct tenant *tenant, uint32_t slot,
                   const uint64_t *sizes, size_t n, struct charge *charges_out,
                   uint64_t *taken_out);

/* The bytes that a wake of the process has to reserve. */
uint64_t promise_lent_bytes(const struct promise *promise);
/* The process sleeps. */
void promise_lend(struct promise *promise);

#endif
