/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks for what a promise is to have reserved: all of it at once, or nothing. It waits as other requests for memory do
 * (pressure.h), in their line, and keeps its place; what is made ahead, unused or warm makes room for it. No memory is made.
 *
 * Owner: the allocator, until its callback. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_PROMISE_REQUEST_H
#define GLAKE_DAEMON_PROMISE_REQUEST_H

#include "daemon/memory/alloc.h"

struct promise_request;

/* STATUS_OK: it is reserved. Else nothing has changed; a status of alloc_done_fn. */
typedef void (*promise_done_fn)(void *user, enum status status);

struct promise_wanted {
	struct promise *promise; /* the caller keeps a reference */
	struct tenant *tenant;   /* its payer */
	uint64_t bytes;          /* more than is reserved now */
	uint64_t waited_ms;      /* as in alloc_wanted, and so the next */
	uint64_t patience_ms;
	struct refusal *refusal; /* as in alloc_wanted; borrowed until @done */
};

/* Start a request; it returns like alloc_start(). */
enum status promise_request_start(struct allocator *allocator, const struct promise_wanted *wanted,
                                  promise_done_fn done, void *user,
                                  struct promise_request **request_out);
/* Returns pressure_wait_of() of its request. NULL is fine. */
struct pressure_wait promise_request_wait_of(const struct promise_request *request);
/* @done will not be called, and nothing is reserved. */
void promise_request_cancel(struct promise_request *request);

#endif
