/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unsealing for the library itself: blocks become private copies at the same addresses, where they are to be
 * written. The public door is glake_unseal().
 *
 * Threads: any. Blocks; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_UNSEAL_H
#define GLAKE_LIBCLIENT_UNSEAL_H

#include "libclient/glake.h"

/*
 * All of the allocation that @ptr lies in is private, in chunks as glake_alloc() makes them, so that they can
 * be named. Nothing happens to one that has never been sealed, or that is not there.
 */
int glake__seal_undo(glake_ptr ptr);

#endif
