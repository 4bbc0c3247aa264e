/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed steps of which the memory is given to others.
 *
 * Threads: any.
 */
#ifndef GLAKE_LIBCLIENT_NAMED_H
#define GLAKE_LIBCLIENT_NAMED_H

#include "glake.h"

/*
 * Memory of [@address, @address + @n_bytes) has been pinned, and others are about to be able to write to it: what is sealed of it is so no
 * more when this has returned 0. Memory that is not ours is fine. Errors: request errors; it is not to be handed out.
 */
int glake__elastic_named(glake_ptr address, uint64_t n_bytes);

#endif
