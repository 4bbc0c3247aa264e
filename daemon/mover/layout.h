/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints of content: few numbers by which equal bytes are found again, at whichever offset they lie.
 *
 * Allocators and files put tensors at multiples of 512 bytes (or more). So a window of 64 bytes is looked at at each such place. One
 * of LAYOUT_RATE windows, by its hash, is an anchor; the hash of the 4 KiB from there is a print. Which places are anchors follows
 * from the content alone: whoever has the same bytes 512 bytes further has the same prints. There is one for each 512 KiB of
 * content, on average.
 *
 * A window whose words are all equal (zeros, constants) is none. Bytes that repeat give one print, since each counts once. If
 * there are more than LAYOUT_MAX_PRINTS, the smallest stay, which are the same everywhere, too.
 *
 * Owner: the caller; zeroed memory has no prints. Threads: one.
 */
#ifndef GLAKE_MOVER_LAYOUT_H
#define GLAKE_MOVER_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

#define LAYOUT_STEP 512u
#define LAYOUT_WINDOW_BYTES 64u
#define LAYOUT_RATE 1024u
#define LAYOUT_PRINT_BYTES 4096u

struct layout {
	uint64_t prints[2 * GLAKE_MAX_PRINTS];
	size_t n;
	uint64_t below;        /* prints from here on are left out; 0: none are */
	uint64_t varied_bytes; /* of places that are no constants */
};

/* Look at the places in the first @n_bytes (a multiple of LAYOUT_STEP) of @bytes, of which @n_there can be read. */
void layout_add(struct layout *layout, const uint8_t *bytes, size_t n_bytes, size_t n_there);

/* All is added: GLAKE_MAX_PRINTS at most, in order, each once. */
void layout_finish(struct layout *layout);

#endif
