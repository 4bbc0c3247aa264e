/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing that glaked asks for: what of a session's memory looks like weights, and the reports of what became
 * of it. The shim seals between the two.
 */
#include <errno.h>
#include <stdlib.h>

#include "libclient/glake_shim.h"
#include "libclient/link/call.h"
#include "libclient/link/session.h"
#include "libclient/memory/backing.h"
#include "libclient/memory/fill.h"
#include "libclient/memory/page.h"
#include "libclient/memory/seal.h"
#include "proto/cleanup.h"
#include "proto/limits.h"

/* ---- finding ---------------------------------------------------------------------------------- */

static int add_span(struct glake__weights *weights, glake_ptr ptr, uint64_t n_bytes)
{
	/* It doubles at powers of two. */
	if ((weights->n_spans & (weights->n_spans - 1)) == 0) {
		size_t capacity = weights->n_spans ? 2 * weights->n_spans : 1;
		struct glake_span *more = realloc(weights->spans, capacity * sizeof(*more));
		if (!more) {
			return -ENOMEM;
		}
		weights->spans = more;
	}
	weights->spans[weights->n_spans++] = (struct glake_span){ptr, n_bytes};
	return 0;
}

static bool is_sealed(glake_ptr ptr)
{
	return glake__page_kind(glake__page_of(ptr)) == GLAKE__PAGE_BLOCK;
}

/* Sealed memory counts as what it is, whoever filled it. */
static enum glake__fill fill_at(glake_ptr ptr, uint64_t n_bytes)
{
	return is_sealed(ptr) ? GLAKE__FILL_WHOLE : glake__fill_at(ptr, n_bytes);
}

static uint64_t in_page(uint64_t n_left)
{
	return n_left < GLAKE__PAGE_BYTES ? n_left : GLAKE__PAGE_BYTES;
}

/* Counts the page. Returns whether it looks like weights. */
static bool count_page(struct glake__weights *weights, glake_ptr ptr, uint64_t n_bytes)
{
	enum glake__fill fill = fill_at(ptr, n_bytes);
	if (fill == GLAKE__FILL_WHOLE) {
		weights->n_bytes += GLAKE__PAGE_BYTES;
		weights->sealed_bytes += is_sealed(ptr) ? GLAKE__PAGE_BYTES : 0;
	} else if (fill == GLAKE__FILL_REWRITTEN) {
		weights->rewritten_bytes += GLAKE__PAGE_BYTES;
	} else {
		weights->unfilled_bytes += GLAKE__PAGE_BYTES;
	}
	return fill == GLAKE__FILL_WHOLE;
}

/*
 * Spans begin and end where large tensors do, so that they become the same blocks wherever other processes have
 * them. From there, or from the allocation's start, they end at multiples of a block: one page that differs does
 * not shift the blocks behind it.
 */
static int find_in_locked(struct glake__weights *weights, const struct glake__allocation *whole)
{
	uint64_t begin = 0;
	uint64_t bound = 0;
	int r = 0;
	for (uint64_t at = 0; r == 0 && at < whole->n_bytes; at += GLAKE__PAGE_BYTES) {
		uint64_t n_bytes = in_page(whole->n_bytes - at);
		bool is_weights = count_page(weights, whole->address + at, n_bytes);
		bound = glake__fill_is_bound(whole->address + at) ? at : bound;
		if (begin < at && (!is_weights || (at - bound) % GLAKE_MAX_BLOCK_BYTES == 0)) {
			r = add_span(weights, whole->address + begin, at - begin);
			begin = at;
		}
		begin = is_weights ? begin : at + GLAKE__PAGE_BYTES;
	}
	if (r == 0 && begin < whole->n_bytes) {
		r = add_span(weights, whole->address + begin, whole->n_bytes - begin);
	}
	return r;
}

