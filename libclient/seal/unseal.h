/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unsealing for the library itself: blocks become private copies at the same addresses, where they are to be
 * written. The public door is glake_unseal().
 *
 * Threads: any. Blocks; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_UNSEAL_H
#define GLAKE_LIBCLIENT_UNSEAL_H

#include "glake.h"
#include "libclient/link/why.h"

/*
 * All of the allocation that @ptr lies in is private, in chunks as glake_alloc() makes them, so that they can
 * be named. Nothing happens to one that has never been sealed, or that is not there.
 */
int glake__seal_undo(glake_ptr ptr);

/* glake_unseal() for cause @why. */
int glake__unseal(glake_ptr ptr, uint64_t bytes, enum glake__unsealed why);

#endif
