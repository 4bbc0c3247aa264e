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

/* glake_seal() of memory that somebody else uses: what is freed meanwhile is left out, and so is what @is_still refuses. */
int glake__seal_still(const struct glake_span *spans, size_t n_spans, glake__is_still_fn *is_still,
                      struct glake_sealed *sealed_out);

#endif