int glake__weights_find(struct glake_session *session, struct glake__weights *weights_out)
{
	int r = 0;
	*weights_out = (struct glake__weights){.n_spans = 0};
	glake__lock();
	for (struct glake__backing *backing = session->books.live; r == 0 && backing;
	     backing = backing->newer) {
		const struct glake__allocation *whole = &backing->whole;
		if (backing->slab) {
			weights_out->small_bytes += backing->n_bytes;
		} else if (!whole->is_parked && !whole->is_claimed) {
			r = find_in_locked(weights_out, whole);
		}
	}
	glake__unlock();
	if (r < 0) {
		free(weights_out->spans);
		weights_out->spans = NULL;
	}
	return r;
}

/* A page that is filled anew since counts as well. */
static bool are_weights(glake_ptr ptr, uint64_t n_bytes)
{
	uint64_t at = 0;
	while (at < n_bytes && fill_at(ptr + at, in_page(n_bytes - at)) == GLAKE__FILL_WHOLE) {
		at += GLAKE__PAGE_BYTES;
	}
	return at >= n_bytes;
}

int glake__weights_seal(const struct glake_span *spans, size_t n, struct glake_sealed *sealed_out)
{
	return glake__seal_still(spans, n, are_weights, sealed_out);
}

/* ---- reporting -------------------------------------------------------------------------------- */

static void send_report(struct glake_session *session, Glake__Wire__SealProgress *body)
{
	Glake__Wire__Request request = GLAKE__WIRE__REQUEST__INIT;
	request.body_case = GLAKE__WIRE__REQUEST__BODY_SEAL_PROGRESS;
	request.seal_progress = body;
	glake__call_forget(&session->link, &request);
}

void glake__seal_follow(struct glake_session *session, glake__seal_ask_fn *ask, void *user)
{
	Glake__Wire__SealProgress body = GLAKE__WIRE__SEAL_PROGRESS__INIT;
	session->link.seal_user = user;
	session->link.seal = ask;
	send_report(session, &body);
}

static Glake__Wire__Status status_of(int error)
{
	return error == -EPERM || error == GLAKE_E_NO_PERMISSION
	               ? GLAKE__WIRE__STATUS__NO_PERMISSION
	       : error == -EBUSY || error == GLAKE_E_BUSY ? GLAKE__WIRE__STATUS__BUSY
	       : error == -ENOMEM                         ? GLAKE__WIRE__STATUS__NO_HOST_MEMORY
	                                                  : GLAKE__WIRE__STATUS__INTERNAL;
}

static Glake__Wire__SealResult result_of(const struct glake__seal_report *report)
{
	Glake__Wire__SealResult result = GLAKE__WIRE__SEAL_RESULT__INIT;
	result.sealed_bytes = report->weights->sealed_bytes;
	result.shared_bytes = report->sealed->shared_bytes;
	result.small_bytes = report->weights->small_bytes;
	result.unfilled_bytes = report->weights->unfilled_bytes;
	result.rewritten_bytes = report->weights->rewritten_bytes;
	result.pinned_bytes = report->sealed->pinned_bytes;
	result.failed_bytes = report->failed_bytes;
	if (report->sealed->pinned_why) {
		result.pinned_why = (char *)report->sealed->pinned_why;
	}
	if (report->failed_why) {
		result.failed_why = (char *)report->failed_why;
	}
	result.took_ns = report->took_ns;
	result.held_ns = report->sealed->held_ns;
	result.longest_held_ns = report->sealed->longest_held_ns;
	return result;
}

void glake__seal_tell(struct glake_session *session, uint64_t id,
                      const struct glake__seal_report *report)
{
	Glake__Wire__SealProgress body = GLAKE__WIRE__SEAL_PROGRESS__INIT;
	Glake__Wire__SealResult result;
	body.seal = id;
	body.done_bytes = report->done_bytes;
	body.total_bytes = report->total_bytes;
	if (report->is_over && report->error) {
		body.status = status_of(report->error);
		body.error = (char *)report->why;
	} else if (report->is_over) {
		result = result_of(report);
		body.result = &result;
	}
	send_report(session, &body);
}
