/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slot for a wish of glaked that a thread of ours is to follow. Any thread of the program may read the wish, and must not
 * wait for the GPU, so it leaves the wish in a slot of the connection. A slot holds one wish, until that has been followed.
 */
#ifndef GLAKE_SHIM_ASK_H
#define GLAKE_SHIM_ASK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ASK_WHAT_BITS 3u

struct ask {
	uint64_t id;   /* glaked's, for the report; 0: there is none */
	unsigned what; /* below 1 << ASK_WHAT_BITS */
};

/* False: the slot holds a wish already. */
static inline bool ask_put(_Atomic uint64_t *slot, uint64_t id, unsigned what)
{
	uint64_t none = 0;
	return atomic_compare_exchange_strong(slot, &none, id << ASK_WHAT_BITS | what);
}

static inline struct ask ask_look(_Atomic uint64_t *slot)
{
	uint64_t word = *slot;
	return (struct ask){word >> ASK_WHAT_BITS, word & ((1u << ASK_WHAT_BITS) - 1)};
}

/* Called before the last report, because whoever reads that may ask again at once. */
static inline void ask_clear(_Atomic uint64_t *slot)
{
	*slot = 0;
}

#endif
