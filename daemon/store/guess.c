/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/store/guess.h"

#include <stddef.h>

/* At most MAX_STEPS chunks of a program are digested at a time; further away it is no guess but a walk. */
#define MAX_STEPS 64u

uint64_t guess_block(struct guess *guess, const struct list *blocks, const struct realm *realm,
                     const struct chunk *chunk, struct block **block_out)
{
	uint64_t number = ++guess->n_chunks;
	*block_out = NULL;
	if (!guess->known || number - guess->number > MAX_STEPS) {
		return number;
	}
	struct list *link = &guess->known->link;
	for (uint64_t i = guess->number; i < number && link != blocks; i++) {
		link = link->next;
	}
	struct block *block = link == blocks ? NULL : container_of(link, struct block, link);
	if (block && block->state != BLOCK_LOST && block->realm == realm &&
	    block->chunk.at == chunk->at && block->chunk.bytes == chunk->bytes) {
		*block_out = block;
	}
	return number;
}

void guess_right(struct guess *guess, uint64_t number, struct block *block)
{
	guess->known = block;
	guess->number = number;
}

void guess_wrong(struct guess *guess)
{
	guess->known = NULL;
}

void guess_forget(struct guess *guess, const struct block *block)
{
	if (guess->known == block) {
		guess->known = NULL;
	}
}
