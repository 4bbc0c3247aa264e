/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealing: private pieces of an allocation become blocks, which all processes of the realm share, at the
 * same addresses; and become private copies again where they are to be written.
 *
 * Sealing itself is public (glake_seal(), glake_unseal()).
 *
 * Threads: any. Blocks; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_SEAL_H
#define GLAKE_LIBCLIENT_SEAL_H

#include <stdbool.h>

#include "libclient/glake.h"

/*
 * All of the allocation that @ptr lies in is private, in chunks as glake_alloc() makes them, so that they can
 * be named. Nothing happens to one that has never been sealed, or that is not there.
 */
int glake__seal_undo(glake_ptr ptr);

/*
 * glake_seal() of memory that somebody else uses: what is freed meanwhile is left out, and so is a span that
 * @is_still refuses, which is asked once nobody can free it any more.
 */
typedef bool glake__is_still_fn(glake_ptr ptr, uint64_t n_bytes);
int glake__seal_still(const struct glake_span *spans, size_t n_spans, glake__is_still_fn *is_still,
                      struct glake_sealed *sealed_out);

#endif
