/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guess is the block that a chunk may turn out to equal, before its digest is known. Programs with one model publish it in
 * one order: if a chunk equals a block, the next chunk probably equals the next block. The mover then digests the chunk and
 * compares it with the guess at once, instead of mapping it twice. A guess that is wrong costs time, and nothing else.
 *
 * Owner: the store. Threads: loop thread.
 */
#ifndef GLAKE_DAEMON_GUESS_H
#define GLAKE_DAEMON_GUESS_H

#include <stdint.h>

#include "daemon/store/block.h"

struct guess {
	struct block *known; /* in the store's list; NULL: nobody knows */
	uint64_t number;     /* of the chunk that it equals */
	uint64_t n_chunks;   /* that have been given a number */
};

/* The number of @chunk, the next to be digested. *block_out: a block of its size in @realm, or NULL. */
uint64_t guess_block(struct guess *guess, const struct list *blocks, const struct realm *realm,
                     const struct chunk *chunk, struct block **block_out);

/* Chunk @number does equal @block. */
void guess_right(struct guess *guess, uint64_t number, struct block *block);
/* A chunk does not equal the block that was guessed. */
void guess_wrong(struct guess *guess);
/* @block leaves the store. */
void guess_forget(struct guess *guess, const struct block *block);

#endif
