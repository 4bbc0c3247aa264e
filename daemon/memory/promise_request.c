/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/promise_request.h"

#include <stdlib.h>

#include "proto/cleanup.h"

struct promise_request {
	struct work work;
	struct pressure_request request;
	struct promise *promise; /* a reference */
	struct charge charge;    /* until it is reserved */
	struct promise_request **self;
	struct refusal *refusal; /* the caller's; may be NULL */
	promise_done_fn done;
	void *user;
};

static struct promise_request *asked_of(struct pressure_request *request)
{
	return container_of(request, struct promise_request, request);
}

static void free_request(struct promise_request *asked)
{
	charge_refund(&asked->charge);
	promise_unref(asked->promise);
	free(asked);
}

static int charge(struct pressure_request *request)
{
	struct promise_request *asked = asked_of(request);
	request->missing_bytes = request->bytes;
	return tenant_charge(request->tenant, request->at->slot, request->bytes, 0, &asked->charge);
}

static bool look_again(struct work *work)
{
	return true;
}

static void on_looked(struct work *work)
{
	struct promise_request *asked = container_of(work, struct promise_request, work);
	pressure_made(&asked->request, STATUS_NO_DEVICE_MEMORY);
}

/* The answer to a request without room does not come from within the call, as pressure wants it. */
static void make(struct pressure_request *request)
{
	struct promise_request *asked = asked_of(request);
	if (!location_has_room(request->at, request->bytes)) {
		worker_submit(&request->at->worker, &asked->work, WORKER_NOBODY, look_again,
		              on_looked);
		return;
	}
	charge_refund(&asked->charge);
	promise_put(asked->promise, request->bytes);
	pressure_made(request, STATUS_OK);
}

static void done(struct pressure_request *request, enum status status)
{
	struct promise_request *asked = asked_of(request);
	if (request->state != PRESSURE_CANCELLED) {
		*asked->self = NULL;
		if (asked->refusal) {
			*asked->refusal = request->refusal;
		}
		asked->done(asked->user, status);
	}
	free_request(asked);
}

static const struct pressure_ops ops = {.charge = charge, .make = make, .done = done};

enum status promise_request_start(struct allocator *allocator, const struct promise_wanted *wanted,
                                  promise_done_fn done_fn, void *user,
                                  struct promise_request **request_out)
{
	struct location *at = wanted->promise->at;
	if (location_start(at, allocator->loop) < 0) {
		return STATUS_INTERNAL;
	}
	struct promise_request *asked = calloc(1, sizeof(*asked));
	if (!asked) {
		return STATUS_NO_HOST_MEMORY;
	}
	asked->promise = promise_ref(wanted->promise);
	asked->self = request_out;
	asked->refusal = wanted->refusal;
	asked->done = done_fn;
	asked->user = user;
	asked->request = (struct pressure_request){.ops = &ops,
	                                           .at = at,
	                                           .tenant = wanted->tenant,
	                                           .fds = PRESSURE_FDS_SMALL,
	                                           .bytes = wanted->bytes,
	                                           .waited_ms = wanted->waited_ms,
	                                           .patience_ms = wanted->patience_ms,
	                                           .keeps_place = true};
	*request_out = asked;
	enum status status = pressure_start(&allocator->pressure, &asked->request);
	if (status != STATUS_OK) {
		*request_out = NULL;
		if (wanted->refusal) {
			*wanted->refusal = asked->request.refusal;
		}
		free_request(asked);
	}
	return status;
}

struct pressure_wait promise_request_wait_of(const struct promise_request *request)
{
	return request ? pressure_wait_of(&request->request)
	               : (struct pressure_wait){.bound = BOUND_NONE};
}

void promise_request_cancel(struct promise_request *request)
{
	if (request && pressure_cancel(&request->request)) {
		free_request(request);
	}
}
