/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that was sealed and is written to, in host memory at the same addresses, because the GPU had no room for a private
 * copy. The program goes on, at the speed of the link, until there is room again.
 *
 * Owner: the process. Threads: any; no lock is held.
 */
#ifndef GLAKE_LIBCLIENT_REFUGE_H
#define GLAKE_LIBCLIENT_REFUGE_H

#include "glake.h"

/* [ptr, ptr + n_bytes), a piece, is in host memory now. */
void glake__refuge_note(glake_ptr ptr, uint64_t n_bytes);

/* How many bytes are there; what has been freed since the last glake__refuge_return() counts. */
uint64_t glake__refuge_bytes(void);

/*
 * Have what is there on the GPU again, as far as memory is free: nobody else gives any for it, or waits. Blocks for a moment
 * without work. Only with a gate.
 */
void glake__refuge_return(void);

#endif
