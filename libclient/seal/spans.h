/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spans of one call that seals or unseals, by address, with the allocations that they lie in, held.
 *
 * Owner: the call. Threads: one, which is not cancelled. Blocks; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_SEAL_SPANS_H
#define GLAKE_LIBCLIENT_SEAL_SPANS_H

#include <stdbool.h>
#include <stddef.h>

#include "glake.h"
#include "libclient/seal/sessions.h"
#include "libclient/space/held.h"

struct glake__span {
	glake_ptr ptr;
	uint64_t n_bytes;
	const struct glake__held *held; /* borrowed; NULL: it is of no memory that can be sealed */
};

struct glake__spans {
	struct glake__span *list; /* owned */
	size_t n;
	struct glake__held *helds; /* owned */
	size_t n_helds;
	struct glake__sessions sessions; /* whose memory it is */
};

/* Whether a span is still what it was when it was found. Asked once nobody can free it any more. */
typedef bool glake__is_still_fn(glake_ptr ptr, uint64_t n_bytes);

/*
 * Hold them all. With @is_still (or NULL) a span that cannot be held, or is refused, has no bytes. Returns 0, or an error with
 * its text: then, too, glake__spans_let() follows.
 */
int glake__spans_hold(struct glake__spans *spans, const struct glake_span *list, size_t n,
                      glake__is_still_fn *is_still);
/* Let all, and leave their sessions. Returns @result. */
int glake__spans_let(struct glake__spans *spans, int result);

#endif
