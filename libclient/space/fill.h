/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes what the program's calls have written to each page since it was allocated: a page that copies from the host
 * have filled once looks like weights. Kernels' writes are not seen.
 *
 * A caching allocator takes large memory and gives parts of it to the program. A part that nobody has yet will be
 * written by a kernel. So a page counts as filled if no part is left: each of its blocks of 512 bytes was copied to.
 * A block was if a copy has its first byte. So the space behind a copy counts up to the next multiple of 512 bytes,
 * which is how far allocators round sizes up, and a row of copies that touch counts each byte once, wherever they
 * touch. A block that is copied to twice is no weight.
 *
 * A byte of flags for each page of the window, and a bit for each block of the pages that no single copy has filled.
 * Where large copies begin and end is noted, too: tensors lie there in any order, so they are told apart.
 *
 * It is a hint, which decides what is sealed, never whether that is right.
 *
 * Owner: the process. Lifetime: with the window. Threads: any; no locks.
 */
#ifndef GLAKE_LIBCLIENT_FILL_H
#define GLAKE_LIBCLIENT_FILL_H

#include <stdbool.h>
#include <stdint.h>

#include "glake.h"

/* Loaders that copy through a buffer do so in smaller parts. */
#define GLAKE__FILL_LARGE_BYTES (8ull << 20)

enum glake__fill {
	GLAKE__FILL_PARTLY,    /* or not at all */
	GLAKE__FILL_WHOLE,     /* once */
	GLAKE__FILL_REWRITTEN, /* or written by other calls */
};

/* The fill of the page at @ptr, of which the allocation has the first @n_bytes. */
enum glake__fill glake__fill_at(glake_ptr ptr, uint64_t n_bytes);

/* Does the page at @ptr begin, or follow, a copy of GLAKE__FILL_LARGE_BYTES or more? */
bool glake__fill_is_bound(glake_ptr ptr);

/* [ptr, ptr + n_bytes) is allocated anew. */
void glake__fill_reset(glake_ptr ptr, uint64_t n_bytes);

/* The window is there: count from now on. Called with the lock of the space held. */
void glake__fill_start(void);

/* The window goes: the process is a forked child. */
void glake__fill_forget(void);

/*
 * The program's calls write to [ptr, ptr + n_bytes), which may be anywhere: copied from the host; zeroed or set,
 * which may come before a copy; or written otherwise, also again and again. Each costs a few
 * instructions for each page.
 */
void glake__fill_copied(glake_ptr ptr, uint64_t n_bytes);
void glake__fill_set(glake_ptr ptr, uint64_t n_bytes);
void glake__fill_written(glake_ptr ptr, uint64_t n_bytes);

/* GLAKE_DEDUP=off wins over whoever asks: nothing is counted, and nothing sealed. */
bool glake__dedup_is_off(void);

/* Would glake__fill_copied() count anything there? */
bool glake__fill_is_open(glake_ptr ptr, uint64_t n_bytes);

#endif
