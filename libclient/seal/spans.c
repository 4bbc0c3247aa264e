/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/seal/spans.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/link/error.h"
#include "libclient/link/session.h"

static int by_address(const void *a, const void *b)
{
	const struct glake__span *left = a;
	const struct glake__span *right = b;
	return (left->ptr > right->ptr) - (left->ptr < right->ptr);
}

/* Nobody frees it meanwhile, so its session stays. */
static void enter(struct glake__spans *spans, const struct glake__held *held)
{
	spans->n_helds++;
	glake__lock();
	if (held->device) {
		glake__sessions_enter_locked(&spans->sessions, held->device->session);
	}
	glake__unlock();
}

/* The span lies in @held, or begins there and is too long. */
static int put_in(struct glake__span *span, const struct glake__held *held)
{
	span->held = held;
	if (span->n_bytes > held->end - span->ptr) {
		return glake__fail(-EINVAL, "%llu bytes at 0x%llx are more than the allocation has",
		                   (unsigned long long)span->n_bytes,
		                   (unsigned long long)span->ptr);
	}
	return held->device ? glake__session_check(held->device->session) : 0;
}

/* In the next allocation, if it can be held. */
static int hold_next(struct glake__spans *spans, struct glake__span *span)
{
	struct glake__held *held = &spans->helds[spans->n_helds];
	if (glake__space_is_parents()) {
		return glake__fail(GLAKE_E_FORKED, "the memory was allocated before a fork");
	}
	int r = span->n_bytes ? glake__held_begin(span->ptr, held) : -ENOENT;
	if (r == -ENOENT) {
		return glake__fail(-EINVAL, "%llu bytes at 0x%llx are not memory of glake_alloc()",
		                   (unsigned long long)span->n_bytes,
		                   (unsigned long long)span->ptr);
	}
	if (r < 0) {
		return 0;
	}
	r = put_in(span, held);
	enter(spans, held);
	return r;
}

static int hold(struct glake__spans *spans, struct glake__span *span)
{
	const struct glake__held *last = spans->n_helds ? &spans->helds[spans->n_helds - 1] : NULL;
	return last && span->n_bytes > 0 && span->ptr < last->end ? put_in(span, last)
	                                                          : hold_next(spans, span);
}

int glake__spans_hold(struct glake__spans *spans, const struct glake_span *list, size_t n,
                      glake__is_still_fn *is_still)
{
	int r = 0;
	*spans = (struct glake__spans){.n = n};
	spans->list = calloc(n ? n : 1, sizeof(*spans->list));
	spans->helds = calloc(n ? n : 1, sizeof(*spans->helds));
	if (!spans->list || !spans->helds) {
		return glake__fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n; i++) {
		spans->list[i] = (struct glake__span){.ptr = list[i].ptr, .n_bytes = list[i].bytes};
	}
	qsort(spans->list, n, sizeof(*spans->list), by_address);
	for (size_t i = 0; r == 0 && i < n; i++) {
		struct glake__span *span = &spans->list[i];
		r = hold(spans, span);
		if (is_still && (r < 0 || !is_still(span->ptr, span->n_bytes))) {
			span->n_bytes = 0;
			r = 0;
		}
	}
	return r;
}

int glake__spans_let(struct glake__spans *spans, int result)
{
	for (size_t i = 0; i < spans->n_helds; i++) {
		glake__held_end(&spans->helds[i]);
	}
	free(spans->list);
	free(spans->helds);
	return glake__sessions_leave(&spans->sessions, result);
}
