/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints of all blocks (daemon/mover/layout.h): which content of a block is in other blocks as well.
 *
 * A table of a fixed number of chains, whose hash has a secret: content that a program chooses makes no chain long. At most
 * PRINTS_MAX in all, of which a realm has at most half of what others leave. Of one value in a realm and location, at most
 * PRINTS_SAME are found: those of further blocks find them, and not the other way round.
 *
 * Realms and locations are never compared: a print is looked for among those of the same.
 *
 * Owner: the store. A block's prints go with it. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_PRINTS_H
#define GLAKE_DAEMON_PRINTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/store/block.h"

#define PRINTS_CHAINS (1u << 16)
/* 40 bytes each: 10 MiB. That is 128 GiB of blocks. */
#define PRINTS_MAX (256u << 10)
#define PRINTS_SAME 8u

struct block_print {
	uint64_t print;
	struct block *block;      /* NULL: it is not in its chain */
	struct block_print *next; /* of the chain */
};

struct prints {
	struct block_print **chains; /* owned; NULL until the first */
	uint64_t secret[2];
	uint64_t n;
	uint64_t last_mark;
};

/* Zeroed memory is an empty table. */
void prints_deinit(struct prints *prints);

/* @block has been looked at. As many of its prints as it may have are entered. 0, or an error: it has none. */
int prints_add(struct prints *prints, struct block *block, const uint64_t *values, size_t n,
               uint64_t varied_bytes);
void prints_drop(struct prints *prints, struct block *block);

/* A new mark, for block->layout.mark of the blocks that are meant in the next call. */
uint64_t prints_mark(struct prints *prints);

/*
 * The number of prints of @block that are in other blocks in use: with @marked, in blocks that have the mark @mark, else in
 * those that have another one.
 */
uint32_t prints_count(const struct prints *prints, const struct block *block, uint64_t mark,
                      bool marked);

#endif
