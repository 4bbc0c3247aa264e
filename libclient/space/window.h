/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The window: the one reservation of addresses that all ranges of the process lie in.
 *
 * It is 16 times the memory of the process's devices, halved until the driver has it. Addresses are
 * taken from it and given back without a driver call. Free ones are extents, side by side never two:
 * the page map's entries of an extent's first and last page point to it, and bins hold them by size.
 *
 * Owner: the process; it is never dropped. Threads: called with the lock of the space held.
 */
#ifndef GLAKE_LIBCLIENT_WINDOW_H
#define GLAKE_LIBCLIENT_WINDOW_H

#include <stdbool.h>

#include "proto/cudrv.h"
#include "libclient/glake.h"

/* Reserve it, once. Without memory, addresses or devices there is none: all addresses are the driver's. */
void glake__window_open(const struct cudrv *drv);

/* Forget it: the process is a child of the one that reserved it. */
void glake__window_forget(void);

/*
 * Take @n_bytes of free addresses, a multiple of 2 MiB. @alignment is a power of two or 0; @hint is
 * where they should be, 0: anywhere. A hint that is not aligned is none. 0: there are none, or no memory.
 */
glake_ptr glake__window_take(uint64_t n_bytes, uint64_t alignment, glake_ptr hint);

/* Give back what was taken. Its entries in the page map are cleared. */
void glake__window_give(glake_ptr ptr, uint64_t n_bytes);

bool glake__window_has(glake_ptr ptr);

/* For tests: do extents, bins and page map agree? */
bool glake__window_is_valid(void);

#endif
