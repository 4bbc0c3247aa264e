/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing for the library itself: private pieces of allocations become blocks, which all processes of the realm
 * share, at the same addresses. The public door is glake_seal().
 *
 * Threads: any. Blocks; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_SEAL_H
#define GLAKE_LIBCLIENT_SEAL_H

#include "libclient/seal/spans.h"

/*
 * glake_seal() of memory that somebody else uses: what is freed meanwhile is left out, and so is what @is_still refuses.
 * @is_alone: nobody has asked for it.
 */
int glake__seal_still(const struct glake_span *spans, size_t n_spans, glake__is_still_fn *is_still,
                      bool is_alone, struct glake_sealed *sealed_out);

/*
 * Only the first steps: the private pages that the spans cover become pieces of their own, of at most a block, and stay
 * private. *parts_out (the caller's, of malloc()) are those that did. 0, -ENOMEM, or an error with its text.
 */
int glake__seal_apart(const struct glake_span *spans, size_t n_spans, glake__is_still_fn *is_still,
                      struct glake_span **parts_out, size_t *n_parts_out);

#endif
